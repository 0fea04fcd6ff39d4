"""Text <-> ids: SentencePiece on raw text (the default), or subword-nmt codes on tokenised text (the paper's way).

    source, target = learn_vocabs(recipe.vocab, source_lines, target_lines)
    source.decode(source.encode("Guten Morgen."))  ->  "Guten Morgen."

Six special ids come first in every vocabulary. No text is ever encoded to one of them, except that a
subword-nmt vocabulary answers UNK to a unit it has not seen; SentencePiece spells such text in bytes.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from heapq import heapify, heappop, heappush
from itertools import chain, pairwise
from pathlib import Path
from typing import Protocol

import sentencepiece

from lath.config import VocabSettings
from lath.errors import UserError
from lath.files import read_lines

BOS, PAD, EOS, UNK, MASK, SOP = range(6)
SPECIALS = ("<s>", "<pad>", "</s>", "<unk>", "<mask>", "<sop>")

FORMAT = 1
"""The number of the .json vocabulary format."""


class Vocab(Protocol):
    """Text <-> ids of one side of a corpus, or of both."""

    @property
    def size(self) -> int:
        """The number of ids, specials included."""

    def encode(self, text: str) -> list[int]:
        """The ids of a line, without begin and end."""

    def encode_lines(self, lines: Sequence[str]) -> list[list[int]]:
        """The ids of many lines, faster than one by one."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of any sequence of ids; specials and numbers that are no ids say nothing."""

    def token(self, id: int) -> str:
        """One id for people to read."""


class SentencePieceVocab:
    """SentencePiece BPE on raw text; characters it has not seen are spelled in bytes, so nothing is unknown."""

    def __init__(self, model: bytes) -> None:
        self.model = model
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        pieces = [self._processor.id_to_piece(id) for id in range(min(len(SPECIALS), self.size))]
        if tuple(pieces) != SPECIALS:
            raise ValueError(f"its first entries are {' '.join(pieces)}, not {' '.join(SPECIALS)}")

    @property
    def size(self) -> int:
        return int(self._processor.get_piece_size())

    def encode(self, text: str) -> list[int]:
        # Not a batch of one: that would start threads, which cost fifty times the work itself.
        ids: list[int] = self._processor.encode(_utf8(text))
        return ids

    def encode_lines(self, lines: Sequence[str]) -> list[list[int]]:
        ids: list[list[int]] = self._processor.encode([_utf8(line) for line in lines])
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        first, size = len(SPECIALS), self.size
        return str(self._processor.decode([id for id in map(int, ids) if first <= id < size]))

    def token(self, id: int) -> str:
        return str(self._processor.id_to_piece(int(id)))


def _utf8(text: str) -> bytes:
    """The text as bytes; a lone surrogate (from a broken file name or JSON), which has none, becomes "?"."""
    return text.encode("utf-8", "replace")


def learn_sentencepiece(lines: Iterable[str], size: int) -> SentencePieceVocab:
    """Learn a BPE vocabulary of `size` entries; the same lines give the same bytes."""
    feed = _Feed(lines)
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(feed),
            model_writer=model,
            model_type="bpe",
            vocab_size=size,
            byte_fallback=True,
            # Byte spelling is safe but long and easily broken by a parallel decoder, so nearly every character
            # gets its own entry; only the rarest one in ten thousand is spelled.
            character_coverage=0.9999,
            normalization_rule_name="nmt_nfkc",
            bos_id=BOS,
            pad_id=PAD,
            eos_id=EOS,
            unk_id=UNK,
            control_symbols=list(SPECIALS[MASK:]),
            num_threads=1,
            minloglevel=2,
        )
    except RuntimeError as error:
        if feed.error is not None:
            raise feed.error from None
        if feed.count == 0:
            raise UserError("no text to learn a vocabulary from: the training files are empty") from None
        raise _size_error(size, str(error)) or error from None
    return SentencePieceVocab(model.getvalue())


