"""What `lath analyse` costs: seconds and memory from saved translations to the report.

    python benchmarks/analyse.py test.en --source test.de
    python benchmarks/analyse.py train.en.xz --source train.de.xz --lines 100000 --systems 2

The systems are the reference with words dropped, repeated, exchanged and moved, each system with other ones. Prints
wall and CPU seconds, the peak of resident memory of the largest process and of all processes together (shared pages
counted once), and the size of the report; ends in one line of JSON. On Linux; a megabyte is a million bytes. Prefix it
with `taskset -c 0,1` to measure on two cores.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

# Nothing of torch is imported here: a process starts with the peak of the one that started it.
from lath.files import read_lines

EVERY = 0.5
"""Seconds between two looks at the memory."""


def changed(line: str, words: Sequence[str], share: float, draw: random.Random) -> str:
    """A line with a share of its words dropped, repeated, exchanged for one of `words`, or moved by one place."""
    found: list[str] = []
    for word in line.split():
        kind = draw.randrange(4) if draw.random() < share else 4
        if kind == 0:
            continue
        if kind == 3 and found:
            found.insert(-1, word)
        else:
            found += [draw.choice(words)] if kind == 2 else [word] * (2 if kind == 1 else 1)
    return " ".join(found) or words[0]


def tree(process: int) -> list[int]:
    """A process and its descendants."""
    found = [process]
    for parent in found:
        try:
            found += map(int, Path(f"/proc/{parent}/task/{parent}/children").read_text(encoding="ascii").split())
        except OSError:  # it has ended
            continue
    return found


def resident(processes: Sequence[int]) -> float:
    """Megabytes of some processes together; a page that several share counts once."""
    total = 0
    for process in processes:
        try:
            lines = Path(f"/proc/{process}/smaps_rollup").read_text(encoding="ascii").splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total * 1024 / 1e6


def cost(command: list[str]) -> dict[str, float]:
    """Run a command to its end; its standard output is discarded."""
    quiet = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
    begun, together = time.perf_counter(), 0.0
    process = os.posix_spawn(command[0], command, os.environ, file_actions=quiet)
    while True:
        ended, status, used = os.wait4(process, os.WNOHANG)
        if ended:
            break
        together = max(together, resident(tree(process)))
        time.sleep(EVERY)
    wall = time.perf_counter() - begun
    if status:
        raise SystemExit(f"{' '.join(command)}: exit code {os.waitstatus_to_exitcode(status)}")
    largest = used.ru_maxrss * 1024 / 1e6
    return {"wall": wall, "cpu": used.ru_utime + used.ru_stime, "largest_mb": largest, "together_mb": together}


def main() -> None:
    """Make the systems, analyse them, print the cost."""
    parser = argparse.ArgumentParser(description="Measure lath analyse: seconds and memory.")
    parser.add_argument("reference", type=Path)
    parser.add_argument("--source", type=Path, help="the source text, for names and for the report")
    parser.add_argument("--lines", type=int, help="lines to analyse (default: all)")
    parser.add_argument("--systems", type=int, default=6)
    parser.add_argument("--share", type=float, default=0.3, help="share of the words that are changed (0.3)")
    parser.add_argument("--no-ter", action="store_true", help="leave TER out")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        paths = {}
        for side, path in (("reference", arguments.reference), ("source", arguments.source)):
            if path is not None:
                paths[side] = Path(folder) / side
                lines = list(itertools.islice(read_lines(path), arguments.lines))
                paths[side].write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        lines = list(read_lines(paths["reference"]))
        words = sorted({word for line in lines for word in line.split()})
        for number in range(arguments.systems):
            draw = random.Random(number)
            text = (changed(line, words, arguments.share, draw) + "\n" for line in lines)
            (Path(folder) / f"system-{number}").write_text("".join(text), encoding="utf-8")
        count, out = len(lines), Path(folder) / "out"
        del lines, words
        systems = [f"system-{number}={folder}/system-{number}" for number in range(arguments.systems)]
        flags = ["--source", str(paths["source"])] if "source" in paths else []
        flags += ["--no-ter"] * arguments.no_ter
        found = cost(
            [sys.executable, "-m", "lath", "analyse", str(paths["reference"]), *systems, "--out", str(out), *flags]
        )
        found["report_mb"] = (out / "report.html").stat().st_size / 1e6
        scores = json.loads((out / "analysis.json").read_text(encoding="utf-8"))["systems"]
    bleu = [round(system["scores"]["bleu"]["value"], 2) for system in scores]
    card = {
        "lines": count, "systems": arguments.systems, "share": arguments.share, "ter": not arguments.no_ter,
        "cores": len(os.sched_getaffinity(0)), "bleu": bleu,
    }  # fmt: skip
    print("analyse|" + "|".join(f"{key}:{value}" for key, value in card.items()))
    print(f"\n| {' | '.join(found)} |\n|{'--:|' * len(found)}")
    print(f"| {' | '.join(f'{value:.2f}' for value in found.values())} |")
    print(json.dumps({"benchmark": "analyse", **card, **found}))


if __name__ == "__main__":
    main()
