"""Model directories on disk: save and load.

A model directory holds what translation needs: `config.json`, `model.safetensors`, the vocabulary and a model card. The
weights are float32, or compressed (storage.py) if config.json says so. It is written under a temporary name and
renamed, so it is whole or absent. docs/formats.md describes every field.

A model directory may come from a stranger. Sizes are checked before anything of that size is read or allocated, and
every file must have the SHA-256 that config.json gives for it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from lath.config import Count, DecodeSettings, NetworkSettings, check_decode, check_network, settings_from_tree, to_tree
from lath.errors import UserError
from lath.files import damage_errors, read_json, require_format, sha256, whole_directory, whole_file
from lath.model.network import KINDS, Model
from lath.model.storage import FULL, SMALLER, check_stored, restore
from lath.text.vocab import Vocab, load_vocabs, save_vocabs, vocab_files

FORMAT = 2
"""Of config.json. Format 1 (lath 0.1) still loads."""
WEIGHTS, CONFIG, CARD = "model.safetensors", "config.json", "README.md"
SHORTLIST = "shortlist.safetensors"
"""The shortlist of a model directory that has one (`lath shortlist`)."""
LARGEST_CONFIG, LONGEST_HEADER = 1 << 20, 1 << 22
"""Bytes of config.json, and of the header of a safetensors file: ours have a hundredth of them."""
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
    max_length: Count
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
        save_vocabs(partial, *vocabs)
        write_info(partial, info)
        (partial / CARD).write_text(model_card(info, weights), encoding="utf-8")


def write_info(directory: Path, info: ModelInfo, storage: str = FULL, more: Iterable[Path] = ()) -> None:
    """Write config.json into a directory that has its other files already; it holds their digests, and those of `more`.

    `storage` is written where weights are not float32.
    """
    kept = {} if storage == FULL else {"storage": storage}
    tree = {"format": FORMAT, **kept, **to_tree(info)}
    optional = (path for path in (directory / WEIGHTS, directory / SHORTLIST) if path.is_file())
    digests = {_key(directory, path): sha256(path) for path in (*vocab_files(directory), *optional, *more)}
    tree["sha256"] = {CONFIG: _settings_digest(tree), **digests}
    (directory / CONFIG).write_text(json.dumps(tree, indent=2) + "\n", encoding="utf-8")


def add_digest(directory: Path, path: Path) -> None:
    """Enter a new file of a model directory into its config.json, if that has digests."""
    tree = read_json(directory / CONFIG, LARGEST_CONFIG)
    if "sha256" in tree:
        tree["sha256"][_key(directory, path)] = sha256(path)
        with whole_file(directory / CONFIG) as partial:
            partial.write_text(json.dumps(tree, indent=2) + "\n", encoding="utf-8")


def _key(directory: Path, path: Path) -> str:
    return os.path.relpath(path, directory)


def _settings_digest(tree: dict[str, Any]) -> str:
    """Of what config.json says about the network; whoever has a model may change how it decodes."""
    fixed = {name: value for name, value in tree.items() if name not in ("decode", "sha256")}
    return hashlib.sha256(json.dumps(fixed, sort_keys=True).encode()).hexdigest()


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
    """The settings of a model directory; anything missing or foreign is refused with its remedy."""
    return read_config(directory).info


class Config(NamedTuple):
    """What config.json says."""

    info: ModelInfo
    storage: str
    """How the weights are stored: `storage.FULL`, or one of `storage.SMALLER`."""
    digests: dict[str, str] | None
    """SHA-256 by file name; None in a directory that was written before there were digests."""


def read_config(directory: Path) -> Config:
    """Read and check config.json."""
    if not directory.is_dir():
        raise UserError(f"{directory}: no such model directory; `lath train` writes one as RUN/model")
    path = directory / CONFIG
    if not path.is_file():
        raise UserError(f"{directory}: neither a model nor a run directory, it has no {CONFIG}")
    with damage_errors(path, "copy the model directory again"):
        return _config_from_tree(read_json(path, LARGEST_CONFIG), path)


def _config_from_tree(tree: Any, path: Path) -> Config:
    number = tree.get("format") if isinstance(tree, dict) else None
    if number is None:
        raise UserError(f"{path}: not written by lath; a model directory comes from `lath train` or `lath average`")
    require_format(path, number, (1, FORMAT))
    settings, digests = {**tree}, tree.get("sha256")
    if digests is not None and not isinstance(digests, dict):
        raise ValueError("sha256 is no table")
    storage = tree.get("storage", FULL)
    if storage not in (FULL, *SMALLER):
        raise UserError(
            f"{path}: the weights are stored as {storage!r}, but this version of lath reads "
            f"{', '.join((FULL, *SMALLER))}; update lath"
        )
    for name in ("format", "sha256", "storage"):
        settings.pop(name, None)
    info = settings_from_tree(ModelInfo, settings, str(path))
    missing = sorted(field.name for field in fields(NetworkSettings) if field.name not in settings["network"])
    if missing:
        raise ValueError(f"network has no {', '.join(missing)}")
    check_network(info.network, info.max_length, str(path))
    check_decode(info.decode, f"{path}: decode")
    if digests is not None and digests.get(CONFIG) != _settings_digest(tree):
        raise UserError(
            f"{path}: does not have the SHA-256 that it gives for itself; copy the model directory again, "
            f"or remove sha256 from it if you changed it on purpose"
        )
    return Config(info, storage, digests)


def check_files(directory: Path, config: Config, files: Iterable[Path]) -> None:
    """Refuse files that are not those which `config` was written with; without digests nothing is known."""
    for path in files:
        if config.digests is not None and config.digests.get(_key(directory, path)) != sha256(path):
            raise UserError(
                f"{path}: does not have the SHA-256 that {CONFIG} gives for it; copy the whole directory again"
            )


Replacement = Callable[[nn.Module], nn.Module | None]
"""What takes the place of a module with its weights; None keeps the module."""


def load_model(
    directory: Path, device: torch.device, replacement: Callable[[Model], Replacement] | None = None
) -> LoadedModel:
    """A model directory, ready to translate on `device`; its weights are float32 however they are stored.

    An engine can replace each module as soon as it has its weights, so that those of all modules never exist at once.
    """
    config = read_config(directory)
    if (directory / "log.jsonl").is_file():
        finished = directory / "model"
        remedy = f"use {finished}" if finished.is_dir() else "finish it, or write a model with `lath average`"
        raise UserError(f"{directory}: a training run, not a model; {remedy}")
    info, path = config.info, directory / WEIGHTS
    source_vocab, target_vocab = checked_vocabs(directory, config)
    stored = load_weights(path)
    with torch.device("meta"), _Undrawn():
        model = KINDS[info.network.kind](info.network, info.source_size, info.target_size, info.joint)
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
    check_stored(stored, shapes, config.storage, str(path))
    check_files(directory, config, [path])
    _fill(model, lambda name: restore(stored, name, shapes[name], str(path)), replacement and replacement(model))
    return LoadedModel(model.to(device).eval(), info, source_vocab, target_vocab)


def _fill(
    module: nn.Module, weight: Callable[[str], Tensor], replacement: Replacement | None, prefix: str = ""
) -> nn.Module:
    """Give a module and all modules in it their weights; returns the module, or what replaces it."""
    for name, _ in list(module.named_parameters(recurse=False)):
        module._parameters[name] = nn.Parameter(weight(prefix + name))
    for name, child in module.named_children():
        module._modules[name] = _fill(child, weight, replacement, f"{prefix}{name}.")
    return (replacement and replacement(module)) or module


class _Undrawn(TorchFunctionMode):
    """Makes modules without initial weights: to draw them on `meta`, torch would import its compiler (1 s, 150 MB)."""

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if getattr(function, "__module__", None) != "torch.nn.init":
            return function(*args, **kwargs or {})
        return args[0] if args else (kwargs or {})["tensor"]


def checked_vocabs(directory: Path, config: Config) -> tuple[Vocab, Vocab]:
    """The vocabularies of a model directory, which must be those of its config.json."""
    check_files(directory, config, vocab_files(directory))
    source, target = load_vocabs(directory)
    sizes, info = (source.size, target.size), config.info
    if sizes != (info.source_size, info.target_size) or (source is target) != info.joint:
        raise UserError(
            f"{directory}: the vocabulary has {sizes[0]} and {sizes[1]} entries, the model was trained with "
            f"{info.source_size} and {info.target_size}; the files are of different models, copy the directory again"
        )
    return source, target


def save_tensors(tensors: dict[str, Tensor], path: Path, metadata: dict[str, str] | None = None) -> None:
    """A safetensors file that may be read by whoever may read the files beside it.

    The library writes one that its owner alone may read, whatever the umask says; an empty file tells what that is.
    """
    path.touch()
    mode = path.stat().st_mode
    save_file(tensors, path, metadata)
    path.chmod(mode)


def load_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, on the CPU."""
    return read_tensors(path)[0]


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and the metadata of a safetensors file; numbers are mapped, and read from the disk when used."""
    if not path.is_file():
        raise UserError(f"{path}: missing; copy the whole directory again")
    try:
        with path.open("rb") as stream:
            if int.from_bytes(stream.read(8), "little") > LONGEST_HEADER:
                raise ValueError("its header is too long")
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    # What the library does not expect is an error of torch, of several types and lines.
    except (SafetensorError, OSError, RuntimeError, TypeError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise UserError(f"{path}: damaged or not a safetensors file ({reason}); copy it again") from None
