"""How fast models translate: one protocol for all kinds and engines (docs/benchmarks.md).

    report = bench([Path("runs/at/model"), Path("runs/lat/model")], Path("test.de"))
    print(report)                                   # tables, signatures, and one line of JSON at the end

All models are loaded first and measured in one process, from text to text, on the same sentences in the same order. A
model has several rows, one for each of its decoding settings (`VARIANTS`). The rows are measured in turns, each turn in
another random order, so that a slow phase of the machine affects all of them and no row always follows the same one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import platform
import random
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch

from lath import __version__
from lath.analysis.plots import new_figure, plot_pareto
from lath.analysis.scores import Score, evaluate
from lath.analysis.sentences import (
    Text,
    choose_text,
    taken_whole,
    throughput_lines,
    usable_lines,
)
from lath.analysis.settings import BenchSettings
from lath.analysis.speed import BenchReport, Row, Times, percentile, summarise
from lath.config import AUTO, DecodeOptions, MergeRules
from lath.decoding.decoder import PlainDecoder
from lath.decoding.merge import Merged
from lath.decoding.pieces import MergeRule
from lath.devices import cpu_threads
from lath.errors import UserError, did_you_mean
from lath.files import misaligned, read_lines
from lath.model.directory import is_exported
from lath.model.network import Model
from lath.model.padding import pad
from lath.progress import Bar
from lath.text.vocab import EOS
from lath.translator import load

SCANNED = 20_000
"""Lines of the text that sentences are chosen from."""
ORDER_SEED = 1
"""Seed of the order of the rows."""
PROFILED = 5
"""Single sentences whose stages are timed."""
PROFILED_RUNS = 5
"""Runs of each stage; the median is reported."""
VARIANTS: Mapping[str, Sequence[DecodeOptions]] = {
    "AT": ({"beam": 1}, {"beam": 5}),
    "CMLM": ({"iterations": 4, "length_candidates": 5}, {"iterations": 10, "length_candidates": 5}),
    "LAT": ({"iterations": 1}, {"iterations": 2}, {"iterations": 4}),
}
VERIFIED: Sequence[DecodeOptions] = (
    {"verify": "rerank", "iterations": 4, "length_candidates": 5},
    {"verify": "relaxed", "iterations": 1, "length_candidates": 1},
    {"verify": "exact", "iterations": 1, "length_candidates": 1},
)
"""The rows of a pair beside those of its student."""


# ---- rows -------------------------------------------------------------------------------------------------------


def labels(models: Sequence[Path]) -> list[str]:
    """A short name for each directory: its own name, or the run's if it is called model; paths if names are not unique.

    >>> labels([Path("runs/lat/model"), Path("runs/teacher-int8")])
    ['lat', 'teacher-int8']
    """
    resolved = [model.resolve() for model in models]
    for number, path in enumerate(resolved):
        if path in resolved[:number]:
            raise UserError(f"{models[number]}: given twice; remove one")
    short = [path.parent.name if path.name == "model" else path.name for path in resolved]
    return short if len(set(short)) == len(short) else [str(model) for model in models]


def variants(
    kind: str, overrides: DecodeOptions, has_shortlist: bool = False, verified: bool = False
) -> list[DecodeOptions]:
    """The decoding settings of a model's rows, also with the shortlist if the model has one; or those of a pair.

    `overrides` take precedence over a row's own settings, and rows that become equal are listed once.
    """
    found: list[DecodeOptions] = []
    shortlists: list[DecodeOptions] = [{}, {"shortlist": True}] if has_shortlist else [{}]
    for variant, shortlist in itertools.product(VERIFIED if verified else VARIANTS[kind], shortlists):
        options: DecodeOptions = {**variant, **shortlist, **overrides}
        if options not in found:
            found.append(options)
    return found


def variant_name(kind: str, options: DecodeOptions) -> str:
    """The name that distinguishes the rows of one model."""
    name: str = options.get("verify", "")
    if name:
        return name
    if kind != "AT":
        name = f"it:{options['iterations']}"
    else:
        name = "greedy" if options["beam"] == 1 else f"beam:{options['beam']}"
    return f"{name}/shortlist" if options.get("shortlist") else name


def load_rows(models: Sequence[Path], settings: BenchSettings) -> list[Row]:
    """Load every model and list its rows."""
    if "batch_sentences" in settings.overrides:
        raise UserError("--set decode.batch_sentences: not for lath bench; use --batches")
    if "verify" in settings.overrides:
        raise UserError("--set decode.verify: not for lath bench, which measures every mode of a pair; leave it out")
    rows: list[Row] = []
    for path, label in zip(models, labels(models), strict=True):
        before = _gpu_bytes()
        # An exported model has a fixed precision; --precision is for the others.
        loaded = load(path, settings.device, AUTO if is_exported(path) else settings.precision)
        weights = _gpu_bytes() - before
        as_plain = (loaded.engine, loaded.precision) == ("plain", "fp32") or is_exported(path)
        plain = load(path, settings.device, engine="plain") if settings.plain and not as_plain else None
        kind, pair = loaded.info.network.kind, loaded.verifier is not None
        alone = loaded.alone() if pair else loaded
        found = [(alone, options) for options in variants(kind, settings.overrides, alone.has_shortlist)]
        found += [(loaded, options) for options in variants(kind, settings.overrides, verified=True)] if pair else []
        for translator, options in found:
            name = f"{label}/{variant_name(kind, options)}"
            row = Row(name, str(path), translator.with_engine(), options, loaded.precision, weights)
            rows.append(row)
            if plain is not None:
                without = plain.alone("plain") if pair and translator is alone else plain
                rows.append(dataclasses.replace(row, name=f"{name}/plain", translator=without, precision="fp32"))
    _check_languages(rows)
    return rows


def _check_languages(rows: Sequence[Row]) -> None:
    pairs = [(row.translator.info.source_language, row.translator.info.target_language) for row in rows]
    for row, pair in zip(rows, pairs, strict=True):
        if pair != pairs[0]:
            raise UserError(
                f"models of different languages: {rows[0].model} translates {' to '.join(pairs[0])}, {row.model} "
                f"{' to '.join(pair)}; name models with the same languages"
            )


def reference_row(rows: Sequence[Row], name: str | None) -> int:
    """The index of the row that the others are compared with: LAT with 4 iterations by default, else the first."""
    names = [row.name for row in rows]
    if name is None:
        four = [number for number, row in enumerate(rows) if row.kind == "LAT" and row.settings.iterations == 4]
        return four[0] if four else 0
    if name not in names:
        raise UserError(f"--against {name}: no such row{did_you_mean(name, names)}; the rows are {', '.join(names)}")
    return names.index(name)


# ---- the clock --------------------------------------------------------------------------------------------------


class GpuMemory:
    """The GPU memory of one row: what it keeps allocated, and its peak.

    Only changes while the row is measured count, so the memory of other rows is not included.
    """

    def __init__(self, device: torch.device, weights: int) -> None:
        self._device, self._kept, self.most = device, weights, weights

    @contextlib.contextmanager
    def measured(self) -> Iterator[None]:
        """Track the memory while the row is measured."""
        if self._device.type != "cuda":
            yield
            return
        torch.cuda.reset_peak_memory_stats(self._device)
        before = torch.cuda.memory_allocated(self._device)
        yield
        self.most = max(self.most, self._kept + torch.cuda.max_memory_allocated(self._device) - before)
        self._kept += torch.cuda.memory_allocated(self._device) - before


def _gpu_bytes() -> int:
    return sum(torch.cuda.memory_allocated(number) for number in range(torch.cuda.device_count()))


def wait(device: torch.device) -> None:
    """Wait until the device has finished all its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds(work: Callable[[], object], device: torch.device) -> float:
    """The time until some work is finished on the device."""
    wait(device)
    began = time.perf_counter()
    work()
    wait(device)
    return time.perf_counter() - began


