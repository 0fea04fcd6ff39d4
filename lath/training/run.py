"""The directory of a training run: what it was started with, its log, its checkpoints, and its model.

RUN/recipe.toml     the recipe's own text
RUN/resolved.json   every setting in force
RUN/prepared.json   data.json of the data directory it was started on
RUN/config.json     of the model to be, with its vocabulary beside it
RUN/log.jsonl       one line every so many steps, and one for each validation
RUN/tensorboard/    the same numbers for TensorBoard, if the recipe asks for them
RUN/checkpoints/    step-N/, the newest whole and the best
RUN/model/          when it is finished
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

from lath.config import Recipe, recipe_from_tree, to_tree
from lath.errors import UserError
from lath.files import whole_directory, whole_file
from lath.model.directory import (
    Checkpoint,
    ModelInfo,
    average_weights,
    best_checkpoints,
    list_checkpoints,
    read_info,
    save_model,
    write_info,
)
from lath.text.corpus import DATA_INFO
from lath.text.vocab import load_vocabs, save_vocabs
from lath.training.log import LOG, tensorboard_writer, trim_log

PREPARED = "prepared.json"
"""The copy of the data directory's data.json in a run, by which a resume knows the same data."""
MAY_CHANGE_ON_RESUME = (
    "steps", "validate_every", "keep_best", "log_every", "micro_batch_tokens",
    "tensorboard", "patience", "spike_factor",
)  # fmt: skip


def require_new(run: Path) -> None:
    """Refuse a run directory that is there already."""
    if run.exists():
        raise UserError(f"{run}: exists already; add --resume to go on with it, or choose another name")


def start_run(run: Path, recipe: Recipe, recipe_text: str, info: ModelInfo, data: Path) -> None:
    """Create a run directory; an existing one is never touched."""
    require_new(run)
    _require_extras(recipe)
    with whole_directory(run) as partial:
        (partial / "checkpoints").mkdir()
        (partial / "recipe.toml").write_text(recipe_text, encoding="utf-8")
        (partial / LOG).touch()
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
    _require_extras(recipe)
    _write_resolved(run, recipe)
    checkpoints = [c for c in list_checkpoints(run / "checkpoints") if c.can_resume]
    newest = checkpoints[-1] if checkpoints else None
    trim_log(run, newest.state.step if newest else 0)
    return newest


def _require_extras(recipe: Recipe) -> None:
    """Tell of a missing package before anything is written."""
    if recipe.train.tensorboard:
        tensorboard_writer()


def changed_settings(before: Recipe, after: Recipe) -> list[str]:
    """Names of training-relevant settings that differ; those of `train` without their section."""
    old, new = to_tree(before), to_tree(after)
    changed = []
    for section in ("network", "objective", "train"):
        prefix = "" if section == "train" else f"{section}."
        changed += [prefix + key for key, value in old[section].items() if new[section][key] != value]
    return changed


def average_run(run: Path, count: int, out: Path) -> list[Checkpoint]:
    """Write the average of a run's best checkpoints as a model directory; returns them, best first."""
    info = read_info(run)
    if not (run / LOG).is_file():
        raise UserError(f"{run}: a model directory, not a training run; name the run it came from")
    best = best_checkpoints(list_checkpoints(run / "checkpoints"), count)
    if not best:
        raise UserError(f"{run}: no validated checkpoint yet; train to the first validation before averaging")
    steps = max(checkpoint.state.step for checkpoint in best)
    weights = average_weights([checkpoint.directory for checkpoint in best])
    save_model(out, weights, replace(info, steps=steps), load_vocabs(run))
    return best
