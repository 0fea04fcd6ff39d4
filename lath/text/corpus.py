"""Data directories: sentence pairs as token arrays on disk.

    corpus = Corpus.open(Path("data/multi30k"), "train")
    corpus.source.sentence(0)  ->  array([ 312,   17, 2044], dtype=uint16)

A data directory holds `data.json`, the vocabulary, and two files for each split (train, valid) and side (source,
target). `SPLIT.SIDE.tokens` has all sentences end to end, without BOS and EOS. `SPLIT.SIDE.offsets` has the start of
each: sentence i is tokens[offsets[i]:offsets[i + 1]].
"""

from __future__ import annotations

import contextlib
import json
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from lath.config import DataSettings, VocabSettings, settings_from_tree
from lath.errors import UserError, did_you_mean
from lath.files import chunks, damage_errors, require_format
from lath.text.vocab import REMEDY, Vocab

FORMAT = 1
"""Format number of a data directory."""
DATA_INFO = "data.json"
SPLITS = ("train", "valid")
SIDES = ("source", "target")
REASONS = ("empty", "too long", "ratio")
"""Why a pair may be dropped, in the order of the checks."""

CHUNK_PAIRS = 10_000
"""Pairs encoded at once: enough to use all cores, few enough to need little memory."""
_OFFSET = np.dtype("<i8")

Tokens = NDArray[np.unsignedinteger[Any]]
Item = TypeVar("Item")


@dataclass(frozen=True)
class SplitCounts:
    """The pairs kept and dropped in one split."""

    pairs: int
    """Pairs kept."""
    source_tokens: int
    target_tokens: int
    dropped: Mapping[str, int]
    """Pairs dropped, by reason."""

    def __str__(self) -> str:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in self.dropped.items() if count)
        left_out = f"{sum(self.dropped.values()):,} left out" + (f" ({reasons})" if reasons else "")
        return (
            f"{self.pairs:,} pairs, {left_out}; {self.source_tokens:,} source and {self.target_tokens:,} target tokens"
        )


@dataclass(frozen=True)
class DataInfo:
    """The contents of `data.json`."""

    dtype: str
    """Type of the token files: uint16, or uint32 if a vocabulary has over 65536 entries."""
    source_vocab_size: int
    target_vocab_size: int
    splits: Mapping[str, SplitCounts]
    data: DataSettings
    """The settings it was prepared with, including the languages."""
    vocab: VocabSettings


def spread(items: Iterable[Item], total: int, sample: int) -> Iterator[Item]:
    """At most `sample` of the `total` items, evenly spread and chosen by these two numbers alone.

    >>> list(spread("abcdefg", 7, 3))
    ['a', 'd', 'f']
    """
    return (item for index, item in enumerate(items) if sample >= total or index * sample % total < sample)


def drop_reason(source_length: int, target_length: int, data: DataSettings) -> str | None:
    """Why a pair of these lengths in tokens is dropped; None if it is kept."""
    shorter, longer = sorted((source_length, target_length))
    if shorter == 0:
        return "empty"
    if longer > data.max_length:
        return "too long"
    if longer > data.max_ratio * shorter and longer - shorter > 8:
        return "ratio"
    return None


def write_split(
    stem: Path, pairs: Iterable[tuple[str, str]], vocabs: tuple[Vocab, Vocab], data: DataSettings, dtype: np.dtype[Any]
) -> SplitCounts:
    """Encode and filter the pairs of a split and write its four files."""
    dropped = Counter(dict.fromkeys(REASONS, 0))
    lengths = [array("q") for _ in SIDES]
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(open(_side_paths(stem, side)[0], "wb")) for side in SIDES]
        for chunk in chunks(pairs, CHUNK_PAIRS):
            lines = zip(*chunk, strict=True)
            encoded = [vocab.encode_lines(side) for vocab, side in zip(vocabs, lines, strict=True)]
            reasons = [drop_reason(len(source), len(target), data) for source, target in zip(*encoded, strict=True)]
            dropped.update(reason for reason in reasons if reason)
            for file, own, sentences in zip(files, lengths, encoded, strict=True):
                kept = [ids for ids, reason in zip(sentences, reasons, strict=True) if not reason]
                own.extend(map(len, kept))
                # Not ndarray.tofile: it hides the error number of a full disk.
                file.write(np.fromiter(chain.from_iterable(kept), dtype).tobytes())
    for side, own in zip(SIDES, lengths, strict=True):
        offsets = np.concatenate([[0], np.cumsum(own)]).astype(_OFFSET)
        _side_paths(stem, side)[1].write_bytes(offsets.tobytes())
    return SplitCounts(len(lengths[0]), sum(lengths[0]), sum(lengths[1]), dict(dropped))


