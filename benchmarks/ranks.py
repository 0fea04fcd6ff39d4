"""Speed-up of a second rank on a CPU: tokens/s of `lath train` with one and two ranks, one thread each.

    python benchmarks/ranks.py

Trains a few steps on the demo text with the demo recipe. Runs with one and two ranks alternate, and medians are
reported. The first log entry of each run, which includes start-up, is left out. Prints a header, a table and finally
one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

import lath

ROOT = Path(__file__).parents[1]
BAR = 1.5
"""The speed-up that two ranks must reach."""


def lath_command(*arguments: object, ranks: int = 1) -> None:
    """Run a lath command in the project folder with this many ranks, one thread each."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks > 1 else []
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, *torchrun, "-m", "lath", *map(str, arguments)]
    subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)


def speed(recipe: Path, data: Path, run: Path, ranks: int, steps: int) -> float:
    """Target tokens per second over all log entries but the first."""
    every = max(1, steps // 6)
    settings = {"steps": steps, "log_every": every, "validate_every": steps, "keep_best": 1}
    changes = [word for name, value in settings.items() for word in ("--set", f"train.{name}={value}")]
    lath_command("train", recipe, data, run, "--device", "cpu", *changes, ranks=ranks)
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    counted = [line for line in lines if "tokens_per_second" in line][1:]
    # Entries cover about the same number of tokens, so the harmonic mean is the overall speed.
    return statistics.harmonic_mean([line["tokens_per_second"] for line in counted])


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(
        description="Time training with one and two ranks on a CPU.", epilog="example: python benchmarks/ranks.py"
    )
    parser.add_argument("--recipe", type=Path, default=ROOT / "recipes/demo.toml", help="recipe (default: the demo's)")
    parser.add_argument("--steps", type=int, default=36, help="steps of each run (default 36)")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each; the median is reported (default 3)")
    options = parser.parse_args()

    signature = f"train|{options.recipe.stem}|cpu|threads:1|torch:{torch.__version__}|lath:{lath.__version__}"
    print(f"{signature}\n{os.cpu_count()} CPUs, {platform.machine()}, load {os.getloadavg()[0]:.2f}\n")
    speeds: dict[int, list[float]] = {1: [], 2: []}
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        lath_command("prepare", options.recipe, data)
        for repeat in range(options.repeats):
            for ranks, found in speeds.items():
                run = Path(folder) / f"run-{ranks}-{repeat}"
                found.append(speed(options.recipe, data, run, ranks, options.steps))
    medians = {ranks: statistics.median(found) for ranks, found in speeds.items()}
    print("ranks   tokens/s      least       most")
    for ranks, found in speeds.items():
        print(f"{ranks:5d} {medians[ranks]:10,.0f} {min(found):10,.0f} {max(found):10,.0f}")
    gain = medians[2] / medians[1]
    print(f"\n2 ranks: {gain:.2f} times the tokens/s of 1 (required: {BAR})")
    card = {"signature": signature, "cpus": os.cpu_count(), "steps": options.steps, "repeats": options.repeats}
    rounded = {str(ranks): [round(one, 1) for one in found] for ranks, found in speeds.items()}
    print(json.dumps({"benchmark": "ranks", **card, "bar": BAR, "gain": round(gain, 3), "tokens_per_second": rounded}))


if __name__ == "__main__":
    main()
