"""The directory of a training run: its settings, what may change on resume, and averaging."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import pytest
import torch
from conftest import CPU, Runs, small_recipe
from safetensors.torch import load_file
from toy import with_train

from lath.config import Recipe, load_recipe
from lath.errors import UserError
from lath.model.directory import WEIGHTS, load_model
from lath.training.checkpoints import average_weights, list_checkpoints
from lath.training.run import (
    MAY_CHANGE_ON_RESUME,
    average_run,
    changed_settings,
    read_settings,
    resume_run,
    start_run,
)


def test_changed_settings_are_named() -> None:
    changed = with_train(Recipe(), steps=7, stop_by="bleu", patience=3)
    changed = dataclasses.replace(changed, network=dataclasses.replace(changed.network, width=64))
    assert changed_settings(Recipe(), changed) == ["network.width", "steps", "stop_by", "patience"]
    assert changed_settings(Recipe(), Recipe()) == []


def test_every_setting_that_may_change_exists() -> None:
    assert set(MAY_CHANGE_ON_RESUME) <= {field.name for field in dataclasses.fields(Recipe().train)}


def test_logging_may_change_on_resume_and_training_may_not(toy_folder: Path, tmp_path: Path) -> None:
    recipe, data = small_recipe(toy_folder, "LAT"), toy_folder / "data"
    run = tmp_path / "run"
    start_run(run, recipe, data)
    changed = with_train(recipe, patience=3, log_every=1)
    assert resume_run(run, changed, data) is None
    assert json.loads((run / "resolved.json").read_text(encoding="utf-8"))["train"]["patience"] == 3
    assert load_recipe(run / "recipe.toml") == changed
    for settings in ({"stop_by": "bleu"}, {"schedule": "linear"}):
        with pytest.raises(UserError, match=f"was started with a different {next(iter(settings))};"):
            resume_run(run, with_train(changed, **settings), data)


def test_a_run_of_lath_0_1_can_be_resumed_unless_it_used_a_setting_that_is_gone(
    toy_folder: Path, tmp_path: Path
) -> None:
    recipe, data, run = small_recipe(toy_folder, "LAT"), toy_folder / "data", tmp_path / "run"
    start_run(run, recipe, data)
    tree = json.loads((run / "resolved.json").read_text(encoding="utf-8"))
    tree["train"] |= {"only": "", "spike_factor": 0.0, "average": "best", "ema_decay": 0.999}
    tree["objective"]["deleted_as_masked"] = False
    (run / "resolved.json").write_text(json.dumps(tree), encoding="utf-8")
    assert read_settings(run) == recipe
    tree["train"]["average"] = "ema"
    (run / "resolved.json").write_text(json.dumps(tree), encoding="utf-8")
    with pytest.raises(UserError, match="train: average is .*, which only lath 0.1 supports"):
        resume_run(run, recipe, data)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"train": 3}', "{}"])
def test_damaged_settings_are_reported(tmp_path: Path, text: str) -> None:
    (tmp_path / "resolved.json").write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=r"resolved\.json: damaged or not written by lath \(.*\); copy the run"):
        read_settings(tmp_path)


def test_without_tensorboard_a_run_that_wants_it_is_not_begun(
    toy_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    recipe = with_train(small_recipe(toy_folder, "LAT"), tensorboard=True)
    with pytest.raises(UserError) as refused:
        start_run(tmp_path / "run", recipe, toy_folder / "data")
    assert str(refused.value) == (
        "train.tensorboard: the package tensorboard is not installed: pip install 'lath[logs]', "
        "or set train.tensorboard=false"
    )
    assert not (tmp_path / "run").exists()


def test_a_run_is_averaged_by_its_best(toy_run: Runs, tmp_path: Path) -> None:
    run = toy_run("CMLM")
    checkpoints = list_checkpoints(run / "checkpoints")
    assert [checkpoint.state.step for checkpoint in checkpoints] == [10, 20]
    (used,) = average_run(run, 1, tmp_path / "best")
    assert used.state.valid_loss == min(c.state.valid_loss for c in checkpoints if c.state.valid_loss is not None)
    best, weights = load_model(tmp_path / "best", CPU), load_file(used.directory / WEIGHTS)
    assert best.info.steps == used.state.step
    assert all(torch.equal(tensor, weights[name]) for name, tensor in best.model.state_dict().items())
    average_run(run, 2, tmp_path / "both")
    mean = average_weights([checkpoint.directory for checkpoint in checkpoints])
    assert all(torch.equal(tensor, mean[name]) for name, tensor in load_file(tmp_path / "both" / WEIGHTS).items())