class _Feed:
    """Lines for the trainer, which swallows exceptions: the first one is kept here to be raised again.

    The trainer drops lines of over 4192 bytes and ends the process at a word of 65536 characters; a long line is
    therefore handed over in parts.
    """

    def __init__(self, lines: Iterable[str]) -> None:
        self.lines = lines
        self.count = 0
        self.error: Exception | None = None

    def __iter__(self) -> Iterator[str]:
        try:
            for line in self.lines:
                for part in [line] if len(line) <= 1000 else textwrap.wrap(line, 1000, break_on_hyphens=False):
                    if part and not part.isspace():
                        self.count += 1
                        yield part
        except Exception as error:
            self.error = error
            raise


def _size_error(size: int, message: str) -> UserError | None:
    """SentencePiece's complaint about the vocabulary size in our words, with the number it names."""
    if found := re.search(r"set it to a value <= (\d+)", message):
        return UserError(
            f"vocab.size {size} is too large for this corpus: set vocab.size to {found[1]} or less, or add text"
        )
    if found := re.search(r"smaller than required_chars\. \S+ vs (\d+)", message):
        least = int(found[1])
        return UserError(
            f"vocab.size {size} is too small for this corpus: its characters, the bytes and the specials alone "
            f"are {least} entries; set vocab.size to {least + 1} or more"
        )
    return None


JOINER = "@@"
_END = "</w>"


class SubwordNmtVocab:
    """subword-nmt codes on text whose words are separated by single spaces; a unit it has not seen is UNK."""

    def __init__(self, merges: Sequence[str], words: Sequence[str]) -> None:
        self.merges = tuple(merges)
        self.words = tuple(words)
        self._ranks = merge_ranks(merges)
        self._ids = {word: id for id, word in enumerate(words, start=len(SPECIALS))}
        # Words repeat, so few are segmented twice; the bound keeps a huge corpus from filling the memory.
        self._word_ids = lru_cache(maxsize=1 << 18)(self._encode_word)

    @property
    def size(self) -> int:
        return len(SPECIALS) + len(self.words)

    def _encode_word(self, word: str) -> tuple[int, ...]:
        return tuple(self._ids.get(unit, UNK) for unit in segment(word, self._ranks))

    def encode(self, text: str) -> list[int]:
        return [id for word in split_words(text) for id in self._word_ids(word)]

    def encode_lines(self, lines: Sequence[str]) -> list[list[int]]:
        return [self.encode(line) for line in lines]

    def decode(self, ids: Sequence[int]) -> str:
        units = [self.words[id - len(SPECIALS)] for id in ids if len(SPECIALS) <= id < self.size]
        return " ".join([*units, ""]).replace(JOINER + " ", "").rstrip(" ")

    def token(self, id: int) -> str:
        return SPECIALS[id] if id < len(SPECIALS) else self.words[id - len(SPECIALS)]


def split_words(line: str) -> list[str]:
    """The words of tokenised text; as in subword-nmt only the plain space separates them."""
    return [word for word in line.split(" ") if word]


def merge_ranks(merges: Iterable[str]) -> dict[tuple[str, str], int]:
    """The pair of each merge with its place in the list; of a pair listed twice the first place counts."""
    ranks: dict[tuple[str, str], int] = {}
    for rank, merge in enumerate(merges):
        left, right = merge.split(" ")
        ranks.setdefault((left, right), rank)
    return ranks


def segment(word: str, ranks: Mapping[tuple[str, str], int]) -> list[str]:
    """The subword units of a word; all but the last end with the joiner.

    >>> segment("lower", merge_ranks(["e r</w>", "l o"]))
    ['lo@@', 'w@@', 'er']
    """
    units = [*word[:-1], word[-1] + _END]
    end = len(units)
    # Joined units leave a chain, and open pairs wait in a heap: a word of 100,000 characters costs n log n.
    before, after = list(range(-1, end - 1)), list(range(1, end + 1))
    heap = [(ranks[pair], place, pair) for place, pair in enumerate(pairwise(units)) if pair in ranks]
    heapify(heap)
    while heap:
        rank = heap[0][0]
        joined: list[int] = []
        while heap and heap[0][0] == rank:  # every occurrence of the best pair, from the left
            _, place, (left, right) = heappop(heap)
            follower = after[place]
            if follower == end or (units[place], units[follower]) != (left, right):
                continue  # a neighbour was joined in the meantime
            units[place], units[follower] = left + right, ""
            after[place] = after[follower]
            if after[place] < end:
                before[after[place]] = place
            joined.append(place)
        for place in chain.from_iterable((before[place], place) for place in joined):
            if place >= 0 and after[place] < end and (pair := (units[place], units[after[place]])) in ranks:
                heappush(heap, (ranks[pair], place, pair))
    whole = [unit for unit in units if unit]
    return [*(unit + JOINER for unit in whole[:-1]), whole[-1].removesuffix(_END)]


