"""int8 on the CPU, approximate: weights in eight bits, activations quantised row by row as they come.

    small = quantise(model)     # decode(small, ...) works as with any model

The oracle is the same layer in fp32, up to rounding: scores stay within noise, single words may differ.

A linear layer y = W x + b becomes y = (q . Q) * scale * range / 127 + b with

    Q, scale   the weights as integers from -127 to 127, one scale for each output, made once
    q, range   the row x as integers from -127 to 127, one range for each row, computed when it is used

Libraries take one range for a whole tensor. One for each row keeps a token's result independent of padding and of the
sentences that share its batch. Only `(q . Q) * scale / 127` is left to PyTorch, behind one type, `Product`: prepared
weights are faster, unprepared ones need no preparation, which takes longer than many a product.
"""

from __future__ import annotations

import copy
import functools
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from lath.engine.swap import swapped
from lath.engine.unpadded import unpadded_mask
from lath.errors import UserError, did_you_mean
from lath.model.directory import LoadedModel, Replacement, load_model
from lath.model.network import (
    NORM_EPSILON,
    DecoderLayer,
    EncoderLayer,
    FeedForward,
    KeyValues,
    Mask,
    Model,
    Past,
    Residual,
    top_tokens,
)
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
"""States whose logits, or wide layer, are made at a time: more are no faster, and thousands leave the cache again."""

_PREPARING = threading.Lock()
"""torch's quantised engine and Python's warning filters belong to the whole process, not to a thread."""


# ---- products -------------------------------------------------------------------------------------------------


def fbgemm_product(weight: Tensor, scale: Tensor, levels: int) -> Product:
    """By PyTorch's quantised tensors: the fastest, and deprecated (pytorch issue 184982)."""
    with _PREPARING, warnings.catch_warnings(action="ignore"):
        before = torch.backends.quantized.engine
        torch.backends.quantized.engine = "fbgemm"  # the prepared weights remember it
        try:
            zeros = torch.zeros(len(weight), dtype=torch.int64)
            quantised = torch._make_per_channel_quantized_tensor(weight, scale.double(), zeros, 0)
            prepared = torch.ops.quantized.linear_prepack(quantised, None)
        finally:
            torch.backends.quantized.engine = before
    # `_op` is what torch.ops calls after a look at every argument, which takes as long as a small product.
    multiply = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32.default._op
    step, zero = 1 / levels, levels + 1

    def product(rows: Tensor) -> Tensor:
        out: Tensor = multiply(rows, step, zero, prepared)
        return out

    return product


def integer_product(weight: Tensor, scale: Tensor, levels: int) -> Product:
    """By PyTorch's product of integers: weights need no preparation."""
    transposed, factor = weight.t(), scale / levels

    def product(rows: Tensor) -> Tensor:
        integers = rows.mul(levels).round_().to(torch.int8).view(-1, rows.shape[-1])
        return torch._int_mm(integers, transposed).float().mul_(factor).view(*rows.shape[:-1], len(factor))

    return product


BACKENDS: dict[str, Backend] = {"fbgemm": fbgemm_product, "integer": integer_product}
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
        if levels_of(name):
            return name
    raise UserError("int8 does not work on this machine; use fp32")


# ---- layers ---------------------------------------------------------------------------------------------------


class Rows(NamedTuple):
    """Rows of numbers, ready to be rounded to levels; several layers may multiply them."""

    numbers: Tensor
    """... x I, from -1 to 1: each row divided by its range."""
    ranges: Tensor
    """... x 1: the largest absolute value of each row."""


def quantised_rows(x: Tensor) -> Rows:
    """Rows of ... x I numbers."""
    ranges = x.abs().amax(dim=-1, keepdim=True).clamp_min_(SMALLEST_RANGE)
    return Rows(x / ranges, ranges)


def _known_levels(backend: str) -> int:
    levels = levels_of(backend)
    assert levels is not None
    return levels


