"""Front door for data: aligned text becomes a data directory. `lath prepare` and `lath.prepare`.

report = prepare(load_recipe("recipes/demo.toml"), "data/demo")
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lath.config import DataSettings, Recipe, VocabSettings, to_tree
from lath.document.check import find_problems, not_identifiable, sample_blocks
from lath.document.protect import with_placeholders
from lath.errors import UserError
from lath.files import count_lines, misaligned, read_lines, read_pairs, whole_directory
from lath.progress import watched
from lath.text.corpus import SIDES, SPLITS, DataInfo, SplitCounts, spread, write_info, write_split
from lath.text.vocab import Vocab, learn_vocabs, load_vocabs, save_vocabs

VOCAB_LINES = 1_000_000
"""Lines per side that the vocabulary is learnt from, evenly spread: SentencePiece holds all of them in memory."""


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
    looks wrong (lath/document/check.py) is reported to `warn`; `strict` makes it a `UserError`.
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
            splits[split] = write_split(directory / split, pairs, vocabs, recipe.data, dtype)
            if splits[split].pairs == 0:
                raise UserError(
                    f"no usable pair in {files[split][0]} and {files[split][1]}: {splits[split]}; "
                    f"check the text, data.max_length {recipe.data.max_length} and data.max_ratio "
                    f"{recipe.data.max_ratio}"
                )
        info = DataInfo(dtype.name, vocabs[0].size, vocabs[1].size, splits, recipe.data, recipe.vocab)
        write_info(directory, info)
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
        blocks = sample_blocks((source, target), totals[split])
        for problem in find_problems(blocks, (str(source), str(target)), None if reason else languages):
            if strict:
                raise UserError(problem)
            warn(problem)
    if reason:
        warn(f"the languages of the text are not checked: {reason}")


def _learn(settings: VocabSettings, files: tuple[Path, Path], total: int) -> tuple[Vocab, Vocab]:
    def lines(path: Path) -> Iterator[str]:
        all_lines = watched(read_lines(path), f"learning the vocabulary from {path.name}", total)
        return spread(all_lines, total, VOCAB_LINES)

    return learn_vocabs(settings, lambda: lines(files[0]), lambda: lines(files[1]))


def _some_with_placeholders(
    pairs: Iterable[tuple[str, str]], vocabs: tuple[Vocab, Vocab], share: float, seed: int
) -> Iterator[tuple[str, str]]:
    """The pairs, a share of them with placeholders for strings that both sides have."""
    draw = random.Random(seed)
    placeholders = [word for word in vocabs[0].placeholders if word in vocabs[1].placeholders]
    for source, target in pairs:
        chosen = placeholders and draw.random() < share
        yield with_placeholders(source, target, placeholders, draw) if chosen else (source, target)
