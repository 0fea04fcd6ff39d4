"""Beam search, the decoding of AT: the baseline and teacher of section 4.1 of the paper.

Each sentence has its own length limit and padding is masked, so a result does not depend on the batch.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lath.decoding.lengths import length_limits, repeat_rows
from lath.decoding.results import Decoded
from lath.model.network import AT, NEVER_WRITTEN_AFTER_BEGIN, KeyValues
from lath.text.vocab import BOS, EOS

CHECK_EVERY = 4
"""Steps between two looks at which sentences are done: each look waits for the device."""


def beam_search(model: AT, source: Tensor, beam: int, length_penalty: float) -> list[Decoded]:
    """The best translation among `beam` kept at each step; 1 is greedy.

    A sentence is done when `beam` hypotheses have ended, or at its length limit; done sentences leave the batch. All
    bookkeeping is in tensors, and the device is asked only now and then how many sentences are done.
    """
    limits = length_limits(source, model.settings.max_positions)
    longest = int(limits.max())
    beams = Beams.start(limits, beam, longest)
    best = Best.empty(len(source), longest, source.device)
    memory, past = repeat_rows(model.encode(source), beam), None
    for length in range(1, longest + 1):
        step = torch.tensor(length, device=source.device)
        states, past = model.decode(beams.last_tokens(step).flatten()[:, None], memory, past)
        states = states[:, -1].view(-1, beam, states.shape[-1])
        likeliest = model.body.top_tokens(states, NEVER_WRITTEN_AFTER_BEGIN, 2 * beam)
        beams, parents = grow(beams, likeliest, step, length_penalty)
        rows = torch.arange(len(parents), device=source.device)[:, None] * beam
        past = _select(past, (rows + parents).flatten())
        if length % CHECK_EVERY == 0 or length == longest:
            best.keep(beams)
            going_on = (~beams.done).nonzero()[:, 0]
            if len(going_on) == 0:
                break
            if len(going_on) < len(beams.done):
                hypotheses = (going_on[:, None] * beam + torch.arange(beam, device=source.device)).flatten()
                beams, memory, past = beams.select(going_on), memory.select(hypotheses), _select(past, hypotheses)
    return best.decoded()


class Beams(NamedTuple):
    """The search on the sentences still in the batch: b sentences, k hypotheses each, l steps at most."""

    limits: Tensor
    """b."""
    places: Tensor
    """b: each sentence's row in the batch."""
    tokens: Tensor
    """b x k x l: hypotheses that go on, without BOS."""
    scores: Tensor
    """b x k: their log-probabilities."""
    ended: Tensor
    """b: how many hypotheses have ended."""
    best_tokens: Tensor
    """b x l: the best that has ended."""
    best_lengths: Tensor
    """b: its tokens, EOS not counted."""
    best_scores: Tensor
    """b: its score by the length penalty; -inf while none has ended."""

    @staticmethod
    def start(limits: Tensor, beam: int, longest: int) -> Beams:
        """All hypotheses of a sentence start alike: only the first may branch at the first step."""
        count = len(limits)
        scores = torch.full((count, beam), -torch.inf, device=limits.device)
        scores[:, 0] = 0.0
        tokens = torch.full((count, beam, longest), BOS, device=limits.device)
        nothing = torch.zeros_like(limits)
        worst = torch.full((count,), -torch.inf, device=limits.device)
        places = torch.arange(count, device=limits.device)
        return Beams(limits, places, tokens, scores, nothing, tokens[:, 0].clone(), nothing.clone(), worst)

    def last_tokens(self, length: Tensor) -> Tensor:
        """b x k: the token before number `length` (from 1); BOS before the first."""
        # Before anything is written the last place still holds BOS.
        return self.tokens.index_select(2, (length - 2).remainder(self.tokens.shape[2]).view(1))[:, :, 0]

    def select(self, rows: Tensor) -> Beams:
        """The search on some of the sentences."""
        return Beams(*(field[rows] for field in self))

    @property
    def done(self) -> Tensor:
        """b: which sentences need no further step. (A sentence at its limit has an ended hypothesis by force.)"""
        return self.ended >= self.tokens.shape[1]


