"""The training objective: masks, deletions, windows of targets, and the losses over them.

Follows section 2.3 of the paper and, where the paper is silent, the recorded behaviour of the authors' program.

    Draw -> objective -> Examples -> network -> loss_share

All three kinds use the same form of example, decoder positions that each predict K tokens (K = 1 for AT and CMLM), and
therefore the same loss. Examples are drawn for a whole update at once, from a generator that is passed in, so the
result does not depend on the micro-batches.

To try another objective, write a function of type `Objective` and pass it to `lath.train`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from lath.config import NetworkSettings, ObjectiveSettings, Recipe
from lath.model.network import NEVER_WRITTEN, Model
from lath.text.vocab import EOS, MASK, PAD
from lath.training.batches import Batch, MicroBatch

MASKED, VISIBLE, NO_TARGET = 1, 0, -1


@dataclass(frozen=True)
class Examples:
    """Network inputs and targets. B sentences, T decoder positions, K tokens per piece."""

    source: Tensor
    """B x S."""
    decoder_input: Tensor
    """B x T: the decoder input, padded with PAD."""
    targets: Tensor
    """B x T x K: what each position must predict; PAD on padding."""
    groups: Tensor
    """B x T x K: MASKED, VISIBLE or NO_TARGET; decides the weight of each target."""
    lengths: Tensor
    """B: the length of the whole target, including BOS and EOS, before any deletion."""
    spare: int = 0
    """How many positions a row of the decoder input may be longer than its target."""

    def to(self, device: torch.device) -> Examples:
        """The same examples on another device."""
        tensors = {name: part.to(device) for name, part in vars(self).items() if name != "spare"}
        return replace(self, **tensors)

    def rows(self, micro_batch: MicroBatch) -> Examples:
        """The sentences of a micro-batch, trimmed to their width."""
        rows, source_width, target_width = micro_batch
        width = target_width + self.spare
        return replace(
            self,
            source=self.source[rows, :source_width],
            decoder_input=self.decoder_input[rows, :width],
            targets=self.targets[rows, :width],
            groups=self.groups[rows, :width],
            lengths=self.lengths[rows],
        )


PredictFirst = Callable[[NDArray[np.int64], Tensor], Tensor]
"""From rows of the batch, and a decoder input for them as wide as the target, to the likeliest first token of each
position's piece. Runs on the step engine, without gradients and without dropout."""


@dataclass(frozen=True)
class Draw:
    """What the examples of an update are drawn from. Batch and generator are on the training device."""

    model: Model
    batch: Batch
    """The pairs of the whole update, sorted by length."""
    recipe: Recipe
    generator: torch.Generator
    step: int
    """The number of the update, counted from 1."""
    predict_first: PredictFirst


Objective = Callable[[Draw], Examples]
"""Draws the training examples of an update.

An objective may run the model, for instance to decide what to mask: it is called without gradients and without dropout.
It must take all randomness from the generator. Then every rank draws the same examples, and a resumed run continues
exactly; pass the same objective again when you resume.
"""


def default_objective(draw: Draw) -> Examples:
    """The objective of the recipe's kind: next token (AT), masked tokens (CMLM) or pieces (LAT)."""
    network, objective = draw.recipe.network, draw.recipe.objective
    glance = (lambda masked: glance_masks(draw, masked)) if objective.glancing_share else None
    return draw_examples(draw.batch, network, objective, draw.generator, glance)


def draw_examples(
    batch: Batch,
    network: NetworkSettings,
    objective: ObjectiveSettings,
    generator: torch.Generator,
    glance: Callable[[Tensor], Tensor] | None = None,
) -> Examples:
    """The training examples of a batch, drawn on its device from a generator of that device.

    `glance` replaces the masks of some sentences. Validation has none, so that losses can be compared.
    """
    lengths = (batch.target != PAD).sum(dim=1)
    if network.kind == "AT":
        return _next_token_examples(batch, lengths)
    cmlm = network.kind == "CMLM"
    whole = cmlm or objective.mask_everything
    masked = draw_masks(lengths, batch.target.shape[1], generator, words_only=cmlm, whole=whole)
    if glance is not None:
        masked = glance(masked)
    if cmlm:
        targets = batch.target[:, :, None]
        groups = torch.where(masked, MASKED, NO_TARGET)[:, :, None]
        return Examples(batch.source, batch.target.masked_fill(masked, MASK), targets, groups, lengths)
    deleted = draw_deletions(lengths, batch.target.shape[1], objective, generator)
    examples = piece_examples(batch, masked, deleted, network.piece_length, objective.loss)
    return insert_masks(examples, objective.insertion_rate, generator) if objective.insertion_rate else examples


