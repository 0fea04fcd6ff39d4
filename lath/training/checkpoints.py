"""Training checkpoints on disk: save, load, list, prune and average.

A checkpoint directory holds what an exact resume needs: `model.safetensors`, `optimizer.safetensors` and `state.json`.
It is written under a temporary name and renamed, so it is whole or absent. docs/formats.md describes every field.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lath.config import to_tree
from lath.errors import UserError
from lath.files import damage_errors, require_format, whole_directory
from lath.model.directory import WEIGHTS, load_weights, save_tensors
from lath.model.network import Model
from lath.training.ranking import Cost, best_first, validation_cost

OPTIMIZER, STATE, STATE_FORMAT = "optimizer.safetensors", "state.json", 1


@dataclass(frozen=True)
class TrainState:
    """The position of a training run. With weights, optimiser state and seed it determines everything that follows."""

    step: int
    epoch: int
    batch: int
    """Updates already taken in this epoch."""
    valid_loss: float | None
    """None if the checkpoint was written by an interruption."""
    valid_bleu: float | None = None
    """None unless validations are ranked by BLEU (train.stop_by)."""

    @property
    def cost(self) -> Cost | None:
        """The rank among checkpoints; None if not validated."""
        return validation_cost(self.valid_loss, self.valid_bleu)

    def __str__(self) -> str:
        bleu = "" if self.valid_bleu is None else f", BLEU {self.valid_bleu:.2f}"
        loss = "not validated" if self.valid_loss is None else f"validation loss {self.valid_loss:.4f}"
        return f"step {self.step}: {loss}{bleu}"


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint directory and its state."""

    directory: Path
    state: TrainState

    @property
    def can_resume(self) -> bool:
        """Whether the optimiser state is there; only the newest checkpoint keeps it."""
        return (self.directory / OPTIMIZER).is_file()


def save_checkpoint(folder: Path, model: Model, optimizer: torch.optim.Optimizer, state: TrainState) -> Checkpoint:
    """Write `folder/step-N`, replacing an interrupted checkpoint of the same step."""
    directory = folder / f"step-{state.step}"
    if directory.exists():
        shutil.rmtree(directory)
    with whole_directory(directory) as partial:
        weights = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
        save_tensors(weights, partial / WEIGHTS)
        save_tensors(_optimizer_tensors(model, optimizer), partial / OPTIMIZER)
        (partial / STATE).write_text(json.dumps({"format": STATE_FORMAT, **to_tree(state)}) + "\n", encoding="utf-8")
    return Checkpoint(directory, state)


def _optimizer_tensors(model: Model, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    return {
        f"{name}/{key}": torch.as_tensor(value).contiguous()
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state[parameter].items()
    }


def load_checkpoint(checkpoint: Checkpoint, model: Model, optimizer: torch.optim.Optimizer) -> None:
    """Copy a checkpoint into a model and its optimiser; both stay on their device."""
    path = checkpoint.directory / WEIGHTS
    weights = load_weights(path)
    parameters = dict(model.named_parameters())
    fits = parameters.keys() == weights.keys() and all(weights[n].shape == p.shape for n, p in parameters.items())
    if not fits:
        raise UserError(f"{path}: does not fit the recipe's network; resume with the recipe the run was started with")
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(weights[name])
    for key, tensor in load_weights(checkpoint.directory / OPTIMIZER).items():
        name, _, entry = key.rpartition("/")
        parameter = parameters[name]
        # Adam keeps its step count in a CPU tensor unless it is fused; the moments are on the parameter's device.
        place = (
            torch.device("cpu") if entry == "step" and not optimizer.param_groups[0].get("fused") else parameter.device
        )
        optimizer.state[parameter][entry] = tensor.to(place)


def list_checkpoints(folder: Path) -> list[Checkpoint]:
    """All whole checkpoints of a run, oldest first."""
    found = [Checkpoint(path.parent, _read_state(path)) for path in folder.glob("step-*/" + STATE)]
    return sorted(found, key=lambda checkpoint: checkpoint.state.step)


def _read_state(path: Path) -> TrainState:
    with damage_errors(path, f"remove {path.parent} to continue without this checkpoint"):
        tree: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        require_format(path, tree.pop("format"), [STATE_FORMAT])
        return TrainState(**tree)


def best_checkpoints(checkpoints: Sequence[Checkpoint], count: int) -> list[Checkpoint]:
    """The `count` best validated checkpoints, best first; of equals the earlier one."""
    by_step = sorted(checkpoints, key=lambda checkpoint: checkpoint.state.step)
    return [by_step[index] for index in best_first([checkpoint.state.cost for checkpoint in by_step])[:count]]


def prune_checkpoints(folder: Path, keep_best: int) -> None:
    """Keep the newest checkpoint whole and the weights of the best; remove all others."""
    checkpoints = list_checkpoints(folder)
    kept = {checkpoint.directory for checkpoint in best_checkpoints(checkpoints, keep_best)}
    for checkpoint in checkpoints[:-1]:
        if checkpoint.directory in kept:
            (checkpoint.directory / OPTIMIZER).unlink(missing_ok=True)
        else:
            # The state goes first: if the process is killed here, what remains is not listed as a checkpoint.
            (checkpoint.directory / STATE).unlink()
            shutil.rmtree(checkpoint.directory)


def average_weights(directories: Sequence[Path]) -> dict[str, Tensor]:
    """The mean of the weights of several checkpoints."""
    assert directories
    total: dict[str, Tensor] = {}
    for directory in directories:
        for name, tensor in load_weights(directory / WEIGHTS).items():
            total[name] = total[name] + tensor.double() if name in total else tensor.double()
    return {name: (tensor / len(directories)).float() for name, tensor in total.items()}
