"""Both engines train the same model."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from lath.batches import Batch, cut_packs, pad
from lath.config import Kind, Recipe
from lath.data import Corpus
from lath.engine import PackedEngine, PlainEngine, choose_engine, pack_sizes
from lath.model import build_model
from lath.train import train
from lath.vocab import load_vocabs

CPU = torch.device("cpu")


def recipe_for(kind: Kind, recipe: Recipe, **settings: object) -> Recipe:
    network = dataclasses.replace(recipe.network, kind=kind, dropout=0.0)
    return dataclasses.replace(recipe, network=network, train=dataclasses.replace(recipe.train, **settings))  # type: ignore[arg-type]


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiling for the CPU takes a minute and needs a compiler; what is compiled is the same without it."""
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("kind", ["AT", "CMLM", "LAT"])
def test_packed_and_plain_training_end_in_the_same_weights(toy_folder: Path, tmp_path: Path, kind: Kind) -> None:
    import toy

    weights = []
    for engine in ("plain", "packed"):
        base = toy.toy_recipe(tmp_path, kind, steps=5, validate_every=5)
        recipe = recipe_for(kind, base, engine=engine, micro_batch_tokens=300)  # several packs an update
        train(recipe, "", toy_folder / "data", tmp_path / engine, CPU)
        weights.append(load_file(tmp_path / engine / "checkpoints" / "step-5" / "model.safetensors"))
    for name, tensor in weights[0].items():
        assert torch.allclose(tensor, weights[1][name], atol=2e-5), name


def test_auto_is_plain_on_the_cpu(toy_folder: Path) -> None:
    recipe = recipe_for("LAT", Recipe(), precision="bf16")
    corpus, (source, target) = Corpus.open(toy_folder / "data", "train"), load_vocabs(toy_folder / "data")
    small = dataclasses.replace(recipe.network, width=8, heads=2, feedforward=8, encoder_layers=1, decoder_layers=1)
    model = build_model(small, source.size, target.size, True, torch.Generator().manual_seed(1))
    assert isinstance(choose_engine(model, recipe, CPU, corpus), PlainEngine)
    packed = dataclasses.replace(recipe, train=dataclasses.replace(recipe.train, engine="packed"))
    assert isinstance(choose_engine(model, packed, CPU, corpus), PackedEngine)


def test_packs_have_room_for_a_usual_update(toy_folder: Path) -> None:
    corpus = Corpus.open(toy_folder / "data", "train")
    sizes = pack_sizes(corpus, recipe_for("LAT", Recipe(), micro_batch_tokens=2000))
    pairs = int(2000 / (corpus.target_lengths.mean() + 2))
    assert sizes.target == 2000
    assert sizes.source >= pairs * (corpus.source_lengths.mean() + 1)
    assert sizes.sentences >= pairs + 2000 / sizes.longest
    assert sizes.longest == max(corpus.source_lengths.max(), corpus.target_lengths.max()) + 2


def test_packs_keep_every_limit() -> None:
    rows = [[7] * size for size in (1, 1, 1, 2, 3, 5, 8)]
    batch = Batch(pad(rows), pad(rows))
    for source, target, sentences, expected in [
        (100, 100, 100, [7]), (100, 8, 100, [5, 1, 1]), (8, 100, 100, [5, 1, 1]), (100, 100, 3, [3, 3, 1]),
    ]:  # fmt: skip
        parts = cut_packs(batch, source, target, sentences)
        assert [part.rows.stop - part.rows.start for part in parts] == expected
        assert [part.target_width for part in parts][-1] == 8