def _next_token_examples(batch: Batch, lengths: Tensor) -> Examples:
    targets = batch.target[:, 1:, None]
    groups = torch.where(targets != PAD, MASKED, NO_TARGET)
    # EOS is never an input, because nothing follows it.
    decoder_input = batch.target[:, :-1].masked_fill(batch.target[:, :-1] == EOS, PAD)
    return Examples(batch.source, decoder_input, targets, groups, lengths)


def draw_masks(lengths: Tensor, width: int, generator: torch.Generator, *, words_only: bool, whole: bool) -> Tensor:
    """Section 2.3: a uniform number of masks, at uniformly random positions. B x width, true where masked.

    `words_only` never masks BOS and EOS (CMLM is given both). `whole` allows all positions to be masked.
    # Departure: the paper draws the number from [1, N]. The authors' LAT never masks everything, and masks BOS and EOS
    # like words; that is the default here.
    """
    allowed = _maskable(lengths, width, words_only)
    choices = allowed.sum(dim=1) - (0 if whole else 1)
    counts = 1 + _uniform_below(choices, generator)
    return _lowest(allowed, counts, generator)


def _maskable(lengths: Tensor, width: int, words_only: bool) -> Tensor:
    """B x width: true where a token stands that may be masked."""
    places = torch.arange(width, device=lengths.device)
    first = 1 if words_only else 0
    return (places >= first) & (places < (lengths - first)[:, None])


def glance_masks(draw: Draw, masked: Tensor) -> Tensor:
    """The masks, with those of some sentences replaced by glancing (Qian et al. 2021).

    The network predicts the first token of each piece from nothing but masks, as in the first pass of decoding. The
    more of them are wrong, the more of the target it is shown, at random places: it learns what is within its reach.
    # Departure: not in the paper. The other sentences keep uniform masks, so that later passes are trained too.
    """
    objective, target = draw.recipe.objective, draw.batch.target
    chosen = glanced_rows(len(target), objective.glancing_share, draw.step)
    if len(chosen) == 0:
        return masked
    rows = torch.from_numpy(chosen).to(target.device)
    gold = target[rows]
    allowed = _maskable((gold != PAD).sum(dim=1), gold.shape[1], words_only=draw.recipe.network.kind == "CMLM")
    predicted = draw.predict_first(chosen, gold.masked_fill(allowed, MASK))
    wrong = ((predicted != gold) & allowed).sum(dim=1)
    shown = _lowest(allowed, (glancing_ratio(draw.recipe, draw.step) * wrong.double()).long(), draw.generator)
    return masked.index_copy(0, rows, allowed & ~shown)


def glanced_rows(count: int, share: float, step: int) -> NDArray[np.int64]:
    """The rows of an update that glance, evenly spread: neighbours in length take turns from step to step.

    >>> glanced_rows(6, 0.5, step=1).tolist(), glanced_rows(6, 0.5, step=2).tolist()
    ([0, 2, 4], [1, 3, 5])
    """
    numbers = np.arange(count) + step
    return np.flatnonzero(np.floor((numbers + 1) * share) > np.floor(numbers * share))


def glancing_ratio(recipe: Recipe, step: int) -> float:
    """Tokens shown for each wrong prediction: falls linearly from the first to the last update."""
    first, last = recipe.objective.glancing_ratio, recipe.objective.glancing_final_ratio
    return first + (last - first) * min(1.0, (step - 1) / max(1, recipe.train.steps - 1))


def first_tokens(model: Model, states: Tensor) -> Tensor:
    """The likeliest first token of each piece, from the ... x 1 x D states that predict it."""
    return model.body.best_tokens(states[..., 0, :] * model.output_scale, NEVER_WRITTEN)[1]


