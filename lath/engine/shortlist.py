"""A lexical shortlist: for each source sentence, the few target tokens its translation is likely to be written with.

    shortlist = build_shortlist(Corpus.open(data, "train"), source_size, target_size, near=100, frequent=1000)
    decode_shortlisted(model, source, settings, shortlist)

Each source token brings the target tokens that keep company with it in the training text, and the most frequent ones
are always there. The output matrix of one sentence then has one or two thousand rows instead of all: on a CPU, where it
is most of the work, this is what makes decoding fast. Log-probabilities are those among the shortlist.

The candidates are those of one sentence, so sentences are decoded one by one: what shares a batch changes nothing.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.nn import functional

from lath.config import DecodeSettings
from lath.decoding.decoder import PlainDecoder, decode
from lath.decoding.results import Decoded
from lath.engine.int8 import Int8Linear, Int8Table, log_sum_exp
from lath.engine.swap import shallow
from lath.errors import UserError
from lath.model.directory import read_info, save_tensors
from lath.model.network import Model, top_tokens
from lath.progress import watched
from lath.text.corpus import Corpus, read_data_info
from lath.text.vocab import PAD, SPECIALS, same_tokens

FILE, FORMAT = "shortlist.safetensors", 1
BLOCK = 1 << 24
"""Pairs of a source and a target token counted at a time; a block's arrays take about half a gigabyte."""

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Shortlist:
    """Which target tokens may translate which source tokens."""

    near: Tensor
    """Source vocabulary x n target ids, the nearest first; a token with fewer repeats BOS, which is always there."""
    always: Tensor
    """One for each entry of the target vocabulary: true for the specials and the most frequent."""

    def candidates(self, source: Tensor) -> Tensor:
        """The target ids, in order, that may translate the given source tokens."""
        chosen = self.always.clone()
        chosen[self.near[source.flatten()].flatten()] = True
        return chosen.nonzero()[:, 0]


# ---- building -------------------------------------------------------------------------------------------------


def build_shortlist(corpus: Corpus, source_size: int, target_size: int, near: int, frequent: int) -> Shortlist:
    """Count which tokens occur in each other's sentences, and keep the `near` most telling for each source token.

    A pair's worth is its share of the mutual information, n log(n N / (n_s n_t)): often together, and more often
    than by chance. (IBM Model 1 took longer and covered less of a held-out text.)
    """
    found = np.zeros((source_size, near), np.int64)
    source_lengths, target_lengths = corpus.source_lengths.astype(np.int64), corpus.target_lengths.astype(np.int64)
    # Every token of a sentence meets every token of the other side once.
    target_counts = np.bincount(corpus.target_tokens, np.repeat(source_lengths, target_lengths), target_size)
    total = float(target_counts.sum())
    sentences = np.repeat(np.arange(len(corpus)), source_lengths)
    order = np.argsort(corpus.source_tokens, kind="stable")
    tokens = np.asarray(corpus.source_tokens, np.int64)[order]
    meetings = np.cumsum(target_lengths[sentences[order]])
    bounds = _block_bounds(tokens, meetings)
    for start, stop in watched(itertools.pairwise(bounds), "counting", len(bounds) - 1, unit="blocks"):
        pairs, counts = _count_pairs(corpus, tokens[start:stop], sentences[order[start:stop]], target_size)
        sources, targets = np.divmod(pairs, target_size)
        source_counts = np.bincount(sources, counts, source_size)
        worth = counts * np.log(counts * total / (source_counts[sources] * target_counts[targets]))
        _keep_best(found, sources, targets, worth)
    always = np.zeros(target_size, bool)
    always[: len(SPECIALS)] = True
    always[np.argsort(-target_counts, kind="stable")[:frequent]] = True
    return Shortlist(torch.from_numpy(found), torch.from_numpy(always))


def _block_bounds(tokens: Ids, meetings: Ids) -> list[int]:
    """Where to cut the sorted tokens so that a block has about `BLOCK` pairs, and all of each token it has."""
    wanted = np.searchsorted(meetings, np.arange(BLOCK, int(meetings[-1]) + BLOCK, BLOCK))
    ends = np.searchsorted(tokens, tokens[np.minimum(wanted, len(tokens) - 1)], side="right")
    return [0, *np.unique(ends).tolist()]


def _count_pairs(corpus: Corpus, tokens: Ids, sentences: Ids, target_size: int) -> tuple[Ids, NDArray[np.float64]]:
    """The pairs (source token * target_size + target token) that occur, and how often."""
    lengths = corpus.target_lengths[sentences].astype(np.int64)
    ends = np.cumsum(lengths)
    places = np.arange(ends[-1]) + np.repeat(corpus.target_offsets[sentences] - (ends - lengths), lengths)
    pairs = np.repeat(tokens * target_size, lengths) + corpus.target_tokens[places]
    pairs.sort()
    first = np.flatnonzero(np.concatenate([[True], pairs[1:] != pairs[:-1]]))
    return pairs[first], np.diff(np.append(first, len(pairs))).astype(np.float64)


