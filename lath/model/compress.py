"""A smaller copy of a model: `lath pack MODEL OUT`.

It translates on every device and in every precision as the model does, but for the rounding of its weights
(storage.py). It is not packed again: every rounding loses a little.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import torch

from lath.engine.ctranslate2 import is_exported
from lath.engine.shortlist import FILE as SHORTLIST
from lath.errors import UserError, did_you_mean
from lath.files import whole_directory
from lath.model.directory import CARD, WEIGHTS, load_model, read_storage, save_tensors, write_info
from lath.model.storage import FULL, SMALLER, shrink
from lath.text.vocab import vocab_files


def pack(model: Path, out: Path, storage: str) -> None:
    """Write a copy of a model directory whose weights are stored in fewer bytes."""
    if storage not in SMALLER:
        known = f"{', '.join(SMALLER[:-1])} or {SMALLER[-1]}"
        raise UserError(f"unknown storage {storage!r}{did_you_mean(storage, SMALLER)}; use {known}")
    if is_exported(model):
        raise UserError(f"{model}: an exported model has its own format; name the model directory it came from")
    stored = read_storage(model)
    if stored != FULL:
        raise UserError(
            f"{model}: is packed already, as {stored}, and to round the weights twice loses quality; "
            f"name the model directory it came from"
        )
    with whole_directory(out) as partial:
        loaded = load_model(model, torch.device("cpu"))
        save_tensors(shrink(loaded.model.state_dict(), storage, str(model)), partial / WEIGHTS)
        write_info(partial, loaded.info, storage)
        extras = [path for path in (model / CARD, model / SHORTLIST) if path.is_file()]
        for path in [*vocab_files(model), *extras]:
            shutil.copyfile(path, partial / path.name)


def directory_size(directory: Path) -> int:
    """Bytes of the files in a directory."""
    return sum(path.stat().st_size for path in directory.iterdir() if path.is_file())
