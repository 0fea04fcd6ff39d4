"""The GPU gives what the CPU gives. Skipped where there is none."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from lath.config import DecodeSettings, Kind, NetworkSettings, ObjectiveSettings
from lath.decoding.decoder import decode
from lath.devices import choose_device
from lath.engine.packed import Packed, PackSizes, make_bounds, pack_examples, packed_loss_share, packed_mask
from lath.model.network import build_model
from lath.model.padding import pad
from lath.text.vocab import BOS, EOS
from lath.training.batches import Batch
from lath.training.objective import Totals, draw_examples, loss_share

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")

SMALL = NetworkSettings(
    width=64, heads=4, feedforward=96, encoder_layers=2, decoder_layers=2, max_positions=48, dropout=0.0
)
SENTENCES = [[9, 8, 7, EOS], [10, EOS], [6, 7, 8, 9, 10, 11, 12, 13, EOS], [20, 19, 18, EOS], [15, 6, EOS]]


@pytest.mark.parametrize("kind", ["AT", "CMLM", "LAT"])
def test_translations_are_those_of_the_cpu(kind: Kind) -> None:
    model = build_model(dataclasses.replace(SMALL, kind=kind), 40, 40, True, torch.Generator().manual_seed(1)).eval()
    with torch.no_grad():  # sharpen the outputs: at its initial scale every prediction is nearly a tie
        for name, parameter in model.named_parameters():
            if "table" in name or "positions" in name:
                parameter.mul_(20)
    settings = DecodeSettings(iterations=3, beam=3, length_candidates=2)
    expected = decode(model, pad(SENTENCES), settings)
    device = choose_device("cuda")
    found = decode(model.to(device), pad(SENTENCES).to(device), settings)
    assert [result.ids for result in found] == [result.ids for result in expected]


@pytest.mark.parametrize("kind", ["AT", "CMLM", "LAT"])
def test_loss_and_gradient_are_those_of_the_cpu(kind: Kind) -> None:
    network, objective = dataclasses.replace(SMALL, kind=kind), ObjectiveSettings()
    model = build_model(network, 40, 40, True, torch.Generator().manual_seed(1))
    batch = Batch(pad(SENTENCES), pad([[BOS, *sentence] for sentence in SENTENCES]))
    examples = draw_examples(batch, network, objective, torch.Generator().manual_seed(2))
    results = []
    for device in (torch.device("cpu"), choose_device("cuda")):
        model.to(device).zero_grad()
        loss = loss_share(model, examples.to(device), Totals.of(examples).to(device), objective).total
        loss.backward()  # type: ignore[no-untyped-call]
        gradient = torch.cat([p.grad.flatten().cpu() for p in model.parameters() if p.grad is not None])
        results.append((loss.item(), gradient))
    assert results[1][0] == pytest.approx(results[0][0], abs=1e-5)
    assert torch.allclose(results[1][1], results[0][1], atol=1e-5)


def test_draws_are_made_on_the_device_of_the_batch() -> None:
    device = choose_device("cuda")
    batch = Batch(pad(SENTENCES), pad([[BOS, *sentence] for sentence in SENTENCES])).to(device)
    examples = draw_examples(batch, SMALL, ObjectiveSettings(), torch.Generator(device).manual_seed(1))
    assert examples.decoder_input.device.type == examples.groups.device.type == "cuda"


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 0.06)])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_inside_sentences_is_the_plain_form(causal: bool, dtype: torch.dtype, tolerance: float) -> None:
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(1, 90, (60,), generator=generator)
    bounds = make_bounds(lengths, int(lengths.sum()) + 100, 64, 90)
    drawn = torch.randn(4, int(bounds[-1]), 8, 64, generator=generator).to(dtype)
    results = []
    for tensors in (drawn.float(), drawn.to(choose_device("cuda"))):  # the CPU has the plain form alone
        inputs = [tensor.clone().requires_grad_() for tensor in tensors[:3]]
        packed = Packed(inputs[0][:, 0, 0], inputs[0][:, 0, 0], bounds.to(tensors.device))
        mixed = packed_mask(packed, packed, causal).attend(*inputs)
        results.append([mixed, *torch.autograd.grad(mixed, inputs, tensors[3])])
    for expected, found in zip(*results, strict=True):
        assert torch.allclose(found.cpu().float(), expected.float(), atol=tolerance)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("kind", ["AT", "CMLM", "LAT"])
def test_packed_is_padded(kind: Kind, precision: str) -> None:
    device = choose_device("cuda")
    network, objective = dataclasses.replace(SMALL, kind=kind), ObjectiveSettings()
    model = build_model(network, 40, 40, True, torch.Generator().manual_seed(1)).to(device)
    batch = Batch(pad(SENTENCES), pad([[BOS, *sentence] for sentence in SENTENCES]))
    examples = draw_examples(batch, network, objective, torch.Generator().manual_seed(2)).to(device)
    totals = Totals.of(examples)
    packed = pack_examples(examples, PackSizes(source=40, target=48, sentences=12, longest=20), kind)
    with torch.autocast("cuda", dtype=torch.bfloat16, enabled=precision == "bf16"):
        expected = loss_share(model, examples, totals, objective).total
        found = packed_loss_share(model, packed, totals, objective, chunk_rows=16).total
    assert found.item() == pytest.approx(expected.item(), abs=1e-5 if precision == "fp32" else 2e-2)
    found.backward()  # type: ignore[no-untyped-call]
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