def _keep_best(found: Ids, sources: Ids, targets: Ids, worth: NDArray[np.float64]) -> None:
    """Write the targets of most worth into their sources' rows, best first."""
    order = np.lexsort((-worth, sources))
    sources, targets, worth = sources[order], targets[order], worth[order]
    rank = np.arange(len(sources)) - np.searchsorted(sources, sources)
    kept = (rank < found.shape[1]) & (worth > 0)
    found[sources[kept], rank[kept]] = targets[kept]


# ---- files ----------------------------------------------------------------------------------------------------


def add_shortlist(data: Path, model: Path, near: int, frequent: int) -> Path:
    """Build a shortlist from a prepared directory and put it into a model directory; returns the file."""
    info = read_info(model)
    counted = read_data_info(data)
    if not same_tokens(data, model):
        raise UserError(
            f"{data} and {model} have different vocabularies; "
            f"prepare the text with the model's: lath prepare --vocab-from {model}"
        )
    assert (counted.source_vocab_size, counted.target_vocab_size) == (info.source_size, info.target_size)
    shortlist = build_shortlist(Corpus.open(data, "train"), info.source_size, info.target_size, near, frequent)
    return save_shortlist(shortlist, model)


def save_shortlist(shortlist: Shortlist, model: Path) -> Path:
    """Put a shortlist into a model directory, its ids in two bytes each where they fit; returns the file."""
    stored = torch.uint16 if len(shortlist.always) <= 1 << 16 else torch.int32
    tensors = {"near": shortlist.near.to(stored), "always": shortlist.always}
    save_tensors(tensors, model / FILE, {"format": str(FORMAT)})
    return model / FILE


def has_shortlist(model: Path) -> bool:
    """Whether a model directory has a shortlist."""
    return (model / FILE).is_file()


def load_shortlist(model: Path) -> Shortlist:
    """The shortlist of a model directory that has one."""
    path = model / FILE
    try:
        with safe_open(path, framework="pt") as file:
            number = (file.metadata() or {}).get("format")
            if number != str(FORMAT):
                raise UserError(
                    f"{path}: format {number}, but this version of lath reads format {FORMAT}; make it anew"
                )
            # Stored as uint16 or int32; torch can do little with uint16 but convert it.
            shortlist = Shortlist(file.get_tensor("near").long(), file.get_tensor("always"))
    except SafetensorError as error:
        raise UserError(f"{path}: damaged or not a safetensors file ({error}); make it anew") from None
    info = read_info(model)
    if (len(shortlist.near), len(shortlist.always)) != (info.source_size, info.target_size):
        raise UserError(f"{path}: made for other vocabularies than the model's; make it anew")
    return shortlist


# ---- decoding -------------------------------------------------------------------------------------------------


class ShortTable(nn.Module):
    """The token vectors of a table, with an output matrix of some rows alone."""

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
        """... x D states to ... x V logits; tokens that are not on the list are impossible."""
        logits = states.new_full((*states.shape[:-1], len(self.table.weight)), -torch.inf)
        logits[..., self.ids] = self.output(states)
        return logits

    def best_tokens(self, states: Tensor, size: int, forbidden: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """The log-probability among the list and the id of the likeliest token that may be written, for each state."""
        assert max(forbidden) < len(SPECIALS)  # these come first in every list, so their places are their ids
        logits = self.output(states).flatten(0, -2)
        sums = log_sum_exp(logits, logits.amax(dim=1))
        best = logits.index_fill_(1, torch.tensor(forbidden), -torch.inf).max(dim=1)
        shape = states.shape[:-1]
        return (best.values - sums).view(shape), self.ids[best.indices].view(shape)

    def top_tokens(self, states: Tensor, size: int, forbidden: tuple[int, ...], count: int) -> tuple[Tensor, Tensor]:
        """The log-probabilities among the list and the ids of the likeliest tokens, best first."""
        return top_tokens(self.logits(states), size, forbidden, count)


def with_shortlist(model: Model, ids: Tensor) -> Model:
    """The same model, weights shared, that can only write the given tokens."""
    short = shallow(model)
    short.body = shallow(model.body)
    table = cast(nn.Embedding, model.body.tables[-1])
    # A joint vocabulary has one table; the source only looks vectors up in it.
    short.body.tables = nn.ModuleList([*model.body.tables[:-1], ShortTable(table, ids)])
    return short


@torch.inference_mode()
def decode_shortlisted(
    model: Model, source: Tensor, settings: DecodeSettings, shortlist: Shortlist, trace: bool = False
) -> list[Decoded]:
    """Translate B x S source tokens (each sentence ends in EOS), each with the candidates of its own shortlist."""
    decoded: list[Decoded] = []
    for row in source:
        sentence = row[row != PAD]
        short = with_shortlist(model, shortlist.candidates(sentence))
        decoded += decode(short, sentence[None], settings, trace)
    return decoded


class ShortlistDecoder:
    """`PlainDecoder` for a model with a shortlist, which `settings.shortlist` switches on."""

    has_shortlist = True

    def __init__(self, model: Model, shortlist: Shortlist) -> None:
        self.model, self.shortlist = model, shortlist

    def decode(self, source: Tensor, settings: DecodeSettings, trace: bool = False) -> list[Decoded]:
        """Translate B x S source tokens (each sentence ends in EOS)."""
        if settings.shortlist:
            return decode_shortlisted(self.model, source, settings, self.shortlist, trace)
        return PlainDecoder(self.model).decode(source, settings, trace)