def draw_deletions(lengths: Tensor, width: int, objective: ObjectiveSettings, generator: torch.Generator) -> Tensor:
    """Section 2.3: delete some words from the decoder input. B x width, true where deleted.

    # Departure: the paper deletes [1, 0.15 N] words. The authors' program deletes 0 to round(0.15 N) - 1, which is the
    # default here: sentences of up to 9 words never lose one, so a model of short sentences never learns to insert.
    # With `delete_from_short` up to round(0.15 N) words are deleted, and up to 1 of any sentence.
    """
    places = torch.arange(width, device=lengths.device)
    allowed = (places >= 1) & (places < (lengths - 1)[:, None])
    return _lowest(allowed, _uniform_below(most_deleted(lengths, objective) + 1, generator), generator)


def most_deleted(lengths: Tensor, objective: ObjectiveSettings) -> Tensor:
    """The most words that sentences of these lengths, including BOS and EOS, can lose; a negative number means none."""
    share = (objective.deletion_rate * (lengths - 2).double()).round().long()
    return share.clamp(min=1) if objective.delete_from_short else share - 1


def _uniform_below(limits: Tensor, generator: torch.Generator) -> Tensor:
    """A uniform whole number from 0 to limit - 1 for each limit; 0 if the limit is not positive."""
    draws = torch.rand(limits.shape, generator=generator, device=limits.device, dtype=torch.float64)
    return (draws * limits).long().clamp(min=0)


def _lowest(allowed: Tensor, counts: Tensor, generator: torch.Generator) -> Tensor:
    """In each row `counts` of the allowed positions, drawn without replacement."""
    keys = torch.rand(allowed.shape, generator=generator, device=allowed.device)
    ranks = keys.masked_fill(~allowed, 2.0).argsort(dim=1, stable=True).argsort(dim=1, stable=True)
    return (ranks < counts[:, None]) & allowed


def piece_examples(
    batch: Batch, masked: Tensor, deleted: Tensor, piece_length: int, loss: Literal["official", "paper"]
) -> Examples:
    """Windows over the whole target, one for each position that stays in the decoder input.

    Position i predicts T_i .. T_(i+K-1), and EOS past the end. A deletion removes a position and its window, but the
    windows before it still contain the deleted token: this is how the model learns to insert. The paper gives full
    weight to tokens that do not appear in the input, so its loss counts deleted tokens as masked.
    # Departure: the authors' program ignores deletions here; with `official` the mask draw alone decides the weight.
    """
    target = batch.target
    count, width = target.shape
    lengths = (target != PAD).sum(dim=1)
    hidden = masked | deleted if loss == "paper" else masked
    starts = torch.arange(width, device=target.device)
    window = starts[:, None] + torch.arange(piece_length, device=target.device)
    extended = functional.pad(target.masked_fill(target == PAD, EOS), (0, piece_length), value=EOS)
    hidden = functional.pad(hidden, (0, piece_length), value=False)
    targets, groups = extended[:, window], torch.where(hidden[:, window], MASKED, VISIBLE)
    shown = target.masked_fill(masked, MASK)

    # Move the remaining positions to the front, in order; the rest of each row is padding.
    order = deleted.long().masked_fill(target == PAD, 1).argsort(dim=1, stable=True)
    remaining = lengths - deleted.sum(dim=1)
    outside = starts >= remaining[:, None]
    rows = torch.arange(count, device=target.device)[:, None]
    return Examples(
        batch.source,
        shown[rows, order].masked_fill(outside, PAD),
        targets[rows, order].masked_fill(outside[:, :, None], PAD),
        groups[rows, order].masked_fill(outside[:, :, None], NO_TARGET),
        lengths,
    )


