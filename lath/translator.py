"""Text in, text out: in order, batched, on a device.

mt = lath.load("de-en")                          # a bundled model, or a model directory
mt.translate("Guten Morgen. Wie geht es dir?")   # a text: paragraphs, lists and line breaks survive
mt.translate(["Guten Morgen.", ""])              # lines: same length, same order; a blank line stays blank
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, Unpack, overload

import torch
from torch import Tensor

from lath.config import FORMATS, DecodeOptions, DecodeSettings, with_options
from lath.decoding.decoder import Decoder, PlainDecoder
from lath.decoding.results import Decoded, Hypothesis
from lath.decoding.verify import VerifyingDecoder
from lath.devices import (
    BATCHES_BEFORE_RELEASE,
    HAS_TRITON,
    PRECISIONS,
    choose_device,
    choose_engine,
    choose_precision,
    cpu_threads,
    cut_batches,
    decode_threads,
    release_memory,
    suitable_batch,
)
from lath.document.html import translate_html
from lath.document.inline import one_sentence
from lath.document.layout import Span
from lath.document.segment import split_long
from lath.document.sentences import lay_out, put_together, translate_sentences, without_invented
from lath.engine.ctranslate2 import LoadedExport, load_exported
from lath.engine.int8 import Int8Table, load_int8
from lath.engine.likely import LikelyDecoder
from lath.engine.shortlist import Shortlist, ShortlistDecoder, has_shortlist, load_shortlist
from lath.errors import UserError, one_of, shown
from lath.files import one_line
from lath.model.bundled import find_model
from lath.model.directory import LoadedModel, ModelInfo, is_exported, load_model, read_info
from lath.model.network import AT, LAT, Model
from lath.model.padding import pad
from lath.model.pair import check_pair, find_verifier
from lath.text.vocab import EOS, Vocab

READ_AHEAD = 32
"""Batches' worth of lines read at once, so that sentences of similar length can share a batch."""

MAX_TOKEN_LENGTH = 64
"""Characters a token may stand for on average; a line with more of them for its maximum length is cut unseen."""


def load(
    model: str | Path,
    device: str = "auto",
    precision: str = "auto",
    engine: str = "auto",
    threads: int | None = None,
    verifier: str | Path | None = None,
) -> Translator:
    """Load a bundled model by name, or a model directory; by default as fast as the device can translate.

    `engine` is plain (model/network.py and nothing else), recorded (CUDA graphs), or auto. `threads` of the CPU are by
    default as many as are idle when a translation begins. A directory of `lath export` runs on the CPU, in the
    precision it was exported with, by CTranslate2.

    `verifier` is an AT model with the same vocabulary, which checks what the model, a LAT, writes, as `decode.verify`
    says: relaxed, unless the model's settings or the options of a call name another mode. A pair (`lath pair`) has its
    own.

    Threads may share the translator, from its first use on; each gets its own translations. On a GPU they take turns
    and must use one CUDA stream, as they do by default. A stream of `hypotheses` belongs to the thread that reads it.

    A forked process may go on with it on a CPU, on one thread, if no other thread was translating at the fork; on a GPU
    or otherwise, start processes with `spawn`, and load in each.
    """
    directory = find_model(model)
    checking = find_verifier(directory) if verifier is None else find_model(verifier)
    if checking is not None:
        check_pair(directory, checking)
    if is_exported(directory):
        return _load_exported(directory, device, precision, engine, threads)
    chosen = choose_device(device)
    precision = choose_precision(precision, read_info(directory).network, chosen, engine)
    loaded = _load_weights(directory, chosen, precision)
    if checking is not None:
        return _verified(loaded, _load_weights(checking, chosen, precision), precision, engine, threads)
    shortlist = load_shortlist(directory) if has_shortlist(directory) and chosen.type == "cpu" else None
    return Translator(loaded, choose_decoder(loaded.model, engine, shortlist), precision, threads)


def _load_weights(directory: Path, device: torch.device, precision: str) -> LoadedModel:
    with cpu_threads(1):  # a tenth of a second slower, but leaves the only team of threads to what decodes
        loaded = load_int8(directory) if precision == "int8" else load_model(directory, device)
        loaded.model.to(PRECISIONS[precision])
    return loaded


def _verified(
    student: LoadedModel, verifier: LoadedModel, precision: str, engine: str, threads: int | None
) -> Translator:
    assert isinstance(verifier.model, AT), verifier.info.network.kind
    decode = student.info.decode
    info = replace(student.info, decode=replace(decode, verify=decode.verify or "relaxed"))
    decoder = choose_decoder(student.model, engine, verifier=verifier.model)
    return Translator(replace(student, info=info), decoder, precision, threads, verifier.model)


