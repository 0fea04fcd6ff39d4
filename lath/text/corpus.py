"""Aligned text -> token arrays on disk: `lath prepare`.

    report = prepare(recipe, Path("data/multi30k"))
    corpus = Corpus.open(Path("data/multi30k"), "train")
    corpus.source(0)  ->  array([ 312,   17, 2044], dtype=uint16)

A data directory holds `data.json`, the vocabulary, and two files for each split (train, valid) and side (source,
target). `SPLIT.SIDE.tokens` has all sentences end to end, without BOS and EOS. `SPLIT.SIDE.offsets` has the start of
each: sentence i is tokens[offsets[i]:offsets[i + 1]].
"""

from __future__ import annotations

import contextlib
import json
import random
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from lath.config import DataSettings, Recipe, VocabSettings, settings_from_tree, to_tree
from lath.errors import UserError, did_you_mean
from lath.files import chunks, count_lines, misaligned, read_blocks, read_lines, read_pairs, whole_directory
from lath.progress import watched
from lath.text.check import BLOCK, BLOCKS, Block, Pair, find_problems, not_identifiable
from lath.text.protect import with_placeholders
from lath.text.vocab import Vocab, learn_vocabs, load_vocabs, save_vocabs

FORMAT = 1
"""Format number of a data directory."""
DATA_INFO = "data.json"
SPLITS = ("train", "valid")
SIDES = ("source", "target")
REASONS = ("empty", "too long", "ratio")
"""Why a pair may be dropped, in the order of the checks."""

VOCAB_LINES = 1_000_000
"""Lines per side that the vocabulary is learnt from, evenly spread: SentencePiece holds all of them in memory."""
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


@dataclass(frozen=True)
class PrepareReport:
    """A new data directory, as `lath prepare` prints it."""

    directory: Path
    info: DataInfo

    def __str__(self) -> str:
        data = self.info.data
        lines = [
            f"{self.directory}: {data.source_language or 'source'} -> {data.target_language or 'target'}",
            f"  vocabulary  {self.info.source_vocab_size:,} source and {self.info.target_vocab_size:,} target entries",
            *(f"  {split:<10}  {counts}" for split, counts in self.info.splits.items()),
        ]
        return "\n".join(lines)


def prepare(
    recipe: Recipe,
    out: str | Path,
    vocab_from: str | Path | None = None,
    *,
    strict: bool = False,
    warn: Callable[[str], object] = warnings.warn,
) -> PrepareReport:
    """Write the corpus of a recipe as token arrays into the new directory `out`.

    The vocabulary is learnt from the training text, or copied from the data or model directory `vocab_from`. Text that
    looks wrong (lath/text/check.py) is reported to `warn`; `strict` makes it a `UserError`.
    """
    out, files = Path(out), {split: _split_files(recipe.data, split) for split in SPLITS}
    with whole_directory(out) as directory:
        totals = {split: _aligned_count(*files[split]) for split in SPLITS}
        _check(recipe.data, files, totals, strict, warn)
        if vocab_from is None:
            vocabs = _learn(recipe.vocab, files["train"], totals["train"])
        else:
            vocabs = load_vocabs(Path(vocab_from))
        save_vocabs(directory, *vocabs)
        dtype = np.dtype("<u2" if max(vocab.size for vocab in vocabs) <= 1 << 16 else "<u4")
        splits: dict[str, SplitCounts] = {}
        for split in SPLITS:
            pairs = watched(read_pairs(*files[split]), f"encoding {split}", totals[split])
            if split == "train":
                pairs = _some_with_placeholders(pairs, vocabs, recipe.data.placeholder_share, recipe.train.seed)
            splits[split] = _write_split(directory / split, pairs, vocabs, recipe.data, dtype)
            if splits[split].pairs == 0:
                raise UserError(
                    f"no usable pair in {files[split][0]} and {files[split][1]}: {splits[split]}; "
                    f"check the text, data.max_length {recipe.data.max_length} and data.max_ratio "
                    f"{recipe.data.max_ratio}"
                )
        info = DataInfo(dtype.name, vocabs[0].size, vocabs[1].size, splits, recipe.data, recipe.vocab)
        _write_info(directory / DATA_INFO, info)
    return PrepareReport(out, info)


def _split_files(data: DataSettings, split: str) -> tuple[Path, Path]:
    """The source and the target file of a split."""
    settings = to_tree(data)
    for side in SIDES:
        if not settings[f"{split}_{side}"]:
            raise UserError(
                f"data.{split}_{side} is not set; name the text file under [data] in the recipe, "
                f"or with --set data.{split}_{side}=FILE"
            )
    return Path(settings[f"{split}_source"]), Path(settings[f"{split}_target"])


