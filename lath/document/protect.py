"""What must come through a translation unchanged: finding it, and getting it past a model.

    spans = find_spans("Schreib an max@beispiel.de!")      ->  [Span(start=11, end=26, kind="email")]
    for attempt in attempts(text, spans):                   # tried in order until one joins
        joined = attempt.join([translate(part) for part in attempt.texts])

Protected text goes to the model as a stand-in, a short word that it copies. If a stand-in does not come back exactly
once, the next attempt is made. The last one translates the text around the spans in parts; it cannot fail.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple


class Span(NamedTuple):
    """Text that must come through unchanged: text[start:end]."""

    start: int
    end: int
    kind: str


# Each expression is anchored at the start of a run or stops at the character that it starts with, and quantifiers that
# could meet again are bounded or possessive: searching takes linear time, whatever the text.
_DOMAIN = r"(?:[\w-]{1,63}+\.){1,8}"
_TOP = "com|org|net|edu|gov|info|eu|io|dev|app|de|at|ch|uk|fr|es|it|nl|pl|ro"
_FILE = (
    "txt|md|pdf|docx?|xlsx?|pptx?|odt|csv|tsv|json|xml|ya?ml|toml|ini|cfg|conf|log|py|ipynb|jsx?|tsx?|css|html?|php|java|"
    "cpp|hpp|rs|go|rb|sh|bat|ps1|exe|dll|so|zip|gz|tar|xz|7z|jpe?g|png|gif|svg|webp|mp[34]|wav|avi|mov|iso|sql|db"
)
_UNIT = (
    r"%(?![\w%(])|‰|°[CF]?|[€$£¥]|EUR|USD|GBP|CHF|JPY|[kcmµn]?m[²³]?|km/h|m/s|mph|ha|[kmµ]?g|[mcd]?l|[mµn]s|(?<=\s)s|min|h|"
    r"[kMGT]?Wh?|[kmM]?V|m?A|[kMG]?Hz|[kMGT]i?B|[kMG]?bit(?:/s)?|px|pt|dpi|h?Pa|k?cal|k?J|ft|lb|oz|K|B|N"
)
_NUMBER = r"\d++(?:[.,'’:/–-]\d++)*+"
_FOLLOWED = r"(?![\w²³]|[-–/]\w)"
_BASE = r"[\u231a-\u23ff\u25aa-\u27bf\u2934\u2935\u2b05-\u2b55\U0001f000-\U0001f1e5\U0001f200-\U0001faff]"
_PICTURE = rf"(?:{_BASE}|[\xa9\xae\u203c-\u3299]\ufe0f)[\ufe0f\U0001f3fb-\U0001f3ff]*+[\U000e0020-\U000e007f]*+"

_MONTH = (
    r"(?:Januar|Jänner|Februar|Feber|März|April|Mai|Juni|Juli|August|September|Oktober|November|Dezember)(?!\w)"
    r"|(?:Jan|Feb|Mär|Apr|Jun|Jul|Aug|Sept?|Okt|Nov|Dez)\."
)

_KINDS = {
    "code": r"```[^`]++```|``(?:[^`\n]|`(?!`))++``|`[^`\n]++`",
    "url": r"(?<!\w)(?:(?:https?|s?ftp|file|wss?)://|mailto:|www\.)(?:[^\s<>\"“”„»«`()]|\([^\s<>()]*+\))+"
    rf"(?<![.,;:!?…'*_])|(?<![\w.@-]){_DOMAIN}(?:{_TOP})(?![\w@-]|\.\w)(?:[/?#](?:[^\s<>\"“”„»«`()]*[\w/=&%#])?)?",
    "email": rf"(?<![\w.+-])[\w.+-]{{1,64}}+@{_DOMAIN}[\w-]{{1,63}}+",
    # § 3 Abs. 2 Satz 1 BGB, Art. 5 Abs. 1 lit. a DSGVO; a street and its number.
    "citation": r"(?<!\w)(?:§{1,2}+|Art\.)\s?\d{1,4}[a-z]?(?:,?\s(?:Abs|Nr|Satz|S|lit|Buchst|Alt|Hs|Ziff)\b\.?\s?"
    r"(?:\d{1,3}[a-z]?|[a-z])(?!\w))*+(?:\s[A-ZÄÖÜ][A-Za-z]{0,9}[A-Z](?!\w))?",
    "street": r"(?<![\w-])[A-ZÄÖÜ][\w-]{0,40}?(?:straße|strasse|str\.|gasse|allee)\s\d{1,4}(?:\s?[a-z])?"
    r"(?![\w.,-]*\d|\w)",
    # The brackets of Markdown's links, pictures and footnotes, too.
    "markup": r"!?\[(?=[^\[\]\n]{0,200}\]\([^()\s]{1,300}\))|\[(?=!\[)|\]\([^()\s]{1,300}\)|\[\^\w{1,20}\]"
    r"|</?[A-Za-z][\w:.-]*+(?:\s[^<>]*+)?/?>|</?\d{1,9}/?>|<![A-Za-z\[-][^<>]*+>"
    r"|&(?:[A-Za-z][A-Za-z\d]{1,30}|#\d{1,7}|#x[\dA-Fa-f]{1,6});",
    "placeholder": r"\{\{[^{}\n]{1,100}\}\}|[$#@]?\{[^{}\s]{0,100}\}|\[\[\w{1,100}\]\]|(?<![\w%])%[A-Za-z_]\w{0,63}%"
    r"|%(?:\(\w{1,64}\)|\d{1,3}\$)?[-+#0]?\d{0,9}(?:\.\d{1,9})?l{0,2}[sdifuxXeEgGcr@](?!\w)|%%"
    r"|(?<![\w$])\$[A-Za-z_]\w{0,63}|(?<![\w:]):[a-z][\w+-]{0,63}+:(?!\w)|(?<!\w)__[A-Za-z\d]\w{0,63}__(?!\w)",
    "path": r"(?<![\w\\])[A-Za-z]:[\\/][^\s\"<>|?*,;]*[\w\\/]|(?<![\w\\])\\(?:\\(?:\.{0,2}[\w$-]++)++)++"
    r"|(?<![\w/.~…])(?:~|\.{1,2})?(?:/(?:\.{0,2}[\w@+-]++)++)++/?"
    rf"|(?<![\w/.@+-])(?:[\w@+-][\w.@+-]*+/){{1,40}}+(?:[\w@+-]++\.(?=\w))++\w{{1,8}}(?!\w)"
    rf"|(?<![\w.@/-])\w[\w-]{{0,99}}(?:\.\w[\w-]{{0,30}}){{0,4}}\.(?:{_FILE})(?![\w/-]|\.\w)",
    "handle": r"(?<![\w@/.])@\w(?:[\w.-]{0,62}\w)?(?:@(?:[\w-]{1,63}\.){1,4}\w{1,63})?"
    r"|(?<![\w#&/])#\w{1,100}(?:-\w{1,50})?",
    "emoji": rf"(?:(?:[\d#*]\ufe0f?\u20e3|[\U0001f1e6-\U0001f1ff]{{2}}|{_PICTURE}(?:\u200d{_PICTURE})*+))++"
    r"|(?<!\S)(?:[:;=]'?-?[()DPpO|/*]|<3)(?![^\s.,!?])",
    "date": r"(?<![\w.,])\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d)?(?:\.\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?)?(?!\w)"
    r"|(?<![\w.,])(?:\d{1,2}\.(?:\d{1,2}\.)?(?:\d{4})?\s?[-–]\s?)?\d{1,2}\.(?:0?[1-9]|1[0-2])\.(?:\d{4}|\d\d)?(?!\w)"
    r"|(?<![\w.,/])\d{1,2}/\d{1,2}/(?:\d{4}|\d\d)(?![\w/])",
    "day": rf"(?<![\w.,/-])(?:\d{{1,2}}\.\s?(?:bis|und|[-–/])\s?)?\d{{1,2}}\.\s?(?:{_MONTH})(?:\s\d{{4}}(?!\w))?",
    "time": r"(?<![\w.,:])\d{1,2}:\d\d(?::\d\d)?(?:\s?[-–]\s?\d{1,2}:\d\d)?(?:\s?[ap]\.?m\b\.?)?(?![\w:])",
    # A code in one case: order 4711-A, flight LH2034, article 12a, a UUID. "G-20-Gipfel" and "90er" are words.
    "identifier": r"(?<![\w/.,-])(?:(?=[A-Z/-]*+\d)(?=[\d/-]*+[A-Z])[A-Z\d]++(?:[/-][A-Z\d]++)*+|\d{1,3}[a-rt-z]"
    r"|(?=[a-f]{0,64}\d)(?=\d{0,64}[a-f])[\da-f]{7,64}(?:-[\da-f]{4,12}){0,8})(?![\w°²³]|[/-]\w)",
    "number": r"(?<!\w)v\d++(?:\.\d++)++(?:-[A-Za-z]\w{0,20})?(?!\w)"
    r"|(?<![\w:])(?:[\dA-Fa-f]{0,4}:){2,7}[\dA-Fa-f]{1,4}(?![\w:])"
    r"|(?<!\w)(?:\+\d{1,3}|\(?0[1-9]\d{0,4}\)?(?=[ /]))(?:[ /().-]{1,2}\d{1,12}){1,6}+(?!\w)"
    rf"|(?<!\w)(?:[€$£¥]|(?:EUR|USD|GBP|CHF|US\$)\s)\s?{_NUMBER}{_FOLLOWED}"
    rf"|(?<![\w.,])(?<!\w[-–/])[-+−±]?{_NUMBER}(?:,[-–—](?!\w))?"
    rf"(?:[ \xa0\u2009\u202f]\d{{3}}(?!\d))*+(?:\s?[-–×x]\s?{_NUMBER})?"
    rf"(?:\s?(?:{_UNIT})(?![\w²³/]))?{_FOLLOWED}(?!\.\s?[-–\w])",
}
NUMERIC = frozenset({"date", "time", "number"})
"""Kinds that a model may copy without help."""
WORDED = "day"
"""A date with a month's name, which a model translates well: only its numbers must come through."""
_ANY = re.compile("|".join(f"(?P<{kind}>{expression})" for kind, expression in _KINDS.items()))


