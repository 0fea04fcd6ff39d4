"""Model directories on disk: save and load.

A model directory holds what translation needs: `config.json`, `model.safetensors`, the vocabulary and a model card. The
weights are float32, or compressed (storage.py) if config.json says so. It is written under a temporary name and
renamed, so it is whole or absent. docs/formats.md describes every field.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from lath.config import DecodeSettings, NetworkSettings, settings_from_tree, to_tree
from lath.errors import UserError
from lath.files import whole_directory
from lath.model.network import KINDS, PIECE_LOGIT_SCALE, Model
from lath.model.storage import FULL, SMALLER, restore
from lath.text.vocab import Vocab, load_vocabs, save_vocabs

FORMAT = 2
"""Of config.json. Format 1 (lath 0.1) still loads."""
WEIGHTS, CONFIG, CARD = "model.safetensors", "config.json", "README.md"
SHORTLIST = "shortlist.safetensors"
"""The shortlist of a model directory that has one (`lath shortlist`)."""
EXPORTED = "lath"
"""The folder of an exported directory (`lath export`) that holds a model directory without weights."""


@dataclass(frozen=True)
class ModelInfo:
    """Everything about a model but its weights and vocabulary."""

    network: NetworkSettings
    decode: DecodeSettings
    source_language: str
    target_language: str
    source_size: int
    """Entries of the source vocabulary."""
    target_size: int
    joint: bool
    """One vocabulary for both sides."""
    max_length: int
    """Longest source sentence it was trained on, in tokens; longer lines are translated in parts."""
    steps: int
    """Updates it was trained for."""


@dataclass(frozen=True)
class LoadedModel:
    """A model directory in memory."""

    model: Model
    info: ModelInfo
    source_vocab: Vocab
    target_vocab: Vocab


def save_model(directory: Path, weights: dict[str, Tensor], info: ModelInfo, vocabs: tuple[Vocab, Vocab]) -> None:
    """Write a model directory that does not exist yet."""
    with whole_directory(directory) as partial:
        save_tensors({name: tensor.contiguous() for name, tensor in weights.items()}, partial / WEIGHTS)
        write_info(partial, info)
        save_vocabs(partial, *vocabs)
        (partial / CARD).write_text(model_card(info, weights), encoding="utf-8")


def write_info(directory: Path, info: ModelInfo, storage: str = FULL) -> None:
    """Write config.json into an existing directory; `storage` is said where weights are not float32."""
    told = {} if storage == FULL else {"storage": storage}
    tree = {"format": FORMAT, **told, **to_tree(info)}
    (directory / CONFIG).write_text(json.dumps(tree, indent=2) + "\n", encoding="utf-8")


def model_card(info: ModelInfo, weights: dict[str, Tensor]) -> str:
    """The README of a model directory: what is known; its owner adds data, licence and scores."""
    network = info.network
    piece = f", pieces of {network.piece_length}" if network.kind == "LAT" else ""
    millions = sum(tensor.numel() for tensor in weights.values()) / 1e6
    return f"""# {info.source_language} to {info.target_language}, {network.kind}{piece}

A translation model made with lath.

| | |
|---|---|
| network | {network.kind}{piece}, {network.encoder_layers} + {network.decoder_layers} layers, width {network.width} |
| parameters | {millions:.1f} million |
| vocabulary | {info.source_size} source, {info.target_size} target, {"joint" if info.joint else "separate"} |
| trained for | {info.steps} updates, sentences of up to {info.max_length} tokens |

