"""The merge kernel gives what the plain merger gives. Skipped where there is no GPU."""

from __future__ import annotations

import dataclasses
import random

import merge_cases
import pytest
import torch
from merge_cases import EVERY_SWITCH, OFFICIAL, PAPER, Case
from torch import Tensor

from lath.config import MergeRules
from lath.decoding.pieces import MergeStep
from lath.engine.merge_kernel import MergedBatch, available, merge_on_device, merge_plainly
from lath.text.vocab import BOS, EOS, MASK, PAD

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here"),
    pytest.mark.skipif(not available(), reason="Triton is not installed"),
]

SENTENCES, PIECES = 400, 16
"""Of each random batch."""


def on_the_gpu(tokens: Tensor, scores: Tensor, lengths: Tensor, step: MergeStep) -> MergedBatch:
    """The kernel on tensors of the CPU."""
    return _on_the_cpu(merge_on_device(tokens.cuda(), scores.cuda(), lengths.cuda(), step))


def _on_the_cpu(merged: MergedBatch) -> MergedBatch:
    return MergedBatch(*(tensor.cpu() for tensor in merged))


def test_recorded_outputs() -> None:
    found = [line for case, e in merge_cases.recorded_cases() for line in merge_cases.differences(case, on_the_gpu, e)]
    assert found == []


@pytest.mark.parametrize("rules", [OFFICIAL, PAPER], ids=["official", "paper"])
def test_recorded_pieces_under_both_rule_sets(rules: MergeRules) -> None:
    cases = merge_cases.recorded_merges(rules)
    assert [line for case in cases for line in merge_cases.differences(case, on_the_gpu)] == []


@pytest.mark.parametrize(("rules", "length"), [*zip(EVERY_SWITCH, (3, 3, 2, 4, 5, 6), strict=True)])
def test_random_batches(rules: MergeRules, length: int) -> None:
    """Every pass and limit, 400 sentences each: 28,800 with the other rules."""
    generator = torch.Generator().manual_seed(length)
    for number in range(12):
        step = MergeStep(rules, 1 + number % 4, 4, (4, 24, PIECES * length)[number % 3])
        tensors = _random_pieces(SENTENCES, length, generator)
        expected = merge_plainly(*tensors, step)
        for name, one, other in zip(expected._fields, expected, on_the_gpu(*tensors, step), strict=True):
            assert torch.equal(one, other), (name, number)


def _random_pieces(count: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Windows of sentences with few words, some tokens wrong: overlaps, repeats and ties everywhere."""

    def draw(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, generator=generator)

    words = draw(10, 15, count, PIECES + length)
    windows = words.unfold(1, length, 1)[:, :PIECES]
    special = torch.tensor([BOS, EOS, MASK, PAD, EOS])[draw(0, 5, *windows.shape)]
    fate = draw(0, 100, *windows.shape)
    tokens = torch.where(fate < 80, windows, torch.where(fate < 90, draw(10, 15, *windows.shape), special))
    scores = torch.where(
        draw(0, 2, count, 1, 1) == 0,
        draw(-16, 0, *windows.shape) / 8,
        -torch.rand(windows.shape, generator=generator) * 3,
    )
    return tokens, scores, draw(1, PIECES + 1, count)


@pytest.mark.parametrize(("count", "length"), [(160, 3), (256, 6)])
def test_long_sentences(count: int, length: int) -> None:
    made = [merge_cases.noisy_truth(random.Random(seed), count - 7 * seed, length) for seed in range(4)]
    case = Case("long", [p for p, _ in made], [s for _, s in made], MergeStep(OFFICIAL, 1, 4, 512))
    assert merge_cases.differences(case, on_the_gpu) == []
    assert merge_cases.differences(dataclasses.replace(case, step=MergeStep(PAPER, 2, 4, 512)), on_the_gpu) == []


def test_in_a_cuda_graph() -> None:
    """Captured once, it merges whatever stands in its buffers."""
    step = MergeStep(OFFICIAL, 1, 2, 40)
    first, second = (_random_pieces(4, 3, torch.Generator().manual_seed(seed)) for seed in (1, 2))
    buffers = [tensor.cuda() for tensor in first]
    merge_on_device(*buffers, step)  # compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = merge_on_device(*buffers, step)
    for given in (first, second):
        for buffer, tensor in zip(buffers, given, strict=True):
            buffer.copy_(tensor)
        graph.replay()
        assert merge_cases.told(_on_the_cpu(out)) == merge_cases.told(merge_plainly(*given, step))