def find_spans(text: str) -> list[Span]:
    """What must come through unchanged, in order and without overlaps."""
    return [Span(*match.span(), str(match.lastgroup)) for match in _ANY.finditer(text)]


NAMES = ("Osaka", "Taro", "Oslo", "Sami", "A5", "Sony", "Naoko", "Alice")
NUMBERS = ("253", "735", "538", "268", "847", "364", "925", "473")
"""Stand-ins for vocabularies without placeholders, chosen by trial with the bundled model: names of one token get lost
more often, names of three or four take more time, and a year becomes "in" that year."""
_WORDS = {"number": NUMBERS, "other": NAMES}
_OUTSIDE = frozenset({"emoji", "markup"})
"""Kinds that belong to no sentence: at its edges the model need not see them."""


class Attempt(NamedTuple):
    """One way past a model: what it must translate, and how the translations become one text."""

    texts: list[str]
    join: Callable[[list[str]], str | None]
    """None if a protected string is not there as often as in the source."""


def attempts(text: str, spans: Sequence[Span], placeholders: Sequence[str] = ()) -> list[Attempt]:
    """What to try with a sentence, in order; the last attempt always joins.

    If only whole numbers are protected, the model first gets the sentence as it is. Then every span has a stand-in: a
    placeholder of the vocabulary, or a name or number if it has none; worded dates at first have none. Then the text is
    translated in parts.
    """
    groups = _grouped(text, spans)
    invented = [word for word in placeholders if word not in text]
    parts = _in_parts(text, groups, invented)
    if not parts.texts:
        return [parts]
    start, end, inner = _without_edges(text, groups)
    exact = {text[group.start : group.end] for group in groups if group.kind != WORDED}
    keeps = _keeping(text, groups, exact)
    unworded = [group for group in inner if group.kind != WORDED]
    tries: list[list[tuple[Span, str]]] = []
    if inner and all(map(str.isdigit, exact)):  # a model often writes other dates and fractions in its own manner
        tries.append([])
    for chosen in (unworded, inner) if unworded != inner else (inner,):
        words = _stand_ins(text, chosen, placeholders)
        if all(words) and (chosen or not tries):
            tries.append(list(zip(chosen, words, strict=True)))
    found = [_replaced(text, start, end, pairs, keeps, invented) for pairs in tries]
    if unworded and unworded != inner:
        fewer = _in_parts(text, [group for group in groups if group.kind != WORDED], invented)
        found.append(Attempt(fewer.texts, lambda outputs: _if_kept(fewer.join(outputs), keeps)))
    return [*found, parts]


