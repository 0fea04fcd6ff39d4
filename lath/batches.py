"""From a corpus of token arrays to batches of tensors: which sentences meet in an update, and how it is cut.

Everything here is a pure function of its arguments: the same seed and epoch give the same batches on any
machine, which is what makes an exact resume possible.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lath.data import Corpus
from lath.vocab import BOS, EOS, PAD

Lengths = NDArray[np.int32] | NDArray[np.int64]
PACK_TOKENS = 2048
"""Sentences of like length travel in packs of about this many tokens; an update is a random set of packs."""


@dataclass(frozen=True)
class Batch:
    """Sentence pairs as two tensors, padded on the right with PAD."""

    source: Tensor
    """B x S: tokens, EOS."""
    target: Tensor
    """B x T: BOS, tokens, EOS."""

    def to(self, device: torch.device) -> Batch:
        """The same batch on another device."""
        return Batch(self.source.to(device, non_blocking=True), self.target.to(device, non_blocking=True))


class Part(NamedTuple):
    """Some neighbouring rows of a batch, and the widths they need."""

    rows: slice
    source_width: int
    target_width: int


def pad(rows: Sequence[Sequence[int]]) -> Tensor:
    """Rows of different length as one int64 tensor."""
    width = max(len(row) for row in rows)
    padded = np.full((len(rows), width), PAD, dtype=np.int64)
    for index, row in enumerate(rows):
        padded[index, : len(row)] = row
    return torch.from_numpy(padded)


def make_batch(corpus: Corpus, indices: Sequence[int] | NDArray[np.int64]) -> Batch:
    """The named pairs of a corpus, with their begin and end symbols."""
    source = pad([[*corpus.source(int(index)).tolist(), EOS] for index in indices])
    target = pad([[BOS, *corpus.target(int(index)).tolist(), EOS] for index in indices])
    return Batch(source, target)


def plan_epoch(
    source_lengths: Lengths, target_lengths: Lengths, step_tokens: int, seed: int, epoch: int
) -> list[NDArray[np.int64]]:
    """The updates of one epoch: each an array of pair numbers with about `step_tokens` target tokens.

    Pairs are sorted by length into packs, packs are shuffled, and updates are filled pack by pack: an update
    holds all lengths and is sorted by them, so that it cuts into micro-batches of like length. A last update of
    under half the size is left out.
    """
    random = np.random.default_rng([seed, epoch])
    order = sort_by_length(random.permutation(len(target_lengths)), source_lengths, target_lengths)
    tokens = target_lengths[order] + 2
    packs = split_by_tokens(order, tokens, min(PACK_TOKENS, max(1, step_tokens // 8)))
    shuffled = [packs[number] for number in random.permutation(len(packs))]
    order = np.concatenate(shuffled)
    updates = split_by_tokens(order, target_lengths[order] + 2, step_tokens)
    if len(updates) > 1 and int((target_lengths[updates[-1]] + 2).sum()) < step_tokens / 2:
        updates.pop()
    return [sort_by_length(update, source_lengths, target_lengths) for update in updates]


def sort_by_length(indices: NDArray[np.int64], source_lengths: Lengths, target_lengths: Lengths) -> NDArray[np.int64]:
    """The same pair numbers, short pairs first."""
    return indices[np.lexsort((source_lengths[indices], target_lengths[indices]))]


def split_by_tokens(order: NDArray[np.int64], tokens: Lengths, limit: int) -> list[NDArray[np.int64]]:
    """Cut `order` where the running sum of `tokens` passes a multiple of `limit`.

    >>> [part.tolist() for part in split_by_tokens(np.arange(5), np.array([3, 3, 3, 3, 3]), 6)]
    [[0, 1], [2, 3], [4]]
    """
    numbers = (np.cumsum(tokens, dtype=np.int64) - 1) // limit
    return np.split(order, np.flatnonzero(np.diff(numbers)) + 1)


def cut_rows(batch: Batch, token_limit: int) -> list[Part]:
    """Cut a batch whose rows are sorted by length so that sentences times longest side stays within the limit."""
    source = (batch.source != PAD).sum(dim=1).tolist()
    target = (batch.target != PAD).sum(dim=1).tolist()
    parts: list[Part] = []
    start, source_width, target_width = 0, 0, 0
    for row, (source_length, target_length) in enumerate(zip(source, target, strict=True)):
        wider = max(source_width, source_length), max(target_width, target_length)
        if row > start and (row - start + 1) * max(wider) > token_limit:
            parts.append(Part(slice(start, row), source_width, target_width))
            start, wider = row, (source_length, target_length)
        source_width, target_width = wider
    return [*parts, Part(slice(start, len(source)), source_width, target_width)]