class Int8Linear(nn.Module):
    """A linear layer in int8 that can also compute only some of its outputs, as a `Projection`."""

    weight: Tensor
    scale: Tensor
    bias: Tensor | None

    def __init__(self, weight: Tensor, bias: Tensor | None, backend: str) -> None:
        super().__init__()
        numbers, scales = quantise_rows(weight.detach().float())
        self.register_buffer("weight", numbers)
        self.register_buffer("scale", scales)
        self.register_buffer("bias", None if bias is None else bias.detach().float())
        self.backend, self.levels, self.entries = backend, _known_levels(backend), len(weight)
        self._products: dict[tuple[int, int], tuple[Product, Tensor | None]] = {}

    def product(self, start: int, stop: int) -> tuple[Product, Tensor | None]:
        """The product with the weights of some of the outputs, prepared at its first use, and their biases."""
        made = self._products.get((start, stop))
        if made is None:
            product = BACKENDS[self.backend](self.weight[start:stop], self.scale[start:stop], self.levels)
            made = product, None if self.bias is None else self.bias[start:stop]
            self._products[start, stop] = made
        return made

    def select(self, outputs: Tensor) -> Int8Linear:
        """A layer with some of the outputs alone, in the given order."""
        selected = copy.copy(self)
        selected._buffers = {
            name: None if buffer is None else buffer.index_select(0, outputs) for name, buffer in self._buffers.items()
        }
        selected.backend, selected.levels, selected.entries = "integer", _known_levels("integer"), len(outputs)
        selected._products = {}
        return selected

    def outputs(self, x: Tensor, start: int, stop: int) -> Tensor:
        """Outputs `start` to `stop`."""
        product, bias = self.product(start, stop)
        return scaled(product, quantised_rows(x), bias)

    def of(self, rows: Rows, bias: Tensor | None = None) -> Tensor:
        """All outputs, of rows that are quantised already; with another bias than its own if one is given."""
        product, own = self.product(0, self.entries)
        return scaled(product, rows, own if bias is None else bias)

    def forward(self, x: Tensor) -> Tensor:
        """... x I to ... x O."""
        return self.of(quantised_rows(x))


def scaled(product: Product, rows: Rows, bias: Tensor | None) -> Tensor:
    """A product with quantised rows in their own size, and a bias."""
    out = product(rows.numbers)
    return out.mul_(rows.ranges) if bias is None else torch.addcmul(bias, out, rows.ranges, out=out)


Function = Callable[[Tensor], Tensor]


def linear(layer: nn.Module, start: int = 0, stop: int | None = None) -> Function:
    """Some outputs of an `Int8Linear`, as a function."""
    assert isinstance(layer, Int8Linear)
    last = layer.entries if stop is None else stop

    def apply(x: Tensor) -> Tensor:
        product, bias = layer.product(start, last)
        return scaled(product, quantised_rows(x), bias)

    return apply


def feedforward(plain: FeedForward) -> Function:
    """`FeedForward` as a function, `ROWS` at a time."""
    widen, narrow = linear(plain.widen), linear(plain.narrow)

    def block(x: Tensor) -> Tensor:
        return narrow(torch._C._nn.gelu_(widen(x)))  # type: ignore[attr-defined]  # functional has no such form

    def apply(x: Tensor) -> Tensor:
        rows = x.flatten(0, -2)
        return block(x) if len(rows) <= ROWS else torch.cat(list(map(block, torch.split(rows, ROWS)))).view(x.shape)

    return apply


def residual(plain: Residual) -> Callable[[Tensor, Tensor], Tensor]:
    """`Residual` as a function, which overwrites what is added."""
    shape, weight, bias = plain.norm.normalized_shape, plain.norm.weight, plain.norm.bias
    return lambda x, added: torch.layer_norm(added.add_(x), shape, weight, bias, NORM_EPSILON)


class Int8EncoderLayer(nn.Module):
    """`EncoderLayer` of layers in int8. Calls of modules would take 7 % of the time of a sentence."""

    def __init__(self, plain: EncoderLayer) -> None:
        super().__init__()
        self.plain = plain
        attention = plain.attention
        self._shape = 3, attention.heads, attention.width // attention.heads
        self._project, self._output = linear(attention.project), linear(attention.output)
        self._feedforward = feedforward(plain.feedforward)
        self._after_attention = residual(plain.attention_residual)
        self._after_feedforward = residual(plain.feedforward_residual)

    def forward(self, x: Tensor, mask: Mask) -> Tensor:
        """... x D."""
        mixed = mask.attend(*self._project(x).view(*x.shape[:-1], *self._shape).unbind(-3))
        x = self._after_attention(x, self._output(mixed.flatten(-2)))
        return self._after_feedforward(x, self._feedforward(x))


