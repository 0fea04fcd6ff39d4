"""The packed training step, exact twin of `training.step.PlainEngine`: the same loss and gradient, faster on a GPU.

The sentences of an update lie end to end in arrays of one fixed size, so the network is compiled once. On a GPU the
whole step, forward and backward, is recorded as a CUDA graph in the first update and replayed afterwards.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from lath.config import Recipe
from lath.engine.graphs import Recording, tensors_of
from lath.engine.packed import PackedExamples, PackSizes, pack_examples, packed_loss_share
from lath.errors import UserError
from lath.model.flops import peak_flops, update_flops
from lath.model.network import Model
from lath.model.padding import row_lengths
from lath.text.corpus import Corpus
from lath.training.batches import Batch, MicroBatch
from lath.training.objective import Examples, Losses, Totals, most_deleted, most_inserted
from lath.training.step import autocast, backward

CHUNK_LOGITS = 1 << 27
"""Logits in memory at any time, at most: a quarter of a gigabyte in bf16."""
ROOM_FOR_SOURCE, ROOM_FOR_SENTENCES = 1.04, 1.08
"""Array sizes relative to the mean of the corpus: few updates need more, and little space is left empty."""
ROOM_FOR_INSERTIONS = 0.01
"""Additional share for inserted masks: several standard deviations over a whole update."""


class PackedEngine:
    """Packed micro-batches of one fixed size, and a network compiled for that size."""

    def __init__(self, model: Model, recipe: Recipe, device: torch.device, corpus: Corpus, ranks: int) -> None:
        self.model, self.recipe, self.device = model, recipe, device
        self.sizes, self.ranks = pack_sizes(corpus, recipe, ranks), ranks
        self.chunk_rows = max(1, CHUNK_LOGITS // len(model.body.output_table.weight))
        self._compiled = torch.compile(self._share, dynamic=False)
        self._recorded: Recording[Losses] | None = None
        self._inputs: tuple[PackedExamples, Totals] | None = None

    def cut(self, batch: Batch) -> list[MicroBatch]:
        """As few micro-batches as the array sizes allow."""
        sizes = self.sizes
        spare = math.ceil(max(sizes.source, sizes.target) / sizes.longest)
        return cut_packed(batch, sizes.source, sizes.target, sizes.sentences - spare)

    def positions(self, micro_batch: MicroBatch) -> int:
        """The fixed size of the target array."""
        return self.sizes.target

    def ideal_seconds(self, batch: Batch) -> float:
        """From an estimate of its operations, on GPUs whose peak in bf16 is known."""
        lengths = np.array(row_lengths(batch.source)), np.array(row_lengths(batch.target))
        peak = peak_flops(self.device, self.ranks)
        return update_flops(self.recipe.network, self.model.body.target_size, *lengths) / peak if peak else 0.0

    def learn(self, examples: Examples, totals: Totals) -> Losses:
        """Forward and backward; on a GPU recorded once and replayed."""
        if examples.spare and not self.recipe.objective.insertion_rate:
            raise UserError(
                "objective: its decoder inputs may be longer than their targets, and the packed engine has no room for "
                "that; set train.engine=plain"
            )
        inputs = pack_examples(examples, self.sizes, self.recipe.network.kind), totals
        if self.device.type != "cuda":
            return self._learn(*inputs)
        if self._recorded is None:
            self._inputs = inputs  # the recording reads these tensors; later micro-batches are copied into them
            self._learn(*inputs)  # compiles
            torch.cuda.empty_cache()  # the recording allocates as much again, in its own pool
            self._recorded = Recording(lambda: self._learn(*inputs))
            torch.cuda.empty_cache()
            self.model.zero_grad(set_to_none=False)  # the warm-up added to the gradients
        torch._foreach_copy_(tensors_of(self._inputs), tensors_of(inputs))
        losses = self._recorded.replay()
        return Losses(losses.token.clone(), losses.length.clone())

    def _learn(self, packed: PackedExamples, totals: Totals) -> Losses:
        losses: Losses = self._compiled(packed, totals)
        return backward(losses)

    def _share(self, packed: PackedExamples, totals: Totals) -> Losses:
        with autocast(self.recipe, self.device):
            return packed_loss_share(self.model, packed, totals, self.recipe.objective, self.chunk_rows)


def cut_packed(batch: Batch, source_limit: int, target_limit: int, sentence_limit: int) -> list[MicroBatch]:
    """Cut a batch into as few micro-batches as keep the limits when their sentences lie end to end.

    The rows are sorted by length, so taking every n-th gives each micro-batch the same mix of short and long sentences.
    """
    source, target = np.array(row_lengths(batch.source)), np.array(row_lengths(batch.target))
    for count in range(1, len(source) + 1):
        cuts = [slice(first, len(source), count) for first in range(count)]
        if all(
            source[rows].sum() <= source_limit
            and target[rows].sum() <= target_limit
            and len(source[rows]) <= sentence_limit
            for rows in cuts
        ):
            return [MicroBatch(rows, int(source[rows].max()), int(target[rows].max())) for rows in cuts]
    raise AssertionError("the arrays must have room for the longest sentence")


def pack_sizes(corpus: Corpus, recipe: Recipe, ranks: int) -> PackSizes:
    """Array sizes for a rank's share of an update, evenly divided if it exceeds `train.micro_batch_tokens`."""
    source_tokens = int(corpus.source_lengths.sum()) + len(corpus)
    target_tokens = int(corpus.target_lengths.sum()) + 2 * len(corpus)
    longest = max(int(corpus.source_lengths.max()), int(corpus.target_lengths.max())) + 2
    share = recipe.train.step_tokens / ranks
    micro_batches = math.ceil(share / recipe.train.micro_batch_tokens)
    positions = share / micro_batches * (1 + _growth(corpus, recipe))
    target = _rounded(positions + 2 * longest)  # updates, and micro-batches of one, differ by about a sentence
    source = _rounded(target * source_tokens / target_tokens * ROOM_FOR_SOURCE + longest)
    sentences = math.ceil(ROOM_FOR_SENTENCES * target * len(corpus) / target_tokens) + 1
    # Unused positions at the end belong to empty sentences; leave room for as many as that can take.
    return PackSizes(source, target, sentences + math.ceil(max(source, target) / longest), longest)


def _growth(corpus: Corpus, recipe: Recipe) -> float:
    """How much longer decoder inputs are than their targets, as a share: inserted masks less deleted words."""
    objective = recipe.objective
    if recipe.network.kind != "LAT" or objective.insertion_rate == 0:
        return 0.0
    lengths = torch.as_tensor(corpus.target_lengths) + 2
    inserted, deleted = most_inserted(lengths, objective.insertion_rate), most_deleted(lengths, objective).clamp(min=0)
    # Both numbers are uniform between 0 and the maximum, so the mean is half the maximum.
    return max(0.0, float((inserted - deleted).sum() / 2 / lengths.sum())) + ROOM_FOR_INSERTIONS


def _rounded(size: float) -> int:
    """Rounded up to a multiple of 64, which suits the matrix units of a GPU."""
    return math.ceil(size / 64) * 64
