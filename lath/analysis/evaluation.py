"""The scores of saved translations (`lath evaluate`), as tables and as JSON (docs/formats.md).

print(evaluate_files(Path("test.en"), [Path("teacher.en"), Path("lat.en")]))
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lath import __version__
from lath.analysis.scores import (
    Score,
    SystemScores,
    bucket_bleu,
    bucket_lines,
    compare,
    evaluate,
    repeat_rates,
    token_lines,
)
from lath.analysis.settings import EvaluateSettings
from lath.errors import UserError
from lath.files import misaligned, read_lines

MOST_DIGITS = 15
"""Decimals that a double has at most."""


@dataclass(frozen=True)
class Evaluation:
    """The scores of all systems; a figure that was not asked for, or that an empty bucket does not have, is None."""

    reference: str
    lines: int
    settings: EvaluateSettings
    systems: list[SystemScores]
    names: list[str]
    repeats: list[list[float]] | None
    """N-gram repeat rates for n = 1 to 4 of the reference, then of each system."""
    bucket_sizes: list[int] | None
    """Lines in each bucket of reference length."""
    bucket_scores: list[list[float | None]] | None
    """BLEU in each bucket, of each system."""
    notes: list[str]
    """What a reader of the figures should know."""

    def as_json(self) -> str:
        """One JSON object, with every digit."""
        settings = self.settings
        tree = {
            "format": 1,
            "lath": __version__,
            "reference": {
                "name": self.reference,
                "lines": self.lines,
                "repeats": None if self.repeats is None else self.repeats[0],
            },
            "window": None if self.repeats is None else settings.window,
            "buckets": None if self.bucket_sizes is None else {"edges": settings.edges, "lines": self.bucket_sizes},
            "notes": self.notes,
            "systems": [
                {
                    "name": name,
                    **dataclasses.asdict(scores),
                    "repeats": None if self.repeats is None else self.repeats[number + 1],
                    "buckets": None if self.bucket_scores is None else self.bucket_scores[number],
                }
                for number, (name, scores) in enumerate(zip(self.names, self.systems, strict=True))
            ],
        }
        return json.dumps(tree, ensure_ascii=False, allow_nan=False)

    def __str__(self) -> str:
        digits, first = self.settings.digits, self.systems[0]
        header = ["", *(cell for score in first.scores for cell in _header(score)), "length", "repeats %"]
        rows = []
        for name, system in zip(self.names, self.systems, strict=True):
            scores = [cell for score in system.scores for cell in _cells(score, digits)]
            rows.append([name, *scores, f"{system.length_ratio:.3f}", f"{system.repeat_rate:.{digits}f}"])
        blocks = [_aligned([header, *rows])]
        if self.repeats is not None:
            header = [f"n-gram repeats %, {self.settings.window} positions back", *(f"n = {n}" for n in range(1, 5))]
            names = [self.reference, *self.names]
            blocks.append(_aligned([header, *_rows(names, self.repeats, digits)]))
        if self.bucket_sizes is not None and self.bucket_scores is not None:
            ends = self.settings.edges
            starts = [1, *(end + 1 for end in ends)]
            spans = [f"{start}-{end}" for start, end in zip(starts, ends, strict=False)]
            header = [f"{first.bleu.metric} by words of the reference", *spans, f"over {ends[-1]}"]
            sizes = ["lines", *map(str, self.bucket_sizes)]
            blocks.append(_aligned([header, sizes, *_rows(self.names, self.bucket_scores, digits)]))
        signatures = [f"{score.metric}|{score.signature}" for score in first.scores]
        signatures.append(
            f"length (tokens per token of the reference), repeats (of the token before)|tok:{first.tokens}"
        )
        if first.bleu.mean is not None:
            signatures.append(f"±: 95 % interval; p: against {self.names[0]}; both by sacrebleu's paired bootstrap")
        return "\n\n".join([*blocks, "\n".join(signatures)])


def evaluate_files(
    reference: Path,
    hypotheses: Sequence[Path],
    settings: EvaluateSettings = EvaluateSettings(),  # noqa: B008 (frozen)
) -> Evaluation:
    """Score files as sacrebleu's command line does, and test each but the first against the first."""
    if settings.digits > MOST_DIGITS:
        raise UserError(f"--digits {settings.digits}: give at most {MOST_DIGITS}")
    right, *systems = (list(read_lines(path, keep_mark=True)) for path in (reference, *hypotheses))
    for path, lines in zip(hypotheses, systems, strict=True):
        if len(lines) != len(right):
            raise misaligned(reference, len(right), path, len(lines))
    tokenised = settings.tokenised
    if len(systems) > 1 and settings.samples:
        scores = compare(systems, right, tokenised, ter=settings.ter, samples=settings.samples)
    else:
        scores = [evaluate(lines, right, tokenised, ter=settings.ter) for lines in systems]
    buckets = bucket_lines(right, settings.edges)
    return Evaluation(
        reference=str(reference),
        lines=len(right),
        settings=settings,
        systems=scores,
        names=[str(path) for path in hypotheses],
        repeats=[repeat_rates(token_lines(lines, tokenised), settings.window) for lines in (right, *systems)]
        if settings.repeats
        else None,
        bucket_sizes=[len(lines) for lines in buckets] if settings.buckets else None,
        bucket_scores=[bucket_bleu(lines, right, buckets, tokenised) for lines in systems]
        if settings.buckets
        else None,
        notes=text_notes([reference, *hypotheses], [right, *systems], tested=scores[0].bleu.mean is not None),
    )


def text_notes(paths: Sequence[Path], texts: Sequence[Sequence[str]], tested: bool) -> list[str]:
    """What a reader of the figures should know: byte order marks, and texts that equal the first one."""
    notes = [
        f"{path}: starts with a byte order mark, which counts as text here and in sacrebleu; remove it with "
        f"sed -i '1s/^\\xEF\\xBB\\xBF//' {path}"
        for path, lines in zip(paths, texts, strict=True)
        if lines[0].startswith("\ufeff")
    ]
    equal = [str(path) for path, lines in zip(paths[2:], texts[2:], strict=True) if tested and lines == texts[1]]
    return notes + [f"{path}: the same text as {paths[1]}; its p-value means nothing" for path in equal]


def _header(score: Score) -> list[str]:
    return [score.metric] if score.mean is None else [score.metric, "±", "p"]


def _cells(score: Score, digits: int) -> list[str]:
    tested = [f"{score.margin:.{digits}f}", _number(score.p_value, 4)] if score.mean is not None else []
    return [f"{score.value:.{digits}f}", *tested]


def _rows(names: Sequence[str], figures: Sequence[Sequence[float | None]], digits: int) -> list[list[str]]:
    return [[name, *(_number(figure, digits) for figure in row)] for name, row in zip(names, figures, strict=True)]


def _number(figure: float | None, digits: int) -> str:
    return "" if figure is None else f"{figure:.{digits}f}"


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    """A table: the first column to the left, the others to the right."""
    first, *widths = (max(map(len, column)) for column in zip(*rows, strict=True))
    lines = [
        "  ".join([name.ljust(first), *(cell.rjust(width) for cell, width in zip(cells, widths, strict=True))])
        for name, *cells in rows
    ]
    return "\n".join(line.rstrip() for line in lines)
