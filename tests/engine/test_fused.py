"""Fused modules compute what the plain ones compute, and the plain engine runs none of them."""

from __future__ import annotations

import pytest
from conftest import Runs
from interpreter import run_interpreted
from wild import wild_model

from lath.config import Kind
from lath.devices import HAS_TRITON
from lath.engine.fused import fuse
from lath.translator import load

SAME = """
import dataclasses
import sys
import torch
from torch import Tensor
import lath.engine.kernels as kernels
from lath.config import DecodeSettings, NetworkSettings
from lath.decoding.decoder import decode
from lath.engine.fused import fuse
from lath.model.network import build_model

launches = []


class Counted:
    def __init__(self, name, kernel):
        self.name, self.kernel = name, kernel

    def __getitem__(self, grid):
        launches.append(self.name)
        return self.kernel[grid]


for name in ("residual_norm_kernel", "lstm_gates_kernel", "survey_kernel", "choose_kernel", "few_queries_kernel"):
    setattr(kernels, name, Counted(name, getattr(kernels, name)))

network = NetworkSettings(width=64, heads=4, feedforward=48, encoder_layers=1, decoder_layers=1, max_positions=32,
                          dropout=0.0)
for kind in ("AT", "CMLM", "LAT"):
    network = dataclasses.replace(network, kind=kind)
    model = build_model(network, 40, 40, True, torch.Generator().manual_seed(1)).eval()
    with torch.no_grad():  # sharpen the outputs: at its initial scale every prediction is nearly a tie
        for name, parameter in model.named_parameters():
            if "table" in name or "positions" in name:
                parameter.mul_(12)
        if kind != "AT":
            model.length.table.weight[8:] = 0.0
    source, settings = torch.tensor([[9, 12, 7, 2]]), DecodeSettings(iterations=2, beam=2)
    expected = decode(model, source, settings)
    assert launches == [], (kind, launches)
    found = decode(fuse(model), source, settings)
    assert [r.ids for r in found] == [r.ids for r in expected], kind
    assert {"residual_norm_kernel", "survey_kernel", "few_queries_kernel"} <= set(launches), (kind, set(launches))
    assert ("lstm_gates_kernel" in launches) == (kind == "LAT")
    launches.clear()
"""


@pytest.mark.skipif(not HAS_TRITON, reason="no Triton here")
def test_fused_models_decode_as_plain_ones_and_only_they_launch_kernels() -> None:
    run_interpreted(SAME)


@pytest.mark.parametrize("kind", ["AT", "CMLM", "LAT"])
def test_the_plain_engine_runs_the_modules_of_the_network_file_alone(toy_run: Runs, kind: Kind) -> None:
    model = load(toy_run(kind) / "model", "cpu", engine="plain").model
    assert model is not None
    homes = {type(module).__module__ for module in model.modules()}
    assert {home for home in homes if home.startswith("lath")} == {"lath.model.network"}
    assert model.body.make_mask.__module__ == "lath.model.network"


def test_fusing_leaves_the_model_as_it_was() -> None:
    model = wild_model("LAT", 1)
    before = [type(module) for module in model.modules()]
    fused = fuse(model)
    assert [type(module) for module in model.modules()] == before
    assert {id(p) for p in fused.parameters()} <= {id(p) for p in model.parameters()}
