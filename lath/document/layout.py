"""Split a text into sentences and what stands around them: line breaks, indentation, list markers, white space.

A sentence may hold line breaks where a line clearly continues in the next (wrapping.py); else each line is a block of
its own. The splitter is the library sentencex, with two corrections that a trial showed to be needed
(docs/adr/0013-sentence-splitter.md).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import NamedTuple

from lath.document.protect import find_spans
from lath.document.wrapping import blanked, blocks


class Span(NamedTuple):
    """A piece of a text: a sentence to translate, or something to keep as it is."""

    text: str
    sentence: bool


# White space and list markers at the start of a line, as often as they repeat. "3. Oktober" is a date, and a marker
# needs white space behind it, but for the ">" of quoted mail.
_START = re.compile(
    r"""[\s\ufeff]* (?: >\s* | (?: [-+*•‣◦▪·–—] | \#{1,6} | \[[ xX]\] | [☐☑☒✓✔]
        | \d{1,3} (?: \.\d{1,3} )* \. (?! \s+ (?: Jan|Feb|Mär|Apr|Mai|Jun|Jul|Aug|Sep|Okt|Nov|Dez ) )
        | \(? (?: \d{1,3} | [a-zA-Z] | [ivxIVX]{1,6} ) \) ) (?: \s+ | $ ) )*""",
    re.VERBOSE,
)

# sentencex counts bytes where it skips one character of white space, and refuses lone surrogates.
_ODD = re.compile(r"[\s\x00-\x1f\x7f-\x9f\ud800-\udfff]")
# On quotation marks without a partner it is quadratic, so it sees at most so many characters at once.
_PIECE = 4000

# The library leaves some of these alone behind a sentence.
_CLOSING = "\"'”“’‘»«›‹)]"

# The corrections, by language. An ordinal number behind an article ends no sentence ("im 21. Jahrhundert"); and these
# words end sentences, though the library has them as abbreviations (Maine, Michigan, Magister, Illinois).
_NO_ENDS = {"de": re.compile(r"\b(?i:am|beim|das|dem|den|der|des|die|im|vom|zum|zur) \d\d?\. +")}
_MORE_ENDS = {
    "de": re.compile(r"\b(?:[Aa]rt|Bart|mag|mich|ok|OK)\. +(?=[A-ZÄÖÜ])"),
    "en": re.compile(r"\b(?:art|id|ID|ill|may|me|miss|no|ok|OK)\. +(?=[A-Z])"),
}


def split_text(text: str, language: str) -> list[Span]:
    r"""The sentences of a text in `language` ("de", "en-GB"), and what stands between them; joined, they are the text.

    Sentences have no white space around them. Whatever has no letter is kept as it is, too, and so is fenced code. A
    language that the library does not know is split by general rules.

    >>> [span.text for span in split_text("Es ist 9 Uhr. Wir\n\n  1. Kommt Dr. Ott?\n", "de")]
    ['Es ist 9 Uhr.', ' ', 'Wir', '\n\n  1. ', 'Kommt Dr. Ott?', '\n']
    >>> [span.text for span in split_text("- Yes. No!\n- 12,5 %\n", "en") if span.sentence]
    ['Yes.', 'No!']
    """
    found = blocks(text.splitlines(keepends=True))
    return _tidied(
        span for block, is_text in found for span in (_line_spans(block, language) if is_text else [Span(block, False)])
    )


def split_line(line: str, language: str) -> list[Span]:
    """The same for a single line; a line break within it is white space.

    >>> split_line("  Really? Yes.", "en")[1:]
    [Span(text='Really?', sentence=True), Span(text=' ', sentence=False), Span(text='Yes.', sentence=True)]
    """
    return _tidied(_line_spans(line, language))


def _tidied(spans: Iterable[Span]) -> list[Span]:
    """Without empty spans; neighbours that are to be kept become one."""
    tidied: list[Span] = []
    for sentence, group in groupby((span for span in spans if span.text), key=lambda span: span.sentence):
        neighbours = list(group)
        tidied += neighbours if sentence else [Span("".join(span.text for span in neighbours), False)]
    return tidied


def _line_spans(line: str, language: str) -> Iterator[Span]:
    """The spans of a line: its start, then the sentences of each cell of a table or column between tabs."""
    match = _START.match(line)
    assert match  # it can be empty
    yield Span(match[0], False)
    body = line[match.end() :]
    for cell in re.split(r"([|\t])" if body.startswith("|") else r"(\t)", body):
        start = 0
        plain = blanked(cell)
        for end in _ends(plain, language):
            text = plain[start:end]
            first, last = start + len(text) - len(text.lstrip()), start + len(text.rstrip())
            first = min(first, last)
            yield Span(cell[start:first], False)
            yield Span(cell[first:last], _has_letter(cell[first:last]))
            yield Span(cell[last:end], False)
            start = end


def _has_letter(text: str) -> bool:
    return any(map(str.isalpha, text))


def _ends(text: str, language: str) -> list[int]:
    """Where sentences end, the white space behind them included."""
    if not _has_letter(text):
        return [len(text)]
    from sentencex import get_sentence_boundaries  # only those who translate texts need it

    language = re.split("[-_]", language.lower())[0]
    plain = _ODD.sub(" ", text)
    ends: set[int] = set()
    start = 0
    while start < len(plain):
        found = [start + b["end_index"] for b in get_sentence_boundaries(language, plain[start : start + _PIECE])]
        ends.update(found[:-1])  # the last one is the end of the piece; what it cuts is looked at again
        start = found[-2] if len(found) > 1 and start + _PIECE < len(plain) else start + _PIECE
    ends -= {end for end in ends if end < len(text) and text[end] in _CLOSING and not text[end - 1].isspace()}
    if language in _NO_ENDS:
        ends.difference_update(match.end() for match in _NO_ENDS[language].finditer(plain))
    if language in _MORE_ENDS:
        ends.update(match.end() for match in _MORE_ENDS[language].finditer(plain))
    for span in find_spans(text):  # such as Markdown's ![picture](file.png)
        ends.difference_update(range(span.start + 1, span.end))
    return sorted(ends | {len(text)})
