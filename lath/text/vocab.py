"""Text <-> token ids: SentencePiece on raw text (default), or subword-nmt codes on tokenised text (as in the paper).

    source, target = learn_vocabs(recipe.vocab, source_lines, target_lines)
    source.decode(source.encode("Guten Morgen."))  ->  "Guten Morgen."

Every vocabulary starts with six special tokens. Text is never encoded to a special token, with one exception: a
subword-nmt vocabulary maps unseen units to UNK. SentencePiece encodes unseen characters as bytes instead.
"""

from __future__ import annotations

import io
import json
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, lru_cache
from itertools import chain, takewhile
from pathlib import Path
from typing import Protocol

import sentencepiece

from lath.config import VocabSettings
from lath.errors import UserError
from lath.files import damage_errors, read_json, require_format
from lath.text.subword import JOINER, learn_codes, learn_words, merge_ranks, read_codes, segment, split_words

BOS, PAD, EOS, UNK, MASK, SOP = range(6)
SPECIALS = ("<s>", "<pad>", "</s>", "<unk>", "<mask>", "<sop>")

_PLACEHOLDER = re.compile(r"▁(⟦\d+⟧)")
"""The space before it belongs to the token, which is therefore one and not two. In a text it stands for itself."""

FORMAT = 1
"""Format number of a .json vocabulary."""
REMEDY = "copy it again, or run lath prepare again"
LARGEST_FILE = 1 << 23
"""Bytes; a vocabulary of 32,000 entries has one million."""


class Vocab(Protocol):
    """Text <-> ids, for one language or for both."""

    @property
    def size(self) -> int:
        """The number of ids, including special tokens."""

    @property
    def placeholders(self) -> tuple[str, ...]:
        """Words of one token that stand for what must come through unchanged (document/protect.py)."""

    def encode(self, text: str) -> list[int]:
        """The ids of a line, without BOS and EOS."""

    def encode_lines(self, lines: Sequence[str]) -> list[list[int]]:
        """The ids of many lines; faster than line by line."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of any sequence of ids; special tokens, invalid ids and bytes that are not UTF-8 are skipped."""

    def token(self, id: int) -> str:
        """A readable form of one id."""


class SentencePieceVocab:
    """SentencePiece BPE on raw text; unseen characters are encoded as bytes, so no text is unknown."""

    def __init__(self, model: bytes) -> None:
        self.model = model
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        pieces = self._processor.id_to_piece(list(range(self.size)))  # all, since each must be UTF-8
        first = tuple(pieces[: len(SPECIALS)])
        if first != SPECIALS:
            raise ValueError(f"its first entries are {' '.join(first)}, not {' '.join(SPECIALS)}")
        if not all(id == UNK or self._processor.is_control(id) for id in range(len(SPECIALS))):
            raise ValueError("text could be encoded to its special tokens")

    @cached_property
    def size(self) -> int:
        return int(self._processor.get_piece_size())

    @cached_property
    def placeholders(self) -> tuple[str, ...]:
        pieces = map(self.token, range(len(SPECIALS), self.size))
        return tuple(match[1] for match in takewhile(bool, map(_PLACEHOLDER.fullmatch, pieces)) if match)

    def encode(self, text: str) -> list[int]:
        # Not a batch of one: starting threads takes fifty times as long as encoding a line.
        ids: list[int] = self._processor.encode(_utf8(text))
        return ids

    def encode_lines(self, lines: Sequence[str]) -> list[list[int]]:
        ids: list[list[int]] = self._processor.encode([_utf8(line) for line in lines])
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        first, size = len(SPECIALS), self.size
        text = str(self._processor.decode([id for id in map(int, ids) if first <= id < size]))
        return text.replace("\N{REPLACEMENT CHARACTER}", "")  # stands for each byte that is not UTF-8

    def token(self, id: int) -> str:
        return str(self._processor.id_to_piece(int(id)))


