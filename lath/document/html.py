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
from itertools import groupby
from typing import Literal, NamedTuple


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
_TAG = re.compile(r"(</?x\d+>|<x\d+/>)")
_SPACE = re.compile(r"[ \t\n\r\f]+")


class _Item(NamedTuple):
    """A stretch of the document; `hidden` is a whole element that is left alone, `break` ends a sentence."""

    kind: Literal["text", "open", "close", "void", "comment", "hidden", "break"]
    name: str
    raw: str


class _Unit(NamedTuple):
    """Items that are translated as one text, and the short tag that stands for each item without text."""

    numbers: range
    tags: dict[int, str]
    text: str


def translate_html(html: str, translate: Callable[[list[str]], list[str]]) -> str:
    """The document or fragment with its text translated; `translate` is called at most twice, with many texts."""
    items = list(_items(html))
    raws = [item.raw for item in items]
    values = [(number, *value) for number, item in enumerate(items) for value in _readable_values(item)]
    units = list(_units(items))
    sent = [_core(text) for *_, text in values] + [_core(unit.text) for unit in units]
    results = translate(sent) if sent else []
    for (number, start, end, text), result in reversed(list(zip(values, results, strict=False))):
        if result != _core(text):
            raws[number] = f'{raws[number][:start]}"{escape(result)}"{raws[number][end:]}'
    broken = _write(raws, units, results[len(values) :])
    alone = [_unit(items, range(n, n + 1), {}) for unit in broken for n in unit.numbers if _has_words(items[n])]
    if alone:
        _write(raws, alone, translate([_core(unit.text) for unit in alone]))
    return "".join(raws)


def _write(raws: list[str], units: Sequence[_Unit], results: Sequence[str]) -> list[_Unit]:
    """Put translations into the document; the units whose tags did not come back are left alone and returned."""
    broken = []
    for unit, result in zip(units, results, strict=True):
        core = _core(unit.text)
        nesting = _nesting(core)
        same = nesting is not None and len(nesting) == len(unit.tags) and _nesting(result) == nesting
        if unit.tags and not (same and _emptied(core) == _emptied(result)):
            broken.append(unit)
        elif result != core:
            before, after = unit.text.split(unit.text.strip(), 1)
            markup = {tag: raws[number] for number, tag in unit.tags.items()}
            parts = [before, *(_TAG.split(result) if unit.tags else [result]), after]
            raws[unit.numbers.start] = "".join(markup.get(part) or escape(part, quote=False) for part in parts)
            raws[unit.numbers.start + 1 : unit.numbers.stop] = [""] * (len(unit.numbers) - 1)
    return broken


def _nesting(text: str) -> list[tuple[str, str]] | None:
    """Each short tag with the number of the element around it, sorted; None if they are not nested."""
    found, inside = [], [""]
    for tag in _TAG.findall(text):
        number = tag.strip("</x>")
        if tag.startswith("</") and inside.pop() != number:
            return None
        found.append((tag, inside[-1]))
        if tag.strip("<>").startswith("x") and not tag.endswith("/>"):
            inside.append(number)
    return sorted(found) if inside == [""] else None


def _emptied(text: str) -> set[str]:
    """Elements without text; one that lost its text lost a part of the sentence."""
    return set(re.findall(r"<x(\d+)>\s*</x\1>", text))


def _core(text: str) -> str:
    """What is translated: white space is one space, and none is at the ends."""
    return _SPACE.sub(" ", text).strip()


def _units(items: Sequence[_Item]) -> Iterator[_Unit]:
    for ends, group in groupby(range(len(items)), lambda number: items[number].kind == "break"):
        numbers = list(group)
        block = range(numbers[0], numbers[-1] + 1)
        if ends or not any(_has_words(items[number]) for number in block):
            continue
        tags = _short_tags(items, block)
        if tags is None:  # an element that is not closed here, or not nested
            yield from (_unit(items, range(n, n + 1), {}) for n in block if _has_words(items[n]))
        else:
            block = _trimmed(items, block, tags)
            yield _unit(items, block, {number: tags[number] for number in block if number in tags})


def _unit(items: Sequence[_Item], block: range, tags: dict[int, str]) -> _Unit:
    return _Unit(block, tags, "".join(tags.get(number) or unescape(items[number].raw) for number in block))


def _short_tags(items: Sequence[_Item], block: range) -> dict[int, str] | None:
    """A short tag for each item of a block that is not text; None if the elements are not nested."""
    tags: dict[int, str] = {}
    opened: list[int] = []
    for number in block:
        kind, name, _ = items[number]
        if kind == "open":
            tags[number] = f"<x{len(tags)}>"
            opened.append(number)
        elif kind == "close":
            if not opened or items[opened[-1]].name != name:
                return None
            tags[number] = tags[opened.pop()].replace("<", "</")
        elif kind != "text":
            tags[number] = f"<x{len(tags)}/>"
    return None if opened else tags


def _trimmed(items: Sequence[_Item], block: range, tags: dict[int, str]) -> range:
    """The block without what holds no text at its ends, and without elements around all of it."""
    while True:
        first, last = block[0], block[-1]
        if _is_blank(items[first]):
            block = block[1:]
        elif _is_blank(items[last]):
            block = block[:-1]
        elif items[first].kind == "open" and tags.get(last) == tags[first].replace("<", "</"):
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
