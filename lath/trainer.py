"""Train a model from a recipe and a prepared data directory.

import lath
lath.train(lath.load_recipe("my.toml"), "data", "run")
"""

from __future__ import annotations

import contextlib
import math
from dataclasses import replace
from pathlib import Path

from lath.config import Recipe, recipe_from_tree, to_tree
from lath.engine.training import PackedEngine
from lath.errors import UserError
from lath.text.corpus import Corpus
from lath.text.vocab import load_vocabs
from lath.training.checkpoints import Checkpoint, TrainState, load_checkpoint
from lath.training.learner import Learner, adopt_weights, build_learner, starting_weights
from lath.training.loop import run_steps
from lath.training.objective import Objective, default_objective
from lath.training.ranks import join_world, lead, together
from lath.training.run import MODEL, lock_run, require_new, resume_run, start_run, write_model
from lath.training.validation import HeldOut, Validation


def train(
    recipe: Recipe,
    data: str | Path,
    run: str | Path,
    *,
    device: str = "auto",
    resume: bool = False,
    objective: Objective = default_objective,
) -> Path:
    """Train a model on a directory of `lath prepare`; returns the directory of the finished model, RUN/model.

    With `resume` a stopped or killed run continues exactly. Under torchrun every rank makes the same call. `objective`
    replaces the recipe's training objective; pass the same one to resume. Validation keeps the recipe's objective.
    """
    recipe = recipe_from_tree(to_tree(recipe), "recipe")  # one made in Python is checked like one read from a file
    data, run = Path(data), Path(run)
    with join_world(device) as (world, own_device), contextlib.ExitStack() as held:

        def look() -> Checkpoint | None:
            if not resume:
                require_new(run)
                return None
            held.enter_context(lock_run(run))
            return resume_run(run, recipe, data)

        def start() -> None:
            start_run(run, recipe, data)
            held.enter_context(lock_run(run))

        # All checks come before the run directory is created, the fastest first.
        corpus, valid = together(world, lambda: _open_corpora(recipe, data))
        checkpoint: Checkpoint | None = lead(world, look)
        learner = together(world, lambda: build_learner(recipe, data, own_device, world, objective))
        state = together(world, lambda: _initialise(learner, data, checkpoint))
        if not resume:
            lead(world, start)
        vocab = load_vocabs(data)[1]
        heldout = HeldOut(valid, vocab, recipe.decode) if recipe.train.stop_by == "bleu" else None
        validation = Validation(valid, recipe, vocab.size, heldout)
        count = run_steps(choose_engine(learner, corpus), corpus, validation, run, state)
        lead(world, lambda: write_model(run, count))
    return run / MODEL


def _open_corpora(recipe: Recipe, data: Path) -> tuple[Corpus, Corpus]:
    """The training and validation pairs, checked against the recipe."""
    corpus, valid = Corpus.open(data, "train"), Corpus.open(data, "valid")
    longest = int(max(corpus.source.lengths.max(), corpus.target.lengths.max()))
    needed = longest + 3 + math.ceil(recipe.objective.insertion_rate * longest)
    if needed > recipe.network.max_positions:
        raise UserError(
            f"{data}: has sentences of {longest} tokens, but network.max_positions is {recipe.network.max_positions}; "
            f"set it to {needed} or more"
        )
    if len(valid) == 0:
        raise UserError(f"{data}: no validation pairs; set data.valid_source and data.valid_target and prepare again")
    return corpus, valid


def _initialise(learner: Learner, data: Path, checkpoint: Checkpoint | None) -> TrainState:
    """Load the checkpoint, or the weights of `train.start_from` in a run that has none yet."""
    if checkpoint is None:
        adopt_weights(learner.model, starting_weights(learner.recipe, data))
        return TrainState(step=0, epoch=0, batch=0, valid_loss=None)
    load_checkpoint(checkpoint, learner.model, learner.optimizer)
    return checkpoint.state


def choose_engine(learner: Learner, corpus: Corpus) -> Learner:
    """The learner with the engine of `train.engine`; `auto` is packed on a GPU with bf16, otherwise plain."""
    settings = learner.recipe.train
    packed = settings.engine == "packed"
    if settings.engine == "auto":
        packed = learner.device.type == "cuda" and settings.precision == "bf16"
    if not packed:
        return learner
    engine = PackedEngine(learner.model, learner.recipe, learner.device, corpus, learner.world.size)
    return replace(learner, engine=engine)
