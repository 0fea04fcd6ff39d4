"""Packed sentences give the loss and gradient of padded ones, whatever room is left over."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from drawn import SMALL, batch_of, generator

from lath.config import Kind, ObjectiveSettings
from lath.engine.cross_entropy import chunked_cross_entropy
from lath.engine.packed import (
    PackSizes,
    make_bounds,
    pack_examples,
    pack_places,
    pack_rows,
    packed_loss_share,
    sentence_numbers,
)
from lath.model.network import build_model
from lath.training.objective import Totals, draw_examples, loss_share, token_losses


def gradient_of(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


@pytest.mark.parametrize("loss", ["official", "paper"])
@pytest.mark.parametrize("kind", ["AT", "CMLM", "LAT"])
@pytest.mark.parametrize("sizes", [PackSizes(12, 66, 8, 24), PackSizes(40, 200, 30, 30)], ids=["full", "roomy"])
def test_packed_equals_padded(kind: Kind, loss: str, sizes: PackSizes) -> None:
    network = dataclasses.replace(SMALL, kind=kind)
    objective = ObjectiveSettings(loss=loss)  # type: ignore[arg-type]
    model = build_model(network, 40, 40, True, generator())
    examples = draw_examples(batch_of(1, 3, 4, 9, 14, 20), network, objective, generator(5))
    totals = Totals.of(examples)
    plain = loss_share(model, examples, totals, objective)
    plain.total.backward()  # type: ignore[no-untyped-call]
    expected = gradient_of(model)
    model.zero_grad()
    packed = packed_loss_share(model, pack_examples(examples, sizes, kind), totals, objective, chunk_rows=50)
    packed.total.backward()  # type: ignore[no-untyped-call]
    assert packed.token.item() == pytest.approx(plain.token.item(), abs=1e-5)
    assert packed.length.item() == pytest.approx(plain.length.item(), abs=1e-5)
    assert torch.allclose(gradient_of(model), expected, atol=1e-5)


@pytest.mark.parametrize("chunk_rows", [1, 7, 100])
def test_chunked_cross_entropy_is_the_plain_one(chunk_rows: int) -> None:
    random = generator(3)
    states = torch.randn(23, 8, generator=random, dtype=torch.float64).requires_grad_()
    matrix = torch.randn(31, 8, generator=random, dtype=torch.float64).requires_grad_()
    targets = torch.randint(0, 31, (23,), generator=random)
    weights = torch.rand(23, generator=random)
    plain = (token_losses(states @ matrix.t(), targets, 0.1) * weights).sum()
    chunked = chunked_cross_entropy(states, matrix, targets, weights, 0.1, chunk_rows)
    assert chunked.item() == pytest.approx(plain.item(), rel=1e-5)
    expected = torch.autograd.grad(plain, (states, matrix))
    for found, wanted in zip(torch.autograd.grad(3 * chunked, (states, matrix)), expected, strict=True):
        assert torch.allclose(found, 3 * wanted, atol=1e-5)


def test_rows_are_laid_end_to_end() -> None:
    lengths = torch.tensor([2, 0, 3])
    bounds = make_bounds(lengths, 8, 5, 2)
    assert bounds.tolist() == [0, 2, 2, 5, 7, 8]
    rows = torch.tensor([[1, 2, 9], [9, 9, 9], [3, 4, 5]])
    assert pack_rows(rows, lengths, bounds, 8, 0).tolist() == [1, 2, 3, 4, 5, 0, 0, 0]
    assert sentence_numbers(bounds, 8).tolist() == [0, 0, 2, 2, 2, 3, 3, 4]
    assert pack_places(bounds, 8).tolist() == [0, 1, 0, 1, 2, 0, 1, 0]


def test_what_does_not_fit_is_cut_off() -> None:
    lengths = torch.tensor([2, 3])
    bounds = make_bounds(lengths, 4, 3, 2)
    assert bounds.tolist() == [0, 2, 4, 4]
    assert pack_rows(torch.tensor([[1, 2, 9], [3, 4, 5]]), lengths, bounds, 4, 0).tolist() == [1, 2, 3, 4]
