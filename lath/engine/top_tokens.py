"""The likeliest tokens and their log-probabilities in two small kernels: the fast twin of `model.top_tokens`.

The plain way reads and writes all logits half a dozen times. Here they are read once, in parts: each part leaves the
largest value of every group of tokens and its share of the softmax's sum. The n likeliest tokens lie in the n groups
with the largest values, so only those groups are read again.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lath.devices import HAS_TRITON

GROUP = 64
"""Tokens in a group."""
PART = 2048
"""Logits that one program reads."""
MOST_GROUPS = 1024
MOST_FORBIDDEN = 5


def has_kernel(logits: Tensor, forbidden: tuple[int, ...]) -> bool:
    """Whether the kernels can take these logits."""
    small = logits.shape[-1] <= GROUP * MOST_GROUPS and len(forbidden) <= MOST_FORBIDDEN
    return HAS_TRITON and logits.is_cuda and small and not logits.requires_grad


def top_tokens_by_kernel(logits: Tensor, size: int, forbidden: tuple[int, ...], count: int) -> tuple[Tensor, Tensor]:
    """What `model.top_tokens` gives; among equals the lowest id comes first."""
    from lath.engine.kernels import choose_kernel, survey_kernel

    columns = logits.shape[-1]
    rows = logits.reshape(-1, columns)
    parts, groups = -(-columns // PART), -(-columns // GROUP)
    maxima = torch.empty((len(rows), groups), dtype=torch.float32, device=rows.device)
    shares = torch.empty((len(rows), parts, 2), dtype=torch.float32, device=rows.device)
    scores = torch.empty((len(rows), count), dtype=torch.float32, device=rows.device)
    ids = torch.empty((len(rows), count), dtype=torch.long, device=rows.device)
    banned = [*forbidden, *[-1] * (MOST_FORBIDDEN - len(forbidden))]
    survey_kernel[(len(rows), parts)](
        rows, maxima, shares, columns, size, groups, *banned, PART=PART, GROUP=GROUP, num_warps=4
    )
    choose_kernel[(len(rows),)](
        rows, maxima, shares, scores, ids, columns, size, groups, parts, *banned, COUNT=count, GROUP=GROUP,
        GROUPS=power_of_two(groups), PARTS=power_of_two(parts), CHOSEN=power_of_two(count), num_warps=4,
    )  # fmt: skip
    shape = (*logits.shape[:-1], count)
    return scores.view(shape), ids.view(shape)


def power_of_two(number: int) -> int:
    """The smallest that is no smaller, which is what a program's block must be."""
    return 1 << (number - 1).bit_length()
