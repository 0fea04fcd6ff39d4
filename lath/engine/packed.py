"""Sentences end to end in one array: the fast twin of padded batches, without their padding.

A packed array has a fixed size whatever the sentences in it, so that one compiled network serves every update. The
padded form stays the oracle: `tests/test_packed.py` holds both to the same loss and gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from lath.engine.packed_attention import attend_in_sentences, has_packed_kernel


@dataclass(frozen=True)
class Packed:
    """Sentences end to end in one array of fixed size; what is left over at the end belongs to empty sentences."""

    tokens: Tensor
    """N."""
    positions: Tensor
    """N: the place of each token in its own sentence."""
    bounds: Tensor
    """R + 1, int32: sentence r is tokens[bounds[r]:bounds[r + 1]]; the last bound is N."""


@dataclass(frozen=True)
class PackedSource:
    """A packed source with the LENGTH slots that CMLM and LAT put in front of each sentence."""

    with_slots: Packed
    """Slots and tokens; what tokens and positions say at a slot is not read."""
    is_slot: Tensor
    """For each entry of `with_slots`, whether it is a slot."""
    slot_places: Tensor
    """R: where each sentence's slot is in `with_slots` (an empty sentence's place is any)."""
    token_places: Tensor
    """N: where each token is in `with_slots`."""
    bounds: Tensor
    """R + 1, int32: the sentences among the tokens, that is without slots."""


class PackedMask(NamedTuple):
    """Which queries of one packed array may attend to which keys of another: those of the same sentence."""

    bounds: Tensor
    """R + 1: the bounds of the sentences among the queries."""
    key_spans: Tensor
    """2 x N: where the keys of each query's sentence begin and end."""
    query_spans: Tensor
    """2 x M: where the queries of each key's sentence do."""
    causal: bool


def packed_mask(queries: Tensor, query_count: int, keys: Tensor, key_count: int, causal: bool) -> PackedMask:
    """The mask of two packed arrays, by the bounds of their sentences; made once, it serves every layer."""
    key_spans = spans(queries, query_count, keys)
    query_spans = key_spans if keys is queries else spans(keys, key_count, queries)
    return PackedMask(queries, key_spans, query_spans, causal)


def packed_attention(query: Tensor, keys: Tensor, values: Tensor, mask: PackedMask) -> Tensor:
    """Attention inside each sentence, N x H x D/H: by kernels where they run, else the plain quadratic form."""
    if has_packed_kernel(query):
        return attend_in_sentences(query, keys, values, mask.key_spans, mask.query_spans, mask.causal)
    places = torch.arange(len(keys), device=keys.device)
    first, stop = mask.key_spans
    allowed = (places >= first[:, None]) & (places < stop[:, None])
    if mask.causal:
        allowed = allowed.tril()
    query, keys, values = query.transpose(0, 1), keys.transpose(0, 1), values.transpose(0, 1)
    # A sentence without keys has nothing to mix: its rows are all forbidden, and zero as by the kernels.
    return functional.scaled_dot_product_attention(query, keys, values, attn_mask=allowed).nan_to_num().transpose(0, 1)


def spans(bounds: Tensor, size: int, others: Tensor) -> Tensor:
    """For each of `size` tokens where its sentence begins and ends in another packed array: 2 x size.

    >>> spans(torch.tensor([0, 1, 3]), 3, torch.tensor([0, 4, 6])).tolist()
    [[0, 4, 4], [4, 6, 6]]
    """
    numbers = sentence_numbers(bounds, size)
    return torch.stack([others[numbers], others[numbers + 1]])


def sentence_numbers(bounds: Tensor, size: int) -> Tensor:
    """For each of `size` packed tokens the number of its sentence."""
    places = torch.arange(size, device=bounds.device, dtype=bounds.dtype)
    return torch.searchsorted(bounds, places, right=True) - 1


@dataclass(frozen=True)
class PackSizes:
    """The fixed sizes of packed arrays."""

    source: int
    """Source tokens, EOS included, LENGTH slots not."""
    target: int
    """Decoder positions."""
    sentences: int
    """Sentences, the empty ones that hold the leftover tokens included."""
    longest: int
    """Tokens of the longest sentence that can occur, with begin, end and slot."""


def make_bounds(lengths: Tensor, size: int, sentences: int, longest: int) -> Tensor:
    """Bounds of sentences of these lengths, and behind them of empty ones that share what is left of `size`.

    >>> make_bounds(torch.tensor([3, 2]), 12, 5, 4).tolist()
    [0, 3, 5, 9, 12, 12]
    """
    real = lengths.cumsum(0)
    spare = torch.arange(1, sentences - len(lengths) + 1, device=lengths.device) * longest + real[-1]
    return functional.pad(torch.cat([real, spare]).clamp(max=size), (1, 0)).to(torch.int32)


def pack_rows(rows: Tensor, lengths: Tensor, bounds: Tensor, size: int, fill: int) -> Tensor:
    """The first `lengths` entries of each row of a padded tensor, end to end, in an array of `size` filled with `fill`.

    Works without asking the device for a count: what does not belong anywhere, or no longer fits, is written to a
    place that is cut off.
    """
    width = rows.shape[1]
    places = torch.arange(width, device=rows.device)
    inside = places < lengths[:, None]
    goals = torch.where(inside, bounds[: len(rows), None].long() + places, size).clamp(max=size)
    packed = torch.full((size + 1, *rows.shape[2:]), fill, dtype=rows.dtype, device=rows.device)
    return packed.index_put((goals.flatten(),), rows.flatten(0, 1))[:size]


def pack_places(bounds: Tensor, size: int) -> Tensor:
    """The place of each packed token in its own sentence."""
    numbers = sentence_numbers(bounds, size).clamp(max=len(bounds) - 2)
    return torch.arange(size, device=bounds.device) - bounds[numbers]
