"""Translate the text of an HTML document or fragment; the markup stays as it was written, character by character.

    translate_html("<p>Guten <b>Morgen</b>, Welt</p>", mt.translate)  ->  "<p>Good <b>morning</b>, world</p>"

Text between two block tags is one text: its inline tags are sent along as `<x0>`, `</x0>` and `<x1/>`. If they do not
come back once each, nested as before and around text as before, the stretches between them are translated one by one.
docs/adr/0014-html.md says why no tree is built.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from html import escape, unescape
from itertools import accumulate, count, groupby
from typing import Literal, NamedTuple

from lath.document.inline import STAND_IN, Marked, one_sentence, translate_marked
from lath.document.layout import Span


def _names(listed: str) -> frozenset[str]:
    return frozenset(listed.split())


INLINE = _names(
    "a abbr acronym b bdi bdo big cite del dfn em font i img ins mark q s small span strike strong sub sup time tt u "
    "wbr"
)
"""Elements inside a sentence; all others end it."""
INLINE_VERBATIM = _names("code kbd samp var")
VERBATIM = INLINE_VERBATIM | _names("script style pre textarea svg math xmp iframe noembed noframes")
"""Elements left alone, as are those with translate="no" or the class notranslate."""
ATTRIBUTES = _names("alt aria-label placeholder title")
"""Attributes that people read: they are translated."""
_VOID = _names("area base br col embed hr img input link meta param source track wbr")
_RAW = _names("script style textarea title xmp iframe noembed noframes")  # no tags inside
# What a start tag ends without an end tag.
_ENDS = {"li": "li", "dt": "dt dd", "dd": "dt dd", "td": "td th", "th": "td th", "tr": "td th tr", "option": "option"}

# The tokens of the HTML standard. Possessive quantifiers never try again, so that the time is linear for any text.
_ATTRIBUTE = r"""([^\s/>][^\s/>=]*+)(?:\s*+=\s*+("[^"]*+"?+|'[^']*+'?+|[^\s"'>][^\s>]*+))?+"""
_NAMELESS = _ATTRIBUTE.replace("([^\\s/>]", "(?:[^\\s/>]").replace('("', '(?:"')
_MARKUP = re.compile(
    rf"<!--(?:-?>|.*?(?:--!?>|\Z))|<(/?)([a-z][^\s/>]*+)(?:[\s/]++|{_NAMELESS})*+>?|<[!?/][^>]*+>?",
    re.ASCII | re.DOTALL | re.IGNORECASE,
)
_VALUE = re.compile(_ATTRIBUTE, re.ASCII)
_BLANKS = " \t\n\r\f"
_SPACE = re.compile(f"[{_BLANKS}]+")
MOST_ELEMENTS = 500
"""In blocks with more, the stretches between tags are translated one by one."""


class _Item(NamedTuple):
    """A stretch of the document; `hidden` is a whole element that is left alone, `break` ends a sentence."""

    kind: Literal["text", "open", "close", "void", "comment", "hidden", "break"]
    name: str
    raw: str


class _Unit(NamedTuple):
    """Items that are translated together."""

    numbers: range
    text: Marked
    """Their text, its elements marked, with `<x0/>`, `<x1/>` for what has no words: images, comments, code."""
    tags: list[tuple[int, int]]
    """The items that are the tags of each mark."""
    wordless: dict[str, range]
    """The items of each `<x0/>`."""


def translate_html(
    html: str, translate: Callable[[list[str]], list[str]], lay_out: Callable[[str], list[Span]] = one_sentence
) -> str:
    """The document or fragment with its text translated; `translate` is called at most twice, with many sentences."""
    items = list(_items(html))
    raws = [item.raw for item in items]
    values = [(number, *value) for number, item in enumerate(items) for value in _readable_values(item)]
    units = list(_units(items))
    texts = [Marked(_core(text), []) for *_, text in values] + [unit.text for unit in units]
    results = translate_marked(texts, translate, lay_out)
    for (number, start, end, _), before, after in reversed(list(zip(values, texts, results, strict=False))):
        if before.text != after.text:
            raws[number] = f'{raws[number][:start]}"{escape(after.text)}"{raws[number][end:]}'
    for unit, result in zip(units, results[len(values) :], strict=True):
        if result.text != unit.text.text:
            written = _written(unit, result, raws)
            raws[unit.numbers.start : unit.numbers.stop] = [written] + [""] * (len(unit.numbers) - 1)
    return "".join(raws)


def _written(unit: _Unit, result: Marked, raws: Sequence[str]) -> str:
    """A unit with a translation for its text."""
    tags = [
        tag
        for number, ((start, end), (opening, closing)) in enumerate(zip(result.marks, unit.tags, strict=True))
        for tag in ((start, 1, number, opening), (end, 0, -number, closing))
    ]
    first, last = raws[unit.numbers[0]], raws[unit.numbers[-1]]
    written, place = [first[: len(first) - len(first.lstrip(_BLANKS))]], 0
    for at, _, _, item in sorted(tags):  # elements end before others begin, inner ones first
        written += [_filled(result.text[place:at], unit, raws), raws[item]]
        place = at
    return "".join([*written, _filled(result.text[place:], unit, raws), last[len(last.rstrip(_BLANKS)) :]])


def _filled(text: str, unit: _Unit, raws: Sequence[str]) -> str:
    """Text as HTML, with items in the places of their stand-ins."""
    parts = re.split(f"({STAND_IN.pattern})", text) if unit.wordless else [text]
    return "".join(
        "".join(raws[slice(unit.wordless[part].start, unit.wordless[part].stop)])
        if part in unit.wordless
        else escape(part, quote=False)
        for part in parts
    )


def _core(text: str) -> str:
    """What is translated: white space is one space, and none is at the ends."""
    return _SPACE.sub(" ", text).strip()


def _units(items: Sequence[_Item]) -> Iterator[_Unit]:
    for ends, group in groupby(range(len(items)), lambda number: items[number].kind == "break"):
        numbers = list(group)
        block = range(numbers[0], numbers[-1] + 1)
        if ends or not any(_has_words(items[number]) for number in block):
            continue
        closings = _closings(items, block)
        if closings is None:
            yield from (_unit(items, range(n, n + 1), {}) for n in block if _has_words(items[n]))
        else:
            yield _unit(items, _trimmed(items, block, closings), closings)


def _unit(items: Sequence[_Item], block: range, closings: dict[int, int]) -> _Unit:
    shown = {number: _SPACE.sub(" ", unescape(items[number].raw)) for number in block if items[number].kind == "text"}
    words = dict(zip(block, accumulate(any(map(str.isalnum, shown.get(number, ""))) for number in block), strict=True))
    taken = {name for text in shown.values() for name in STAND_IN.findall(text)}
    names = (name for name in map("<x{}/>".format, count()) if name not in taken)
    text = ""
    marks: list[tuple[int, int]] = []
    tags: list[tuple[int, int]] = []
    opened: list[int] = []
    wordless: dict[str, range] = {}
    number = block.start
    while number < block.stop:
        closing = closings.get(number, number)
        if number in shown:
            text += shown[number].removeprefix(" " if text[-1:] in ("", " ") else "")
        elif items[number].kind == "close":
            start = marks[mark := opened.pop()][0]
            content = text[start:]
            marks[mark] = start + len(content) - len(content.lstrip(" ")), start + len(content.rstrip(" "))
        elif words[closing] > words[number]:
            opened.append(len(marks))
            marks.append((len(text), 0))
            tags.append((number, closing))
        else:
            name = next(names)
            text += name
            wordless[name] = range(number, closing + 1)
            number = closing
        number += 1
    return _Unit(block, Marked(text.rstrip(" "), marks), tags, wordless)


def _closings(items: Sequence[_Item], block: range) -> dict[int, int] | None:
    """The end tag of each start tag of a block; None if the elements are not nested, or too many."""
    closings: dict[int, int] = {}
    opened: list[int] = []
    for number in block:
        if items[number].kind == "open":
            opened.append(number)
        elif items[number].kind == "close":
            if not opened or items[opened[-1]].name != items[number].name:
                return None
            closings[opened.pop()] = number
    return None if opened or len(closings) > MOST_ELEMENTS else closings


def _trimmed(items: Sequence[_Item], block: range, closings: dict[int, int]) -> range:
    """The block without what holds no text at its ends, and without elements around all of it."""
    while True:
        first, last = block[0], block[-1]
        if _is_blank(items[first]):
            block = block[1:]
        elif _is_blank(items[last]):
            block = block[:-1]
        elif closings.get(first) == last:
            block = block[1:-1]
        else:
            return block


def _is_blank(item: _Item) -> bool:
    return item.kind in ("void", "comment") or (item.kind == "text" and not item.raw.strip())


def _has_words(item: _Item) -> bool:
    return item.kind == "text" and any(map(str.isalpha, unescape(item.raw)))


def _items(html: str) -> Iterator[_Item]:
    """The document with whole elements for what is left alone, and breaks for tags of blocks."""
    tokens = list(_tokens(html))
    number = 0
    while number < len(tokens):
        kind, name, raw = tokens[number]
        end = number + 1
        if kind in ("open", "void") and _is_verbatim(name, raw):
            end = _element_end(tokens, number)
            raw = "".join(token.raw for token in tokens[number:end])
            yield _Item("hidden" if name in INLINE | INLINE_VERBATIM else "break", "", raw)
        elif name and name not in INLINE:
            yield _Item("break", name if kind != "close" else "", raw)
        else:
            yield tokens[number]
        number = end


def _tokens(html: str) -> Iterator[_Item]:
    """Text, tags and comments as they stand; joined, they are the document."""
    at = 0
    while match := _MARKUP.search(html, at):
        if at < match.start():
            yield _Item("text", "", html[at : match.start()])
        slash, name, raw, at = match[1], (match[2] or "").lower(), match[0], match.end()
        if not name:
            yield _Item("comment", "", raw)
        elif slash:
            yield _Item("close", name, raw)
        else:
            yield _Item("void" if name in _VOID or raw.endswith("/>") else "open", name, raw)
        if name in _RAW and not slash:
            found = re.compile(rf"</{name}(?=[\s/>])", re.IGNORECASE).search(html, at)
            content, at = html[at : found.start() if found else None], found.start() if found else len(html)
            if content:
                yield _Item("text", "", content)
    if at < len(html):
        yield _Item("text", "", html[at:])


def _element_end(tokens: Sequence[_Item], start: int) -> int:
    """The number after an element's last token; its end tag may be missing where HTML allows that."""
    if tokens[start].kind == "void":
        return start + 1
    opened, counts = [tokens[start].name], Counter([tokens[start].name])
    for number in range(start + 1, len(tokens)):
        kind, name, _ = tokens[number]
        if kind == "open":
            ends = _ENDS.get(name, "" if name in INLINE else "p").split()
            while opened and opened[-1] in ends:
                counts[opened.pop()] -= 1
            if not opened:
                return number
            opened.append(name)
            counts[name] += 1
        elif kind == "close" and counts[name]:
            while (last := opened.pop()) != name:
                counts[last] -= 1
            counts[name] -= 1
            if not opened:
                return number + 1
        elif kind == "close" and name not in INLINE:
            return number  # the end of an element around this one
    return len(tokens)


def _attributes(raw: str) -> Iterator[tuple[str, int, int, str]]:
    """Name, place and value of each attribute of a tag."""
    for match in _VALUE.finditer(raw, re.match(r"<[^\s/>]*", raw).end()):  # type: ignore[union-attr]
        value = match[2] or ""
        if value[:1] in ("'", '"'):
            value = value[1:].removesuffix(value[0])
        yield match[1].lower(), match.start(2), match.end(2), unescape(value)


def _is_verbatim(name: str, raw: str) -> bool:
    values = {attribute: value.lower() for attribute, _, _, value in _attributes(raw)}
    return name in VERBATIM or values.get("translate") == "no" or "notranslate" in values.get("class", "").split()


def _readable_values(item: _Item) -> Iterator[tuple[int, int, str]]:
    if item.name and item.kind in ("open", "void", "break"):
        for attribute, start, end, value in _attributes(item.raw):
            if attribute in ATTRIBUTES and any(map(str.isalpha, value)):
                yield start, end, value
