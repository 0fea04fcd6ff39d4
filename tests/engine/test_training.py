"""Both engines train the same model."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from lath.config import Kind, ObjectiveSettings, Recipe
from lath.engine.training import PackedEngine, PlainEngine, choose_engine, pack_sizes
from lath.model.network import build_model
from lath.model.padding import pad
from lath.text.corpus import Corpus
from lath.text.vocab import PAD, load_vocabs
from lath.training.batches import Batch, cut_packs, deal_rows, make_batch, plan_epoch
from lath.training.loop import train
from lath.training.objective import draw_examples

CPU = torch.device("cpu")


def recipe_for(kind: Kind, recipe: Recipe, **settings: object) -> Recipe:
    network = dataclasses.replace(recipe.network, kind=kind, dropout=0.0)
    return dataclasses.replace(recipe, network=network, train=dataclasses.replace(recipe.train, **settings))  # type: ignore[arg-type]


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiling for the CPU takes a minute and needs a compiler; what is compiled is the same without it."""
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize(
    ("kind", "objective"),
    [
        ("AT", ObjectiveSettings()),
        ("CMLM", ObjectiveSettings()),
        ("LAT", ObjectiveSettings()),
        ("LAT", ObjectiveSettings(delete_from_short=True, insertion_rate=0.15)),
    ],
)
def test_packed_and_plain_training_end_in_the_same_weights(
    toy_folder: Path, tmp_path: Path, kind: Kind, objective: ObjectiveSettings
) -> None:
    import toy

    weights = []
    for engine in ("plain", "packed"):
        base = dataclasses.replace(toy.toy_recipe(tmp_path, kind, steps=5, validate_every=5), objective=objective)
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
    assert isinstance(choose_engine(model, recipe, CPU, corpus, ranks=1), PlainEngine)
    packed = dataclasses.replace(recipe, train=dataclasses.replace(recipe.train, engine="packed"))
    assert isinstance(choose_engine(model, packed, CPU, corpus, ranks=1), PackedEngine)


@pytest.mark.parametrize(("step_tokens", "micro_batch_tokens", "ranks", "packs"),
    [(4000, 40_000, 1, 1), (4000, 4000, 1, 1), (4000, 2000, 1, 2), (4000, 4000, 2, 1)])  # fmt: skip
def test_packs_fit_an_update_and_little_is_left_over(
    toy_folder: Path, step_tokens: int, micro_batch_tokens: int, ranks: int, packs: int
) -> None:
    corpus = Corpus.open(toy_folder / "data", "train")
    recipe = recipe_for("LAT", Recipe(), step_tokens=step_tokens, micro_batch_tokens=micro_batch_tokens)
    sizes = pack_sizes(corpus, recipe, ranks)
    room = sizes.sentences - max(sizes.source, sizes.target) // sizes.longest - 1
    for update in plan_epoch(corpus.source_lengths, corpus.target_lengths, step_tokens, seed=1, epoch=0)[:-1]:
        batch = make_batch(corpus, update[::ranks])
        assert len(cut_packs(batch, sizes.source, sizes.target, room)) == packs
    assert sizes.target < 1.1 * step_tokens / ranks / packs
    assert sizes.longest == max(corpus.source_lengths.max(), corpus.target_lengths.max()) + 2


@pytest.mark.parametrize("delete_from_short", [False, True])
def test_packs_have_room_for_masks_too_many(toy_folder: Path, delete_from_short: bool) -> None:
    corpus = Corpus.open(toy_folder / "data", "train")
    objective = ObjectiveSettings(insertion_rate=0.15, delete_from_short=delete_from_short)
    recipe = dataclasses.replace(
        recipe_for("LAT", Recipe(), step_tokens=4000, micro_batch_tokens=4000), objective=objective
    )
    sizes = pack_sizes(corpus, recipe, ranks=1)
    generator, positions = torch.Generator().manual_seed(1), []
    for epoch in range(4):
        for update in plan_epoch(corpus.source_lengths, corpus.target_lengths, 4000, seed=1, epoch=epoch):
            examples = draw_examples(make_batch(corpus, update), recipe.network, objective, generator)
            positions.append(int((examples.decoder_input != PAD).sum()))
    assert max(positions) <= sizes.target < 1.1 * max(positions)


def test_packs_keep_every_limit() -> None:
    rows = [[7] * size for size in (1, 1, 1, 2, 3, 5, 8)]
    batch = Batch(pad(rows), pad(rows))
    for source, target, sentences, expected in [
        (100, 100, 100, [7]), (100, 13, 100, [4, 3]), (13, 100, 100, [4, 3]), (100, 100, 3, [3, 2, 2]),
    ]:  # fmt: skip
        parts = cut_packs(batch, source, target, sentences)
        assert [len(rows[part.rows]) for part in parts] == expected
        assert sorted(len(row) for part in parts for row in rows[part.rows]) == [len(row) for row in rows]
        for part in parts:
            assert sum(len(row) for row in rows[part.rows]) <= min(source, target)
            assert part.target_width == max(len(row) for row in rows[part.rows])


def test_ranks_share_packs_without_losing_a_row() -> None:
    rows = [[7 + number] * (1 + number // 3) for number in range(11)]
    batch = Batch(pad(rows), pad(rows))
    for ranks in (1, 2, 3):
        hands = [deal_rows(batch, rank, ranks, lambda own: cut_packs(own, 6, 6, 4)) for rank in range(ranks)]
        assert sorted(row for parts in hands for part in parts for row in rows[part.rows]) == sorted(rows)
