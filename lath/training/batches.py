"""From a corpus of token arrays to batches: which sentences form an update, and its micro-batches.

All functions here are pure. The same seed and epoch give the same batches on every machine, which makes an exact resume
possible.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lath.model.padding import row_lengths
from lath.text.corpus import Corpus, Side
from lath.text.vocab import BOS, EOS, PAD

Lengths = NDArray[np.int32] | NDArray[np.int64]


@dataclass(frozen=True)
class Batch:
    """Sentence pairs as two tensors, padded on the right with PAD."""

    source: Tensor
    """B x S: tokens, EOS."""
    target: Tensor
    """B x T: BOS, tokens, EOS."""

    def to(self, device: torch.device) -> Batch:
        """The same batch on another device; pinned memory lets a GPU copy it while computing the previous update."""
        source, target = self.source, self.target
        if device.type == "cuda":
            source, target = source.pin_memory(), target.pin_memory()
        return Batch(source.to(device, non_blocking=True), target.to(device, non_blocking=True))


class MicroBatch(NamedTuple):
    """The rows of an update that go through the network together, and the width of their longest sentences."""

    rows: slice
    source_width: int
    target_width: int

    @property
    def positions(self) -> int:
        """Target positions, including padding."""
        return len(range(self.rows.start, self.rows.stop, self.rows.step or 1)) * self.target_width


def make_batch(corpus: Corpus, indices: Sequence[int] | NDArray[np.int64]) -> Batch:
    """The pairs of a corpus with these indices, with their begin and end symbols."""
    numbers = np.asarray(indices, dtype=np.int64)
    source, target = _padded_rows(corpus.source, numbers, begin=[]), _padded_rows(corpus.target, numbers, begin=[BOS])
    return Batch(torch.from_numpy(source), torch.from_numpy(target))


def _padded_rows(side: Side, numbers: NDArray[np.int64], begin: list[int]) -> NDArray[np.int64]:
    """Sentences of a corpus as rows: `begin`, tokens, EOS, padding. Vectorised, because every step waits for it."""
    starts, sizes = side.offsets[numbers], side.offsets[numbers + 1] - side.offsets[numbers]
    first = len(begin)
    rows = np.full((len(numbers), first + int(sizes.max()) + 1), PAD, dtype=np.int64)
    rows[:, :first] = begin
    places = np.arange(rows.shape[1] - first)
    # The index of each token in the corpus: the start of its sentence plus its position in the sentence.
    found = np.arange(int(sizes.sum())) + np.repeat(starts - (np.cumsum(sizes) - sizes), sizes)
    rows[:, first:][places < sizes[:, None]] = side.tokens[found]
    rows[np.arange(len(numbers)), first + sizes] = EOS
    return rows


def plan_epoch(
    source_lengths: Lengths, target_lengths: Lengths, step_tokens: int, seed: int, epoch: int
) -> list[NDArray[np.int64]]:
    """The updates of one epoch: arrays of pair indices with about `step_tokens` target tokens each.

    Each update is a random sample of the corpus, sorted by length so that its micro-batches need little padding. A last
    update of less than half the size is dropped.
    """
    order = np.random.default_rng([seed, epoch]).permutation(len(target_lengths))
    updates = split_by_tokens(order, target_lengths[order] + 2, step_tokens)
    if len(updates) > 1 and int((target_lengths[updates[-1]] + 2).sum()) < step_tokens / 2:
        updates.pop()
    return [sort_by_length(update, source_lengths, target_lengths) for update in updates]


def sort_by_length(indices: NDArray[np.int64], source_lengths: Lengths, target_lengths: Lengths) -> NDArray[np.int64]:
    """The same pair indices, shortest pairs first."""
    return indices[np.lexsort((source_lengths[indices], target_lengths[indices]))]


def split_by_tokens(order: NDArray[np.int64], tokens: Lengths, limit: int) -> list[NDArray[np.int64]]:
    """Split `order` where the running sum of `tokens` passes a multiple of `limit`.

    >>> [update.tolist() for update in split_by_tokens(np.arange(5), np.array([3, 3, 3, 3, 3]), 6)]
    [[0, 1], [2, 3], [4]]
    """
    numbers = (np.cumsum(tokens, dtype=np.int64) - 1) // limit
    return np.split(order, np.flatnonzero(np.diff(numbers)) + 1)


def cut_rows(batch: Batch, token_limit: int) -> list[MicroBatch]:
    """Cut a batch, sorted by length, into micro-batches whose rows times longest side stay within the limit."""
    source, target = row_lengths(batch.source), row_lengths(batch.target)
    micro_batches: list[MicroBatch] = []
    start, source_width, target_width = 0, 0, 0
    for row, (source_length, target_length) in enumerate(zip(source, target, strict=True)):
        wider = max(source_width, source_length), max(target_width, target_length)
        if row > start and (row - start + 1) * max(wider) > token_limit:
            micro_batches.append(MicroBatch(slice(start, row), source_width, target_width))
            start, wider = row, (source_length, target_length)
        source_width, target_width = wider
    return [*micro_batches, MicroBatch(slice(start, len(source)), source_width, target_width)]


def deal_rows(batch: Batch, rank: int, size: int, cut: Callable[[Batch], list[MicroBatch]]) -> list[MicroBatch]:
    """The micro-batches of one rank: every size-th row of the update, cut by `cut`.

    The rows are sorted by length, so taking every size-th gives all ranks the same mix of short and long sentences.
    """
    own = Batch(batch.source[rank::size], batch.target[rank::size])
    if len(own.source) == 0:  # more ranks than rows
        return []
    # Row i of this rank is row rank + i * size of the batch.
    return [
        MicroBatch(slice(rank + rows.start * size, rows.stop * size, (rows.step or 1) * size), *widths)
        for rows, *widths in cut(own)
    ]
