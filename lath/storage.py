"""Weights in fewer bytes: what a smaller model directory stores in place of float32 (docs/formats.md), and back.

    stored = shrink(weights, "int8", where)
    weights = restore(stored, where)        # float32, each a rounding away from what it was

int8 is a quarter of float32: every large matrix is whole numbers from -127 to 127 with one scale for each row, and what
is left (norms, biases) is float16. fp16 is a half: everything is float16.

The rule is that of engine/int8.py, which rounds the rows of a matrix again when a CPU computes in int8. A row's largest
number is stored as 127 or -127, so that rounding finds the very same numbers: what is stored and computed in int8 is
rounded once.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lath.errors import UserError

FULL = "fp32"
"""As training writes them."""
SMALLER = ("int8", "fp16")
"""What `shrink` can make of them, the smallest first."""
LEVELS = 127
"""Integers on each side of 0."""
SMALLEST_RANGE = 1e-12
"""A row of zeros has a scale too."""
SMALLEST_MATRIX = 4096
"""Numbers in a matrix that is worth its scales."""
SCALE = "/scale"
"""Ends the name of a matrix's scales; the name of a parameter has dots and no slash."""


def shrink(weights: dict[str, Tensor], storage: str, where: str) -> dict[str, Tensor]:
    """Weights by name as they are stored; `where` they are from is told when they are no sound numbers."""
    assert storage in SMALLER, storage
    stored: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        half = tensor.detach().half().contiguous()
        if not half.isfinite().all():
            raise UserError(
                f"{where}: {name} holds values that are not numbers, or too large for float16; "
                f"its training has failed, so use another model"
            )
        if storage == "int8" and tensor.dim() > 1 and tensor.numel() >= SMALLEST_MATRIX:
            stored[name], stored[name + SCALE] = quantise_rows(tensor.detach().float())
        else:
            stored[name] = half
    return stored


def quantise_rows(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """A matrix of two or more dimensions as int8, and the float32 scale of each of its rows.

    Smaller scales, which cut off a row's largest numbers, do not pay: to cut one number by a fortieth costs more than
    all the others gain in rows of under a few thousand, and four trained models had the same squared error to four
    digits with the best of eight scales for each row. So have float16 scales, but they would need a case of their own
    for rows of tiny numbers, to save less than one byte in a hundred.
    """
    rows = matrix.flatten(1)
    scales = rows.abs().amax(dim=1).clamp_min(SMALLEST_RANGE) / LEVELS
    numbers = (rows / scales[:, None]).round_().to(torch.int8)
    return numbers.view(matrix.shape), scales


def restore(stored: dict[str, Tensor], where: str) -> dict[str, Tensor]:
    """The float32 weights of what `shrink` has made; `where` it was stored is told when parts are missing."""
    scales = {name.removesuffix(SCALE): tensor for name, tensor in stored.items() if name.endswith(SCALE)}
    weights: dict[str, Tensor] = {}
    for name, tensor in stored.items():
        if name.endswith(SCALE):
            continue
        weights[name] = tensor.float()
        if tensor.dtype == torch.int8:
            scale = scales.pop(name, None)
            if scale is None or scale.shape != tensor.shape[:1]:
                raise UserError(
                    f"{where}: the scales of {name} are missing, or not one for each row; "
                    f"copy the model directory again"
                )
            weights[name] *= scale.view(-1, *[1] * (tensor.dim() - 1))
    for name in scales:
        raise UserError(f"{where}: has scales for {name}, which is not there; copy the model directory again")
    return weights
