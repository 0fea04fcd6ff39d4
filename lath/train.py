"""The training loop: schedule, accumulation, validation, checkpoints, exact resume.

Follows appendix B of the paper. A run is decided by its recipe, its data and the number of the step: the order of
the corpus comes from (seed, epoch), masks and dropout from (seed, step). So a run that was killed goes on from
its last checkpoint exactly as if nothing had happened.

"""

from __future__ import annotations

import contextlib
import math
import shutil
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import numpy as np
import torch
from numpy.typing import NDArray

from lath.batches import Batch, cut_rows, make_batch, plan_epoch, sort_by_length
from lath.checkpoint import (
    ModelInfo,
    TrainState,
    load_checkpoint,
    prune_checkpoints,
    save_checkpoint,
)
from lath.config import Recipe, TrainSettings
from lath.data import Corpus, read_data_info
from lath.errors import UserError
from lath.model import Model, build_model
from lath.objective import LossParts, Totals, draw_examples, loss_share
from lath.progress import Bar
from lath.run import Log, UpdateResult, average_run, require_finite, resume_run, start_run
from lath.vocab import PAD, Vocab, load_vocabs

INITIAL_LEARNING_RATE = 1e-7
VALIDATION_SEED = 20200
"""Validation draws its masks from this seed in every run, so that losses can be compared."""


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
                require_finite(token + length, step)  # before a broken model could replace a good checkpoint
                log.write({"step": step, "epoch": epoch, "valid_loss": token + length,
                           "valid_token_loss": token, "valid_length_loss": length})  # fmt: skip
                state = TrainState(step, epoch, batch, token + length)
            if state.valid_loss is not None or stops:
                save_checkpoint(folder, learner.model, learner.optimizer, state)
                prune_checkpoints(folder, settings.keep_best)
                log.pause()
            if stops and step < settings.steps:
                raise Interrupted(f"stopped at step {step}, which is saved; go on with the same command and --resume")
