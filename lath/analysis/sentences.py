"""Which sentences models are measured with (bench.py): the same for all, none that a model would have to cut."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lath.errors import UserError
from lath.translator import Translator

WARM_UP = 20
"""Sentences at the start that are translated but not timed."""
LENGTHS = (10, 20, 40, 80, 160)
"""Source tokens at which latency is measured against length."""
FEWEST_BATCHES = 4
"""Batches in a row whose time tells the throughput: an engine may prepare one while it decodes another."""
PER_LENGTH = 10
"""Sentences measured at each length."""
TOLERANCE = 0.15
"""How far from a length, as a share of it, its sentences may be."""

TokenRange = tuple[int, int | None]
"""Fewest and most source tokens of a sentence; None is any number."""


@dataclass(frozen=True)
class Pool:
    """Lines that every model takes whole, with their source tokens as the first model counts them."""

    lines: list[str]
    counts: list[int]
    too_long: int
    """Lines left out since a model would translate them in parts."""


@dataclass(frozen=True)
class Text:
    """The sentences that all rows translate, in this order."""

    warm_up: list[str]
    timed: list[str]
    tokens: list[int]
    """Source tokens of each timed sentence."""
    by_length: dict[int, list[str]]
    notes: list[str]
    """What was left out, and why."""


def taken_whole(translators: Sequence[Translator], lines: Sequence[str]) -> list[bool]:
    """Which lines no model would translate in parts."""
    whole = [True] * len(lines)
    for translator in translators:
        counts = map(len, translator.source_vocab.encode_lines(lines))
        whole = [fits and count <= translator.info.max_length for fits, count in zip(whole, counts, strict=True)]
    return whole


def usable_lines(lines: Sequence[str], translators: Sequence[Translator]) -> Pool:
    """The lines to choose from: not blank, and short enough for every model."""
    stripped = [line.strip() for line in lines]
    counts = [len(ids) for ids in translators[0].source_vocab.encode_lines(stripped)]
    said = [number for number, count in enumerate(counts) if count]
    whole = taken_whole(translators, [stripped[number] for number in said])
    chosen = [number for number, fits in zip(said, whole, strict=True) if fits]
    return Pool([stripped[n] for n in chosen], [counts[n] for n in chosen], len(said) - len(chosen))


def near_length(counts: Sequence[int], length: int, wanted: int) -> list[tuple[int, ...]]:
    """Up to `wanted` groups of lines that have about `length` tokens together: single lines first, the nearest ones.

    Where there are too few of them, neighbouring lines are joined.

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


def choose_text(
    data: Path,
    pool: Pool,
    most_sentences: int,
    tokens: TokenRange,
    whole: Callable[[list[str]], list[bool]],
    lengths: Sequence[int] = LENGTHS,
) -> Text:
    """The sentences to time, and some of each length; `whole` tells which lines every model takes whole."""
    fewest, most = tokens
    chosen = [n for n, count in enumerate(pool.counts) if fewest <= count <= (most or math.inf)]
    if len(chosen) <= WARM_UP:
        asked = "" if tokens == (1, None) else f" of {fewest} to {most or 'any number of'} tokens"
        raise UserError(
            f"{data}: {len(chosen)} sentences{asked} to measure with, {WARM_UP + 1} or more are needed, for the first "
            f"{WARM_UP} are not timed; give a longer text{' or widen --min-tokens and --max-tokens' if asked else ''}"
        )
    timed = chosen[WARM_UP : WARM_UP + most_sentences]
    notes = []
    if pool.too_long:
        notes.append(f"{pool.too_long} lines left out: a model would translate them in parts")
    by_length: dict[int, list[str]] = {}
    for length in lengths:
        groups = near_length(pool.counts, length, PER_LENGTH)
        joined = [" ".join(pool.lines[number] for number in group) for group in groups]
        by_length[length] = [line for line, fits in zip(joined, whole(joined), strict=True) if fits]
        if not by_length[length]:
            reason = "a model would translate such sentences in parts" if joined else "the text has none, nor joined"
            notes.append(f"{length} tokens left out: {reason}")
            del by_length[length]
    return Text(
        [pool.lines[number] for number in chosen[:WARM_UP]],
        [pool.lines[number] for number in timed],
        [pool.counts[number] for number in timed],
        by_length,
        notes,
    )


def throughput_lines(text: Text, batch: int) -> list[str]:
    """The timed lines as often as it takes for a throughput."""
    return whole_batches(text.timed, batch, FEWEST_BATCHES)


def whole_batches(lines: Sequence[str], batch: int, fewest: int = 1) -> list[str]:
    """The lines, from the start again at the end, as many as fill whole batches, and at least `fewest` of them.

    >>> whole_batches(["a", "b", "c"], 2)
    ['a', 'b', 'c', 'a']
    """
    return list(itertools.islice(itertools.cycle(lines), max(fewest, math.ceil(len(lines) / batch)) * batch))
