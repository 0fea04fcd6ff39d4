"""sacrebleu's statistics and its paired bootstrap in bounded memory, to the last digit (scores.py).

sacrebleu keeps the n-grams of all references, and samples x sentences x statistics of its test: 13 GB for 100,000
sentences. Here references are analysed in blocks of lines, and a block of samples is one matrix product: how often each
sentence was drawn, times its statistics. The same draws, the same sums, the same formulas.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric

Figures = NDArray[np.floating[Any]]
Item = TypeVar("Item")
LINES = 200
"""Lines of a block: their n-grams are held in memory, 80 KB a line."""
DRAWN = 3_000_000
"""Draws held in memory: sentences x samples of a block."""


@dataclass(frozen=True)
class Tested:
    """One metric of one system after the bootstrap, named as in `scores.Score`."""

    mean: float
    margin: float
    p_value: float | None
    """None for the first system."""
    samples: Figures


def gather_statistics(
    systems: Sequence[Sequence[str]],
    references: Sequence[str],
    metrics_of: Callable[[Sequence[str]], dict[str, Metric]],
    advance: Callable[[int], None],
    workers: int = 1,
) -> tuple[dict[str, Metric], list[list[Figures]]]:
    """The metrics, and for each system and metric the statistics of each line; `metrics_of` takes references."""
    starts = range(0, len(references), LINES)
    workers = min(workers, len(starts))

    def block(number: int) -> list[list[Figures]]:
        some = slice(starts[number], starts[number] + LINES)
        metrics = metrics_of(references[some])
        counts = (
            [metric._extract_corpus_statistics(lines[some], None) for metric in metrics.values()] for lines in systems
        )
        return [[np.array(rows, dtype=np.float32) for rows in found] for found in counts]

    blocks: list[list[list[Figures]]] = []
    for found in map(block, range(len(starts))) if workers == 1 else in_processes(block, len(starts), workers):
        blocks.append(found)
        advance(len(found[0][0]))
    joined = [[np.concatenate(parts) for parts in zip(*found, strict=True)] for found in zip(*blocks, strict=True)]
    return metrics_of(references[:1]), joined


def in_processes(work: Callable[[int], Item], count: int, workers: int) -> Iterator[Item]:
    """The results of `work` for 0 to `count` - 1, in order, from forked processes: each does every `workers`th."""
    context = multiprocessing.get_context("fork")
    readers = []
    for worker in range(workers):
        reader, writer = context.Pipe(duplex=False)
        context.Process(target=_send, args=(work, range(worker, count, workers), writer), daemon=True).start()
        writer.close()
        readers.append(reader)
    for number in range(count):
        yield readers[number % workers].recv()


def _send(work: Callable[[int], Item], numbers: Sequence[int], writer: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent answers Ctrl-C
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for number in numbers:
        writer.send(work(number))


def total_score(metric: Metric, counts: Figures) -> float:
    """The score of all lines together."""
    return float(metric._compute_score_from_stats(counts.sum(axis=0, dtype=np.float64).tolist()).score)


def sacrebleu_seed() -> int | None:
    """The seed of sacrebleu's tests: SACREBLEU_SEED, where None asks for another one each time."""
    given = os.environ.get("SACREBLEU_SEED", "12345")
    return None if given.lower() == "none" else int(given)


def resample(
    metrics: Sequence[Metric], statistics: Sequence[Sequence[Figures]], values: Sequence[Sequence[float]], samples: int
) -> list[list[Tested]]:
    """For each system and metric the result of the paired bootstrap against the first system."""
    drawn = _sample_scores(metrics, statistics, samples)
    return [
        [
            _tested(scores, None if number == 0 else first, abs(values[0][place] - values[number][place]))
            for place, (scores, first) in enumerate(zip(system, drawn[0], strict=True))
        ]
        for number, system in enumerate(drawn)
    ]


def _sample_scores(
    metrics: Sequence[Metric], statistics: Sequence[Sequence[Figures]], samples: int
) -> list[list[Figures]]:
    """For each system and metric its score in each sample."""
    scores: list[list[list[float]]] = [[[] for _ in metrics] for _ in statistics]
    table = np.concatenate([counts for system in statistics for counts in system], axis=1).astype(np.float64)
    ends = np.cumsum([counts.shape[1] for system in statistics for counts in system])[:-1]
    lines, random = len(table), np.random.default_rng(sacrebleu_seed())
    block = max(1, DRAWN // lines)
    for start in range(0, samples, block):
        draws = random.choice(lines, size=(min(block, samples - start), lines), replace=True)
        times = np.stack([np.bincount(draw, minlength=lines) for draw in draws]).astype(np.float64)
        parts = iter(np.split((times @ table).astype(np.float32), ends, axis=1))  # sacrebleu adds up single precision
        for system in scores:
            for metric, found in zip(metrics, system, strict=True):
                found += [metric._compute_score_from_stats(row).score for row in next(parts)]
    return [[np.array(found) for found in system] for system in scores]


def _tested(scores: Figures, first: Figures | None, difference: float) -> Tested:
    from sacrebleu.significance import estimate_ci

    mean, margin = map(float, estimate_ci(scores))
    if first is None:
        return Tested(mean, margin, None, scores)
    apart = np.abs(scores - first)
    above = int(np.sum(apart - apart.mean() > difference))
    return Tested(mean, margin, (above + 1) / (len(scores) + 1), scores)
