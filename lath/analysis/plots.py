"""Loss curves and the trade-off of speed and quality: sparklines for the terminal, image files with matplotlib."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lath.errors import UserError, one_of
from lath.files import whole_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLOCKS = "▁▂▃▄▅▆▇█"
IMAGES = (".svg", ".png")
MARKERS = "osD^v<>PX"
"""Colours repeat after ten models and markers after nine, so ninety models look different."""

Curve = Sequence[tuple[int, float]]
"""(step, value) pairs."""


def sparkline(values: Sequence[float], width: int = 60) -> str:
    """Values as block characters; more than `width` values are averaged in groups.

    >>> sparkline([8, 7, 5, 3, 2, 1, 1])
    '█▇▅▃▂▁▁'
    """
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return ""
    count = min(width, len(finite))
    edges = [number * len(finite) // count for number in range(count + 1)]
    means = [sum(finite[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]
    low, high = min(means), max(means)
    scale = (len(BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(BLOCKS[round((mean - low) * scale)] for mean in means)


def new_figure(path: Path) -> Figure:
    """An empty figure to be saved as `path`; an error if that would fail."""
    if path.suffix not in IMAGES:
        raise UserError(f"{path}: unknown image format; use a name that ends in {one_of(IMAGES)}")
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UserError("plots need the package matplotlib: pip install 'lath[plots]'") from None
    return Figure(figsize=(8, 5), layout="constrained")


def save_figure(figure: Figure, path: Path) -> None:
    """Write an image file; an existing file is replaced."""
    with whole_file(path) as partial:
        figure.savefig(partial, format=path.suffix.removeprefix("."))


def plot_curves(curves: Mapping[str, Curve], title: str, path: Path) -> None:
    """Plot named curves over the steps into an .svg or .png file."""
    figure = new_figure(path)
    axes = figure.subplots()
    for name, curve in curves.items():
        steps, values = [step for step, _ in curve], [value for _, value in curve]
        axes.plot(steps, values, label=name, marker="." if len(curve) == 1 else None)
    axes.set(title=title, xlabel="step", ylabel="loss")
    axes.grid(alpha=0.3)
    if curves:
        axes.legend()
    save_figure(figure, path)


def frontier(points: Sequence[tuple[float, float]]) -> list[int]:
    """The indices of the (cost, gain) points that no other point beats in both, cheapest first.

    >>> frontier([(5.0, 30.0), (1.0, 20.0), (2.0, 19.0), (9.0, 30.0)])
    [1, 0]
    """
    kept: list[int] = []
    for number in sorted(range(len(points)), key=lambda number: (points[number][0], -points[number][1])):
        if not kept or points[number][1] > points[kept[-1]][1]:
            kept.append(number)
    return kept


def plot_pareto(points: Mapping[str, tuple[float, float]], labels: tuple[str, str, str], path: Path) -> None:
    """Plot named (cost, gain) points and their Pareto frontier; `labels` are title, cost axis and gain axis."""
    figure = new_figure(path)
    axes = figure.subplots()
    title, *axis_labels = labels
    draw_front(axes, points, axis_labels)
    axes.set_title(title)
    axes.grid(alpha=0.3, which="both")
    figure.legend(loc="outside right upper", fontsize="small")
    save_figure(figure, path)


def draw_front(axes: Axes, points: Mapping[str, tuple[float, float]], labels: Sequence[str]) -> None:
    """Points in the colour of their model, and the line that none is above; a point is named MODEL/VARIANT."""
    places = list(points.values())
    best = [places[number] for number in frontier(places)]
    axes.plot([cost for cost, _ in best], [gain for _, gain in best], color="0.75", drawstyle="steps-post", zorder=1)
    models: dict[str, list[tuple[float, float, str]]] = {}
    for name, place in points.items():
        model, *variant = re.split("[/.]", name, maxsplit=1)
        models.setdefault(model, []).append((*place, "".join(variant)))
    for (model, found), marker in zip(models.items(), itertools.cycle(MARKERS), strict=False):
        costs, gains, variants = zip(*sorted(found), strict=True)
        axes.plot(costs, gains, label=model, marker=marker, linestyle=":", linewidth=1, zorder=2)
        for cost, gain, variant in zip(costs, gains, variants, strict=True):
            axes.annotate(variant, (cost, gain), (5, -9), textcoords="offset points", fontsize="x-small")
    axes.set(xlabel=labels[0], ylabel=labels[1], xscale="log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter("{x:g}")
    axes.tick_params(axis="x", which="both", rotation=45)
