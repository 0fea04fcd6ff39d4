"""How fast models translate: one protocol for all kinds and engines (docs/benchmarks.md).

    report = bench([Path("runs/at/model"), Path("runs/lat/model")], Path("test.de"), Ways())
    print(report)                                   # tables, signatures, and one line of JSON last

All models are loaded first and measured in one process, text to text, on the same sentences in the same order. A model
is measured in several ways (`VARIANTS`), each a row; the rows take turns, so that whatever slows the machine down for
a while slows all of them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import platform
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from lath import __version__
from lath.analysis.plots import new_figure, plot_pareto
from lath.analysis.sentences import (
    LENGTHS,
    Text,
    TokenRange,
    choose_text,
    taken_whole,
    throughput_lines,
    usable_lines,
    whole_batches,
)
from lath.analysis.speed import Report, Row, Times, percentile, sentence_medians, summarise
from lath.engine.ctranslate2 import is_exported
from lath.errors import UserError, did_you_mean
from lath.files import misaligned, read_lines
from lath.progress import Bar
from lath.scores import Score, evaluate
from lath.translator import load

SCANNED = 20_000
"""Lines of the text that sentences are chosen from."""
PROFILED = 5
"""Sentences, one at a time, whose translation is taken apart."""
PROFILED_RUNS = 5
"""Runs of each part, of which the median counts."""
VARIANTS: Mapping[str, Sequence[Mapping[str, int]]] = {
    "AT": ({"beam": 1}, {"beam": 5}),
    "CMLM": ({"iterations": 4, "length_candidates": 5}, {"iterations": 10, "length_candidates": 5}),
    "LAT": ({"iterations": 1}, {"iterations": 2}, {"iterations": 4}),
}


@dataclass(frozen=True)
class Ways:
    """How to measure."""

    device: str = "auto"
    precision: str = "auto"
    """Of models that are not exported: an exported one has its own."""
    threads: int | None = None
    """Of the CPU; None leaves it to torch."""
    plain: bool = False
    """Measure every model with the plain engine too."""
    sentences: int = 100
    """Sentences timed at most."""
    repeats: int = 5
    """Turns of each row, of which the median counts."""
    batches: tuple[int, ...] = (8, 32, 128)
    """Sizes of batches for the throughput."""
    lengths: tuple[int, ...] = LENGTHS
    """Source tokens at which latency is measured against length."""
    tokens: TokenRange = (1, None)
    """Fewest and most source tokens of a sentence that is timed."""
    overrides: Mapping[str, Any] = field(default_factory=dict)
    """Decoding settings for all rows; they win over a row's own."""


# ---- rows -------------------------------------------------------------------------------------------------------


def labels(models: Sequence[Path]) -> list[str]:
    """A short name for each directory: its own, or the run's where it is called model; paths where these are alike.

    >>> labels([Path("runs/lat/model"), Path("runs/teacher-int8")])
    ['lat', 'teacher-int8']
    """
    resolved = [model.resolve() for model in models]
    for number, path in enumerate(resolved):
        if path in resolved[:number]:
            raise UserError(f"{models[number]}: named twice; every model is measured in all its ways anyhow")
    short = [path.parent.name if path.name == "model" else path.name for path in resolved]
    return short if len(set(short)) == len(short) else [str(model) for model in models]


def variants(kind: str, overrides: Mapping[str, Any], has_shortlist: bool = False) -> list[dict[str, Any]]:
    """The settings of a kind's rows, with the shortlist too where the model has one.

    An override wins over a row's own, and rows that become alike are one.
    """
    found: list[dict[str, Any]] = []
    shortlists: list[dict[str, Any]] = [{}, {"shortlist": True}] if has_shortlist else [{}]
    for variant, shortlist in itertools.product(VARIANTS[kind], shortlists):
        settings = {**variant, **shortlist, **overrides}
        if settings not in found:
            found.append(settings)
    return found


def variant_name(kind: str, settings: Mapping[str, Any]) -> str:
    """What tells the rows of one model apart."""
    if kind != "AT":
        name = f"it:{settings['iterations']}"
    else:
        name = "greedy" if settings["beam"] == 1 else f"beam:{settings['beam']}"
    return f"{name}/shortlist" if settings.get("shortlist") else name


