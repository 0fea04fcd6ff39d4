"""A smaller copy of a model: `lath compress MODEL OUT`.

The copy runs on every device and in every precision. It translates like the model, except for the rounding of its
weights (storage.py). A compressed model cannot be compressed again, since each rounding loses a little quality.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import torch

from lath.config import CompressSettings
from lath.errors import UserError, did_you_mean, one_of
from lath.files import whole_directory
from lath.model.directory import (
    CARD,
    CONFIG,
    SHORTLIST,
    WEIGHTS,
    is_exported,
    load_model,
    read_config,
    save_tensors,
    write_info,
)
from lath.model.pair import VERIFIER, find_verifier
from lath.model.storage import FULL, SMALLER, shrink
from lath.text.vocab import vocab_files


def compress(model: Path, out: Path, storage: str = CompressSettings.storage) -> None:
    """Write a copy of a model directory whose weights are stored in fewer bytes."""
    if storage not in SMALLER:
        raise UserError(f"unknown storage {storage!r}{did_you_mean(storage, SMALLER)}; use {one_of(SMALLER)}")
    if is_exported(model):
        raise UserError(f"{model}: an exported model cannot be compressed; name the model directory it came from")
    stored = read_config(model).storage
    if stored != FULL:
        raise UserError(
            f"{model}: already compressed as {stored}, and rounding the weights twice loses quality; "
            f"name the model directory it came from"
        )
    with whole_directory(out) as partial:
        loaded = load_model(model, torch.device("cpu"))
        save_tensors(shrink(loaded.model.state_dict(), storage, str(model)), partial / WEIGHTS)
        extras = [path for path in (model / CARD, model / SHORTLIST) if path.is_file()]
        for path in [*vocab_files(model), *extras]:
            shutil.copyfile(path, partial / path.name)
        verifier = find_verifier(model)
        if verifier is not None:
            compress(verifier, partial / VERIFIER, storage)
        write_info(partial, loaded.info, storage, [partial / VERIFIER / CONFIG] if verifier is not None else [])


def directory_size(directory: Path) -> int:
    """The total size in bytes of the files in a directory."""
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
