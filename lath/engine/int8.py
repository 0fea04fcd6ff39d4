"""int8 on the CPU: weights in eight bits, activations quantised row by row as they come.

    small = quantise(model)     # a copy; decode(small, ...) works as ever

A linear layer y = W x + b becomes y = (q . Q) * scale * range / 127 + b with

    Q, scale   the weights as integers from -127 to 127, one scale for each output, made once
    q, range   the row x as integers from -127 to 127, one range for each row, made on the way

One range for each row and not for the whole tensor, as libraries have it, so that a token's result depends neither
on the sentences that share its batch nor on padding. Only `(q . Q) * scale / 127` is left to a library. It is behind
one type, `Product`, because PyTorch means to drop the fastest; two slower ones are there for that day.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import warnings
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn

from lath.errors import UserError, did_you_mean
from lath.model.network import Model, Table
from lath.model.storage import LEVELS, SMALLEST_RANGE, quantise_rows

Product = Callable[[Tensor], Tensor]
"""... x I numbers from -1 to 1, rounded to levels, to ... x O: their products with the weights of a layer."""

Backend = Callable[[Tensor, Tensor, int], Product]
"""O x I int8 weights, their O scales and the number of levels of x on each side of 0, to a product."""

FEW_LEVELS = 63
"""Levels of x on each side of 0 where the processor adds products of bytes in 16 bits, which overflow with more."""
CHUNK = 4096
"""Vocabulary entries whose logits are made at a time, so that they stay in the cache."""
ROWS = 256
"""States whose logits are made at a time: more are no faster, and thousands leave the cache again."""


# ---- products -------------------------------------------------------------------------------------------------


def fbgemm_product(weight: Tensor, scale: Tensor, levels: int) -> Product:
    """By PyTorch's quantised tensors: the fastest, and deprecated (pytorch issue 184982)."""
    before = torch.backends.quantized.engine
    torch.backends.quantized.engine = "fbgemm"  # the packed weights remember it
    try:
        with warnings.catch_warnings(action="ignore"):
            zeros = torch.zeros(len(weight), dtype=torch.int64)
            quantised = torch._make_per_channel_quantized_tensor(weight, scale.double(), zeros, 0)
            packed = torch.ops.quantized.linear_prepack(quantised, None)
    finally:
        torch.backends.quantized.engine = before
    multiply = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32

    def product(rows: Tensor) -> Tensor:
        out: Tensor = multiply(rows, 1 / levels, levels + 1, packed)
        return out

    return product


def unpacked_product(weight: Tensor, scale: Tensor, levels: int) -> Product:
    """By PyTorch's product of integers: weights need no packing, which takes longer than many a product."""
    transposed, factor = weight.t(), scale / levels

    def product(rows: Tensor) -> Tensor:
        integers = rows.mul(levels).round_().to(torch.int8).view(-1, rows.shape[-1])
        return torch._int_mm(integers, transposed).float().mul_(factor).view(*rows.shape[:-1], len(factor))

    return product


def onnx_product(weight: Tensor, scale: Tensor, levels: int) -> Product:
    """By ONNX Runtime: a graph of four nodes."""
    try:
        import onnx
        import onnxruntime
    except ImportError:
        raise UserError("int8 by ONNX Runtime: it is not installed; pip install 'lath[int8]'") from None
    helper, kinds = onnx.helper, onnx.TensorProto
    constants = [
        onnx.numpy_helper.from_array(weight.t().contiguous().numpy(), "weight"),
        onnx.numpy_helper.from_array((scale / levels).numpy(), "scale"),
        helper.make_tensor("level", kinds.FLOAT, [], [1 / levels]),
        helper.make_tensor("zero", kinds.UINT8, [], [levels + 1]),
    ]
    nodes = [
        helper.make_node("QuantizeLinear", ["rows", "level", "zero"], ["bytes"]),
        helper.make_node("MatMulInteger", ["bytes", "weight", "zero"], ["sums"]),
        helper.make_node("Cast", ["sums"], ["numbers"], to=kinds.FLOAT),
        helper.make_node("Mul", ["numbers", "scale"], ["out"]),
    ]
    rows = helper.make_tensor_value_info("rows", kinds.FLOAT, None)
    out = helper.make_tensor_value_info("out", kinds.FLOAT, None)
    graph = helper.make_graph(nodes, "product", [rows], [out], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])

    def product(rows: Tensor) -> Tensor:
        return torch.from_numpy(session.run(None, {"rows": rows.numpy()})[0])

    return product


BACKENDS: dict[str, Backend] = {"fbgemm": fbgemm_product, "onnx": onnx_product, "unpacked": unpacked_product}
"""The fastest first."""


@functools.cache
def levels_of(backend: str) -> int | None:
    """How many levels a backend multiplies exactly on this machine; None if it does not work here."""
    for levels in (LEVELS, FEW_LEVELS):
        rows = torch.ones(2, 64)
        weight = torch.full((16, 64), LEVELS, dtype=torch.int8)
        try:
            out = BACKENDS[backend](weight, torch.ones(16), levels)(rows)
        except (AttributeError, RuntimeError):
            return None
        if torch.allclose(out, torch.tensor(64.0 * LEVELS)):
            return levels
    return None


def choose_backend() -> str:
    """The first backend that works here."""
    for name in BACKENDS:
        with contextlib.suppress(UserError):  # one that is not installed
            if levels_of(name):
                return name
    raise UserError("int8 does not work on this machine; use fp32")


# ---- layers ---------------------------------------------------------------------------------------------------


def row_ranges(x: Tensor) -> Tensor:
    """... x 1: the largest absolute value in each row of ... x I numbers."""
    return x.abs().amax(dim=-1, keepdim=True).clamp_min_(SMALLEST_RANGE)


