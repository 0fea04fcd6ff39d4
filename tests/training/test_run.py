"""The directory of a training run: what may change on resume, and what is refused before anything is written."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import pytest
from conftest import Runs, small_recipe

from lath.config import Recipe
from lath.errors import UserError
from lath.model.directory import read_info
from lath.training.run import MAY_CHANGE_ON_RESUME, changed_settings, resume_run, start_run


def with_train(recipe: Recipe, **changes: object) -> Recipe:
    return dataclasses.replace(recipe, train=dataclasses.replace(recipe.train, **changes))  # type: ignore[arg-type]


def test_changed_settings_are_named() -> None:
    changed = with_train(Recipe(), steps=7, stop_by="bleu", patience=3)
    changed = dataclasses.replace(changed, network=dataclasses.replace(changed.network, width=64))
    assert changed_settings(Recipe(), changed) == ["network.width", "steps", "stop_by", "patience"]
    assert changed_settings(Recipe(), Recipe()) == []


def test_every_setting_that_may_change_exists() -> None:
    assert set(MAY_CHANGE_ON_RESUME) <= {field.name for field in dataclasses.fields(Recipe().train)}


def test_what_steers_the_log_may_change_and_what_is_learnt_may_not(
    toy_folder: Path, toy_run: Runs, tmp_path: Path
) -> None:
    recipe, data = small_recipe(toy_folder, "LAT"), toy_folder / "data"
    run = tmp_path / "run"
    start_run(run, recipe, "", read_info(toy_run("LAT")), data)
    changed = with_train(recipe, patience=3, spike_factor=2.0, log_every=1)
    assert resume_run(run, changed, data) is None
    assert json.loads((run / "resolved.json").read_text(encoding="utf-8"))["train"]["patience"] == 3
    for settings in ({"average": "ema"}, {"stop_by": "bleu"}, {"ema_decay": 0.5}):
        with pytest.raises(UserError, match=f"was started with another {next(iter(settings))};"):
            resume_run(run, with_train(changed, **settings), data)


def test_without_tensorboard_a_run_that_wants_it_is_not_begun(
    toy_folder: Path, toy_run: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    recipe = with_train(small_recipe(toy_folder, "LAT"), tensorboard=True)
    with pytest.raises(UserError) as refused:
        start_run(tmp_path / "run", recipe, "", read_info(toy_run("LAT")), toy_folder / "data")
    assert str(refused.value) == (
        "train.tensorboard: the package tensorboard is not installed: pip install 'lath[logs]', "
        "or set train.tensorboard=false"
    )
    assert not (tmp_path / "run").exists()
