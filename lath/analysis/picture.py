"""A pass of decoding as a picture: pieces under their positions, aligned tokens in one column, and what lost.

`lath show` prints it (show.py), the report draws it (report.py), and `draw_svg` writes it as an image:

    draw(pass) -> Picture -> text, JSON or SVG
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple
from xml.sax.saxutils import escape

from lath.decoding.merge import Decision
from lath.decoding.results import Hypothesis, Pass
from lath.text.vocab import MASK

State = Literal["", "masked", "accepted", "refused"]
Name = Callable[[int], str]
"""The text of a token id."""


class Cell(NamedTuple):
    """One proposed token."""

    column: int
    id: int
    score: float
    state: Literal["kept", "lost", "aside", "given"]
    """Aside: neither aligned nor lost, as a repeat within its piece. Given: it was not masked (CMLM)."""
    conflict: int | None
    """The number of the conflict in which it lost."""


class Row(NamedTuple):
    """One piece under its position; for CMLM all tokens of the pass, with position and input None."""

    position: int | None
    input: int | None
    cells: list[Cell]


class Placed(NamedTuple):
    """One token of the output."""

    column: int
    id: int
    state: State
    """Masked for the next pass; or what a verifier said of a draft."""


@dataclass(frozen=True)
class Picture:
    """One pass: each proposal has a row and a column, and proposals of one token share the column of that token."""

    columns: int
    rows: list[Row]
    output: list[Placed]
    decisions: list[Decision]
    """Conflicts, by which `Cell.conflict` counts, then pieces that share nothing with the text before them."""
    length_change: int
    prefix: list[int]
    """Tokens that are kept, behind which this is a draft."""
    correction: Placed | None
    """The verifier's own token, in the column of the one that it refused."""

    @property
    def checked(self) -> bool:
        """Whether a verifier has checked the output."""
        return any(placed.state in ("accepted", "refused") for placed in self.output)


def draw(traced: Pass) -> Picture:
    """The picture of one pass."""
    kinds = ("conflict", "concatenate")
    decisions = [decision for kind in kinds for decision in traced.decisions if decision.step == kind]
    if traced.sources:
        rows, columns = _aligned(traced, decisions)
    else:
        rows, columns = [_filled(traced)], list(range(len(traced.output)))
    output = [
        Placed(column, id, state) for column, id, state in zip(columns, traced.output, _states(traced), strict=True)
    ]
    correction = _correction(traced, columns)
    taken = [*columns, *(cell.column for row in rows for cell in row.cells), correction.column if correction else 0]
    return Picture(max(taken) + 1, rows, output, decisions, traced.length_change, traced.prefix, correction)


def _correction(traced: Pass, columns: Sequence[int]) -> Placed | None:
    if traced.check is None or traced.check.correction is None:
        return None
    return Placed([*columns, columns[-1] + 1][1 + traced.check.accepted], traced.check.correction, "accepted")


def _states(traced: Pass) -> list[State]:
    """What became of each token of the output. A check is of what is behind BOS."""
    if traced.check is None:
        masked = set(traced.masked)
        return ["masked" if place in masked else "" for place in range(len(traced.output))]
    accepted = traced.check.accepted
    return ["", *("accepted" if place < accepted else "refused" for place in range(len(traced.output) - 1))]


def _filled(traced: Pass) -> Row:
    """CMLM: a visible token stays, a mask becomes the predicted token."""
    cells = []
    for place, (shown, (id,), (score,)) in enumerate(zip(traced.input, traced.pieces, traced.scores, strict=True)):
        given = shown != MASK
        cells.append(Cell(place, shown if given else id, score, "given" if given else "kept", None))
    return Row(None, None, cells)


def _aligned(traced: Pass, decisions: Sequence[Decision]) -> tuple[list[Row], list[int]]:
    """LAT: a row for each piece, and the column of each token of the output."""
    home = {source: place for place, sources in enumerate(traced.sources) for source in map(tuple, sources)}
    beaten = {source: number for number, conflict in enumerate(decisions) for source in map(tuple, conflict.lost)}
    anchors = [_anchors(home, number, len(piece)) for number, piece in enumerate(traced.pieces)]
    columns = _output_columns(anchors, len(traced.output))
    rows: list[Row] = []
    start = -1
    for number, (piece, scores) in enumerate(zip(traced.pieces, traced.scores, strict=True)):
        places = _row_columns(anchors[number], columns, start + 1)
        start = places[0]
        cells = []
        for inner, (column, id, score) in enumerate(zip(places, piece, scores, strict=True)):
            lost = beaten.get((number, inner))
            kept = anchors[number][inner] is not None
            cells.append(Cell(column, id, score, "lost" if lost is not None else "kept" if kept else "aside", lost))
        rows.append(Row(number, traced.input[number], cells))
    return rows, columns


