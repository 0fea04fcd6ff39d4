"""LAT's decoding: write a piece at every position, merge them, mask the least certain tokens, and again.

Section 2.2 of the paper; the merging itself is in merge.py. Each sentence keeps its own length in every pass and
padding is masked, so a result does not depend on the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from lath.config import DecodeSettings, MergeRules
from lath.decoding.lengths import best_candidates, length_candidates, repeat_rows
from lath.decoding.masks import mask_count, only_at
from lath.decoding.merge import Merged, NextInput, Sentence, Source, merge_pieces, next_input, wrap
from lath.decoding.results import Decoded, Pass
from lath.model.network import LAT, Memory, Pieces
from lath.model.padding import pad
from lath.text.vocab import BOS, EOS, MASK, PAD

MergeRule = Callable[[Sequence[Sequence[int]], Sequence[Sequence[float]], MergeRules], Merged]
"""How the pieces of one sentence become one text: `merge_pieces`, or a rule of your own with its arguments."""


@dataclass(frozen=True)
class MergeStep:
    """What is done between two passes of the decoder: the same for every sentence of a batch."""

    rules: MergeRules
    iteration: int
    """The pass that wrote the pieces, from 1."""
    iterations: int
    """Passes in all; after the last there is no next input."""
    limit: int
    """Longest next input, 2 or more: what is longer is cut and ends in EOS."""


class MergedPass(NamedTuple):
    """The result of one pass over one sentence."""

    sentence: Sentence
    next_input: list[int]
    """At most as long as the position table."""
    trace: Pass | None
    """Where it is asked for: to keep it for a whole batch takes longer than the merging."""


def decode_pieces(
    model: LAT, source: Tensor, settings: DecodeSettings, trace: bool = False, merge: MergeRule = merge_pieces
) -> list[Decoded]:
    """Translate B x S source tokens (each sentence ends in EOS)."""
    memory, scores = model.encode(source)
    return best_candidates(write_candidates(model, memory, scores, settings, trace, merge), settings.length_candidates)


def write_candidates(
    model: LAT, memory: Memory, scores: Tensor, settings: DecodeSettings, trace: bool, merge: MergeRule
) -> list[Decoded]:
    """A translation of each length candidate of each encoded sentence; `scores` are those of the lengths."""
    candidates, length_scores = length_candidates(scores, settings.length_candidates, settings.extra_length)
    lengths: list[int] = candidates.tolist()
    memory = repeat_rows(memory, settings.length_candidates)
    inputs = [[MASK] * length for length in lengths]
    passes: list[list[Pass]] = [[] for _ in inputs]
    for iteration in range(1, settings.iterations + 1):
        target = pad(inputs).to(scores.device)
        written = Pieces(*only_at(target != PAD, model.decode(target, memory), model.pieces))
        step = MergeStep(settings.merge_rules, iteration, settings.iterations, model.settings.max_positions)
        merged = merge_rows(inputs, written, step, merge, trace)
        inputs = [merged_pass.next_input for merged_pass in merged]
        for traced, merged_pass in zip(passes, merged, strict=True):
            if merged_pass.trace is not None:
                traced.append(merged_pass.trace)
    certain = certainty(written.scores, (target != PAD).sum(dim=1), length_scores).tolist()
    return [
        Decoded(ids := last.sentence.ids[1:-1], score if ids else -torch.inf, settings.iterations, traced)
        for last, score, traced in zip(merged, certain, passes, strict=True)
    ]


def certainty(scores: Tensor, shown: Tensor, length_scores: Tensor) -> Tensor:
    """R: the mean log-probability of everything that a pass predicted: all tokens of all pieces, and the length.

    R x T x K `scores`, of which the first `shown` positions of each row count, and the length's log-probability.
    # Departure: neither the paper nor the authors' program chooses among lengths. A merged token keeps the best score
    # of its proposals, which hides disagreement between pieces: a choice by those scores is worse than none.
    """
    inside = torch.arange(scores.shape[1], device=scores.device) < shown[:, None]
    sums = torch.where(inside[:, :, None], scores.double(), 0.0).sum(dim=(1, 2))
    return (sums + length_scores) / (shown * scores.shape[2] + 1)


def merge_rows(
    inputs: list[list[int]], written: Pieces, step: MergeStep, merge: MergeRule = merge_pieces, trace: bool = False
) -> list[MergedPass]:
    """Merge each sentence's pieces; unless the pass is the last, also make its next input.

    # Departure: only masks are ever deleted, so text that merges badly can outgrow the position table (`step.limit`).
    """
    rows = zip(inputs, written.tokens.tolist(), written.scores.double().tolist(), strict=True)
    return [
        merge_row(shown, pieces[: len(shown)], scores[: len(shown)], step, merge, trace)
        for shown, pieces, scores in rows
    ]


def merge_row(
    shown: list[int], pieces: list[list[int]], scores: list[list[float]], step: MergeStep, merge: MergeRule, trace: bool
) -> MergedPass:
    """As `merge_rows`, for one sentence."""
    rules, last = step.rules, step.iteration == step.iterations
    merged = merge(pieces, scores, rules)
    sentence = wrap(merged, len(pieces), bos=BOS, eos=EOS, mask=MASK)
    following = NextInput(sentence.ids, [], 0)
    if not last:
        masks = mask_count(len(sentence.ids), step.iteration, step.iterations)
        following = next_input(sentence, masks, len(shown), rules, mask=MASK)
    ids = following.ids if last or len(following.ids) <= step.limit else [*following.ids[: step.limit - 1], EOS]
    traced = None
    if trace:
        traced = Pass(
            input=shown,
            pieces=pieces,
            scores=scores,
            decisions=merged.decisions,
            output=sentence.ids,
            masked=following.masked,
            length_change=following.change,
            sources=token_sources(merged),
        )
    return MergedPass(sentence, ids, traced)


def token_sources(merged: Merged) -> list[list[Source]]:
    """The proposals of each token of the sentence (`wrap`); those of begin and end if they stand first and last."""
    words = [token.sources for token in merged.tokens if token.id not in (BOS, EOS, MASK)]
    begin, end = merged.tokens[:1], merged.tokens[-1:]
    return [
        [source for token in begin if token.id == BOS for source in token.sources],
        *words,
        [source for token in end if token.id == EOS for source in token.sources],
    ]
