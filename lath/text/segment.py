"""A line too long for the network becomes parts that fit, cut where a reader would cut.

split_long("One. Two, three.", lambda part: len(part) <= 8)  ->  ["One.", "Two,", "three."]
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable

_CLOSING = "[\"'”’»)\\]]*"
# Places to cut, best first; a match's end is the place. East Asian marks need no space behind them, others do,
# so that 3.14 and 10:30 stay whole.
_PLACES = (
    re.compile(rf"[.!?…؟۔।]+{_CLOSING}\s+|[。！？｡]+[」』”’）]*\s*"),
    re.compile(rf"[;:,–—،؛]+{_CLOSING}\s+|[；：，、]+\s*"),
    re.compile(r"\s+"),
)


def split_long(text: str, fits: Callable[[str], bool]) -> list[str]:
    """Parts of `text` that each fit, as long as possible from left to right; only white space may be lost.

    A part ends at the last sentence end within reach, else at the last clause end, else at white space; a word that
    does not fit by itself is halved between characters. A single character is taken as it is, fitting or not.
    `fits` is assumed to stay false when a text grows; it is called on texts of about the size of a part.
    """
    if fits(text):
        return [text]
    kinds = _cut_kinds(text)
    cuts = sorted(kinds)
    parts: list[str] = []
    start = len(text) - len(text.lstrip())
    while start < len(text):
        first = bisect_right(cuts, start)
        while not fits(_part(text, start, cuts[first])) and cuts[first] - start > 1:
            middle = (start + cuts[first]) // 2
            cuts.insert(first, middle)
            kinds[middle] = len(_PLACES)
        last = _last_fitting(text, start, cuts, first, fits)
        end = _best_cut(text, start, cuts[first : last + 1], kinds, fits)
        parts.append(_part(text, start, end))
        start = end
        while start < len(text) and text[start].isspace():
            start += 1
    return parts


def _cut_kinds(text: str) -> dict[int, int]:
    """Each place where the text may be cut, with the rank of its best kind; the end ranks before all others."""
    kinds = {len(text): -1}
    for kind, places in enumerate(_PLACES):
        for match in places.finditer(text):
            kinds.setdefault(match.end(), kind)
    return kinds


def _part(text: str, start: int, end: int) -> str:
    return text[start:end].rstrip()


def _last_fitting(text: str, start: int, cuts: list[int], first: int, fits: Callable[[str], bool]) -> int:
    """The index of the last cut whose part fits, given that the first does: doubling steps, then bisection."""
    good, step = first, 1
    while good + step < len(cuts) and fits(_part(text, start, cuts[good + step])):
        good += step
        step *= 2
    bad = min(good + step, len(cuts))
    while bad - good > 1:
        middle = (good + bad) // 2
        if fits(_part(text, start, cuts[middle])):
            good = middle
        else:
            bad = middle
    return good


def _best_cut(text: str, start: int, cuts: list[int], kinds: dict[int, int], fits: Callable[[str], bool]) -> int:
    """The last cut of the best kind; the kinds after it are asked only if that part, against all odds, is too long."""
    for kind in sorted({kinds[cut] for cut in cuts}):
        cut = max(cut for cut in cuts if kinds[cut] == kind)
        if fits(_part(text, start, cut)):
            return cut
    return cuts[0]