def read_codes(path: Path) -> list[str]:
    """The merges of a subword-nmt codes file, version 0.2."""
    lines = list(read_lines(path))
    if not lines or lines[0].split() != ["#version:", "0.2"]:
        raise UserError(
            f"{path}: not a subword-nmt codes file of version 0.2 (its first line is '#version: 0.2'); "
            f"learn the codes again with subword-nmt learn-bpe"
        )
    merges = [line.strip(" ") for line in lines[1:]]
    while merges and not merges[-1]:
        merges.pop()
    for number, merge in enumerate(merges, start=2):
        if len(merge.split(" ")) != 2:
            raise UserError(
                f"{path}: line {number} is {merge!r}, but a merge is two units and one space between them; "
                f"learn the codes again with subword-nmt learn-bpe"
            )
    return merges


def learn_codes(lines: Iterable[str], count: int) -> list[str]:
    """At most `count` merges, learnt with the subword-nmt package."""
    try:
        from subword_nmt.learn_bpe import learn_bpe
    except ImportError:
        raise UserError(
            "learning subword-nmt codes needs the package subword-nmt: pip install 'lath[paper]', "
            "or set vocab.source_codes to a codes file"
        ) from None
    text = iter(lines)
    first = next((line for line in text if split_words(line)), None)
    if first is None:
        raise UserError("no text to learn a vocabulary from: the training files are empty")
    codes = io.StringIO()
    with contextlib.redirect_stderr(io.StringIO()):
        learn_bpe(chain([first], text), codes, count)
    return codes.getvalue().split("\n")[1:-1]


def learn_words(lines: Iterable[str], merges: Sequence[str]) -> list[str]:
    """The subword units of the lines, the most frequent first, equals in alphabetical order."""
    words = Counter(word for line in lines for word in split_words(line))
    ranks = merge_ranks(merges)
    units: Counter[str] = Counter()
    for word, count in words.items():
        for unit in segment(word, ranks):
            units[unit] += count
    return sorted(units, key=lambda unit: (-units[unit], unit))


Lines = Callable[[], Iterable[str]]
"""Gives a fresh iterator over the lines at each call."""


def learn_vocabs(settings: VocabSettings, source_lines: Lines, target_lines: Lines) -> tuple[Vocab, Vocab]:
    """The vocabularies of both sides; the same object twice when they are joint."""
    if settings.size < 1:
        raise UserError(f"vocab.size {settings.size} is too small; set vocab.size to a few thousand")
    learn = _learn_subword_nmt if settings.kind == "subword-nmt" else _learn_sentencepiece
    return learn(settings, source_lines, target_lines)


def _learn_sentencepiece(settings: VocabSettings, source: Lines, target: Lines) -> tuple[Vocab, Vocab]:
    if settings.joint:
        vocab = learn_sentencepiece(chain(source(), target()), settings.size)
        return vocab, vocab
    return learn_sentencepiece(source(), settings.size), learn_sentencepiece(target(), settings.size)


