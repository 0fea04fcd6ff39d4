"""Measured times (bench.py) as numbers with signatures, as tables, and as one line of JSON."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import itertools
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
from lath.analysis.scores import Score
from lath.analysis.sentences import Text, throughput_lines
from lath.config import DecodeOptions, DecodeSettings
from lath.files import json_line
from lath.translator import Translator

STAGES = ("tokenise", "encode", "decode", "merge", "detokenise")
NAMED = ("beam", "iterations", "length_candidates", "extra_length", "verify", "verify_top", "verify_nats")
"""Settings that every signature contains."""


@dataclass(frozen=True)
class Row:
    """One row of the tables: a model with an engine and decoding settings."""

    name: str
    model: str
    """The directory as given by the user."""
    translator: Translator
    """Has its own decoder, so that rows do not share recordings."""
    overrides: DecodeOptions
    """Settings that differ from the model's own."""
    precision: str
    weights: int
    """Bytes of the model on a GPU."""

    @property
    def kind(self) -> str:
        """AT, CMLM or LAT."""
        return self.translator.info.network.kind

    @property
    def settings(self) -> DecodeSettings:
        """All decoding settings."""
        return self.translator.settings(**self.overrides)

    def translate(self, lines: Sequence[str], batch: int) -> list[str]:
        """Text to text."""
        options: DecodeOptions = {**self.overrides, "batch_sentences": batch}
        return self.translator.translate(lines, split=False, **options)


@dataclass
class Times:
    """Measured seconds of one row, one entry for each repeat."""

    single: list[list[float]] = field(default_factory=list)
    """For each timed sentence, one at a time."""
    batches: dict[int, list[float]] = field(default_factory=dict)
    """By batch size: for `throughput_lines` in one call."""
    lengths: dict[int, list[list[float]]] = field(default_factory=dict)
    """By source length: for each sentence of that length, one at a time."""
    stages: dict[int, dict[str, float]] = field(default_factory=dict)
    """By batch size: for each stage. Measured once, because stages are compared only within a row."""
    checks: float | None = None
    """Passes of the verifier for one of the timed sentences, on average."""
    memory: int = 0
    """Peak bytes on a GPU: weights, recordings and working memory."""


def percentile(values: Sequence[float] | Sequence[Sequence[float]], share: float) -> float:
    """The value that `share` of all values do not exceed, with linear interpolation.

    >>> percentile([[4.0, 1.0], [2.0, 3.0]], 0.5)
    2.5
    """
    return float(np.quantile(values, share))


def shares(stages: Mapping[str, float]) -> dict[str, float]:
    """Each stage as a share of the total.

    >>> shares({"encode": 1.0, "decode": 3.0})
    {'encode': 0.25, 'decode': 0.75}
    """
    total = sum(stages.values())
    return {stage: took / total for stage, took in stages.items()}


@dataclass(frozen=True)
class Speed:
    """The results of one row; milliseconds are for a sentence translated alone, over all calls of all repeats."""

    name: str
    model: str
    kind: str
    engine: str
    precision: str
    device: str
    overrides: DecodeOptions
    p50_ms: float
    p95_ms: float
    mean_ms: float
    p50_ms_of_turns: list[float]
    """The p50 of each repeat: how stable the machine was."""
    times: float
    """The p50 relative to that of the reference row."""
    sentences_per_second: dict[int, float]
    """By batch size."""
    best_batch: int
    ms_at_length: dict[int, float]
    """The p50 by source length."""
    longest_over_20: float | None
    """The latency at 160 source tokens divided by that at 20, if both were measured."""
    shares: dict[int, dict[str, float]]
    """By batch size: the share of each stage in the time."""
    memory_mib: float | None
    """Peak memory on a GPU, for this row alone."""
    checks: float | None
    """Passes of the verifier for a sentence, if one is in use."""
    bleu: float | None
    signature: str
    throughput_signature: str


def summarise(row: Row, times: Times, against_p50: float, text: Text, bleu: Score | None) -> Speed:
    """The results of a row from its times."""
    p50, p95 = percentile(times.single, 0.5), percentile(times.single, 0.95)
    throughput = {
        batch: len(throughput_lines(text, batch)) / statistics.median(took) for batch, took in times.batches.items()
    }
    best = max(throughput, key=throughput.__getitem__)
    at_length = {length: 1e3 * percentile(repeats, 0.5) for length, repeats in times.lengths.items()}
    tokens = statistics.mean(text.tokens)
    bulk_tokens = statistics.mean(text.bulk[line] for line in throughput_lines(text, best))
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
        mean_ms=1e3 * statistics.mean(itertools.chain(*times.single)),
        p50_ms_of_turns=[1e3 * percentile(turn, 0.5) for turn in times.single],
        times=p50 / against_p50,
        sentences_per_second=throughput,
        best_batch=best,
        ms_at_length=at_length,
        longest_over_20=at_length[160] / at_length[20] if {20, 160} <= at_length.keys() else None,
        shares={batch: shares(stages) for batch, stages in times.stages.items()},
        memory_mib=times.memory / 2**20 if row.translator.device.type == "cuda" else None,
        checks=times.checks,
        bleu=None if bleu is None else bleu.value,
        signature=f"{signature(row, 1, tokens)} = {latency}",
        throughput_signature=f"{signature(row, best, bulk_tokens)} = {throughput[best]:.1f} sentences/s",
    )


