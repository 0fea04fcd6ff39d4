"""Which validation is better: the order of checkpoints, and when a run has run out of patience."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Cost = tuple[float, float]
"""The rank of a validation; lower is better."""


def validation_cost(loss: float | None, bleu: float | None) -> Cost | None:
    """Rank by BLEU if there is one, then by the loss, which still falls while BLEU is 0; None if not validated.

    Either all validations of a run have a BLEU or none has.
    """
    return None if loss is None else (0.0 if bleu is None else -bleu, loss)


def validation_costs(entries: Iterable[Mapping[str, Any]]) -> list[Cost]:
    """The costs of the validations among some log entries."""
    costs = [validation_cost(entry.get("valid_loss"), entry.get("valid_bleu")) for entry in entries]
    return [cost for cost in costs if cost is not None]


def best_first(costs: Sequence[Cost | None]) -> list[int]:
    """The indices of the costs, best first. Equal costs keep their order; None, nan and inf are left out.

    >>> best_first([(0.0, 3.0), None, (0.0, 1.0), (0.0, float("nan")), (0.0, 1.0)])
    [2, 4, 0]
    """
    ranked = [(cost, index) for index, cost in enumerate(costs) if cost is not None and all(map(math.isfinite, cost))]
    return [index for _, index in sorted(ranked)]


def out_of_patience(costs: Sequence[Cost], patience: int) -> bool:
    """Whether the last `patience` validations brought no improvement; never with a patience of 0.

    >>> out_of_patience([(0.0, 3.0), (0.0, 2.0), (0.0, 2.5), (0.0, 2.0)], 2)
    True
    """
    return bool(costs) and 0 < patience <= len(costs) - 1 - costs.index(min(costs))
