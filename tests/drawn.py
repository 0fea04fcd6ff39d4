"""Small batches to draw training examples from."""

from __future__ import annotations

import torch

from lath.config import NetworkSettings
from lath.model.padding import pad
from lath.text.vocab import BOS, EOS
from lath.training.batches import Batch

SMALL = NetworkSettings(
    width=16, heads=2, feedforward=32, encoder_layers=1, decoder_layers=1, max_positions=48, dropout=0.0
)


def generator(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def sentence(words: int) -> list[int]:
    return [BOS, *range(10, 10 + words), EOS]


def batch_of(*words: int) -> Batch:
    return Batch(pad([[20 + n, EOS] for n in range(len(words))]), pad([sentence(n) for n in words]))