def _learn_subword_nmt(settings: VocabSettings, source: Lines, target: Lines) -> tuple[Vocab, Vocab]:
    if settings.target_codes and not settings.source_codes:
        raise UserError("vocab.target_codes is set but vocab.source_codes is not; set both, or source_codes alone")
    if settings.joint and settings.target_codes not in ("", settings.source_codes):
        raise UserError(
            "vocab.target_codes differs from vocab.source_codes, but a joint vocabulary has one codes file; "
            "remove vocab.target_codes or set vocab.joint = false"
        )
    source_codes, target_codes = settings.source_codes, settings.target_codes or settings.source_codes
    if settings.joint:
        vocab = _subword_nmt_vocab(source_codes, settings.size, lambda: chain(source(), target()))
        return vocab, vocab
    return (
        _subword_nmt_vocab(source_codes, settings.size, source),
        _subword_nmt_vocab(target_codes, settings.size, target),
    )


def _subword_nmt_vocab(codes: str, size: int, lines: Lines) -> SubwordNmtVocab:
    merges = read_codes(Path(codes)) if codes else learn_codes(lines(), size)
    return SubwordNmtVocab(merges, learn_words(lines(), merges))


_JOINT = "vocab"
_SIDES = ("vocab.source", "vocab.target")


def save_vocabs(directory: Path, source: Vocab, target: Vocab) -> None:
    """Write one file when both sides are the same object, else one for each side."""
    if source is target:
        _save(directory, _JOINT, source)
    else:
        for name, vocab in zip(_SIDES, (source, target), strict=True):
            _save(directory, name, vocab)


def _save(directory: Path, name: str, vocab: Vocab) -> None:
    if isinstance(vocab, SentencePieceVocab):
        (directory / f"{name}.model").write_bytes(vocab.model)
    else:
        assert isinstance(vocab, SubwordNmtVocab), type(vocab)
        tree = {"format": FORMAT, "merges": vocab.merges, "words": vocab.words}
        text = json.dumps(tree, ensure_ascii=False, indent=0) + "\n"
        (directory / f"{name}.json").write_text(text, encoding="utf-8", newline="\n")


def vocab_files(directory: Path) -> list[Path]:
    """The vocabulary files of a prepared or model directory: one when joint, else source and target."""
    if joint := _existing(directory, _JOINT):
        return [joint]
    sides = [_existing(directory, name) for name in _SIDES]
    if not all(sides):
        wanted = _JOINT if not any(sides) else _SIDES[sides.index(None)]
        raise UserError(
            f"{directory}: there is no vocabulary ({wanted}.model or {wanted}.json); "
            f"name a directory that lath prepare or lath train has written"
        )
    return [path for path in sides if path]


def _existing(directory: Path, name: str) -> Path | None:
    return next((path for end in ("model", "json") if (path := directory / f"{name}.{end}").is_file()), None)


def load_vocabs(directory: Path) -> tuple[Vocab, Vocab]:
    """The vocabularies that `save_vocabs` has written; the same object twice when they are joint."""
    vocabs = [_load(path) for path in vocab_files(directory)]
    return vocabs[0], vocabs[-1]


def same_tokens(first: Path, second: Path) -> bool:
    """Whether two directories number the same tokens alike, on both sides."""
    return all(
        one.size == other.size and all(one.token(id) == other.token(id) for id in range(one.size))
        for one, other in zip(load_vocabs(first), load_vocabs(second), strict=True)
    )


def _load(path: Path) -> Vocab:
    try:
        return SentencePieceVocab(path.read_bytes()) if path.suffix == ".model" else _load_subword_nmt(path)
    # A foreign file fails in many ways: not the library's format, not JSON, not these keys.
    except (RuntimeError, ValueError, TypeError, KeyError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(
            f"{path}: truncated, or not a vocabulary that lath has written ({reason}); "
            f"copy it again, or run lath prepare again"
        ) from None


def _load_subword_nmt(path: Path) -> SubwordNmtVocab:
    tree = json.loads(path.read_text(encoding="utf-8"))
    if tree["format"] != FORMAT:
        raise UserError(
            f"{path}: this vocabulary has format {tree['format']}, this version of lath reads format {FORMAT}; "
            f"use the version that wrote it, or run lath prepare again"
        )
    merges, words = tree["merges"], tree["words"]
    if not all(isinstance(entry, str) for entry in [*merges, *words]):
        raise ValueError("merges and words must be texts")
    return SubwordNmtVocab(merges, words)
