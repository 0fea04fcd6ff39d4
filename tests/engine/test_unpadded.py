"""Attention without padding: what shares a batch changes no number, and so no rounding."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from wild import sentences, wild_model

import lath
from lath.engine.int8 import quantise
from lath.engine.unpadded import unpadded_mask
from lath.model.network import LAT, sentence_mask
from lath.translator import Translator

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("first", [0, 1])
def test_it_attends_as_the_padded_mask(first: int) -> None:
    generator = torch.Generator().manual_seed(1)
    query, keys, values = (torch.randn(5, size, 2, 8, generator=generator) for size in (7, 9, 9))
    there = torch.arange(7) < torch.tensor([7, 3, 3, 1, 7])[:, None]
    places = torch.arange(9)
    seen = (places >= first) & (places < torch.tensor([9, 4, 4, 2, 9])[:, None])
    found = unpadded_mask(there, seen, query).attend(query, keys, values)
    expected = sentence_mask(there, seen, query).attend(query, keys, values)
    assert torch.allclose(found[there], expected[there], atol=1e-6)
    assert not found[~there].any()


def test_a_batch_of_one_length_is_not_copied() -> None:
    there = torch.ones(3, 4, dtype=torch.bool)
    (group,) = unpadded_mask(there, there, torch.zeros(1)).groups
    assert group.rows == slice(None)


def test_states_are_the_same_to_the_last_bit_alone_and_in_a_batch() -> None:
    model = quantise(wild_model("LAT", 3))
    assert isinstance(model, LAT)
    source = sentences(9, 2)
    with torch.inference_mode():
        together = model.encode(source)[0].layers[0].keys
        for row, sentence in enumerate(source):
            own = sentence[sentence != 1][None]
            assert torch.equal(model.encode(own)[0].layers[0].keys[0], together[row, : own.shape[1] + 1])


@pytest.fixture(scope="module")
def bundled() -> Translator:
    return lath.load("de-en", "cpu", precision="int8")


def test_int8_does_not_depend_on_the_batch(bundled: Translator) -> None:
    """Long lines, whose near-ties rounding would decide."""
    short = (ROOT / "demo/tatoeba.test.de").read_text(encoding="utf-8").splitlines()
    lines = [" ".join(short[start : start + 5]) for start in range(0, 120, 5)]
    expected = bundled.translate(lines, batch_sentences=1)
    order = random.Random(1).sample(range(len(lines)), len(lines))
    shuffled = dict(zip(order, bundled.translate([lines[n] for n in order], batch_sentences=7), strict=True))
    assert bundled.translate(lines, batch_sentences=24) == expected
    assert [shuffled[number] for number in range(len(lines))] == expected
