"""Split a line that is too long for the network into fragments, at sentence and clause ends where possible.

split_long("One. Two, three.", lambda fragment: len(fragment) <= 8)  ->  ["One.", "Two,", "three."]
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable

_CLOSING = "[\"'”’»)\\]]*+"
# Where to cut, best first; a cut is at the end of a match. Only East Asian punctuation may lack a following space,
# so that 3.14 and 10:30 are not cut. A run of marks is tried once, from its start and as a whole, because a line may be
# nothing but dots.
_PLACES = (
    re.compile(rf"(?<![.!?…؟۔।])[.!?…؟۔।]++{_CLOSING}\s+|[。！？｡]+[」』”’）]*\s*"),
    re.compile(rf"(?<![;:,–—،؛])[;:,–—،؛]++{_CLOSING}\s+|[；：，、]+\s*"),
    re.compile(r"\s+"),
)


def split_long(text: str, fits: Callable[[str], bool], longest: int = 1 << 13) -> list[str]:
    """Split `text` into fragments that fit, each as long as possible from left to right; only white space may be lost.

    A fragment ends at the last sentence end that fits, else at the last clause end, else at white space. A word that
    does not fit is halved between characters; a single character is never split. `fits` must not become true again as
    a text grows; it is called on texts of up to `longest` characters, so that time is linear in the text's length.
    """
    if len(text) <= longest:
        return _split_window(text, fits)
    text = text.strip()
    fragments: list[str] = []
    start = 0
    while len(text) - start > longest:
        window = text[start : start + longest].rstrip()
        *whole, last = _split_window(window, fits)
        fragments += whole or [last]
        start += len(window) - (len(last) if whole else 0)  # what follows may still belong to the last fragment
        while text[start].isspace():
            start += 1
    return [*fragments, *_split_window(text[start:], fits)]


def _split_window(text: str, fits: Callable[[str], bool]) -> list[str]:
    if fits(text):
        return [text]
    kinds = _cut_kinds(text)
    cuts = sorted(kinds)
    fragments: list[str] = []
    start = len(text) - len(text.lstrip())
    while start < len(text):
        first = bisect_right(cuts, start)
        while not fits(_fragment(text, start, cuts[first])) and cuts[first] - start > 1:
            middle = (start + cuts[first]) // 2
            cuts.insert(first, middle)
            kinds[middle] = len(_PLACES)
        last = _last_fitting(text, start, cuts, first, fits)
        end = _best_cut(text, start, cuts[first : last + 1], kinds, fits)
        fragments.append(_fragment(text, start, end))
        start = end
        while start < len(text) and text[start].isspace():
            start += 1
    return fragments


def _cut_kinds(text: str) -> dict[int, int]:
    """Each possible cut with its rank, lower is better; the end of the text ranks first."""
    kinds = {len(text): -1}
    for kind, places in enumerate(_PLACES):
        for match in places.finditer(text):
            kinds.setdefault(match.end(), kind)
    return kinds


def _fragment(text: str, start: int, end: int) -> str:
    return text[start:end].rstrip()


def _last_fitting(text: str, start: int, cuts: list[int], first: int, fits: Callable[[str], bool]) -> int:
    """The index of the last cut that fits, given that the first fits: doubling steps, then bisection."""
    good, step = first, 1
    while good + step < len(cuts) and fits(_fragment(text, start, cuts[good + step])):
        good += step
        step *= 2
    bad = min(good + step, len(cuts))
    while bad - good > 1:
        middle = (good + bad) // 2
        if fits(_fragment(text, start, cuts[middle])):
            good = middle
        else:
            bad = middle
    return good


def _best_cut(text: str, start: int, cuts: list[int], kinds: dict[int, int], fits: Callable[[str], bool]) -> int:
    """The last cut of the best kind that fits; other kinds are only needed if `fits` is not monotonic."""
    for kind in sorted({kinds[cut] for cut in cuts}):
        cut = max(cut for cut in cuts if kinds[cut] == kind)
        if fits(_fragment(text, start, cut)):
            return cut
    return cuts[0]