def signature(row: Row, batch: int, tokens: float) -> str:
    """What was measured: network, decoding, batch size, mean source tokens, engine, precision, machine, versions."""
    network, settings = row.translator.info.network, row.settings
    fields = [row.kind.lower(), f"{network.encoder_layers}-{network.decoder_layers}", str(network.width),
             f"v:{row.translator.info.target_size}"]  # fmt: skip
    if row.kind == "AT":
        fields.append(f"beam:{settings.beam}")
    else:
        piece = [f"K:{network.piece_length}"] if row.kind == "LAT" else []
        longer = f"+{settings.extra_length}" if row.kind == "LAT" and settings.extra_length else ""
        fields += [*piece, f"it:{settings.iterations}", f"len:{settings.length_candidates}{longer}"]
    if settings.verify:
        fields += [f"{settings.verify}:{verifier_shape(row.translator)}"]
    if settings.verify == "relaxed":
        fields += [f"top:{settings.verify_top}", f"nats:{settings.verify_nats:g}"]
    fields += [f"{key}:{value}" for key, value in row.overrides.items() if key not in NAMED]
    fields += [f"b:{batch}", f"src:{tokens:.0f}", row.translator.engine, row.precision,
              device_name(row.translator.device)]  # fmt: skip
    if row.translator.device.type == "cpu":
        fields.append(f"threads:{torch.get_num_threads()}")
    if row.translator.engine == "ctranslate2":
        fields.append(f"ctranslate2:{importlib.metadata.version('ctranslate2')}")
    else:
        fields.append(f"torch:{torch.__version__}")
    return "|".join([*fields, f"lath:{__version__}"])


def verifier_shape(translator: Translator) -> str:
    """The kind and the layers of what verifies."""
    assert translator.verifier is not None
    network = translator.verifier.settings
    return f"{network.kind.lower()}-{network.encoder_layers}-{network.decoder_layers}"


def device_name(device: torch.device) -> str:
    """The name of the GPU or CPU."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device).removeprefix("NVIDIA ")
    listed = Path("/proc/cpuinfo")
    found = re.search(r"^model name\s*: (.+)$", listed.read_text(), re.MULTILINE) if listed.is_file() else None
    return found[1].strip() if found else platform.machine()


@dataclass(frozen=True)
class BenchReport:
    """All results; as text: tables, signatures, notes, and one line of JSON."""

    card: dict[str, Any]
    """Versions, text and settings of the measurement."""
    speeds: list[Speed]
    notes: list[str]

    def __str__(self) -> str:
        rows = [dataclasses.asdict(speed) for speed in self.speeds]
        tree = {"benchmark": "bench", **self.card, "notes": self.notes, "rows": rows}
        tables = [speed_table(self.speeds), length_table(self.speeds), share_table(self.speeds)]
        lists = [
            [f"- `{line}`" for speed in self.speeds for line in (speed.signature, speed.throughput_signature)],
            [f"- {note}" for note in self.notes],
        ]
        return "\n\n".join(filter(None, [*tables, *map("\n".join, lists), json_line(tree)]))


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table: the first column is text, the others are numbers."""
    lines = [f"| {' | '.join(cells)} |" for cells in (header, *rows)]
    return "\n".join([lines[0], f"|---|{'--:|' * (len(header) - 1)}", *lines[1:]])


def speed_table(speeds: Sequence[Speed]) -> str:
    """Latency and throughput, with memory and BLEU if measured."""
    batches = list(speeds[0].sentences_per_second)
    header = ["row", "p50 ms", "p95 ms", "mean ms", "times", *(f"sent/s b:{batch}" for batch in batches), "best batch"]
    with_memory = any(speed.memory_mib is not None for speed in speeds)
    with_checks = any(speed.checks is not None for speed in speeds)
    with_bleu = any(speed.bleu is not None for speed in speeds)
    rows = []
    for speed in speeds:
        cells = [speed.name, *(f"{ms:.2f}" for ms in (speed.p50_ms, speed.p95_ms, speed.mean_ms)), f"{speed.times:.2f}"]
        cells += [f"{speed.sentences_per_second[batch]:.1f}" for batch in batches]
        cells.append(str(speed.best_batch))
        cells += [_number(speed.memory_mib, 0)] if with_memory else []
        cells += [_number(speed.checks, 2)] if with_checks else []
        cells += [_number(speed.bleu, 2)] if with_bleu else []
        rows.append(cells)
    return markdown([*header, *["MiB"] * with_memory, *["checks"] * with_checks, *["BLEU"] * with_bleu], rows)


def length_table(speeds: Sequence[Speed]) -> str:
    """Latency by source length; empty if no length could be measured."""
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
    """The share of each stage in the time."""
    rows = [
        [speed.name, str(batch), *(f"{100 * stages[stage]:.1f}" if stage in stages else "" for stage in STAGES)]
        for speed in speeds
        for batch, stages in speed.shares.items()
    ]
    return markdown(["% of time", "batch", *STAGES], rows)


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"
