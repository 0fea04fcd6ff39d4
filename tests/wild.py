"""Random networks that have something to say everywhere, and sentences for them: they find every difference."""

from __future__ import annotations

import dataclasses

import torch

from lath.config import DecodeSettings, Kind, NetworkSettings
from lath.decoding.verify import VerifyingDecoder
from lath.model.network import AT, CMLM, LAT, build_model
from lath.model.padding import pad
from lath.text.vocab import EOS

SMALL = NetworkSettings(
    width=32, heads=4, feedforward=48, encoder_layers=1, decoder_layers=2, max_positions=96, dropout=0.0
)
WAYS = {
    "one pass": DecodeSettings(iterations=1),
    "four": DecodeSettings(iterations=4),
    "candidates": DecodeSettings(iterations=3, length_candidates=3),
    "paper": DecodeSettings(iterations=3, rules="paper"),
    "longer": DecodeSettings(iterations=3, extra_length=2, length_candidates=2),
}


def wild_model(kind: Kind, seed: int, network: NetworkSettings = SMALL) -> CMLM | LAT:
    """A random model with something to say everywhere; its length predictor knows short lengths only."""
    settings = dataclasses.replace(network, kind=kind)
    model = build_model(settings, 40, 40, True, torch.Generator().manual_seed(seed)).eval()
    assert isinstance(model, CMLM | LAT)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "table" in name or "positions" in name:
                parameter.mul_(12)
        model.length.table.weight[30:] = 0.0
    return model


def sentences(count: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 20, (count,), generator=generator).tolist()
    return pad([[*torch.randint(6, 40, (length,), generator=generator).tolist(), EOS] for length in lengths])


def random_at(seed: int, network: NetworkSettings = SMALL) -> AT:
    network = dataclasses.replace(network, kind="AT")
    model = build_model(network, 40, 40, True, torch.Generator().manual_seed(seed)).eval()
    assert isinstance(model, AT)
    with torch.no_grad():  # at its initial scale every prediction is nearly a tie
        for name, parameter in model.named_parameters():
            if "table" in name or "positions" in name:
                parameter.mul_(20)
    return model


def verifying(student_seed: int, verifier_seed: int, ends: float = 0.0, **network: int) -> VerifyingDecoder:
    """Random models; the larger `ends`, the sooner AT ends a sentence."""
    small = dataclasses.replace(SMALL, **network)  # type: ignore[arg-type]
    student, verifier = wild_model("LAT", student_seed, small), random_at(verifier_seed, small)
    assert isinstance(student, LAT)
    with torch.no_grad():
        verifier.body.tables[0].weight[EOS] += ends  # type: ignore[union-attr, operator]
    return VerifyingDecoder(student, verifier)
