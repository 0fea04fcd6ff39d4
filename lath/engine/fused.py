"""Twin of the plain modules of model/network.py on a GPU: norms, gates, token choice and short attention in kernels.

Small batches wait for launches, large ones for memory: either way a chain of a dozen plain kernels costs more than the
arithmetic. `fuse` swaps the modules of a loaded model; training and `--engine plain` never do.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from lath.engine.beam_attention import attend_few, few_queries
from lath.engine.pointwise import lstm_gates, residual_norm
from lath.engine.swap import swapped
from lath.engine.top_tokens import fits_kernel, top_tokens_by_kernel
from lath.model.network import (
    NORM_EPSILON,
    LocalTranslator,
    Model,
    PaddedMask,
    Residual,
    Table,
    best_tokens,
    padded_mask,
    sentence_mask,
    top_tokens,
)

OneModel = TypeVar("OneModel", bound=Model)


def fuse(model: OneModel) -> OneModel:
    """The same model, weights shared, with kernels in place of chains of small operations; for inference on a GPU."""
    fused = swapped(model, _fused)
    fused.body.make_mask = few_query_mask
    return fused


def _fused(module: nn.Module) -> nn.Module | None:
    if isinstance(module, Residual):
        return FusedResidual(module)
    if isinstance(module, LocalTranslator):
        return FusedLocalTranslator(module)
    if isinstance(module, Table):
        return FusedTable(module)
    return None


class FusedResidual(nn.Module):
    """`Residual` in one kernel."""

    def __init__(self, plain: Residual) -> None:
        super().__init__()
        self.norm = plain.norm

    def forward(self, x: Tensor, added: Tensor) -> Tensor:
        """The normalised sum of the stream and a sublayer's output."""
        return residual_norm(x, added, self.norm.weight, self.norm.bias, NORM_EPSILON)


class FusedLocalTranslator(nn.Module):
    """`LocalTranslator` with the cell's gates in one kernel."""

    def __init__(self, plain: LocalTranslator) -> None:
        super().__init__()
        self.initial_hidden, self.initial_cell = plain.initial_hidden, plain.initial_cell
        self.input, self.recurrent = plain.input, plain.recurrent

    def start(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """h and c before the first step."""
        return self.initial_hidden(states), self.initial_cell(states)

    def forward(self, embedded: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        """One step of the cell."""
        return lstm_gates(self.input(embedded), self.recurrent(hidden), cell)


class FusedTable(nn.Module):
    """`Table` that finds the likeliest tokens in two small kernels."""

    def __init__(self, plain: Table) -> None:
        super().__init__()
        self.weight = plain.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens to vectors."""
        return functional.embedding(tokens, self.weight)

    def logits(self, states: Tensor) -> Tensor:
        """... x D states to ... x V logits."""
        return functional.linear(states, self.weight)

    def best_tokens(self, states: Tensor, size: int, forbidden: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """As `network.best_tokens`, from states."""
        logits = self.logits(states)
        if not fits_kernel(logits, forbidden):
            return best_tokens(logits, size, forbidden)
        values, ids = top_tokens_by_kernel(logits, size, forbidden, 1)
        return values[..., 0], ids[..., 0]

    def top_tokens(self, states: Tensor, size: int, forbidden: tuple[int, ...], count: int) -> tuple[Tensor, Tensor]:
        """As `network.top_tokens`, from states."""
        logits = self.logits(states)
        if not fits_kernel(logits, forbidden, count):
            return top_tokens(logits, size, forbidden, count)
        return top_tokens_by_kernel(logits, size, forbidden, min(count, size))


class FewQueryMask(NamedTuple):
    """`PaddedMask` that attends a few queries in one kernel: a beam's hypotheses, or a short sentence."""

    bias: Tensor

    def attend(self, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """B x T queries, B x S keys and values."""
        if few_queries(query, self.bias):
            return attend_few(query, keys, values, self.bias)
        return PaddedMask(self.bias).attend(query, keys, values)


def few_query_mask(queries: Tensor, keys: Tensor, like: Tensor) -> FewQueryMask:
    """As `network.sentence_mask`."""
    return FewQueryMask(sentence_mask(queries, keys, like).bias)


class CausalMask(NamedTuple):
    """Each token of a text sees itself and those before it, among a few by the same kernel."""

    bias: Tensor
    """1 x 1 x T x T."""

    def attend(self, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """B x T queries, keys and values."""
        nothing_hidden = self.bias[:, :, -1:].expand(len(query), -1, -1, -1)
        if query.is_cuda and few_queries(query, nothing_hidden):
            return attend_few(query, keys, values, nothing_hidden, causal=True)
        return PaddedMask(self.bias).attend(query, keys, values)


def causal_mask(length: int, like: Tensor) -> CausalMask:
    """The mask of texts of so many tokens, as `AT.decode` has it."""
    visible = torch.ones(length, length, dtype=torch.bool, device=like.device).tril()
    return CausalMask(padded_mask(visible[None, None], like).bias)
