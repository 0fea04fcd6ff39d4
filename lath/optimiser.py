"""What changes the weights: AdamW (appendix B), or Muon for the matrices of the layers and AdamW for all the rest.

    optimisers = build_optimisers(model, recipe.train, fused=False)
    set_rate(optimisers, rate)
    for optimiser in optimisers:
        optimiser.step()

AdamW scales every weight's change by itself. Muon (Jordan, 2024) takes a matrix's change as a whole: the momentum of
its gradient is replaced by the nearest matrix that stretches all directions alike, so that directions the gradient
hardly shows are learnt as fast as those it is full of.

    gradient -> momentum -> a step ahead along it -> cut into squares -> orthogonal -> change

# Departure: the paper trains with Adam. Muon comes further in as many updates (docs/log.md), and is a setting.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from lath.config import TrainSettings
from lath.model import Model

MOMENTUM = 0.95
"""Share of the mean of earlier gradients that is kept at a step."""
ROUNDS, FACTORS = 5, (3.4445, -4.7750, 2.0315)
"""a x + b x^3 + c x^5, five times over, brings every number from about 0.01 to 1 into the neighbourhood of 1."""
SMALLEST_NORM = 1e-7


def build_optimisers(model: Model, settings: TrainSettings, fused: bool) -> list[torch.optim.Optimizer]:
    """The optimisers that share a model's weights among them; `fused` is faster, on a GPU."""
    matrices = layer_matrices(model) if settings.optimiser == "muon" else []
    chosen = {id(matrix) for matrix in matrices}
    rest = [parameter for parameter in model.parameters() if id(parameter) not in chosen]
    optimisers: list[torch.optim.Optimizer] = [
        torch.optim.AdamW(
            [{"params": rest, "times": 1.0}],
            lr=settings.learning_rate,
            betas=(settings.adam_beta1, settings.adam_beta2),
            eps=settings.adam_epsilon,
            weight_decay=settings.weight_decay,
            fused=fused,
        )
    ]
    if matrices:
        times = settings.matrix_learning_rate / settings.learning_rate
        optimisers.append(Muon(matrices, times, settings.weight_decay))
    return optimisers


def layer_matrices(model: Model) -> list[nn.Parameter]:
    """The weights of all linear layers; token, position and length tables are none."""
    return [cast(nn.Parameter, module.weight) for module in model.modules() if isinstance(module, nn.Linear)]


def set_rate(optimisers: Iterable[torch.optim.Optimizer], rate: float) -> None:
    """Give every optimiser its learning rate, for one of AdamW's."""
    for optimiser in optimisers:
        for group in optimiser.param_groups:
            group["lr"] = rate * group["times"]


class Muon(torch.optim.Optimizer):
    """Changes matrices by orthogonal ones."""

    def __init__(self, matrices: Sequence[nn.Parameter], times: float, weight_decay: float) -> None:
        super().__init__(matrices, {"lr": 0.0, "times": times, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One update; a handful of kernels for all matrices together."""
        assert closure is None
        for group in self.param_groups:
            matrices = [matrix for matrix in group["params"] if matrix.grad is not None]
            gradients = [matrix.grad for matrix in matrices]
            for matrix in matrices:
                if not self.state[matrix]:
                    self.state[matrix]["momentum"] = torch.zeros_like(matrix)
            momenta = [self.state[matrix]["momentum"] for matrix in matrices]
            torch._foreach_lerp_(momenta, gradients, 1 - MOMENTUM)
            ahead = torch._foreach_lerp(gradients, momenta, MOMENTUM)
            torch._foreach_mul_(matrices, 1 - group["lr"] * group["weight_decay"])
            torch._foreach_add_(matrices, orthogonal_changes(ahead), alpha=-group["lr"])


def orthogonal_changes(matrices: Sequence[Tensor]) -> list[Tensor]:
    """For each matrix one of the same shape whose squares are orthogonal; all squares of a size are worked on at once.

    A wide matrix adds its squares' outputs up, so they are made smaller by the root of their number.
    """
    cut = [squares(matrix) for matrix in matrices]
    changes = list(matrices)
    for shape in {part.shape[1:] for part in cut}:
        numbers = [number for number, part in enumerate(cut) if part.shape[1:] == shape]
        made = orthogonal(torch.cat([cut[number] for number in numbers]))
        for number, part in zip(numbers, torch.split(made, [len(cut[number]) for number in numbers]), strict=True):
            rows, columns = matrices[number].shape
            changes[number] = part.view(rows, columns) if rows >= columns else _side_by_side(part)
    return changes


def squares(matrix: Tensor) -> Tensor:
    """A matrix cut into n squares, n x size x size; left whole, 1 x rows x columns, where it does not come out even.

    A fused projection falls into its parts, and the squares of all layers can be multiplied at once.
    """
    rows, columns = matrix.shape
    if rows % columns == 0:
        return matrix.view(rows // columns, columns, columns)
    if columns % rows == 0:
        return matrix.view(rows, columns // rows, rows).transpose(0, 1)
    return matrix[None]


def _side_by_side(parts: Tensor) -> Tensor:
    return parts.transpose(0, 1).flatten(1) / math.sqrt(len(parts))


def orthogonal(matrices: Tensor) -> Tensor:
    """n x rows x columns matrices with their singular values brought to about 1 (0.7 to 1.2), all else kept.

    An odd polynomial of a matrix is that polynomial of its singular values, and takes products alone.
    """
    if matrices.shape[1] > matrices.shape[2]:  # the smaller square is less work
        return orthogonal(matrices.transpose(1, 2)).transpose(1, 2)
    one, three, five = FACTORS
    x: Tensor = matrices / (torch.linalg.matrix_norm(matrices, keepdim=True) + SMALLEST_NORM)
    if x.is_cuda:
        x = x.bfloat16()
    for _ in range(ROUNDS):
        square = x @ x.transpose(1, 2)
        x = one * x + (three * square + five * square @ square) @ x
    return x.to(matrices.dtype)
