"""Weights in fewer bytes: what a smaller model directory stores in place of float32 (docs/formats.md), and back.

    stored = shrink(weights, "int8", where)
    weights = restore(stored, where)        # float32, each a rounding away from what it was

fp16 is a half: everything is float16. int8 is a quarter: every large matrix is whole numbers from -127 to 127 with one
scale for each row, and what is left (norms, biases) is float16. coded is about a seventh: the whole numbers have larger
steps, so that most of them are small, and small ones take fewer bits (Huffman's code, as zlib writes it).

The rule of int8 is that of engine/int8.py, which rounds the rows of a matrix again when a CPU computes in int8. A row's
largest number is stored as 127 or -127, so that rounding finds the very same numbers: what is stored and computed in
int8 is rounded once.
"""

from __future__ import annotations

import zlib

import torch
from torch import Tensor

from lath.errors import UserError

FULL = "fp32"
"""As training writes them."""
SMALLER = ("coded", "int8", "fp16")
"""What `shrink` can make of them, the smallest first."""
LEVELS = 127
"""Integers on each side of 0."""
SMALLEST_RANGE = 1e-12
"""A row of zeros has a scale too."""
SMALLEST_MATRIX = 4096
"""Numbers in a matrix that is worth its scales."""
SCALE = "/scale"
"""Ends the name of a matrix's scales; the name of a parameter has dots and no slash."""
CODED = "/coded"
"""Ends the name of a matrix's numbers in Huffman's code."""
COARSE_STEP = 0.2
"""The step of `coded`, by a row's root mean square: 4.5 bits a weight; finer steps cost bits, coarser ones BLEU."""


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
        if storage == "fp16" or tensor.dim() == 1 or tensor.numel() < SMALLEST_MATRIX:
            stored[name] = half
        elif storage == "coded" and tensor.dim() == 2:
            numbers, stored[name + SCALE] = quantise_rows(tensor.detach().float(), COARSE_STEP)
            stored[name + CODED] = write_code(numbers)
        else:
            stored[name], stored[name + SCALE] = quantise_rows(tensor.detach().float())
    return stored


def quantise_rows(matrix: Tensor, least: float = 0.0) -> tuple[Tensor, Tensor]:
    """A matrix of two or more dimensions as int8, and the float32 scale of each of its rows.

    A scale is as small as the row's largest number allows, but not under `least` of its root mean square.

    Smaller scales, which cut off a row's largest numbers, do not pay: to cut one number by a fortieth costs more than
    all the others gain in rows of under a few thousand, and four trained models had the same squared error to four
    digits with the best of eight scales for each row. So have float16 scales, but they would need a case of their own
    for rows of tiny numbers, to save less than one byte in a hundred.
    """
    rows = matrix.flatten(1)
    scales = rows.abs().amax(dim=1).clamp_min(SMALLEST_RANGE) / LEVELS
    scales = scales.maximum(least * rows.square().mean(dim=1).sqrt())
    numbers = (rows / scales[:, None]).round_().to(torch.int8)
    return numbers.view(matrix.shape), scales


def write_code(numbers: Tensor) -> Tensor:
    """int8 numbers as the bytes of a zlib stream that looks for no repetitions: there are none."""
    coder = zlib.compressobj(level=9, memLevel=9, strategy=zlib.Z_HUFFMAN_ONLY)
    coded = coder.compress(numbers.numpy().tobytes()) + coder.flush()
    return torch.frombuffer(bytearray(coded), dtype=torch.uint8)


def read_code(coded: Tensor, rows: int) -> Tensor:
    """The matrix of so many rows that `write_code` was given."""
    return torch.frombuffer(bytearray(zlib.decompress(coded.numpy().tobytes())), dtype=torch.int8).view(rows, -1)


def _read_codes(stored: dict[str, Tensor], where: str) -> dict[str, Tensor]:
    """The same with int8 matrices in place of coded ones."""
    plain: dict[str, Tensor] = {}
    for key, tensor in stored.items():
        name = key.removesuffix(CODED)
        if name == key:
            plain[name] = tensor
            continue
        scales = stored.get(name + SCALE, torch.ones(1))  # that they are missing is told by `restore`
        try:
            plain[name] = read_code(tensor, len(scales))
        except (zlib.error, RuntimeError) as error:
            raise UserError(f"{where}: {name} is damaged ({error}); copy the model directory again") from None
    return plain


def restore(stored: dict[str, Tensor], where: str) -> dict[str, Tensor]:
    """The float32 weights of what `shrink` has made; `where` it was stored is told when parts are missing."""
    stored = _read_codes(stored, where)
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
