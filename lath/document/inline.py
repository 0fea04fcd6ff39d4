"""Translate sentences with inline elements as a whole, and find the elements in the translation.

    translate_marked([Marked("Guten Morgen, Tom!", [(6, 12)])], translate, one_sentence)
    ->  [Marked("Good morning, Tom!", [(5, 12)])]

A sentence is translated without its marks, and so is each of its stretches, which begin and end where marks do. A word
of the translation votes for a mark if it is only in stretches inside, and against it if it is only in others. Many are
undecided ("Morgen" alone is "tomorrow"), so among runs with equal votes the one nearest to the mark's place among the
stretches is taken. If a mark has no room, the translated stretches take the place of the sentence.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from lath.document.layout import Span
from lath.document.protect import TRANSLATABLE, as_fragment

MOST_WORDS, MOST_MARKS = 150, 20
"""In longer sentences, or for more marks, nothing is looked for: the time grows with the square."""
SURE = 100
"""Votes of a stand-in: it must stay on its side."""
STAND_IN = re.compile(r"<x\d+/>")
"""What stands for something that is no text."""
_WORD = re.compile(r"<x\d+/>|\w+(?:['’.,:-]\w+)*")
_CHARACTER = re.compile(r"[^\W_]")
_BEFORE, _AFTER = re.compile(r"[^\w\s>]*\Z"), re.compile(r"[^\w\s<]*")

Place = tuple[int, int]
"""Start and end in a text."""


class Marked(NamedTuple):
    """A text, and places with letters or digits in it: outer ones before inner ones, none crosses another."""

    text: str
    marks: list[Place]


class _Clip(NamedTuple):
    """What a sentence has of a mark."""

    mark: int
    start: int
    end: int
    begins: bool
    """Whether the mark begins in this sentence."""
    ends: bool


class _Sentence(NamedTuple):
    """A sentence, or what is kept between two."""

    text: str
    translated: bool
    clips: list[_Clip]
    stand_ins: list[Place]


def one_sentence(text: str) -> list[Span]:
    """A layout: the whole text is a sentence."""
    return [Span(text, True)]


def translate_marked(
    texts: Sequence[Marked], translate: Callable[[list[str]], list[str]], lay_out: Callable[[str], list[Span]]
) -> list[Marked]:
    """The translation of each text, its marks in the same order; `translate` is called at most twice."""
    laid_out = [list(_sentences(text, lay_out)) for text in texts]
    sentences = [sentence for text in laid_out for sentence in text if sentence.translated]
    wholes = translate([sentence.text for sentence in sentences]) if sentences else []
    cuts = {
        number: _cuts(sentence)
        for number, (sentence, whole) in enumerate(zip(sentences, wholes, strict=True))
        if _filled(sentence, whole) is None
    }
    sent = [stretch for number, places in cuts.items() for stretch in _stretches(sentences[number], places)]
    results = iter(translate([stretch for stretch in sent if stretch]) if any(sent) else [])
    found: list[Marked] = []
    for number, (sentence, whole) in enumerate(zip(sentences, wholes, strict=True)):
        result = _filled(sentence, whole)
        if result is None:
            words = _stretches(sentence, cuts[number])
            outputs = [_usable(word, next(results)) if word else "" for word in words]
            result = _placed(sentence, whole, cuts[number], outputs) or _in_stretches(sentence, cuts[number], outputs)
        found.append(result)
    done = iter(found)
    return [_joined(text, laid, done) for text, laid in zip(texts, laid_out, strict=True)]


def _sentences(text: Marked, lay_out: Callable[[str], list[Span]]) -> Iterator[_Sentence]:
    start = 0
    for piece, is_sentence in lay_out(text.text):
        end = start + len(piece)
        clips = []
        for number, (first, last) in enumerate(text.marks):
            left, right = max(first, start), min(last, end)
            if left < right and _CHARACTER.search(text.text, left, right):
                before, after = _CHARACTER.search(text.text, first, left), _CHARACTER.search(text.text, right, last)
                clips.append(_Clip(number, left - start, right - start, before is None, after is None))
        stand_ins = [match.span() for match in STAND_IN.finditer(piece)]
        yield _Sentence(piece, is_sentence, clips, stand_ins)
        start = end


def _filled(sentence: _Sentence, whole: str) -> Marked | None:
    """The translation if each mark is around all of its words."""
    text = sentence.text
    if _shown(text) != _shown(whole):
        return None
    if not sentence.clips:
        return Marked(whole, [])
    words = [match.span() for match in _WORD.finditer(whole)]
    if not words or any(_CHARACTER.search(text[: clip.start] + text[clip.end :]) for clip in sentence.clips):
        return None
    return Marked(whole, _with_marks(sentence, whole, [(words[0][0], words[-1][1])] * len(sentence.clips)))


def _shown(text: str) -> list[str]:
    return sorted(STAND_IN.findall(text))


def _cuts(sentence: _Sentence) -> list[int]:
    """Where stretches of a sentence begin and end."""
    places = {0, len(sentence.text)}
    places.update(place for clip in sentence.clips for place in (clip.start, clip.end))
    places.update(place for span in sentence.stand_ins for place in span)
    return sorted(places)


def _words_of(sentence: _Sentence, start: int, end: int) -> Place | None:
    """What is translated of a stretch; the last one keeps its full stop."""
    found = None if (start, end) in sentence.stand_ins else TRANSLATABLE.search(sentence.text, start, end)
    if found is None:
        return None
    return found.start(), len(sentence.text.rstrip()) if end == len(sentence.text) else found.end()


def _stretches(sentence: _Sentence, cuts: Sequence[int]) -> list[str]:
    """What is translated of each stretch; nothing if it has no words."""
    places = (_words_of(sentence, start, end) for start, end in pairwise(cuts))
    return ["" if place is None else sentence.text[slice(*place)] for place in places]


def _usable(words: str, output: str) -> str:
    """A translated stretch without invented stand-ins; the stretch itself if no word is left."""
    output = STAND_IN.sub("", as_fragment(words, output))
    return output if _CHARACTER.search(output) else words


def _in_stretches(sentence: _Sentence, cuts: Sequence[int], outputs: Sequence[str]) -> Marked:
    """A sentence with translated stretches, each in its place."""
    written, moved = "", {}
    for (start, end), output in zip(pairwise(cuts), outputs, strict=True):
        moved[start] = len(written)
        place = _words_of(sentence, start, end)
        text = sentence.text
        written += text[start:end] if place is None else text[start : place[0]] + output + text[place[1] : end]
    moved[len(sentence.text)] = len(written)
    return Marked(written, [(moved[clip.start], moved[clip.end]) for clip in sentence.clips])


def _placed(sentence: _Sentence, whole: str, cuts: Sequence[int], outputs: Sequence[str]) -> Marked | None:
    """The translation with its marks, or None if one finds no place."""
    words = [match.span() for match in _WORD.finditer(whole)]
    if len(words) > MOST_WORDS or len(sentence.clips) > MOST_MARKS or _shown(sentence.text) != _shown(whole):
        return None
    known = [
        [_stem(word[0]) for word in _WORD.finditer(output or sentence.text[start:end])]
        for (start, end), output in zip(pairwise(cuts), outputs, strict=True)
    ]
    stems = [_stem(whole[slice(*word)]) for word in words]
    before = [0, *accumulate(map(len, known))]
    scale = len(words) / max(before[-1], 1)
    places: list[Place] = []
    for clip in sentence.clips:
        first, last = cuts.index(clip.start), cuts.index(clip.end)
        inside = {stem for stretch in known[first:last] for stem in stretch}
        outside = {stem for stretch in [*known[:first], *known[last:]] for stem in stretch}
        votes = [((stem in inside) - (stem in outside)) * (SURE if stem[0] == "<" else 1) for stem in stems]
        free = _free(len(words), clip, sentence.clips, places)
        best = _best(votes, free, clip, (before[first] * scale, before[last] * scale))
        if best is None:
            return None
        places.append(best)
    result = Marked(whole, _with_marks(sentence, whole, [(words[a][0], words[b - 1][1]) for a, b in places]))
    own = [(clip.start, clip.end) for clip in sentence.clips]
    return result if _around(sentence.text, own) == _around(whole, result.marks) else None


def _stem(word: str) -> str:
    return word if word.startswith("<") else word.casefold()[:5]


def _free(count: int, clip: _Clip, clips: Sequence[_Clip], places: Sequence[Place]) -> list[bool]:
    """For each word whether a mark may be around it: only inside marks around this one, and outside of others."""
    free = [True] * count
    for other, (first, last) in zip(clips, places, strict=False):
        around = other.start <= clip.start and clip.end <= other.end
        free = [value and (first <= word < last) == around for word, value in enumerate(free)]
    return free


def _best(votes: Sequence[int], free: Sequence[bool], clip: _Clip, wanted: tuple[float, float]) -> Place | None:
    """The run of free words with the most votes; of several the one that is nearest to where it is wanted."""
    best, found, farthest = float("-inf"), None, 2 * len(votes) + 1
    for first in range(len(votes) if clip.begins else min(1, len(votes))):
        score = -abs(first - wanted[0]) / farthest  # with that of the end less than a vote
        for last in range(first, len(votes)):
            if not free[last]:
                break
            score += votes[last]
            total = score - abs(last + 1 - wanted[1]) / farthest
            if total > best and (clip.ends or last + 1 == len(votes)):
                best, found = total, (first, last + 1)
    return found


def _with_marks(sentence: _Sentence, whole: str, places: Sequence[Place]) -> list[Place]:
    """The places of words, with the punctuation next to them if the marks begin and end with some."""
    wide: list[Place] = []
    for clip, (start, end) in zip(sentence.clips, places, strict=True):
        if not sentence.text[clip.start].isalnum():
            start = _BEFORE.search(whole, 0, start).start()  # type: ignore[union-attr]
        if not sentence.text[clip.end - 1].isalnum():
            end = _AFTER.match(whole, end).end()  # type: ignore[union-attr]
        wide.append((start, end))
    return wide if _are_nested(wide) else list(places)


def _are_nested(places: Sequence[Place]) -> bool:
    """Whether none crosses another, and outer ones come before inner ones."""
    pairs = (pair for number, inner in enumerate(places) for pair in ((outer, inner) for outer in places[:number]))
    return all((a[0] <= b[0] and b[1] <= a[1]) or b[1] <= a[0] or a[1] <= b[0] for a, b in pairs)


def _around(text: str, marks: Sequence[Place]) -> dict[str, list[int]]:
    """The marks around each stand-in."""
    return {
        found[0]: [number for number, (start, end) in enumerate(marks) if start <= found.start() < end]
        for found in STAND_IN.finditer(text)
    }


def _joined(text: Marked, laid_out: Sequence[_Sentence], done: Iterator[Marked]) -> Marked:
    """A text from its sentences; a mark reaches from where it begins in the first to where it ends in the last."""
    written = ""
    starts: dict[int, int] = {}
    ends: dict[int, int] = {}
    for sentence in laid_out:
        kept = Marked(sentence.text, [(clip.start, clip.end) for clip in sentence.clips])
        piece = next(done) if sentence.translated else kept
        for clip, (start, end) in zip(sentence.clips, piece.marks, strict=True):
            starts.setdefault(clip.mark, len(written) + start)
            ends[clip.mark] = len(written) + end
        written += piece.text
    return Marked(written, [(starts[number], ends[number]) for number in range(len(text.marks))])
