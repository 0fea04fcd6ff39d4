"""A student and its verifier in one directory: `lath pair STUDENT VERIFIER OUT`.

A pair is the model directory of the student (LAT) with a folder `verifier`, which is a model directory of its own (AT).
The student's config.json holds the SHA-256 of the verifier's config.json, and that holds those of the verifier's files.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from lath.config import DecodeOptions, DecodeSettings, with_options
from lath.errors import UserError
from lath.files import whole_directory
from lath.model.directory import (
    CARD,
    CONFIG,
    WEIGHTS,
    check_files,
    is_exported,
    load_model,
    read_config,
    read_info,
    write_info,
)
from lath.text.vocab import same_tokens, vocab_files

VERIFIER = "verifier"
"""The folder of the model that checks."""


def find_verifier(directory: Path) -> Path | None:
    """The verifier of a pair, as the student's config.json knows it; None for a model without one."""
    folder = directory / VERIFIER
    if is_exported(directory) or not (directory / CONFIG).is_file():
        return None
    config = read_config(directory)
    listed = (config.digests or {}).keys() & {f"{VERIFIER}/{CONFIG}"}
    if not folder.exists():
        if listed:
            raise UserError(f"{folder}: missing, but {CONFIG} of {directory} lists it; copy the whole directory again")
        return None
    if not (folder / CONFIG).is_file():
        raise UserError(f"{folder}: no model directory, it has no {CONFIG}; copy the whole directory again")
    check_files(directory, config, [folder / CONFIG])
    return folder


def check_pair(student: Path, verifier: Path) -> None:
    """Refuse two models of which the second cannot check what the first writes."""
    infos = []
    for directory, kind, task in ((student, "LAT", "drafts are written by"), (verifier, "AT", "they are checked by")):
        if is_exported(directory):
            raise UserError(f"{directory}: an exported model can neither draft nor verify; use the model it came from")
        infos.append(read_info(directory))
        if infos[-1].network.kind != kind:
            raise UserError(f"{directory}: {infos[-1].network.kind}, but {task} {kind}; name a model of that kind")
    one, other = infos
    for name in ("source_language", "target_language"):
        if getattr(one, name) != getattr(other, name):
            raise UserError(
                f"{verifier}: {name} {getattr(other, name)!r}, but {student} has {getattr(one, name)!r}; "
                f"a verifier translates from and into the same languages"
            )
    if not same_tokens(student, verifier):
        raise UserError(
            f"{verifier}: another vocabulary than {student}; train both on one data directory, or prepare the data of "
            f"one with lath prepare --vocab-from the other"
        )
    if other.network.max_positions <= one.max_length:
        raise UserError(
            f"{verifier}: network.max_positions {other.network.max_positions} is too small for sentences of "
            f"{one.max_length} tokens, which {student} translates; use a verifier with {one.max_length + 1} or more"
        )


def make_pair(student: Path, verifier: Path, out: Path, options: DecodeOptions) -> None:
    """Write a directory with copies of both models; it verifies as `options` or the student say, else relaxed."""
    check_pair(student, verifier)
    with whole_directory(out) as partial:
        (partial / VERIFIER).mkdir()
        _copy(verifier, partial / VERIFIER)
        decode = read_info(student).decode
        chosen = with_options(decode, {"verify": decode.verify or "relaxed", "shortlist": False, **options})
        _copy(student, partial, chosen, [partial / VERIFIER / CONFIG])


def _copy(model: Path, out: Path, decode: DecodeSettings | None = None, more: Sequence[Path] = ()) -> None:
    """A copy of what a pair needs of a model, with new digests; so it is read first, to see that it is undamaged."""
    load_model(model, torch.device("cpu"))
    config = read_config(model)
    for path in [model / WEIGHTS, *vocab_files(model), *(path for path in [model / CARD] if path.is_file())]:
        shutil.copyfile(path, out / path.name)
    write_info(out, replace(config.info, decode=decode or config.info.decode), config.storage, more)
