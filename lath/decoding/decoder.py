"""A batch of source tokens to translations: what a decoder is, and the plain one for every kind of model."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from lath.config import DecodeSettings
from lath.decoding.beam import beam_search
from lath.decoding.masks import mask_predict
from lath.decoding.merge import merge_pieces
from lath.decoding.pieces import MergeRule, decode_pieces
from lath.decoding.results import Decoded
from lath.model.network import AT, CMLM, Model


class Decoder(Protocol):
    """Anything a `Translator` can decode with."""

    def decode(self, source: Tensor, settings: DecodeSettings, trace: bool = False) -> list[Decoded]:
        """Translate B x S source tokens (on the CPU; each sentence ends in EOS), in order.

        With `trace` each result carries its passes, as far as the decoder can report them.
        """


@torch.inference_mode()
def decode(
    model: Model, source: Tensor, settings: DecodeSettings, trace: bool = False, merge: MergeRule = merge_pieces
) -> list[Decoded]:
    """Translate B x S source tokens on the model's device; `merge` is how LAT merges pieces."""
    if isinstance(model, AT):
        return beam_search(model, source, settings.beam, settings.length_penalty)
    if isinstance(model, CMLM):
        return mask_predict(model, source, settings, trace)
    return decode_pieces(model, source, settings, trace, merge)


class PlainDecoder:
    """The readable decoding of every kind: the oracle of all faster ones."""

    engine = "plain"

    def __init__(self, model: Model, merge: MergeRule = merge_pieces) -> None:
        """`merge` is how LAT merges pieces, for experiments with rules of your own."""
        self.model, self.merge = model, merge

    def decode(self, source: Tensor, settings: DecodeSettings, trace: bool = False) -> list[Decoded]:
        """On the model's device."""
        source = source.to(self.model.body.target_positions.weight.device)
        return decode(self.model, source, settings, trace, self.merge)
