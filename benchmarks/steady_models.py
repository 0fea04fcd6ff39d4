"""AT and LAT models with random weights that do a fixed amount of work: every translation is the same.

    python benchmarks/steady_models.py VOCAB OUT [--shapes at-12-1 lat-10-2 ...] [--tokens 25] [--data DATA]

writes one model directory for each shape into OUT, and for AT also its export to CTranslate2 in int8. VOCAB is a model
or data directory whose vocabulary is used. With --data, a directory of `lath prepare` with that vocabulary, the models
get a shortlist (`lath shortlist`), and what they write is among the tokens that every shortlist has. `lath bench` then
times them, text to text.

How a model with random weights knows what to write: its layers hardly change what runs through them, and the vectors of
the target positions are large. Position p is a vector v rotated by p places, and the matrices of LAT's local
translator rotate once more at each step, so that a piece goes on where the next position begins. Each token that is
written has a little of the vector of its position in its row of the output matrix, and less of those of its neighbours:
in a trained model, too, what one position would write in second place another writes in first place.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from lath.config import DecodeSettings, NetworkSettings
from lath.engine.export import export
from lath.engine.shortlist import build_shortlist, save_shortlist
from lath.model.directory import ModelInfo, save_model
from lath.model.network import AT, LAT, build_model
from lath.text.corpus import Corpus
from lath.text.vocab import BOS, EOS, SPECIALS, Vocab, load_vocabs

SEED = 1
FREQUENT = 1000
"""The most frequent tokens, which every shortlist has (the default of `lath shortlist`)."""
AFTER_END = 4
"""Positions behind the end that still say that it has come: those that the last pieces of a LAT reach."""
SHARE = {"AT": 0.03, "LAT": 0.012}
"""How much of its position's vector is in a token's row: it wins, and the others keep some probability."""
NEIGHBOURS = 3
"""Positions on each side with a share in a token's row: as many likely tokens a sentence as the bundled model has."""
NEAR = 0.6
"""Their share of its share."""


@torch.no_grad()
def write_steady_model(
    directory: Path, vocab: Vocab, network: NetworkSettings, tokens: int, words: Sequence[int] = ()
) -> None:
    """A model directory with random weights that writes translations of `tokens` tokens each, the first of `words`."""
    model = build_model(network, vocab.size, vocab.size, True, torch.Generator().manual_seed(SEED))
    for name, parameter in model.named_parameters():
        if name.endswith(("output.weight", "narrow.weight")):
            parameter.mul_(0.05)  # layers hardly change what runs through them: token and position
    places = torch.arange(network.max_positions)
    start = torch.randint(0, 2, (network.width,), generator=torch.Generator().manual_seed(SEED)) * 2.0 - 1.0
    rotated = torch.stack([start.roll(int(place)) for place in places])
    model.body.target_positions.weight.copy_(rotated)
    written = [*(words or range(1000, vocab.size)), *[EOS] * AFTER_END]
    written[tokens:] = [EOS] * AFTER_END
    if isinstance(model, LAT):
        written.insert(0, BOS)
        _rotate_pieces(model, tokens + 2)
    assert isinstance(model, AT | LAT)
    shares = torch.zeros(vocab.size, network.max_positions)
    for place, token in enumerate(written):
        shares[token, max(0, place - NEIGHBOURS) : place + NEIGHBOURS + 1].clamp_(min=NEAR)
        shares[token, place] = 1.0
    model.body.output_table.weight[: vocab.size] += SHARE[network.kind] * shares @ rotated
    decode = DecodeSettings(iterations=4, length_candidates=1)
    longest = network.max_positions - 3
    info = ModelInfo(network, decode, "de", "en", vocab.size, vocab.size, True, longest, 0)
    save_model(directory, model.state_dict(), info, (vocab, vocab))


def _rotate_pieces(model: LAT, length: int) -> None:
    """Each step of the local translator rotates the state by one place; the length is always predicted the same."""
    local, width = model.local, model.settings.width
    for parameter in local.parameters():
        parameter.zero_()
    local.initial_hidden.weight.copy_(torch.eye(width).roll(-1, 0))
    local.recurrent.weight.chunk(4)[2].copy_(2 * torch.eye(width).roll(1, 0))  # the candidate's gate
    for gate, bias in zip(local.recurrent.bias.chunk(4), (9.0, -9.0, 0.0, 9.0), strict=True):
        gate.fill_(bias)
    always: Tensor = model.body.encoder.layers[-1].feedforward_residual.norm.bias  # type: ignore[union-attr, assignment]
    always.fill_(1.0)
    model.length.table.weight[1:].zero_()
    model.length.table.weight[length].fill_(0.1)


def main() -> None:
    """Write the models."""
    parser = argparse.ArgumentParser(description="Write models with random weights.")
    parser.add_argument("vocab", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--shapes", nargs="+", default=["at-12-1", "at-6-6", "lat-12-1", "lat-10-2", "lat-6-6"])
    parser.add_argument("--tokens", type=int, default=25)
    parser.add_argument("--data", type=Path)
    options = parser.parse_args()
    vocab = load_vocabs(options.vocab)[1]
    corpus = None if options.data is None else Corpus.open(options.data, "train")
    shortlist = None if corpus is None else build_shortlist(corpus, vocab.size, vocab.size, 100, FREQUENT)
    words = [] if shortlist is None else shortlist.always.nonzero()[len(SPECIALS) :, 0].tolist()
    for shape in options.shapes:
        kind, encoder, decoder = shape.split("-")
        network = NetworkSettings(kind.upper(), encoder_layers=int(encoder), decoder_layers=int(decoder), dropout=0.0)  # type: ignore[arg-type]
        write_steady_model(options.out / shape, vocab, network, options.tokens, words)
        if shortlist is not None:
            save_shortlist(shortlist, options.out / shape)
        if kind == "at":
            export(options.out / shape, options.out / f"ct2-{shape}-int8", quantization="int8")


if __name__ == "__main__":
    main()
