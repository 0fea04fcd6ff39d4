"""The directory of a training run: what it was started with, its log, its checkpoints, and its model.

RUN/recipe.toml     the recipe's own text
RUN/resolved.json   every setting in force
RUN/prepared.json   data.json of the data directory it was started on
RUN/config.json     of the model to be, with its vocabulary beside it
RUN/log.jsonl       one line every so many steps, and one for each validation
RUN/checkpoints/    step-N/, the newest whole and the best
RUN/model/          when it is finished
"""

from __future__ import annotations

import contextlib
import json
import math
import shutil
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lath.checkpoint import (
    Checkpoint,
    ModelInfo,
    average_weights,
    best_checkpoints,
    list_checkpoints,
    read_info,
    save_model,
    write_info,
)
from lath.config import Recipe, TrainSettings, recipe_from_tree, to_tree
from lath.data import DATA_INFO
from lath.errors import UserError
from lath.files import disk_errors, whole_directory, whole_file
from lath.progress import Bar
from lath.vocab import load_vocabs, save_vocabs

PREPARED = "prepared.json"
"""The copy of the data directory's data.json in a run, by which a resume knows the same data."""
MAY_CHANGE_ON_RESUME = ("steps", "validate_every", "keep_best", "log_every", "micro_batch_tokens")


def start_run(run: Path, recipe: Recipe, recipe_text: str, info: ModelInfo, data: Path) -> None:
    """Create a run directory; an existing one is never touched."""
    if run.exists():
        raise UserError(f"{run}: exists already; add --resume to go on with it, or choose another name")
    with whole_directory(run) as partial:
        (partial / "checkpoints").mkdir()
        (partial / "recipe.toml").write_text(recipe_text, encoding="utf-8")
        (partial / "log.jsonl").touch()
        _write_resolved(partial, recipe)
        write_info(partial, info)
        save_vocabs(partial, *load_vocabs(data))
        shutil.copy(data / DATA_INFO, partial / PREPARED)


def _write_resolved(run: Path, recipe: Recipe) -> None:
    with whole_file(run / "resolved.json") as partial:
        partial.write_text(json.dumps(to_tree(recipe), indent=2) + "\n", encoding="utf-8")


def resume_run(run: Path, recipe: Recipe, data: Path) -> Checkpoint | None:
    """The checkpoint to go on from (None: the run had not reached its first); the log is cut back to it."""
    path = run / "resolved.json"
    if not path.is_file():
        raise UserError(f"{run}: nothing to resume, it is no run directory; leave --resume out to start it")
    try:
        before = recipe_from_tree(json.loads(path.read_text(encoding="utf-8")), str(path))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise UserError(f"{path}: damaged ({error}); start a new run") from None
    changed = [name for name in changed_settings(before, recipe) if name not in MAY_CHANGE_ON_RESUME]
    if changed:
        raise UserError(
            f"{run}: was started with another {', '.join(changed)}; resume with the recipe it was started with "
            f"({run / 'recipe.toml'}), or start a new run"
        )
    if (run / PREPARED).read_bytes() != (data / DATA_INFO).read_bytes():
        raise UserError(f"{run}: was started on other data than {data}; resume with the same, or start a new run")
    _write_resolved(run, recipe)
    checkpoints = [c for c in list_checkpoints(run / "checkpoints") if c.can_resume]
    newest = checkpoints[-1] if checkpoints else None
    trim_log(run / "log.jsonl", newest.state.step if newest else 0)
    return newest


def changed_settings(before: Recipe, after: Recipe) -> list[str]:
    """Names of training-relevant settings that differ; those of `train` without their section."""
    old, new = to_tree(before), to_tree(after)
    changed = []
    for section in ("network", "objective", "train"):
        prefix = "" if section == "train" else f"{section}."
        changed += [prefix + key for key, value in old[section].items() if new[section][key] != value]
    return changed


def trim_log(path: Path, last_step: int) -> None:
    """Drop log lines of steps that will be run again, and a line cut short by a kill."""
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines():
        with contextlib.suppress(json.JSONDecodeError):
            if json.loads(line)["step"] <= last_step:
                kept.append(line + "\n")
    with whole_file(path) as partial:
        partial.write_text("".join(kept), encoding="utf-8")


@dataclass(frozen=True)
class UpdateResult:
    """What one update did; tensors stay on the device until they are logged."""

    token_loss: Tensor
    length_loss: Tensor
    gradient_norm: Tensor
    tokens: int


class Log:
    """log.jsonl and the progress bar."""

    def __init__(self, run: Path, settings: TrainSettings, bar: Bar) -> None:
        self.path = run / "log.jsonl"
        self.bar = bar
        self.every = settings.log_every
        self.pending: list[UpdateResult] = []
        self.since = time.perf_counter()

    def step(self, step: int, epoch: int, rate: float, result: UpdateResult) -> None:
        """Note one update; every so often write a line, which is when the device is waited for."""
        self.pending.append(result)
        self.bar.advance()
        if step % self.every == 0:
            self._flush(step, epoch, rate)

    def _flush(self, step: int, epoch: int, rate: float) -> None:
        token = torch.stack([result.token_loss for result in self.pending]).mean().item()
        length = torch.stack([result.length_loss for result in self.pending]).mean().item()
        norm = torch.stack([result.gradient_norm for result in self.pending]).max().item()
        tokens = sum(result.tokens for result in self.pending)
        speed = tokens / (time.perf_counter() - self.since)
        self.pending.clear()
        require_finite(token + length, step)
        self.write(
            {"step": step, "epoch": epoch, "loss": token + length, "token_loss": token, "length_loss": length,
             "learning_rate": rate, "gradient_norm": norm, "tokens_per_second": round(speed, 1)}
        )  # fmt: skip
        self.bar.tell(f"loss {token + length:.3f}, {speed:,.0f} tokens/s")
        self.since = time.perf_counter()

    def write(self, entry: dict[str, Any]) -> None:
        """Append one line."""
        with disk_errors(self.path), self.path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(entry) + "\n")

    def pause(self) -> None:
        """Leave what happened since the last line (validation, saving) out of the speed."""
        if not self.pending:
            self.since = time.perf_counter()


def require_finite(loss: float, step: int) -> None:
    """Stop the run when the loss is no longer a number."""
    if not math.isfinite(loss):
        raise UserError(
            f"step {step}: the loss is no longer a number; the last checkpoint is kept. "
            "Start a new run with a lower train.learning_rate or a longer train.warmup_steps"
        )


def average_run(run: Path, count: int, out: Path) -> list[Checkpoint]:
    """Write the average of a run's best checkpoints by validation loss as a model directory; returns them."""
    info = read_info(run)
    if not (run / "log.jsonl").is_file():
        raise UserError(f"{run}: a model directory, not a training run; name the run it came from")
    best = best_checkpoints(list_checkpoints(run / "checkpoints"), count)
    if not best:
        raise UserError(f"{run}: no validated checkpoint yet; train to the first validation before averaging")
    steps = max(checkpoint.state.step for checkpoint in best)
    weights = average_weights([checkpoint.directory for checkpoint in best])
    save_model(out, weights, replace(info, steps=steps), load_vocabs(run))
    return best
