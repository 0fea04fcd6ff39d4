"""The training loop: schedule, accumulation, validation, checkpoints, exact resume.

Follows appendix B of the paper. A run is decided by its recipe, its data and the number of the step: the order of
the corpus comes from (seed, epoch), masks and dropout from (seed, step). So a run that was killed goes on from
its last checkpoint exactly as if nothing had happened.

Run directory: recipe.toml, resolved.json, prepared.json (what its data was), config.json and vocabulary of the model
to be, log.jsonl, checkpoints/step-N/, and model/ when it is finished.
"""

from __future__ import annotations

import contextlib
import json
import math
import shutil
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lath.batches import Batch, cut_rows, make_batch, plan_epoch, sort_by_length
from lath.checkpoint import (
    Checkpoint,
    ModelInfo,
    TrainState,
    average_weights,
    best_checkpoints,
    list_checkpoints,
    load_checkpoint,
    prune_checkpoints,
    read_info,
    save_checkpoint,
    save_model,
    write_info,
)
from lath.config import Recipe, TrainSettings, recipe_from_tree, to_tree
from lath.data import DATA_INFO, Corpus, read_data_info
from lath.errors import UserError
from lath.files import disk_errors, whole_directory, whole_file
from lath.model import Model, build_model
from lath.objective import LossParts, Totals, draw_examples, loss_share
from lath.progress import Bar
from lath.vocab import PAD, Vocab, load_vocabs, save_vocabs

INITIAL_LEARNING_RATE = 1e-7
VALIDATION_SEED = 20200
"""Validation draws its masks from this seed in every run, so that losses can be compared."""
PREPARED = "prepared.json"
"""The copy of the data directory's data.json in a run, by which a resume knows the same data."""
MAY_CHANGE_ON_RESUME = ("steps", "validate_every", "keep_best", "log_every", "micro_batch_tokens")


class Interrupted(KeyboardInterrupt):
    """Training was stopped from outside after it had saved its state."""


def learning_rate(step: int, settings: TrainSettings) -> float:
    """Appendix B: linear warm-up to the peak, then the inverse square root of the step (from 1)."""
    if step <= settings.warmup_steps:
        share = step / settings.warmup_steps
        return INITIAL_LEARNING_RATE + share * (settings.learning_rate - INITIAL_LEARNING_RATE)
    return settings.learning_rate * math.sqrt(settings.warmup_steps / step)


@dataclass
class Learner:
    """A model on its device, with the optimiser that changes it."""

    model: Model
    optimizer: torch.optim.Optimizer
    recipe: Recipe
    device: torch.device

    @property
    def autocast(self) -> torch.autocast:
        """bf16 where the recipe asks for it."""
        wanted = self.recipe.train.precision == "bf16"
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=wanted)


def build_learner(recipe: Recipe, vocabs: tuple[Vocab, Vocab], device: torch.device) -> Learner:
    """A fresh model and optimiser, from the recipe's seed."""
    source, target = vocabs
    generator = torch.Generator().manual_seed(recipe.train.seed)
    model = build_model(recipe.network, source.size, target.size, source is target, generator).to(device)
    settings = recipe.train
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=settings.learning_rate,
        betas=(settings.adam_beta1, settings.adam_beta2),
        eps=settings.adam_epsilon,
        weight_decay=settings.weight_decay,
        fused=device.type == "cuda",
    )
    return Learner(model, optimizer, recipe, device)


@dataclass(frozen=True)
class UpdateResult:
    """What one update did; tensors stay on the device until they are logged."""

    token_loss: Tensor
    length_loss: Tensor
    gradient_norm: Tensor
    tokens: int


def update(learner: Learner, batch: Batch, step: int) -> UpdateResult:
    """One optimiser step (from 1) on a whole update's pairs, however many micro-batches it takes."""
    recipe, model, optimizer = learner.recipe, learner.model, learner.optimizer
    torch.manual_seed(step_seed(recipe.train.seed, step))  # dropout
    masks = torch.Generator(learner.device).manual_seed(step_seed(recipe.train.seed, step))
    model.train()
    optimizer.zero_grad(set_to_none=True)
    parts = cut_rows(batch, recipe.train.micro_batch_tokens)
    tokens = int((batch.target != PAD).sum())
    examples = draw_examples(batch.to(learner.device), recipe.network, recipe.objective, masks)
    totals = Totals.of(examples)
    token_loss = length_loss = torch.zeros((), device=learner.device)
    for part in parts:
        with learner.autocast:
            share = loss_share(model, examples.part(part), totals, recipe.objective)
        share.total.backward()  # type: ignore[no-untyped-call]
        token_loss, length_loss = token_loss + share.token.detach(), length_loss + share.length.detach()
    limit = recipe.train.clip_norm or math.inf
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), limit)
    for group in optimizer.param_groups:
        group["lr"] = learning_rate(step, recipe.train)
    optimizer.step()
    return UpdateResult(token_loss, length_loss, norm, tokens)


def step_seed(seed: int, step: int) -> int:
    """One 63-bit number for each (seed, step)."""
    return int(np.random.SeedSequence([seed, step]).generate_state(1, np.uint64)[0] >> 1)


