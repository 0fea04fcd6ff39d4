"""How long a translation may be: predicted lengths (section 2.2 of the paper), and the limit of a beam search."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lath.decoding.results import Decoded
from lath.model.network import Memory
from lath.text.vocab import PAD

LEAST_LIKELY = math.log(1000)
"""A length a thousand times less likely than the likeliest is not tried."""


def length_candidates(scores: Tensor, candidates: int, extra: int = 0) -> tuple[Tensor, Tensor]:
    """The likeliest target lengths, `candidates` in a row for each sentence, and their log-probabilities.

    `extra` positions are added to each, as far as the position table goes. BOS and EOS make a length at least 2.
    Where too few lengths are likely, the likeliest is repeated: the next best may be 59 for a sentence of six tokens,
    with one chance in a million, and the whole batch would be padded to that.
    """
    best = scores.topk(candidates, dim=1)
    likely = best.values > best.values[:, :1] - LEAST_LIKELY
    lengths = torch.where(likely, best.indices, best.indices[:, :1])
    longer = (lengths + extra).clamp(min=2, max=scores.shape[1] - 1)
    return longer.flatten(), torch.where(likely, best.values, best.values[:, :1]).flatten()


def repeat_rows(memory: Memory, times: int) -> Memory:
    """Each sentence's memory several times in a row: once for each of its candidates or hypotheses."""
    if times == 1:
        return memory
    rows = torch.arange(len(memory.visible), device=memory.visible.device).repeat_interleave(times)
    return memory.select(rows)


def best_candidates(decoded: list[Decoded], candidates: int) -> list[Decoded]:
    """Of each sentence's candidates the one with the best score; the likelier length wins a tie.

    An empty sentence has the worst score there can be, so any other candidate wins.
    """
    groups = [decoded[start : start + candidates] for start in range(0, len(decoded), candidates)]
    return [max(group, key=lambda candidate: candidate.score) for group in groups]


LIMIT_PER_TOKEN, LIMIT_SPARE = 2, 16
"""A beam search ends a sentence by force after so many tokens for each source token, and some more."""


def length_limits(source: Tensor, max_positions: int) -> Tensor:
    """The limit of each of B x S padded sentences: generous, and independent of the batch."""
    return (LIMIT_PER_TOKEN * (source != PAD).sum(dim=1) + LIMIT_SPARE).clamp(max=max_positions - 1)


def length_limit(source_tokens: int, max_positions: int) -> int:
    """The limit of a sentence of so many tokens."""
    return min(LIMIT_PER_TOKEN * source_tokens + LIMIT_SPARE, max_positions - 1)
