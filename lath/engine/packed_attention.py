"""Twin of the quadratic form in `PackedMask.attend` (packed.py): attention inside many short sentences, in kernels.

Flash attention gives every sentence and head a block of its own, made for 128 tokens, where a sentence has 10 or 30,
and its backward pass clears and sums memory for all of these blocks. Here a program takes some neighbouring tokens,
whatever sentences they belong to, and the keys of just these sentences; a mask keeps the sentences apart.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lath.engine.top_tokens import power_of_two

ROWS, BLOCK, WARPS = 64, 32, 4
"""Tokens that a program takes, tokens of the other side that it reads at a time, and its warps: the fastest of nine."""
NARROWEST = 16
"""What a matrix unit takes."""


def attend_in_sentences(
    query: Tensor, keys: Tensor, values: Tensor, key_spans: Tensor, query_spans: Tensor, causal: bool
) -> Tensor:
    """N x H x D/H queries against M x H x D/H keys; `key_spans` are 2 x N, `query_spans` 2 x M."""
    mixed: Tensor = _attend(query, keys, values, key_spans, query_spans, causal)[0]
    return mixed


@torch.library.custom_op("lath::attend_in_sentences", mutates_args=())
def _attend(
    query: Tensor, keys: Tensor, values: Tensor, key_spans: Tensor, query_spans: Tensor, causal: bool
) -> tuple[Tensor, Tensor]:
    """The mixed values, and for each query and head the logarithm (base 2) of its softmax's sum."""
    from lath.engine.kernels import attend_in_sentences_kernel

    count, heads, size = query.shape
    mixed = torch.empty((count, heads, size), dtype=query.dtype, device=query.device)
    sums = torch.empty((heads, count), dtype=torch.float32, device=query.device)
    attend_in_sentences_kernel[(_tiles(count), heads)](
        query, keys, values, key_spans, mixed, sums, count, size**-0.5, *_strides(query, keys, values),
        **_sizes(query, causal),
    )  # fmt: skip
    return mixed, sums


@torch.library.custom_op("lath::attend_in_sentences_backward", mutates_args=())
def _attend_backward(
    gradient: Tensor, query: Tensor, keys: Tensor, values: Tensor, spans: list[Tensor], mixed: Tensor, sums: Tensor,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of queries, keys and values."""
    from lath.engine.kernels import key_gradients_kernel, query_gradients_kernel

    count, heads, size = query.shape
    gradient = gradient.contiguous()
    of_query, of_keys, of_values = (tensor.new_empty(tensor.shape) for tensor in (query, keys, values))
    inner = torch.empty_like(sums)
    strides, sizes = _strides(query, keys, values), _sizes(query, causal)
    query_gradients_kernel[(_tiles(count), heads)](
        query, keys, values, spans[0], mixed, sums, gradient, of_query, inner, count, size**-0.5, *strides, **sizes,
    )  # fmt: skip
    key_gradients_kernel[(_tiles(len(keys)), heads)](
        query, keys, values, spans[1], sums, gradient, inner, of_keys, of_values, count, len(keys), size**-0.5,
        *strides, **sizes,
    )  # fmt: skip
    return of_query, of_keys, of_values


@_attend.register_fake
def _(
    query: Tensor, keys: Tensor, values: Tensor, key_spans: Tensor, query_spans: Tensor, causal: bool
) -> tuple[Tensor, Tensor]:
    count, heads, size = query.shape
    return query.new_empty((count, heads, size)), query.new_empty((heads, count), dtype=torch.float32)


@_attend_backward.register_fake
def _(
    gradient: Tensor, query: Tensor, keys: Tensor, values: Tensor, spans: list[Tensor], mixed: Tensor, sums: Tensor,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    of_query, of_keys, of_values = (tensor.new_empty(tensor.shape) for tensor in (query, keys, values))
    return of_query, of_keys, of_values


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.causal = inputs
    ctx.save_for_backward(*tensors, *output)


def _differentiate(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    query, keys, values, key_spans, query_spans, mixed, sums = ctx.saved_tensors
    spans = [key_spans, query_spans]
    return *_attend_backward(gradient, query, keys, values, spans, mixed, sums, ctx.causal), None, None, None


_attend.register_autograd(_differentiate, setup_context=_remember)


def _tiles(count: int) -> int:
    return -(-count // ROWS)


def _strides(*tensors: Tensor) -> list[int]:
    """From token to token and from head to head; the numbers of a head lie side by side."""
    assert all(tensor.stride(2) == 1 for tensor in tensors)
    return [stride for tensor in tensors for stride in tensor.stride()[:2]]


def _sizes(query: Tensor, causal: bool) -> dict[str, Any]:
    """What the kernels are compiled for."""
    heads, size = query.shape[1:]
    width = max(NARROWEST, power_of_two(size))
    return {"HEADS": heads, "SIZE": size, "WIDTH": width, "CAUSAL": causal, "ROWS": ROWS, "BLOCK": BLOCK,
            "num_warps": WARPS}  # fmt: skip
