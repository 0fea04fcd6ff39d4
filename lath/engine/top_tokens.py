"""Twin of `top_tokens` of model/network.py: the likeliest tokens and their log-probabilities in two small kernels.

The plain version reads and writes all logits half a dozen times. Here they are read once, in blocks: each block leaves
the largest value of every group of tokens and its share of the softmax's sum. The n likeliest tokens lie in the n
groups with the largest values, so only those groups are read again.
"""

from __future__ import annotations

import torch
from torch import Tensor

GROUP = 64
"""Tokens in a group."""
BLOCK = 2048
"""Logits that one program reads."""
MOST_GROUPS = 1024
MOST_FORBIDDEN = 5
MOST_CHOSEN = 128
"""Tokens up to which they are chosen one by one, in loops that are unrolled."""


def fits_kernel(logits: Tensor, forbidden: tuple[int, ...], count: int = 1) -> bool:
    """Whether the kernels are large enough for so many tokens of these logits."""
    small = logits.shape[-1] <= GROUP * MOST_GROUPS and len(forbidden) <= MOST_FORBIDDEN
    return small and count <= MOST_CHOSEN


def top_tokens_by_kernel(logits: Tensor, size: int, forbidden: tuple[int, ...], count: int) -> tuple[Tensor, Tensor]:
    """What `network.top_tokens` gives; among equals the lowest id comes first."""
    from lath.engine.kernels import choose_kernel, survey_kernel

    columns = logits.shape[-1]
    rows = logits.reshape(-1, columns)
    blocks, groups = -(-columns // BLOCK), -(-columns // GROUP)
    maxima = torch.empty((len(rows), groups), dtype=torch.float32, device=rows.device)
    shares = torch.empty((len(rows), blocks, 2), dtype=torch.float32, device=rows.device)
    scores = torch.empty((len(rows), count), dtype=torch.float32, device=rows.device)
    ids = torch.empty((len(rows), count), dtype=torch.long, device=rows.device)
    banned = [*forbidden, *[-1] * (MOST_FORBIDDEN - len(forbidden))]
    survey_kernel[(len(rows), blocks)](
        rows, maxima, shares, columns, size, groups, *banned, BLOCK=BLOCK, GROUP=GROUP, num_warps=4
    )
    choose_kernel[(len(rows),)](
        rows, maxima, shares, scores, ids, columns, size, groups, blocks, *banned, COUNT=count, GROUP=GROUP,
        GROUPS=power_of_two(groups), BLOCKS=power_of_two(blocks), CHOSEN=power_of_two(count), num_warps=4,
    )  # fmt: skip
    shape = (*logits.shape[:-1], count)
    return scores.view(shape), ids.view(shape)


def power_of_two(number: int) -> int:
    """The smallest that is no smaller, which is what a program's block must be."""
    return 1 << (number - 1).bit_length()