Not said by training, and to be added here before the model is passed on: the data and their licence, and scores
with their signatures (`lath evaluate`).
"""


def is_exported(directory: Path) -> bool:
    """Whether a directory was written by `lath export`."""
    return (directory / EXPORTED / CONFIG).is_file()


def read_info(directory: Path) -> ModelInfo:
    """The settings of a model directory; anything missing or foreign is told with its remedy."""
    return _read_config(directory)[0]


def read_storage(directory: Path) -> str:
    """How a model directory stores its weights: `storage.FULL`, or one of `storage.SMALLER`."""
    return _read_config(directory)[1]


def _read_config(directory: Path) -> tuple[ModelInfo, str]:
    if not directory.is_dir():
        raise UserError(f"{directory}: no such model directory; `lath train` writes one as RUN/model")
    path = directory / CONFIG
    if not path.is_file():
        raise UserError(f"{directory}: neither a model nor a run directory, it has no {CONFIG}")
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise UserError(f"{path}: damaged ({error}); copy the model directory again") from None
    number = tree.pop("format", None) if isinstance(tree, dict) else None
    if number is None:
        raise UserError(f"{path}: not written by lath; a model directory comes from `lath train` or `lath average`")
    if number == 1:
        _upgrade_format_1(tree, path)
    elif number != FORMAT:
        raise UserError(f"{path}: format {number}, but this version of lath reads formats 1 and {FORMAT}; update lath")
    storage = tree.pop("storage", FULL)
    if storage not in (FULL, *SMALLER):
        raise UserError(
            f"{path}: the weights are stored as {storage!r}, but this version of lath reads "
            f"{', '.join((FULL, *SMALLER))}; update lath"
        )
    try:
        return settings_from_tree(ModelInfo, tree, str(path)), storage
    except TypeError as error:
        raise UserError(f"{path}: incomplete ({error}); copy the model directory again") from None


def _upgrade_format_1(tree: dict[str, Any], path: Path) -> None:
    """Take the settings that format 2 no longer has out of a config.json; only their usual values can be replaced."""
    former: dict[str, dict[str, Any]] = {
        "network": {"piece_logit_scale": PIECE_LOGIT_SCALE},
        "decode": {"merge": None, "adjust_towards": "current"},
    }
    for section, settings in former.items():
        for name, usual in settings.items():
            found = tree[section].pop(name, usual) if isinstance(tree.get(section), dict) else usual
            if found != usual:
                raise UserError(
                    f"{path}: {section}.{name} is {found!r}, which only lath 0.1 supports; "
                    f"use that version, or set it to {json.dumps(usual)} and check the translations"
                )


def load_model(directory: Path, device: torch.device) -> LoadedModel:
    """A model directory, ready to translate on `device`; its weights are float32 however they are stored."""
    info, storage = _read_config(directory)
    if (directory / "log.jsonl").is_file():
        finished = directory / "model"
        remedy = f"use {finished}" if finished.is_dir() else "finish it, or write a model with `lath average`"
        raise UserError(f"{directory}: a training run, not a model; {remedy}")
    source_vocab, target_vocab = load_vocabs(directory)
    sizes = (source_vocab.size, target_vocab.size)
    if sizes != (info.source_size, info.target_size) or (source_vocab is target_vocab) != info.joint:
        raise UserError(
            f"{directory}: the vocabulary has {sizes[0]} and {sizes[1]} entries, the model was trained with "
            f"{info.source_size} and {info.target_size}; the files are of different models, copy the directory again"
        )
    weights = load_weights(directory / WEIGHTS)
    if storage != FULL:
        weights = restore(weights, str(directory / WEIGHTS))
    with torch.device("meta"):
        model = KINDS[info.network.kind](info.network, info.source_size, info.target_size, info.joint)
    fill_weights(model, weights, directory / WEIGHTS)
    return LoadedModel(model.to(device).eval(), info, source_vocab, target_vocab)


def save_tensors(tensors: dict[str, Tensor], path: Path, metadata: dict[str, str] | None = None) -> None:
    """A safetensors file that may be read by whoever may read the files beside it.

    The library writes one that its owner alone may read, whatever the umask says; an empty file tells what that is.
    """
    path.touch()
    mode = path.stat().st_mode
    save_file(tensors, path, metadata)
    path.chmod(mode)


def load_weights(path: Path) -> dict[str, Tensor]:
    """A safetensors file on the CPU."""
    if not path.is_file():
        raise UserError(f"{path}: missing; copy the whole directory again")
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path}: damaged or not a safetensors file ({error}); copy it again") from None


def fill_weights(model: Model, weights: dict[str, Tensor], path: Path) -> None:
    """Put `weights` into the model (whose own may lie on the meta device); they must fit name by name."""
    expected = model.state_dict()
    for name in sorted(expected.keys() | weights.keys()):
        if name not in weights or name not in expected:
            where = "lacks" if name in expected else "has an unknown"
            raise UserError(
                f"{path}: {where} tensor {name!r}; the weights are of another kind of model than {CONFIG} says"
            )
        if weights[name].shape != expected[name].shape:
            raise UserError(
                f"{path}: {name} has shape {tuple(weights[name].shape)}, {CONFIG} and vocabulary ask for "
                f"{tuple(expected[name].shape)}; the files are of different models"
            )
    model.load_state_dict({name: tensor.float() for name, tensor in weights.items()}, assign=True)
