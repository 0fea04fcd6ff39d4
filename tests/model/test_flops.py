"""The estimated operations of an update, compared with those that torch counts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from lath.config import Kind, NetworkSettings
from lath.model.flops import known_peak, peak_flops, update_flops
from lath.model.network import build_model


@pytest.mark.parametrize("kind", ["AT", "CMLM", "LAT"])
@pytest.mark.parametrize("layers", [(1, 2), (2, 1)])
@pytest.mark.parametrize("piece_length", [2, 3])
def test_the_estimate_is_what_torch_counts(kind: Kind, layers: tuple[int, int], piece_length: int) -> None:
    network = NetworkSettings(
        kind=kind, width=32, heads=2, feedforward=48, encoder_layers=layers[0], decoder_layers=layers[1],
        max_positions=16, piece_length=piece_length, dropout=0.0,
    )  # fmt: skip
    sentences, source, target, size = 3, 9, 11, 400
    model = build_model(network, size, size, True, torch.Generator().manual_seed(1))
    read = target - 1 if kind == "AT" else target
    targets = torch.full((sentences, read, model.piece_length), 7)
    # torch counts the operations of this kernel, but not of the CPU's own.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        states, _ = model.output_states(torch.full((sentences, source), 7), torch.full((sentences, read), 7), targets)
        # Half of the words that are not BOS or EOS, and half a word more, are masked on the average.
        used = states[:, : target // 2] if kind == "CMLM" else states
        model.body.logits(used * model.output_scale).sum().backward()
    flops = update_flops(network, size, np.full(sentences, source), np.full(sentences, target))
    # The padded network also computes keys for the LENGTH slot, which are masked.
    assert flops == pytest.approx(counter.get_total_flops(), rel=0.02)


def test_longer_sentences_cost_more_than_their_length() -> None:
    network = NetworkSettings()
    short = update_flops(network, 10_000, np.full(64, 20), np.full(64, 20))
    long = update_flops(network, 10_000, np.full(16, 80), np.full(16, 80))
    assert short < long < 1.2 * short


def test_the_paper_s_network_by_hand() -> None:
    """6 operations for each weight and token; 44 million weights in the layers, attention a few per cent."""
    network = NetworkSettings(kind="AT")
    layers = 6 * (4 * 512**2 + 2 * 512 * 2048) + 6 * (8 * 512**2 + 2 * 512 * 2048)
    flops = update_flops(network, 10_000, np.full(100, 25), np.full(100, 26))
    assert flops == pytest.approx(6 * 2500 * (layers + 512 * 10_000), rel=0.03)


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA H200", 989e12),
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA A100-SXM4-40GB", 312e12),
        ("NVIDIA GeForce GTX 1080", None),
    ],
)
def test_peaks(name: str, peak: float | None) -> None:
    assert known_peak(name) == peak


def test_a_cpu_has_no_known_peak() -> None:
    assert peak_flops(torch.device("cpu"), 2) is None
