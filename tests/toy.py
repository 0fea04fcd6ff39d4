"""Two invented languages that a tiny model learns in seconds, and the way to train on them."""

from __future__ import annotations

import random
from pathlib import Path

import torch

from lath.config import Recipe, recipe_from_tree
from lath.data import prepare
from lath.train import train

# Twelve source words; half of them become two target words, so lengths must be learnt as well.
WORDS = ["ba", "ko", "mi", "tu", "re", "sa", "lo", "ni", "pe", "du", "fa", "gu"]
RENDERED = ["ark", "oak", "elm", "ash", "fir", "yew", "bay fig", "pear nut", "plum pea", "lime rye", "date oat", "sage hop"]

# Each phrase has two equally right renderings that share no word: the multimodality that NAT suffers from.
FIRST = ["red fox", "big cat", "old dog", "shy hen", "wet cow", "mad pig", "sad ram", "odd bee"]
SECOND = ["one ant", "two bat", "six cod", "ten doe", "low eel", "hot fly", "new gnu", "raw hog"]


def plain_pair(random_: random.Random) -> tuple[str, str]:
    """Word by word, in the same order."""
    chosen = [random_.randrange(len(WORDS)) for _ in range(random_.randint(2, 7))]
    return " ".join(WORDS[c] for c in chosen), " ".join(RENDERED[c] for c in chosen)


def ambiguous_pair(random_: random.Random) -> tuple[str, str]:
    """Phrase by phrase, each in one of its two renderings."""
    chosen = [random_.randrange(len(FIRST)) for _ in range(random_.randint(1, 4))]
    return " ".join(WORDS[c] for c in chosen), " ".join(random_.choice((FIRST, SECOND))[c] for c in chosen)


def ambiguous_right(source: str, hypothesis: str) -> bool:
    """Whether every phrase is in one of its renderings, unmixed."""
    words, numbers = hypothesis.split(), [WORDS.index(word) for word in source.split()]
    phrases = [" ".join(words[i : i + 2]) for i in range(0, len(words), 2)]
    return len(phrases) == len(numbers) and all(p in (FIRST[n], SECOND[n]) for p, n in zip(phrases, numbers, strict=True))


def write_pairs(folder: Path, name: str, pair: object, count: int, seed: int) -> tuple[Path, Path]:
    """Write `count` pairs drawn by the function `pair`."""
    assert callable(pair)
    random_ = random.Random(seed)
    pairs = [pair(random_) for _ in range(count)]
    paths = folder / f"{name}.src", folder / f"{name}.tgt"
    for side, path in enumerate(paths):
        path.write_text("".join(p[side] + "\n" for p in pairs), encoding="utf-8")
    return paths


def toy_recipe(folder: Path, kind: str, pair: object = plain_pair, **train_settings: object) -> Recipe:
    """A tiny recipe for a toy language whose text it writes into `folder`."""
    source, target = write_pairs(folder, "train", pair, 3000, seed=1)
    valid_source, valid_target = write_pairs(folder, "valid", pair, 100, seed=2)
    return recipe_from_tree(
        {
            "data": {"source_language": "xx", "target_language": "yy", "train_source": str(source),
                     "train_target": str(target), "valid_source": str(valid_source),
                     "valid_target": str(valid_target), "max_length": 30},
            "vocab": {"size": 330},
            "network": {"kind": kind, "width": 64, "heads": 4, "feedforward": 128, "encoder_layers": 2,
                        "decoder_layers": 2, "max_positions": 64, "dropout": 0.0},
            "train": {"steps": 300, "step_tokens": 1000, "micro_batch_tokens": 2000, "learning_rate": 3e-3,
                      "warmup_steps": 60, "adam_beta2": 0.98, "validate_every": 100, "keep_best": 1, "log_every": 50,
                      **train_settings},
        },
        "toy.toml",
    )  # fmt: skip


def train_toy(folder: Path, recipe: Recipe) -> Path:
    """Prepare and train; returns the model directory."""
    prepare(recipe, folder / "data")
    return train(recipe, "", folder / "data", folder / "run", torch.device("cpu"))
