"""What one command costs: seconds and memory of `lath translate` from its start to its end.

    python benchmarks/startup.py de-en --file news.de

Each command runs in a process of its own, in random order each turn, with torch's import alone as the floor. Prints the
medians of wall and CPU seconds (other programs lengthen the first, hardly the second) and the highest peak of resident
memory, and ends in one line of JSON. On Linux; a megabyte is a million bytes.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import time
from pathlib import Path
from typing import NamedTuple

# Nothing of lath or torch is imported here: a process starts with the peak of the one that started it.


class Cost(NamedTuple):
    """What one process took."""

    wall: float
    cpu: float
    megabytes: float


def cost(command: list[str]) -> Cost:
    """Run a command to its end; its output is discarded."""
    quiet = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
    begun = time.perf_counter()
    process = os.posix_spawn(command[0], command, os.environ, file_actions=quiet)
    _, status, used = os.wait4(process, 0)
    wall = time.perf_counter() - begun
    if status:
        raise SystemExit(f"{' '.join(command)}: exit code {os.waitstatus_to_exitcode(status)}")
    return Cost(wall, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024 / 1e6)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Measure the start of lath: seconds and memory of a whole command.")
    parser.add_argument("model")
    parser.add_argument("--text", default="Guten Morgen, wie geht es dir heute?")
    parser.add_argument("--file", type=Path, help="also translate this file")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    translate = [sys.executable, "-m", "lath", "translate", arguments.model]
    commands = {
        "import torch": [sys.executable, "-c", "import torch"],
        "one line": [*translate, "--text", arguments.text],
    }
    if arguments.file is not None:
        commands["file"] = [*translate, str(arguments.file)]
    costs: dict[str, list[Cost]] = {name: [] for name in commands}
    draw = random.Random(1)
    for _ in range(arguments.repeats):
        for name in draw.sample(sorted(commands), len(commands)):
            costs[name].append(cost(commands[name]))
    rows = []
    print("| command | wall s | CPU s | peak MB |\n|---|--:|--:|--:|")
    for name, runs in costs.items():
        wall, cpu = (statistics.median(values) for values in list(zip(*runs, strict=True))[:2])
        peak = max(run.megabytes for run in runs)
        print(f"| {name} | {wall:.2f} | {cpu:.2f} | {peak:.0f} |")
        rows.append({"command": name, "wall": wall, "cpu": cpu, "peak_mb": peak})
    print(json.dumps({"repeats": arguments.repeats, "rows": rows}))


if __name__ == "__main__":
    main()
