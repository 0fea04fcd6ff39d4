"""Decoding: beam search (AT), mask-predict (CMLM), and iterative decoding of pieces (LAT).

Follows section 2.2 of the paper. Each sentence keeps its own real length in every pass, and
padding is masked, so the result never depends on what shares the batch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from lath.batches import pad
from lath.config import DecodeSettings
from lath.merge import Decision, Sentence, mask_count, merge_pieces, next_input, wrap
from lath.model import (
    AT,
    CMLM,
    LAT,
    NEVER_WRITTEN_AFTER_BEGIN,
    KeyValues,
    Memory,
    Model,
    best_tokens,
    top_tokens,
)
from lath.vocab import BOS, EOS, MASK, PAD


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
    """Mean log-probability of the tokens (AT: by its length penalty)."""
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


def decode_pieces(model: LAT, source: Tensor, settings: DecodeSettings, trace: bool) -> list[Decoded]:
    """Section 2.2: write a piece at each position, merge them, mask the least certain tokens, and again."""
    memory, length_scores = model.encode(source)
    lengths = length_candidates(length_scores, settings.length_candidates)
    memory = _repeat(memory, settings.length_candidates)
    inputs = [[MASK] * length for length in lengths]
    passes: list[list[Pass]] = [[] for _ in inputs]
    sentences: list[Sentence] = []
    for iteration in range(1, settings.iterations + 1):
        target = pad(inputs).to(source.device)
        written = model.pieces(model.decode(target, memory))
        tokens, scores = written.tokens.tolist(), written.scores.double().tolist()
        last = iteration == settings.iterations
        sentences = []
        for row, shown in enumerate(inputs):
            told = _merge_pass(
                shown, tokens[row][: len(shown)], scores[row][: len(shown)], settings, None if last else iteration,
                len(shown) if settings.adjust_towards == "current" else lengths[row],
            )  # fmt: skip
            sentences.append(told.sentence)
            # Departure: only masks are ever deleted, so text that merges badly can outgrow the position table.
            inputs[row] = _limited(told.next_input, model.settings.max_positions)
            if trace:
                passes[row].append(told.told)
    decoded = [
        Decoded(sentence.ids[1:-1], _mean(sentence.scores[1:-1]), settings.iterations, told)
        for sentence, told in zip(sentences, passes, strict=True)
    ]
    return best_candidates(decoded, settings.length_candidates)


class _MergedPass(NamedTuple):
    sentence: Sentence
    next_input: list[int]
    told: Pass


def _merge_pass(
    shown: list[int],
    pieces: list[list[int]],
    scores: list[list[float]],
    settings: DecodeSettings,
    iteration: int | None,
    aim: int,
) -> _MergedPass:
    """Merge one sentence's pieces; unless the pass is the last (None), mask and adjust its length towards `aim`."""
    rules = settings.merge_rules
    merged = merge_pieces(pieces, scores, rules)
    sentence = wrap(merged, len(pieces), bos=BOS, eos=EOS, mask=MASK)
    told = Pass(shown, pieces, scores, merged.decisions, sentence.ids)
    if iteration is None:
        return _MergedPass(sentence, sentence.ids, told)
    masks = mask_count(len(sentence.ids), iteration, settings.iterations)
    following = next_input(sentence, masks, aim, rules, mask=MASK)
    told.masked, told.length_change = following.masked, following.change
    return _MergedPass(sentence, following.ids, told)


def _limited(ids: list[int], limit: int) -> list[int]:
    return ids if len(ids) <= limit else [*ids[: limit - 1], EOS]


# ---- CMLM -----------------------------------------------------------------------------------------------------


