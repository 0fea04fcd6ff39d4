"""Sparklines and image files."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest

from lath.analysis.plots import BLOCKS, frontier, plot_curves, plot_pareto, sparkline
from lath.errors import UserError


@pytest.mark.parametrize(
    ("values", "width", "line"),
    [
        ([], 8, ""),
        ([2.5], 8, "▁"),
        ([1.0, 1.0, 1.0], 8, "▁▁▁"),
        ([0, 1, 2, 3, 4, 5, 6, 7], 8, "▁▂▃▄▅▆▇█"),
        ([9, 8, 1], 8, "█▇▁"),
        ([9, 9, 9, 1, 1, 1], 2, "█▁"),
        ([8, 8, 8, 8, 1, 1, 1], 3, "██▁"),
        ([3.0, math.nan, 1.0, math.inf], 8, "█▁"),
    ],
)
def test_a_sparkline(values: list[float], width: int, line: str) -> None:
    assert sparkline(values, width) == line


@pytest.mark.parametrize("count", [59, 60, 61, 1000])
def test_a_sparkline_is_never_wider_than_asked(count: int) -> None:
    line = sparkline(range(count, 0, -1), 60)
    assert len(line) == min(count, 60)
    assert (line[0], line[-1]) == (BLOCKS[-1], BLOCKS[0])
    assert list(line) == sorted(line, reverse=True)


@pytest.mark.parametrize(("ending", "start"), [("svg", b"<?xml"), ("png", b"\x89PNG")])
def test_the_suffix_decides_the_image_format(tmp_path: Path, ending: str, start: bytes) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / f"curve.{ending}"
    plot_curves({"training loss": [(1, 3.0), (2, 2.0)], "validation loss": [(2, 2.5)]}, "run", path)
    assert path.read_bytes().startswith(start)
    plot_curves({}, "nothing yet", path)
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize(
    ("points", "best"),
    [
        ([], []),
        ([(3.0, 1.0)], [0]),
        ([(3.0, 30.0), (1.0, 20.0), (2.0, 25.0)], [1, 2, 0]),
        ([(1.0, 30.0), (2.0, 29.0), (3.0, 30.0)], [0]),  # dearer and no better
        ([(1.0, 20.0), (1.0, 21.0)], [1]),
        ([(1.0, 20.0), (1.0, 20.0)], [0]),
    ],
)
def test_the_frontier_holds_what_nothing_beats(points: list[tuple[float, float]], best: list[int]) -> None:
    assert frontier(points) == best


def test_a_plot_of_quality_against_cost(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    points = {f"row {number}": (1.5**number, 20.0 + number % 7) for number in range(12)}
    plot_pareto(points, ("some test", "ms", "BLEU"), tmp_path / "speed.svg")
    drawn = (tmp_path / "speed.svg").read_text(encoding="utf-8")
    assert all(f"<!-- {name} -->" in drawn for name in [*points, "some test", "ms", "BLEU"])


def test_the_points_of_a_model_share_a_colour_and_are_named(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    points = {"lat/it:1": (1.0, 20.0), "lat/it:4": (2.0, 22.0), "at/greedy": (9.0, 22.5), "lat/it:2": (1.5, 21.0)}
    plot_pareto(points, ("some test", "ms", "BLEU"), tmp_path / "speed.svg")
    drawn = (tmp_path / "speed.svg").read_text(encoding="utf-8")
    names = ["it:1", "it:2", "it:4", "greedy", "lat", "at"]
    assert [drawn.count(f"<!-- {name} -->") for name in names] == [1] * len(names)


def test_other_endings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError) as refused:
        plot_curves({}, "run", tmp_path / "curve.pdf")
    message = f"{tmp_path / 'curve.pdf'}: unknown image format; use a name that ends in .svg or .png"
    assert str(refused.value) == message


def test_without_matplotlib_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(UserError) as refused:
        plot_curves({}, "run", tmp_path / "curve.svg")
    assert str(refused.value) == ("plots need the package matplotlib: pip install 'lath[plots]'")
    assert list(tmp_path.iterdir()) == []