def _utf8(text: str) -> bytes:
    """The text as UTF-8; a lone surrogate (from a broken file name or JSON) becomes "?"."""
    return text.encode("utf-8", "replace")


def learn_sentencepiece(lines: Iterable[str], size: int, placeholders: int = 0) -> SentencePieceVocab:
    """Learn a BPE vocabulary of `size` entries, so many of them placeholders; deterministic."""
    feed = _Feed(lines)
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(feed),
            model_writer=model,
            model_type="bpe",
            vocab_size=size,
            byte_fallback=True,
            # Byte sequences are long, and a parallel decoder easily breaks them. So nearly every character gets its
            # own entry; only the rarest, one in ten thousand, become bytes.
            character_coverage=0.9999,
            normalization_rule_name="nmt_nfkc",
            bos_id=BOS,
            pad_id=PAD,
            eos_id=EOS,
            unk_id=UNK,
            control_symbols=list(SPECIALS[MASK:]),
            user_defined_symbols=[f"▁⟦{number}⟧" for number in range(placeholders)],
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
    """Lines for the SentencePiece trainer, which swallows exceptions: the first is kept here to be raised again.

    The trainer drops lines of over 4192 bytes and ends the process at a word of 65536 characters, so long lines are
    passed on in fragments.
    """

    def __init__(self, lines: Iterable[str]) -> None:
        self.lines = lines
        self.count = 0
        self.error: Exception | None = None

    def __iter__(self) -> Iterator[str]:
        try:
            for line in self.lines:
                fragments = [line] if len(line) <= 1000 else textwrap.wrap(line, 1000, break_on_hyphens=False)
                for fragment in fragments:
                    if fragment and not fragment.isspace():
                        self.count += 1
                        yield fragment
        except Exception as error:
            self.error = error
            raise


def _size_error(size: int, message: str) -> UserError | None:
    """SentencePiece's error about the vocabulary size as a `UserError` that names a possible size."""
    if found := re.search(r"set it to a value <= (\d+)", message):
        return UserError(
            f"vocab.size {size} is too large for this corpus: set vocab.size to {found[1]} or less, or add text"
        )
    if found := re.search(r"smaller than required_chars\. \S+ vs (\d+)", message):
        least = int(found[1])
        return UserError(
            f"vocab.size {size} is too small for this corpus: its characters, the bytes and the special "
            f"tokens alone are {least} entries; set vocab.size to {least + 1} or more"
        )
    return None


class SubwordNmtVocab:
    """subword-nmt units of text whose words are separated by single spaces; unseen units are UNK."""

    def __init__(self, merges: Sequence[str], words: Sequence[str]) -> None:
        self.merges = tuple(merges)
        self.words = tuple(words)
        self._ranks = merge_ranks(merges)
        self._ids = {word: id for id, word in enumerate(words, start=len(SPECIALS))}
        # Most words are frequent ones, so a cache saves most of the work; its limit bounds the memory.
        self._word_ids = lru_cache(maxsize=1 << 18)(self._encode_word)

    @property
    def size(self) -> int:
        return len(SPECIALS) + len(self.words)

    @property
    def placeholders(self) -> tuple[str, ...]:
        return ()

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


Lines = Callable[[], Iterable[str]]
"""Each call returns a fresh iterator over the lines."""


def learn_vocabs(settings: VocabSettings, source_lines: Lines, target_lines: Lines) -> tuple[Vocab, Vocab]:
    """Learn the vocabularies of both sides; the same object twice if joint."""
    if settings.size < 1:
        raise UserError(f"vocab.size {settings.size} is too small; set vocab.size to a few thousand")
    source_codes, target_codes = settings.source_codes, settings.target_codes or settings.source_codes
    if settings.kind == "subword-nmt":
        _check_codes(settings)

    def learn(lines: Lines, codes: str) -> Vocab:
        if settings.kind == "sentencepiece":
            return learn_sentencepiece(lines(), settings.size, settings.placeholders)
        merges = read_codes(Path(codes)) if codes else learn_codes(lines(), settings.size)
        return SubwordNmtVocab(merges, learn_words(lines(), merges))

    if settings.joint:
        vocab = learn(lambda: chain(source_lines(), target_lines()), source_codes)
        return vocab, vocab
    return learn(source_lines, source_codes), learn(target_lines, target_codes)


