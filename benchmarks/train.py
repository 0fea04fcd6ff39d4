"""Training speed: `python benchmarks/train.py DATA ...`, where DATA was written by `lath prepare`.

Times updates for each directory, kind and engine, with the `update` function of `lath train`. The warm-up, which
includes compilation, is reported separately. Prints a header, a table and finally one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

import lath
from lath.config import Recipe, load_recipe, merge_overrides, recipe_from_tree
from lath.devices import choose_device
from lath.model.flops import peak_flops, update_flops
from lath.text.corpus import Corpus
from lath.trainer import choose_engine
from lath.training.batches import make_batch, plan_epoch
from lath.training.learner import build_learner
from lath.training.loop import update

WARM_UP = 5


@dataclass(frozen=True)
class Row:
    """One measurement."""

    data: str
    kind: str
    engine: str
    vocabulary: int
    step_tokens: int
    tokens_per_second: int
    milliseconds: float
    padding: float
    mfu: float | None
    memory_gib: float | None
    first_step_seconds: float


def measure(data: Path, recipe: Recipe, device: torch.device, steps: int) -> Row:
    """Train for some steps and count the target tokens, without padding."""
    corpus = Corpus.open(data, "train")
    settings = recipe.train
    plan = plan_epoch(corpus.source.lengths, corpus.target.lengths, settings.step_tokens, settings.seed, epoch=0)
    learner = choose_engine(build_learner(recipe, data, device), corpus)
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    update(learner, make_batch(corpus, plan[0]), 1)
    wait()
    first = time.perf_counter() - began
    for step in range(2, WARM_UP + 1):
        update(learner, make_batch(corpus, plan[step % len(plan)]), step)
    wait()
    began, results, flops = time.perf_counter(), [], 0.0
    size = learner.model.body.target_size
    for step in range(WARM_UP + 1, WARM_UP + steps + 1):
        indices = plan[step % len(plan)]
        results.append(update(learner, make_batch(corpus, indices), step))
        lengths = corpus.source.lengths[indices] + 1, corpus.target.lengths[indices] + 2
        flops += update_flops(recipe.network, size, *lengths)
    wait()
    seconds = time.perf_counter() - began
    peak = peak_flops(device)
    return Row(
        data=data.name,
        kind=recipe.network.kind,
        engine=type(learner.engine).__name__.removesuffix("Engine").lower(),
        vocabulary=size,
        step_tokens=settings.step_tokens,
        tokens_per_second=round(sum(result.tokens for result in results) / seconds),
        milliseconds=round(1000 * seconds / steps, 1),
        padding=round(1 - sum(r.filled for r in results) / sum(r.positions for r in results), 4),
        mfu=round(flops / seconds / peak, 3) if peak else None,
        memory_gib=round(torch.cuda.max_memory_allocated() / 2**30, 1) if device.type == "cuda" else None,
        first_step_seconds=round(first, 1),
    )


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("data", type=Path, nargs="+")
    parser.add_argument(
        "--recipe", type=Path, help="TOML recipe; default: the base network, 32,000 tokens per step, bf16"
    )
    parser.add_argument("--kinds", nargs="+", default=["LAT", "CMLM", "AT"])
    parser.add_argument("--engines", nargs="+", default=["plain", "packed"])
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--set", action="append", default=[], dest="overrides", metavar="SECTION.KEY=VALUE")
    arguments = parser.parse_args()
    device = choose_device(arguments.device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    print(f"lath {lath.__version__}, torch {torch.__version__}, {name}, {torch.get_num_threads()} threads")
    rows = []
    for data in arguments.data:
        for kind in arguments.kinds:
            for engine in arguments.engines:
                chosen = [*arguments.overrides, f'network.kind="{kind}"', f'train.engine="{engine}"']
                if arguments.recipe:
                    recipe = load_recipe(arguments.recipe, chosen)
                else:
                    base = ["train.step_tokens=32000", "train.micro_batch_tokens=32256", 'train.precision="bf16"']
                    recipe = recipe_from_tree(merge_overrides([*base, *chosen]), "benchmark")
                rows.append(measure(data, recipe, device, arguments.steps))
                print("  ".join(f"{key} {value}" for key, value in asdict(rows[-1]).items()), flush=True)
    print()
    print("| data | kind | engine | vocabulary | step | tokens/s | ms | padding | MFU | GiB | first s |")
    print("|---|---|---|--:|--:|--:|--:|--:|--:|--:|--:|")
    for row in rows:
        print("| " + " | ".join("" if value is None else str(value) for value in asdict(row).values()) + " |")
    print(json.dumps({"device": name, "torch": torch.__version__, "rows": [asdict(row) for row in rows]}))


if __name__ == "__main__":
    main()
