"""The log of a run: its entries, and patience across a resume."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from lath.config import TrainSettings
from lath.errors import UserError
from lath.progress import Bar
from lath.training.log import Log, UpdateResult, log_entries, require_finite, training_words, trim_log


def open_log(run: Path, **settings: object) -> Log:
    (run / "log.jsonl").touch()
    chosen = TrainSettings(log_every=2, warmup_steps=2, **settings)  # type: ignore[arg-type]
    return Log(run, chosen, Bar("training", 10, "steps"))


def result(loss: float, ideal_seconds: float) -> UpdateResult:
    return UpdateResult(torch.tensor(loss), torch.tensor(0.5), torch.tensor(loss), 80, 50, 40, ideal_seconds)


def take_steps(log: Log, first: int, *losses: float, ideal_seconds: float = 0.0) -> None:
    for step, loss in enumerate(losses, start=first):
        log.step(step, 0, 1e-3, result(loss, ideal_seconds))


def test_a_line_sums_up_its_steps(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.since -= 2.0
    take_steps(log, 1, 3.0, 2.0, 9.0, ideal_seconds=0.1)
    (entry,) = log_entries(tmp_path)
    assert (entry["step"], entry["loss"], entry["token_loss"], entry["length_loss"]) == (2, 3.0, 2.5, 0.5)
    assert (entry["gradient_norm"], entry["padding"]) == (3.0, 0.2)
    assert (entry["seconds"], entry["tokens_per_second"], entry["mfu"]) == pytest.approx((2.0, 80.0, 0.1), rel=0.1)


def test_mfu_is_left_out_where_the_peak_is_not_known(tmp_path: Path) -> None:
    take_steps(open_log(tmp_path), 1, 3.0, 2.0)
    assert "mfu" not in next(log_entries(tmp_path))


def test_the_patience_is_remembered(tmp_path: Path) -> None:
    log = open_log(tmp_path, patience=2)
    for step, loss in enumerate((3.0, 2.0, 2.5)):
        assert not log.out_of_patience
        log.write({"step": step, "epoch": 0, "valid_loss": loss})
    again = open_log(tmp_path, patience=2)
    assert not again.out_of_patience
    again.write({"step": 4, "epoch": 0, "valid_loss": 2.0})
    assert again.out_of_patience
    assert open_log(tmp_path, patience=2).out_of_patience


def test_a_line_in_words() -> None:
    entry = {"loss": 2.3456, "tokens_per_second": 123456.7}
    assert training_words(entry) == "loss 2.346, 123,457 tokens/s"
    assert training_words({**entry, "padding": 0.071, "mfu": 0.384}).endswith("tokens/s, 7 % padding, MFU 38 %")


def test_trim_log_drops_later_steps_and_a_line_cut_short(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('{"step": 2}\n{"step": 4, "loss": 0.1}\n{"step": 6}\n{"st')
    trim_log(tmp_path, 4)
    assert path.read_text() == '{"step": 2}\n{"step": 4, "loss": 0.1}\n'
    assert [json.loads(line) for line in path.read_text().splitlines()] == list(log_entries(tmp_path))


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_stops_the_run(loss: float) -> None:
    require_finite(1e9, 3)
    with pytest.raises(UserError, match=r"^step 3: the loss is no longer a finite number; the last checkpoint is kept"):
        require_finite(loss, 3)


def test_the_log_is_json_also_where_a_number_is_not_finite(tmp_path: Path) -> None:
    with open_log(tmp_path, patience=0) as log:
        log.write({"step": 1, "epoch": 0, "loss": 1.5, "gradient_norm": math.inf, "mean_valid_loss": math.nan})
    written = (tmp_path / "log.jsonl").read_text()
    assert written == '{"step": 1, "epoch": 0, "loss": 1.5, "gradient_norm": null, "mean_valid_loss": null}\n'
    trim_log(tmp_path, 1)
    assert (tmp_path / "log.jsonl").read_text() == written
