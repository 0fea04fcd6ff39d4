"""What each kind is trained on: masks, deletions, windows, and the losses over them.

Follows section 2.3 of the paper and, where it is silent, the recorded behaviour of the authors' program.

    Batch -> draw_examples -> Examples -> (network) -> loss_share

All three kinds end in the same form, decoder positions that each predict K tokens (K = 1 for AT and CMLM), and
so in the same loss. Draws come from a generator that is passed in and are made for a whole update at once, so
nothing depends on how the update is later cut into micro-batches.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from lath.config import NetworkSettings, ObjectiveSettings
from lath.model.network import Model
from lath.text.vocab import EOS, MASK, PAD
from lath.training.batches import Batch, Part

MASKED, VISIBLE, NO_TARGET = 1, 0, -1


@dataclass(frozen=True)
class Examples:
    """Network inputs and targets. B sentences, T decoder positions, K tokens a piece."""

    source: Tensor
    """B x S."""
    decoder_input: Tensor
    """B x T: what the decoder is shown."""
    targets: Tensor
    """B x T x K: what each position must predict; PAD where there is no position."""
    groups: Tensor
    """B x T x K: MASKED, VISIBLE or NO_TARGET; decides each target's weight."""
    lengths: Tensor
    """B: the whole target's length, BOS and EOS included, before any deletion."""
    spare: int = 0
    """Positions by which a row of the decoder input may be longer than its target."""

    def to(self, device: torch.device) -> Examples:
        """The same examples on another device."""
        return Examples(
            self.source.to(device),
            self.decoder_input.to(device),
            self.targets.to(device),
            self.groups.to(device),
            self.lengths.to(device),
            self.spare,
        )

    def part(self, part: Part) -> Examples:
        """Some of the sentences, trimmed to the width they need."""
        rows, source_width, target_width = part
        width = target_width + self.spare
        return Examples(
            self.source[rows, :source_width],
            self.decoder_input[rows, :width],
            self.targets[rows, :width],
            self.groups[rows, :width],
            self.lengths[rows],
            self.spare,
        )


def draw_examples(
    batch: Batch, network: NetworkSettings, objective: ObjectiveSettings, generator: torch.Generator
) -> Examples:
    """Training examples of a batch, drawn on the batch's device from a generator of that device."""
    lengths = (batch.target != PAD).sum(dim=1)
    if network.kind == "AT":
        return _next_token_examples(batch, lengths)
    if network.kind == "CMLM":
        masked = draw_masks(lengths, batch.target.shape[1], generator, words_only=True, whole=True)
        targets = batch.target[:, :, None]
        groups = torch.where(masked, MASKED, NO_TARGET)[:, :, None]
        return Examples(batch.source, batch.target.masked_fill(masked, MASK), targets, groups, lengths)
    masked = draw_masks(lengths, batch.target.shape[1], generator, words_only=False, whole=objective.mask_everything)
    deleted = draw_deletions(lengths, batch.target.shape[1], objective, generator)
    examples = piece_examples(batch, masked, deleted, network.piece_length, objective.deleted_as_masked)
    return insert_masks(examples, objective.insertion_rate, generator) if objective.insertion_rate else examples


def _next_token_examples(batch: Batch, lengths: Tensor) -> Examples:
    targets = batch.target[:, 1:, None]
    groups = torch.where(targets != PAD, MASKED, NO_TARGET)
    # EOS is never an input: what would follow it is padding.
    decoder_input = batch.target[:, :-1].masked_fill(batch.target[:, :-1] == EOS, PAD)
    return Examples(batch.source, decoder_input, targets, groups, lengths)


def draw_masks(lengths: Tensor, width: int, generator: torch.Generator, *, words_only: bool, whole: bool) -> Tensor:
    """Section 2.3: a uniform number of masks, at uniformly random positions. B x width, true where masked.

    `words_only` spares BOS and EOS (CMLM, which is given both). `whole` lets the number reach all positions.
    # Departure: the paper draws the number from [1, N]; the authors' LAT never masks everything, and counts and
    # masks BOS and EOS like words, which is the default here too.
    """
    places = torch.arange(width, device=lengths.device)
    first = 1 if words_only else 0
    allowed = (places >= first) & (places < (lengths - first)[:, None])
    choices = allowed.sum(dim=1) - (0 if whole else 1)
    counts = 1 + _uniform_below(choices, generator)
    return _lowest(allowed, counts, generator)


