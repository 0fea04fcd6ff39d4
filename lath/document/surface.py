"""How a sentence is spelled: capitals, quotation marks, dashes, blanks and scripts that a vocabulary does not know.

    simple = simplify("ER SAGTE: »NEIN!«", vocab)  ->  text 'Er sagte: "Nein!"', capitals True
    foreign_runs("Das ist 中国.", vocab)            ->  [(8, 10)]: copy it, the model would invent something
    in_capitals("He said.")                         ->  "HE SAID."

What a vocabulary spells in bytes, or as unknown, a model has hardly seen; it translates the usual spelling better. So
characters are only exchanged if the vocabulary lacks them, with two exceptions: single quotation marks, which look like
apostrophes, and a hyphen that stands for a dash.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise
from typing import NamedTuple

from lath.text.vocab import UNK, Vocab

# Soft hyphen, zero-width space, marks of direction; not the joiners, which some scripts and emoji need.
_INVISIBLE = re.compile("[\u00ad\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff]")
_DOUBLE = "«»„“”‟‹›"
_SINGLE = re.compile(r"(?<!\w)(?:[‚‘‛]([^‚‘‛’]*)[‘’]|'(?=\S)([^']*\S)')(?!\w)")
_DASHES = {"—": "–-", "―": "–-", "‒": "–-", "−": "–-", "–": "-", "‐": "-", "‑": "-", "’": "'", "‘": "'", "‚": ","}
"""What may stand for a character that the vocabulary lacks, best first."""
_HYPHEN_AS_DASH = re.compile(r"(?<=[^\W\d] )-(?= [^\W\d])")
_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")
_CONSONANTS = re.compile("[B-DF-HJ-NP-TV-Z]{2,}")
_BYTE = re.compile("<0x[0-9A-F]{2}>")


class Simple(NamedTuple):
    """A sentence as the model should see it."""

    text: str
    keep: list[tuple[int, int]]
    """Where the protected spans are now."""
    capitals: bool
    """The sentence was in capitals: write its translation `in_capitals`."""


def simplify(text: str, vocab: Vocab, keep: Sequence[tuple[int, int]] = ()) -> Simple:
    """A sentence in the usual spelling; the spans of `keep`, in order, are left as they are."""
    places = [0, *(place for span in keep for place in span), len(text)]
    parts = [text[start:end] for start, end in pairwise(places)]  # every other one is protected
    free = [_usual_characters(part, vocab) for part in parts[::2]]
    words = [word for part in free for word in _WORD.findall(part)]
    capitals = _is_shouted([word for word in words if word.upper() != word.lower()], vocab)
    parts[::2] = [_without_shouting(part, vocab, capitals) for part in free]
    if capitals and (first := _WORD.search(parts[0])):
        parts[0] = parts[0][: first.start()] + first[0][0].upper() + parts[0][first.start() + 1 :]
    spans, place = [], 0
    for number, part in enumerate(parts):
        if number % 2:
            spans.append((place, place + len(part)))
        place += len(part)
    return Simple("".join(parts), spans, capitals)


def in_capitals(text: str, verbatim: Iterable[str] = ()) -> str:
    """The text in capitals, but for the strings of `verbatim`."""
    kept = set(verbatim) - {""}
    if not kept:
        return text.upper()
    # Longest first: one may begin another.
    parts = re.split("(" + "|".join(map(re.escape, sorted(kept, key=len, reverse=True))) + ")", text)
    return "".join(part if part in kept else part.upper() for part in parts)


def foreign_runs(text: str, vocab: Vocab) -> list[tuple[int, int]]:
    """Start and end of what the model cannot read: words in another script, and symbols without a token.

    A word of which the vocabulary knows half of the letters, as Señor, is not foreign.
    """
    runs: list[tuple[int, int]] = []
    for kind, group in groupby(range(len(text)), lambda place: _kind(text[place])):
        places = list(group)
        start, end = places[0], places[-1] + 1
        if not kind or 2 * sum(_lacks(vocab, text[place]) for place in places) <= len(places):
            continue
        while start and _lacks(vocab, text[start - 1]):
            start -= 1
        while end < len(text) and _lacks(vocab, text[end]):
            end += 1
        # One run with the one before if no word of the vocabulary is between them.
        if runs and not any(_kind(character) == "word" for character in text[runs[-1][1] : start]):
            start = runs.pop()[0]
        runs.append((start, end))
    return runs


def _kind(character: str) -> str:
    category = unicodedata.category(character)
    return "word" if category[0] in "LM" else "symbol" if category in ("So", "Sm") else ""


def _lacks(vocab: Vocab, character: str) -> bool:
    """Whether the vocabulary spells a character in bytes, or not at all."""
    if character.isascii() and character.isalnum():
        return False
    # Twice: subword-nmt spells the end of a word differently. SentencePiece may put a token for a space in front.
    ids = [id for id in vocab.encode(character * 2) if vocab.token(id) != "▁"]
    return bool(ids) and all(id == UNK or _BYTE.fullmatch(vocab.token(id)) is not None for id in ids)


def _usual_characters(text: str, vocab: Vocab) -> str:
    text = _INVISIBLE.sub("", re.sub(r"\s+", " ", unicodedata.normalize("NFC", text)))
    if not _lacks(vocab, '"'):
        text = _SINGLE.sub(lambda found: f'"{found[1] or found[2]}"', text)
        if any(mark in text and _lacks(vocab, mark) for mark in _DOUBLE):
            text = text.translate(dict.fromkeys(map(ord, _DOUBLE), '"'))
    for character, substitutes in _DASHES.items():
        if character in text and _lacks(vocab, character):
            known = (it for it in substitutes if not _lacks(vocab, it))
            text = text.replace(character, next(known, character))
    return text if _lacks(vocab, "–") else _HYPHEN_AS_DASH.sub("–", text)


def _cost(word: str, vocab: Vocab) -> tuple[int, int]:
    """Rare spellings take more tokens, and tokens of higher numbers."""
    ids = vocab.encode(word)
    return len(ids), sum(ids)


def _spelled(word: str, vocab: Vocab) -> str:
    """The most usual spelling of a word in capitals; for German, SS may be ß, and a noun keeps its capital."""
    if _CONSONANTS.fullmatch(word):  # an acronym
        return word
    lower = word.lower()
    forms = [lower, lower.capitalize(), lower.replace("ss", "ß"), lower.replace("ss", "ß").capitalize(), word]
    return min(forms, key=lambda form: _cost(form, vocab))


def _is_common(word: str, vocab: Vocab) -> bool:
    """Whether a word is one token unless it is in capitals."""
    return word.isupper() and _cost(word, vocab)[0] > 1 == _cost(_spelled(word, vocab), vocab)[0]


def _is_shouted(words: Sequence[str], vocab: Vocab) -> bool:
    """Whether words are ordinary ones in capitals, not acronyms."""
    if not all(word.isupper() for word in words):
        return False
    common = [len(word) for word in words if _is_common(word, vocab)]
    return any(length > 3 for length in common) or (len(words) > 2 and 2 * len(common) > len(words))


def _without_shouting(text: str, vocab: Vocab, capitals: bool) -> str:
    """Without capitals where they are not usual: all words of a shouted sentence or run, else single common words."""
    written, place = [], 0
    for upper, group in groupby(_WORD.finditer(text), lambda word: word[0].isupper()):
        words = list(group)
        everything = capitals or (len(words) > 2 and _is_shouted([word[0] for word in words], vocab))
        for word in words:
            if upper and (everything or (len(word[0]) > 3 and _is_common(word[0], vocab))):
                written += [text[place : word.start()], _spelled(word[0], vocab)]
                place = word.end()
    return "".join([*written, text[place:]])
