"""The sentences that models are measured with (bench.py): the same for all, and none that a model would split."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lath.analysis.settings import BenchSettings
from lath.errors import UserError
from lath.translator import Translator

WARM_UP = 20
"""Sentences at the start that are translated but not timed."""
FEWEST_BATCHES = 4
"""Batches in one throughput measurement, at least: an engine may prepare one batch while it decodes another."""
PER_LENGTH = 10
"""Sentences measured at each length."""
TOLERANCE = 0.15
"""The largest relative difference between a length and its sentences."""


@dataclass(frozen=True)
class Pool:
    """Lines that no model would split, with their number of source tokens for the first model."""

    lines: list[str]
    counts: list[int]
    too_long: int
    """Lines left out because a model would translate them in fragments."""


@dataclass(frozen=True)
class Text:
    """The sentences that all rows translate, in order."""

    warm_up: list[str]
    timed: list[str]
    tokens: list[int]
    """Source tokens of each timed sentence."""
    bulk: dict[str, int]
    """Distinct sentences for the throughput, the timed ones first, with their source tokens."""
    by_length: dict[int, list[str]]
    notes: list[str]
    """What was left out or repeated, and why."""


def taken_whole(translators: Sequence[Translator], lines: Sequence[str]) -> list[bool]:
    """Whether no model would split a line, for each line."""
    whole = [True] * len(lines)
    for translator in translators:
        counts = map(len, translator.source_vocab.encode_lines(lines))
        whole = [fits and count <= translator.info.max_length for fits, count in zip(whole, counts, strict=True)]
    return whole


def usable_lines(lines: Sequence[str], translators: Sequence[Translator]) -> Pool:
    """The lines to choose from: not blank, and short enough for every model."""
    stripped = [line.strip() for line in lines]
    counts = [len(ids) for ids in translators[0].source_vocab.encode_lines(stripped)]
    filled = [number for number, count in enumerate(counts) if count]
    whole = taken_whole(translators, [stripped[number] for number in filled])
    chosen = [number for number, fits in zip(filled, whole, strict=True) if fits]
    return Pool([stripped[n] for n in chosen], [counts[n] for n in chosen], len(filled) - len(chosen))


def near_length(counts: Sequence[int], length: int, wanted: int) -> list[tuple[int, ...]]:
    """Up to `wanted` groups of lines with about `length` tokens together: single lines first, closest first.

    If there are too few single lines, neighbouring lines are joined.

    >>> near_length([10, 21, 19, 5, 12, 3], 20, wanted=3)
    [(1,), (2,), (3, 4, 5)]
    """
    most = TOLERANCE * length
    near = [number for number, count in enumerate(counts) if abs(count - length) <= most]
    groups: list[tuple[int, ...]] = [
        (number,) for number in sorted(near, key=lambda number: abs(counts[number] - length))
    ]
    start = 0
    while len(groups) < wanted and start < len(counts):
        end, total = start, 0
        while end < len(counts) and abs(total + counts[end] - length) < abs(total - length):
            total += counts[end]
            end += 1
        if end - start > 1 and abs(total - length) <= most:
            groups.append(tuple(range(start, end)))
        start = max(end, start + 1)
    return groups[:wanted]


def choose_text(data: Path, pool: Pool, settings: BenchSettings, whole: Callable[[list[str]], list[bool]]) -> Text:
    """The sentences to time, and some of each length; `whole` returns which lines no model would split."""
    fewest, most = settings.min_tokens, settings.max_tokens
    chosen = [n for n, count in enumerate(pool.counts) if fewest <= count <= (most or math.inf)]
    if len(chosen) <= WARM_UP:
        limited = (fewest, most) != (BenchSettings.min_tokens, BenchSettings.max_tokens)
        asked = f" of {fewest} to {most or 'any number of'} tokens" if limited else ""
        raise UserError(
            f"{data}: {len(chosen)} sentences{asked}, but {WARM_UP + 1} or more are needed, because the first "
            f"{WARM_UP} are not timed; give a longer text{' or widen --min-tokens and --max-tokens' if asked else ''}"
        )
    timed = chosen[WARM_UP : WARM_UP + settings.sentences]
    bulk = {pool.lines[n]: pool.counts[n] for n in chosen[WARM_UP:]}
    notes = []
    if pool.too_long:
        notes.append(f"{pool.too_long} lines left out: a model would translate them in fragments")
    for batch in settings.batches:
        if (needed := throughput_count(len(timed), batch)) > len(bulk):
            notes.append(
                f"batch {batch}: {needed} sentences for the throughput, but {len(bulk)} distinct ones: repeated"
            )
    by_length: dict[int, list[str]] = {}
    for length in settings.lengths:
        groups = near_length(pool.counts, length, PER_LENGTH)
        joined = [" ".join(pool.lines[number] for number in group) for group in groups]
        by_length[length] = [line for line, fits in zip(joined, whole(joined), strict=True) if fits]
        if not by_length[length]:
            reason = "a model would translate them in fragments" if joined else "the text has no such sentences"
            notes.append(f"{length} tokens left out: {reason}")
            del by_length[length]
    return Text(
        [pool.lines[number] for number in chosen[:WARM_UP]],
        [pool.lines[number] for number in timed],
        [pool.counts[number] for number in timed],
        bulk,
        by_length,
        notes,
    )


def throughput_count(timed: int, batch: int) -> int:
    """The sentences of a throughput measurement: whole batches, enough for all timed sentences.

    >>> throughput_count(100, 8), throughput_count(100, 128)
    (104, 512)
    """
    return max(FEWEST_BATCHES, math.ceil(timed / batch)) * batch


def throughput_lines(text: Text, batch: int) -> list[str]:
    """The distinct sentences that fill the batches of a throughput; repeated cyclically if the text has too few."""
    return list(itertools.islice(itertools.cycle(text.bulk), throughput_count(len(text.timed), batch)))
