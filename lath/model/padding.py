"""Sentences of different length as one tensor, filled up on the right with PAD."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from lath.text.vocab import PAD


def pad(rows: Sequence[Sequence[int]]) -> Tensor:
    """Rows of different length as one int64 tensor."""
    width = max(len(row) for row in rows)
    padded = np.full((len(rows), width), PAD, dtype=np.int64)
    for index, row in enumerate(rows):
        padded[index, : len(row)] = row
    return torch.from_numpy(padded)


def row_lengths(rows: Tensor) -> list[int]:
    """The tokens in each row of a padded tensor on the CPU."""
    lengths: list[int] = (rows.numpy() != PAD).sum(axis=1).tolist()
    return lengths