def _if_kept(joined: str | None, keeps: Callable[[str], bool]) -> str | None:
    return joined if joined is not None and keeps(joined) else None


def _stand_ins(text: str, groups: Sequence[Span], placeholders: Sequence[str]) -> list[str]:
    """A word for each group; empty where there are too few."""
    named = {kind: iter([word for word in placeholders or words if word not in text]) for kind, words in _WORDS.items()}
    if placeholders:
        named["number"] = named["other"]
    return [next(named["number" if group.kind == "number" else "other"], "") for group in groups]


def _keeping(text: str, groups: Sequence[Span], exact: set[str]) -> Callable[[str], bool]:
    """Whether a translation has what is protected as often as the text, and the numbers of worded dates."""
    numbers = Counter(
        number for group in groups if group.kind == WORDED for number in _DIGITS.findall(text, group.start, group.end)
    )

    def keeps(output: str) -> bool:
        written = Counter(_DIGITS.findall(output))
        return numbers <= written and all(_count(string, output) == _count(string, text) for string in exact)

    return keeps


_DIGITS = re.compile(r"\d+")


def _grouped(text: str, spans: Iterable[Span]) -> list[Span]:
    """Spans with nothing but white space between them as one, which needs a single stand-in."""
    groups: list[Span] = []
    for span in spans:
        kind = "number" if span.kind in NUMERIC else "edge" if span.kind in _OUTSIDE else "other"
        kind = WORDED if span.kind == WORDED else kind
        if groups and not text[groups[-1].end : span.start].strip():
            last = groups.pop()
            span = Span(last.start, span.end, kind if kind == last.kind else "other")
        else:
            span = Span(span.start, span.end, kind)
        groups.append(span)
    return groups


