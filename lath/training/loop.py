"""The training loop: schedule, gradient accumulation, validation and checkpoints.

Follows appendix B of the paper. A run is determined by its recipe, its data and the step number: the order of the
corpus comes from (seed, epoch), masks and dropout from (seed, step). A killed run therefore continues from its last
checkpoint exactly as if it had not stopped. Several ranks (ranks.py) share the rows of every update and train the same
model as one process; only the first writes.
"""

from __future__ import annotations

import contextlib
import math
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import FrameType

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lath.config import TrainSettings
from lath.errors import Interrupted
from lath.model.padding import row_lengths
from lath.progress import Bar
from lath.text.corpus import Corpus
from lath.training.batches import Batch, deal_rows, make_batch, plan_epoch
from lath.training.checkpoints import (
    TrainState,
    average_weights,
    best_checkpoints,
    list_checkpoints,
    prune_checkpoints,
    save_checkpoint,
)
from lath.training.learner import Learner
from lath.training.log import Log, UpdateResult, require_finite
from lath.training.objective import Draw, Examples, Totals
from lath.training.ranking import best_first, validation_costs
from lath.training.ranks import any_rank, lead, sum_gradients
from lath.training.run import CHECKPOINTS
from lath.training.validation import Validation, lent_weights

INITIAL_LEARNING_RATE = 1e-7


def learning_rate(step: int, settings: TrainSettings) -> float:
    """Linear warm-up to the peak, then the inverse square root of the step (appendix B), or linear decay to 0."""
    if step <= settings.warmup_steps:
        share = step / settings.warmup_steps
        return INITIAL_LEARNING_RATE + share * (settings.learning_rate - INITIAL_LEARNING_RATE)
    if settings.schedule == "linear":
        return settings.learning_rate * (settings.steps + 1 - step) / (settings.steps + 1 - settings.warmup_steps)
    return settings.learning_rate * math.sqrt(settings.warmup_steps / step)


def update(learner: Learner, batch: Batch, step: int) -> UpdateResult:
    """One optimiser step (counted from 1) on the pairs of a whole update, over all micro-batches and ranks."""
    recipe, model, optimizer, world = learner.recipe, learner.model, learner.optimizer, learner.world
    examples = draw_update(learner, batch, step)
    totals = Totals.of(examples)
    torch.manual_seed(step_seed(recipe.train.seed, step, world.rank))  # dropout
    model.train()
    optimizer.zero_grad(set_to_none=False)  # a recorded step always adds to the same tensors
    micro_batches = deal_rows(batch, world.rank, world.size, learner.engine.cut)
    token_loss = length_loss = torch.zeros((), device=learner.device)
    for micro_batch in micro_batches:
        losses = learner.engine.learn(examples.rows(micro_batch), totals)
        token_loss, length_loss = token_loss + losses.token, length_loss + losses.length
    token_loss, length_loss = sum_gradients(model, world, token_loss, length_loss)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.train.clip_norm or math.inf)
    for group in optimizer.param_groups:
        group["lr"] = learning_rate(step, recipe.train)
    optimizer.step()
    tokens = sum(row_lengths(batch.target))
    positions = sum(map(learner.engine.positions, micro_batches))
    filled = sum(row_lengths(batch.target[world.rank :: world.size]))
    ideal = learner.engine.ideal_seconds(batch)
    return UpdateResult(token_loss, length_loss, norm, tokens, positions, filled, ideal)


@torch.no_grad()
def draw_update(learner: Learner, batch: Batch, step: int) -> Examples:
    """The examples of a whole update. Without dropout, so that all ranks draw the same even if they run the model."""
    masks = torch.Generator(learner.device).manual_seed(step_seed(learner.recipe.train.seed, step))
    learner.model.eval()

    def predict_first(rows: NDArray[np.int64], decoder_input: Tensor) -> Tensor:
        return learner.engine.predict_first(Batch(batch.source[rows], batch.target[rows]), decoder_input)

    on_device = batch.to(learner.device)
    return learner.objective(Draw(learner.model, on_device, learner.recipe, masks, step, predict_first))


def step_seed(seed: int, step: int, rank: int = 0) -> int:
    """One 63-bit number for each (seed, step, rank)."""
    return int(np.random.SeedSequence([seed, step, rank]).generate_state(1, np.uint64)[0] >> 1)