def mask_predict(model: CMLM, source: Tensor, settings: DecodeSettings, trace: bool) -> list[Decoded]:
    """Fill all masks at once, mask the least certain words again, fewer each time.

    Tokens that stay visible keep their old scores.
    # Departure: BOS and EOS are given to CMLM, in training too, since their places are known.
    """
    memory, length_scores = model.encode(source)
    lengths = length_candidates(length_scores, settings.length_candidates)
    memory = _repeat(memory, settings.length_candidates)
    inputs = [[BOS, *[MASK] * (length - 2), EOS] for length in lengths]
    best_scores = [[0.0] * length for length in lengths]
    passes: list[list[Pass]] = [[] for _ in inputs]
    for iteration in range(1, settings.iterations + 1):
        target = pad(inputs).to(source.device)
        values, indices = best_tokens(
            model.logits(model.decode(target, memory)), model.body.target_size, (*NEVER_WRITTEN_AFTER_BEGIN, EOS)
        )
        for row, (filled, filled_scores) in enumerate(zip(indices.tolist(), values.tolist(), strict=True)):
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
    decoded = [
        Decoded(ids[1:-1], _mean(scores[1:-1]), settings.iterations, told)
        for ids, scores, told in zip(inputs, best_scores, passes, strict=True)
    ]
    return best_candidates(decoded, settings.length_candidates)


# ---- lengths --------------------------------------------------------------------------------------------------


def length_candidates(scores: Tensor, candidates: int) -> list[int]:
    """The likeliest target lengths of each sentence, `candidates` in a row; BOS and EOS make it at least 2."""
    return scores.topk(candidates, dim=1).indices.clamp(min=2).flatten().tolist()


def best_candidates(decoded: list[Decoded], candidates: int) -> list[Decoded]:
    """Of each sentence's candidates the one with the best score; the likelier length wins a tie."""
    groups = [decoded[start : start + candidates] for start in range(0, len(decoded), candidates)]
    return [max(group, key=lambda candidate: candidate.score) for group in groups]


def _repeat(memory: Memory, times: int) -> Memory:
    if times == 1:
        return memory
    rows = torch.arange(memory.mask.shape[0], device=memory.mask.device).repeat_interleave(times)
    return memory.select(rows)


def _mean(scores: list[float]) -> float:
    """The mean; an empty sentence is as bad as can be, so that any other candidate wins."""
    return sum(scores) / len(scores) if scores else -torch.inf


# ---- AT -------------------------------------------------------------------------------------------------------


def beam_search(model: AT, source: Tensor, beam: int, length_penalty: float) -> list[Decoded]:
    """The best translation among `beam` kept at each step; 1 is greedy.

    A sentence is done when `beam` hypotheses have ended, or at its length limit; done sentences leave the batch. All
    bookkeeping is in tensors, and the device is asked only now and then how many sentences are done.
    """
    limits = _length_limits(source, model.settings.max_positions)
    longest = int(limits.max())
    state = _Beams.start(_repeat(model.encode(source), beam), limits, beam, longest)
    best = _Best(
        source.new_zeros(len(source), longest), limits.new_zeros(len(source)), limits.new_zeros(len(source)).float()
    )
    for length in range(1, longest + 1):
        state = _beam_step(model, state, beam, length, length_penalty)
        if length % CHECK_EVERY == 0 or length == longest:
            state = _leave(state, best, beam)
            if len(state.limits) == 0:
                break
    return [
        Decoded(ids[:size], score, size + 1)
        for ids, size, score in zip(best.tokens.tolist(), best.lengths.tolist(), best.scores.tolist(), strict=True)
    ]


CHECK_EVERY = 4
"""Steps between two looks at which sentences are done: each look waits for the device."""


class _Best(NamedTuple):
    """The winner of each sentence of the batch, filled in as sentences are done."""

    tokens: Tensor
    lengths: Tensor
    scores: Tensor


class _Beams(NamedTuple):
    """The search on the sentences still in the batch: b sentences, k hypotheses each, l steps at most."""

    memory: Memory
    past: list[KeyValues] | None
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
    def start(memory: Memory, limits: Tensor, beam: int, longest: int) -> _Beams:
        """All hypotheses of a sentence start alike: only the first may branch at the first step."""
        count = len(limits)
        scores = torch.full((count, beam), -torch.inf, device=limits.device)
        scores[:, 0] = 0.0
        tokens = torch.full((count, beam, longest), BOS, device=limits.device)
        nothing = torch.zeros_like(limits)
        worst = torch.full((count,), -torch.inf, device=limits.device)
        places = torch.arange(count, device=limits.device)
        return _Beams(memory, None, limits, places, tokens, scores, nothing, tokens[:, 0].clone(), nothing, worst)

    @property
    def done(self) -> Tensor:
        """b: which sentences need no further step. (A sentence at its limit has an ended hypothesis by force.)"""
        return self.ended >= self.tokens.shape[1]


