"""The log of a training run: log.jsonl, the progress bar and, if the recipe asks for it, TensorBoard.

On resume the validations so far are read back from log.jsonl, so patience counts on. docs/formats.md describes every
field.
"""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lath.config import TrainSettings
from lath.errors import UserError
from lath.files import disk_errors, json_line, whole_file
from lath.progress import Bar
from lath.training.ranking import Cost, out_of_patience, validation_costs
from lath.training.ranks import ALONE, World

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

LOG = "log.jsonl"
TENSORBOARD = "tensorboard"

Entry = dict[str, Any]


def log_entries(run: Path) -> Iterator[Entry]:
    """The entries of a run's log. A last line that is incomplete, of a running or killed process, is skipped."""
    path = run / LOG
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else []:
        with contextlib.suppress(json.JSONDecodeError):
            yield json.loads(line)


def trim_log(run: Path, last_step: int) -> None:
    """Drop the entries that a resumed run will write again: those after `last_step`, and those of averages."""
    entries = [entry for entry in log_entries(run) if entry["step"] <= last_step and "mean_of" not in entry]
    kept = [json_line(entry) + "\n" for entry in entries]
    with whole_file(run / LOG) as partial:
        partial.write_text("".join(kept), encoding="utf-8")


def training_words(entry: Mapping[str, Any]) -> str:
    """A training entry in a few words. Fields that an older log lacks are left out."""
    words = f"loss {entry['loss']:.3f}, {entry['tokens_per_second']:,.0f} tokens/s"
    words += f", {100 * entry['padding']:.0f} % padding" if "padding" in entry else ""
    return words + (f", MFU {100 * entry['mfu']:.0f} %" if "mfu" in entry else "")


@dataclass(frozen=True)
class UpdateResult:
    """The outcome of one update; tensors stay on the device until they are logged."""

    token_loss: Tensor
    length_loss: Tensor
    gradient_norm: Tensor
    tokens: int
    """Target tokens, including BOS and EOS."""
    positions: int
    """Target positions that this rank computed, including padding."""
    filled: int
    """Those of them that hold a token; fewer than `tokens` if several ranks share the update."""
    ideal_seconds: float = 0.0
    """As `StepEngine.ideal_seconds`."""


class Log:
    """log.jsonl, the progress bar and TensorBoard of a run; continues an existing log."""

    def __init__(self, run: Path, settings: TrainSettings, bar: Bar, world: World = ALONE) -> None:
        self.path = run / LOG
        self.world = world
        """All ranks keep the costs; only the first writes."""
        self.settings = settings
        self.bar = bar
        entries = list(log_entries(run))
        self.costs: list[Cost] = validation_costs(entries)
        """Costs of the validations so far."""
        self.scalars: SummaryWriter | None = None
        if settings.tensorboard and world.first:  # purge_step hides later steps that a killed process has written
            last_step = entries[-1]["step"] if entries else 0
            self.scalars = tensorboard_writer()(str(run / TENSORBOARD), purge_step=last_step + 1)
        self.pending: list[UpdateResult] = []
        self.since = time.perf_counter()

    def __enter__(self) -> Log:
        return self

    def __exit__(self, *error: object) -> None:
        if self.scalars is not None:
            self.scalars.close()

    @property
    def out_of_patience(self) -> bool:
        """Whether validation has not improved for `train.patience` validations."""
        return out_of_patience(self.costs, self.settings.patience)

    def step(self, step: int, epoch: int, rate: float, result: UpdateResult) -> None:
        """Add one update. Every `train.log_every` steps an entry is written; only then the device is waited for."""
        self.pending.append(result)
        self.bar.advance()
        if step % self.settings.log_every == 0:
            self._flush(step, epoch, rate)

    def _flush(self, step: int, epoch: int, rate: float) -> None:
        token = torch.stack([result.token_loss for result in self.pending]).mean().item()
        length = torch.stack([result.length_loss for result in self.pending]).mean().item()
        norm = torch.stack([result.gradient_norm for result in self.pending]).max().item()
        seconds = time.perf_counter() - self.since
        tokens = sum(result.tokens for result in self.pending)
        filled = sum(result.filled for result in self.pending)
        padding = 1 - filled / max(1, sum(result.positions for result in self.pending))
        entry = {"step": step, "epoch": epoch, "loss": token + length, "token_loss": token, "length_loss": length,
                 "learning_rate": rate, "gradient_norm": norm, "tokens_per_second": round(tokens / seconds, 1),
                 "padding": round(padding, 4), "seconds": round(seconds, 3)}  # fmt: skip
        if ideal := sum(result.ideal_seconds for result in self.pending):
            entry["mfu"] = round(ideal / seconds, 4)
        self.pending.clear()
        require_finite(token + length, step)
        self.write(entry)
        self.bar.note(training_words(entry))
        self.since = time.perf_counter()

    def write(self, entry: Entry) -> None:
        """Append one entry."""
        self.costs += validation_costs([entry])
        if not self.world.first:
            return
        with disk_errors(self.path), self.path.open("a", encoding="utf-8") as stream:
            stream.write(json_line(entry) + "\n")
        if self.scalars is not None:
            for name, value in entry.items():
                if name not in ("step", "epoch"):
                    group = next((group for group in ("valid", "mean") if name.startswith(f"{group}_")), "train")
                    self.scalars.add_scalar(f"{group}/{name.removeprefix(f'{group}_')}", value, entry["step"])

    def pause(self) -> None:
        """Leave the time since the last entry (validation, saving) out of the speed."""
        if not self.pending:
            self.since = time.perf_counter()


def require_finite(loss: float, step: int) -> None:
    """Stop the run if the loss is nan or infinite."""
    if not math.isfinite(loss):
        raise UserError(
            f"step {step}: the loss is no longer a finite number; the last checkpoint is kept. "
            "Start a new run with a lower train.learning_rate or more train.warmup_steps"
        )


def tensorboard_writer() -> type[SummaryWriter]:
    """The TensorBoard writer, imported only when it is used; a missing package is a `UserError`."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UserError(
            "train.tensorboard: the package tensorboard is not installed: pip install 'lath[logs]', "
            "or set train.tensorboard=false"
        ) from None
    return SummaryWriter
