"""What a training run tells while it goes on: log.jsonl, the progress bar and, if wanted, TensorBoard.

The log is also the run's memory: how low the loss has been, and how many validations brought nothing better, is read
from it again on resume. docs/formats.md has every field.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lath.config import TrainSettings
from lath.errors import UserError
from lath.files import disk_errors, whole_file
from lath.model.directory import Cost, validation_cost
from lath.progress import Bar
from lath.training.ranks import ALONE, World
from lath.training.stopping import out_of_patience, require_finite, require_no_spike

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

LOG = "log.jsonl"
TENSORBOARD = "tensorboard"

Entry = dict[str, Any]


def log_entries(run: Path) -> Iterator[Entry]:
    """The whole lines of a run's log; a run that is under way, or was killed, may have begun another."""
    path = run / LOG
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else []:
        with contextlib.suppress(json.JSONDecodeError):
            yield json.loads(line)


def trim_log(run: Path, last_step: int) -> None:
    """Drop log lines of steps that will be run again, of means that will be made again, and one cut short by a kill."""
    entries = [entry for entry in log_entries(run) if entry["step"] <= last_step and "mean_of" not in entry]
    kept = [json.dumps(entry) + "\n" for entry in entries]
    with whole_file(run / LOG) as partial:
        partial.write_text("".join(kept), encoding="utf-8")


def validation_costs(entries: Iterable[Entry]) -> list[Cost]:
    """What the validations among some lines rank by, the lower the better."""
    costs = [validation_cost(entry.get("valid_loss"), entry.get("valid_bleu")) for entry in entries]
    return [cost for cost in costs if cost is not None]


def training_words(entry: Mapping[str, Any]) -> str:
    """A training line in a few words; what an older log does not tell is left out."""
    words = f"loss {entry['loss']:.3f}, {entry['tokens_per_second']:,.0f} tokens/s"
    words += f", {100 * entry['padding']:.0f} % padding" if "padding" in entry else ""
    return words + (f", MFU {100 * entry['mfu']:.0f} %" if "mfu" in entry else "")


@dataclass(frozen=True)
class UpdateResult:
    """What one update did; tensors stay on the device until they are logged."""

    token_loss: Tensor
    length_loss: Tensor
    gradient_norm: Tensor
    tokens: int
    """Target tokens, BOS and EOS included."""
    positions: int
    """Target positions of the micro-batches that were run here, padding included."""
    filled: int
    """Those of them that held a token; fewer than `tokens` where several ranks share an update."""


class Log:
    """log.jsonl, the progress bar and TensorBoard of a run, from the step after those that are logged already."""

    def __init__(self, run: Path, settings: TrainSettings, bar: Bar, peak: float | None, world: World = ALONE) -> None:
        self.path = run / LOG
        self.world = world
        """All ranks remember; the first alone writes."""
        self.settings = settings
        self.bar = bar
        self.peak = peak
        """Operations a second that all devices together could do; None when it is not known."""
        self.losses: list[float] = []
        """Training losses so far."""
        self.costs: list[Cost] = []
        """Validation costs so far, the lower the better."""
        last_step = 0
        for entry in log_entries(run):
            self._remember(entry)
            last_step = entry["step"]
        self.scalars: SummaryWriter | None = None
        if settings.tensorboard and world.first:  # what an earlier process wrote of later steps is hidden by purge_step
            self.scalars = tensorboard_writer()(str(run / TENSORBOARD), purge_step=last_step + 1)
        self.pending: list[UpdateResult] = []
        self.flops = 0.0
        """Operations of the updates that are pending."""
        self.since = time.perf_counter()

    def __enter__(self) -> Log:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.scalars is not None:
            self.scalars.close()

    @property
    def out_of_patience(self) -> bool:
        """Whether validation has got no better for as long as the recipe waits."""
        return out_of_patience(self.costs, self.settings.patience)

    def step(self, step: int, epoch: int, rate: float, result: UpdateResult, flops: float) -> None:
        """Note one update of so many `flops`; every so often write a line, which is when the device is waited for."""
        self.pending.append(result)
        self.flops += flops
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
        if self.peak is not None:
            entry["mfu"] = round(self.flops / seconds / self.peak, 4)
        self.pending.clear()
        self.flops = 0.0
        require_finite(token + length, step)
        require_no_spike(token + length, self.losses, step, self.settings)
        self.write(entry)
        self.bar.note(training_words(entry))
        self.since = time.perf_counter()

    def write(self, entry: Entry) -> None:
        """Append one line."""
        self._remember(entry)
        if not self.world.first:
            return
        with disk_errors(self.path), self.path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(entry) + "\n")
        if self.scalars is not None:
            for name, value in entry.items():
                if name not in ("step", "epoch"):
                    group = next((group for group in ("valid", "mean") if name.startswith(f"{group}_")), "train")
                    self.scalars.add_scalar(f"{group}/{name.removeprefix(f'{group}_')}", value, entry["step"])

    def _remember(self, entry: Entry) -> None:
        if "loss" in entry:
            self.losses.append(entry["loss"])
        self.costs += validation_costs([entry])

    def pause(self) -> None:
        """Leave what happened since the last line (validation, saving) out of the speed."""
        if not self.pending:
            self.since = time.perf_counter()


def tensorboard_writer() -> type[SummaryWriter]:
    """What writes for TensorBoard; imported when it is wanted, and refused with a remedy when it is not there."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UserError(
            "train.tensorboard: the package tensorboard is not installed: pip install 'lath[logs]', "
            "or set train.tensorboard=false"
        ) from None
    return SummaryWriter
