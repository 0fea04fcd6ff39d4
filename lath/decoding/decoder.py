"""Decoding: beam search (AT), mask-predict (CMLM), and iterative decoding of pieces (LAT).

Follows section 2.2 of the paper. Each sentence keeps its own real length in every pass, and
padding is masked, so the result never depends on what shares the batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from lath.config import DecodeSettings
from lath.decoding.merge import Decision, Sentence, mask_count, merge_pieces, next_input, wrap
from lath.model.network import (
    AT,
    CMLM,
    LAT,
    NEVER_WRITTEN_AFTER_BEGIN,
    KeyValues,
    Memory,
    Model,
    Pieces,
    top_tokens,
)
from lath.model.padding import pad
from lath.text.vocab import BOS, EOS, MASK, PAD


@dataclass(slots=True)
class Pass:
    """One pass of the decoder over one sentence, told for a reader."""

    input: list[int]
    pieces: list[list[int]]
    """One piece for each position of the input (pieces of one token for CMLM)."""
    scores: list[list[float]]
    decisions: list[Decision]
    """How the pieces were merged; none for CMLM, which only fills masks."""
    output: list[int]
    masked: list[int] = field(default_factory=list)
    """Places of the output that were masked for the next pass; none after the last."""
    length_change: int = 0
    """Masks asked to be inserted (positive) or deleted (negative) before the next pass."""


@dataclass(slots=True)
class Decoded:
    """The translation of one source sentence, in tokens without BOS and EOS."""

    ids: list[int]
    score: float
    """Mean log-probability of the tokens (AT: by its length penalty; LAT: `certainty`)."""
    iterations: int
    """Passes of the decoder (AT: one for each token)."""
    passes: list[Pass] = field(default_factory=list)


@torch.inference_mode()
def decode(model: Model, source: Tensor, settings: DecodeSettings, trace: bool = False) -> list[Decoded]:
    """Translate B x S source tokens (each sentence ends in EOS). `trace` keeps every pass of CMLM and LAT."""
    if isinstance(model, AT):
        return beam_search(model, source, settings.beam, settings.length_penalty)
    if isinstance(model, CMLM):
        return mask_predict(model, source, settings, trace)
    return decode_pieces(model, source, settings, trace)


# ---- LAT ------------------------------------------------------------------------------------------------------


class MergedPass(NamedTuple):
    """What a pass of the decoder over one sentence came to."""

    sentence: Sentence
    next_input: list[int]
    """At most as long as the position table."""
    told: Pass | None
    """For a reader; a fast merger has nothing to tell."""


MergeRows = Callable[[list[list[int]], Pieces, list[int], DecodeSettings, int, int], list[MergedPass]]
"""How the pieces of a batch are merged: by the arguments and with the results of `merge_rows`."""


def decode_pieces(
    model: LAT, source: Tensor, settings: DecodeSettings, trace: bool, merge: MergeRows | None = None
) -> list[Decoded]:
    """Section 2.2: write a piece at each position, merge them, mask the least certain tokens, and again."""
    memory, scores = model.encode(source)
    candidates, length_scores = length_candidates(scores, settings.length_candidates, settings.extra_length)
    lengths: list[int] = candidates.tolist()
    memory = _repeat(memory, settings.length_candidates)
    inputs = [[MASK] * length for length in lengths]
    passes: list[list[Pass]] = [[] for _ in inputs]
    sentences: dict[int, Sentence] = {}
    certainties: dict[int, float] = {}
    taken = [0] * len(inputs)
    open_ = set(range(len(inputs)))
    for iteration in range(1, settings.iterations + 1):
        if not open_:
            break
        target = pad(inputs).to(source.device)
        written = Pieces(*only_at(target != PAD, model.decode(target, memory), model.pieces))
        shown = [len(input) for input in inputs]
        certain = certainty(written.scores, torch.tensor(shown, device=source.device), length_scores).tolist()
        merged = (merge or merge_rows)(inputs, written, shown, settings, iteration, model.settings.max_positions)
        for row in sorted(open_):
            sentence, inputs[row], told = merged[row]
            if settings.stop_early and iteration > 1 and sentence.ids == sentences[row].ids:
                open_.remove(row)
            sentences[row], certainties[row], taken[row] = sentence, certain[row], iteration
            if trace and told is not None:
                passes[row].append(told)
    decoded = [
        Decoded(ids := sentences[row].ids[1:-1], certainties[row] if ids else -torch.inf, taken[row], told)
        for row, told in enumerate(passes)
    ]
    return best_candidates(decoded, settings.length_candidates)


def certainty(scores: Tensor, shown: Tensor, length_scores: Tensor) -> Tensor:
    """R: the mean log-probability of everything that a pass predicted: all tokens of all pieces, and the length.

    R x T x K `scores`, of which `shown` positions of each row are sentence, and the length's log-probability.
    # Departure: neither the paper nor the authors' program chooses among lengths. A merged token keeps the best score
    # of its proposals, which hides that pieces disagree; by those scores the choice is worse than none (docs/log.md).
    """
    inside = torch.arange(scores.shape[1], device=scores.device) < shown[:, None]
    sums = torch.where(inside[:, :, None], scores.double(), 0.0).sum(dim=(1, 2))
    return (sums + length_scores) / (shown * scores.shape[2] + 1)


def merge_rows(
    inputs: list[list[int]], written: Pieces, aims: list[int], settings: DecodeSettings, iteration: int, limit: int
) -> list[MergedPass]:
    """Merge each sentence's pieces; unless the pass is the last, mask and adjust the length towards its aim.

    # Departure: only masks are ever deleted, so text that merges badly can outgrow the position table (`limit`).
    """
    rules, last = settings.merge_rules, iteration == settings.iterations
    passes: list[MergedPass] = []
    rows = zip(inputs, written.tokens.tolist(), written.scores.double().tolist(), aims, strict=True)
    for shown, tokens, scores, aim in rows:
        pieces, scores = tokens[: len(shown)], scores[: len(shown)]
        merged = merge_pieces(pieces, scores, rules)
        sentence = wrap(merged, len(pieces), bos=BOS, eos=EOS, mask=MASK)
        told = Pass(shown, pieces, scores, merged.decisions, sentence.ids)
        if last:
            passes.append(MergedPass(sentence, sentence.ids, told))
            continue
        masks = mask_count(len(sentence.ids), iteration, settings.iterations)
        following = next_input(sentence, masks, aim, rules, mask=MASK)
        told.masked, told.length_change = following.masked, following.change
        shortened = following.ids if len(following.ids) <= limit else [*following.ids[: limit - 1], EOS]
        passes.append(MergedPass(sentence, shortened, told))
    return passes


# ---- CMLM -----------------------------------------------------------------------------------------------------


def mask_predict(model: CMLM, source: Tensor, settings: DecodeSettings, trace: bool) -> list[Decoded]:
    """Fill all masks at once, mask the least certain words again, fewer each time.

    Tokens that stay visible keep their old scores.
    # Departure: BOS and EOS are given to CMLM, in training too, since their places are known.
    """

    def choose(states: Tensor) -> tuple[Tensor, Tensor]:
        return model.body.best_tokens(states, (*NEVER_WRITTEN_AFTER_BEGIN, EOS))

    memory, length_scores = model.encode(source)
    lengths: list[int] = length_candidates(length_scores, settings.length_candidates)[0].tolist()
    memory = _repeat(memory, settings.length_candidates)
    inputs = [[BOS, *[MASK] * (length - 2), EOS] for length in lengths]
    best_scores = [[0.0] * length for length in lengths]
    passes: list[list[Pass]] = [[] for _ in inputs]
    outputs = list(inputs)
    taken = [0] * len(inputs)
    open_ = set(range(len(inputs)))
    for iteration in range(1, settings.iterations + 1):
        if not open_:
            break
        target = pad(inputs).to(source.device)
        asked = target == MASK
        if trace or not asked.any():  # a reader wants to see the other places too; and nothing cannot be computed
            asked = target != PAD
        values, indices = only_at(asked, model.before_output(model.decode(target, memory)), choose)
        best_ids, best_values = indices.tolist(), values.tolist()
        for row in sorted(open_):
            filled, filled_scores = best_ids[row], best_values[row]
            shown, scores = inputs[row], best_scores[row]
            output = [filled[place] if id == MASK else id for place, id in enumerate(shown)]
            for place, id in enumerate(shown):
                if id == MASK:
                    scores[place] = filled_scores[place]
            masks = (len(shown) - 2) * (settings.iterations - iteration) // settings.iterations
            masked = sorted(sorted(range(1, len(shown) - 1), key=scores.__getitem__)[:masks])
            if trace:
                pieces, piece_scores = [[id] for id in filled[: len(shown)]], [[s] for s in filled_scores[: len(shown)]]
                passes[row].append(Pass(shown, pieces, piece_scores, [], output, masked))
            inputs[row] = [MASK if place in masked else id for place, id in enumerate(output)]
            if settings.stop_early and iteration > 1 and output == outputs[row]:
                open_.remove(row)
            outputs[row], taken[row] = output, iteration
    decoded = [
        Decoded(ids[1:-1], _mean(scores[1:-1]), count, told)
        for ids, scores, count, told in zip(outputs, best_scores, taken, passes, strict=True)
    ]
    return best_candidates(decoded, settings.length_candidates)


def only_at(asked: Tensor, states: Tensor, compute: Callable[[Tensor], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    """What is computed from the states of some positions alone, in its place; 0 elsewhere.

    Choosing tokens is the larger part of a pass on a CPU, and nobody reads what would stand in the padding.
    """
    if bool(asked.all()):
        return compute(states)
    computed = compute(states[asked])
    spread = [part.new_zeros((*asked.shape, *part.shape[1:])) for part in computed]
    for place, part in zip(spread, computed, strict=True):
        place[asked] = part
    return tuple(spread)


# ---- lengths --------------------------------------------------------------------------------------------------

LEAST_LIKELY = math.log(1000)
"""A length that is a thousand times less likely than the likeliest is not tried."""


def length_candidates(scores: Tensor, candidates: int, extra: int = 0) -> tuple[Tensor, Tensor]:
    """The likeliest target lengths, `candidates` in a row for each sentence, and their log-probabilities.

    Each length is `extra` more than what is likely, as far as the position table goes.

    BOS and EOS make a length at least 2. Where too few lengths are likely the likeliest fills up: the next best may be
    59 for a sentence of six tokens, with one chance in a million, and the whole batch would be padded to that.
    """
    best = scores.topk(candidates, dim=1)
    likely = best.values > best.values[:, :1] - LEAST_LIKELY
    lengths = torch.where(likely, best.indices, best.indices[:, :1])
    longer = (lengths + extra).clamp(min=2, max=scores.shape[1] - 1)
    return longer.flatten(), torch.where(likely, best.values, best.values[:, :1]).flatten()


def best_candidates(decoded: list[Decoded], candidates: int) -> list[Decoded]:
    """Of each sentence's candidates the one with the best score; the likelier length wins a tie.

    An empty sentence has the worst score there can be, so that any other candidate wins.
    """
    groups = [decoded[start : start + candidates] for start in range(0, len(decoded), candidates)]
    return [max(group, key=lambda candidate: candidate.score) for group in groups]


def _repeat(memory: Memory, times: int) -> Memory:
    if times == 1:
        return memory
    rows = torch.arange(memory.mask.shape[0], device=memory.mask.device).repeat_interleave(times)
    return memory.select(rows)


def _mean(scores: list[float]) -> float:
    return sum(scores) / len(scores) if scores else -torch.inf


# ---- AT -------------------------------------------------------------------------------------------------------


def beam_search(model: AT, source: Tensor, beam: int, length_penalty: float) -> list[Decoded]:
    """The best translation among `beam` kept at each step; 1 is greedy.

    A sentence is done when `beam` hypotheses have ended, or at its length limit; done sentences leave the batch. All
    bookkeeping is in tensors, and the device is asked only now and then how many sentences are done.
    """
    limits = length_limits(source, model.settings.max_positions)
    longest = int(limits.max())
    beams = Beams.start(limits, beam, longest)
    best = Best.empty(len(source), longest, source.device)
    memory, past = _repeat(model.encode(source), beam), None
    for length in range(1, longest + 1):
        step = torch.tensor(length, device=source.device)
        states, past = model.decode(beams.last_tokens(step).flatten()[:, None], memory, past)
        logits = model.logits(states[:, -1])
        logits = logits.view(-1, beam, logits.shape[-1])
        beams, parents = grow(beams, logits, step, length_penalty, model.body.target_size)
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


CHECK_EVERY = 4
"""Steps between two looks at which sentences are done: each look waits for the device."""


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


def grow(beams: Beams, logits: Tensor, length: Tensor, length_penalty: float, size: int) -> tuple[Beams, Tensor]:
    """Write token number `length` (from 1) of every hypothesis, by b x k x V logits in a vocabulary of `size`.

    Also returns, b x k, which hypothesis each one continues. Never waits for the device.
    """
    # The best 2 x beam of a sentence are among the best 2 x beam of its hypotheses; at most `beam` of them end here,
    # so `beam` are left to go on.
    beam = beams.scores.shape[1]
    grown, words = top_tokens(logits, size, NEVER_WRITTEN_AFTER_BEGIN, 2 * beam)
    grown = grown + beams.scores[:, :, None]
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


def length_limits(source: Tensor, max_positions: int) -> Tensor:
    """Steps after which a sentence is ended by force: generous, and its own whatever shares the batch."""
    return (2 * (source != PAD).sum(dim=1) + 16).clamp(max=max_positions - 1)