def _check_codes(settings: VocabSettings) -> None:
    if settings.target_codes and not settings.source_codes:
        raise UserError("vocab.target_codes is set but vocab.source_codes is not; set both, or source_codes alone")
    if settings.joint and settings.target_codes not in ("", settings.source_codes):
        raise UserError(
            "vocab.target_codes differs from vocab.source_codes, but a joint vocabulary has one codes file; "
            "remove vocab.target_codes or set vocab.joint = false"
        )


_JOINT = "vocab"
_SIDES = ("vocab.source", "vocab.target")


def save_vocabs(directory: Path, source: Vocab, target: Vocab) -> None:
    """Write one file if both sides are the same object, else one for each side."""
    named = {_JOINT: source} if source is target else dict(zip(_SIDES, (source, target), strict=True))
    for name, vocab in named.items():
        if isinstance(vocab, SentencePieceVocab):
            (directory / f"{name}.model").write_bytes(vocab.model)
        else:
            assert isinstance(vocab, SubwordNmtVocab), type(vocab)
            tree = {"format": FORMAT, "merges": vocab.merges, "words": vocab.words}
            text = json.dumps(tree, ensure_ascii=False, indent=0) + "\n"
            (directory / f"{name}.json").write_text(text, encoding="utf-8", newline="\n")


def vocab_files(directory: Path) -> list[Path]:
    """The vocabulary files of a data or model directory: one if joint, else source and target."""
    joint, sides = _existing(directory, _JOINT), [_existing(directory, name) for name in _SIDES]
    if joint is None and None in sides:
        wanted = _JOINT if not any(sides) else _SIDES[sides.index(None)]
        raise UserError(
            f"{directory}: no vocabulary ({wanted}.model or {wanted}.json); "
            f"name a directory written by lath prepare or lath train"
        )
    paths = [joint] if joint else [path for path in sides if path]
    for path in paths:
        if path.stat().st_size > LARGEST_FILE:
            raise UserError(f"{path}: over {LARGEST_FILE} bytes, which no vocabulary has; copy it again")
    return paths


def _existing(directory: Path, name: str) -> Path | None:
    return next((path for end in ("model", "json") if (path := directory / f"{name}.{end}").is_file()), None)


def load_vocabs(directory: Path) -> tuple[Vocab, Vocab]:
    """The vocabularies written by `save_vocabs`; the same object twice if joint."""
    vocabs = [_load(path) for path in vocab_files(directory)]
    return vocabs[0], vocabs[-1]


def same_tokens(first: Path, second: Path) -> bool:
    """Whether two directories have the same tokens with the same ids, on both sides."""
    return all(
        one.size == other.size and all(one.token(id) == other.token(id) for id in range(one.size))
        for one, other in zip(load_vocabs(first), load_vocabs(second), strict=True)
    )


def _load(path: Path) -> Vocab:
    with damage_errors(path, REMEDY):
        return SentencePieceVocab(path.read_bytes()) if path.suffix == ".model" else _load_subword_nmt(path)


def _load_subword_nmt(path: Path) -> SubwordNmtVocab:
    tree = read_json(path, LARGEST_FILE)
    require_format(path, tree["format"], [FORMAT], "use the version that wrote it, or run lath prepare again")
    merges, words = tree["merges"], tree["words"]
    if not isinstance(merges, list) or not isinstance(words, list):
        raise ValueError("merges and words must be lists")
    " ".join([*merges, *words]).encode()  # strings, without lone surrogates
    return SubwordNmtVocab(merges, words)
