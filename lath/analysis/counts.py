"""Counts from which BLEU and chrF follow, as files: evidence where the translations themselves must not be published.

    write_counts(path, measure([lines], references)[0].counts)     # path ends in .tsv.xz
    measure_counts([read_counts(path)])                            # the same scores, without a word of the text

A line has the whole numbers of one sentence, separated by tabs, as `HEADER` names them: lengths in tokens and in
characters, and the n-grams that the translation shares with its reference. How many n-grams there are follows from
the lengths.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from lath.analysis.bootstrap import Figures
from lath.analysis.scores import Counts
from lath.errors import UserError
from lath.files import read_lines, write_xz

TOKENS, CHARACTERS = 4, 6
"""The longest n-grams of BLEU and of chrF."""
HEADER = (
    "repeated", "tokens", "reference tokens", *(f"same {n}-grams" for n in range(1, TOKENS + 1)),
    "characters", "reference characters", *(f"same {n}-grams of characters" for n in range(1, CHARACTERS + 1)),
)  # fmt: skip


def write_counts(path: Path, counts: Counts) -> None:
    """One line a sentence under a header; .xz."""
    assert counts.ter is None, "TER is not part of these files"
    parts = [counts.repeated[:, None], counts.bleu[:, : 2 + TOKENS], counts.chrf[:, :2], counts.chrf[:, 2::3]]
    table = np.concatenate(parts, axis=1).astype(np.int64)
    lines = ["\t".join(HEADER), *("\t".join(map(str, row)) for row in table.tolist())]
    write_xz(path, lines)


def read_counts(path: Path) -> Counts:
    """The counts that `write_counts` wrote."""
    lines = list(read_lines(path))
    rows = [line.split("\t") for line in lines[1:]]
    whole = all(len(row) == len(HEADER) and all(map(str.isdecimal, row)) for row in rows)
    if lines[:1] != ["\t".join(HEADER)] or not rows or not whole:
        raise UserError(f"{path}: not a file of counts; lath reproduce writes them into evidence/counts")
    table = np.array(rows, dtype=np.float32)
    repeated, bleu, characters, same = np.split(table, [1, 3 + TOKENS, 5 + TOKENS], axis=1)
    written, right = (_totals(length, CHARACTERS) for length in characters.T)
    # sacrebleu counts n-grams of characters only where the reference has some.
    chrf = np.stack([np.where(right > 0, written, 0), right, same], axis=2).reshape(len(table), -1)
    return Counts(repeated[:, 0], np.concatenate([bleu, _totals(bleu[:, 0], TOKENS)], axis=1), chrf, None)


def _totals(lengths: Figures, longest: int) -> Figures:
    """How many n-grams texts of these lengths have: a column for each n."""
    return np.maximum(lengths[:, None] - np.arange(longest, dtype=np.float32), 0)
