"""Which sentences form an update, and its micro-batches."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lath.model.padding import pad
from lath.text.vocab import PAD
from lath.training.batches import Batch, cut_rows, deal_rows, plan_epoch, split_by_tokens

LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=200).map(np.array)


@given(LENGTHS, st.integers(50, 400))
def test_an_epoch_holds_each_pair_at_most_once_and_updates_are_near_their_size(lengths: np.ndarray, size: int) -> None:
    updates = plan_epoch(lengths, lengths, size, seed=1, epoch=0)
    taken = np.concatenate(updates)
    assert len(set(taken.tolist())) == len(taken)
    tokens = [int((lengths[update] + 2).sum()) for update in updates]
    assert all(count <= size + 2 * 42 for count in tokens)
    missing = int((lengths + 2).sum()) - sum(tokens)
    assert missing < size / 2  # at most a small last update is dropped
    for update in updates:
        assert (np.diff(lengths[update]) >= 0).all(), "an update is sorted by length"


def test_order_depends_on_seed_and_epoch_alone() -> None:
    lengths = np.arange(500) % 23 + 1

    def plan(seed: int, epoch: int) -> list[list[int]]:
        return [update.tolist() for update in plan_epoch(lengths, lengths, 300, seed, epoch)]

    assert plan(1, 0) == plan(1, 0)
    assert plan(1, 0) != plan(1, 1)
    assert plan(1, 0) != plan(2, 0)


def test_updates_mix_lengths() -> None:
    lengths = np.arange(2000) % 40 + 1
    updates = plan_epoch(lengths, lengths, 2000, seed=1, epoch=0)
    spreads = [lengths[update].max() - lengths[update].min() for update in updates]
    assert np.median(spreads) > 15


@given(LENGTHS, st.integers(42, 300))
def test_micro_batches_cover_a_batch_in_order_and_keep_the_limit(lengths: np.ndarray, limit: int) -> None:
    rows = [[7] * n for n in sorted(lengths.tolist())]
    batch = Batch(pad(rows), pad(rows))
    micro_batches = cut_rows(batch, limit)
    assert [row for micro in micro_batches for row in range(micro.rows.start, micro.rows.stop)] == list(
        range(len(rows))
    )
    for micro in micro_batches:
        widest = max(len(row) for row in rows[micro.rows])
        assert micro.source_width == micro.target_width == widest
        assert (micro.rows.stop - micro.rows.start) * widest <= limit


@given(LENGTHS, st.integers(42, 300), st.integers(1, 5))
def test_every_row_goes_to_one_rank_and_ranks_get_equal_work(lengths: np.ndarray, limit: int, size: int) -> None:
    rows = [[7] * n for n in sorted(lengths.tolist())]
    batch = Batch(pad(rows), pad(rows))
    ranks = [deal_rows(batch, rank, size, lambda own: cut_rows(own, limit)) for rank in range(size)]
    taken = [[row for micro in own for row in range(len(rows))[micro.rows]] for own in ranks]
    assert sorted(row for own in taken for row in own) == list(range(len(rows)))
    tokens = [sum(len(rows[row]) for row in own) for own in taken]
    assert max(tokens) - min(tokens) <= len(rows[-1])  # at most one sentence apart
    for micro in (micro for own in ranks for micro in own):
        widest = max(len(row) for row in rows[micro.rows])
        assert micro.source_width == micro.target_width == widest
        assert len(rows[micro.rows]) * widest <= limit
    if size == 1:
        assert [rows[micro.rows] for micro in ranks[0]] == [rows[micro.rows] for micro in cut_rows(batch, limit)]


def test_split_by_tokens_follows_the_running_sum() -> None:
    updates = split_by_tokens(np.arange(4), np.array([10, 1, 1, 10]), 5)
    assert [update.tolist() for update in updates] == [[0], [1, 2], [3]]


def test_pad_fills_on_the_right() -> None:
    assert pad([[7, 8], [9]]).tolist() == [[7, 8], [9, PAD]]
    assert pad([[7]]).dtype == torch.int64
    with pytest.raises(ValueError, match="empty"):
        pad([])