def _beam_step(model: AT, state: _Beams, beam: int, length: int, length_penalty: float) -> _Beams:
    """Write token number `length` (from 1) of every hypothesis."""
    last = state.tokens[:, :, length - 2] if length > 1 else torch.full_like(state.tokens[:, :, 0], BOS)
    states, past = model.decode(last.flatten()[:, None], state.memory, state.past)
    # The best 2 x beam of a sentence are among the best 2 x beam of its hypotheses; at most `beam` of them end here,
    # so `beam` are left to go on.
    logits = model.logits(states[:, -1])
    grown, words = top_tokens(logits, model.body.target_size, NEVER_WRITTEN_AFTER_BEGIN, 2 * beam)
    grown = grown.view(-1, beam, grown.shape[-1]) + state.scores[:, :, None]
    values, indices = grown.flatten(1).topk(2 * beam, dim=1)
    parents, ids = indices // grown.shape[-1], words.view(len(grown), -1).gather(1, indices)
    ending = ids == EOS

    # Hypotheses that end among the best `beam`, of sentences that are not done.
    open_ = ~state.done[:, None]
    ends = ending[:, :beam] & values[:, :beam].isfinite() & open_
    going_on = values.masked_fill(ending, -torch.inf).topk(beam, dim=1)
    rows = torch.arange(len(values), device=values.device)[:, None]
    tokens = state.tokens[rows, parents.gather(1, going_on.indices)]
    tokens[:, :, length - 1] = ids.gather(1, going_on.indices)

    # The best of those that end now, against the best so far. At its limit a sentence with none takes what there is.
    end_scores = values[:, :beam].masked_fill(~ends, -torch.inf)
    end_score, end_place = end_scores.max(dim=1)
    end_tokens = state.tokens[rows[:, 0], parents.gather(1, end_place[:, None])[:, 0]]
    at_limit = (state.limits == length) & open_[:, 0]
    forced = at_limit & (state.ended == 0) & ~ends.any(dim=1)
    end_score = torch.where(forced, going_on.values[:, 0], end_score) / length**length_penalty
    better = end_score > state.best_scores
    end_tokens = torch.where(forced[:, None], tokens[:, 0], end_tokens)
    kept = (rows * beam + parents.gather(1, going_on.indices)).flatten()
    return state._replace(
        past=[KeyValues(keys[kept], values_[kept]) for keys, values_ in past],
        tokens=tokens,
        scores=going_on.values,
        ended=torch.where(at_limit, beam, state.ended + ends.sum(dim=1)),
        best_tokens=torch.where(better[:, None], end_tokens, state.best_tokens),
        best_lengths=torch.where(better, torch.where(forced, length, length - 1), state.best_lengths),
        best_scores=torch.where(better, end_score, state.best_scores),
    )


def _leave(state: _Beams, best: _Best, beam: int) -> _Beams:
    """Write down the winners of sentences that are done, and go on with the others."""
    done = state.done
    best.tokens[state.places] = state.best_tokens
    best.lengths[state.places] = state.best_lengths
    best.scores[state.places] = state.best_scores
    going_on = (~done).nonzero()[:, 0]
    if len(going_on) == len(done):
        return state
    rows = (going_on[:, None] * beam + torch.arange(beam, device=done.device)).flatten()
    assert state.past is not None
    past = [KeyValues(keys[rows], values[rows]) for keys, values in state.past]
    rest = (field[going_on] for field in state[2:])
    return _Beams(state.memory.select(rows), past, *rest)


def _length_limits(source: Tensor, max_positions: int) -> Tensor:
    """Steps after which a sentence is ended by force: generous, and its own whatever shares the batch."""
    return (2 * (source != PAD).sum(dim=1) + 16).clamp(max=max_positions - 1)