def _without_edges(text: str, groups: list[Span]) -> tuple[int, int, list[Span]]:
    """Start and end of what the model must see, and the groups in it."""
    start, end = len(text) - len(text.lstrip()), len(text.rstrip())
    if groups and groups[0].kind == "edge" and groups[0].start == start:
        start, groups = groups[0].end, groups[1:]
    if groups and groups[-1].kind == "edge" and groups[-1].end == end:
        end, groups = groups[-1].start, groups[:-1]
    body = text[start:end]
    return start + len(body) - len(body.lstrip()), end - len(body) + len(body.rstrip()), groups


def _replaced(
    text: str,
    start: int,
    end: int,
    stand_ins: list[tuple[Span, str]],
    keeps: Callable[[str], bool],
    invented: list[str],
) -> Attempt:
    """Text[start:end] with stand-ins for some of it; other placeholders must not be in the translation."""
    written, originals = _written(text, start, end, stand_ins)

    def join(outputs: list[str]) -> str | None:
        output = outputs[0]
        if any(_count(word, output) != 1 for word in originals):
            return None
        if originals:  # all in one go: what one stands for must not change where the next begins
            patterns = (
                f"{left and ' ?'}{_alone(word)}{right and ' ?'}" for word, (left, _, right) in originals.items()
            )
            output = re.sub("|".join(patterns), lambda match: originals[match[0].strip()][1], output)
        output = text[:start] + output + text[end:]
        if any(word in output for word in invented) or ("[](" in output and "[](" not in text):  # a link without text
            return None
        return output if keeps(output) else None

    return Attempt([written], join)