def draw_deletions(lengths: Tensor, width: int, objective: ObjectiveSettings, generator: torch.Generator) -> Tensor:
    """Section 2.3: some words are missing from the decoder input. B x width, true where deleted.

    # Departure: the paper deletes [1, 0.15 N] words; the authors' program 0 to round(0.15 N) - 1, as here by default.
    # So a sentence of up to 9 words never loses one, and who learns from short sentences never learns to insert, though
    # the first length is as often wrong as right there: `delete_from_short` reaches 0.15 N, and 1 in any sentence.
    """
    places = torch.arange(width, device=lengths.device)
    allowed = (places >= 1) & (places < (lengths - 1)[:, None])
    return _lowest(allowed, _uniform_below(most_deleted(lengths, objective) + 1, generator), generator)


def most_deleted(lengths: Tensor, objective: ObjectiveSettings) -> Tensor:
    """How many words sentences of these lengths, BOS and EOS included, may lose; below 0 means none as well."""
    share = (objective.deletion_rate * (lengths - 2).double()).round().long()
    return share.clamp(min=1) if objective.delete_from_short else share - 1


def _uniform_below(limits: Tensor, generator: torch.Generator) -> Tensor:
    """For each limit a uniform whole number from 0 to limit - 1; 0 where there is none."""
    draws = torch.rand(limits.shape, generator=generator, device=limits.device, dtype=torch.float64)
    return (draws * limits).long().clamp(min=0)


def _lowest(allowed: Tensor, counts: Tensor, generator: torch.Generator) -> Tensor:
    """In each row, `counts` of the allowed places, drawn without replacement."""
    keys = torch.rand(allowed.shape, generator=generator, device=allowed.device)
    ranks = keys.masked_fill(~allowed, 2.0).argsort(dim=1, stable=True).argsort(dim=1, stable=True)
    return (ranks < counts[:, None]) & allowed


