"""Weights in fewer bytes: how a compressed model directory stores them (docs/formats.md), and back to float32.

    stored = shrink(weights, "int8", where)
    weights = restore(stored, where)        # float32, rounded once

fp16 takes half the bytes: all tensors are float16. int8 takes a quarter: large matrices are integers from -127 to 127
with one scale for each row; norms and biases are float16. coded takes about a seventh: the integers have larger steps,
so that most are small, and a Huffman code (written by zlib) gives small integers fewer bits.

engine/int8.py rounds the rows of a matrix by the same rule when a CPU computes in int8. The largest number of a row is
stored as 127 or -127, so rounding again gives the same integers: weights stored in int8 and used in int8 are rounded
only once.
"""

from __future__ import annotations

import zlib

import torch
from torch import Tensor

from lath.errors import UserError

FULL = "fp32"
"""As written by training."""
SMALLER = ("coded", "int8", "fp16")
"""The formats that `shrink` can write, smallest first."""
LEVELS = 127
"""The largest integer."""
SMALLEST_RANGE = 1e-12
"""Keeps the scale of a row of zeros above 0."""
SMALLEST_MATRIX = 4096
"""Smaller matrices are stored as float16: their scales would take more bytes than they save."""
SCALE = "/scale"
"""Suffix of the name of a matrix's scales; parameter names have dots and no slashes."""
CODED = "/coded"
"""Suffix of the name of a matrix's Huffman-coded integers."""
COARSE_STEP = 0.2
"""The step of `coded`, relative to a row's root mean square: 4.5 bits per weight. Finer steps cost bits, coarser ones
BLEU."""


def shrink(weights: dict[str, Tensor], storage: str, where: str) -> dict[str, Tensor]:
    """Weights by name in the given storage format; `where` names their file in errors."""
    assert storage in SMALLER, storage
    stored: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        half = tensor.detach().half().contiguous()
        if not half.isfinite().all():
            raise UserError(
                f"{where}: {name} contains values that are not finite, or too large for float16; "
                f"the training has diverged, use another model"
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
    """A matrix of two or more dimensions as int8, and the float32 scale of each row.

    A scale is as small as the row's largest number allows, but at least `least` times its root mean square.

    Smaller scales, which clip a row's largest numbers, do not help: on four trained models the best of eight scales
    for each row gave the same squared error to four digits. float16 scales would save less than 1 % of the bytes and
    would need a special case for rows of tiny numbers.
    """
    rows = matrix.flatten(1)
    scales = rows.abs().amax(dim=1).clamp_min(SMALLEST_RANGE) / LEVELS
    scales = scales.maximum(least * rows.square().mean(dim=1).sqrt())
    numbers = (rows / scales[:, None]).round_().to(torch.int8)
    return numbers.view(matrix.shape), scales


def write_code(numbers: Tensor) -> Tensor:
    """int8 numbers as a zlib stream, Huffman coding only: random-looking numbers have no repetitions to find."""
    coder = zlib.compressobj(level=9, memLevel=9, strategy=zlib.Z_HUFFMAN_ONLY)
    coded = coder.compress(numbers.numpy().tobytes()) + coder.flush()
    return torch.frombuffer(bytearray(coded), dtype=torch.uint8)


def read_code(coded: Tensor, rows: int) -> Tensor:
    """The inverse of `write_code`, as a matrix with the given number of rows."""
    return torch.frombuffer(bytearray(zlib.decompress(coded.numpy().tobytes())), dtype=torch.int8).view(rows, -1)


def _read_codes(stored: dict[str, Tensor], where: str) -> dict[str, Tensor]:
    """The same tensors, with coded matrices as int8 matrices."""
    plain: dict[str, Tensor] = {}
    for key, tensor in stored.items():
        name = key.removesuffix(CODED)
        if name == key:
            plain[name] = tensor
            continue
        scales = stored.get(name + SCALE, torch.ones(1))  # `restore` reports missing scales
        try:
            plain[name] = read_code(tensor, len(scales))
        except (zlib.error, RuntimeError) as error:
            raise UserError(f"{where}: {name} is damaged ({error}); copy the model directory again") from None
    return plain


def restore(stored: dict[str, Tensor], where: str) -> dict[str, Tensor]:
    """The float32 weights of what `shrink` wrote; `where` names the file in errors."""
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
                    f"{where}: the scales of {name} are missing or do not fit; copy the model directory again"
                )
            weights[name] *= scale.view(-1, *[1] * (tensor.dim() - 1))
    for name in scales:
        raise UserError(f"{where}: scales for {name}, but no such tensor; copy the model directory again")
    return weights