def _written(
    text: str, start: int, end: int, stand_ins: Iterable[tuple[Span, str]]
) -> tuple[str, dict[str, tuple[str, str, str]]]:
    """Text[start:end] with stand-ins, and what each stands for: the text, between spaces that were not in it."""
    written = ""
    originals: dict[str, tuple[str, str, str]] = {}
    for span, word in stand_ins:
        written += text[start : span.start]
        # A stand-in is a word of its own; the spaces that make it one go when it does.
        left = " " if written and not written[-1].isspace() else ""
        right = " " if span.end < end and text[span.end].isalnum() else ""
        written += left + word + right
        originals[word] = left, text[span.start : span.end], right
        start = span.end
    return written + text[start:end], originals


def _alone(string: str) -> str:
    """An expression for a string that is not part of a longer word or number."""
    before = r"(?<!\w)(?<!\d[.,:])" if string[0].isalnum() else ""
    after = r"(?!\w|[.,:]\d)" if string[-1].isalnum() else ""
    return before + re.escape(string) + after


def _count(string: str, text: str) -> int:
    return len(re.findall(_alone(string), text))


def _in_parts(text: str, groups: list[Span], invented: list[str]) -> Attempt:
    """The text around the groups, part by part, what has no letters or digits kept, invented placeholders left out."""
    places = [0, *(place for group in groups for place in group[:2]), len(text)]
    pieces = [text[start:end] for start, end in pairwise(places)]  # every other one is protected
    texts: list[str] = []
    template: list[str | None] = []
    for number, piece in enumerate(pieces):
        words = TRANSLATABLE.search(piece) if number % 2 == 0 else None
        if words is None:
            template.append(piece)
            continue
        # The last part keeps its full stop, so that the model sees the end of a sentence.
        stop = len(piece.rstrip()) if number == len(pieces) - 1 else words.end()
        texts.append(piece[words.start() : stop])
        template += [piece[: words.start()], None, piece[stop:]]

    def join(outputs: list[str]) -> str:
        if invented:
            stray = re.compile(" ?(?:" + "|".join(map(re.escape, invented)) + ")")
            outputs = [stray.sub("", output) for output in outputs]
        translated = iter(as_fragment(*pair) for pair in zip(texts, outputs, strict=True))
        return "".join(next(translated) if piece is None else piece for piece in template)

    return Attempt(texts, join)


TRANSLATABLE = re.compile(r"[^\W_](?:.*[^\W_])?", re.DOTALL)
"""What a part of a sentence is without the punctuation around it."""


def as_fragment(source: str, output: str) -> str:
    """Without the full stop that a model likes to add."""
    return output.strip() if source[-1] in ".!?" else output.strip().rstrip(".!?")


_NAME = re.compile(r"(?<!\w)(?=\w*[^\W_a-z])[A-Za-z\d]{2,}(?!\w)")


def with_placeholders(source: str, target: str, placeholders: Sequence[str], draw: random.Random) -> tuple[str, str]:
    """A training pair with placeholders, drawn at random, for spans and names that both sides have exactly once."""
    sides = [{text[span.start : span.end]: span for span in _candidates(text)} for text in (source, target)]
    shared = [
        string for string in sides[0] if string in sides[1] and _count(string, source) == _count(string, target) == 1
    ]
    if any(word in source or word in target for word in placeholders):
        shared = []
    chosen = dict(zip(shared, draw.sample(placeholders, len(placeholders)), strict=False))
    pairs = [sorted((side[string], word) for string, word in chosen.items()) for side in sides]
    return _written(source, 0, len(source), pairs[0])[0], _written(target, 0, len(target), pairs[1])[0]


def _candidates(text: str) -> list[Span]:
    """Spans, and words with a capital or a digit outside them."""
    spans = find_spans(text)
    names = (Span(*match.span(), "name") for match in _NAME.finditer(text))
    inside = {place for span in spans for place in range(span.start, span.end)}
    return [*spans, *(name for name in names if name.start not in inside)]