def _anchors(home: dict[tuple[int, ...], int], number: int, size: int) -> list[int | None]:
    """The place in the output of each token of a piece; None for a token that is not there, and for a repeat."""
    places = [home.get((number, inner)) for inner in range(size)]
    return [None if place in places[:inner] else place for inner, place in enumerate(places)]


def _output_columns(anchors: Sequence[Sequence[int | None]], length: int) -> list[int]:
    """Where the tokens of the output stand, so that each row has room for its tokens without a place."""
    inserted = [0] * length
    for row in anchors:
        before, waiting = -1, 0
        for place in row:
            if place is None:
                waiting += 1
            else:
                inserted[place] = max(inserted[place], waiting - (place - before - 1))
                before, waiting = place, 0
    return [place + moved for place, moved in enumerate(itertools.accumulate(inserted))]


def _row_columns(anchors: Sequence[int | None], columns: Sequence[int], start: int) -> list[int]:
    """The columns of one row: tokens without a place stand behind those with one, or in front of the first."""
    first = next((inner for inner, place in enumerate(anchors) if place is not None), None)
    column = start if first is None else columns[anchors[first] or 0] - first
    places = []
    for place in anchors:
        column = column if place is None else columns[place]
        places.append(column)
        column += 1
    return places


# ---- as an image ---------------------------------------------------------------------------------------------------

LEGEND = "After each token: its probability in percent. Struck through: lost to a higher score. Dashed: masked next."
CHECKED = "Green: accepted by the verifier. Below a token that it refused stands its own; the rest is drafted again."
CHARACTER, LINE, GAP = 7.3, 24, 12
"""Pixels: the width of a character, the height of a row, the space between two columns or passes."""
STYLE = """
svg { color-scheme: light dark; --ink: #1d2129; --faint: #687180; --hue: #2f6fbd; --bad: #b3261e; --mask: #8a5a00;
  --good: #1a7f37 }
@media (prefers-color-scheme: dark) {
  svg { --ink: #e6e8ec; --faint: #98a2b3; --hue: #6ea8ff; --bad: #ff8a80; --mask: #f0b64a;
    --good: #56d364 } }
text { font: 12px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: var(--ink) }
.faint, .aside, .given { fill: var(--faint) } .head { font-weight: 700 }
.box { fill: var(--hue) } .lost { fill: var(--bad); text-decoration: line-through } .score { fill: var(--bad) }
.masked { fill: none; stroke: var(--mask); stroke-dasharray: 4 3; stroke-width: 1.5 }
.good { fill: var(--good); font-weight: 700 } .accepted { fill: var(--good); fill-opacity: .16; stroke: var(--good) }
"""


def draw_svg(hypothesis: Hypothesis, name: Name) -> str:
    """All passes of a traced hypothesis below each other; light or dark, as the reader's system is."""
    parts: list[str] = []
    wide, high = 0.0, float(GAP)
    for passes in hypothesis.passes:
        for number, traced in enumerate(passes, start=1):
            parts.append(_text(GAP, high + 14, f"Pass {number} of {len(passes)}", "head"))
            drawn, width, height = _svg_pass(draw(traced), name, high + LINE)
            parts += drawn
            wide, high = max(wide, width), height + 2 * GAP
    legends = [("faint", LEGEND), *([("faint", CHECKED)] if hypothesis.checks else [])]
    for kind, text in (("head", hypothesis.text), *legends):
        parts.append(_text(GAP, high + 14, text, kind))
        wide, high = max(wide, 2 * GAP + CHARACTER * len(text)), high + LINE
    size = f'width="{wide:.0f}" height="{high:.0f}" viewBox="0 0 {wide:.0f} {high:.0f}"'
    return "\n".join(
        [f'<svg xmlns="http://www.w3.org/2000/svg" {size}>', f"<style>{STYLE}</style>", *parts, "</svg>\n"]
    )


