r"""Lines that belong together: wrapped prose, and code that is left alone.

    blocks(["Ich komme erst morgen Abend nach Hause, weil ich\n", "arbeiten muss.\n"])   ->  one block of both lines
    unbroken("Ich komme,\nwenn ich kann.")                                          ->  "Ich komme, wenn ich kann."
    broken("I'll come if I can.", "Ich komme,\nwenn ich kann.")                     ->  "I'll come\nif I can."

A line continues in the next one if no sentence ends there, the next has no marker of its own, and either the lines are
filled (none has room for the first word of the next) or the next begins in lower case behind a comma or a long line.
Poems, addresses and lists have other breaks. The translation gets as many breaks as the sentence had.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from lath.document.protect import find_spans

LONG_LINE = 30
"""Characters from which a line may be wrapped without a comma at its end."""
WIDE, WIDEST = 50, 200
"""Characters between which lines may be filled: a column of shorter ones is a list, and nobody wraps at more."""
MOST_LINES = 40
"""Lines of one text; with `WIDEST` they bound the time."""
_BREAK = re.compile(r"(?<![ \t])[ \t]*+\r?\n[ \t>]*")
_HYPHEN = re.compile(r"(?<=[^\W\d_])-(?:[ \t]*\r?\n[ \t>]*)(?=[^\W\d_])(?!und\b|oder\b|and\b|or\b|bzw)")
_LEAD = re.compile(r"[ \t]*(?:>[ \t]*)*")
_MARKER = re.compile(r"[-+*•‣◦▪·–—#|☐☑☒✓✔]|\(?\w{1,3}[.)]\s|\[[ xX^]|https?:")
_END = re.compile(r"""[.!?:;…|][\s"'”“’‘»«)\]*_]*$""")
_FENCE = re.compile(r"[ \t>]*(```|~~~)")


def blocks(lines: Sequence[str]) -> Iterator[tuple[str, bool]]:
    """The lines, those that belong together as one text, and whether that may be translated."""
    number = 0
    while number < len(lines):
        end, is_code = _code_end(lines, number), True
        if end is None:
            end, is_code = _paragraph_end(lines, number), False
        if is_code:
            yield "".join(lines[number:end]), False
        else:
            yield from ((text, True) for text in _joined(lines[number:end]))
        number = end


def blanked(text: str) -> str:
    """The text with spaces for its line breaks and what is quoted with them, as long as before."""
    return _BREAK.sub(lambda match: " " * len(match[0]), text)


def unbroken(text: str) -> str:
    """A wrapped sentence on one line; a word that was divided is one again."""
    return _BREAK.sub(" ", _HYPHEN.sub("", text)) if "\n" in text else text


def broken(translation: str, sentence: str) -> str:
    """The translation with the line breaks of the sentence, where they are nearest to their places."""
    if "\n" not in sentence:
        return translation
    kept = find_spans(translation)
    spaces = [found.start() for found in re.finditer("(?<!^) ", translation)]
    spaces = [place for place in spaces if not any(span.start < place < span.end for span in kept)]
    breaks = list(_BREAK.finditer(sentence))
    written, start = [], 0
    for number, found in enumerate(breaks):
        later = [place for place in spaces if place >= start]
        near = _nearest(later[: max(len(later) - len(breaks) + number + 1, 1)], found, translation)
        written += [translation[start:near], found[0]]
        start = min(near + 1, len(translation))
    return "".join([*written, translation[start:]])


def _nearest(spaces: Sequence[int], found: re.Match[str], translation: str) -> int:
    """The space that is nearest to the place of a break, rather behind the same punctuation; else the end."""
    wanted, mark = found.start() / len(found.string) * len(translation), found.string[found.start() - 1]
    bonus = 12 if mark in ",–-" else 0
    return min(
        spaces,
        key=lambda place: abs(place - wanted) - bonus * (translation[place - 1] == mark),
        default=len(translation),
    )


def _code_end(lines: Sequence[str], number: int) -> int | None:
    """Where fenced code ends that begins in a line."""
    fence = _FENCE.match(lines[number])
    if fence is None:
        return None
    ends = (end + 1 for end in range(number + 1, len(lines)) if lines[end].lstrip(" \t>").startswith(fence[1]))
    return next(ends, None)


def _paragraph_end(lines: Sequence[str], number: int) -> int:
    """Where a run of lines ends of which each may continue the one before."""
    first = lines[number]
    lead = _LEAD.match(first)
    assert lead  # it can be empty
    marked = _MARKER.match(first, lead.end())
    if not first.endswith("\n") or "\t" in first or first[lead.end() : lead.end() + 1] in ("#", "|", "\n", "\r", ""):
        return number + 1
    indent = None if marked else lead[0]
    for end in range(number + 1, len(lines)):
        line = lines[end]
        own = _LEAD.match(line)
        assert own
        rest = line[own.end() :]
        if not rest.strip() or "\t" in line or _MARKER.match(rest) or _FENCE.match(line):
            return end
        if own[0].count(">") != lead[0].count(">") or indent not in (None, own[0]):
            return end
        indent = own[0]
        if not line.endswith("\n"):
            return end + 1
    return len(lines)


def _joined(lines: Sequence[str]) -> Iterator[str]:
    """The lines of a paragraph, with those that continue a sentence as one text."""
    width = max(len(line.rstrip()) for line in lines)
    filled = WIDE <= width <= WIDEST and all(
        len(line.rstrip()) + 1 + len(after.lstrip(" \t>").split(maxsplit=1)[0]) > width
        for line, after in pairwise(lines)
    )
    texts = [[lines[0]]]
    for line, after in pairwise(lines):
        short, first = line.rstrip(), after.lstrip(" \t>")[0]
        wrapped = filled or (first.islower() and (short.endswith((",", "-")) or len(short) >= LONG_LINE))
        fits = len(texts[-1]) < MOST_LINES and len(line) <= WIDEST
        if wrapped and fits and not _END.search(short) and any(map(str.isalpha, short)):
            texts[-1].append(after)
        else:
            texts.append([after])
    return map("".join, texts)
