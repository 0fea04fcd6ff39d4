"""The step engine: how an update becomes micro-batches, and how their loss and gradient are computed.

`PlainEngine` pads and runs eagerly. It works everywhere and is the oracle of the packed engine (engine/training.py).
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from lath.config import Recipe
from lath.model.network import Model
from lath.training.batches import Batch, MicroBatch, cut_rows
from lath.training.objective import Examples, Losses, Totals, first_tokens, loss_share


class StepEngine(Protocol):
    """Computes loss and gradient. The losses of the micro-batches of an update add up to the loss of the update."""

    def cut(self, batch: Batch) -> list[MicroBatch]:
        """The micro-batches of a batch that is sorted by length."""

    def positions(self, micro_batch: MicroBatch) -> int:
        """Decoder positions computed for a micro-batch, including padding."""

    def ideal_seconds(self, batch: Batch) -> float:
        """How long an update would take at the peak of all devices, for the MFU in the log; 0 if that is not known."""

    def predict_first(self, batch: Batch, decoder_input: Tensor) -> Tensor:
        """The likeliest first token at each position of a decoder input as wide as the batch's target.

        The batch is on the CPU and sorted by length, the decoder input on the device. Without gradients; the caller has
        put the model into evaluation mode.
        """

    def learn(self, examples: Examples, totals: Totals) -> Losses:
        """The losses of a micro-batch; their gradient is added to the model's."""


class PlainEngine:
    """Padded micro-batches, run eagerly."""

    def __init__(self, model: Model, recipe: Recipe, device: torch.device) -> None:
        self.model, self.recipe, self.device = model, recipe, device

    def cut(self, batch: Batch) -> list[MicroBatch]:
        """Neighbouring rows, so that each micro-batch needs little padding."""
        return cut_rows(batch, self.recipe.train.micro_batch_tokens)

    def positions(self, micro_batch: MicroBatch) -> int:
        """The size of the padded target."""
        return micro_batch.positions

    def ideal_seconds(self, batch: Batch) -> float:
        """Not known: an eager step is far from any peak."""
        return 0.0

    @torch.no_grad()
    def predict_first(self, batch: Batch, decoder_input: Tensor) -> Tensor:
        """Padded micro-batches, as in training."""
        predicted = torch.zeros_like(decoder_input)
        for rows, source_width, target_width in self.cut(batch):
            source, shown = batch.source[rows, :source_width].to(self.device), decoder_input[rows, :target_width]
            with autocast(self.recipe, self.device):
                states, _ = self.model.output_states(source, shown, shown[..., None])
                predicted[rows, :target_width] = first_tokens(self.model, states)
        return predicted

    def learn(self, examples: Examples, totals: Totals) -> Losses:
        """Forward and backward."""
        with autocast(self.recipe, self.device):
            losses = loss_share(self.model, examples, totals, self.recipe.objective)
        return backward(losses)


def backward(losses: Losses) -> Losses:
    """Add the gradient to the model's, and return the losses without their graph."""
    losses.total.backward()  # type: ignore[no-untyped-call]
    return Losses(losses.token.detach(), losses.length.detach())


def autocast(recipe: Recipe, device: torch.device) -> torch.autocast:
    """bf16 if the recipe asks for it."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=recipe.train.precision == "bf16")
