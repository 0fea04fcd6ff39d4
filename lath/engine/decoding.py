"""How a batch is decoded: plainly (decode.py), or in fixed shapes, recorded on a GPU.

Both give the same translations; `decode.py` is the oracle. Only the plain way can tell how a translation came about.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lath.config import DecodeSettings
from lath.decode import Decoded, decode
from lath.engine.beam import BeamSearch
from lath.errors import UserError
from lath.model import AT, Model

ENGINES = ("auto", "plain", "recorded")


class PlainDecoder:
    """Decoding as decode.py writes it down."""

    def __init__(self, model: Model) -> None:
        self.model = model

    def decode(self, source: Tensor, settings: DecodeSettings, trace: bool = False) -> list[Decoded]:
        """Translate B x S source tokens (each sentence ends in EOS)."""
        return decode(self.model, source, settings, trace)


class RecordedDecoder:
    """Decoding in fixed shapes; what was recorded for some settings serves all later batches."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self._searches: dict[tuple[int, float], BeamSearch] = {}

    def decode(self, source: Tensor, settings: DecodeSettings, trace: bool = False) -> list[Decoded]:
        """Translate B x S source tokens (each sentence ends in EOS)."""
        if trace or not isinstance(self.model, AT):
            return decode(self.model, source, settings, trace)
        asked = settings.beam, settings.length_penalty
        if asked not in self._searches:
            self._searches = {asked: BeamSearch(self.model, *asked)}
        return self._searches[asked].decode(source)


Decoder = PlainDecoder | RecordedDecoder


def choose_decoder(model: Model, device: torch.device, engine: str = "auto") -> Decoder:
    """The decoder by name; `auto` records on a GPU."""
    if engine not in ENGINES:
        raise UserError(f"unknown engine {engine!r}; use {', '.join(ENGINES[:-1])} or {ENGINES[-1]}")
    recorded = engine == "recorded" or (engine == "auto" and device.type == "cuda")
    return RecordedDecoder(model) if recorded else PlainDecoder(model)