def timed(row: Row, lines: Sequence[str], batch: int = 1) -> float:
    """Seconds to translate some lines in one call, from text to text."""
    return seconds(lambda: row.translate(lines, batch), row.translator.device)


def measure(rows: Sequence[Row], text: Text, settings: BenchSettings) -> list[Times]:
    """Measure the rows in turns, each in a random order, the same in every run."""
    times = [Times() for _ in rows]
    memories = [GpuMemory(row.translator.device, row.weights) for row in rows]
    work, order = list(zip(rows, times, memories, strict=True)), random.Random(ORDER_SEED)
    with Bar("measuring", len(rows) * (settings.repeats + 2), "turns") as bar:

        def each(turn: Callable[[Row, Text, BenchSettings, Times], None]) -> None:
            order.shuffle(work)
            for row, found, memory in work:
                bar.note(row.name)
                with memory.measured():
                    turn(row, text, settings, found)
                bar.advance()

        each(warm_up)
        for _ in range(settings.repeats):
            each(take_turn)
        for found, memory in zip(times, memories, strict=True):
            found.memory = memory.most
        each(time_stages)
    return times


def warm_up(row: Row, text: Text, settings: BenchSettings, _: Times) -> None:
    """Run everything once, untimed."""
    for line in [*text.warm_up, *(lines[0] for lines in text.by_length.values())]:
        row.translate([line], 1)
    for batch in settings.batches:
        row.translate(throughput_lines(text, batch)[:batch], batch)
    if row.translator.engine == "recorded":  # each new shape is recorded at its first use
        take_turn(row, text, settings, Times())