def load_rows(models: Sequence[Path], ways: Ways) -> list[Row]:
    """Load every model and list the ways it is measured in."""
    if "batch_sentences" in ways.overrides:
        raise UserError("--set decode.batch_sentences: the sizes of batches are named with --batches here")
    rows: list[Row] = []
    for path, label in zip(models, labels(models), strict=True):
        before = _gpu_bytes()
        # An exported model has the precision it was exported with, whatever the others are asked for.
        loaded = load(path, ways.device, "auto" if is_exported(path) else ways.precision)
        weights = _gpu_bytes() - before
        also_plain = ways.plain and loaded.engine not in ("plain", "ctranslate2")
        kind = loaded.info.network.kind
        for overrides in variants(kind, ways.overrides, loaded.has_shortlist):
            name = f"{label}/{variant_name(kind, overrides)}"
            row = Row(name, str(path), loaded.with_engine(), overrides, loaded.precision, weights)
            rows.append(row)
            if also_plain:
                rows.append(dataclasses.replace(row, name=f"{name}/plain", translator=loaded.with_engine("plain")))
    _check_languages(rows)
    return rows


def _check_languages(rows: Sequence[Row]) -> None:
    pairs = [(row.translator.info.source_language, row.translator.info.target_language) for row in rows]
    for row, pair in zip(rows, pairs, strict=True):
        if pair != pairs[0]:
            raise UserError(
                f"models of different languages: {rows[0].model} translates {' to '.join(pairs[0])}, {row.model} "
                f"{' to '.join(pair)}; name models that translate the same text"
            )


def reference_row(rows: Sequence[Row], name: str | None) -> int:
    """The number of the row that the others are compared with: LAT with 4 iterations, or else the first."""
    names = [row.name for row in rows]
    if name is None:
        four = [number for number, row in enumerate(rows) if row.kind == "LAT" and row.settings.iterations == 4]
        return four[0] if four else 0
    if name not in names:
        raise UserError(f"--against {name}: no such row{did_you_mean(name, names)}; the rows are {', '.join(names)}")
    return names.index(name)


# ---- the clock --------------------------------------------------------------------------------------------------


