"""When a run ends before its last step."""

from __future__ import annotations

import math

import pytest

from lath.config import TrainSettings
from lath.errors import UserError
from lath.training.stopping import out_of_patience, require_finite, require_no_spike, stale_validations


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_no_number_is_refused(loss: float) -> None:
    require_finite(1e9, 3)
    with pytest.raises(UserError, match=r"^step 3: the loss is no longer a number; the last checkpoint is kept\. "):
        require_finite(loss, 3)


@pytest.mark.parametrize(
    ("factor", "step", "earlier", "stops"),
    [
        (1.5, 11, [4.0, 2.0, 3.0], True),
        (1.5, 10, [4.0, 2.0, 3.0], False),  # still warming up
        (1.6, 11, [4.0, 2.0, 3.0], False),
        (0.0, 11, [4.0, 2.0, 3.0], False),
        (1.5, 11, [], False),
    ],
)
def test_a_spike_is_a_multiple_of_the_lowest(factor: float, step: int, earlier: list[float], stops: bool) -> None:
    settings = TrainSettings(spike_factor=factor, warmup_steps=10)
    if not stops:
        require_no_spike(3.1, earlier, step, settings)
        return
    with pytest.raises(UserError) as refused:
        require_no_spike(3.1, earlier, step, settings)
    assert str(refused.value) == (
        "step 11: the loss rose to 3.100, over 1.5 times its lowest, 2.000; the last checkpoint is kept. Start a new "
        "run with a lower train.learning_rate or train.clip_norm, or let this one go on through it: the same command "
        "with --resume --set train.spike_factor=0"
    )


@pytest.mark.parametrize(
    ("costs", "stale"),
    [
        ([], 0),
        ([(0, 3.0)], 0),
        ([(0, 3.0), (0, 2.0)], 0),
        ([(0, 2.0), (0, 3.0)], 1),
        ([(0, 2.0), (0, 2.0), (0, 2.0)], 2),
        ([(-10.0, 3.0), (-9.0, 2.0), (-11.0, 4.0), (-9.0, 1.0)], 1),
        ([(0, 3.0), (0, 2.5), (0, 2.0)], 0),  # BLEU is 0 still, but the loss falls
    ],
)
def test_validations_since_the_best(costs: list[tuple[float, float]], stale: int) -> None:
    assert stale_validations(costs) == stale
    assert [out_of_patience(costs, patience) for patience in (0, 1, 2)] == [False, stale >= 1, stale >= 2]
