"""The training loop: schedule, accumulation, validation, checkpoints, exact resume.

Follows appendix B of the paper. A run is decided by its recipe, its data and the number of the step: the order of
the corpus comes from (seed, epoch), masks and dropout from (seed, step). So a run that was killed goes on from
its last checkpoint exactly as if nothing had happened. Several ranks (distributed.py) share the rows of every update
and so train the same model as one; only the first writes.
"""

from __future__ import annotations

import contextlib
import math
import shutil
import signal
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lath.config import Recipe, TrainSettings
from lath.engine.training import Engine, autocast, choose_engine
from lath.errors import UserError, did_you_mean
from lath.model.directory import (
    Checkpoint,
    ModelInfo,
    TrainState,
    average_weights,
    best_checkpoints,
    list_checkpoints,
    load_checkpoint,
    load_model,
    prune_checkpoints,
    save_checkpoint,
)
from lath.model.network import Model, build_model
from lath.model.padding import row_lengths
from lath.progress import Bar
from lath.text.corpus import Corpus, read_data_info
from lath.text.vocab import load_vocabs, same_tokens
from lath.training.batches import Batch, cut_rows, deal_rows, make_batch, plan_epoch, sort_by_length
from lath.training.ema import MovingAverage, lent_weights
from lath.training.flops import peak_flops, update_flops
from lath.training.log import Log, UpdateResult, validation_costs
from lath.training.objective import LossParts, Totals, draw_examples, loss_share
from lath.training.ranks import ALONE, World, any_rank, lead, sum_gradients, sum_scalars, together
from lath.training.run import average_run, require_new, resume_run, start_run
from lath.training.stopping import require_finite
from lath.training.validation import HeldOut

INITIAL_LEARNING_RATE = 1e-7
VALIDATION_LOGITS = 1 << 27
"""Logits of one forward pass of a validation, at most about this many: half a gigabyte in float32."""
VALIDATION_SEED = 20200
"""Validation draws its masks from this seed in every run, so that losses can be compared."""


class Interrupted(KeyboardInterrupt):
    """Training was stopped from outside after it had saved its state."""


def learning_rate(step: int, settings: TrainSettings) -> float:
    """Linear warm-up to the peak, then appendix B's inverse square root of the step (from 1), or a line to 0."""
    if step <= settings.warmup_steps:
        share = step / settings.warmup_steps
        return INITIAL_LEARNING_RATE + share * (settings.learning_rate - INITIAL_LEARNING_RATE)
    if settings.schedule == "linear":
        return settings.learning_rate * (settings.steps + 1 - step) / (settings.steps + 1 - settings.warmup_steps)
    return settings.learning_rate * math.sqrt(settings.warmup_steps / step)


@dataclass
class Learner:
    """A model on its device, with the optimiser that changes it; one of `world`'s, which all hold the same."""

    model: Model
    optimizer: torch.optim.Optimizer
    recipe: Recipe
    device: torch.device
    world: World
    engine: Engine
    """Computes the loss."""
    average: MovingAverage | None
    """Of the weights, where the recipe asks for one; it is what is validated, and becomes the model."""


def build_learner(recipe: Recipe, data: Path, device: torch.device, world: World = ALONE) -> Learner:
    """A fresh model and optimiser for a data directory, from the recipe's seed."""
    source, target = load_vocabs(data)
    generator = torch.Generator().manual_seed(recipe.train.seed)
    model = build_model(recipe.network, source.size, target.size, source is target, generator).to(device)
    settings = recipe.train
    learn_only(model, settings.only)
    optimizer = torch.optim.AdamW(
        [parameter for parameter in model.parameters() if parameter.requires_grad],
        lr=settings.learning_rate,
        betas=(settings.adam_beta1, settings.adam_beta2),
        eps=settings.adam_epsilon,
        weight_decay=settings.weight_decay,
        fused=device.type == "cuda",
    )
    average = MovingAverage(model, settings.ema_decay) if settings.average == "ema" else None
    engine = choose_engine(model, recipe, device, Corpus.open(data, "train"), world.size)
    return Learner(model, optimizer, recipe, device, world, engine, average)


