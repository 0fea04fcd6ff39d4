"""When a run ends before its last step: a loss that is no number, a loss that shoots up, or no progress any more."""

from __future__ import annotations

import math
from collections.abc import Sequence

from lath.config import TrainSettings
from lath.errors import UserError
from lath.model.directory import Cost


def require_finite(loss: float, step: int) -> None:
    """Stop the run when the loss is no longer a number."""
    if not math.isfinite(loss):
        raise UserError(
            f"step {step}: the loss is no longer a number; the last checkpoint is kept. "
            "Start a new run with a lower train.learning_rate or a longer train.warmup_steps"
        )


def require_no_spike(loss: float, earlier: Sequence[float], step: int, settings: TrainSettings) -> None:
    """Stop the run when the loss is over `spike_factor` times the lowest of the earlier ones; never in the warm-up."""
    if settings.spike_factor == 0 or step <= settings.warmup_steps or not earlier:
        return
    lowest = min(earlier)
    if loss > settings.spike_factor * lowest:
        raise UserError(
            f"step {step}: the loss rose to {loss:.3f}, over {settings.spike_factor:g} times its lowest, {lowest:.3f}; "
            "the last checkpoint is kept. Start a new run with a lower train.learning_rate or train.clip_norm, or let "
            "this one go on through it: the same command with --resume --set train.spike_factor=0"
        )


def stale_validations(costs: Sequence[Cost]) -> int:
    """Validations since the best one; costs are better the lower.

    >>> stale_validations([(0.0, 3.0), (0.0, 2.0), (0.0, 2.5), (0.0, 2.0)])
    2
    """
    return len(costs) - 1 - costs.index(min(costs)) if costs else 0


def out_of_patience(costs: Sequence[Cost], patience: int) -> bool:
    """Whether the last `patience` validations brought nothing better; 0 is never out of it."""
    return patience > 0 and stale_validations(costs) >= patience
