"""Text in, text out: in order, batched, on a device.

mt = lath.load("de-en")                    # a shipped model, or the directory of one
mt.translate(["Guten Morgen.", ""])        # same length, same order, blank stays blank
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from lath.config import DecodeSettings, check_decode, settings_from_tree, to_tree
from lath.decoding.decoder import Decoded, Pass
from lath.devices import choose_device, choose_precision
from lath.engine.ctranslate2 import Exported, LoadedExport, load_exported
from lath.engine.decoding import (
    BatchedDecoder,
    PlainDecoder,
    RecordedDecoder,
    Works,
    choose_decoder,
    with_precision,
    works,
)
from lath.engine.shortlist import Shortlist, has_shortlist, load_shortlist
from lath.errors import UserError
from lath.model.bundled import find_model
from lath.model.directory import LoadedModel, ModelInfo, is_exported, load_model
from lath.model.network import Model
from lath.model.padding import pad
from lath.text.segment import split_long
from lath.text.vocab import EOS, Vocab

SUITABLE_ROWS = {"cpu": 32, "cuda": 512}
"""Sentences, times the lengths tried for each, decoded side by side where the settings ask for no number. On a CPU
larger arrays leave the cache, and come as fresh pages each time."""
READ_AHEAD = 32
"""Batches' worth of lines read at once, so that sentences of like length can share a batch."""


@dataclass(frozen=True)
class Hypothesis:
    """The translation of one line."""

    text: str
    score: float
    """Mean log-probability of its tokens (AT: by the length penalty); 0 for a blank line."""
    iterations: int
    """Passes of the decoder it took (AT: tokens written)."""
    parts: int = 1
    """Pieces a line over the model's maximum was translated in; 0 for a blank line."""
    passes: list[list[Pass]] = field(default_factory=list)
    """With trace: each part's passes."""


def load(model: str | Path, device: str = "auto", precision: str = "auto", engine: str = "auto") -> Translator:
    """Load a shipped model by name, or a model directory, for translation; by default as fast as the device can.

    A directory of `lath export` runs on the CPU, in the precision it was exported with and by its own engine.
    """
    directory = find_model(model)
    chosen = choose_device(preferred_device(directory, device))
    if not is_exported(directory):
        loaded = load_model(directory, chosen)
        precision = choose_precision(precision, loaded.info.network, chosen, engine)
        shortlist = load_shortlist(directory) if has_shortlist(directory) else None
        loaded = replace(loaded, model=with_precision(loaded.model, precision))
        return Translator(loaded, chosen, engine, precision, shortlist)
    if chosen.type != "cpu":
        raise UserError(f"{directory}: an exported model runs on the CPU; use --device cpu, or the model it came from")
    if precision != "auto":
        raise UserError(
            f"{directory}: an exported model has the precision it was exported with; leave out --precision {precision} "
            f"or export the model again with another --quantization"
        )
    if engine != "auto":
        raise UserError(
            f"{directory}: an exported model is run by CTranslate2; leave out --engine {engine}, "
            f"or use the model it came from"
        )
    exported = load_exported(directory, torch.get_num_threads())
    return Translator(exported, chosen, precision=exported.model.precision)


def preferred_device(model: Path, name: str) -> str:
    """The device a name stands for with this model: `auto` is the CPU for an exported one."""
    return "cpu" if name == "auto" and is_exported(model) else name


def with_overrides(settings: DecodeSettings, overrides: dict[str, Any]) -> DecodeSettings:
    """Decoding settings with some changed by name, checked like a recipe's."""
    given = {key: value for key, value in overrides.items() if value is not None}
    changed = settings_from_tree(DecodeSettings, {**to_tree(settings), **given}, "decode")
    check_decode(changed, "decode")
    return changed


