"""The paper's evaluation from translations and models (`lath analyse`).

analyse(Path("test.en"), ["AT=teacher.en", "LAT-4=runs/lat/model@iterations=4"], Path("out"), source=Path("test.de"))

OUT then holds report.html, analysis.json, analysis.md, plots (SVG and PNG) and the translations of the models, which
the next call uses again. docs/analysis.md says what each table shows.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from lath.analysis.analysis import Analysis, Latency, Plot, System, Table, Trace
from lath.analysis.evaluation import text_notes
from lath.analysis.figures import draw_plots
from lath.analysis.report import build_report
from lath.analysis.scores import Measured, measure
from lath.analysis.settings import AnalyseSettings
from lath.analysis.systems import (
    Asked,
    Loaded,
    facts,
    load_systems,
    measure_latency,
    oracle,
    parse_systems,
    spread,
    token_texts,
    trace,
    translate,
)
from lath.analysis.tables import count_words, names_table, text_tables
from lath.analysis.traces import Traced, trace_tables
from lath.errors import UserError
from lath.files import misaligned, read_lines, whole_file
from lath.progress import watched


class _Sides(NamedTuple):
    """The test set."""

    source: list[str] | None
    reference: list[str]


def analyse(
    reference: Path,
    systems: Sequence[str],
    out: Path,
    settings: AnalyseSettings = AnalyseSettings(),  # noqa: B008 (frozen)
    source: Path | None = None,
    counted: Path | None = None,
) -> Analysis:
    """Analyse systems, written as on the command line, and write the results into `out`.

    Names are counted in the text `counted`, best the source side of the training text; else in the source itself.
    """
    asked = parse_systems(systems)
    models = [system for system in asked if system.options is not None]
    if models and source is None:
        raise UserError(f"{models[0].name} is a model: give the source text with --source FILE")
    sides = _Sides(None if source is None else list(read_lines(source)), list(read_lines(reference, keep_mark=True)))
    if sides.source is not None and source is not None and len(sides.source) != len(sides.reference):
        raise misaligned(source, len(sides.source), reference, len(sides.reference))
    ready = {system.name: _read(system.path, reference, sides) for system in asked if system.options is None}
    loaded = load_systems(models, settings)
    paths = {system.name: system.path for system in asked}
    if source is not None:
        for name, model in loaded.items():
            paths[name] = translate(model, source, out / "translations")
            ready[name] = _read(paths[name], reference, sides)
    texts = [ready[system.name] for system in asked]
    measured = measure(
        texts,
        sides.reference,
        settings.tokenised,
        ter=settings.ter,
        samples=settings.samples if len(asked) > 1 else 0,
        workers=scoring_processes() if settings.ter else 1,
    )
    found = _traced(loaded, sides, settings)
    timed = measure_latency(list(loaded.values()), sides.source or [], settings)
    latencies = dict(zip(loaded, timed, strict=False))
    described = [
        _system(system, paths[system.name], lines, scores, loaded.get(system.name), latencies.get(system.name))
        for system, lines, scores in zip(asked, texts, measured, strict=True)
    ]
    described = [
        system
        if (traces := found.get(system.name)) is None
        else dataclasses.replace(system, traces=traces.traces, tokens=token_texts(traces.traces, traces.vocab))
        for system in described
    ]
    tables = _tables(described, measured, list(found.values()), sides, settings, counted)
    plots, notes = _plots(described, tables)
    notes += text_notes(
        [reference, *(paths[system.name] for system in asked)], [sides.reference, *texts], tested=len(asked) > 1
    )
    analysis = Analysis(None if source is None else str(source), str(reference), sides.source, sides.reference,
                        described, tables, plots, notes)  # fmt: skip
    write(analysis, out)
    return analysis


def scoring_processes() -> int:
    """One for each CPU; where processes cannot be forked one in all."""
    return os.cpu_count() or 1 if hasattr(os, "fork") else 1


def _read(path: Path, reference: Path, sides: _Sides) -> list[str]:
    lines = list(read_lines(path, keep_mark=True))
    if len(lines) != len(sides.reference):
        raise misaligned(reference, len(sides.reference), path, len(lines))
    return lines


def _traced(loaded: dict[str, Loaded], sides: _Sides, settings: AnalyseSettings) -> dict[str, Traced]:
    """The passes of each CMLM and LAT model for some lines that have words on both sides."""
    if sides.source is None:
        return {}
    source, reference = sides.source, sides.reference
    filled = [number for number, pair in enumerate(zip(source, reference, strict=True)) if all(map(str.strip, pair))]
    lines = [filled[number] for number in spread(len(filled), settings.traced)]
    traced = {}
    for name, system in loaded.items():
        found: list[Trace] = trace(system, source, lines)
        if found:
            traced[name] = Traced(
                name=name,
                kind=system.translator.info.network.kind,
                settings=system.settings,
                vocab=system.translator.target_vocab,
                traces=found,
                references=[reference[line] for line in lines],
                oracle=[] if system.settings.verify else oracle(system, found, source, reference),
            )
    return traced


def _system(
    asked: Asked, path: Path, texts: list[str], measured: Measured, loaded: Loaded | None, latency: Latency | None
) -> System:
    model = None if loaded is None else facts(loaded)
    return System(asked.name, str(path), texts, measured.scores, measured.sentence_chrf, model, latency)


def _tables(
    systems: Sequence[System],
    measured: Sequence[Measured],
    traced: Sequence[Traced],
    sides: _Sides,
    settings: AnalyseSettings,
    counted: Path | None,
) -> list[Table]:
    tables = text_tables(systems, measured, sides.source, sides.reference, settings)
    if sides.source is None:
        tables.append(Table("names", "Rare names", [], [], [], "Left out: it needs the source text; give --source."))
    else:
        lines = sides.source if counted is None else watched(read_lines(counted), "counting words", None)
        counts = count_words(lines, settings.tokenised)
        where = "the source" if counted is None else str(counted)
        tables.append(names_table(systems, measured, sides.source, sides.reference, counts, where, settings))
    return tables + trace_tables(traced, settings.tokenised, settings.window)


def _plots(systems: Sequence[System], tables: Sequence[Table]) -> tuple[list[Plot], list[str]]:
    try:
        return draw_plots(systems, {table.name: table for table in tables}), []
    except UserError as error:
        return [], [f"no plots: {error}"]


def write(analysis: Analysis, out: Path) -> None:
    """Write report.html, analysis.json, analysis.md and the plots."""
    for plot in analysis.plots:
        with whole_file(out / "plots" / f"{plot.name}.svg") as partial:
            partial.write_text(plot.svg, encoding="utf-8")
        with whole_file(out / "plots" / f"{plot.name}.png") as partial:
            partial.write_bytes(plot.png)
    with whole_file(out / "analysis.md") as partial:
        partial.write_text(analysis.markdown(), encoding="utf-8")
    with whole_file(out / "analysis.json") as partial:
        partial.write_text(analysis.as_json() + "\n", encoding="utf-8")
    with whole_file(out / "report.html") as partial:
        partial.write_text(build_report(analysis), encoding="utf-8")