def _aligned_count(source: Path, target: Path) -> int:
    """The number of pairs; counted first, so that misaligned files are reported before the vocabulary is learnt."""
    counts = [count_lines(path) for path in watched((source, target), "counting lines", 2, unit="files")]
    if counts[0] != counts[1]:
        raise misaligned(source, counts[0], target, counts[1])
    return counts[0]


def _check(
    data: DataSettings,
    files: Mapping[str, tuple[Path, Path]],
    totals: Mapping[str, int],
    strict: bool,
    warn: Callable[[str], object],
) -> None:
    """Look for text that is not what the recipe says, before time is spent on it."""
    languages = data.source_language, data.target_language
    reason = not_identifiable(languages)
    for split, (source, target) in files.items():
        blocks = _sample((source, target), totals[split])
        for problem in find_problems(blocks, (str(source), str(target)), None if reason else languages):
            if strict:
                raise UserError(problem)
            warn(problem)
    if reason:
        warn(f"the languages of the text are not checked: {reason}")


def _sample(files: tuple[Path, Path], total: int) -> list[Block]:
    """Blocks of neighbouring pairs, evenly spread."""
    blocks = -(-total // BLOCK)
    starts = [BLOCK * number for number in spread(range(blocks), blocks, BLOCKS)]
    sides = [
        list(read_blocks(path, watched(starts, f"checking {path.name}", len(starts), "blocks"), BLOCK))
        for path in files
    ]
    return [
        [Pair(start + number, *pair) for number, pair in enumerate(zip(*block, strict=True), 1)]
        for start, *block in zip(starts, *sides, strict=True)
    ]


def _learn(settings: VocabSettings, files: tuple[Path, Path], total: int) -> tuple[Vocab, Vocab]:
    def lines(path: Path) -> Iterator[str]:
        all_lines = watched(read_lines(path), f"learning the vocabulary from {path.name}", total)
        return spread(all_lines, total, VOCAB_LINES)

    return learn_vocabs(settings, lambda: lines(files[0]), lambda: lines(files[1]))


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


def _some_with_placeholders(
    pairs: Iterable[tuple[str, str]], vocabs: tuple[Vocab, Vocab], share: float, seed: int
) -> Iterator[tuple[str, str]]:
    """The pairs, a share of them with placeholders for strings that both sides have."""
    draw = random.Random(seed)
    placeholders = [word for word in vocabs[0].placeholders if word in vocabs[1].placeholders]
    for source, target in pairs:
        chosen = placeholders and draw.random() < share
        yield with_placeholders(source, target, placeholders, draw) if chosen else (source, target)


def _write_split(
    stem: Path, pairs: Iterable[tuple[str, str]], vocabs: tuple[Vocab, Vocab], data: DataSettings, dtype: np.dtype[Any]
) -> SplitCounts:
    """Encode and filter the pairs of a split and write its four files."""
    dropped = Counter(dict.fromkeys(REASONS, 0))
    with contextlib.ExitStack() as stack:
        files = [[stack.enter_context(open(path, "wb")) for path in _side_paths(stem, side)] for side in SIDES]
        sides = [_SideWriter(tokens, offsets, dtype) for tokens, offsets in files]
        for chunk in chunks(pairs, CHUNK_PAIRS):
            lines = zip(*chunk, strict=True)
            encoded = [vocab.encode_lines(side) for vocab, side in zip(vocabs, lines, strict=True)]
            reasons = [drop_reason(len(source), len(target), data) for source, target in zip(*encoded, strict=True)]
            dropped.update(reason for reason in reasons if reason)
            for writer, sentences in zip(sides, encoded, strict=True):
                writer.add([ids for ids, reason in zip(sentences, reasons, strict=True) if not reason])
    return SplitCounts(sides[0].sentences, sides[0].tokens, sides[1].tokens, dict(dropped))


class _SideWriter:
    """Appends sentences to the token file and the offset file of one side."""

    def __init__(self, tokens: IO[bytes], offsets: IO[bytes], dtype: np.dtype[Any]) -> None:
        self._token_file, self._offset_file, self._dtype = tokens, offsets, dtype
        self.sentences = 0
        self.tokens = 0
        offsets.write(np.zeros(1, _OFFSET).tobytes())

    def add(self, sentences: Sequence[Sequence[int]]) -> None:
        lengths = np.fromiter((len(ids) for ids in sentences), _OFFSET, len(sentences))
        tokens = np.fromiter(chain.from_iterable(sentences), self._dtype, int(lengths.sum()))
        # Not ndarray.tofile: it hides the error number of a full disk.
        self._token_file.write(tokens.tobytes())
        self._offset_file.write((self.tokens + np.cumsum(lengths, dtype=_OFFSET)).tobytes())
        self.sentences += len(sentences)
        self.tokens += len(tokens)


def _side_paths(stem: Path, side: str) -> tuple[Path, Path]:
    """The token file and the offset file of one side; `stem` is the directory and the split."""
    return stem.with_name(f"{stem.name}.{side}.tokens"), stem.with_name(f"{stem.name}.{side}.offsets")


def _write_info(path: Path, info: DataInfo) -> None:
    languages = {"source": info.data.source_language, "target": info.data.target_language}
    tree = {"format": FORMAT, "languages": languages, **asdict(info)}
    path.write_text(json.dumps(tree, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")


def read_data_info(directory: Path) -> DataInfo:
    """Read `data.json` of a data directory."""
    path = directory / DATA_INFO
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(f"{directory}: no data.json; name a directory written by lath prepare") from None
    except UnicodeDecodeError:
        raise _foreign(path, "not UTF-8") from None
    try:
        tree = json.loads(text)
        format_number = tree["format"]
        if format_number != FORMAT:
            raise UserError(
                f"{path}: format {format_number}, but this version of lath reads format {FORMAT}; "
                f"run lath prepare again with this version"
            )
        return DataInfo(
            dtype=str(np.dtype(tree["dtype"]).name),
            source_vocab_size=int(tree["source_vocab_size"]),
            target_vocab_size=int(tree["target_vocab_size"]),
            splits={split: SplitCounts(**counts) for split, counts in tree["splits"].items()},
            data=settings_from_tree(DataSettings, tree["data"], f"{path}: data"),
            # lath 0.1 had no placeholders.
            vocab=settings_from_tree(VocabSettings, {"placeholders": 0, **tree["vocab"]}, f"{path}: vocab"),
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise _foreign(path, f"{type(error).__name__}: {error}") from None


def _foreign(path: Path, reason: str) -> UserError:
    return UserError(
        f"{path}: truncated, or not written by lath prepare ({reason}); copy it again, or run lath prepare again"
    )


@dataclass(frozen=True, eq=False)
class Corpus:
    """One split of a data directory, memory-mapped: opening it is fast for any size."""

    source_tokens: Tokens
    target_tokens: Tokens
    source_offsets: NDArray[np.int64]
    target_offsets: NDArray[np.int64]
    source_lengths: NDArray[np.int32]
    """Tokens of each source sentence."""
    target_lengths: NDArray[np.int32]
    """Tokens of each target sentence."""

    @staticmethod
    def open(directory: Path, split: str) -> Corpus:
        """Open a split, "train" or "valid", of a data directory."""
        info = read_data_info(directory)
        if split not in info.splits:
            known = ", ".join(info.splits)
            raise UserError(f"{directory}: no split {split!r}{did_you_mean(split, info.splits)}; it has {known}")
        dtype = np.dtype(info.dtype).newbyteorder("<")
        counts = info.splits[split]
        source = _open_side(directory / split, "source", dtype, counts.pairs, counts.source_tokens)
        target = _open_side(directory / split, "target", dtype, counts.pairs, counts.target_tokens)
        return Corpus(source[0], target[0], source[1], target[1], source[2], target[2])

    def __len__(self) -> int:
        return len(self.source_lengths)

    def source(self, index: int) -> Tokens:
        """The ids of a source sentence, without BOS and EOS."""
        return self.source_tokens[self.source_offsets[index] : self.source_offsets[index + 1]]

    def target(self, index: int) -> Tokens:
        """The ids of a target sentence, without BOS and EOS."""
        return self.target_tokens[self.target_offsets[index] : self.target_offsets[index + 1]]


def _open_side(
    stem: Path, side: str, dtype: np.dtype[Any], sentences: int, tokens: int
) -> tuple[Tokens, NDArray[np.int64], NDArray[np.int32]]:
    """Tokens, offsets and lengths of one side; the file sizes must agree with data.json."""
    token_path, offset_path = _side_paths(stem, side)
    offsets = _map(offset_path, _OFFSET, sentences + 1)
    lengths = np.diff(offsets)
    if offsets[0] != 0 or offsets[-1] != tokens or np.any(lengths < 0):
        raise _foreign(offset_path, "its offsets do not fit the tokens")
    return _map(token_path, dtype, tokens), offsets, lengths.astype(np.int32)


def _map(path: Path, dtype: np.dtype[Any], count: int) -> NDArray[Any]:
    expected = count * dtype.itemsize
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; copy the whole directory again, or run lath prepare again") from None
    if size != expected:
        raise _foreign(path, f"{size} bytes instead of {expected}")
    if count == 0:  # an empty file cannot be mapped
        return np.zeros(0, dtype)
    return np.asarray(np.memmap(path, dtype, "r"))
