"""What changes the weights: AdamW alone, or Muon for the matrices of the layers."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path

import pytest
import torch
from conftest import CPU
from safetensors.torch import load_file
from toy import toy_recipe

from lath.config import NetworkSettings, TrainSettings
from lath.data import prepare
from lath.model import Model, build_model
from lath.optimiser import MOMENTUM, build_optimisers, layer_matrices, orthogonal, orthogonal_changes, set_rate, squares
from lath.train import train


def tiny_model(kind: str = "LAT") -> Model:
    network = NetworkSettings(kind, 16, 2, 32, 1, 2, max_positions=32)  # type: ignore[arg-type]
    return build_model(network, 40, 40, True, torch.Generator().manual_seed(1))


def random(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def learn(model: Model, optimisers: list[torch.optim.Optimizer], seed: int) -> None:
    for number, parameter in enumerate(model.parameters()):
        parameter.grad = random(*parameter.shape, seed=100 * seed + number)
    set_rate(optimisers, 1e-3)
    for optimiser in optimisers:
        optimiser.step()


@pytest.mark.parametrize("kind", ["AT", "CMLM", "LAT"])
def test_every_weight_has_one_optimiser(kind: str) -> None:
    model = tiny_model(kind)
    adam, muon = build_optimisers(model, TrainSettings(optimiser="muon"), fused=False)
    of_adam, of_muon = ([p for group in o.param_groups for p in group["params"]] for o in (adam, muon))
    assert sorted(map(id, of_adam + of_muon)) == sorted(map(id, model.parameters()))
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    tables = [name for name in map(names.__getitem__, map(id, of_adam)) if model.get_parameter(name).dim() == 2]
    expected = {"body.tables.0.weight", "body.source_positions.weight", "body.target_positions.weight"}
    assert set(tables) == expected | ({"length.table.weight"} if kind != "AT" else set())


def test_adamw_alone_is_that_of_torch() -> None:
    model = tiny_model()
    twin = copy.deepcopy(model)
    settings = TrainSettings(adam_beta2=0.98)
    (ours,) = build_optimisers(model, settings, fused=False)
    theirs = torch.optim.AdamW(twin.parameters(), lr=1e-3, betas=(0.9, 0.98), eps=1e-6, weight_decay=0.01)
    for seed in (1, 2, 3):
        learn(model, [ours], seed)
        for parameter, other in zip(model.parameters(), twin.parameters(), strict=True):
            other.grad = parameter.grad
        theirs.step()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))


@pytest.mark.parametrize("shape", [(3, 16, 16), (2, 24, 16), (1, 16, 40)])
def test_an_orthogonal_matrix_keeps_the_directions_and_loses_the_stretch(shape: tuple[int, int, int]) -> None:
    matrices = random(*shape) @ torch.diag(torch.logspace(0, 1, shape[2]))
    made = orthogonal(matrices)
    stretches = torch.linalg.svdvals(made)
    assert stretches.min() > 0.5
    assert stretches.max() < 1.3
    left, _, right = torch.linalg.svd(matrices, full_matrices=False)
    inside = left.transpose(1, 2) @ made @ right.transpose(1, 2)
    diagonal = torch.diag_embed(inside.diagonal(dim1=1, dim2=2))
    assert torch.allclose(inside, diagonal, atol=1e-4)


def test_nothing_to_learn_changes_nothing() -> None:
    assert torch.equal(orthogonal(torch.zeros(2, 4, 4)), torch.zeros(2, 4, 4))


def test_matrices_are_cut_into_squares() -> None:
    tall, wide, uneven = random(6, 2), random(2, 6), random(4, 6)
    assert torch.equal(squares(tall), torch.stack([tall[:2], tall[2:4], tall[4:]]))
    assert torch.equal(squares(wide), torch.stack([wide[:, :2], wide[:, 2:4], wide[:, 4:]]))
    assert torch.equal(squares(uneven), uneven[None])


def test_all_together_is_one_by_one() -> None:
    matrices = [random(*shape, seed=n) for n, shape in enumerate([(8, 8), (24, 8), (8, 32), (8, 12), (8, 8), (16, 4)])]
    together = orthogonal_changes(matrices)
    for matrix, made in zip(matrices, together, strict=True):
        assert made.shape == matrix.shape
        assert torch.allclose(orthogonal_changes([matrix])[0], made, atol=1e-5)
    # What comes out of a matrix is about as large whatever its shape: a wide one sums more inputs up.
    for made in (together[0], together[2]):
        assert torch.linalg.matrix_norm(made, 2) < 1.3


def test_muon_is_what_it_says() -> None:
    """Two steps by hand, matrix by matrix."""
    model = tiny_model()
    optimisers = build_optimisers(model, TrainSettings(optimiser="muon", matrix_learning_rate=0.05), fused=False)
    expected = [matrix.detach().clone() for matrix in layer_matrices(model)]
    momenta = [torch.zeros_like(matrix) for matrix in expected]
    rate = 1e-3 * 0.05 / 5e-4  # AdamW's rate now, times the ratio of the two peaks
    for seed in (1, 2):
        learn(model, optimisers, seed)
        for number, matrix in enumerate(layer_matrices(model)):
            assert matrix.grad is not None
            momenta[number] = MOMENTUM * momenta[number] + (1 - MOMENTUM) * matrix.grad
            ahead = (1 - MOMENTUM) * matrix.grad + MOMENTUM * momenta[number]
            expected[number] = expected[number] * (1 - rate * 0.01) - rate * orthogonal_changes([ahead])[0]
    for matrix, wanted in zip(layer_matrices(model), expected, strict=True):
        assert torch.allclose(matrix, wanted, atol=1e-5)


def test_a_run_with_muon_learns_and_resumes_bit_for_bit(tmp_path: Path) -> None:
    recipe = toy_recipe(tmp_path, "LAT", steps=12, validate_every=6, warmup_steps=4)
    recipe = dataclasses.replace(recipe, train=dataclasses.replace(recipe.train, optimiser="muon"))
    half = dataclasses.replace(recipe, train=dataclasses.replace(recipe.train, steps=6))
    prepare(recipe, tmp_path / "data")
    train(recipe, "", tmp_path / "data", tmp_path / "whole", CPU)
    train(half, "", tmp_path / "data", tmp_path / "halves", CPU)
    train(recipe, "", tmp_path / "data", tmp_path / "halves", CPU, resume=True)
    whole, halves = (
        load_file(tmp_path / name / "checkpoints/step-12/model.safetensors") for name in ("whole", "halves")
    )
    assert all(torch.equal(tensor, halves[name]) for name, tensor in whole.items())