class GpuMemory:
    """What one row needs of a GPU's memory: all it keeps, and the most it has taken beyond that at any time.

    Other rows' memory does not count, for only what changes while a row is at work is looked at.
    """

    def __init__(self, device: torch.device, weights: int) -> None:
        self._device, self._kept, self.most = device, weights, weights

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """Watch the row."""
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
    """Until the device has done all that was asked of it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds(work: Callable[[], object], device: torch.device) -> float:
    """The time some work takes, until its last result is there."""
    wait(device)
    began = time.perf_counter()
    work()
    wait(device)
    return time.perf_counter() - began


def timed(row: Row, lines: Sequence[str], batch: int = 1) -> float:
    """Seconds of translating some lines in one call, text to text."""
    return seconds(lambda: row.translate(lines, batch), row.translator.device)


def measure(rows: Sequence[Row], text: Text, ways: Ways) -> list[Times]:
    """Let the rows take turns."""
    times = [Times() for _ in rows]
    memories = [GpuMemory(row.translator.device, row.weights) for row in rows]
    with Bar("measuring", len(rows) * (ways.repeats + 2), "turns") as bar:

        def each(turn: Callable[[Row, Text, Ways, Times], None]) -> None:
            for row, found, memory in zip(rows, times, memories, strict=True):
                bar.note(row.name)
                with memory.at_work():
                    turn(row, text, ways, found)
                bar.advance()

        each(warm_up)
        for _ in range(ways.repeats):
            each(take_turn)
        for found, memory in zip(times, memories, strict=True):
            found.memory = memory.most
        each(take_apart)
    return times


def warm_up(row: Row, text: Text, ways: Ways, _: Times) -> None:
    """All kinds of work once, untimed."""
    for line in [*text.warm_up, *(lines[0] for lines in text.by_length.values())]:
        row.translate([line], 1)
    for batch in ways.batches:
        row.translate(whole_batches(text.timed, batch)[:batch], batch)
    if row.translator.engine == "recorded":  # every shape is recorded when it is first met
        take_turn(row, text, ways, Times())


def take_turn(row: Row, text: Text, ways: Ways, times: Times) -> None:
    """Everything that is timed, once."""
    times.single.append([timed(row, [line]) for line in text.timed])
    for batch in ways.batches:
        times.batches.setdefault(batch, []).append(timed(row, throughput_lines(text, batch), batch))
    for length, lines in text.by_length.items():
        times.lengths.setdefault(length, []).append([timed(row, [line]) for line in lines])


def take_apart(row: Row, text: Text, ways: Ways, times: Times) -> None:
    """The time of each part of the work, for single sentences and for the largest batch."""
    largest = max(ways.batches)
    singles = [stages(row, [line]) for line in text.timed[:PROFILED]]
    times.stages[1] = {stage: sum(took[stage] for took in singles) for stage in singles[0]}
    times.stages[largest] = stages(row, whole_batches(text.timed, largest)[:largest])


def stages(row: Row, lines: list[str]) -> dict[str, float]:
    """Seconds of each part of translating one batch, as far as they can be told apart; medians of some runs."""
    translator, source, target = row.translator, row.translator.source_vocab, row.translator.target_vocab
    # The tokens of the output as text: a translation may be spelled in other tokens, but hardly is.
    written = [target.encode(line) for line in row.translate(lines, len(lines))]
    ids = source.encode_lines(lines)

    def median(work: Callable[[], object]) -> float:
        seconds(work, translator.device)  # a warm-up
        return statistics.median(seconds(work, translator.device) for _ in range(PROFILED_RUNS))

    tokenise = median(lambda: source.encode(lines[0]) if len(lines) == 1 else source.encode_lines(lines))
    detokenise = median(lambda: [target.decode(tokens) for tokens in written])
    works = translator.works(ids, **row.overrides, batch_sentences=len(lines))
    if works is None:
        whole = median(lambda: row.translate(lines, len(lines)))
        return {"tokenise": tokenise, "decode": max(0.0, whole - tokenise - detokenise), "detokenise": detokenise}
    encode, merge = median(works.encode), median(works.merge)
    decode = max(0.0, median(works.whole) - encode - merge)
    return {"tokenise": tokenise, "encode": encode, "decode": decode, "merge": merge, "detokenise": detokenise}


# ---- the whole --------------------------------------------------------------------------------------------------


def bench(
    models: Sequence[Path],
    data: Path,
    ways: Ways,
    references: Path | None = None,
    against: str | None = None,
    plot: Path | None = None,
) -> Report:
    """Measure models on a source text; with references their BLEU on all of it, and a picture of both."""
    if plot is not None:
        if references is None:
            raise UserError(f"--plot {plot}: quality against latency needs --references, the right translations")
        new_figure(plot)  # a picture that cannot be drawn is told of now, not at the end
    lines, right = read_text(data, references)
    with thread_count(ways.threads):
        rows = load_rows(models, ways)
        compared = reference_row(rows, against)
        translators = list({row.model: row.translator for row in rows}.values())
        pool = usable_lines(lines[:SCANNED], translators)
        text = choose_text(
            data, pool, ways.sentences, ways.tokens, lambda joined: taken_whole(translators, joined), ways.lengths
        )
        times = measure(rows, text, ways)
        scores = [None] * len(rows) if right is None else bleu_scores(rows, lines, right, max(ways.batches))
        against_p50 = percentile(sentence_medians(times[compared].single), 0.5)
        speeds = [
            summarise(row, found, against_p50, text, score)
            for row, found, score in zip(rows, times, scores, strict=True)
        ]
        card = make_card(data, text, ways)
    card["against"] = rows[compared].name
    card["bleu_signature"] = None if scores[0] is None else scores[0].signature
    if plot is not None:
        points = {speed.name: (speed.p50_ms, speed.bleu) for speed in speeds if speed.bleu is not None}
        plot_pareto(points, (f"{data.name}, {speeds[0].device}", "ms a sentence (p50, batch 1)", "BLEU"), plot)
    return Report(card, speeds, text.notes)


def read_text(data: Path, references: Path | None) -> tuple[list[str], list[str] | None]:
    """The lines of the source text and of its references."""
    lines = list(read_lines(data))
    if not any(line.strip() for line in lines):
        raise UserError(f"{data}: empty; give text of the source language, one sentence a line")
    if references is None:
        return lines, None
    right = list(read_lines(references))
    if len(right) != len(lines):
        raise misaligned(data, len(lines), references, len(right))
    return lines, right


@contextlib.contextmanager
def thread_count(threads: int | None) -> Iterator[None]:
    """So many threads of the CPU for a while."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def bleu_scores(rows: Sequence[Row], lines: list[str], right: list[str], batch: int) -> list[Score]:
    """BLEU of each row on the whole text, which is translated once more."""
    scores = []
    with Bar("scoring", len(rows), "rows") as bar:
        for row in rows:
            bar.note(row.name)
            scores.append(evaluate(row.translate(lines, batch), right).bleu)
            bar.advance()
    return scores


def make_card(data: Path, text: Text, ways: Ways) -> dict[str, Any]:
    """What was measured with, for the line of JSON."""
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
        "repeats": ways.repeats,
        "peak_rss_mib": peak_rss() / 2**20,
    }  # fmt: skip


def peak_rss() -> int:
    """The most memory this process has held on the host, in bytes: all models together."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else 1024 * most
