"""Curves of a training run: a line of blocks for the terminal, a picture for everything else."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from lath.errors import UserError
from lath.files import whole_file

BLOCKS = "▁▂▃▄▅▆▇█"
PICTURES = (".svg", ".png")

Curve = Sequence[tuple[int, float]]
"""Steps with the value at each."""


def sparkline(values: Sequence[float], width: int = 60) -> str:
    """Values as blocks from the lowest to the highest; more than `width` of them are averaged in groups.

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


def plot_curves(curves: Mapping[str, Curve], title: str, path: Path) -> None:
    """Draw named curves over the steps into an .svg or .png file; an older picture is replaced."""
    if path.suffix not in PICTURES:
        raise UserError(f"{path}: pictures end in {' or '.join(PICTURES)}; name it so, for example curve.svg")
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UserError("curves are drawn by matplotlib, which is not installed: pip install 'lath[plots]'") from None
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    for name, curve in curves.items():
        steps, values = [step for step, _ in curve], [value for _, value in curve]
        axes.plot(steps, values, label=name, marker="." if len(curve) == 1 else None)
    axes.set(title=title, xlabel="step", ylabel="loss")
    axes.grid(alpha=0.3)
    if curves:
        axes.legend()
    with whole_file(path) as partial:
        figure.savefig(partial, format=path.suffix.removeprefix("."))
