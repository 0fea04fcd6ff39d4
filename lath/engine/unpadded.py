"""Twin of `sentence_mask` (model/network.py) on a CPU: attention of each sentence without its padding.

Padding changes the order in which floats are added, and int8 rounds what comes of it: with padded attention a sentence
could be translated otherwise in another batch. Here it sees exactly the numbers that it sees alone.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional


class Group(NamedTuple):
    """Sentences with as many queries and the same places of keys, which are attended together."""

    rows: Tensor | slice
    queries: int
    keys: slice


class UnpaddedMask(NamedTuple):
    """Every query of a sentence sees all its keys; neither is computed for padding."""

    groups: list[Group]

    def attend(self, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """B x T queries, B x S keys and values; 0 for padded queries."""
        mixed = torch.zeros_like(query)
        for rows, count, span in self.groups:
            own = query[rows, :count].transpose(1, 2)
            seen, held = keys[rows, span].transpose(1, 2), values[rows, span].transpose(1, 2)
            mixed[rows, :count] = functional.scaled_dot_product_attention(own, seen, held).transpose(1, 2)
        return mixed


def unpadded_mask(queries: Tensor, keys: Tensor, like: Tensor) -> UnpaddedMask:
    """The mask of B x T queries and B x S keys; the tokens of a sentence stand side by side."""
    counts: list[int] = queries.sum(dim=1).tolist()
    firsts, sizes = keys.int().argmax(dim=1).tolist(), keys.sum(dim=1).tolist()
    groups: dict[tuple[int, int, int], list[int]] = {}
    for row, key in enumerate(zip(counts, firsts, sizes, strict=True)):
        groups.setdefault(key, []).append(row)
    alike = len(groups) == 1  # then nothing has to be picked, and nothing is copied
    return UnpaddedMask(
        [
            Group(slice(None) if alike else torch.tensor(rows), count, slice(first, first + size))
            for (count, first, size), rows in groups.items()
        ]
    )
