"""A lexical shortlist on a CPU, approximate: only the likely tokens of this sentence can be written.

    shortlist = build_shortlist(Corpus.open(data, "train"), source_size, target_size, near=100, frequent=1000)
    ShortlistDecoder(model, shortlist)

Each source token brings the target tokens that occur with it in the training text; the most frequent ones are always
there. The output matrix of one sentence then has one or two thousand rows instead of all: on a CPU, where it is most of
the work, this makes decoding fast. Log-probabilities are those among the shortlist. The candidates are those of one
sentence, so sentences are decoded one by one. With every token on the list it equals `decode` (decoding/decoder.py).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from lath.config import DecodeSettings
from lath.decoding.decoder import PlainDecoder, decode
from lath.decoding.results import Decoded
from lath.engine.int8 import Int8Linear, Int8Table, log_sum_exp
from lath.engine.settings import ShortlistSettings
from lath.engine.swap import shallow
from lath.errors import UserError
from lath.model.directory import SHORTLIST, add_digest, check_files, read_config, read_info, read_tensors, save_tensors
from lath.model.network import Model, top_tokens
from lath.progress import watched
from lath.text.corpus import Corpus, read_data_info
from lath.text.vocab import PAD, SPECIALS, same_tokens

FORMAT = 1
"""Format number of a shortlist file."""
REMEDY = "make it again with lath shortlist DATA MODEL"
BLOCK = 1 << 24
"""Pairs of source and target tokens counted at once; the arrays of a block take about half a gigabyte."""

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Shortlist:
    """Which target tokens may translate which source tokens."""

    near: Tensor
    """Source vocabulary x n target ids, best first; rows with fewer are filled with BOS, which is always allowed."""
    always: Tensor
    """For each target token whether it is always allowed: special tokens and the most frequent tokens."""

    def candidates(self, source: Tensor) -> Tensor:
        """The target ids, sorted, that may translate the given source tokens."""
        chosen = self.always.clone()
        chosen[self.near[source.flatten()].flatten()] = True
        return chosen.nonzero()[:, 0]


# ---- building -------------------------------------------------------------------------------------------------


def build_shortlist(corpus: Corpus, source_size: int, target_size: int, near: int, frequent: int) -> Shortlist:
    """Count which tokens occur in aligned sentences, and keep the `near` most informative for each source token.

    A pair is scored by its share of the mutual information, n log(n N / (n_s n_t)): often together, and more often
    than by chance. (IBM Model 1 took longer and covered less of a held-out text.)
    """
    found = np.zeros((source_size, near), np.int64)
    source_lengths, target_lengths = corpus.source.lengths.astype(np.int64), corpus.target.lengths.astype(np.int64)
    # Every token of a sentence is paired with every token of the other side.
    target_counts = np.bincount(corpus.target.tokens, np.repeat(source_lengths, target_lengths), target_size)
    total = float(target_counts.sum())
    sentences = np.repeat(np.arange(len(corpus)), source_lengths)
    order = np.argsort(corpus.source.tokens, kind="stable")
    tokens = np.asarray(corpus.source.tokens, np.int64)[order]
    meetings = np.cumsum(target_lengths[sentences[order]])
    bounds = _block_bounds(tokens, meetings)
    for start, stop in watched(itertools.pairwise(bounds), "counting", len(bounds) - 1, unit="blocks"):
        pairs, counts = _count_pairs(corpus, tokens[start:stop], sentences[order[start:stop]], target_size)
        sources, targets = np.divmod(pairs, target_size)
        source_counts = np.bincount(sources, counts, source_size)
        score = counts * np.log(counts * total / (source_counts[sources] * target_counts[targets]))
        _keep_best(found, sources, targets, score)
    always = np.zeros(target_size, bool)
    always[: len(SPECIALS)] = True
    always[np.argsort(-target_counts, kind="stable")[:frequent]] = True
    return Shortlist(torch.from_numpy(found), torch.from_numpy(always))


def _block_bounds(tokens: Ids, meetings: Ids) -> list[int]:
    """Where to cut the sorted tokens so that a block has about `BLOCK` pairs and never splits a token."""
    wanted = np.searchsorted(meetings, np.arange(BLOCK, int(meetings[-1]) + BLOCK, BLOCK))
    ends = np.searchsorted(tokens, tokens[np.minimum(wanted, len(tokens) - 1)], side="right")
    return [0, *np.unique(ends).tolist()]


def _count_pairs(corpus: Corpus, tokens: Ids, sentences: Ids, target_size: int) -> tuple[Ids, NDArray[np.float64]]:
    """The pairs (source token * target_size + target token) that occur, and how often."""
    lengths = corpus.target.lengths[sentences].astype(np.int64)
    ends = np.cumsum(lengths)
    places = np.arange(ends[-1]) + np.repeat(corpus.target.offsets[sentences] - (ends - lengths), lengths)
    pairs = np.repeat(tokens * target_size, lengths) + corpus.target.tokens[places]
    pairs.sort()
    first = np.flatnonzero(np.concatenate([[True], pairs[1:] != pairs[:-1]]))
    return pairs[first], np.diff(np.append(first, len(pairs))).astype(np.float64)


def _keep_best(found: Ids, sources: Ids, targets: Ids, score: NDArray[np.float64]) -> None:
    """Write the best targets into the rows of their sources, best first."""
    order = np.lexsort((-score, sources))
    sources, targets, score = sources[order], targets[order], score[order]
    rank = np.arange(len(sources)) - np.searchsorted(sources, sources)
    kept = (rank < found.shape[1]) & (score > 0)
    found[sources[kept], rank[kept]] = targets[kept]


# ---- files ----------------------------------------------------------------------------------------------------


def add_shortlist(
    data: Path, model: Path, near: int = ShortlistSettings.near, frequent: int = ShortlistSettings.frequent
) -> Path:
    """Build a shortlist from a data directory and write it into a model directory; returns the file."""
    info = read_info(model)
    counted = read_data_info(data)
    if not same_tokens(data, model):
        raise UserError(
            f"{data} and {model} have different vocabularies; "
            f"prepare the text with the vocabulary of the model: lath prepare --vocab-from {model}"
        )
    assert (counted.source_vocab_size, counted.target_vocab_size) == (info.source_size, info.target_size)
    shortlist = build_shortlist(Corpus.open(data, "train"), info.source_size, info.target_size, near, frequent)
    return save_shortlist(shortlist, model)


def save_shortlist(shortlist: Shortlist, model: Path) -> Path:
    """Write a shortlist into a model directory, with ids of two bytes if they fit; returns the file."""
    stored = torch.uint16 if len(shortlist.always) <= 1 << 16 else torch.int32
    tensors = {"near": shortlist.near.to(stored), "always": shortlist.always}
    save_tensors(tensors, model / SHORTLIST, {"format": str(FORMAT)})
    add_digest(model, model / SHORTLIST)
    return model / SHORTLIST


def has_shortlist(model: Path) -> bool:
    """Whether a model directory has a shortlist."""
    return (model / SHORTLIST).is_file()


def load_shortlist(model: Path) -> Shortlist:
    """Read the shortlist of a model directory that has one."""
    path, config = model / SHORTLIST, read_config(model)
    stored, metadata = read_tensors(path)
    if metadata.get("format") != str(FORMAT):
        number = metadata.get("format")
        raise UserError(f"{path}: format {number!r}, but this version of lath reads format {FORMAT}; {REMEDY}")
    sizes = (config.info.source_size, config.info.target_size)
    near, always = stored.get("near"), stored.get("always")
    if near is None or always is None or near.dtype not in (torch.uint16, torch.int32) or always.dtype != torch.bool:
        raise UserError(f"{path}: damaged, or not a shortlist; {REMEDY}")
    if near.dim() != 2 or always.dim() != 1 or (len(near), len(always)) != sizes or near.shape[1] > sizes[1]:
        raise UserError(f"{path}: does not fit the vocabulary of the model; {REMEDY}")
    check_files(model, config, [path])
    # torch can do little with uint16 except convert it.
    shortlist = Shortlist(near.long(), always.clone())
    inside = not near.numel() or (shortlist.near.min() >= 0 and shortlist.near.max() < sizes[1])
    if not inside or not always[: len(SPECIALS)].all():
        raise UserError(f"{path}: has ids that the vocabulary does not have, or lacks the special tokens; {REMEDY}")
    return shortlist


# ---- decoding -------------------------------------------------------------------------------------------------


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
