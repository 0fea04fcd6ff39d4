"""Weights in fewer bytes: how a compressed model directory stores them (docs/formats.md), and back to float32.

    stored = shrink(weights, "int8", where)
    check_stored(stored, shapes, "int8", where)     # reads no numbers
    weight = restore(stored, name, shape, where)    # float32, rounded once

fp16 takes half the bytes: all tensors are float16. int8 takes a quarter: large matrices are integers from -127 to 127
with one scale for each row; norms and biases are float16. coded takes about a seventh: the integers have larger steps,
so that most are small, and a Huffman code (written by zlib) gives small integers fewer bits.

engine/int8.py rounds the rows of a matrix by the same rule when a CPU computes in int8. The largest number of a row is
stored as 127 or -127, so rounding again gives the same integers: weights stored in int8 and used in int8 are rounded
only once.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence

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
FLOATS = (torch.float32, torch.float16, torch.bfloat16)
LARGEST = torch.finfo(torch.float16).max
"""No weight of a model that works comes near; a flipped bit of an exponent goes far beyond."""
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
    scales = torch.linalg.vector_norm(rows, torch.inf, dim=1).clamp_min(SMALLEST_RANGE) / LEVELS
    if least:
        scales = scales.maximum(least * rows.square().mean(dim=1).sqrt())
    numbers = (rows / scales[:, None]).round_().to(torch.int8)
    return numbers.view(matrix.shape), scales


def write_code(numbers: Tensor) -> Tensor:
    """int8 numbers as a zlib stream, Huffman coding only: random-looking numbers have no repetitions to find."""
    coder = zlib.compressobj(level=9, memLevel=9, strategy=zlib.Z_HUFFMAN_ONLY)
    coded = coder.compress(numbers.numpy().tobytes()) + coder.flush()
    return torch.frombuffer(bytearray(coded), dtype=torch.uint8)


def read_code(coded: Tensor, shape: Sequence[int]) -> Tensor:
    """The inverse of `write_code`; a stream of more or fewer numbers than `shape` has is a `ValueError`."""
    size, decoder = math.prod(shape), zlib.decompressobj()
    # One byte more than there may be: a stream that is longer shows, and one that is not reaches its end.
    raw = decoder.decompress(coded.numpy().data, size + 1)
    if len(raw) != size or not decoder.eof or decoder.unused_data:
        raise ValueError(f"its code does not have {size} numbers")
    return torch.frombuffer(bytearray(raw), dtype=torch.int8).view(*shape)


Shapes = Mapping[str, Sequence[int]]
"""Of each parameter of a network, by name."""


def check_stored(stored: Mapping[str, Tensor], shapes: Shapes, storage: str, where: str) -> None:
    """Refuse tensors that are not a network's in the given storage format, by their names, types and shapes alone."""
    known: set[str] = set()
    for name, shape in shapes.items():
        coded = storage != FULL and name not in stored and name + CODED in stored
        key = name + CODED if coded else name
        if key not in stored:
            raise UserError(
                f"{where}: lacks tensor {name!r}; the weights are of another kind of model than config.json says"
            )
        tensor, dtype = stored[key], stored[key].dtype
        # A Huffman code has at least one bit for each number; zlib keeps it hardly longer than the numbers themselves.
        # So nobody can ask for much more memory than the file has.
        size = math.prod(shape)
        if coded and (dtype != torch.uint8 or tensor.dim() != 1 or not size / 8 < len(tensor) < 1.001 * size + 64):
            raise UserError(f"{where}: {name} is no code for its shape {tuple(shape)}; copy the model directory again")
        if not coded and tensor.shape != tuple(shape):
            raise UserError(
                f"{where}: {name} has shape {tuple(tensor.shape)}, config.json and vocabulary ask for {tuple(shape)}; "
                f"the files are of different models"
            )
        known.add(key)
        if coded or (storage != FULL and dtype == torch.int8 and len(shape) > 1):
            scale = stored.get(name + SCALE)
            if scale is None or scale.dtype != torch.float32 or scale.shape != tuple(shape[:1]):
                raise UserError(
                    f"{where}: the scales of {name} are missing or do not fit; copy the model directory again"
                )
            known.add(name + SCALE)
        elif dtype not in FLOATS:
            raise UserError(f"{where}: {name} is {dtype}, which {storage} weights are not; copy the directory again")
    for name in sorted(stored.keys() - known):
        raise UserError(
            f"{where}: has an unknown tensor {name!r}; the weights are of another kind of model than config.json says"
        )


def restore(stored: Mapping[str, Tensor], name: str, shape: Sequence[int], where: str) -> Tensor:
    """A float32 weight of what `shrink` wrote and `check_stored` accepted; `where` names the file in errors."""
    scale = stored.get(name + SCALE)
    try:
        tensor = stored[name] if name in stored else read_code(stored[name + CODED], shape)
    except (zlib.error, ValueError) as error:
        raise UserError(f"{where}: {name} is damaged ({error}); copy the model directory again") from None
    # For integers the scales say how large a weight can be. Comparisons with NaN are false.
    low, high = torch.aminmax(tensor if scale is None else scale)
    fits = low >= -LARGEST and high <= LARGEST if scale is None else low > 0 and high <= LARGEST / LEVELS
    if not fits:
        raise UserError(
            f"{where}: {name} contains values that are not finite, or too large for float16; "
            f"the file is damaged or the training has diverged, use another model"
        )
    weight = tensor.float()
    return weight if scale is None else weight.mul_(scale.view(-1, *[1] * (tensor.dim() - 1)))
