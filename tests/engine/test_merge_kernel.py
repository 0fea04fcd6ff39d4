"""The kernel gives what the plain merger gives, here in Triton's interpreter on the CPU; tests/gpu has the rest.

The interpreter must be asked for before Triton is imported, so this file runs itself: the tests compare nothing but
what that other process tells.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import random
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import merge_cases
import numpy as np
import pytest
import torch
from merge_cases import EVERY_SWITCH, OFFICIAL, PAPER, Case

from lath.config import MergeRules
from lath.decoding.pieces import MergeStep
from lath.engine.merge_kernel import Scratch, _Rules, available, merge_on_device, merge_plainly

ROOT = Path(__file__).parents[2]


def recorded() -> list[str]:
    """What the authors' program made of the worked examples."""
    found = []
    for case, expected in merge_cases.recorded_cases(group="hand", shares=("3/4",)):
        found += merge_cases.differences(case, merge_on_device, expected)
    return found


def recorded_under_the_paper_rules() -> list[str]:
    """The worked examples again, as the plain version merges them by the other rule set."""
    cases = merge_cases.recorded_merges(PAPER, group="hand", iterations=(2,))
    return [line for case in cases for line in merge_cases.differences(case, merge_on_device)]


def every_switch() -> list[str]:
    """Random batches, so many that every rule is met at two values at least."""
    cases = [merge_cases.random_case(seed, 3, 6) for seed in range(18)]
    assert {case.step.rules for case in cases} == set(EVERY_SWITCH)
    return [line for case in cases for line in merge_cases.differences(case, merge_on_device, extra=1)]


def more_than_a_tile() -> list[str]:
    """A sentence of more pieces, words and scores than are handled side by side."""
    pieces, scores = merge_cases.noisy_truth(random.Random(3), 45, 3)
    case = Case("45 pieces", [pieces, pieces[:2]], [scores, scores[:2]], MergeStep(OFFICIAL, 1, 2, 70))
    return merge_cases.differences(case, merge_on_device)


def pieces_of_eight() -> list[str]:
    """The longest pieces: their patterns fill all bits of an integer."""
    made = [merge_cases.confusing(random.Random(seed), 5, 8) for seed in range(3)]
    step = MergeStep(PAPER, 1, 3, 60)
    return merge_cases.differences(Case("K8", [p for p, _ in made], [s for _, s in made], step), merge_on_device)


CHECKS: tuple[Callable[[], list[str]], ...] = (
    recorded,
    recorded_under_the_paper_rules,
    every_switch,
    more_than_a_tile,
    pieces_of_eight,
)


def test_the_module_can_be_imported_without_triton() -> None:
    assert available() == (importlib.util.find_spec("triton") is not None)


def test_plain_merging_in_tensors_is_the_plain_merger() -> None:
    cases = [merge_cases.random_case(seed) for seed in range(200)]
    assert [line for case in cases for line in merge_cases.differences(case, merge_plainly, extra=1)] == []


def test_scratch_holds_what_no_overlap_leaves() -> None:
    scratch = Scratch.allocate(torch.zeros(2, 7, 3))
    assert scratch.whole.shape == (2, 5, 23)
    assert scratch.real.shape == (2, 2, 23)


@pytest.mark.parametrize("rules", EVERY_SWITCH)
def test_no_rule_compiles_anew_and_none_loses_a_bit(rules: MergeRules) -> None:
    """Triton compiles for some values of integers, never for those of floats, which it passes as float32."""
    told = _Rules.of(rules)
    reals = (told.empty_score, told.low, told.high)
    assert {type(value) for value in (*told[:5], *(third for thirds in reals for third in thirds), told.margin)} == {
        float
    }
    relative = rules.band if rules.band < 1 else 0.0
    assert [sum(map(float, np.array(thirds, dtype=np.float32))) for thirds in reals] == [
        math.log(rules.empty_probability),
        1 - relative,
        1 + relative,
    ]


@pytest.fixture(scope="module")
def told() -> dict[str, list[str]]:
    """What each check found, told by the other process."""
    if not available():
        pytest.skip("Triton is not installed")
    if tuple(map(int, version("triton").split(".")[:2])) < (3, 7):
        pytest.skip("the interpreter of Triton 3.6 does not go with numpy 2.4")
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, __file__],
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, list[str]] = json.loads(done.stdout)
    return result


@pytest.mark.parametrize("check", [check.__name__ for check in CHECKS])
def test_the_interpreted_kernel_is_the_plain_merger(told: dict[str, list[str]], check: str) -> None:
    assert told[check] == []


if __name__ == "__main__":
    print(json.dumps({check.__name__: check() for check in CHECKS}))
