"""Twin of `PlainDecoder` and `VerifyingDecoder` (decoding) for a GPU: fixed shapes, all on the device, CUDA graphs.

AT runs in beam.py, CMLM and LAT in passes.py, LAT with a verifier in verified.py. A trace is made by a plain decoder: a
recording cannot report.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from dataclasses import replace

from torch import Tensor

from lath.config import DecodeSettings
from lath.decoding.decoder import PlainDecoder
from lath.decoding.results import Decoded
from lath.decoding.verify import VerifyingDecoder
from lath.engine.beam import BeamSearch, batch_size
from lath.engine.passes import Passes
from lath.engine.verified import Verification
from lath.model.network import AT, LAT, Model

MOST_SETTINGS = 4
"""Settings that are kept ready at a time: each has recordings of its own."""


class RecordedDecoder:
    """Decoding in fixed shapes; what was recorded for some settings serves all later batches.

    Threads may share it: who copies into the tensors of a recording holds its lock until the result has left them.
    """

    engine = "recorded"

    def __init__(self, model: Model, verifier: AT | None = None) -> None:
        """`verifier`, if any, is for a LAT: on one device, with the same vocabularies."""
        self.model, self.verifier = model, verifier
        self._searches: dict[DecodeSettings, BeamSearch | Passes | Verification] = {}
        self._choosing = threading.Lock()

    @property
    def has_verifier(self) -> bool:
        """Whether `decode.verify` can be switched on."""
        return self.verifier is not None

    def decode(self, source: Tensor, settings: DecodeSettings, trace: bool = False) -> list[Decoded]:
        """Translate B x S source tokens (each sentence ends in EOS)."""
        if trace and self.verifier is not None and isinstance(self.model, LAT):
            return VerifyingDecoder(self.model, self.verifier).decode(source, settings, trace)
        if trace:
            return PlainDecoder(self.model).decode(source, settings, trace)
        return self._search(settings).decode(source)

    def decode_many(self, sources: Iterable[Tensor], settings: DecodeSettings) -> Iterator[list[Decoded]]:
        """Translate batch after batch, with the device at work on the next while one is given back."""
        return self._search(settings).decode_many(sources)

    def warm_up(self, settings: DecodeSettings, tokens: int, batch: int) -> None:
        """Record what batches of this size, of sentences of up to so many tokens, will need."""
        search = self._search(settings)
        for width in sorted({search.width(length) for length in range(1, tokens + 2)}):
            search.prepare(batch_size(batch), width)

    def _search(self, settings: DecodeSettings) -> BeamSearch | Passes | Verification:
        """What decodes with these settings, made at their first use; the batch size makes no difference."""
        if settings.batch_sentences != 1:
            settings = replace(settings, batch_sentences=1)
        with self._choosing:
            if settings not in self._searches:
                if len(self._searches) >= MOST_SETTINGS:
                    del self._searches[next(iter(self._searches))]
                if settings.verify and self.verifier is not None and isinstance(self.model, LAT):
                    self._searches[settings] = Verification(self.model, self.verifier, settings)
                elif isinstance(self.model, AT):
                    self._searches[settings] = BeamSearch(self.model, settings.beam, settings.length_penalty)
                else:
                    self._searches[settings] = Passes(self.model, settings)
            return self._searches[settings]
