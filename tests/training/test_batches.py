"""Which sentences meet in an update, and how it is cut."""

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
    assert missing < size / 2  # at most a small last update is left out
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
def test_parts_cover_a_batch_in_order_and_keep_the_limit(lengths: np.ndarray, limit: int) -> None:
    rows = [[7] * n for n in sorted(lengths.tolist())]
    batch = Batch(pad(rows), pad(rows))
    parts = cut_rows(batch, limit)
    assert [row for part in parts for row in range(part.rows.start, part.rows.stop)] == list(range(len(rows)))
    for part in parts:
        widest = max(len(row) for row in rows[part.rows])
        assert part.source_width == part.target_width == widest
        assert (part.rows.stop - part.rows.start) * widest <= limit


@given(LENGTHS, st.integers(42, 300), st.integers(1, 5))
def test_dealt_rows_are_everyones_once_and_about_as_much_for_each(lengths: np.ndarray, limit: int, size: int) -> None:
    rows = [[7] * n for n in sorted(lengths.tolist())]
    batch = Batch(pad(rows), pad(rows))
    hands = [deal_rows(batch, rank, size, lambda own: cut_rows(own, limit)) for rank in range(size)]
    taken = [[row for part in parts for row in range(len(rows))[part.rows]] for parts in hands]
    assert sorted(row for hand in taken for row in hand) == list(range(len(rows)))
    tokens = [sum(len(rows[row]) for row in hand) for hand in taken]
    assert max(tokens) - min(tokens) <= len(rows[-1])  # sorted rows, dealt in turn: never more than one apart
    for parts in hands:
        for part in parts:
            widest = max(len(row) for row in rows[part.rows])
            assert part.source_width == part.target_width == widest
            assert len(rows[part.rows]) * widest <= limit
    if size == 1:
        assert [rows[part.rows] for part in hands[0]] == [rows[part.rows] for part in cut_rows(batch, limit)]


def test_split_by_tokens_follows_the_running_sum() -> None:
    parts = split_by_tokens(np.arange(4), np.array([10, 1, 1, 10]), 5)
    assert [part.tolist() for part in parts] == [[0], [1, 2], [3]]


def test_pad_fills_on_the_right() -> None:
    assert pad([[7, 8], [9]]).tolist() == [[7, 8], [9, PAD]]
    assert pad([[7]]).dtype == torch.int64
    with pytest.raises(ValueError, match="empty"):
        pad([])