def take_turn(row: Row, text: Text, settings: BenchSettings, times: Times) -> None:
    """Time everything once."""
    times.single.append([timed(row, [line]) for line in text.timed])
    for batch in settings.batches:
        times.batches.setdefault(batch, []).append(timed(row, throughput_lines(text, batch), batch))
    for length, lines in text.by_length.items():
        times.lengths.setdefault(length, []).append([timed(row, [line]) for line in lines])


def time_stages(row: Row, text: Text, settings: BenchSettings, times: Times) -> None:
    """Time each stage, for single sentences and for the largest batch."""
    largest = max(settings.batches)
    singles = [stages(row, [line]) for line in text.timed[:PROFILED]]
    times.stages[1] = {stage: sum(took[stage] for took in singles) for stage in singles[0]}
    times.stages[largest] = stages(row, throughput_lines(text, largest)[:largest])
    if row.settings.verify:
        found = row.translator.hypotheses(text.timed, split=False, **row.overrides)
        times.checks = statistics.mean(hypothesis.checks for hypothesis in found)


def stages(row: Row, lines: list[str]) -> dict[str, float]:
    """Median seconds of each stage of translating one batch.

    Only the plain decoder lets merging be timed by itself. For the others encoding and merging are part of decoding.
    """
    translator, source, target = row.translator, row.translator.source_vocab, row.translator.target_vocab
    # The output text is tokenised again to have tokens for `decode`; they are nearly always the same ones.
    written = [target.encode(line) for line in row.translate(lines, len(lines))]
    device = translator.device
    tokenise = median_seconds(
        lambda: source.encode(lines[0]) if len(lines) == 1 else source.encode_lines(lines), device
    )
    detokenise = median_seconds(lambda: [target.decode(tokens) for tokens in written], device)
    decoder = translator.decoder
    if not isinstance(decoder, PlainDecoder):
        whole = median_seconds(lambda: row.translate(lines, len(lines)), device)
        return {"tokenise": tokenise, "decode": max(0.0, whole - tokenise - detokenise), "detokenise": detokenise}
    inside = decoding_stages(row, source.encode_lines(lines), decoder.merge)
    return {"tokenise": tokenise, **inside, "detokenise": detokenise}


@torch.inference_mode()
def decoding_stages(row: Row, sentences: list[list[int]], merge: MergeRule) -> dict[str, float]:
    """Median seconds of encoding, decoding and merging one batch of tokens.

    Merging is timed inside a whole decode; encoding is run again by itself.
    """
    model, device = cast(Model, row.translator.model), row.translator.device
    source = pad([[*sentence, EOS] for sentence in sentences]).to(device)
    merging: list[float] = []

    def timed_merge(pieces: Sequence[Sequence[int]], scores: Sequence[Sequence[float]], rules: MergeRules) -> Merged:
        began = time.perf_counter()
        merged = merge(pieces, scores, rules)
        merging.append(time.perf_counter() - began)
        return merged

    decoder = PlainDecoder(model, timed_merge)
    runs: list[tuple[float, float]] = []
    for _ in range(1 + PROFILED_RUNS):  # the first warms up
        merging.clear()
        runs.append((seconds(lambda: decoder.decode(source, row.settings), device), sum(merging)))
    whole, merged = (statistics.median(times) for times in zip(*runs[1:], strict=True))
    encode = median_seconds(lambda: model.encode(source), device)
    return {"encode": encode, "decode": max(0.0, whole - encode - merged), "merge": merged}


