"""The order of validations, and patience."""

from __future__ import annotations

import pytest

from lath.training.ranking import best_first, out_of_patience, validation_costs


def test_bleu_decides_if_there_is_one() -> None:
    entries = [{"loss": 1.0}, {"valid_loss": 3.0, "valid_bleu": 20.0}, {"valid_loss": 2.0, "valid_bleu": 10.0}]
    assert validation_costs(entries) == [(-20.0, 3.0), (-10.0, 2.0)]
    assert validation_costs([{"valid_loss": 3.0}]) == [(0.0, 3.0)]


def test_the_best_comes_first_and_of_equals_the_earlier() -> None:
    nan, inf = float("nan"), float("inf")
    assert best_first([(0, 3.0), (0, 1.0), None, (0, 2.0), (0, 1.0), (0, nan), (0, inf)]) == [1, 4, 3, 0]
    assert best_first([(-20.0, 3.0), (-10.0, 1.0), (-20.0, 2.0), (-30.0, nan)]) == [2, 0, 1]
    assert best_first([]) == []


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
    assert [out_of_patience(costs, patience) for patience in range(4)] == [
        0 < patience <= stale for patience in range(4)
    ]
