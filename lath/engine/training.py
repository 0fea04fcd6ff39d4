"""The packed training step, exact twin of `training.step.PlainEngine`: the same loss and gradient, faster on a GPU.

The sentences of an update lie end to end in arrays of one fixed size, so the network is compiled once. On a GPU the
whole step, forward and backward, is recorded as a CUDA graph in the first update and replayed afterwards.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from lath.config import Recipe
from lath.engine.graphs import RecordedCall
from lath.engine.packed import (
    PackedExamples,
    PackSizes,
    pack_examples,
    packed_first_tokens,
    packed_loss_share,
    unpack_rows,
)
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
        self.glancing_sizes = glancing_sizes(corpus, recipe)
        self.chunk_rows = max(1, CHUNK_LOGITS // len(model.body.output_table.weight))
        self._share = torch.compile(self._packed_share, dynamic=False)
        self._first = torch.compile(self._packed_first, dynamic=False)
        self._step = RecordedCall(self._learn, device)
        self._glance: RecordedCall[PackedExamples, Tensor] = RecordedCall(lambda packed: self._first(packed), device)

    def cut(self, batch: Batch) -> list[MicroBatch]:
        """As few micro-batches as the array sizes allow."""
        return cut_packed(batch, self.sizes)

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
        packed = pack_examples(examples, self.sizes, self.recipe.network.kind)
        # The runs before the recording add to the gradients.
        losses = self._step((packed, totals), after_recording=lambda: self.model.zero_grad(set_to_none=False))
        return Losses(losses.token.clone(), losses.length.clone())

    @torch.no_grad()
    def predict_first(self, batch: Batch, decoder_input: Tensor) -> Tensor:
        """Packed micro-batches in arrays of their own size, recorded like a step."""
        predicted = torch.zeros_like(decoder_input)
        source = batch.source.to(self.device)
        for rows, source_width, target_width in cut_packed(batch, self.glancing_sizes):
            shown = decoder_input[rows, :target_width]
            nothing, lengths = shown.new_zeros(*shown.shape, 1), shown.new_zeros(len(shown))
            examples = Examples(source[rows, :source_width], shown, nothing, nothing, lengths)
            packed = pack_examples(examples, self.glancing_sizes, self.recipe.network.kind)
            predicted[rows, :target_width] = unpack_rows(self._glance(packed), packed.decoder_input.bounds, shown)
        return predicted

    def _learn(self, inputs: tuple[PackedExamples, Totals]) -> Losses:
        losses: Losses = self._share(*inputs)
        return backward(losses)

    def _packed_share(self, packed: PackedExamples, totals: Totals) -> Losses:
        with autocast(self.recipe, self.device):
            return packed_loss_share(self.model, packed, totals, self.recipe.objective, self.chunk_rows)

    def _packed_first(self, packed: PackedExamples) -> Tensor:
        with autocast(self.recipe, self.device):
            return packed_first_tokens(self.model, packed, self.chunk_rows)


def cut_packed(batch: Batch, sizes: PackSizes) -> list[MicroBatch]:
    """Cut a batch into as few micro-batches as fit the arrays when their sentences lie end to end.

    The rows are sorted by length, so taking every n-th gives each micro-batch the same mix of short and long sentences.
    """
    source, target = np.array(row_lengths(batch.source)), np.array(row_lengths(batch.target))
    sentences = sizes.sentences - math.ceil(max(sizes.source, sizes.target) / sizes.longest)
    for count in range(1, len(source) + 1):
        cuts = [slice(first, len(source), count) for first in range(count)]
        if all(
            source[rows].sum() <= sizes.source and target[rows].sum() <= sizes.target and len(source[rows]) <= sentences
            for rows in cuts
        ):
            return [MicroBatch(rows, int(source[rows].max()), int(target[rows].max())) for rows in cuts]
    raise AssertionError("the arrays must have room for the longest sentence")


def pack_sizes(corpus: Corpus, recipe: Recipe, ranks: int) -> PackSizes:
    """Array sizes for a rank's share of an update, evenly divided if it exceeds `train.micro_batch_tokens`."""
    return _sizes(corpus, recipe, recipe.train.step_tokens / ranks, 1 + _growth(corpus, recipe))


def glancing_sizes(corpus: Corpus, recipe: Recipe) -> PackSizes:
    """The same for the sentences of an update that glance. Every rank glances at all of them."""
    return _sizes(corpus, recipe, recipe.train.step_tokens * max(recipe.objective.glancing_share, 0.01), 1.0)


def _sizes(corpus: Corpus, recipe: Recipe, tokens: float, growth: float) -> PackSizes:
    source_tokens = int(corpus.source.lengths.sum()) + len(corpus)
    target_tokens = int(corpus.target.lengths.sum()) + 2 * len(corpus)
    longest = max(int(corpus.source.lengths.max()), int(corpus.target.lengths.max())) + 2
    positions = tokens / math.ceil(tokens / recipe.train.micro_batch_tokens) * growth
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
    lengths = torch.as_tensor(corpus.target.lengths) + 2
    inserted, deleted = most_inserted(lengths, objective.insertion_rate), most_deleted(lengths, objective).clamp(min=0)
    # Both numbers are uniform between 0 and the maximum, so the mean is half the maximum.
    return max(0.0, float((inserted - deleted).sum() / 2 / lengths.sum())) + ROOM_FOR_INSERTIONS


def _rounded(size: float) -> int:
    """Rounded up to a multiple of 64, which suits the matrix units of a GPU."""
    return math.ceil(size / 64) * 64
