"""How the loss of an update is computed: plainly, or packed and compiled.

    PlainEngine   padded micro-batches, run eagerly: works everywhere, and is the oracle
    PackedEngine  sentences end to end in arrays of one fixed size, the network compiled once for all of them

Both cut an update into parts and learn from each its share of the loss; shares add up to the same loss and gradient
(`tests/test_packed.py`), so the choice changes the speed alone. On a GPU the packed step, forward and backward, is
recorded as a CUDA graph after the first update.
"""

from __future__ import annotations

import math

import torch

from lath.config import Recipe
from lath.engine.graphs import Recording, tensors_of
from lath.engine.packed import PackedExamples, PackSizes, pack_examples, packed_loss_share
from lath.model.network import Model
from lath.text.corpus import Corpus
from lath.training.batches import Batch, Part, cut_packs, cut_rows
from lath.training.objective import Examples, LossParts, Totals, loss_share, most_deleted, most_inserted

CHUNK_LOGITS = 1 << 27
"""Logits in memory at a time, at most: a quarter of a gigabyte in bf16."""
ROOM_FOR_SOURCE, ROOM_FOR_SENTENCES = 1.04, 1.08
"""What a pack holds for each that the corpus's mean asks for: few updates need more, and little is left over."""
ROOM_FOR_INSERTIONS = 0.01
"""What a pack holds beyond the mean where masks are inserted: several standard deviations of a whole update."""


class PlainEngine:
    """Padded micro-batches, run eagerly."""

    def __init__(self, model: Model, recipe: Recipe, device: torch.device) -> None:
        self.model, self.recipe, self.device = model, recipe, device

    def cut(self, batch: Batch) -> list[Part]:
        """The micro-batches of an update whose rows are sorted by length."""
        return cut_rows(batch, self.recipe.train.micro_batch_tokens)

    def positions(self, part: Part) -> int:
        """Decoder positions computed for a part, padding included."""
        return part.positions

    def learn(self, examples: Examples, totals: Totals) -> LossParts:
        """The share of the update's loss that some of its examples make; its gradient is added to the model's."""
        with autocast(self.recipe, self.device):
            share = loss_share(self.model, examples, totals, self.recipe.objective)
        return _backward(share)


class PackedEngine:
    """Packs of one fixed size, and a network compiled for that size."""

    def __init__(self, model: Model, recipe: Recipe, device: torch.device, corpus: Corpus, ranks: int) -> None:
        self.model, self.recipe, self.device = model, recipe, device
        self.sizes = pack_sizes(corpus, recipe, ranks)
        self.chunk_rows = max(1, CHUNK_LOGITS // len(model.body.output_matrix))
        self._compiled = torch.compile(self._share, dynamic=False)
        self._recorded: Recording[LossParts] | None = None
        self._inputs: tuple[PackedExamples, Totals] | None = None

    def cut(self, batch: Batch) -> list[Part]:
        """The packs of an update, as few as hold it."""
        sizes = self.sizes
        spare = math.ceil(max(sizes.source, sizes.target) / sizes.longest)
        return cut_packs(batch, sizes.source, sizes.target, sizes.sentences - spare)

    def positions(self, part: Part) -> int:
        """Decoder positions computed for a part, padding included."""
        return self.sizes.target

    def learn(self, examples: Examples, totals: Totals) -> LossParts:
        """The share of the update's loss that some of its examples make; its gradient is added to the model's."""
        inputs = pack_examples(examples, self.sizes, self.recipe.network.kind), totals
        if self.device.type != "cuda":
            return self._learn(*inputs)
        if self._recorded is None:
            self._inputs = inputs  # these tensors stay; later packs are copied into them
            self._learn(*inputs)  # compiles
            torch.cuda.empty_cache()  # the recording takes as much again, in a pool of its own
            self._recorded = Recording(lambda: self._learn(*inputs))
            torch.cuda.empty_cache()
            self.model.zero_grad(set_to_none=False)  # of what the warm-up added
        torch._foreach_copy_(tensors_of(self._inputs), tensors_of(inputs))
        share = self._recorded.replay()
        return LossParts(share.token.clone(), share.length.clone())

    def _learn(self, packed: PackedExamples, totals: Totals) -> LossParts:
        shares: LossParts = self._compiled(packed, totals)
        return _backward(shares)

    def _share(self, packed: PackedExamples, totals: Totals) -> LossParts:
        with autocast(self.recipe, self.device):
            return packed_loss_share(self.model, packed, totals, self.recipe.objective, self.chunk_rows)


def _backward(share: LossParts) -> LossParts:
    share.total.backward()  # type: ignore[no-untyped-call]
    return LossParts(share.token.detach(), share.length.detach())


Engine = PlainEngine | PackedEngine


def choose_engine(model: Model, recipe: Recipe, device: torch.device, corpus: Corpus, ranks: int) -> Engine:
    """The engine that `train.engine` asks for; `auto` packs on a GPU in bf16."""
    packed = recipe.train.engine == "packed"
    if recipe.train.engine == "auto":
        packed = device.type == "cuda" and recipe.train.precision == "bf16"
    return PackedEngine(model, recipe, device, corpus, ranks) if packed else PlainEngine(model, recipe, device)


def pack_sizes(corpus: Corpus, recipe: Recipe, ranks: int) -> PackSizes:
    """Room for a rank's share of an update, or an even part of it of at most about `train.micro_batch_tokens`."""
    source_tokens = int(corpus.source_lengths.sum()) + len(corpus)
    target_tokens = int(corpus.target_lengths.sum()) + 2 * len(corpus)
    longest = max(int(corpus.source_lengths.max()), int(corpus.target_lengths.max())) + 2
    share = recipe.train.step_tokens / ranks
    packs = math.ceil(share / recipe.train.micro_batch_tokens)
    positions = share / packs * (1 + _growth(corpus, recipe))
    target = _rounded(positions + 2 * longest)  # updates, and the parts of one, differ by about a sentence
    source = _rounded(target * source_tokens / target_tokens * ROOM_FOR_SOURCE + longest)
    sentences = math.ceil(ROOM_FOR_SENTENCES * target * len(corpus) / target_tokens) + 1
    # Behind the sentences come as many empty ones as it takes to hold every leftover token.
    return PackSizes(source, target, sentences + math.ceil(max(source, target) / longest), longest)


def _growth(corpus: Corpus, recipe: Recipe) -> float:
    """The share by which decoder inputs outgrow their targets: masks inserted less words deleted, and some room."""
    objective = recipe.objective
    if recipe.network.kind != "LAT" or objective.insertion_rate == 0:
        return 0.0
    lengths = torch.as_tensor(corpus.target_lengths) + 2
    inserted, deleted = most_inserted(lengths, objective.insertion_rate), most_deleted(lengths, objective).clamp(min=0)
    # Both are drawn evenly from none to the most.
    return max(0.0, float((inserted - deleted).sum() / 2 / lengths.sum())) + ROOM_FOR_INSERTIONS


def _rounded(size: float) -> int:
    """Up to a multiple of 64, which matrix units like."""
    return math.ceil(size / 64) * 64


def autocast(recipe: Recipe, device: torch.device) -> torch.autocast:
    """bf16 where the recipe asks for it."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=recipe.train.precision == "bf16")
