"""How long one sentence takes with each number of threads, on a quiet machine and beside busy neighbours.

    python benchmarks/threads.py de-en news.de --sentences 30 --neighbours 2

Every row translates the same sentences in the same process, in random order each turn. `auto` is lath's default. Prints
p50 and p95 in ms, and as JSON the ratio of auto's p50 to that of the best number of threads (quiet) and of one thread
(busy).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import lath
from lath.files import read_lines

BUSY = "import time\nend = time.time() + 600\nwhile time.time() < end: pass"


@contextlib.contextmanager
def neighbours(count: int) -> Iterator[None]:
    """So many processes that each keep a core busy, for ten minutes at most."""
    others = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(count)]
    try:
        time.sleep(1 if others else 0)
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def measure(model: str, lines: list[str], counts: list[int | None], turns: int) -> dict[int | None, list[float]]:
    """Seconds of every sentence in every turn, by the number of threads; None is the default."""
    translators = {count: lath.load(model, "cpu", threads=count) for count in counts}
    seconds: dict[int | None, list[float]] = {count: [] for count in counts}
    draw = random.Random(1)
    for turn in range(turns + 1):  # the first one warms up
        for line in lines:
            for count in draw.sample(counts, len(counts)):
                begun = time.perf_counter()
                translators[count].translate([line])
                if turn:
                    seconds[count].append(time.perf_counter() - begun)
    return seconds


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Measure one sentence by the number of threads.")
    parser.add_argument("model")
    parser.add_argument("source", type=Path)
    parser.add_argument("--sentences", type=int, default=30)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--neighbours", type=int, default=2)
    arguments = parser.parse_args()
    lines = list(islice(read_lines(arguments.source), arguments.sentences))
    most = len(os.sched_getaffinity(0))
    counts: list[int | None] = [*sorted({1, most}), None]
    print("| neighbours | threads | p50 ms | p95 ms |")
    print("|--:|---|--:|--:|")
    ratios: dict[str, float] = {}
    for busy in (0, arguments.neighbours):
        with neighbours(busy):
            seconds = measure(arguments.model, lines, counts, arguments.turns)
        p50 = {count: statistics.median(values) * 1e3 for count, values in seconds.items()}
        for count, values in seconds.items():
            p95 = sorted(values)[int(0.95 * len(values))] * 1e3
            print(f"| {busy} | {count or 'auto'} | {p50[count]:.1f} | {p95:.1f} |", flush=True)
        ratios["busy" if busy else "quiet"] = p50[None] / (p50[1] if busy else min(p50.values()))
    print(json.dumps(ratios))


if __name__ == "__main__":
    main()