def _side_paths(stem: Path, side: str) -> tuple[Path, Path]:
    """The token file and the offset file of one side; `stem` is the directory and the split."""
    return stem.with_name(f"{stem.name}.{side}.tokens"), stem.with_name(f"{stem.name}.{side}.offsets")


def write_info(directory: Path, info: DataInfo) -> None:
    """Write `data.json`."""
    languages = {"source": info.data.source_language, "target": info.data.target_language}
    tree = {"format": FORMAT, "languages": languages, **asdict(info)}
    (directory / DATA_INFO).write_text(json.dumps(tree, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")


def read_data_info(directory: Path) -> DataInfo:
    """Read `data.json` of a data directory."""
    path = directory / DATA_INFO
    if not path.is_file():
        raise UserError(f"{directory}: no data.json; name a directory written by lath prepare")
    with damage_errors(path, REMEDY):
        tree = json.loads(path.read_text(encoding="utf-8"))
        require_format(path, tree["format"], [FORMAT], "run lath prepare again with this version")
        return DataInfo(
            dtype=str(np.dtype(tree["dtype"]).name),
            source_vocab_size=int(tree["source_vocab_size"]),
            target_vocab_size=int(tree["target_vocab_size"]),
            splits={split: SplitCounts(**counts) for split, counts in tree["splits"].items()},
            data=settings_from_tree(DataSettings, tree["data"], f"{path}: data"),
            # lath 0.1 had no placeholders.
            vocab=settings_from_tree(VocabSettings, {"placeholders": 0, **tree["vocab"]}, f"{path}: vocab"),
        )


class Side(NamedTuple):
    """The sentences of one language, memory-mapped."""

    tokens: Tokens
    """Of all sentences, end to end, without BOS and EOS."""
    offsets: NDArray[np.int64]
    """Where each sentence starts, and where the last one ends."""
    lengths: NDArray[np.int32]
    """Tokens of each sentence."""

    def sentence(self, index: int) -> Tokens:
        """The ids of one sentence."""
        return self.tokens[self.offsets[index] : self.offsets[index + 1]]


@dataclass(frozen=True, eq=False)
class Corpus:
    """One split of a data directory; opening it is fast for any size."""

    source: Side
    target: Side

    @staticmethod
    def open(directory: Path, split: str) -> Corpus:
        """Open a split, "train" or "valid", of a data directory."""
        info = read_data_info(directory)
        if split not in info.splits:
            known = ", ".join(info.splits)
            raise UserError(f"{directory}: no split {split!r}{did_you_mean(split, info.splits)}; it has {known}")
        dtype, counts = np.dtype(info.dtype).newbyteorder("<"), info.splits[split]
        return Corpus(
            _open_side(directory / split, "source", dtype, counts.pairs, counts.source_tokens),
            _open_side(directory / split, "target", dtype, counts.pairs, counts.target_tokens),
        )

    def __len__(self) -> int:
        return len(self.source.lengths)


def _open_side(stem: Path, side: str, dtype: np.dtype[Any], sentences: int, tokens: int) -> Side:
    """One side of a split; the file sizes must agree with data.json."""
    token_path, offset_path = _side_paths(stem, side)
    offsets = _map(offset_path, _OFFSET, sentences + 1)
    lengths = np.diff(offsets)
    if offsets[0] != 0 or offsets[-1] != tokens or np.any(lengths < 0):
        raise UserError(f"{offset_path}: damaged (its offsets do not fit the tokens); {REMEDY}")
    return Side(_map(token_path, dtype, tokens), offsets, lengths.astype(np.int32))


def _map(path: Path, dtype: np.dtype[Any], count: int) -> NDArray[Any]:
    expected = count * dtype.itemsize
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; copy the whole directory again, or run lath prepare again") from None
    if size != expected:
        raise UserError(f"{path}: damaged ({size} bytes instead of {expected}); {REMEDY}")
    if count == 0:  # an empty file cannot be mapped
        return np.zeros(0, dtype)
    return np.asarray(np.memmap(path, dtype, "r"))
