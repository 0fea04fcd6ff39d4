"""The packed engine trains the same model as the plain one."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
import torch
from conftest import CPU, small_recipe
from safetensors.torch import load_file

from lath.config import Kind, ObjectiveSettings, Recipe
from lath.engine.packed import PackSizes
from lath.engine.training import PackedEngine, cut_packed, pack_sizes
from lath.model.padding import pad
from lath.text.corpus import Corpus
from lath.text.vocab import PAD
from lath.trainer import choose_engine, train
from lath.training.batches import Batch, deal_rows, make_batch, plan_epoch
from lath.training.learner import build_learner
from lath.training.objective import draw_examples
from lath.training.step import PlainEngine


def recipe_for(kind: Kind, recipe: Recipe, **settings: object) -> Recipe:
    network = dataclasses.replace(recipe.network, kind=kind, dropout=0.0)
    return dataclasses.replace(recipe, network=network, train=dataclasses.replace(recipe.train, **settings))  # type: ignore[arg-type]


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not compile: for the CPU it takes a minute and needs a compiler, and the arithmetic is the same."""
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize(
    ("kind", "objective"),
    [
        ("AT", ObjectiveSettings()),
        ("CMLM", ObjectiveSettings()),
        ("LAT", ObjectiveSettings()),
        ("LAT", ObjectiveSettings(delete_from_short=True, insertion_rate=0.15)),
        ("LAT", ObjectiveSettings(glancing_share=0.5)),
        ("CMLM", ObjectiveSettings(glancing_share=0.4)),
    ],
)
def test_packed_and_plain_training_end_in_the_same_weights(
    toy_folder: Path, tmp_path: Path, kind: Kind, objective: ObjectiveSettings
) -> None:
    import toy

    weights = []
    for engine in ("plain", "packed"):
        base = dataclasses.replace(toy.toy_recipe(tmp_path, kind, steps=5, validate_every=5), objective=objective)
        recipe = recipe_for(kind, base, engine=engine, micro_batch_tokens=300)  # several micro-batches per update
        train(recipe, toy_folder / "data", tmp_path / engine, device="cpu")
        weights.append(load_file(tmp_path / engine / "checkpoints" / "step-5" / "model.safetensors"))
    for name, tensor in weights[0].items():
        assert torch.allclose(tensor, weights[1][name], atol=2e-5), name


def test_auto_is_plain_on_the_cpu(toy_folder: Path) -> None:
    data = toy_folder / "data"
    recipe, corpus = recipe_for("LAT", small_recipe(toy_folder, "LAT"), precision="bf16"), Corpus.open(data, "train")
    assert isinstance(choose_engine(build_learner(recipe, data, CPU), corpus).engine, PlainEngine)
    packed = recipe_for("LAT", recipe, engine="packed")
    assert isinstance(choose_engine(build_learner(packed, data, CPU), corpus).engine, PackedEngine)


@pytest.mark.parametrize(("step_tokens", "micro_batch_tokens", "ranks", "count"),
    [(4000, 40_000, 1, 1), (4000, 4000, 1, 1), (4000, 2000, 1, 2), (4000, 4000, 2, 1)])  # fmt: skip
def test_the_arrays_hold_an_update_with_little_padding(
    toy_folder: Path, step_tokens: int, micro_batch_tokens: int, ranks: int, count: int
) -> None:
    corpus = Corpus.open(toy_folder / "data", "train")
    recipe = recipe_for("LAT", Recipe(), step_tokens=step_tokens, micro_batch_tokens=micro_batch_tokens)
    sizes = pack_sizes(corpus, recipe, ranks)
    for update in plan_epoch(corpus.source.lengths, corpus.target.lengths, step_tokens, seed=1, epoch=0)[:-1]:
        batch = make_batch(corpus, update[::ranks])
        assert len(cut_packed(batch, sizes)) == count
    assert sizes.target < 1.1 * step_tokens / ranks / count
    assert sizes.longest == max(corpus.source.lengths.max(), corpus.target.lengths.max()) + 2


@pytest.mark.parametrize("delete_from_short", [False, True])
def test_the_arrays_have_room_for_extra_masks(toy_folder: Path, delete_from_short: bool) -> None:
    corpus = Corpus.open(toy_folder / "data", "train")
    objective = ObjectiveSettings(insertion_rate=0.15, delete_from_short=delete_from_short)
    recipe = dataclasses.replace(
        recipe_for("LAT", Recipe(), step_tokens=4000, micro_batch_tokens=4000), objective=objective
    )
    sizes = pack_sizes(corpus, recipe, ranks=1)
    generator, positions = torch.Generator().manual_seed(1), []
    for epoch in range(4):
        for update in plan_epoch(corpus.source.lengths, corpus.target.lengths, 4000, seed=1, epoch=epoch):
            examples = draw_examples(make_batch(corpus, update), recipe.network, objective, generator)
            positions.append(int((examples.decoder_input != PAD).sum()))
    assert max(positions) <= sizes.target < 1.1 * max(positions)


def test_packed_micro_batches_keep_every_limit() -> None:
    rows = [[7] * size for size in (1, 1, 1, 2, 3, 5, 8)]
    batch = Batch(pad(rows), pad(rows))
    for source, target, sentences, expected in [
        (100, 100, 100, [7]), (100, 13, 100, [4, 3]), (13, 100, 100, [4, 3]), (100, 100, 3, [3, 2, 2]),
    ]:  # fmt: skip
        micro_batches = cut_packed(batch, PackSizes(source, target, sentences + math.ceil(max(source, target) / 8), 8))
        assert [len(rows[micro.rows]) for micro in micro_batches] == expected
        assert sorted(len(row) for micro in micro_batches for row in rows[micro.rows]) == [len(row) for row in rows]
        for micro in micro_batches:
            assert sum(len(row) for row in rows[micro.rows]) <= min(source, target)
            assert micro.target_width == max(len(row) for row in rows[micro.rows])


def test_ranks_share_packed_micro_batches_without_losing_a_row() -> None:
    rows = [[7 + number] * (1 + number // 3) for number in range(11)]
    batch, sizes = Batch(pad(rows), pad(rows)), PackSizes(6, 6, 6, 4)
    for ranks in (1, 2, 3):
        dealt = [deal_rows(batch, rank, ranks, lambda own: cut_packed(own, sizes)) for rank in range(ranks)]
        assert sorted(row for own in dealt for micro in own for row in rows[micro.rows]) == sorted(rows)