class Best(NamedTuple):
    """The winner of each sentence of the batch, filled in as sentences are done."""

    tokens: Tensor
    lengths: Tensor
    scores: Tensor

    @staticmethod
    def empty(count: int, longest: int, device: torch.device) -> Best:
        """Nothing yet."""
        lengths = torch.zeros(count, dtype=torch.long, device=device)
        return Best(torch.zeros(count, longest, dtype=torch.long, device=device), lengths, lengths.float())

    def keep(self, beams: Beams) -> None:
        """Note the best so far of every sentence of a search."""
        self.tokens[beams.places] = beams.best_tokens
        self.lengths[beams.places] = beams.best_lengths
        self.scores[beams.places] = beams.best_scores

    def decoded(self) -> list[Decoded]:
        """The winners as translations."""
        lengths: list[int] = self.lengths.tolist()
        written = self.tokens[:, : max(lengths)].tolist()  # most hypotheses end long before they must
        rows = zip(written, lengths, self.scores.tolist(), strict=True)
        return [Decoded(ids[:size], score, size + 1) for ids, size, score in rows]


def grow(beams: Beams, likeliest: tuple[Tensor, Tensor], length: Tensor, length_penalty: float) -> tuple[Beams, Tensor]:
    """Write token number `length` (from 1) of every hypothesis.

    `likeliest` are the log-probabilities and ids of the 2k likeliest tokens of each hypothesis, b x k x 2k. Also
    returns, b x k, which hypothesis each new one continues. Never waits for the device.
    """
    # The best 2 x beam of a sentence are among the best 2 x beam of its hypotheses; at most `beam` of them end here,
    # so `beam` are left to go on.
    beam = beams.scores.shape[1]
    grown, words = likeliest[0] + beams.scores[:, :, None], likeliest[1]
    values, indices = grown.flatten(1).topk(2 * beam, dim=1)
    parents, ids = indices // grown.shape[-1], words.flatten(1).gather(1, indices)
    ending = ids == EOS

    # Hypotheses that end among the best `beam`, of sentences that are not done.
    open_ = ~beams.done
    ends = ending[:, :beam] & values[:, :beam].isfinite() & open_[:, None]
    going_on = values.masked_fill(ending, -torch.inf).topk(beam, dim=1)
    kept = parents.gather(1, going_on.indices)
    tokens = beams.tokens.gather(1, kept[:, :, None].expand_as(beams.tokens))
    tokens.index_copy_(2, (length - 1).view(1), ids.gather(1, going_on.indices)[:, :, None])

    # The best of those that end now, against the best so far. At its limit a sentence with none takes what there is.
    end_score, end_place = values[:, :beam].masked_fill(~ends, -torch.inf).max(dim=1)
    end_parent = parents.gather(1, end_place[:, None])
    end_tokens = beams.tokens.gather(1, end_parent[:, :, None].expand(-1, 1, tokens.shape[2]))[:, 0]
    at_limit = (beams.limits == length) & open_
    forced = at_limit & (beams.ended == 0) & ~ends.any(dim=1)
    end_score = torch.where(forced, going_on.values[:, 0], end_score) / length.float() ** length_penalty
    better = end_score > beams.best_scores
    end_tokens = torch.where(forced[:, None], tokens[:, 0], end_tokens)
    return beams._replace(
        tokens=tokens,
        scores=going_on.values,
        ended=torch.where(at_limit, beam, beams.ended + ends.sum(dim=1)),
        best_tokens=torch.where(better[:, None], end_tokens, beams.best_tokens),
        best_lengths=torch.where(better, torch.where(forced, length, length - 1), beams.best_lengths),
        best_scores=torch.where(better, end_score, beams.best_scores),
    ), kept


def _select(past: list[KeyValues], rows: Tensor) -> list[KeyValues]:
    return [KeyValues(keys[rows], values[rows]) for keys, values in past]
