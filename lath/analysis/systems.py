"""The systems of an analysis: files with translations, and models, which are translated, timed and traced.

Models translate into OUT/translations/NAME.txt. The card beside it holds all that the text depends on; while it
agrees, the text is used again. A translation that was stopped continues where it was (distillation.py).
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import itertools
import json
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from lath.analysis.analysis import Latency, ModelFacts, Trace
from lath.analysis.bench import timed
from lath.analysis.sentences import usable_lines
from lath.analysis.settings import AnalyseSettings
from lath.analysis.speed import Row, percentile, signature, verifier_shape
from lath.config import AUTO, DecodeOptions, DecodeSettings, decode_options, to_tree
from lath.decoding.decoder import PlainDecoder
from lath.decoding.results import Decoded, Hypothesis
from lath.distillation import distill_with, fingerprint, identity
from lath.errors import UserError
from lath.files import whole_file
from lath.model.bundled import find_model
from lath.model.directory import is_exported
from lath.model.network import CMLM, KINDS, LAT, Memory, Model
from lath.progress import Bar, watched
from lath.text.vocab import EOS, PAD, Vocab
from lath.translator import Translator, load

NAME = re.compile(r"\w[\w.+-]*")
ORDER_SEED = 1
"""Seed of the order in which models are timed."""
WARM_UP = 5
"""Sentences that each model translates before it is timed."""


@dataclass(frozen=True)
class Asked:
    """One SYSTEM of the command line."""

    name: str
    path: Path
    """A text file or a model directory."""
    options: DecodeOptions | None
    """None for a text file."""


def parse_system(text: str) -> Asked:
    """FILE, NAME=FILE or NAME=MODEL[@key=value,...].

    >>> parse_system("LAT-1=de-en@iterations=1").options
    {'iterations': 1}
    """
    if Path(text).is_file():
        return Asked(text, Path(text), None)
    name, equals, rest = text.partition("=")
    if not equals or not NAME.fullmatch(name):
        if Path(text).is_dir():
            raise UserError(f"{text}: a directory; give a model a name, for example LAT-4={text}@iterations=4")
        raise UserError(
            f"{text}: no such file; a system is FILE, NAME=FILE or NAME=MODEL@iterations=4, where NAME has letters, "
            f"digits and . + - _"
        )
    if Path(rest).is_file():
        return Asked(name, Path(rest), None)
    model, _, options = rest.partition("@")
    try:
        given = decode_options([f"decode.{option}" for option in options.split(",") if option])
    except UserError as error:
        raise UserError(f"{text}: {error}") from None
    return Asked(name, find_model(model), given)


def parse_systems(texts: Sequence[str]) -> list[Asked]:
    """All systems; two of one name are an error."""
    asked = [parse_system(text) for text in texts]
    names = [system.name for system in asked]
    for number, name in enumerate(names):
        if name in names[:number]:
            raise UserError(f"{texts[number]}: a second system of the name {name}; use another NAME")
    return asked


@dataclass(frozen=True)
class Loaded:
    """A system that is a model, ready to translate."""

    name: str
    directory: Path
    translator: Translator
    options: DecodeOptions

    @property
    def settings(self) -> DecodeSettings:
        """All decoding settings in force."""
        return self.translator.settings(**self.options)

    def hypotheses(self, lines: Sequence[str], trace: bool = False) -> list[Hypothesis]:
        """Line n of the result translates line n, as a whole: evaluation and training do not split lines."""
        found = self.translator.hypotheses(lines, trace=trace, split=False, **self.options)
        return list(watched(found, f"decoding with {self.name}", len(lines)))


def load_systems(asked: Sequence[Asked], settings: AnalyseSettings) -> dict[str, Loaded]:
    """The models among the systems, by name; systems of one directory share its weights."""
    found: dict[str, Loaded] = {}
    translators: dict[Path, Translator] = {}
    for system in asked:
        if system.options is None:
            continue
        if system.path not in translators:
            precision = AUTO if is_exported(system.path) else settings.precision
            translators[system.path] = load(system.path, settings.device, precision)
        found[system.name] = Loaded(system.name, system.path, translators[system.path].with_engine(), system.options)
    return found


def translate(system: Loaded, source: Path, folder: Path) -> Path:
    """The file with the translations of the source; only what is not there is translated."""
    out = folder / f"{system.name}.txt"
    card = folder / f"{system.name}.json"
    with source.open("rb") as stream:
        text = hashlib.file_digest(stream, "sha256").hexdigest()
    job = {**identity(system.translator, system.directory, system.options), "source": text}
    if out.exists():
        if card.exists() and json.loads(card.read_text(encoding="utf-8")) == job:
            return out
        out.unlink()
    folder.mkdir(parents=True, exist_ok=True)
    distill_with(system.translator, system.directory, source, out, system.options)
    with whole_file(card) as partial:
        partial.write_text(json.dumps(job) + "\n", encoding="utf-8")
    return out


def facts(system: Loaded) -> ModelFacts:
    """What is known of a model."""
    info = system.translator.info
    network = info.network
    with torch.device("meta"):
        model = KINDS[network.kind](network, info.source_size, info.target_size, info.joint)
    return ModelFacts(
        path=str(system.directory),
        kind=network.kind,
        piece_length=network.piece_length if network.kind == "LAT" else None,
        encoder_layers=network.encoder_layers,
        decoder_layers=network.decoder_layers,
        width=network.width,
        parameters=sum(weights.numel() for weights in model.parameters()),
        settings=to_tree(system.settings),
        precision=system.translator.precision,
        fingerprint=fingerprint(system.directory),
        verifier=verifier_shape(system.translator) if system.settings.verify else None,
    )


def measure_latency(systems: Sequence[Loaded], source: Sequence[str], settings: AnalyseSettings) -> list[Latency]:
    """Each sentence alone, with all models in turns, each turn in another order; none if nothing is to be timed."""
    if not systems or not settings.timed:
        return []
    pool = usable_lines(source, [system.translator for system in systems])
    chosen = spread(len(pool.lines), settings.timed)
    lines = [pool.lines[number] for number in chosen]
    if not lines:
        return []
    rows = [Row(s.name, str(s.directory), s.translator, s.options, s.translator.precision, 0) for s in systems]
    times: list[list[list[float]]] = [[] for _ in rows]
    order, work = random.Random(ORDER_SEED), list(zip(rows, times, strict=True))
    with Bar("timing", len(rows) * (settings.repeats + 1), "turns") as bar:
        for turn in range(settings.repeats + 1):
            order.shuffle(work)
            for row, found in work:
                # The first turn warms up; on a GPU each new shape is recorded at its first use.
                whole = turn or row.translator.engine == "recorded"
                took = [timed(row, [line]) for line in (lines if whole else lines[:WARM_UP])]
                found += [took] if turn else []
                bar.advance()
    tokens = sum(pool.counts[number] for number in chosen) / len(chosen)
    return [_latency(row, found, len(lines), tokens) for row, found in zip(rows, times, strict=True)]


def _latency(row: Row, times: list[list[float]], sentences: int, tokens: float) -> Latency:
    p50, p95 = 1e3 * percentile(times, 0.5), 1e3 * percentile(times, 0.95)
    mean = 1e3 * sum(itertools.chain(*times)) / (len(times) * sentences)
    described = f"{signature(row, 1, tokens)} = {p50:.2f} ms/sent p50 (p95 {p95:.2f})"
    return Latency(p50, p95, mean, sentences, described)


def spread(count: int, wanted: int) -> list[int]:
    """Up to `wanted` of `count` places, evenly spread.

    >>> spread(10, 3), spread(2, 3)
    ([0, 3, 6], [0, 1])
    """
    some = min(count, wanted)
    return [number * count // some for number in range(some)]


def trace(system: Loaded, source: Sequence[str], lines: Sequence[int]) -> list[Trace]:
    """The passes that lead to the translations of some lines; none for AT and for exported models."""
    if not isinstance(system.translator.model, CMLM | LAT):
        return []
    decode = system.translator.target_vocab.decode
    traces = []
    for line, found in zip(lines, system.hypotheses([source[line] for line in lines], trace=True), strict=True):
        # A verified fragment may have fewer passes than another: its last text stays.
        last = [itertools.chain(passes, itertools.repeat(passes[-1])) for passes in found.passes]
        turns = itertools.islice(zip(*last, strict=False), max(map(len, found.passes), default=0))
        texts = [" ".join(decode([*one.prefix, *one.output[1:-1]]) for one in turn) for turn in turns]
        traces.append(Trace(line, found.text, found.score, found.passes, texts))
    return traces


def token_texts(traces: Sequence[Trace], vocab: Vocab) -> dict[int, str]:
    """The text of each token id in the traces."""
    passes = [one for found in traces for fragment in found.passes for one in fragment]
    ids = {id for one in passes for id in itertools.chain(one.input, one.output, one.prefix, *one.pieces)}
    ids |= {one.check.correction for one in passes if one.check is not None and one.check.correction is not None}
    spans = {id for one in passes for decision in one.decisions for id in (*decision.left, *decision.right)}
    return {id: vocab.token(id) for id in sorted(ids | spans)}


class KnownLengths:
    """Decodes with the target length of some sentences given, by their source tokens; a `Decoder`."""

    def __init__(self, model: Model, lengths: Mapping[tuple[int, ...], int]) -> None:
        """`lengths` count BOS and EOS; `decode.extra_length` is added."""
        self.model, self.lengths = model, lengths

    def decode(self, source: Tensor, settings: DecodeSettings, trace: bool = False) -> list[Decoded]:
        """Plain decoding, with one length."""
        model = copy.copy(self.model)
        wanted = [self.lengths.get(tuple(id for id in row if id != PAD)) for row in source.tolist()]

        def encode(source: Tensor) -> tuple[Memory, Tensor]:
            memory, scores = self.model.encode(source)  # type: ignore[misc]
            for row, length in enumerate(wanted):
                if length is not None:
                    scores[row] = -torch.inf
                    scores[row, min(length, scores.shape[1] - 1)] = 0.0
            return memory, scores

        model.encode = encode  # type: ignore[method-assign]
        one = dataclasses.replace(settings, length_candidates=1)
        return PlainDecoder(model).decode(source, one, trace)


def oracle(system: Loaded, traces: Sequence[Trace], source: Sequence[str], reference: Sequence[str]) -> list[str]:
    """The translations of the traced lines with the reference's length given; of lines in one fragment alone."""
    translator = system.translator
    assert translator.model is not None
    whole = [found.line for found in traces if len(found.passes) == 1]
    ids = translator.source_vocab.encode_lines([source[line].strip() for line in whole])
    wanted = translator.target_vocab.encode_lines([reference[line].strip() for line in whole])
    lengths = {(*one, EOS): len(other) + 2 for one, other in zip(ids, wanted, strict=True)}
    known = dataclasses.replace(system, translator=translator.with_decoder(KnownLengths(translator.model, lengths)))
    return [found.text for found in known.hypotheses([source[line] for line in whole])]