def insert_masks(examples: Examples, rate: float, generator: torch.Generator) -> Examples:
    """The same examples with extra masks in the decoder input: a random number up to this share of its words, or one.

    An extra mask predicts the same piece as the token after it, and equal pieces merge into one.
    # Departure: neither the paper nor the authors' program does this. Deletions train for predicted lengths that are
    # too short; insertions train for lengths that are too long, which are as frequent.
    """
    shown = examples.decoder_input
    count, width = shown.shape
    lengths = (shown != PAD).sum(dim=1)
    places = torch.arange(width, device=shown.device)
    inside = places < lengths[:, None]
    inserted = _lowest(inside & (places > 0), _uniform_below(most_inserted(lengths, rate) + 1, generator), generator)
    spare = int(most_inserted(torch.tensor(width), rate))

    # Every position twice, an extra mask and the token itself; those in use move to the front, in order.
    there = torch.stack([inserted, inside], dim=2).flatten(1)
    twice = torch.stack([torch.full_like(shown, MASK), shown], dim=2).flatten(1)
    order = (~there).long().argsort(dim=1, stable=True)[:, : width + spare]
    outside = torch.arange(order.shape[1], device=shown.device) >= there.sum(dim=1)[:, None]
    rows = torch.arange(count, device=shown.device)[:, None]
    return replace(
        examples,
        decoder_input=twice[rows, order].masked_fill(outside, PAD),
        targets=examples.targets[rows, order // 2].masked_fill(outside[:, :, None], PAD),
        groups=examples.groups[rows, order // 2].masked_fill(outside[:, :, None], NO_TARGET),
        spare=spare,
    )


def most_inserted(lengths: Tensor, rate: float) -> Tensor:
    """The most extra masks for inputs of these lengths, including BOS and EOS."""
    return (rate * (lengths - 2).double()).round().long().clamp(min=1)


@dataclass(frozen=True)
class Totals:
    """Counts over a whole update; the loss of every micro-batch is divided by them."""

    masked: Tensor
    visible: Tensor
    tokens: Tensor
    """Target tokens, including BOS and EOS."""

    def to(self, device: torch.device) -> Totals:
        """The same counts on another device."""
        return Totals(self.masked.to(device), self.visible.to(device), self.tokens.to(device))

    @staticmethod
    def of(examples: Examples) -> Totals:
        """Count the groups of an update."""
        return Totals((examples.groups == MASKED).sum(), (examples.groups == VISIBLE).sum(), examples.lengths.sum())


@dataclass(frozen=True)
class Losses:
    """A micro-batch's share of the update's loss; the shares of all micro-batches add up to it."""

    token: Tensor
    length: Tensor

    @property
    def total(self) -> Tensor:
        """The loss that is minimised."""
        return self.token + self.length


def loss_share(model: Model, examples: Examples, totals: Totals, objective: ObjectiveSettings) -> Losses:
    """Run the network on a micro-batch (or a whole update) and return its share of the loss."""
    states, length_scores = model.output_states(examples.source, examples.decoder_input, examples.targets)
    wanted = examples.groups != NO_TARGET
    logits = model.body.logits(states[wanted] * model.output_scale)
    losses = token_losses(logits, examples.targets[wanted], objective.label_smoothing)
    token = (losses * token_weights(examples.groups[wanted], totals, model.settings.kind, objective)).sum()
    if length_scores is None:
        return Losses(token, torch.zeros_like(token))
    return Losses(token, length_loss(length_scores, examples.lengths, totals, objective))


def token_losses(logits: Tensor, targets: Tensor, smoothing: float) -> Tensor:
    """The cross-entropy of each target, with label smoothing over the whole vocabulary."""
    return functional.cross_entropy(logits.float(), targets, label_smoothing=smoothing, reduction="none")


def token_weights(groups: Tensor, totals: Totals, kind: str, objective: ObjectiveSettings) -> Tensor:
    """The weight of each target, by its group.

    `paper` gives weights 1 (masked) and alpha (visible), divided by the target tokens of the update; `official`
    averages each group and weights the means by 1 - alpha and alpha.
    # Departure: the authors' program averages over each micro-batch; here the means are over the whole update, so the
    # result does not depend on the micro-batches.
    """
    if objective.loss == "paper":
        masked, visible = 1 / totals.tokens, objective.alpha / totals.tokens
    else:
        alpha = objective.alpha if kind == "LAT" else 0.0  # the other kinds have no visible targets
        masked, visible = (1 - alpha) / totals.masked.clamp(min=1), alpha / totals.visible.clamp(min=1)
    return torch.where(groups == MASKED, masked, torch.where(groups == VISIBLE, visible, 0.0)).float()


def length_loss(scores: Tensor, lengths: Tensor, totals: Totals, objective: ObjectiveSettings) -> Tensor:
    """The negative log-probability of each sentence's length, summed and divided like the token loss.

    `official` divides by the number of targets, `paper` by the number of target tokens. A length of 0 marks an empty
    sentence of a packed batch and costs nothing.
    """
    nll = torch.where(lengths > 0, -scores.gather(1, lengths.clamp(min=1)[:, None])[:, 0], 0.0).sum()
    divisor = totals.tokens if objective.loss == "paper" else totals.masked + totals.visible
    return objective.length_weight * nll / divisor