def starting_weights(recipe: Recipe, data: Path) -> dict[str, Tensor]:
    """The weights of the model that the recipe starts from, which must know the same tokens; none without one."""
    if not recipe.train.start_from:
        return {}
    directory = Path(recipe.train.start_from)
    loaded = load_model(directory, torch.device("cpu"))
    if not same_tokens(directory, data):
        raise UserError(
            f"train.start_from: {directory} has another vocabulary than {data}; "
            f"prepare the data with --vocab-from {directory}, or leave start_from out"
        )
    if loaded.info.network.width != recipe.network.width:
        raise UserError(
            f"train.start_from: {directory} has width {loaded.info.network.width}, the recipe's network "
            f"{recipe.network.width}; start from a model of the same width, or leave start_from out"
        )
    return loaded.model.state_dict()


@torch.no_grad()
def adopt_weights(model: Model, weights: dict[str, Tensor]) -> None:
    """Replace a fresh model's weights by those of another model wherever name and shape fit.

    The kinds share encoder, decoder and embeddings; the length predictor and the local translator are new to what a
    teacher of kind AT knows, and so are further layers. What is new must be learnt.
    """
    for name, parameter in model.named_parameters():
        if name in weights and weights[name].shape == parameter.shape:
            parameter.copy_(weights[name])
        elif not parameter.requires_grad:
            raise UserError(
                f"train.only: {name} is not to be learnt, but the model of train.start_from has no such weights; "
                f"name them too, or start from another model"
            )


def learn_only(model: Model, beginnings: str) -> None:
    """Keep all weights as they are but those whose names begin with one of some words; without a word learn all."""
    names = [name for name, _ in model.named_parameters()]
    wanted = tuple(beginnings.split())
    for beginning in wanted:
        if not any(name.startswith(beginning) for name in names):
            known = dict.fromkeys(".".join(name.split(".")[:depth]) for name in names for depth in (1, 2))
            raise UserError(
                f"train.only: no weight's name begins with {beginning!r}{did_you_mean(beginning, known)}; "
                f"names begin with {', '.join(name for name in known if '.' in name)}"
            )
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not wanted or name.startswith(wanted))


def update(learner: Learner, batch: Batch, step: int) -> UpdateResult:
    """One optimiser step (from 1) on a whole update's pairs, however many micro-batches and ranks share them."""
    recipe, model, optimizer, world = learner.recipe, learner.model, learner.optimizer, learner.world
    engine = learner.engine
    torch.manual_seed(step_seed(recipe.train.seed, step, world.rank))  # dropout
    masks = torch.Generator(learner.device).manual_seed(step_seed(recipe.train.seed, step))
    model.train()
    optimizer.zero_grad(set_to_none=False)  # a recorded step adds to the same tensors every time
    parts = deal_rows(batch, world.rank, world.size, engine.cut)
    tokens = sum(row_lengths(batch.target))
    examples = draw_examples(batch.to(learner.device), recipe.network, recipe.objective, masks)
    totals = Totals.of(examples)
    token_loss = length_loss = torch.zeros((), device=learner.device)
    for part in parts:
        share = engine.learn(examples.part(part), totals)
        token_loss, length_loss = token_loss + share.token, length_loss + share.length
    token_loss, length_loss = sum_gradients(model, world, token_loss, length_loss)
    limit = recipe.train.clip_norm or math.inf
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), limit)
    for group in optimizer.param_groups:
        group["lr"] = learning_rate(step, recipe.train)
    optimizer.step()
    if learner.average is not None:
        learner.average.update(model, step)
    positions = sum(engine.positions(part) for part in parts)
    filled = sum(row_lengths(batch.target[world.rank :: world.size]))
    return UpdateResult(token_loss, length_loss, norm, tokens, positions, filled)


def step_seed(seed: int, step: int, rank: int = 0) -> int:
    """One 63-bit number for each (seed, step, rank)."""
    return int(np.random.SeedSequence([seed, step, rank]).generate_state(1, np.uint64)[0] >> 1)


