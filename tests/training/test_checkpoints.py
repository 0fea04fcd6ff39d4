"""Training checkpoints: save, load, rank, prune and average."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lath.config import NetworkSettings
from lath.errors import UserError
from lath.model.directory import WEIGHTS
from lath.model.network import Model, build_model
from lath.training.checkpoints import (
    OPTIMIZER,
    STATE,
    STATE_FORMAT,
    Checkpoint,
    TrainState,
    average_weights,
    best_checkpoints,
    list_checkpoints,
    load_checkpoint,
    prune_checkpoints,
    save_checkpoint,
)

TINY = NetworkSettings(
    kind="LAT", width=8, heads=2, feedforward=8, encoder_layers=1, decoder_layers=1, max_positions=16
)


def tiny_model(seed: int = 1) -> Model:
    return build_model(TINY, 40, 40, True, torch.Generator().manual_seed(seed))


def adam(model: Model) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.1)


def refusal(ask: Callable[[], Any]) -> str:
    with pytest.raises(UserError) as refused:
        ask()
    assert "\n" not in str(refused.value)
    return str(refused.value)


def step_once(model: Model, optimizer: torch.optim.Optimizer) -> None:
    for number, parameter in enumerate(model.parameters()):
        parameter.grad = torch.full_like(parameter, 0.01 * (number + 1))
    optimizer.step()


def test_a_checkpoint_brings_back_weights_and_optimiser(tmp_path: Path) -> None:
    model = tiny_model()
    optimizer = adam(model)
    step_once(model, optimizer)
    state = TrainState(step=1, epoch=0, batch=1, valid_loss=2.5)
    saved = save_checkpoint(tmp_path, model, optimizer, state)
    assert saved.directory == tmp_path / "step-1"
    assert list_checkpoints(tmp_path) == [saved]
    other = tiny_model(seed=2)
    other_optimizer = adam(other)
    load_checkpoint(saved, other, other_optimizer)
    for _ in range(2):
        step_once(model, optimizer)
        step_once(other, other_optimizer)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def test_a_checkpoint_of_the_same_step_is_replaced(tmp_path: Path) -> None:
    model = tiny_model()
    save_checkpoint(tmp_path, model, adam(model), TrainState(3, 0, 3, None))
    save_checkpoint(tmp_path, model, adam(model), TrainState(3, 0, 3, 1.5))
    assert [c.state.valid_loss for c in list_checkpoints(tmp_path)] == [1.5]
    assert [path.name for path in tmp_path.iterdir()] == ["step-3"]


def test_a_checkpoint_of_another_network_is_refused(tmp_path: Path) -> None:
    model = tiny_model()
    saved = save_checkpoint(tmp_path, model, adam(model), TrainState(3, 0, 3, None))
    other = build_model(TINY, 48, 48, True, torch.Generator().manual_seed(1))
    message = refusal(lambda: load_checkpoint(saved, other, adam(other)))
    assert message == (
        f"{saved.directory / WEIGHTS}: does not fit the recipe's network; "
        "resume with the recipe the run was started with"
    )


def test_the_average_is_the_mean(tmp_path: Path) -> None:
    models = [tiny_model(seed) for seed in (1, 2, 3)]
    saved = [
        save_checkpoint(tmp_path, model, adam(model), TrainState(step, 0, step, 1.0))
        for step, model in enumerate(models)
    ]
    averaged = average_weights([checkpoint.directory for checkpoint in saved])
    assert averaged.keys() == models[0].state_dict().keys()
    for name, tensor in averaged.items():
        expected = torch.stack([model.state_dict()[name].double() for model in models]).mean(dim=0)
        assert tensor.dtype == torch.float32
        torch.testing.assert_close(tensor, expected.float())
    assert all(
        torch.equal(tensor, models[1].state_dict()[name])
        for name, tensor in average_weights([saved[1].directory]).items()
    )


def write_states(folder: Path, losses: dict[int, float | None]) -> list[Checkpoint]:
    """Checkpoints that consist of little but their state."""
    for step, loss in losses.items():
        directory = folder / f"step-{step}"
        directory.mkdir(parents=True)
        state = {"format": STATE_FORMAT, "step": step, "epoch": 0, "batch": step, "valid_loss": loss}
        (directory / STATE).write_text(json.dumps(state), encoding="utf-8")
        for name in (WEIGHTS, OPTIMIZER):
            (directory / name).write_bytes(b"")
    return list_checkpoints(folder)


def test_checkpoints_are_listed_by_step_not_by_name(tmp_path: Path) -> None:
    found = write_states(tmp_path, {100: 1.0, 9: 1.0, 20: None})
    assert [checkpoint.state.step for checkpoint in found] == [9, 20, 100]
    assert list_checkpoints(tmp_path / "nowhere") == []


def test_what_is_not_whole_is_not_listed(tmp_path: Path) -> None:
    write_states(tmp_path, {1: 1.0})
    (tmp_path / ".step-2.partial-77").mkdir()
    (tmp_path / ".step-2.partial-77" / STATE).write_text("{}", encoding="utf-8")
    (tmp_path / "step-3").mkdir()
    assert [checkpoint.state.step for checkpoint in list_checkpoints(tmp_path)] == [1]


def test_the_best_have_the_lowest_validation_loss(tmp_path: Path) -> None:
    found = write_states(tmp_path, {1: 3.0, 2: 1.0, 3: None, 4: 2.0, 5: 1.0, 6: float("nan"), 7: float("inf")})
    steps = [checkpoint.state.step for checkpoint in best_checkpoints(found, 3)]
    assert steps == [2, 5, 4]  # of equals the earlier
    assert [checkpoint.state.step for checkpoint in best_checkpoints(found, 99)] == [2, 5, 4, 1]
    assert best_checkpoints([], 3) == []


def test_bleu_outranks_the_loss(tmp_path: Path) -> None:
    states = [
        TrainState(1, 0, 1, 3.0, 20.0), TrainState(2, 0, 2, 1.0, 10.0), TrainState(3, 0, 3, None),
        TrainState(4, 0, 4, 2.0, 20.0), TrainState(5, 0, 5, float("nan"), 30.0),
    ]  # fmt: skip
    found = [Checkpoint(tmp_path, state) for state in states]
    assert [checkpoint.state.step for checkpoint in best_checkpoints(found, 9)] == [4, 1, 2]
    assert [str(state) for state in states[:3]] == [
        "step 1: validation loss 3.0000, BLEU 20.00",
        "step 2: validation loss 1.0000, BLEU 10.00",
        "step 3: not validated",
    ]


def test_pruning_keeps_the_newest_whole_and_the_best_weights(tmp_path: Path) -> None:
    write_states(tmp_path, {1: 3.0, 2: 1.0, 3: None, 4: 2.0, 5: 4.0})
    prune_checkpoints(tmp_path, keep_best=2)
    left = list_checkpoints(tmp_path)
    assert [checkpoint.state.step for checkpoint in left] == [2, 4, 5]
    assert [checkpoint.can_resume for checkpoint in left] == [False, False, True]
    assert all((checkpoint.directory / WEIGHTS).is_file() for checkpoint in left)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-2", "step-4", "step-5"]
    prune_checkpoints(tmp_path, keep_best=2)
    assert list_checkpoints(tmp_path) == left


def test_the_newest_stays_even_if_it_is_not_validated(tmp_path: Path) -> None:
    write_states(tmp_path, {1: 3.0, 2: None})
    prune_checkpoints(tmp_path, keep_best=1)
    assert [(c.state.step, c.can_resume) for c in list_checkpoints(tmp_path)] == [(1, False), (2, True)]


def test_a_kill_while_pruning_leaves_nothing_that_looks_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_states(tmp_path, {1: 3.0, 2: 1.0, 3: 2.0})

    def killed(path: Path) -> None:
        (path / WEIGHTS).unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(shutil, "rmtree", killed)
        prune_checkpoints(tmp_path, keep_best=1)
    assert [checkpoint.state.step for checkpoint in list_checkpoints(tmp_path)] == [2, 3]


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"format": 1, "step": 3}', '{"format": 1, "stepp": 3}'])
def test_a_damaged_state_is_reported(tmp_path: Path, text: str) -> None:
    (checkpoint,) = write_states(tmp_path, {1: 3.0})
    path = checkpoint.directory / STATE
    path.write_text(text, encoding="utf-8")
    message = refusal(lambda: list_checkpoints(tmp_path))
    assert message.startswith(f"{path}: damaged or not written by lath (")
    assert message.endswith(f"); remove {checkpoint.directory} to continue without this checkpoint")


def test_a_state_of_another_format_is_reported(tmp_path: Path) -> None:
    (checkpoint,) = write_states(tmp_path, {1: 3.0})
    path = checkpoint.directory / STATE
    path.write_text('{"format": 2, "steps": 3}', encoding="utf-8")
    message = refusal(lambda: list_checkpoints(tmp_path))
    assert message == f"{path}: format 2, but this version of lath reads format 1; update lath"
