"""An exponential moving average of the weights while they are trained: an alternative to averaging checkpoints."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.optim.swa_utils import get_ema_multi_avg_fn

from lath.model.network import Model


class MovingAverage:
    """The average of a model's weights, in float32 beside them; one that decays by 0.999 sees about 1000 steps."""

    def __init__(self, model: Model, decay: float) -> None:
        self.decay = decay
        self.weights: dict[str, Tensor] = {
            name: parameter.detach().float().clone() for name, parameter in model.named_parameters()
        }

    def update(self, model: Model, step: int) -> None:
        """Move towards the weights after `step` (from 1); fast at first, so that the random beginning is forgotten."""
        mix = get_ema_multi_avg_fn(decay_at(step, self.decay))  # type: ignore[no-untyped-call]
        mix(list(self.weights.values()), [parameter.detach() for parameter in model.parameters()], 0)

    def load(self, weights: dict[str, Tensor]) -> None:
        """Go on from a saved average."""
        for name, average in self.weights.items():
            average.copy_(weights[name])


def decay_at(step: int, decay: float) -> float:
    """The share of the old average that is kept at a step: it grows from 2/11 to `decay`.

    >>> [round(decay_at(step, 0.999), 3) for step in (1, 90, 100_000)]
    [0.182, 0.91, 0.999]
    """
    return min(decay, (1 + step) / (10 + step))


@contextlib.contextmanager
def lent_weights(model: Model, weights: dict[str, Tensor]) -> Iterator[None]:
    """Let a model use other weights; afterwards it has its own again, bit for bit."""
    own = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    _copy(weights, model)
    try:
        yield
    finally:
        _copy(own, model)


@torch.no_grad()
def _copy(weights: dict[str, Tensor], model: Model) -> None:
    """Into the tensors the model has: whatever else points at them (an optimiser, a graph) stays right."""
    for name, parameter in model.named_parameters():
        parameter.copy_(weights[name])
