"""The plots of an analysis, drawn from its tables with matplotlib (the extra `plots`), as SVG and PNG."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lath.analysis.analysis import Cell, Plot, System, Table
from lath.analysis.plots import MARKERS, draw_front, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DOTS = 150
"""Per inch, of a PNG."""


def draw_plots(systems: Sequence[System], tables: Mapping[str, Table]) -> list[Plot]:
    """The plots for which there are figures; without matplotlib a `UserError`."""
    new_figure(Path("plot.svg"))  # reports matplotlib missing
    timed = [system for system in systems if system.latency is not None]
    bleu = systems[0].scores.bleu.metric
    plots = [
        _plot("latency", f"{bleu} against latency", lambda axes: _latency(axes, timed)) if timed else None,
        _plot("buckets", f"{bleu} by words of the reference", lambda axes: _buckets(axes, tables["buckets"])),
        _lines("passes", "BLEU by pass", tables["passes"], (1, 3), ("pass", "BLEU of the traced lines")),
        _lines("calibration", "Confidence against correctness", tables["calibration"], (3, 4),
               ("mean confidence %", "correct %"), diagonal=True),
    ]  # fmt: skip
    return [plot for plot in plots if plot is not None]


def _plot(name: str, title: str, draw: Callable[[Axes], None]) -> Plot:
    from matplotlib import rc_context

    figure = new_figure(Path("plot.svg"))
    axes = figure.subplots()
    draw(axes)
    axes.set_title(title)
    axes.grid(alpha=0.3)
    if axes.get_legend_handles_labels()[0]:
        figure.legend(loc="outside right upper", fontsize="small")
    svg, png = io.StringIO(), io.BytesIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "lath"}):  # text as text; no random ids
        figure.savefig(svg, format="svg", metadata={"Date": None})
    figure.savefig(png, format="png", dpi=DOTS)
    return Plot(name, title, svg.getvalue(), png.getvalue())


def _latency(axes: Axes, systems: Sequence[System]) -> None:
    points = {one.name: (one.latency.p50_ms, one.scores.bleu.value) for one in systems if one.latency is not None}
    draw_front(axes, points, ["ms a sentence (p50, alone)", systems[0].scores.bleu.metric])


def _buckets(axes: Axes, table: Table) -> None:
    sizes, *rows = table.rows
    for row, marker in zip(rows, itertools.cycle(MARKERS), strict=False):
        axes.plot(range(1, len(row)), [_number(cell) for cell in row[1:]], label=str(row[0]), marker=marker)
    names = [f"{span}\n{count} lines" for span, count in zip(table.header[1:], sizes[1:], strict=True)]
    axes.set_xticks(range(1, len(table.header)), names)
    axes.set(xlabel="words of the reference", ylabel="BLEU")


def _lines(
    name: str, title: str, table: Table, columns: tuple[int, int], labels: tuple[str, str], diagonal: bool = False
) -> Plot | None:
    """One line for each system of a table, in two of its columns."""

    def draw(axes: Axes) -> None:
        if diagonal:
            axes.plot([0, 100], [0, 100], color="0.6", linestyle="--")
        for (system, rows), marker in zip(
            itertools.groupby(table.rows, key=lambda row: str(row[0])), itertools.cycle(MARKERS), strict=False
        ):
            points = [[_number(row[column]) for column in columns] for row in rows]
            axes.plot(*zip(*points, strict=True), label=system, marker=marker)
        axes.set(xlabel=labels[0], ylabel=labels[1])
        if not diagonal:
            axes.locator_params(axis="x", integer=True)

    return _plot(name, title, draw) if table.rows else None


def _number(cell: Cell) -> float:
    return float("nan") if cell is None else float(cell)
