"""Models with random weights that do a fixed amount of work: every translation has about the same number of tokens."""

from __future__ import annotations

from pathlib import Path

import torch

from lath.config import DecodeSettings, NetworkSettings
from lath.model.directory import ModelInfo, save_model
from lath.model.network import AT, build_model
from lath.text.vocab import EOS, Vocab

SEED = 1


def write_random_model(directory: Path, vocab: Vocab, network: NetworkSettings, tokens: int) -> None:
    """A model directory with random weights that writes translations of `tokens` tokens each."""
    model = build_model(network, vocab.size, vocab.size, True, torch.Generator().manual_seed(SEED))
    assert isinstance(model, AT)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("output.weight", "narrow.weight")):
                parameter.mul_(0.05)  # layers hardly change what runs through them: token and position
        model.body.target_positions.weight[tokens:] = 10 * model.body.output_table.weight[EOS]
    info = ModelInfo(network, DecodeSettings(), "xx", "yy", vocab.size, vocab.size, True, network.max_positions - 3, 0)
    save_model(directory, model.state_dict(), info, (vocab, vocab))
