"""The directory of a training run: its settings, its log, its checkpoints and its model.

RUN/recipe.toml     the settings that differ from the defaults; `lath train` accepts it as a recipe
RUN/resolved.json   all settings
RUN/prepared.json   a copy of the data directory's data.json
RUN/config.json     the configuration of the model, with its vocabulary beside it
RUN/log.jsonl       an entry every `train.log_every` steps, and one per validation
RUN/tensorboard/    the same numbers for TensorBoard, if the recipe asks for it
RUN/checkpoints/    step-N/: the newest with its optimiser state, and the best
RUN/model/          the finished model
"""

from __future__ import annotations

import contextlib
import json
import shutil
from dataclasses import replace
from pathlib import Path

from lath.config import Recipe, recipe_from_tree, to_toml, to_tree
from lath.errors import UserError
from lath.files import damage_errors, locked, whole_directory, whole_file
from lath.model.directory import ModelInfo, checked_vocabs, read_config, save_model, write_info
from lath.text.corpus import DATA_INFO, read_data_info
from lath.text.vocab import load_vocabs, save_vocabs
from lath.training.checkpoints import Checkpoint, average_weights, best_checkpoints, list_checkpoints
from lath.training.log import LOG, tensorboard_writer, trim_log

RECIPE, RESOLVED, PREPARED = "recipe.toml", "resolved.json", "prepared.json"
CHECKPOINTS, MODEL = "checkpoints", "model"
MAY_CHANGE_ON_RESUME = (
    "steps", "validate_every", "keep_best", "log_every", "micro_batch_tokens", "tensorboard", "patience",
)  # fmt: skip
"""Settings of `train` that do not affect what has been trained so far."""


def require_new(run: Path) -> None:
    """Raise a `UserError` if the run directory exists."""
    if run.exists():
        raise UserError(f"{run}: exists already; add --resume to continue it, or choose another name")


def lock_run(run: Path) -> contextlib.AbstractContextManager[None]:
    """Keep other processes from training in a run directory; its lock is that of a file that is never replaced."""
    if not all((run / name).is_file() for name in (RESOLVED, PREPARED)):
        raise UserError(f"{run}: not a run directory, so it cannot be resumed; remove --resume to start a new run")
    return locked(run / PREPARED, f"{run}: the run directory")


def start_run(run: Path, recipe: Recipe, data: Path) -> None:
    """Create a run directory."""
    require_new(run)
    _require_extras(recipe)
    with whole_directory(run) as partial:
        (partial / CHECKPOINTS).mkdir()
        (partial / LOG).touch()
        _write_settings(partial, recipe)
        save_vocabs(partial, *load_vocabs(data))
        write_info(partial, _model_info(recipe, data))
        shutil.copy(data / DATA_INFO, partial / PREPARED)


def _write_settings(run: Path, recipe: Recipe) -> None:
    with whole_file(run / RECIPE) as partial:
        partial.write_text(to_toml(recipe), encoding="utf-8")
    with whole_file(run / RESOLVED) as partial:
        partial.write_text(json.dumps(to_tree(recipe), indent=2) + "\n", encoding="utf-8")


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


def read_settings(run: Path) -> Recipe:
    """All settings of a run."""
    path = run / RESOLVED
    with damage_errors(path, "copy the run directory again"):
        tree = json.loads(path.read_text(encoding="utf-8"))
        return recipe_from_tree({section: tree[section] for section in to_tree(Recipe())}, str(path))


def resume_run(run: Path, recipe: Recipe, data: Path) -> Checkpoint | None:
    """The checkpoint to continue from, None if there is none yet; the log is trimmed to it.

    The caller holds the lock of the run.
    """
    changed = [name for name in changed_settings(read_settings(run), recipe) if name not in MAY_CHANGE_ON_RESUME]
    if changed:
        raise UserError(
            f"{run}: was started with a different {', '.join(changed)}; resume with the recipe it was started with "
            f"({run / RECIPE}), or start a new run"
        )
    if (run / PREPARED).read_bytes() != (data / DATA_INFO).read_bytes():
        raise UserError(f"{run}: was started on other data than {data}; resume with the same data, or start a new run")
    _require_extras(recipe)
    _write_settings(run, recipe)
    checkpoints = [checkpoint for checkpoint in list_checkpoints(run / CHECKPOINTS) if checkpoint.can_resume]
    newest = checkpoints[-1] if checkpoints else None
    trim_log(run, newest.state.step if newest else 0)
    return newest


def _require_extras(recipe: Recipe) -> None:
    """Report a missing package before anything is written."""
    if recipe.train.tensorboard:
        tensorboard_writer()


def changed_settings(before: Recipe, after: Recipe) -> list[str]:
    """The settings of training that differ, by name; those of `train` without their section."""
    old, new = to_tree(before), to_tree(after)
    changed = []
    for section in ("network", "objective", "train"):
        prefix = "" if section == "train" else f"{section}."
        changed += [prefix + key for key, value in old[section].items() if new[section][key] != value]
    return changed


def write_model(run: Path, count: int) -> None:
    """Write RUN/model, the average of the `count` best checkpoints."""
    model = run / MODEL
    if model.exists():  # the run was finished before, and resumed with more steps
        shutil.rmtree(model)
    average_run(run, count, model)


def average_run(run: Path, count: int, out: Path) -> list[Checkpoint]:
    """Write the average of a run's best checkpoints as a model directory; returns the checkpoints, best first."""
    config = read_config(run)
    if not (run / LOG).is_file():
        raise UserError(f"{run}: a model directory, not a training run; name the run directory")
    best = best_checkpoints(list_checkpoints(run / CHECKPOINTS), count)
    if not best:
        raise UserError(f"{run}: no validated checkpoint yet; train to the first validation before averaging")
    steps = max(checkpoint.state.step for checkpoint in best)
    weights = average_weights([checkpoint.directory for checkpoint in best])
    save_model(out, weights, replace(config.info, steps=steps), checked_vocabs(run, config))
    return best
