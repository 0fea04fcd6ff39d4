"""Twin of the growing key-value cache of decoding/beam.py: a cache that never moves, and attention through a table.

When a hypothesis of a beam search continues another, its past need not be copied: a table of ancestors holds, for each
earlier step, the slot of the cache with its key and value. On a GPU with Triton one kernel reads through that table;
elsewhere `attend_gathered` copies the past out first, which is the kernel's oracle.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from lath.devices import HAS_TRITON
from lath.model.network import KeyValues

BLOCK = 32
"""Earlier tokens that a program reads at a time."""


class BeamMask(NamedTuple):
    """Where each hypothesis finds its past: a mask for B sentences, k hypotheses each, at most L steps."""

    step: Tensor
    """1 (int64): the number of the new token, from 0."""
    ancestors: Tensor
    """B x k x L (int32): the hypothesis whose slot holds each earlier step; at `step` the hypothesis itself."""

    def attend(self, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """B x k x H x D/H queries against caches of B x L x k x H x D/H; the new token is already in them."""
        size = query.shape[-1]
        if HAS_TRITON and query.is_cuda and size & (size - 1) == 0:
            return _attend_through_table(query, keys, values, self)
        return attend_gathered(query, keys, values, self)


class BeamCache(NamedTuple):
    """The keys and values of every step of a search, B x L x k x H x D/H, for one layer."""

    keys: Tensor
    values: Tensor
    step: Tensor
    """1 (int64): where the next ones go."""

    def append(self, new: KeyValues) -> KeyValues:
        """Put what a step made, B x k x H x D/H, in its place; nothing moves."""
        self.keys.index_copy_(1, self.step, new.keys.unsqueeze(1))
        self.values.index_copy_(1, self.step, new.values.unsqueeze(1))
        return KeyValues(self.keys, self.values)


def attend_gathered(query: Tensor, keys: Tensor, values: Tensor, mask: BeamMask) -> Tensor:
    """The plain form: every hypothesis's past is copied out of the cache."""
    places = mask.ancestors.transpose(1, 2).long()[..., None, None].expand(-1, -1, -1, *keys.shape[3:])
    seen = torch.arange(keys.shape[1], device=keys.device) <= mask.step
    # B x L x k x H x D/H -> B x k x H x L x D/H
    own_keys = keys.gather(2, places).permute(0, 2, 3, 1, 4)
    own_values = values.gather(2, places).permute(0, 2, 3, 1, 4)
    mixed = functional.scaled_dot_product_attention(query.unsqueeze(3), own_keys, own_values, attn_mask=seen)
    return mixed.squeeze(3)


ROWS = 16
"""Queries of a sentence that one program attends side by side."""
MOST_QUERIES = 64
"""Queries of a sentence up to which this is faster than torch's attention, whose tiles are larger."""


def few_queries(query: Tensor, bias: Tensor) -> bool:
    """Whether the kernel is made for these queries (B x k x H x D/H): few, all of which see the same keys."""
    size = query.shape[-1]
    return query.shape[1] <= MOST_QUERIES and size >= 16 and size & (size - 1) == 0 and bias.shape[1:3] == (1, 1)


def attend_few(query: Tensor, keys: Tensor, values: Tensor, bias: Tensor, causal: bool = False) -> Tensor:
    """B x k x H x D/H queries against B x S x H x D/H keys, with B x 1 x 1 x S added to the scores.

    If `causal`, query i sees the keys 0 to i alone.
    """
    from lath.engine.kernels import few_queries_kernel

    batch, queries, heads, size = query.shape
    assert all(tensor.stride()[2:] == (size, 1) for tensor in (query, keys, values)), "heads lie side by side"
    out = torch.empty((batch, queries, heads, size), dtype=query.dtype, device=query.device)
    few_queries_kernel[(batch, heads, -(-queries // ROWS))](
        query, keys, values, bias, out, queries, keys.shape[1], size**-0.5, *query.stride()[:2], *keys.stride()[:2],
        *values.stride()[:2], bias.stride(0), HEADS=heads, SIZE=size, ROWS=ROWS, BLOCK=BLOCK,
        CAUSAL=causal, num_warps=2,
    )  # fmt: skip
    return out


def _attend_through_table(query: Tensor, keys: Tensor, values: Tensor, mask: BeamMask) -> Tensor:
    from lath.engine.kernels import attend_kernel

    batch, beam, heads, size = query.shape
    assert query.stride()[2:] == (size, 1), "heads lie side by side"
    assert all(tensor.is_contiguous() for tensor in (keys, values, mask.ancestors))
    out = torch.empty((batch, beam, heads, size), dtype=query.dtype, device=query.device)
    attend_kernel[(batch * beam, heads)](
        query, keys, values, mask.ancestors, mask.step, out, query.stride(1), keys.shape[1], beam, size**-0.5,
        HEADS=heads, SIZE=size, BLOCK=BLOCK, num_warps=2,
    )  # fmt: skip
    return out
