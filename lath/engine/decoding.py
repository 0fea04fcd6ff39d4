"""How a batch is decoded:

    PlainDecoder     as decode.py writes it down: works everywhere, and is the oracle
    BatchedDecoder   for a CPU: the pieces of a larger batch are merged together (merge_batch.py)
    RecordedDecoder  for a GPU: fixed shapes, everything on the device, recorded as CUDA graphs (beam.py, passes.py)

All give the same translations. Only the plain way can tell how one came about.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lath.config import DecodeSettings
from lath.decoding.decoder import Decoded, MergedPass, MergeRows, decode, decode_pieces, merge_rows
from lath.decoding.merge import Sentence
from lath.devices import PRECISIONS
from lath.engine.beam import BeamSearch, batch_size
from lath.engine.int8 import quantise
from lath.engine.merge_batch import MergeStep, merge_batch
from lath.engine.merge_kernel import available as has_merge_kernel
from lath.engine.passes import Passes
from lath.engine.shortlist import Shortlist, decode_shortlisted
from lath.errors import UserError
from lath.model.network import AT, LAT, Model, Pieces

ENGINES = ("auto", "plain", "recorded")
MERGE_TOGETHER = 10
"""Rows from which merging them together is faster than one after the other (benchmarks/merge.py)."""
MOST_WAYS = 4
"""Ways of decoding that are kept ready at a time: each has recordings of its own."""


def with_precision(model: Model, precision: str) -> Model:
    """The model in a precision of that name."""
    return quantise(model) if precision == "int8" else model.to(PRECISIONS[precision])


class PlainDecoder:
    """Decoding as decode.py writes it down."""

    def __init__(
        self,
        model: Model,
        device: torch.device,
        shortlist: Shortlist | None = None,
        *,
        merge: MergeRows = merge_rows,
    ) -> None:
        self.model, self.device, self.shortlist, self.merge = model, device, shortlist, merge

    def decode(self, source: Tensor, settings: DecodeSettings, trace: bool = False) -> list[Decoded]:
        """Translate B x S source tokens (each sentence ends in EOS)."""
        if settings.shortlist:
            return decode_shortlisted(self.model, source, settings, _required(self.shortlist, self.device), trace)
        if isinstance(self.model, LAT) and self.merge is not merge_rows:
            with torch.inference_mode():
                return decode_pieces(self.model, source.to(self.device), settings, trace, self.merge)
        return decode(self.model, source.to(self.device), settings, trace)


def _required(shortlist: Shortlist | None, device: torch.device) -> Shortlist:
    if device.type != "cpu":
        raise UserError("decode.shortlist is for the CPU; use --device cpu, or set it to false")
    if shortlist is None:
        raise UserError("decode.shortlist: the model has none; make one with lath shortlist DATA MODEL")
    return shortlist


class BatchedDecoder:
    """Decoding for a CPU: plain, but that the pieces of a larger batch are merged together."""

    def __init__(self, model: Model, device: torch.device, shortlist: Shortlist | None = None) -> None:
        self.model, self.device, self.merge = model, device, merge_suitably
        self._plain = PlainDecoder(model, device, shortlist)

    @torch.inference_mode()
    def decode(self, source: Tensor, settings: DecodeSettings, trace: bool = False) -> list[Decoded]:
        """Translate B x S source tokens (each sentence ends in EOS)."""
        together = self.merges_together(source, settings) and not (trace or settings.shortlist)
        if isinstance(self.model, LAT) and together:
            return decode_pieces(self.model, source, settings, trace, merge_together)
        return self._plain.decode(source, settings, trace)

    def merges_together(self, source: Tensor, settings: DecodeSettings) -> bool:
        """Whether a batch is large enough to be merged together."""
        return len(source) * settings.length_candidates >= MERGE_TOGETHER


def merge_together(
    inputs: list[list[int]], written: Pieces, aims: list[int], settings: DecodeSettings, iteration: int, limit: int
) -> list[MergedPass]:
    """The fast twin of `decode.merge_rows`."""
    lengths = torch.tensor([len(shown) for shown in inputs])
    step = MergeStep(settings.merge_rules, iteration, settings.iterations, limit)
    merged = merge_batch(written.tokens, written.scores, lengths, torch.tensor(aims), step)
    rows = zip(*(tensor.tolist() for tensor in merged), strict=True)
    return [
        MergedPass(Sentence(ids[:length], scores[:length], []), following[:following_length], None)
        for ids, scores, length, following, following_length in rows
    ]


def merge_suitably(
    inputs: list[list[int]], written: Pieces, aims: list[int], settings: DecodeSettings, iteration: int, limit: int
) -> list[MergedPass]:
    """Merge a large batch with `merge_together` and a small one with `merge_rows`."""
    merge = merge_together if len(inputs) >= MERGE_TOGETHER else merge_rows
    return merge(inputs, written, aims, settings, iteration, limit)


class RecordedDecoder:
    """Decoding in fixed shapes; what was recorded for some settings serves all later batches."""

    def __init__(self, model: Model, device: torch.device) -> None:
        self.model, self.device = model, device
        self._searches: dict[DecodeSettings, BeamSearch | Passes] = {}

    def decode(self, source: Tensor, settings: DecodeSettings, trace: bool = False) -> list[Decoded]:
        """Translate B x S source tokens (each sentence ends in EOS)."""
        if trace:
            return decode(self.model, source.to(self.device), settings, trace)
        return self._search(settings).decode(source)

    def decode_many(self, sources: Iterable[Tensor], settings: DecodeSettings) -> Iterator[list[Decoded]]:
        """Translate batch after batch, with the device at work on the next while one is given back."""
        return self._search(settings).decode_many(sources)

    def warm_up(self, settings: DecodeSettings, tokens: int, batch: int) -> None:
        """Record what batches of this size, of sentences of up to so many tokens, will need."""
        search = self._search(settings)
        for width in sorted({search.width(length) for length in range(1, tokens + 2)}):
            search.prepare(batch_size(batch), width)

    def works(self, source: Tensor, settings: DecodeSettings) -> Works:
        """A whole decode, its encoding and its merging, to be timed."""
        search = self._search(settings)
        return Works(lambda: search.decode(source), *search.parts(source))

    def _search(self, settings: DecodeSettings) -> BeamSearch | Passes:
        """What decodes by these settings, made at their first use; the size of a batch makes no difference."""
        if settings.shortlist:
            raise UserError("decode.shortlist is for the CPU and not for recorded work; set it to false")
        settings = replace(settings, batch_sentences=1)
        if settings not in self._searches:
            if len(self._searches) >= MOST_WAYS:
                del self._searches[next(iter(self._searches))]
            if isinstance(self.model, AT):
                self._searches[settings] = BeamSearch(self.model, settings.beam, settings.length_penalty)
            else:
                self._searches[settings] = Passes(self.model, settings)
        return self._searches[settings]


Decoder = PlainDecoder | BatchedDecoder | RecordedDecoder
Work = Callable[[], object]


class Works(NamedTuple):
    """A whole decode, and its encoding and merging done again by themselves on what the decode saw: to be timed."""

    whole: Work
    encode: Work
    merge: Work


def works(decoder: Decoder, source: Tensor, settings: DecodeSettings) -> Works:
    """The decode of a batch and its parts."""
    if isinstance(decoder, RecordedDecoder):
        made = decoder.works(source, settings)
    else:
        made = _plain_works(decoder, source, settings)
    return Works(*(torch.inference_mode()(work) for work in made))


def _plain_works(decoder: PlainDecoder | BatchedDecoder, source: Tensor, settings: DecodeSettings) -> Works:
    model, seen, source = decoder.model, list[tuple[Any, ...]](), source.to(decoder.device)
    merge = merge_rows
    if isinstance(model, LAT):
        if isinstance(decoder, BatchedDecoder) and decoder.merges_together(source, settings):
            merge = merge_together

        def watch(*arguments: Any) -> list[MergedPass]:
            seen.append((list(arguments[0]), *arguments[1:]))  # the list of inputs changes from pass to pass
            return merge(*arguments)

        with torch.inference_mode():
            decode_pieces(model, source, settings, False, watch)
    return Works(
        lambda: decoder.decode(source, settings),
        lambda: model.encode(source),
        lambda: [merge(*arguments) for arguments in seen],
    )


def choose_decoder(
    model: Model, device: torch.device, engine: str = "auto", shortlist: Shortlist | None = None
) -> Decoder:
    """The decoder by name; `auto` records on a GPU, and merges larger batches together on the CPU."""
    if engine not in ENGINES:
        raise UserError(f"unknown engine {engine!r}; use {', '.join(ENGINES[:-1])} or {ENGINES[-1]}")
    lacks_kernel = device.type == "cuda" and isinstance(model, LAT) and not has_merge_kernel()
    if lacks_kernel and engine == "recorded":
        raise UserError("engine recorded: merging on the GPU needs Triton; pip install triton, or use --engine plain")
    if lacks_kernel and engine == "auto":
        warnings.warn("Triton is missing, so pieces are merged on the CPU, which is slower", stacklevel=2)
        engine = "plain"
    if engine == "recorded" or (engine == "auto" and device.type == "cuda"):
        return RecordedDecoder(model, device)
    return (PlainDecoder if engine == "plain" else BatchedDecoder)(model, device, shortlist)