def _load_exported(directory: Path, device: str, precision: str, engine: str, threads: int | None) -> Translator:
    if choose_device(preferred_device(directory, device)).type != "cpu":
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
    exported = load_exported(directory, threads or torch.get_num_threads())
    return Translator(exported, exported.decoder, exported.decoder.precision)


def preferred_device(model: Path, name: str) -> str:
    """The device a name stands for with this model: `auto` is the CPU for an exported one."""
    return "cpu" if name == "auto" and is_exported(model) else name


def choose_decoder(
    model: Model, engine: str = "auto", shortlist: Shortlist | None = None, verifier: AT | None = None
) -> Decoder:
    """What decodes with a loaded model, or a pair: kernels and CUDA graphs on a GPU; on a CPU the plain decoders, or
    the likely tokens of a sentence alone for a LAT in int8."""
    device = model.body.target_positions.weight.device
    if choose_engine(engine, model.settings.kind, device) == "recorded":
        # Triton and all kernels take a while to import; a CPU needs none of them.
        from lath.engine.fused import fuse
        from lath.engine.recorded import RecordedDecoder

        if device.type == "cuda" and HAS_TRITON:
            model, verifier = fuse(model), None if verifier is None else fuse(verifier)
        return RecordedDecoder(model, verifier)
    if verifier is not None and isinstance(model, LAT):
        return VerifyingDecoder(model, verifier)
    if engine == "auto" and isinstance(model, LAT) and isinstance(model.body.output_table, Int8Table):
        return LikelyDecoder(model, shortlist)
    return PlainDecoder(model) if shortlist is None else ShortlistDecoder(model, shortlist)