def median_seconds(work: Callable[[], object], device: torch.device) -> float:
    """The median time of some work over `PROFILED_RUNS` runs, after a warm-up."""
    seconds(work, device)
    return statistics.median(seconds(work, device) for _ in range(PROFILED_RUNS))


# ---- report ----------------------------------------------------------------------------------------------------


def bench(
    models: Sequence[Path],
    data: Path,
    settings: BenchSettings = BenchSettings(),  # noqa: B008 (frozen)
    references: Path | None = None,
    against: str | None = None,
    plot: Path | None = None,
) -> BenchReport:
    """Measure models on a source text; with references also their BLEU on the whole text, and a plot of both."""
    if plot is not None:
        if references is None:
            raise UserError(f"--plot {plot}: needs --references, because it shows quality against latency")
        new_figure(plot)  # report a plot that cannot be written now, not at the end
    lines, right = read_text(data, references)
    with cpu_threads(settings.threads):
        rows = load_rows(models, settings)
        compared = reference_row(rows, against)
        translators = list({row.model: row.translator for row in rows}.values())
        pool = usable_lines(lines[:SCANNED], translators)
        text = choose_text(data, pool, settings, lambda joined: taken_whole(translators, joined))
        times = measure(rows, text, settings)
        scores = [None] * len(rows) if right is None else bleu_scores(rows, lines, right, max(settings.batches))
        against_p50 = percentile(times[compared].single, 0.5)
        speeds = [
            summarise(row, found, against_p50, text, score)
            for row, found, score in zip(rows, times, scores, strict=True)
        ]
        card = make_card(data, text, settings)
    card["against"] = rows[compared].name
    card["bleu_signature"] = None if scores[0] is None else scores[0].signature
    if plot is not None:
        points = {speed.name: (speed.p50_ms, speed.bleu) for speed in speeds if speed.bleu is not None}
        plot_pareto(points, (f"{data.name}, {speeds[0].device}", "ms a sentence (p50, batch 1)", "BLEU"), plot)
    return BenchReport(card, speeds, text.notes)


def read_text(data: Path, references: Path | None) -> tuple[list[str], list[str] | None]:
    """The lines of the source text and of the references."""
    lines = list(read_lines(data))
    if not any(line.strip() for line in lines):
        raise UserError(f"{data}: empty; give text of the source language, one sentence per line")
    if references is None:
        return lines, None
    right = list(read_lines(references))
    if len(right) != len(lines):
        raise misaligned(data, len(lines), references, len(right))
    return lines, right


def bleu_scores(rows: Sequence[Row], lines: list[str], right: list[str], batch: int) -> list[Score]:
    """BLEU of each row on the whole text."""
    scores = []
    with Bar("scoring", len(rows), "rows") as bar:
        for row in rows:
            bar.note(row.name)
            scores.append(evaluate(row.translate(lines, batch), right).bleu)
            bar.advance()
    return scores


def make_card(data: Path, text: Text, settings: BenchSettings) -> dict[str, Any]:
    """Versions, text and settings of the measurement, for the line of JSON."""
    return {
        "lath": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "data": data.name,
        "warm_up": len(text.warm_up),
        "sentences": len(text.timed),
        "source_tokens": {
            "min": min(text.tokens), "mean": round(statistics.mean(text.tokens), 1), "max": max(text.tokens)
        },
        "sentences_at_length": {length: len(lines) for length, lines in text.by_length.items()},
        "repeats": settings.repeats,
        "peak_rss_mib": peak_rss() / 2**20,
    }  # fmt: skip


def peak_rss() -> int:
    """The peak host memory of this process in bytes, for all models together."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else 1024 * most