class Validation:
    """The validation loss on fixed masks: the whole set is drawn once, as one update."""

    def __init__(self, corpus: Corpus, recipe: Recipe, device: torch.device) -> None:
        order = sort_by_length(np.arange(len(corpus)), corpus.source_lengths, corpus.target_lengths)
        batch = make_batch(corpus, order)
        generator = torch.Generator().manual_seed(
            VALIDATION_SEED
        )  # the CPU's, so that every device sees the same masks
        self.examples = draw_examples(batch, recipe.network, recipe.objective, generator)
        self.totals = Totals.of(self.examples)
        self.parts = cut_rows(batch, recipe.train.micro_batch_tokens)

    @torch.no_grad()
    def loss(self, learner: Learner) -> LossParts:
        """Token and length loss, without dropout."""
        learner.model.eval()
        shares: list[LossParts] = []
        totals = self.totals.to(learner.device)
        for part in self.parts:
            with learner.autocast:
                examples = self.examples.part(part).to(learner.device)
                shares.append(loss_share(learner.model, examples, totals, learner.recipe.objective))
        zero = torch.zeros((), device=learner.device)
        return LossParts(sum((s.token for s in shares), zero), sum((s.length for s in shares), zero))


# ---- the run directory ------------------------------------------------------------------------------------------


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
        _require_finite(token + length, step)
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


def _require_finite(loss: float, step: int) -> None:
    if not math.isfinite(loss):
        raise UserError(
            f"step {step}: the loss is no longer a number; the last checkpoint is kept. "
            "Start a new run with a lower train.learning_rate or a longer train.warmup_steps"
        )


# ---- the loop ---------------------------------------------------------------------------------------------------


def updates_from(
    corpus: Corpus, settings: TrainSettings, epoch: int, batch: int
) -> Iterator[tuple[int, int, NDArray[np.int64]]]:
    """Endless updates as (epoch, updates taken in it, pair numbers), going on after `batch` updates of `epoch`."""
    while True:
        plan = plan_epoch(corpus.source_lengths, corpus.target_lengths, settings.step_tokens, settings.seed, epoch)
        for number in range(batch, len(plan)):
            yield epoch, number + 1, plan[number]
        epoch, batch = epoch + 1, 0


@contextlib.contextmanager
def stop_requests() -> Iterator[list[int]]:
    """Collect Ctrl-C and SIGTERM instead of dying in the middle of a step; a second Ctrl-C is not waited for."""
    received: list[int] = []

    def receive(number: int, frame: FrameType | None) -> None:
        if received:
            raise KeyboardInterrupt
        received.append(number)

    before = {number: signal.signal(number, receive) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def train(recipe: Recipe, recipe_text: str, data: Path, run: Path, device: torch.device, resume: bool = False) -> Path:
    """Train a model on a prepared data directory; returns the directory of the finished model."""
    corpus, valid = Corpus.open(data, "train"), Corpus.open(data, "valid")
    info, vocabs = _model_info(recipe, data), load_vocabs(data)
    longest = int(max(corpus.source_lengths.max(), corpus.target_lengths.max()))
    if longest + 2 >= recipe.network.max_positions:
        raise UserError(
            f"{data}: has sentences of {longest} tokens, network.max_positions {recipe.network.max_positions} "
            f"is too small; set it to {longest + 3} or more"
        )
    if len(valid) == 0:
        raise UserError(f"{data}: no validation pairs; set data.valid_source and data.valid_target and prepare again")
    if resume:
        checkpoint = resume_run(run, recipe, data)
    else:
        checkpoint = None
        start_run(run, recipe, recipe_text, info, data)
    learner = build_learner(recipe, vocabs, device)
    state = TrainState(step=0, epoch=0, batch=0, valid_loss=None)
    if checkpoint is not None:
        load_checkpoint(checkpoint, learner.model, learner.optimizer)
        state = checkpoint.state
    _run_steps(learner, corpus, Validation(valid, recipe, device), run, state)
    finished = run / "model"
    if finished.exists():  # of a shorter run that was then prolonged
        shutil.rmtree(finished)
    average_run(run, recipe.train.keep_best, finished)
    return finished


def _model_info(recipe: Recipe, data: Path) -> ModelInfo:
    prepared = read_data_info(data)
    source, target = load_vocabs(data)
    return ModelInfo(
        network=recipe.network,
        decode=recipe.decode,
        source_language=prepared.data.source_language,
        target_language=prepared.data.target_language,
        source_size=source.size,
        target_size=target.size,
        joint=source is target,
        max_length=prepared.data.max_length,
        steps=0,
    )


def _run_steps(learner: Learner, corpus: Corpus, validation: Validation, run: Path, state: TrainState) -> None:
    """Train from `state` to the last step, validating and saving on the way."""
    settings = learner.recipe.train
    folder = run / "checkpoints"
    with Bar("training", settings.steps, "steps", done=state.step) as bar, stop_requests() as stops:
        log = Log(run, settings, bar)
        for epoch, batch, indices in updates_from(corpus, settings, state.epoch, state.batch):
            if state.step >= settings.steps:
                break
            step = state.step + 1
            result = update(learner, make_batch(corpus, indices), step)
            log.step(step, epoch, learning_rate(step, settings), result)
            state = TrainState(step, epoch, batch, None)
            if step % settings.validate_every == 0 or step == settings.steps:
                loss = validation.loss(learner)
                token, length = loss.token.item(), loss.length.item()
                _require_finite(token + length, step)  # before a broken model could replace a good checkpoint
                log.write({"step": step, "epoch": epoch, "valid_loss": token + length,
                           "valid_token_loss": token, "valid_length_loss": length})  # fmt: skip
                state = TrainState(step, epoch, batch, token + length)
            if state.valid_loss is not None or stops:
                save_checkpoint(folder, learner.model, learner.optimizer, state)
                prune_checkpoints(folder, settings.keep_best)
                log.pause()
            if stops and step < settings.steps:
                raise Interrupted(f"stopped at step {step}, which is saved; go on with the same command and --resume")


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
