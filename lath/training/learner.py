"""A model in training: its initial weights, its optimiser, and how its examples and gradients are made."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from lath.config import Recipe
from lath.errors import UserError
from lath.model.directory import load_model
from lath.model.network import Model, build_model
from lath.text.vocab import load_vocabs, same_tokens
from lath.training.objective import Objective, default_objective
from lath.training.ranks import ALONE, World
from lath.training.step import PlainEngine, StepEngine


@dataclass(frozen=True)
class Learner:
    """A model on its device, with what trains it. All ranks of `world` hold the same weights."""

    model: Model
    optimizer: torch.optim.Optimizer
    recipe: Recipe
    device: torch.device
    world: World
    objective: Objective
    """Draws the examples of an update."""
    engine: StepEngine
    """Computes loss and gradient."""


def build_learner(
    recipe: Recipe,
    data: Path,
    device: torch.device,
    world: World = ALONE,
    objective: Objective = default_objective,
) -> Learner:
    """A new model for a data directory, initialised from the recipe's seed, with the plain engine."""
    source, target = load_vocabs(data)
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
    return Learner(model, optimizer, recipe, device, world, objective, PlainEngine(model, recipe, device))


def starting_weights(recipe: Recipe, data: Path) -> dict[str, Tensor]:
    """The weights of the model in `train.start_from`, whose vocabulary must be that of the data; empty if not set."""
    if not recipe.train.start_from:
        return {}
    directory = Path(recipe.train.start_from)
    loaded = load_model(directory, torch.device("cpu"))
    if not same_tokens(directory, data):
        raise UserError(
            f"train.start_from: the vocabulary of {directory} differs from that of {data}; "
            f"prepare the data with --vocab-from {directory}, or remove start_from"
        )
    if loaded.info.network.width != recipe.network.width:
        raise UserError(
            f"train.start_from: {directory} has width {loaded.info.network.width}, but the recipe's network has "
            f"{recipe.network.width}; start from a model of the same width, or remove start_from"
        )
    return loaded.model.state_dict()


@torch.no_grad()
def adopt_weights(model: Model, weights: dict[str, Tensor]) -> None:
    """Copy another model's weights wherever name and shape match.

    The kinds share encoder, decoder and embeddings. The length predictor, the local translator and additional layers
    keep their random initial weights when a student starts from an AT teacher.
    """
    for name, parameter in model.named_parameters():
        if name in weights and weights[name].shape == parameter.shape:
            parameter.copy_(weights[name])
