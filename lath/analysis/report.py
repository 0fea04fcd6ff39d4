"""One self-contained HTML page of an analysis: tables, plots, and a browser of sentences with every pass as a picture.

The page is lath/analysis/report/index.html with style, script and data put in. It makes no request (its content
security policy forbids them), and no text of the data is ever read as markup.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import re
import zlib
from collections.abc import Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

from lath import __version__
from lath.analysis.analysis import Analysis, System, Trace
from lath.analysis.picture import draw
from lath.decoding.results import Pass

LARGEST = 7_800_000
"""Bytes of the page, if the sentences alone do not need more: pictures of the last lines are left out."""
MOST_LINES = 10_000
"""Sentences in the page: of a larger test set those with passes, and others evenly spread."""
CHUNK = 50
"""Traced lines that are packed together: the page unpacks what is looked at."""
STATES = ("kept", "lost", "aside", "given")
FIRST_PERCENT = 35
"""The character of 0 percent: none up to 100 percent is a control character that JSON would have to escape."""


def build_report(analysis: Analysis, largest: int = LARGEST) -> str:
    """The page, of at most `largest` bytes if leaving pictures out can achieve it."""
    title = f"Analysis of {Path(analysis.reference_path).name}"
    data = json.dumps(_data(analysis, largest), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return build_page(html.escape(title), data.replace("<", "\\u003c"))  # else </script> in a text would end the data


def build_page(title: str, data: str) -> str:
    """Title and data with page, style and script around them, all as it stands in HTML."""
    folder = resources.files("lath.analysis") / "report"
    page, style, script = ((folder / name).read_text("utf-8") for name in ("index.html", "style.css", "app.js"))
    parts = {
        "title": title,
        "style": style,
        "style_hash": _digest(style),
        "script": script,
        "script_hash": _digest(script),
        "data": data,
    }
    return re.sub(r"@(\w+)@", lambda name: parts[name[1]], page)  # one pass: what is put in is not searched


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _chosen(analysis: Analysis) -> list[int] | None:
    """The lines that the page shows; None for all."""
    count = len(analysis.reference)
    if count <= MOST_LINES:
        return None
    traced = {trace.line for system in analysis.systems for trace in system.traces}
    return sorted(traced | {number * count // MOST_LINES for number in range(MOST_LINES)})


def _with_lines(analysis: Analysis, lines: Sequence[int]) -> Analysis:
    """The analysis with the sentences of some lines alone."""
    place = {line: number for number, line in enumerate(lines)}
    systems = [
        replace(
            system,
            texts=[system.texts[line] for line in lines],
            sentence_chrf=[system.sentence_chrf[line] for line in lines],
            traces=[replace(trace, line=place[trace.line]) for trace in system.traces],
        )
        for system in analysis.systems
    ]
    source = None if analysis.source is None else [analysis.source[line] for line in lines]
    return replace(analysis, source=source, reference=[analysis.reference[line] for line in lines], systems=systems)


def _data(analysis: Analysis, largest: int) -> dict[str, Any]:
    """What the page shows; sentences and pictures are packed, which makes them a third of the size."""
    notes = list(analysis.notes)
    lines = _chosen(analysis)
    if lines is not None:
        notes.append(f"{len(lines)} of {len(analysis.reference)} sentences are shown; the figures are of all")
        analysis = _with_lines(analysis, lines)
    text = {
        "lines": lines,
        "source": analysis.source,
        "reference": analysis.reference,
        "systems": [system.texts for system in analysis.systems],
        "chrf": [[round(score, 1) for score in system.sentence_chrf] for system in analysis.systems],
    }
    plots = [{"title": plot.title, "svg": base64.b64encode(plot.svg.encode()).decode()} for plot in analysis.plots]
    packed = _packed(text)
    room = largest - len(packed) - sum(len(plot["svg"]) for plot in plots) - 200_000
    pictures = _fitting([_packed_traces(system.traces) for system in analysis.systems], room)
    for system, chunks in zip(analysis.systems, pictures, strict=True):
        if (kept := min(len(chunks) * CHUNK, len(system.traces))) < len(system.traces):
            notes.append(f"{system.name}: passes of the first {kept} of {len(system.traces)} traced lines, for size")
    return {
        "notes": notes,
        "tables": [
            {"title": table.title, "header": table.header, "rows": table.shown(), "note": table.note}
            for table in analysis.tables
        ],
        "plots": plots,
        "systems": [_system(system, chunks) for system, chunks in zip(analysis.systems, pictures, strict=True)],
        "text": packed,
        "chunk": CHUNK,
        "signature": f"lath {__version__}. Scores: {'; '.join(_signatures(analysis))}",
    }


def _signatures(analysis: Analysis) -> list[str]:
    return [f"{score.metric}|{score.signature}" for score in analysis.systems[0].scores.scores]


def _system(system: System, chunks: list[str]) -> dict[str, Any]:
    """Its name, its tokens, and which lines have passes: a number if the first ones, else a list."""
    lines = [trace.line for trace in system.traces][: len(chunks) * CHUNK]
    first = lines == list(range(len(lines)))
    tokens = system.tokens if lines else {}
    return {"name": system.name, "tokens": tokens, "traced": len(lines) if first else lines, "pictures": chunks}


def _packed(tree: Any) -> str:
    """JSON, deflated, in base 64."""
    text = json.dumps(tree, ensure_ascii=False, separators=(",", ":"))
    return base64.b64encode(zlib.compress(text.encode("utf-8", "replace"), 9)).decode()


def _packed_traces(traces: Sequence[Trace]) -> list[str]:
    if not any(trace.passes for trace in traces):
        return []
    drawn = [
        [trace.pass_texts, [[_packed_pass(traced) for traced in passes] for passes in trace.passes]] for trace in traces
    ]
    return [_packed(drawn[start : start + CHUNK]) for start in range(0, len(drawn), CHUNK)]


def _fitting(systems: list[list[str]], room: int) -> list[list[str]]:
    """As many chunks as there is room for, the same lines of each system."""
    longest = max(map(len, systems), default=0)
    used = 0
    for count in range(longest):
        used += sum(len(chunks[count]) for chunks in systems if count < len(chunks))
        if used > room:
            return [chunks[:count] for chunks in systems]
    return systems


def _packed_pass(traced: Pass) -> list[Any]:
    """A picture in few numbers; `unpackPass` of app.js is the inverse.

    Output tokens; [place, columns inserted before it]; places masked; length change; input tokens (None: one row);
    columns by which each row starts after the one before; probabilities, a character each; every cell that is not a
    kept token behind the one before: [row, place in it, columns skipped, token, state, conflict]; decisions: [piece,
    winner, its score, loser, its score], or [piece, what was appended]; of a draft that was checked also the tokens
    before it, and [accepted, correction].
    """
    picture = draw(traced)
    columns = [placed.column for placed in picture.output]
    before = [-1, *columns]
    gaps = [[n, column - last - 1] for n, (column, last) in enumerate(zip(columns, before, strict=False))]
    starts, percents, odd = [], [], []
    first = -1
    for number, row in enumerate(picture.rows):
        starts.append(row.cells[0].column - first)
        first = row.cells[0].column
        last = first - 1
        for inner, (column, id, score, state, conflict) in enumerate(row.cells):
            percents.append(chr(FIRST_PERCENT + round(100 * math.exp(min(score, 0.0)))))
            if state != "kept" or column != last + 1:
                known = -1 if state == "kept" else id
                lost = -1 if conflict is None else conflict
                odd.append([number, inner, column - last - 1, known, STATES.index(state), lost])
            last = column
    verdicts: list[list[Any]] = []
    for decision in picture.decisions:
        sides = [(decision.left, round(decision.left_score, 2)), (decision.right, round(decision.right_score, 2))]
        winner, loser = sides if decision.kept == "left" else sides[::-1]
        appended = decision.step == "concatenate"
        verdicts.append([decision.piece, decision.right] if appended else [decision.piece, *winner, *loser])
    return [
        traced.output,
        [gap for gap in gaps if gap[1]],
        traced.masked,
        picture.length_change,
        [row.input for row in picture.rows] if picture.rows[0].input is not None else None,
        starts,
        "".join(percents),
        odd,
        verdicts,
        *([traced.prefix, traced.check] if traced.check is not None else []),
    ]