class Translator:
    """A loaded model that translates text."""

    def __init__(
        self,
        loaded: LoadedModel | LoadedExport,
        device: torch.device,
        engine: str = "auto",
        precision: str = "fp32",
        shortlist: Shortlist | None = None,
    ) -> None:
        """`precision` is what the loaded model is in already."""
        self._loaded, self._shortlist, self.precision = loaded, shortlist, precision
        self.model: Model | Exported = loaded.model
        self.info: ModelInfo = loaded.info
        self.source_vocab: Vocab = loaded.source_vocab
        self.target_vocab: Vocab = loaded.target_vocab
        self.device = device
        self.decoder = None
        if not isinstance(self.model, Exported):
            self.decoder = choose_decoder(self.model, device, engine, shortlist)
        self._last_asked: tuple[str, DecodeSettings | None] = "", None

    @property
    def engine(self) -> str:
        """What decodes: plain, batched, recorded, or ctranslate2 for an exported model."""
        if self.decoder is None:
            return "ctranslate2"
        return {PlainDecoder: "plain", BatchedDecoder: "batched", RecordedDecoder: "recorded"}[type(self.decoder)]

    @property
    def has_shortlist(self) -> bool:
        """Whether `decode.shortlist` can be asked for."""
        if isinstance(self.model, Exported):
            return self.model.has_shortlist
        return self._shortlist is not None and self.device.type == "cpu"

    def with_engine(self, engine: str = "auto") -> Translator:
        """The same weights with a decoder of its own, which shares nothing it has recorded."""
        return Translator(self._loaded, self.device, engine, self.precision, self._shortlist)

    def translate(self, lines: Iterable[str], **settings: Any) -> list[str]:
        """Translations, one for each line; settings are those of `DecodeSettings`, for example iterations=4."""
        return [hypothesis.text for hypothesis in self.hypotheses(lines, **settings)]

    def hypotheses(self, lines: Iterable[str], trace: bool = False, **settings: Any) -> Iterator[Hypothesis]:
        """Hypotheses in the order of the lines, which may come from a file or any other stream."""
        if isinstance(lines, str):
            raise UserError("translate takes a list of lines, not one text; write translate([text])")
        return self._stream(iter(lines), self.settings(**settings), trace)

    def works(self, sentences: list[list[int]], **settings: Any) -> Works | None:
        """The decode of one batch of tokens and its parts, to be timed; None for what nobody can look into."""
        if self.decoder is None:
            return None
        source = pad([[*sentence, EOS] for sentence in sentences])
        return works(self.decoder, source, self.settings(**settings))

    def settings(self, **overrides: Any) -> DecodeSettings:
        """The model's decoding settings with some changed by name, complete for the device.

        The last ones asked for are kept: to check settings takes a fifth of a millisecond, to translate not much more.
        """
        asked, (last_asked, chosen) = repr(overrides), self._last_asked  # repr tells 1 from True, as checking does
        if chosen is None or asked != last_asked:
            chosen = with_overrides(self.info.decode, overrides)
            if chosen.batch_sentences == 0:
                suitable = max(1, SUITABLE_ROWS[self.device.type] // chosen.length_candidates)
                chosen = replace(chosen, batch_sentences=suitable)
            self._last_asked = asked, chosen
        return chosen

    def warm_up(self, tokens: int, batch: int = 1, **settings: Any) -> None:
        """Make ready for sentences of up to so many tokens: on a GPU, what is recorded now no sentence waits for."""
        if isinstance(self.decoder, RecordedDecoder):
            self.decoder.warm_up(self.settings(**settings), tokens, batch)

    def _stream(self, stream: Iterator[str], chosen: DecodeSettings, trace: bool) -> Iterator[Hypothesis]:
        while chunk := list(itertools.islice(stream, READ_AHEAD * chosen.batch_sentences)):
            yield from self._translate_chunk(chunk, chosen, trace)

    def _translate_chunk(self, lines: list[str], settings: DecodeSettings, trace: bool) -> list[Hypothesis]:
        sentences: list[list[int]] = []
        owners: list[range] = []
        stripped = [line.strip() for line in lines]
        # One line alone is encoded faster by itself than by a pool of threads.
        encoded = (
            self.source_vocab.encode_lines(stripped) if len(lines) > 1 else map(self.source_vocab.encode, stripped)
        )
        for line, ids in zip(stripped, encoded, strict=True):
            parts = self._parts(line, ids)
            owners.append(range(len(sentences), len(sentences) + len(parts)))
            sentences += parts
        decoded = self._decode_all(sentences, settings, trace)
        return [self._join([decoded[number] for number in owner]) for owner in owners]

    def _parts(self, line: str, ids: list[int]) -> list[list[int]]:
        """A line's tokens, in several parts if they are more than what the model was trained on."""
        if len(ids) <= self.info.max_length:
            return [ids] if ids else []
        parts = split_long(line, lambda text: len(self.source_vocab.encode(text)) <= self.info.max_length)
        # A part of nothing but invisible characters has no tokens, and nothing to say.
        return [ids for part in parts if (ids := self.source_vocab.encode(part))]

    def _decode_all(self, sentences: list[list[int]], settings: DecodeSettings, trace: bool) -> list[_Written]:
        """Decode in batches of like length, and put the results back in order."""
        by_length = sorted(range(len(sentences)), key=lambda number: len(sentences[number]))
        size = settings.batch_sentences
        batches = [by_length[start : start + size] for start in range(0, len(by_length), size)]
        tokens = ([sentences[number] for number in numbers] for numbers in batches)
        results: dict[int, _Written] = {}
        for numbers, batch in zip(batches, self._decode_batches(tokens, settings, trace), strict=True):
            for number, decoded in zip(numbers, batch, strict=True):
                results[number] = _Written(decoded, self.target_vocab.decode(decoded.ids))
        return [results[number] for number in range(len(sentences))]

    def _decode_batches(
        self, batches: Iterator[list[list[int]]], settings: DecodeSettings, trace: bool
    ) -> Iterator[list[Decoded]]:
        model, decoder = self.model, self.decoder
        if isinstance(model, Exported):
            return (model.decode(sentences, settings) for sentences in batches)
        assert decoder is not None
        sources = (pad([[*sentence, EOS] for sentence in sentences]) for sentences in batches)
        if isinstance(decoder, RecordedDecoder) and not trace:
            return decoder.decode_many(sources, settings)
        return (decoder.decode(source, settings, trace) for source in sources)

    def _join(self, parts: list[_Written]) -> Hypothesis:
        if not parts:
            return Hypothesis("", 0.0, 0, 0)
        decoded = [part.decoded for part in parts]
        return Hypothesis(
            text=_one_line(" ".join(part.text for part in parts if part.text)),
            score=sum(part.score for part in decoded) / len(parts),
            iterations=max(part.iterations for part in decoded),
            parts=len(parts),
            passes=[part.passes for part in decoded if part.passes],
        )


class _Written(NamedTuple):
    """A decoded sentence and its text."""

    decoded: Decoded
    text: str


def _one_line(text: str) -> str:
    """Byte tokens can spell any character; a line break or NUL in a translation would break the file it goes to."""
    return text.translate({ord("\n"): " ", ord("\r"): " ", 0: " "}).strip()