class Translator:
    """A loaded model that translates text."""

    def __init__(
        self,
        loaded: LoadedModel | LoadedExport,
        decoder: Decoder,
        precision: str = "fp32",
        threads: int | None = None,
        verifier: AT | None = None,
    ) -> None:
        """`decoder` may be any object with the protocol `Decoder`; `precision` is what the model is in already."""
        self._loaded, self.decoder, self.precision, self.threads = loaded, decoder, precision, threads
        self.verifier = verifier
        """The network that checks, if the model is one of a pair."""
        self.model: Model | None = loaded.model if isinstance(loaded, LoadedModel) else None
        """None for an exported model."""
        self.info: ModelInfo = loaded.info
        self.source_vocab: Vocab = loaded.source_vocab
        self.target_vocab: Vocab = loaded.target_vocab
        weight = None if self.model is None else self.model.body.target_positions.weight
        self.device = torch.device("cpu") if weight is None else weight.device
        self._longest = MAX_TOKEN_LENGTH * self.info.max_length
        """Characters that are encoded at once."""

    @property
    def engine(self) -> str:
        """The name of what decodes: plain, likely, recorded, ctranslate2, or the class of a decoder of your own."""
        return str(getattr(self.decoder, "engine", type(self.decoder).__name__))

    @property
    def has_shortlist(self) -> bool:
        """Whether `decode.shortlist` can be switched on."""
        return bool(getattr(self.decoder, "has_shortlist", False))

    def with_decoder(self, decoder: Decoder) -> Translator:
        """The same model and vocabularies with another decoder."""
        return Translator(self._loaded, decoder, self.precision, self.threads, self.verifier)

    def alone(self, engine: str = "auto") -> Translator:
        """The same model without its verifier."""
        assert isinstance(self._loaded, LoadedModel)
        info = replace(self.info, decode=replace(self.info.decode, verify=""))
        decoder = choose_decoder(self._loaded.model, engine)
        return Translator(replace(self._loaded, info=info), decoder, self.precision, self.threads)

    def with_engine(self, engine: str = "auto") -> Translator:
        """The same weights with a new decoder, which shares no recordings with this one."""
        shortlist = self.decoder.shortlist if isinstance(self.decoder, ShortlistDecoder | LikelyDecoder) else None
        if self.model is None:
            return self
        return self.with_decoder(choose_decoder(self.model, engine, shortlist, self.verifier))

    def with_threads(self, threads: int | None) -> Translator:
        """The same model and decoder on so many threads of the CPU; None takes those that are idle."""
        return Translator(self._loaded, self.decoder, self.precision, threads, self.verifier)

    @overload
    def translate(  # type: ignore[overload-overlap]
        self, text: str, *, split: bool = True, format: str = FORMATS[0], **options: Unpack[DecodeOptions]
    ) -> str: ...

    @overload
    def translate(
        self, text: Iterable[str], *, split: bool = True, format: str = FORMATS[0], **options: Unpack[DecodeOptions]
    ) -> list[str]: ...

    def translate(
        self,
        text: str | Iterable[str],
        *,
        split: bool = True,
        format: str = FORMATS[0],
        **options: Unpack[DecodeOptions],
    ) -> str | list[str]:
        """The translation of a whole text, or those of a list of texts, one line each, in order.

        A text is split into sentences. Line breaks, white space, list markers and what must not be translated
        (addresses, numbers, tags, emoji, ...) come through unchanged. With `split` false each line goes to the model as
        it is; with format="html" the text between tags is translated. Options replace the model's decoding settings,
        for example iterations=1.
        """
        if format not in FORMATS:
            raise UserError(f"unknown format {shown(format)}; use {one_of(FORMATS)}")
        if format == "html":
            one = functools.partial(
                translate_html,
                translate=lambda texts: self.translate(texts, split=split, **options),
                lay_out=self.lay_out if split else one_sentence,
            )
            return one(text) if isinstance(text, str) else list(map(one, _checked(text)))
        if isinstance(text, str):
            return self._texts([text], self.settings(**options), trace=False, split=split)[0].text
        return [hypothesis.text for hypothesis in self.hypotheses(text, split=split, **options)]

    def hypotheses(
        self, lines: Iterable[str], trace: bool = False, split: bool = True, **options: Unpack[DecodeOptions]
    ) -> Iterator[Hypothesis]:
        """Hypotheses in the order of the lines, which may come from a file or any other stream."""
        if isinstance(lines, str):
            raise UserError("hypotheses takes a list of lines, not one text; write hypotheses([text])")
        return self._stream(_checked(lines), self.settings(**options), trace, split)

    def settings(self, **options: Unpack[DecodeOptions]) -> DecodeSettings:
        """The model's decoding settings with some replaced, complete for the device."""
        chosen = with_options(self.info.decode, options)
        if chosen.verify and not getattr(self.decoder, "has_verifier", False):
            raise UserError(
                f"decode.verify {chosen.verify}: no verifier; name an AT model with the same vocabulary: "
                f"--verifier MODEL, or lath.load(student, verifier=MODEL)"
            )
        if chosen.shortlist and not self.has_shortlist:
            raise UserError(self._no_shortlist())
        if chosen.batch_sentences == 0:
            return replace(chosen, batch_sentences=suitable_batch(self.device, chosen.length_candidates))
        return chosen

    def _no_shortlist(self) -> str:
        if self.verifier is not None:
            return "decode.shortlist: a verifier needs the whole vocabulary; set it to false"
        if self.model is None:
            return (
                "decode.shortlist: the exported model has none; add one to the model it came from with "
                "lath shortlist DATA MODEL, and export it again"
            )
        if self.device.type != "cpu" or self.engine == "recorded":
            return "decode.shortlist is for the CPU and engine plain or auto; set it to false"
        return "decode.shortlist: the model has none; make one with lath shortlist DATA MODEL"

    def warm_up(self, tokens: int, batch: int = 1, **options: Unpack[DecodeOptions]) -> None:
        """Get ready for sentences of up to so many tokens: on a GPU no sentence then waits for a recording."""
        if (warm_up := getattr(self.decoder, "warm_up", None)) is not None:
            warm_up(self.settings(**options), tokens, batch)

    def _stream(
        self, stream: Iterator[str], settings: DecodeSettings, trace: bool, split: bool
    ) -> Iterator[Hypothesis]:
        while lines := list(itertools.islice(stream, READ_AHEAD * settings.batch_sentences)):
            for hypothesis in self._texts([line.rstrip("\r\n") for line in lines], settings, trace, split):
                # A line break within an item would break the file that the lines go to.
                text = one_line(hypothesis.text)
                yield hypothesis if text == hypothesis.text else replace(hypothesis, text=text)

    def _texts(self, texts: list[str], settings: DecodeSettings, trace: bool, split: bool) -> list[Hypothesis]:
        if not split:
            units = self._units(texts, settings, trace)
            return [without_invented(unit, text, self.target_vocab) for unit, text in zip(units, texts, strict=True)]
        laid_out = [self.lay_out(text) for text in texts]
        sentences = [span.text for spans in laid_out for span in spans if span.sentence]
        found = iter(self._sentences(sentences, settings, trace))
        return [put_together(spans, found) for spans in laid_out]

    def _sentences(self, sentences: list[str], settings: DecodeSettings, trace: bool) -> list[Hypothesis]:
        return translate_sentences(sentences, self.source_vocab, lambda texts: self._units(texts, settings, trace))

    def lay_out(self, text: str) -> list[Span]:
        """The sentences of a text and what stands between them, for `translate_sentences` and `put_together`."""
        return lay_out(text, self.info.source_language)

    def translate_sentences(
        self, sentences: list[str], trace: bool = False, **options: Unpack[DecodeOptions]
    ) -> list[Hypothesis]:
        """The hypotheses of sentences that `lay_out` found, perhaps in several texts."""
        return self._sentences(sentences, self.settings(**options), trace)

    def _units(self, lines: list[str], settings: DecodeSettings, trace: bool) -> list[Hypothesis]:
        """What the model translates in one piece each, cut only where it is too long."""
        sentences: list[list[int]] = []
        owners: list[range] = []
        stripped = [line.strip() for line in lines]
        heads = [line[: self._longest] for line in stripped]
        # One line alone is encoded faster by itself than by a pool of threads.
        encoded = self.source_vocab.encode_lines(heads) if len(lines) > 1 else map(self.source_vocab.encode, heads)
        for line, ids in zip(stripped, encoded, strict=True):
            fragments = self._fragments(line, ids)
            owners.append(range(len(sentences), len(sentences) + len(fragments)))
            sentences += fragments
        decoded = self._decode_all(sentences, settings, trace)
        return [_join([decoded[number] for number in owner]) for owner in owners]

    def _fragments(self, line: str, ids: list[int]) -> list[list[int]]:
        """A line's tokens, cut into fragments where they are longer than what the model was trained on."""
        if len(ids) <= self.info.max_length and len(line) <= self._longest:
            return [ids] if ids else []
        fragments = split_long(
            line, lambda text: len(self.source_vocab.encode(text)) <= self.info.max_length, self._longest
        )
        # A fragment of nothing but invisible characters has no tokens.
        return [ids for fragment in fragments if (ids := self.source_vocab.encode(fragment))]

    def _decode_all(self, sentences: list[list[int]], settings: DecodeSettings, trace: bool) -> list[_Written]:
        """Decode in batches of similar length, and put the results back in order."""
        by_length = sorted(range(len(sentences)), key=lambda number: len(sentences[number]))
        lengths = [len(sentences[number]) for number in by_length]
        cuts = cut_batches(lengths, settings.batch_sentences, self.device)
        batches = [by_length[cut.start : cut.stop] for cut in cuts][::-1]
        sources = (pad([[*sentences[number], EOS] for number in numbers]) for numbers in batches)
        results: dict[int, _Written] = {}
        decoded_batches = self._decoded(sources, settings, trace)
        for numbers, batch in zip(batches, decoded_batches, strict=True):
            for number, decoded in zip(numbers, batch, strict=True):
                results[number] = _Written(decoded, self.target_vocab.decode(decoded.ids))
        return [results[number] for number in range(len(sentences))]

    def _decoded(self, sources: Iterator[Tensor], settings: DecodeSettings, trace: bool) -> Iterator[list[Decoded]]:
        # A GPU decodes the next batch while the last one becomes text.
        if (decode_many := getattr(self.decoder, "decode_many", None)) is not None and not trace:
            yield from decode_many(sources, settings)
            return
        for number, source in enumerate(sources, start=1):
            with decode_threads(self.threads):
                batch = self.decoder.decode(source, settings, trace)
            if number % BATCHES_BEFORE_RELEASE == 0:
                release_memory()
            yield batch


def _checked(lines: Iterable[str]) -> Iterator[str]:
    """The lines, each of which must be a text."""
    if not isinstance(lines, Iterable) or isinstance(lines, bytes):
        raise UserError(f"translate takes a list of lines, not {shown(lines)}; write translate([text])")
    return (_text(line, number) for number, line in enumerate(lines, start=1))


def _text(line: str, number: int) -> str:
    if not isinstance(line, str):
        raise UserError(f"translate: item {number} is {shown(line)}, not a text; give a list of texts")
    return line


class _Written(NamedTuple):
    """A decoded sentence and its text."""

    decoded: Decoded
    text: str


def _join(fragments: list[_Written]) -> Hypothesis:
    if not fragments:
        return Hypothesis("", 0.0, 0, 0)
    decoded = [fragment.decoded for fragment in fragments]
    return Hypothesis(
        # Byte tokens can spell any character; a line break in a translation would break the file it goes to.
        text=one_line(" ".join(fragment.text for fragment in fragments if fragment.text)).strip(),
        score=sum(result.score for result in decoded) / len(decoded),
        iterations=max(result.iterations for result in decoded),
        fragments=len(decoded),
        passes=[result.passes for result in decoded if result.passes],
        checks=max(result.checks for result in decoded),
    )
