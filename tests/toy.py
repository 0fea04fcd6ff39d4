"""Two invented languages that a tiny model learns in seconds, and how to train on them."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from pathlib import Path

import torch

from lath.config import DecodeSettings, Kind, NetworkSettings, Recipe, recipe_from_tree
from lath.model.directory import ModelInfo, save_model
from lath.model.network import build_model
from lath.preparation import prepare
from lath.text.vocab import Vocab
from lath.trainer import train

Language = Callable[[random.Random], list[tuple[str, str]]]

# Twelve source words; some have a translation of two words, so lengths must be learnt as well.
WORDS = ["ba", "ko", "mi", "tu", "re", "sa", "lo", "ni", "pe", "du", "fa", "gu"]
RENDERED = ["ark", "oak", "elm", "ash", "fir", "yew", "bay", "nut", "plum pea", "lime rye", "date oat", "sage hop"]

# Each phrase has two equally good translations, the multimodality problem of NAT; each conjunction has one.
FIRST = ["fox", "cat", "dog", "hen", "cow", "pig", "ram", "bee"]
SECOND = ["one ant", "two bat", "six cod", "ten doe", "low eel", "hot fly", "new gnu", "raw hog"]
JOINTS = {"ke": "and", "wo": "but", "ya": "or"}


def plain_pairs(random_: random.Random) -> list[tuple[str, str]]:
    """Word by word, in the same order. No word twice, because LAT's official rules merge repeated words."""
    chosen = random_.sample(range(len(WORDS)), random_.randint(2, 5))
    return [(" ".join(WORDS[c] for c in chosen), " ".join(RENDERED[c] for c in chosen))]


def ambiguous_pairs(random_: random.Random) -> list[tuple[str, str]]:
    """Phrases, each followed by a conjunction. The sentence comes twice, each phrase once in each translation.

    So neither translation is more frequent; otherwise all positions would prefer the same one.
    """
    source: list[str] = []
    targets: tuple[list[str], list[str]] = [], []
    for number in random_.sample(range(len(FIRST)), random_.randint(1, 3)):
        joint = random_.choice(list(JOINTS))
        source += [WORDS[number], joint]
        renderings = random_.sample((FIRST[number], SECOND[number]), 2)
        for target, rendering in zip(targets, renderings, strict=True):
            target += [rendering, JOINTS[joint]]
    return [(" ".join(source), " ".join(target)) for target in targets]


def ambiguous_right(source: str, hypothesis: str) -> bool:
    """Whether every phrase has one of its translations, unmixed, and every conjunction is in its place."""
    rest = hypothesis
    for word in source.split():
        renderings = (JOINTS[word],) if word in JOINTS else (FIRST[WORDS.index(word)], SECOND[WORDS.index(word)])
        found = next((rendering for rendering in renderings if f"{rest} ".startswith(f"{rendering} ")), None)
        if found is None:
            return False
        rest = rest.removeprefix(found).lstrip()
    return not rest


def write_pairs(folder: Path, name: str, language: Language, count: int, seed: int) -> tuple[Path, Path]:
    """Write at least `count` pairs of a language."""
    random_ = random.Random(seed)
    pairs: list[tuple[str, str]] = []
    while len(pairs) < count:
        pairs += language(random_)
    paths = folder / f"{name}.src", folder / f"{name}.tgt"
    for side, path in enumerate(paths):
        path.write_text("".join(p[side] + "\n" for p in pairs), encoding="utf-8")
    return paths


def toy_recipe(folder: Path, kind: str, language: Language = plain_pairs, **train_settings: object) -> Recipe:
    """A tiny recipe for a toy language whose text it writes into `folder`."""
    source, target = write_pairs(folder, "train", language, 3000, seed=1)
    valid_source, valid_target = write_pairs(folder, "valid", language, 100, seed=2)
    return recipe_from_tree(
        {
            "data": {"source_language": "xx", "target_language": "yy", "train_source": str(source),
                     "train_target": str(target), "valid_source": str(valid_source),
                     "valid_target": str(valid_target), "max_length": 30},
            "vocab": {"size": 385 if language is ambiguous_pairs else 350, "placeholders": 0},
            "network": {"kind": kind, "width": 64, "heads": 4, "feedforward": 128, "encoder_layers": 1,
                        "decoder_layers": 2, "max_positions": 64, "dropout": 0.0},
            "train": {"steps": 400, "step_tokens": 500, "micro_batch_tokens": 2000, "learning_rate": 3e-3,
                      "warmup_steps": 60, "adam_beta2": 0.98, "validate_every": 100, "keep_best": 1, "log_every": 50,
                      **train_settings},
        },
        "toy.toml",
    )  # fmt: skip


def with_train(recipe: Recipe, **changes: object) -> Recipe:
    """The recipe with other settings of the section train."""
    return dataclasses.replace(recipe, train=dataclasses.replace(recipe.train, **changes))  # type: ignore[arg-type]


def train_toy(folder: Path, recipe: Recipe) -> Path:
    """Prepare and train; returns the model directory."""
    prepare(recipe, folder / "data")
    return train(recipe, folder / "data", folder / "run", device="cpu")


def write_talkative(directory: Path, kind: Kind, vocab: Vocab) -> None:
    """A model directory with random weights that has something to say."""
    network = NetworkSettings(kind, 64, 4, 128, 1, 2, 3, 64, 0.0)
    model = build_model(network, vocab.size, vocab.size, True, torch.Generator().manual_seed(7))
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            parameter.data *= 50 if "tables" in name or "positions" in name else 3
    info = ModelInfo(network, DecodeSettings(), "xx", "yy", vocab.size, vocab.size, True, 30, 20)
    save_model(directory, model.state_dict(), info, (vocab, vocab))