def _known_levels(backend: str) -> int:
    levels = levels_of(backend)
    assert levels is not None
    return levels


class Int8Linear(nn.Module):
    """A linear layer in int8; a part of its outputs can be asked for, as of a `Projection`."""

    weight: Tensor
    scale: Tensor
    bias: Tensor | None

    def __init__(self, weight: Tensor, bias: Tensor | None, backend: str) -> None:
        super().__init__()
        numbers, scales = quantise_rows(weight.detach().float())
        self.register_buffer("weight", numbers)
        self.register_buffer("scale", scales)
        self.register_buffer("bias", None if bias is None else bias.detach().float())
        self.backend, self.levels = backend, _known_levels(backend)
        self._parts: dict[tuple[int, int], tuple[Product, Tensor | None]] = {}

    def packed(self, start: int, stop: int) -> tuple[Product, Tensor | None]:
        """The product with the weights of some of the outputs, packed at its first use, and their biases."""
        made = self._parts.get((start, stop))
        if made is None:
            product = BACKENDS[self.backend](self.weight[start:stop], self.scale[start:stop], self.levels)
            made = product, None if self.bias is None else self.bias[start:stop]
            self._parts[start, stop] = made
        return made

    def select(self, outputs: Tensor) -> Int8Linear:
        """A layer with some of the outputs alone, in the given order."""
        selected = copy.copy(self)
        selected._buffers = {
            name: None if buffer is None else buffer.index_select(0, outputs) for name, buffer in self._buffers.items()
        }
        selected.backend, selected.levels, selected._parts = "unpacked", _known_levels("unpacked"), {}
        return selected

    def part(self, x: Tensor, start: int, stop: int) -> Tensor:
        """Outputs `start` to `stop` alone."""
        product, bias = self.packed(start, stop)
        ranges = row_ranges(x)
        out = product(x / ranges).mul_(ranges)
        return out if bias is None else out.add_(bias)

    def forward(self, x: Tensor) -> Tensor:
        """... x I to ... x O."""
        return self.part(x, 0, len(self.weight))


class Int8Table(nn.Embedding):
    """Token vectors as they were, and the output matrix in int8."""

    def __init__(self, table: nn.Embedding, backend: str) -> None:
        super().__init__(len(table.weight), table.weight.shape[1], _weight=table.weight.detach())
        self.output = Int8Linear(table.weight, None, backend)

    def logits(self, states: Tensor) -> Tensor:
        """... x D states to ... x V logits."""
        logits: Tensor = self.output(states)
        return logits

    def best_tokens(self, states: Tensor, size: int, forbidden: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """The log-probability and id of the likeliest token that may be written, for each state.

        As `model.best_tokens`, but a few thousand logits at a time: going over all 32,000 of every state again and
        again would cost as much as making them.
        """
        blocks = [
            self._best_of(rows, size, forbidden) for rows in torch.split(states.reshape(-1, states.shape[-1]), ROWS)
        ]
        scores, ids = (torch.cat(parts).view(states.shape[:-1]) for parts in zip(*blocks, strict=True))
        return scores, ids

    def _best_of(self, states: Tensor, size: int, forbidden: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        ranges = row_ranges(states)
        rows = states / ranges
        entries = len(self.output.weight)
        logits, sums, maxima = [], [], []
        for start in range(0, entries, CHUNK):
            stop = min(start + CHUNK, entries)
            chunk = self.output.packed(start, stop)[0](rows).mul_(ranges)
            highest = chunk.amax(dim=1)
            sums.append(log_sum_exp(chunk, highest))
            if start <= max(forbidden) or size < stop:
                out = [
                    *(id - start for id in forbidden if start <= id < stop),
                    *range(max(size - start, 0), stop - start),
                ]
                highest = chunk.index_fill_(1, torch.tensor(out, dtype=torch.long), -torch.inf).amax(dim=1)
            logits.append(chunk)
            maxima.append(highest)
        best = torch.stack(maxima).max(dim=0)
        # To find where a maximum is takes far longer than to find it: one chunk of each row is searched.
        ids = [number * CHUNK + int(logits[number][row].argmax()) for row, number in enumerate(best.indices.tolist())]
        return best.values - torch.stack(sums).logsumexp(dim=0), torch.tensor(ids)


def log_sum_exp(logits: Tensor, highest: Tensor) -> Tensor:
    """The logarithm of each row's summed exponentials, by softmax, whose exponential is the fastest there is."""
    # The likeliest entry has the logit m and the probability exp(m) / sum.
    return highest - logits.softmax(dim=1).amax(dim=1).log_()


# ---- models ---------------------------------------------------------------------------------------------------


def quantise(model: Model, backend: str | None = None) -> Model:
    """A copy of a model, on the CPU, whose linear layers and output matrix are int8."""
    chosen = backend or choose_backend()
    if chosen not in BACKENDS:
        raise UserError(f"unknown int8 backend {chosen!r}{did_you_mean(chosen, BACKENDS)}; use {', '.join(BACKENDS)}")
    if levels_of(chosen) is None:
        raise UserError(f"int8 backend {chosen!r} does not work on this machine; leave the choice to lath")
    copied = copy.deepcopy(model).cpu().eval().requires_grad_(False)
    _replace(copied, chosen)
    tables = copied.body.tables
    tables[-1] = Int8Table(cast(Table, tables[-1]), chosen)
    return copied


def _replace(module: nn.Module, backend: str) -> None:
    for name, child in module.named_children():
        if isinstance(child, nn.Linear):
            setattr(module, name, Int8Linear(child.weight, child.bias, backend))
        elif isinstance(child, nn.Dropout):
            setattr(module, name, nn.Identity())
        else:
            _replace(child, backend)
