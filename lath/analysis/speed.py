"""What the clock said (bench.py), as numbers with their signatures, as tables, and as one line of JSON."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import platform
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lath import __version__
from lath.analysis.sentences import Text, throughput_lines
from lath.config import DecodeSettings
from lath.scores import Score
from lath.translator import Translator

STAGES = ("tokenise", "encode", "decode", "merge", "detokenise")
NAMED = ("beam", "iterations", "length_candidates", "extra_length")
"""Settings that a signature tells in any case."""


@dataclass(frozen=True)
class Row:
    """One way of translating with one model."""

    name: str
    model: str
    """The directory, as it was given."""
    translator: Translator
    """With a decoder of its own, so that no row takes the place of what another has recorded."""
    overrides: dict[str, Any]
    """Settings that differ from the model's own."""
    precision: str
    weights: int
    """Bytes on a GPU."""

    @property
    def kind(self) -> str:
        """AT, CMLM or LAT."""
        return self.translator.info.network.kind

    @property
    def settings(self) -> DecodeSettings:
        """All settings."""
        return self.translator.settings(**self.overrides)

    def translate(self, lines: Sequence[str], batch: int) -> list[str]:
        """Text to text."""
        return self.translator.translate(lines, **self.overrides, batch_sentences=batch)


@dataclass
class Times:
    """Seconds of one row, an entry for each of its turns."""

    single: list[list[float]] = field(default_factory=list)
    """Of each timed sentence, one at a time."""
    batches: dict[int, list[float]] = field(default_factory=dict)
    """By the size of a batch: of the timed sentences in whole batches."""
    lengths: dict[int, list[list[float]]] = field(default_factory=dict)
    """By length: of each sentence of that length, one at a time."""
    stages: dict[int, dict[str, float]] = field(default_factory=dict)
    """By the size of a batch: of each part of the work. Not by turns: parts are compared within a row only."""
    memory: int = 0
    """Bytes on a GPU at most: weights, what was recorded, and what it works on."""


def sentence_medians(turns: Sequence[Sequence[float]]) -> list[float]:
    """Each sentence's median over the turns.

    >>> sentence_medians([[1.0, 9.0], [2.0, 7.0], [8.0, 8.0]])
    [2.0, 8.0]
    """
    return [statistics.median(times) for times in zip(*turns, strict=True)]


def percentile(values: Sequence[float], share: float) -> float:
    """The value that `share` of all values do not exceed, between two values where it falls between them.

    >>> percentile([4.0, 1.0, 2.0, 3.0], 0.5)
    2.5
    """
    return float(np.quantile(values, share))


def shares(stages: Mapping[str, float]) -> dict[str, float]:
    """Parts of a whole.

    >>> shares({"encode": 1.0, "decode": 3.0})
    {'encode': 0.25, 'decode': 0.75}
    """
    total = sum(stages.values())
    return {stage: took / total for stage, took in stages.items()}


@dataclass(frozen=True)
class Speed:
    """What was found out about one row; milliseconds are those of a sentence translated alone."""

    name: str
    model: str
    kind: str
    engine: str
    precision: str
    device: str
    overrides: dict[str, Any]
    p50_ms: float
    p95_ms: float
    mean_ms: float
    p50_ms_of_turns: list[float]
    """The p50 of each turn by itself: how steady the machine was."""
    times: float
    """How many times the p50 of the row compared with."""
    sentences_per_second: dict[int, float]
    """By the size of a batch."""
    best_batch: int
    ms_at_length: dict[int, float]
    """By source tokens: the p50."""
    longest_over_20: float | None
    """The latency at 160 source tokens over that at 20, where both were measured."""
    shares: dict[int, dict[str, float]]
    """By the size of a batch: the parts of the time."""
    memory_mib: float | None
    """On a GPU: the row's own."""
    bleu: float | None
    signature: str
    throughput_signature: str


def summarise(row: Row, times: Times, against_p50: float, text: Text, bleu: Score | None) -> Speed:
    """The numbers of a row."""
    single = sentence_medians(times.single)
    p50, p95 = percentile(single, 0.5), percentile(single, 0.95)
    throughput = {
        batch: len(throughput_lines(text, batch)) / statistics.median(took) for batch, took in times.batches.items()
    }
    best = max(throughput, key=throughput.__getitem__)
    at_length = {length: 1e3 * percentile(sentence_medians(turns), 0.5) for length, turns in times.lengths.items()}
    tokens = statistics.mean(text.tokens)
    latency = f"{1e3 * p50:.2f} ms/sent p50 (p95 {1e3 * p95:.2f})"
    return Speed(
        name=row.name,
        model=row.model,
        kind=row.kind,
        engine=row.translator.engine,
        precision=row.precision,
        device=device_name(row.translator.device),
        overrides=row.overrides,
        p50_ms=1e3 * p50,
        p95_ms=1e3 * p95,
        mean_ms=1e3 * statistics.mean(single),
        p50_ms_of_turns=[1e3 * percentile(turn, 0.5) for turn in times.single],
        times=p50 / against_p50,
        sentences_per_second=throughput,
        best_batch=best,
        ms_at_length=at_length,
        longest_over_20=at_length[160] / at_length[20] if {20, 160} <= at_length.keys() else None,
        shares={batch: shares(parts) for batch, parts in times.stages.items()},
        memory_mib=times.memory / 2**20 if row.translator.device.type == "cuda" else None,
        bleu=None if bleu is None else bleu.value,
        signature=f"{signature(row, 1, tokens)} = {latency}",
        throughput_signature=f"{signature(row, best, tokens)} = {throughput[best]:.1f} sentences/s",
    )


