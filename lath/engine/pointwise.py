"""Sums, norms and gates in one kernel each; the oracles are `Residual` and `LocalTranslator` of model/network.py."""

from __future__ import annotations

import torch
from torch import Tensor

from lath.engine.top_tokens import power_of_two


def residual_norm(x: Tensor, added: Tensor, weight: Tensor, bias: Tensor, epsilon: float) -> Tensor:
    """The layer norm of x + added, in the type of `added`."""
    from lath.engine.kernels import residual_norm_kernel

    columns = x.shape[-1]
    x, added = x.contiguous(), added.contiguous()
    out = torch.empty_like(added)
    block = power_of_two(columns)
    residual_norm_kernel[(x.numel() // columns,)](
        x, added, weight, bias, out, columns, epsilon, BLOCK=block, num_warps=4 if block > 256 else 1
    )
    return out


def lstm_gates(first: Tensor, second: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    """Hidden state and cell after a step, from the two halves of its gates (... x 4D, to be added) and the cell."""
    from lath.engine.kernels import lstm_gates_kernel

    width = cell.shape[-1]
    first, second, cell = first.contiguous(), second.contiguous(), cell.contiguous()
    hidden, new_cell = torch.empty_like(cell), torch.empty_like(cell)
    block = power_of_two(width)
    lstm_gates_kernel[(cell.numel() // width,)](first, second, cell, hidden, new_cell, width, BLOCK=block, num_warps=4)
    return hidden, new_cell