class Validation:
    """The validation loss on fixed masks: the whole set is drawn once, as one update. BLEU with `heldout`."""

    def __init__(self, corpus: Corpus, recipe: Recipe, vocabulary: int, heldout: HeldOut | None = None) -> None:
        self.heldout = heldout
        order = sort_by_length(np.arange(len(corpus)), corpus.source_lengths, corpus.target_lengths)
        batch = make_batch(corpus, order)
        # The CPU's generator, so that every device sees the same masks.
        generator = torch.Generator().manual_seed(VALIDATION_SEED)
        self.examples = draw_examples(batch, recipe.network, recipe.objective, generator)
        self.totals = Totals.of(self.examples)
        # Plain and eager, with all logits in memory: small parts, whatever room the training steps take.
        pieces = self.examples.targets.shape[2]
        self.parts = cut_rows(batch, min(recipe.train.micro_batch_tokens, VALIDATION_LOGITS // (pieces * vocabulary)))

    @torch.no_grad()
    def loss(self, learner: Learner) -> LossParts:
        """Token and length loss, without dropout; the ranks share the work."""
        learner.model.eval()
        world = learner.world
        shares: list[LossParts] = []
        totals = self.totals.to(learner.device)
        for part in self.parts[world.rank :: world.size]:
            with autocast(learner.recipe, learner.device):
                examples = self.examples.part(part).to(learner.device)
                shares.append(loss_share(learner.model, examples, totals, learner.recipe.objective))
        zero = torch.zeros((), device=learner.device)
        sums = sum((s.token for s in shares), zero), sum((s.length for s in shares), zero)
        return LossParts(*sum_scalars(world, *sums))

    def judge(self, learner: Learner) -> dict[str, float]:
        """What log.jsonl tells of a validation; of the moving average where there is one."""
        average, heldout = learner.average, self.heldout
        with contextlib.nullcontext() if average is None else lent_weights(learner.model, average.weights):
            loss = self.loss(learner)
            token, length = loss.token.item(), loss.length.item()
            told = {"valid_loss": token + length, "valid_token_loss": token, "valid_length_loss": length}
            if heldout is not None:
                told["valid_bleu"] = lead(learner.world, lambda: heldout.bleu(learner.model))
        return told


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


def train(
    recipe: Recipe,
    recipe_text: str,
    data: Path,
    run: Path,
    device: torch.device,
    resume: bool = False,
    world: World = ALONE,
) -> Path:
    """Train a model on a prepared data directory; returns the directory of the finished model.

    Every rank of `world` calls this, on the same data and the same run directory.
    """
    corpus, valid = together(world, lambda: _open_corpora(recipe, data))
    # Whatever may be refused comes before a run directory is made, and what is told fastest comes first.
    checkpoint: Checkpoint | None = None
    if resume:
        checkpoint = lead(world, lambda: resume_run(run, recipe, data))
    else:
        lead(world, lambda: require_new(run))
    learner = together(world, lambda: build_learner(recipe, data, device, world))
    if checkpoint is None:  # a new run, or one that was stopped before its first checkpoint
        together(world, lambda: adopt_weights(learner.model, starting_weights(recipe, data)))
    if not resume:
        lead(world, lambda: start_run(run, recipe, recipe_text, _model_info(recipe, data), data))
    vocabs = load_vocabs(data)
    state = TrainState(step=0, epoch=0, batch=0, valid_loss=None)
    if checkpoint is not None:
        saved = checkpoint
        together(world, lambda: load_checkpoint(saved, learner.model, learner.optimizer, learner.average))
        state = checkpoint.state
    heldout = HeldOut(valid, vocabs[1], recipe.decode) if recipe.train.stop_by == "bleu" else None
    count = _run_steps(learner, corpus, Validation(valid, recipe, vocabs[1].size, heldout), run, state)
    lead(world, lambda: _write_model(run, count))
    return run / "model"


def _open_corpora(recipe: Recipe, data: Path) -> tuple[Corpus, Corpus]:
    """Training and validation pairs, which must suit the recipe."""
    corpus, valid = Corpus.open(data, "train"), Corpus.open(data, "valid")
    longest = int(max(corpus.source_lengths.max(), corpus.target_lengths.max()))
    needed = longest + 3 + math.ceil(recipe.objective.insertion_rate * longest)
    if needed > recipe.network.max_positions:
        raise UserError(
            f"{data}: has sentences of {longest} tokens, network.max_positions {recipe.network.max_positions} "
            f"is too small; set it to {needed} or more"
        )
    if len(valid) == 0:
        raise UserError(f"{data}: no validation pairs; set data.valid_source and data.valid_target and prepare again")
    return corpus, valid


def _write_model(run: Path, count: int) -> None:
    """The mean of a run's `count` best checkpoints as its model."""
    finished = run / "model"
    if finished.exists():  # of a shorter run that was then prolonged
        shutil.rmtree(finished)
    average_run(run, count, finished)


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


def flops_of(learner: Learner, corpus: Corpus, indices: NDArray[np.int64]) -> float:
    """Operations that an update of these pairs needs."""
    lengths = corpus.source_lengths[indices] + 1, corpus.target_lengths[indices] + 2
    return update_flops(learner.recipe.network, learner.model.body.target_size, *lengths)


def _run_steps(learner: Learner, corpus: Corpus, validation: Validation, run: Path, state: TrainState) -> int:
    """Train from `state` to the last step, or until nothing gets better, validating and saving on the way.

    Returns how many of the best checkpoints make the best model.
    """
    settings = learner.recipe.train
    folder = run / "checkpoints"
    bar = Bar("training", settings.steps, "steps", done=state.step, shown=learner.world.first)
    peak = peak_flops(learner.device, learner.world.size)
    with bar, Log(run, settings, bar, peak, learner.world) as log, stop_requests() as stops:
        for epoch, batch, indices in updates_from(corpus, settings, state.epoch, state.batch):
            if state.step >= settings.steps or log.out_of_patience:
                break
            step = state.step + 1
            result = update(learner, make_batch(corpus, indices), step)
            log.step(step, epoch, learning_rate(step, settings), result, flops_of(learner, corpus, indices))
            state = TrainState(step, epoch, batch, None)
            if step % settings.validate_every == 0 or step == settings.steps:
                told = validation.judge(learner)
                require_finite(told["valid_loss"], step)  # before a broken model could replace a good checkpoint
                log.write({"step": step, "epoch": epoch, **told})
                state = replace(state, valid_loss=told["valid_loss"], valid_bleu=told.get("valid_bleu"))
            stopping = any_rank(learner.world, bool(stops))
            if state.valid_loss is not None or stopping:
                _save(learner, folder, state)
                log.pause()
            if stopping and step < settings.steps:
                raise Interrupted(f"stopped at step {step}, which is saved; go on with the same command and --resume")
        return best_count(learner, validation, folder, log, state)


def best_count(learner: Learner, validation: Validation, folder: Path, log: Log, state: TrainState) -> int:
    """How many of the best checkpoints have the mean that validates best: up to `train.keep_best`, one of an EMA's.

    # Departure: the paper averages the 5 best whatever comes of it. In a short run they lie far apart, and their mean
    # can be much worse than the last of them alone (docs/log.md).
    """
    settings = learner.recipe.train
    best = best_checkpoints(list_checkpoints(folder), settings.keep_best if settings.average == "best" else 1)
    costs = [cost for checkpoint in best[:1] if (cost := checkpoint.state.cost) is not None]
    for count in range(2, len(best) + 1):
        with lent_weights(learner.model, average_weights([checkpoint.directory for checkpoint in best[:count]])):
            told = validation.judge(learner)
        costs += validation_costs([told])
        of_mean = {key.replace("valid", "mean"): value for key, value in told.items()}
        log.write({"step": state.step, "epoch": state.epoch, "mean_of": count, **of_mean})
    return 1 + costs.index(min(costs))


def _save(learner: Learner, folder: Path, state: TrainState) -> None:
    """A checkpoint of what all ranks hold alike, written by the first."""

    def write() -> None:
        save_checkpoint(folder, learner.model, learner.optimizer, state, learner.average)
        prune_checkpoints(folder, learner.recipe.train.keep_best)

    lead(learner.world, write)
