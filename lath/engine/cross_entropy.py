"""Twin of `token_losses` and their weighted sum (training/objective.py) that never holds all logits at once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def chunked_cross_entropy(
    states: Tensor, matrix: Tensor, targets: Tensor, weights: Tensor, smoothing: float, chunk_rows: int
) -> Tensor:
    """The weighted sum of smoothed cross-entropies of M x D states against a V x D output matrix.

    Loss and gradient are made chunk by chunk in the forward pass: the weights are known by then, so the gradient of
    the logits needs nothing that comes later, and at most `chunk_rows` x V logits exist at any time.
    """
    if torch.is_autocast_enabled(states.device.type):
        kind = torch.get_autocast_dtype(states.device.type)
        states, matrix = states.to(kind), matrix.to(kind)
    result: Tensor = _ChunkedCrossEntropy.apply(  # type: ignore[no-untyped-call]
        states, matrix, targets, weights, smoothing, chunk_rows
    )
    return result


class _ChunkedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, states: Tensor, matrix: Tensor, targets: Tensor, weights: Tensor, smoothing: float, chunk_rows: int
    ) -> Tensor:
        total = torch.zeros((), device=states.device)
        matrix_gradient = torch.zeros_like(matrix, dtype=torch.float32)
        state_gradients = []
        for start in range(0, len(states), chunk_rows):
            rows = slice(start, start + chunk_rows)
            loss, gradient = _chunk_loss(states[rows] @ matrix.t(), targets[rows], weights[rows], smoothing)
            gradient = gradient.to(states.dtype)
            total = total + loss
            state_gradients.append(gradient @ matrix)
            matrix_gradient = matrix_gradient + (gradient.t() @ states[rows]).float()
        ctx.save_for_backward(torch.cat(state_gradients), matrix_gradient.to(matrix.dtype))
        return total

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        state_gradient, matrix_gradient = ctx.saved_tensors
        factor = outer[0]
        return (state_gradient * factor.to(state_gradient.dtype), matrix_gradient * factor.to(matrix_gradient.dtype),
                None, None, None, None)  # fmt: skip


def _chunk_loss(logits: Tensor, targets: Tensor, weights: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """Weighted loss of some rows, and its gradient with respect to their logits."""
    logits = logits.float()
    size = logits.shape[1]
    normaliser = logits.logsumexp(dim=1)
    right = logits.gather(1, targets[:, None])[:, 0]
    loss = normaliser - (1 - smoothing) * right - smoothing * logits.mean(dim=1)
    probabilities = (logits - normaliser[:, None]).exp()
    hit = torch.arange(size, device=logits.device) == targets[:, None]
    gradient = (probabilities - smoothing / size - (1 - smoothing) * hit) * weights[:, None]
    return (loss * weights).sum(), gradient