def updates_from(
    corpus: Corpus, settings: TrainSettings, epoch: int, batch: int
) -> Iterator[tuple[int, int, NDArray[np.int64]]]:
    """Endless updates as (epoch, updates taken in it, pair indices), starting after `batch` updates of `epoch`."""
    while True:
        plan = plan_epoch(corpus.source.lengths, corpus.target.lengths, settings.step_tokens, settings.seed, epoch)
        for number in range(batch, len(plan)):
            yield epoch, number + 1, plan[number]
        epoch, batch = epoch + 1, 0


@contextlib.contextmanager
def stop_requests() -> Iterator[list[int]]:
    """Collect Ctrl-C and SIGTERM, so that the current step can finish; a second Ctrl-C interrupts at once.

    A second SIGTERM changes nothing: a process group and torchrun may both pass on the same request.
    """
    received: list[int] = []

    def receive(number: int, frame: FrameType | None) -> None:
        if received and number == signal.SIGINT:
            raise Interrupted("interrupted", number)
        received.append(number)

    if threading.current_thread() is not threading.main_thread():  # Python allows signal handlers only there
        yield received
        return
    before = {number: signal.signal(number, receive) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_steps(learner: Learner, corpus: Corpus, validation: Validation, run: Path, state: TrainState) -> int:
    """Train from `state` to the last step or until patience runs out, with validations and checkpoints.

    Returns how many of the best checkpoints to average for the final model.
    """
    settings = learner.recipe.train
    folder = run / CHECKPOINTS
    bar = Bar("training", settings.steps, "steps", done=state.step, shown=learner.world.first)
    with bar, Log(run, settings, bar, learner.world) as log, stop_requests() as stops:
        for epoch, batch, indices in updates_from(corpus, settings, state.epoch, state.batch):
            if state.step >= settings.steps or log.out_of_patience:
                break
            step = state.step + 1
            result = update(learner, make_batch(corpus, indices), step)
            log.step(step, epoch, learning_rate(step, settings), result)
            state = TrainState(step, epoch, batch, None)
            if step % settings.validate_every == 0 or step == settings.steps:
                metrics = validation.metrics(learner)
                require_finite(metrics["valid_loss"], step)  # before a broken model replaces a good checkpoint
                log.write({"step": step, "epoch": epoch, **metrics})
                state = replace(state, valid_loss=metrics["valid_loss"], valid_bleu=metrics.get("valid_bleu"))
            stopping = any_rank(learner.world, bool(stops))
            if state.valid_loss is not None or stopping:
                _save(learner, folder, state)
                log.pause()
            if stopping and step < settings.steps:
                number = signal.SIGTERM if any_rank(learner.world, signal.SIGTERM in stops) else signal.SIGINT
                message = f"stopped at step {step} and saved; run the same command with --resume to continue"
                raise Interrupted(message, number)
        return best_count(learner, validation, folder, log, state)


def best_count(learner: Learner, validation: Validation, folder: Path, log: Log, state: TrainState) -> int:
    """How many of the best checkpoints to average: the number, up to `train.keep_best`, that validates best.

    # Departure: the paper always averages the 5 best. In a short run they lie far apart, and their average can be much
    # worse than the best alone (docs/log.md).
    """
    best = best_checkpoints(list_checkpoints(folder), learner.recipe.train.keep_best)
    costs = [checkpoint.state.cost for checkpoint in best[:1]]
    for count in range(2, len(best) + 1):
        with lent_weights(learner.model, average_weights([checkpoint.directory for checkpoint in best[:count]])):
            metrics = validation.metrics(learner)
        costs += validation_costs([metrics])
        averaged = {key.replace("valid", "mean"): value for key, value in metrics.items()}
        log.write({"step": state.step, "epoch": state.epoch, "mean_of": count, **averaged})
    return 1 + best_first(costs)[0]


def _save(learner: Learner, folder: Path, state: TrainState) -> None:
    """Write a checkpoint on the first rank; all ranks hold the same weights."""

    def write() -> None:
        save_checkpoint(folder, learner.model, learner.optimizer, state)
        prune_checkpoints(folder, learner.recipe.train.keep_best)

    lead(learner.world, write)