def _svg_pass(picture: Picture, name: Name, top: float) -> tuple[list[str], float, float]:
    """The elements of one pass, its right edge and its lower edge."""
    cells = [cell for row in picture.rows for cell in row.cells]
    labels = [row_label(row, name) for row in picture.rows]
    widths = [0.0] * picture.columns
    for cell in cells:
        widths[cell.column] = max(widths[cell.column], CHARACTER * len(cell_text(cell, name)))
    for placed in (*picture.output, *filter(None, [picture.correction])):
        widths[placed.column] = max(widths[placed.column], CHARACTER * len(name(placed.id)))
    left = GAP + CHARACTER * max(map(len, [*labels, "checked"])) + GAP
    edges = list(itertools.accumulate((width + GAP for width in widths), initial=left))
    parts = []
    kept = " ".join(map(name, picture.prefix))
    if kept:
        parts += [_text(GAP, top + 16, "kept", "faint"), _text(left, top + 16, kept, "good")]
        top += LINE
    for number, (row, label) in enumerate(zip(picture.rows, labels, strict=True)):
        base = top + LINE * number + 16
        parts.append(_text(GAP, base, label, "faint"))
        for cell in row.cells:
            x = edges[cell.column]
            if cell.state == "kept":
                box = (x - 4, base - 14, widths[cell.column] + 8, LINE - 4)
                parts.append(_rectangle(box, f'class="box" fill-opacity="{0.06 + 0.3 * math.exp(cell.score):.2f}"'))
            parts.append(_text(x, base, cell_text(cell, name), cell.state))
    base = top + LINE * len(picture.rows) + 20
    parts.append(_text(GAP, base, "merged", "head"))
    for column, id, state in picture.output:
        parts.append(_text(edges[column], base, name(id), "lost" if state == "refused" else "head"))
        if state in ("masked", "accepted"):
            box = (edges[column] - 4, base - 14, widths[column] + 8, LINE - 4)
            parts.append(_rectangle(box, f'class="{state}"'))
    if picture.checked:
        base += LINE
        parts.append(_text(GAP, base, "checked", "head"))
        parts += [_text(edges[column], base, text, "good") for column, text in verdicts(picture, name)]
    said = [(describe(decision, name), "score" if decision.lost else "faint") for decision in picture.decisions]
    said += [(describe_check(picture, name), "faint")] if picture.checked else []
    for sentence, kind in said:
        base += LINE - 4
        parts.append(_text(left, base, sentence, kind))
    wide = max(edges[-1], *(left + CHARACTER * len(text) for text in (kept, *(sentence for sentence, _ in said)))) + GAP
    return parts, wide, base


def row_label(row: Row, name: Name) -> str:
    """The position of a piece and the decoder input there."""
    return "filled" if row.input is None else f"{row.position:3d} {name(row.input)}"


def cell_text(cell: Cell, name: Name) -> str:
    """A token and its probability in percent; nothing but the token if it was given."""
    return name(cell.id) if cell.state == "given" else f"{name(cell.id)} {100 * math.exp(cell.score):.0f}"


def describe(decision: Decision, name: Name) -> str:
    """A conflict or a concatenation in words."""
    left, right = (" ".join(map(name, ids)) or "nothing" for ids in (decision.left, decision.right))
    if decision.step == "concatenate":
        return f"piece {decision.piece} shares nothing with the text before it and is appended: {right}"
    winner = left if decision.kept == "left" else right
    scored = f"{left} ({decision.left_score:.2f}) against {right} ({decision.right_score:.2f})"
    return f"piece {decision.piece}: {scored}: {winner} wins"


def verdicts(picture: Picture, name: Name) -> list[tuple[int, str]]:
    """A tick below each token that the verifier has accepted, and its own below the first that it has not."""
    ticks = [(placed.column, "✓") for placed in picture.output if placed.state == "accepted"]
    own = picture.correction
    return ticks if own is None else [*ticks, (own.column, name(own.id))]


def describe_check(picture: Picture, name: Name) -> str:
    """What the verifier said of a draft, in words."""
    states = [placed.state for placed in picture.output]
    accepted, refused = states.count("accepted"), [one.id for one in picture.output if one.state == "refused"]
    count = f"{accepted} of {accepted + len(refused)} tokens" if refused else "all of the draft"
    said = f"the verifier accepts {count}"
    if picture.correction is not None:
        place = f"for {name(refused[0])}" if refused else "behind it"
        said += f" and writes {name(picture.correction.id)} {place}"
    return said


def _text(x: float, y: float, text: str, kind: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}">{escape(text)}</text>'


def _rectangle(box: tuple[float, float, float, float], rest: str) -> str:
    x, y, width, height = box
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="4" {rest}/>'
