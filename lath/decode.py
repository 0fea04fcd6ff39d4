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
    log_probabilities,
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

    A sentence is done when `beam` hypotheses have ended, or at its length limit, and then leaves the batch.
    """
    count = source.shape[0]
    limits = _length_limits(source, model.settings.max_positions)
    sentences = list(range(count))
    finished: list[list[Decoded]] = [[] for _ in sentences]
    memory = _repeat(model.encode(source), beam)
    past: list[KeyValues] | None = None
    tokens = torch.full((count, beam, 1), BOS, device=source.device)
    # All hypotheses of a sentence start alike: only the first may branch at the first step.
    scores = torch.full((count, beam), -torch.inf, device=source.device)
    scores[:, 0] = 0.0
    for length in range(1, max(limits) + 1):
        states, past = model.decode(tokens[:, :, -1:].flatten(0, 1), memory, past)
        grown = log_probabilities(model.logits(states[:, -1]), model.body.target_size, NEVER_WRITTEN_AFTER_BEGIN)
        vocabulary = grown.shape[-1]
        grown = (grown.view(len(sentences), beam, vocabulary) + scores[:, :, None]).flatten(1)
        # At most `beam` of the best 2 x beam end here, so `beam` are left to go on.
        values, indices = grown.topk(2 * beam, dim=1)
        parents, ids = indices // vocabulary, indices % vocabulary
        ending = ids == EOS
        _collect(finished, sentences, tokens, values, parents, ending, beam, length, length_penalty)
        going_on = values.masked_fill(ending, -torch.inf).topk(beam, dim=1)
        scores = going_on.values
        parents, ids = parents.gather(1, going_on.indices), ids.gather(1, going_on.indices)
        rows = torch.arange(len(sentences), device=source.device)[:, None]
        tokens = torch.cat([tokens[rows, parents], ids[:, :, None]], dim=2)

        staying = [
            row
            for row, sentence in enumerate(sentences)
            if len(finished[sentence]) < beam and length < limits[sentence]
        ]
        for row, sentence in enumerate(sentences):
            if row not in staying and not finished[sentence]:  # at its limit with nothing ended: take what there is
                ids_so_far = tokens[row, 0, 1:].tolist()
                finished[sentence].append(Decoded(ids_so_far, float(scores[row, 0]) / length**length_penalty, length))
        sentences = [sentences[row] for row in staying]
        if not sentences:
            break
        kept = torch.tensor(staying, device=source.device)
        flat = (rows * beam + parents)[kept].flatten()
        past = [KeyValues(keys[flat], values[flat]) for keys, values in past]
        memory = memory.select(flat) if len(staying) < len(rows) else memory
        tokens, scores = tokens[kept], scores[kept]
    return [max(hypotheses, key=lambda hypothesis: hypothesis.score) for hypotheses in finished]


def _length_limits(source: Tensor, max_positions: int) -> list[int]:
    """Steps after which a sentence is ended by force: generous, and its own whatever shares the batch."""
    lengths = (source != PAD).sum(dim=1)
    return (2 * lengths + 16).clamp(max=max_positions - 1).tolist()


def _collect(
    finished: list[list[Decoded]],
    sentences: list[int],
    tokens: Tensor,
    values: Tensor,
    parents: Tensor,
    ending: Tensor,
    beam: int,
    length: int,
    length_penalty: float,
) -> None:
    """Add the hypotheses that ended among each sentence's best `beam` continuations."""
    for row, place in (ending[:, :beam] & values[:, :beam].isfinite()).nonzero().tolist():
        hypotheses = finished[sentences[row]]
        if len(hypotheses) < beam:
            ids = tokens[row, int(parents[row, place]), 1:].tolist()
            hypotheses.append(Decoded(ids, float(values[row, place]) / length**length_penalty, length))
