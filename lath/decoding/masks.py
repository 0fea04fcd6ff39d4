"""Masks between passes: how many (the schedule), and CMLM's mask-predict, which fills them all at once.

Section 2.2 of the paper and, for CMLM, Ghazvininejad et al. 2019. Each sentence keeps its own length in every pass and
padding is masked, so a result does not depend on the batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from lath.config import DecodeSettings
from lath.decoding.lengths import best_candidates, length_candidates, repeat_rows
from lath.decoding.merge import least_certain
from lath.decoding.results import Decoded, Pass
from lath.model.network import CMLM, NEVER_WRITTEN_AFTER_BEGIN
from lath.model.padding import pad
from lath.text.vocab import BOS, EOS, MASK, PAD

Count = TypeVar("Count", int, Tensor)


def mask_count(length: int, iteration: int, iterations: int) -> int:
    """LAT: how many tokens are masked after pass `iteration` (from 1); `length` counts BOS and EOS.

    Mask-predict's linear schedule, in integers so that it is exact for every number of iterations.

    >>> [mask_count(12, c, 4) for c in (1, 2, 3, 4)]
    [9, 6, 3, 0]
    """
    return min(length - length * iteration // iterations, length - 2)


def word_mask_count(length: Count, iteration: int, iterations: int) -> Count:
    """CMLM: the same schedule over the words alone, since BOS and EOS are given.

    >>> [word_mask_count(12, c, 4) for c in (1, 2, 3, 4)]
    [7, 5, 2, 0]
    """
    return (length - 2) * (iterations - iteration) // iterations


def mask_predict(model: CMLM, source: Tensor, settings: DecodeSettings, trace: bool) -> list[Decoded]:
    """Fill all masks at once, mask the least certain words again, fewer each time.

    Tokens that stay visible keep their old scores.
    # Departure: BOS and EOS are given to CMLM, in training too, since their places are known.
    """

    def choose(states: Tensor) -> tuple[Tensor, Tensor]:
        return model.body.best_tokens(states, (*NEVER_WRITTEN_AFTER_BEGIN, EOS))

    memory, length_scores = model.encode(source)
    lengths: list[int] = length_candidates(length_scores, settings.length_candidates)[0].tolist()
    memory = repeat_rows(memory, settings.length_candidates)
    inputs = [[BOS, *[MASK] * (length - 2), EOS] for length in lengths]
    best_scores = [[0.0] * length for length in lengths]
    passes: list[list[Pass]] = [[] for _ in inputs]
    for iteration in range(1, settings.iterations + 1):
        target = pad(inputs).to(source.device)
        asked = target == MASK
        if trace or not asked.any():  # a trace shows the other places too; and an empty choice cannot be computed
            asked = target != PAD
        values, indices = only_at(asked, model.decode(target, memory), choose)
        for row, (shown, filled, filled_scores) in enumerate(
            zip(inputs, indices.tolist(), values.tolist(), strict=True)
        ):
            scores = best_scores[row]
            output = [filled[place] if id == MASK else id for place, id in enumerate(shown)]
            for place, id in enumerate(shown):
                if id == MASK:
                    scores[place] = filled_scores[place]
            masked = least_certain(scores, word_mask_count(len(shown), iteration, settings.iterations))
            if trace:
                pieces, piece_scores = [[id] for id in filled[: len(shown)]], [[s] for s in filled_scores[: len(shown)]]
                passes[row].append(Pass(shown, pieces, piece_scores, [], output, masked))
            inputs[row] = [MASK if place in masked else id for place, id in enumerate(output)]
    # Nothing is masked after the last pass.
    decoded = [
        Decoded(ids[1:-1], _mean(scores[1:-1]), settings.iterations, traced)
        for ids, scores, traced in zip(inputs, best_scores, passes, strict=True)
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


def _mean(scores: list[float]) -> float:
    return sum(scores) / len(scores) if scores else -torch.inf