class Int8DecoderLayer(nn.Module):
    """`DecoderLayer` of layers in int8."""

    def __init__(self, plain: DecoderLayer) -> None:
        super().__init__()
        self.plain, self.cross = plain, plain.cross
        attention, cross = plain.attention, plain.cross
        self._shape = 3, attention.heads, attention.width // attention.heads
        self._project, self._output = linear(attention.project), linear(attention.output)
        self._query, self._cross_output = linear(cross.project, 0, cross.width), linear(cross.output)
        self._feedforward = feedforward(plain.feedforward)
        self._after_attention = residual(plain.attention_residual)
        self._after_cross = residual(plain.cross_residual)
        self._after_feedforward = residual(plain.feedforward_residual)

    def forward(
        self, x: Tensor, mask: Mask, memory: KeyValues, memory_mask: Mask, past: Past | None
    ) -> tuple[Tensor, KeyValues]:
        """... x D. The keys and values of `past` come in front of x's own."""
        x, attended = self.attend_itself(x, mask, past)
        return self.attend_memory(x, memory, memory_mask), attended

    def attend_itself(self, x: Tensor, mask: Mask, past: Past | None = None) -> tuple[Tensor, KeyValues]:
        """The first third of the layer."""
        query, keys, values = self._project(x).view(*x.shape[:-1], *self._shape).unbind(-3)
        attended = KeyValues(keys, values)
        if past is not None:
            attended = past.append(attended)
        mixed = mask.attend(query, attended.keys, attended.values)
        return self._after_attention(x, self._output(mixed.flatten(-2))), attended

    def attend_memory(self, x: Tensor, memory: KeyValues, mask: Mask) -> Tensor:
        """The rest: attention to the source, and feed-forward."""
        query = self._query(x).view(*x.shape[:-1], *self._shape[1:])
        mixed = mask.attend(query, memory.keys, memory.values)
        x = self._after_cross(x, self._cross_output(mixed.flatten(-2)))
        return self._after_feedforward(x, self._feedforward(x))


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

        As `network.best_tokens`, but a few thousand logits at a time: several passes over all 32,000 logits of a state
        would cost as much as computing them.
        """
        blocks = [
            self._best_of(rows, size, forbidden) for rows in torch.split(states.reshape(-1, states.shape[-1]), ROWS)
        ]
        scores, ids = (torch.cat(columns).view(states.shape[:-1]) for columns in zip(*blocks, strict=True))
        return scores, ids

    def top_tokens(self, states: Tensor, size: int, forbidden: tuple[int, ...], count: int) -> tuple[Tensor, Tensor]:
        """As `network.top_tokens`, from states."""
        return top_tokens(self.logits(states), size, forbidden, count)

    def _best_of(self, states: Tensor, size: int, forbidden: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        rows, ranges = quantised_rows(states)
        entries = len(self.output.weight)
        logits, sums, maxima = [], [], []
        for start in range(0, entries, CHUNK):
            stop = min(start + CHUNK, entries)
            chunk = self.output.product(start, stop)[0](rows).mul_(ranges)
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


def load_int8(directory: Path) -> LoadedModel:
    """A model directory in int8: `quantise`, without float32 weights beyond those of one layer."""
    loaded = load_model(directory, torch.device("cpu"), int8_modules)
    loaded.model.body.make_mask = unpadded_mask
    return loaded


def quantise(model: Model, backend: str | None = None) -> Model:
    """A copy of a model on the CPU whose linear layers and output matrix are int8; it shares the other weights."""
    quantised = swapped(model, int8_modules(model, backend))
    quantised.body.make_mask = unpadded_mask  # int8 would amplify what padding does to float sums
    return quantised


def int8_modules(model: Model, backend: str | None = None) -> Replacement:
    """What replaces the modules of this model."""
    chosen = backend or choose_backend()
    if chosen not in BACKENDS:
        raise UserError(f"unknown int8 backend {chosen!r}{did_you_mean(chosen, BACKENDS)}; use {', '.join(BACKENDS)}")
    if levels_of(chosen) is None:
        raise UserError(f"int8 backend {chosen!r} does not work on this machine; leave the choice to lath")
    output = model.body.output_table

    def int8(module: nn.Module) -> nn.Module | None:
        if module is output:
            return Int8Table(output, chosen)
        if isinstance(module, nn.Linear):
            return Int8Linear(module.weight, module.bias, chosen)
        if isinstance(module, EncoderLayer):
            return Int8EncoderLayer(swapped(module, int8))
        if isinstance(module, DecoderLayer):
            return Int8DecoderLayer(swapped(module, int8))
        return nn.Identity() if isinstance(module, nn.Dropout) else None

    return int8
