"""The batched merger gives what the plain one gives, sentence by sentence."""

from __future__ import annotations

import dataclasses
import itertools
import random

import merge_cases
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from merge_cases import EVERY_SWITCH, OFFICIAL, PAPER, Case, Expected, differences, plain, told

from lath.config import MergeRules
from lath.decoding.merge import longest_common_subsequence
from lath.engine.merge_batch import TABLE_LENGTH, MergeStep, _align, _plan, merge_batch
from lath.text.vocab import BOS, EOS, MASK, PAD

RECORDED = {case.name: (case, expected) for case, expected in merge_cases.recorded_cases()}


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_outputs(name: str) -> None:
    case, expected = RECORDED[name]
    assert differences(case, merge_batch, expected) == []


def test_most_recorded_entries_are_compared() -> None:
    entries = [entry for case in merge_cases.recorded("") for entry in case["intermediate"]]
    assert sum(len(expected) for _, expected in RECORDED.values()) > 0.98 * len(entries)


@pytest.mark.parametrize("rules", EVERY_SWITCH, ids=str)
def test_recorded_pieces_under_every_rule(rules: MergeRules) -> None:
    assert [line for case in merge_cases.recorded_merges(rules) for line in differences(case, merge_batch)] == []


def test_every_rule_is_met_at_two_values() -> None:
    for field in dataclasses.fields(MergeRules):
        assert len({getattr(rules, field.name) for rules in EVERY_SWITCH}) > 1, field.name


@pytest.mark.parametrize("block", range(8))
def test_random_batches(block: int) -> None:
    cases = [merge_cases.random_case(seed, 8, 14, 8) for seed in range(60 * block, 60 * (block + 1))]
    assert [line for case in cases for line in differences(case, merge_batch, extra=block % 3)] == []


@st.composite
def batches(draw: st.DrawFn) -> Case:
    """A ragged batch that hypothesis can make smaller."""
    length = draw(st.integers(2, 4))
    token = st.tuples(st.sampled_from([10, 11, 12, EOS, BOS, MASK]), st.sampled_from([-0.25, -0.5, -1.5, -2.0]))
    piece = st.lists(token, min_size=length, max_size=length)
    sentences = draw(st.lists(st.lists(piece, min_size=1, max_size=6), min_size=1, max_size=3))
    return Case(
        "drawn",
        [[[id for id, _ in piece] for piece in sentence] for sentence in sentences],
        [[[score for _, score in piece] for piece in sentence] for sentence in sentences],
        [draw(st.integers(2, 12)) for _ in sentences],
        MergeStep(draw(st.sampled_from(EVERY_SWITCH)), draw(st.integers(1, 3)), 3, draw(st.sampled_from([2, 5, 30]))),
    )


@given(batches())
def test_any_batch(case: Case) -> None:
    assert differences(case, merge_batch) == []


@pytest.mark.parametrize("rules", [OFFICIAL, PAPER], ids=["official", "paper"])
@pytest.mark.parametrize(("count", "length"), [(256, 3), (160, 6), (40, 8)])
def test_long_sentences(rules: MergeRules, count: int, length: int) -> None:
    made = [merge_cases.noisy_truth(random.Random(seed), count - 9 * seed, length) for seed in range(4)]
    step = MergeStep(rules, 1, 4, 512)
    aims = [count - 9 * seed for seed in range(4)]
    assert differences(Case("long", [p for p, _ in made], [s for _, s in made], aims, step), merge_batch) == []


def test_a_sentence_does_not_see_its_neighbours() -> None:
    case = merge_cases.random_case(11, 8, 14)
    together = told(merge_batch(*case.tensors(extra=2), case.step))
    for row, expected in enumerate(together):
        rows = slice(row, row + 1)
        alone = dataclasses.replace(case, pieces=case.pieces[rows], scores=case.scores[rows], aims=case.aims[rows])
        assert told(merge_batch(*alone.tensors(), case.step)) == [expected]


def test_a_sentence_without_pieces_is_empty() -> None:
    pieces = [[[10, 11], [11, 12]], []]
    case = Case("one empty", pieces, [[[-1.0, -1.0], [-1.0, -1.0]], []], [2, 2], MergeStep(OFFICIAL, 1, 2, 9))
    assert told(merge_batch(*case.tensors(), case.step))[1] == Expected([BOS, EOS], [0.0, 0.0], [BOS, EOS])
    assert differences(case, merge_batch) == []


def test_nothing_at_all() -> None:
    tokens, lengths = torch.zeros(2, 3, 3, dtype=torch.long), torch.zeros(2, dtype=torch.long)
    merged = merge_batch(tokens, tokens.float(), lengths, lengths, MergeStep(OFFICIAL, 1, 2, 4))
    assert told(merged) == [Expected([BOS, EOS], [0.0, 0.0], [BOS, EOS])] * 2


def test_shapes_and_types_are_known_beforehand() -> None:
    tokens, scores, lengths, aims = merge_cases.random_case(2, 4, 6, 3).tensors()
    batch, width, length = tokens.shape
    for kind in (torch.int32, torch.int64):
        merged = merge_batch(tokens.to(kind), scores, lengths, aims, MergeStep(OFFICIAL, 1, 2, 7))
        assert merged.ids.shape == merged.scores.shape == (batch, width * length + 2)
        assert merged.next_ids.shape == (batch, 7)
        assert {merged.ids.dtype, merged.lengths.dtype, merged.next_ids.dtype, merged.next_lengths.dtype} == {kind}
        assert merged.scores.dtype == scores.dtype


def test_the_last_pass_has_no_next_input() -> None:
    case = dataclasses.replace(merge_cases.random_case(7), step=MergeStep(OFFICIAL, 3, 3, 8))
    merged = merge_batch(*case.tensors(), case.step)
    assert (merged.next_ids == PAD).all()
    assert (merged.next_lengths == 0).all()
    assert told(merged) == plain(case)


@pytest.mark.parametrize("length", range(1, TABLE_LENGTH + 1))
def test_the_table_of_plans_holds_every_pattern(length: int) -> None:
    patterns = np.array(list(itertools.product([False, True], repeat=length * length))).reshape(-1, length, length)
    for kept, made in zip(_plan(patterns), _align(patterns), strict=True):
        assert (kept == made).all()


@given(st.lists(st.integers(10, 12), min_size=5, max_size=5), st.lists(st.integers(10, 12), min_size=5, max_size=5))
def test_plans_match_what_the_plain_version_matches(tail: list[int], head: list[int]) -> None:
    plan = _align(np.array(tail)[None, :, None] == np.array(head)[None, None, :])
    pairs = [(i, j - 5) for i, j in zip(plan.order[0].tolist(), plan.mates[0].tolist(), strict=True) if j < 10]
    assert pairs == longest_common_subsequence(tail, head)
