"""Decoding with a shortlist on a CPU, approximate: only likely tokens of this sentence can be written.

The output matrix of one sentence then has one or two thousand rows instead of all: on a CPU, where it is most of the
work, this makes decoding fast. Log-probabilities are those among the shortlist. The candidates are those of one
sentence, so sentences are decoded one by one. With every token on the list it equals `decode` (decoding/decoder.py).
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from lath.config import DecodeSettings
from lath.decoding.decoder import PlainDecoder, decode
from lath.decoding.results import Decoded
from lath.engine.int8 import Int8Linear, Int8Table, log_sum_exp
from lath.engine.swap import shallow
from lath.model.network import Model, top_tokens
from lath.model.shortlist import Shortlist
from lath.text.vocab import PAD, SPECIALS


class ShortTable(nn.Module):
    """An embedding table whose output matrix has only some of its rows."""

    ids: Tensor

    def __init__(self, table: nn.Embedding, ids: Tensor) -> None:
        super().__init__()
        self.table = table
        self.register_buffer("ids", ids)
        self.output: Int8Linear | nn.Linear
        if isinstance(table, Int8Table):
            self.output = table.output.select(ids)
        else:
            self.output = nn.Linear(table.embedding_dim, len(ids), bias=False, device="meta")
            self.output.weight = nn.Parameter(table.weight[ids], requires_grad=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens to vectors."""
        return functional.embedding(tokens, self.table.weight)

    def logits(self, states: Tensor) -> Tensor:
        """... x D states to ... x V logits; -inf for tokens that are not on the shortlist."""
        logits = states.new_full((*states.shape[:-1], len(self.table.weight)), -torch.inf)
        logits[..., self.ids] = self.output(states)
        return logits

    def best_tokens(self, states: Tensor, size: int, forbidden: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """For each state the most likely token that may be written: its log-probability and id."""
        assert max(forbidden) < len(SPECIALS)  # specials come first in every list, so their positions are their ids
        logits = self.output(states).flatten(0, -2)
        sums = log_sum_exp(logits, logits.amax(dim=1))
        best = logits.index_fill_(1, torch.tensor(forbidden), -torch.inf).max(dim=1)
        shape = states.shape[:-1]
        return (best.values - sums).view(shape), self.ids[best.indices].view(shape)

    def top_tokens(self, states: Tensor, size: int, forbidden: tuple[int, ...], count: int) -> tuple[Tensor, Tensor]:
        """The log-probabilities among the list and the ids of the likeliest tokens, best first."""
        return top_tokens(self.logits(states), size, forbidden, count)


def with_shortlist(model: Model, ids: Tensor) -> Model:
    """The same model with shared weights, restricted to the given tokens."""
    short = shallow(model)
    short.body = shallow(model.body)
    table = cast(nn.Embedding, model.body.tables[-1])
    # A joint vocabulary has one table; the source only uses its embeddings.
    short.body.tables = nn.ModuleList([*model.body.tables[:-1], ShortTable(table, ids)])
    return short


@torch.inference_mode()
def decode_shortlisted(
    model: Model, source: Tensor, settings: DecodeSettings, shortlist: Shortlist, trace: bool = False
) -> list[Decoded]:
    """Translate B x S source tokens (each sentence ends in EOS), each with its own candidates."""
    decoded: list[Decoded] = []
    for row in source:
        sentence = row[row != PAD]
        short = with_shortlist(model, shortlist.candidates(sentence))
        decoded += decode(short, sentence[None], settings, trace)
    return decoded


class ShortlistDecoder:
    """`PlainDecoder` for a model with a shortlist, which `settings.shortlist` switches on."""

    engine = "plain"

    has_shortlist = True

    def __init__(self, model: Model, shortlist: Shortlist) -> None:
        self.model, self.shortlist = model, shortlist

    def decode(self, source: Tensor, settings: DecodeSettings, trace: bool = False) -> list[Decoded]:
        """Translate B x S source tokens (each sentence ends in EOS)."""
        if settings.shortlist:
            return decode_shortlisted(self.model, source, settings, self.shortlist, trace)
        return PlainDecoder(self.model).decode(source, settings, trace)