def piece_examples(
    batch: Batch, masked: Tensor, deleted: Tensor, piece_length: int, deleted_as_masked: bool
) -> Examples:
    """Windows over the undeleted target, one for each position that stays in the decoder input.

    Row i asks for T_i .. T_(i+K-1), past the end for EOS. A deletion takes a position and its row away, yet the
    rows before it still ask for the deleted token: this is how insertion is learnt.
    """
    target = batch.target
    count, width = target.shape
    lengths = (target != PAD).sum(dim=1)
    hidden = masked | deleted if deleted_as_masked else masked
    starts = torch.arange(width, device=target.device)
    window = starts[:, None] + torch.arange(piece_length, device=target.device)
    extended = functional.pad(target.masked_fill(target == PAD, EOS), (0, piece_length), value=EOS)
    hidden = functional.pad(hidden, (0, piece_length), value=False)
    targets, groups = extended[:, window], torch.where(hidden[:, window], MASKED, VISIBLE)
    shown = target.masked_fill(masked, MASK)

    # Move the positions that stay to the front, in order; what is left of each row is padding.
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
    """The same examples with masks too many among the decoder's inputs, up to this share of them, or one.

    Such a mask asks for what the token behind it asks for: two pieces that are alike merge into one.
    # Departure: neither the paper nor the authors' program has this. Deletions make an input too short for its target,
    # insertions too long, and a first length that is wrong is the one as often as the other.
    """
    shown = examples.decoder_input
    count, width = shown.shape
    lengths = (shown != PAD).sum(dim=1)
    places = torch.arange(width, device=shown.device)
    inside = places < lengths[:, None]
    inserted = _lowest(inside & (places > 0), _uniform_below(most_inserted(lengths, rate) + 1, generator), generator)
    spare = int(most_inserted(torch.tensor(width), rate))

    # Every place twice, the mask before it and itself; those that are there move to the front, in order.
    there = torch.stack([inserted, inside], dim=2).flatten(1)
    twice = torch.stack([torch.full_like(shown, MASK), shown], dim=2).flatten(1)
    order = (~there).long().argsort(dim=1, stable=True)[:, : width + spare]
    outside = torch.arange(order.shape[1], device=shown.device) >= there.sum(dim=1)[:, None]
    rows = torch.arange(count, device=shown.device)[:, None]
    return Examples(
        examples.source,
        twice[rows, order].masked_fill(outside, PAD),
        examples.targets[rows, order // 2].masked_fill(outside[:, :, None], PAD),
        examples.groups[rows, order // 2].masked_fill(outside[:, :, None], NO_TARGET),
        examples.lengths,
        spare,
    )


def most_inserted(lengths: Tensor, rate: float) -> Tensor:
    """How many masks too many inputs of these lengths, BOS and EOS included, may get."""
    return (rate * (lengths - 2).double()).round().long().clamp(min=1)


@dataclass(frozen=True)
class Totals:
    """Counts over a whole update; every share of the loss is divided by them."""

    masked: Tensor
    visible: Tensor
    tokens: Tensor
    """Target tokens, BOS and EOS included."""

    def to(self, device: torch.device) -> Totals:
        """The same counts on another device."""
        return Totals(self.masked.to(device), self.visible.to(device), self.tokens.to(device))

    @staticmethod
    def of(examples: Examples) -> Totals:
        """Count the groups of an update."""
        return Totals((examples.groups == MASKED).sum(), (examples.groups == VISIBLE).sum(), examples.lengths.sum())


@dataclass(frozen=True)
class LossParts:
    """The loss of some examples as their share of the update's loss: shares of a cut update add up to it."""

    token: Tensor
    length: Tensor

    @property
    def total(self) -> Tensor:
        """What is minimised."""
        return self.token + self.length


def loss_share(model: Model, examples: Examples, totals: Totals, objective: ObjectiveSettings) -> LossParts:
    """Run the network on (a part of) an update's examples and return its share of the loss."""
    states, length_scores = model.output_states(examples.source, examples.decoder_input, examples.targets)
    wanted = examples.groups != NO_TARGET
    logits = model.logits(states[wanted])
    losses = token_losses(logits, examples.targets[wanted], objective.label_smoothing)
    token = weigh_tokens(losses, examples.groups[wanted], totals, model.settings.kind, objective)
    if length_scores is None:
        return LossParts(token, torch.zeros_like(token))
    return LossParts(token, length_loss(length_scores, examples.lengths, totals, objective))


def token_losses(logits: Tensor, targets: Tensor, smoothing: float) -> Tensor:
    """Cross-entropy of each target, with `smoothing` of the probability spread over the whole vocabulary."""
    return functional.cross_entropy(logits.float(), targets, label_smoothing=smoothing, reduction="none")


def weigh_tokens(losses: Tensor, groups: Tensor, totals: Totals, kind: str, objective: ObjectiveSettings) -> Tensor:
    """The paper's token loss: each target's cross-entropy times its weight."""
    return (losses * token_weights(groups, totals, kind, objective)).sum()


def token_weights(groups: Tensor, totals: Totals, kind: str, objective: ObjectiveSettings) -> Tensor:
    """The weight of each target: masked targets count fully, visible ones by alpha, the others not at all.

    `paper` sums with weights 1 and alpha, over the update's tokens; `official` weighs the means of the two groups.
    # Departure: the authors' program takes group means over each micro-batch; here they are over the whole
    # update, so that the result does not depend on how it is cut.
    """
    if objective.loss == "paper":
        masked, visible = 1 / totals.tokens, objective.alpha / totals.tokens
    else:
        alpha = objective.alpha if kind == "LAT" else 0.0  # the other kinds have no visible targets
        masked, visible = (1 - alpha) / totals.masked.clamp(min=1), alpha / totals.visible.clamp(min=1)
    return torch.where(groups == MASKED, masked, torch.where(groups == VISIBLE, visible, 0.0)).float()


def length_loss(scores: Tensor, lengths: Tensor, totals: Totals, objective: ObjectiveSettings) -> Tensor:
    """Negative log-probability of each sentence's length, summed and divided like the token loss.

    `official` divides by the number of (position, step) targets, `paper` by that of target tokens. A length of 0 is
    that of an empty sentence in a pack, and costs nothing.
    """
    nll = torch.where(lengths > 0, -scores.gather(1, lengths.clamp(min=1)[:, None])[:, 0], 0.0).sum()
    divisor = totals.tokens if objective.loss == "paper" else totals.masked + totals.visible
    return objective.length_weight * nll / divisor
