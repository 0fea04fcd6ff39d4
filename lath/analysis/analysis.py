"""What an analysis holds (`lath analyse`): tables, plots, sentence scores and traces, as Markdown and as JSON.

Everything here is data. tables.py and traces.py make it, analyse.py writes it, the report draws it.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from lath import __version__
from lath.analysis.scores import SystemScores
from lath.decoding.results import Pass
from lath.files import json_line

FORMAT = 1
TRACE_DIGITS = 4
"""Decimals of the log-probabilities in traces, which would fill megabytes."""
Cell = str | float | None
"""Of a table; None is a figure that does not exist."""


@dataclass(frozen=True)
class Table:
    """Figures with every digit; the first column is text."""

    name: str
    """Short and the same in every analysis."""
    title: str
    header: list[str]
    digits: list[int]
    """Decimals shown in each column."""
    rows: list[list[Cell]]
    note: str = ""
    """What the figures mean, and what was left out and why."""

    def shown(self) -> list[list[str]]:
        """The rows as text."""
        return [[_shown(cell, digits) for cell, digits in zip(row, self.digits, strict=True)] for row in self.rows]

    def markdown(self) -> str:
        """Title, table and note."""
        lines = [
            f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |" for cells in (self.header, *self.shown())
        ]
        rule = f"|---|{'--:|' * (len(self.header) - 1)}"
        blocks = [f"## {self.title}", *(["\n".join([lines[0], rule, *lines[1:]])] if self.rows else []), self.note]
        return "\n\n".join(filter(None, blocks))


def _shown(cell: Cell, digits: int) -> str:
    if cell is None:
        return ""
    return cell if isinstance(cell, str) else f"{cell:.{digits}f}"


@dataclass(frozen=True)
class Plot:
    """A figure of matplotlib."""

    name: str
    """The name of its files, without .svg and .png."""
    title: str
    svg: str
    png: bytes


@dataclass(frozen=True)
class Latency:
    """Milliseconds for a sentence translated alone."""

    p50_ms: float
    p95_ms: float
    mean_ms: float
    sentences: int
    signature: str


@dataclass(frozen=True)
class Trace:
    """How a model came to the translation of one line."""

    line: int
    """From 0."""
    text: str
    """The translation. Passes are recorded by the plain decoder; in fp16 the system's own may differ in near-ties."""
    score: float
    """As of `Hypothesis`."""
    passes: list[list[Pass]]
    """The passes of each fragment of the line, in token ids."""
    pass_texts: list[str]
    """The text after each pass."""


@dataclass(frozen=True)
class ModelFacts:
    """What is known of a system that is a model."""

    path: str
    kind: str
    """AT, CMLM or LAT."""
    piece_length: int | None
    """K, of LAT."""
    encoder_layers: int
    decoder_layers: int
    width: int
    parameters: int
    settings: dict[str, Any]
    """All decoding settings in force."""
    precision: str
    fingerprint: str
    """A digest of all files that its translations depend on."""
    verifier: str | None = None
    """The kind and layers of the model that checks, if one does."""


@dataclass(frozen=True)
class System:
    """One system: its translations, and more if it is a model."""

    name: str
    path: str
    """The file with its translations."""
    texts: list[str]
    scores: SystemScores
    sentence_chrf: list[float]
    """chrF of each line."""
    model: ModelFacts | None = None
    latency: Latency | None = None
    traces: list[Trace] = field(default_factory=list)
    """Of some lines, in order; none for a text file, an AT model or an exported one."""
    tokens: dict[int, str] = field(default_factory=dict)
    """The text of each token id in `traces`."""


@dataclass(frozen=True)
class Analysis:
    """All of an analysis. The first system is the baseline."""

    source_path: str | None
    reference_path: str
    source: list[str] | None
    """None where no source was given."""
    reference: list[str]
    systems: list[System]
    tables: list[Table]
    plots: list[Plot]
    notes: list[str]
    """What a reader of the figures should know."""

    def as_json(self) -> str:
        """One JSON object (docs/formats.md): all figures, no text; what is not finite is null."""
        tree = {
            "format": FORMAT,
            "lath": __version__,
            "source": self.source_path,
            "reference": self.reference_path,
            "lines": len(self.reference),
            "notes": self.notes,
            "systems": [_system_tree(system) for system in self.systems],
            "tables": [dataclasses.asdict(table) for table in self.tables],
            "plots": [{"name": plot.name, "title": plot.title} for plot in self.plots],
        }
        return json_line(tree)

    def markdown(self) -> str:
        """All tables on one page."""
        notes = "\n".join(f"- {note}" for note in self.notes)
        return "\n\n".join(filter(None, ["# Analysis", notes, *(table.markdown() for table in self.tables)])) + "\n"


def _system_tree(system: System) -> dict[str, Any]:
    tree = dataclasses.asdict(dataclasses.replace(system, texts=[]))
    del tree["texts"]  # in the file that `path` names
    return {**tree, "traces": _rounded(tree["traces"])}


def _rounded(value: Any) -> Any:
    """The same tree with fewer digits."""
    if isinstance(value, float):
        return round(value, TRACE_DIGITS)
    if isinstance(value, dict):
        return {key: _rounded(inner) for key, inner in value.items()}
    return [_rounded(inner) for inner in value] if isinstance(value, list | tuple) else value
