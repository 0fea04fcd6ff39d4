"""The training loop: the schedule, the seeds, and an update."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path

import pytest
import torch
import toy
from conftest import CPU
from toy import with_train

from lath.config import Recipe, TrainSettings
from lath.preparation import prepare
from lath.text.corpus import Corpus
from lath.training.batches import make_batch
from lath.training.learner import build_learner
from lath.training.loop import learning_rate, step_seed, stop_requests, update


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Recipe, Path]:
    folder = tmp_path_factory.mktemp("toy")
    recipe = toy.toy_recipe(folder, "LAT", steps=12, validate_every=4, log_every=2, keep_best=2, warmup_steps=5)
    recipe = dataclasses.replace(recipe, network=dataclasses.replace(recipe.network, dropout=0.1))
    prepare(recipe, folder / "data")
    return recipe, folder / "data"


@pytest.mark.parametrize(("step", "rate"), [(5_000, 2.5e-4), (10_000, 5e-4), (40_000, 2.5e-4), (250_000, 1e-4)])
def test_schedule_of_appendix_b(step: int, rate: float) -> None:
    assert learning_rate(step, TrainSettings()) == pytest.approx(rate, rel=1e-3)


@pytest.mark.parametrize(("step", "rate"), [(50, 1e-3), (100, 2e-3), (550, 1.001e-3), (1000, 2e-3 / 901)])
def test_linear_decay_to_zero(step: int, rate: float) -> None:
    settings = TrainSettings(steps=1000, warmup_steps=100, learning_rate=2e-3, schedule="linear")
    assert learning_rate(step, settings) == pytest.approx(rate, rel=1e-3)


@pytest.mark.parametrize("kind", ["AT", "CMLM", "LAT"])
def test_weights_do_not_depend_on_the_micro_batch(prepared: tuple[Recipe, Path], kind: str) -> None:
    base, data = prepared
    network = dataclasses.replace(base.network, kind=kind, dropout=0.0)  # type: ignore[arg-type]
    corpus = Corpus.open(data, "train")
    results = []
    for tokens in (2000, 100):
        recipe = with_train(dataclasses.replace(base, network=network), micro_batch_tokens=tokens)
        learner = build_learner(recipe, data, CPU)
        for step in (1, 2, 3):
            update(learner, make_batch(corpus, range(step * 40, step * 40 + 40)), step)
        results.append(torch.cat([p.detach().flatten() for p in learner.model.parameters()]))
    assert torch.allclose(results[0], results[1], atol=2e-5)


def test_dropout_differs_by_rank_and_seeds_are_stable() -> None:
    assert step_seed(1, 5) == step_seed(1, 5, rank=0) == 7576354313457842240
    assert len({step_seed(1, step, rank) for step in range(20) for rank in range(8)}) == 160


def test_training_in_a_thread_leaves_signals_alone() -> None:
    collected: list[list[int]] = []

    def work() -> None:
        with stop_requests() as received:
            collected.append(received)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert collected == [[]]