def signature(row: Row, batch: int, tokens: float) -> str:
    """What was measured: network, decoding, batch, mean source tokens, engine, precision, machine, versions."""
    network, settings = row.translator.info.network, row.settings
    parts = [row.kind.lower(), f"{network.encoder_layers}-{network.decoder_layers}", str(network.width),
             f"v:{row.translator.info.target_size}"]  # fmt: skip
    if row.kind == "AT":
        parts.append(f"beam:{settings.beam}")
    else:
        piece = [f"K:{network.piece_length}"] if row.kind == "LAT" else []
        longer = f"+{settings.extra_length}" if row.kind == "LAT" and settings.extra_length else ""
        parts += [*piece, f"it:{settings.iterations}", f"len:{settings.length_candidates}{longer}"]
    parts += [f"{key}:{value}" for key, value in row.overrides.items() if key not in NAMED]
    parts += [f"b:{batch}", f"src:{tokens:.0f}", row.translator.engine, row.precision,
              device_name(row.translator.device)]  # fmt: skip
    if row.translator.device.type == "cpu":
        parts.append(f"threads:{torch.get_num_threads()}")
    if row.translator.engine == "ctranslate2":
        parts.append(f"ctranslate2:{importlib.metadata.version('ctranslate2')}")
    else:
        parts.append(f"torch:{torch.__version__}")
    return "|".join([*parts, f"lath:{__version__}"])


def device_name(device: torch.device) -> str:
    """The make of the GPU or the processor."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device).removeprefix("NVIDIA ")
    listed = Path("/proc/cpuinfo")
    found = re.search(r"^model name\s*: (.+)$", listed.read_text(), re.MULTILINE) if listed.is_file() else None
    return found[1].strip() if found else platform.machine()


@dataclass(frozen=True)
class Report:
    """All that was found out; as text: tables, signatures, notes, and one line of JSON."""

    card: dict[str, Any]
    """What was measured with."""
    speeds: list[Speed]
    notes: list[str]

    def __str__(self) -> str:
        rows = [dataclasses.asdict(speed) for speed in self.speeds]
        told = {"benchmark": "bench", **self.card, "notes": self.notes, "rows": rows}
        tables = [speed_table(self.speeds), length_table(self.speeds), share_table(self.speeds)]
        lists = [
            [f"- `{line}`" for speed in self.speeds for line in (speed.signature, speed.throughput_signature)],
            [f"- {note}" for note in self.notes],
        ]
        return "\n\n".join(filter(None, [*tables, *map("\n".join, lists), json.dumps(told)]))


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose first column is text and whose others are numbers."""
    lines = [f"| {' | '.join(cells)} |" for cells in (header, *rows)]
    return "\n".join([lines[0], f"|---|{'--:|' * (len(header) - 1)}", *lines[1:]])


def speed_table(speeds: Sequence[Speed]) -> str:
    """Latency, throughput, and what there is of memory and quality."""
    batches = list(speeds[0].sentences_per_second)
    header = ["row", "p50 ms", "p95 ms", "mean ms", "times", *(f"sent/s b:{batch}" for batch in batches), "best batch"]
    with_memory = any(speed.memory_mib is not None for speed in speeds)
    with_bleu = any(speed.bleu is not None for speed in speeds)
    rows = []
    for speed in speeds:
        cells = [speed.name, *(f"{ms:.2f}" for ms in (speed.p50_ms, speed.p95_ms, speed.mean_ms)), f"{speed.times:.2f}"]
        cells += [f"{speed.sentences_per_second[batch]:.1f}" for batch in batches]
        cells.append(str(speed.best_batch))
        cells += [_number(speed.memory_mib, 0)] if with_memory else []
        cells += [_number(speed.bleu, 2)] if with_bleu else []
        rows.append(cells)
    return markdown([*header, *["MiB"] * with_memory, *["BLEU"] * with_bleu], rows)


def length_table(speeds: Sequence[Speed]) -> str:
    """Latency against length; nothing where no length could be measured."""
    lengths = list(speeds[0].ms_at_length)
    if not lengths:
        return ""
    header = ["ms at source tokens", *map(str, lengths), "160 / 20"]
    rows = [
        [speed.name, *(f"{speed.ms_at_length[length]:.2f}" for length in lengths), _number(speed.longest_over_20, 2)]
        for speed in speeds
    ]
    return markdown(header, rows)


def share_table(speeds: Sequence[Speed]) -> str:
    """Where the time goes."""
    rows = [
        [speed.name, str(batch), *(f"{100 * parts[stage]:.1f}" if stage in parts else "" for stage in STAGES)]
        for speed in speeds
        for batch, parts in speed.shares.items()
    ]
    return markdown(["% of time", "batch", *STAGES], rows)


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"
