"""How long one sentence takes with a verifier, beside both models alone: p50 and p95 at batch 1, text to text.

    python benchmarks/verify_latency.py test.de --student runs/lat/model --verifiers runs/at/model
    python benchmarks/verify_latency.py demo/tatoeba.de         # random models: LAT 10-2, AT 12-1, AT 6-6

The rows take turns, in another order each time. A random student knows nothing of its verifier, so hardly a token of
its drafts is accepted: look at the milliseconds of a round (one check and one redraft), which do not depend on it, and
at `5 rounds`, what a sentence with so many would take. Both are computed from the row itself and from that of `rerank`
with the same verifier, which is one check without a redraft. `same` counts the lines that are as the row's verifier
writes them greedily. Prints the table and then the same as JSON.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from random_models import write_random_model, write_random_student

import lath
from lath.analysis.speed import percentile
from lath.config import DecodeOptions, NetworkSettings
from lath.files import read_lines
from lath.translator import Translator

SHAPES = {"LAT": [(10, 2)], "AT": [(12, 1), (6, 6)]}
"""Encoder and decoder layers of the random models."""
TOKENS = 26
"""Length of a random model's translations."""


class Row(NamedTuple):
    """One way to translate."""

    name: str
    verifier: str
    """Empty for the student alone."""
    translator: Translator
    options: DecodeOptions


def label(model: Path) -> str:
    """A model's name: that of its run, if it is the model of one."""
    return model.parent.name if model.name == "model" else model.name


def rows(student: Path, verifiers: Sequence[Path], arguments: argparse.Namespace) -> list[Row]:
    """Every row; a translator has recordings of its own."""
    device, precision = arguments.device, arguments.precision
    alone = lath.load(student, device, precision)
    made = [
        Row(f"{label(student)} {iterations}", "", alone, {"iterations": iterations, "verify": ""})
        for iterations in (1, 4)
    ]
    for path in verifiers:
        at = lath.load(path, device, precision)
        pair = lath.load(student, device, precision, verifier=path)
        name = label(path)
        made.append(Row(f"{name} greedy", name, at, {"beam": 1}))
        made.append(Row(f"{name} beam 5", name, at, {"beam": 5}))
        for verify in ("rerank", "exact", "relaxed"):
            options: DecodeOptions = {"iterations": arguments.draft, "verify": verify, "length_candidates": 1}  # type: ignore[typeddict-item]
            if verify == "relaxed":
                options |= {"verify_top": arguments.top, "verify_nats": arguments.nats}
            made.append(Row(f"{name} {verify}", name, pair, options))
        five: DecodeOptions = {"iterations": arguments.draft, "verify": "rerank", "length_candidates": 5}
        made.append(Row(f"{name} rerank, 5 lengths", name, pair, five))
    return made


def measured(row: Row, lines: list[str]) -> list[tuple[float, str, int, int]]:
    """Milliseconds, translation, checks and passes of each line."""
    found = []
    for line in lines:
        begun = time.perf_counter()
        (hypothesis,) = row.translator.hypotheses([line], split=False, batch_sentences=1, **row.options)
        found.append(((time.perf_counter() - begun) * 1e3, hypothesis.text, hypothesis.checks, hypothesis.iterations))
    return found


def summary(row: Row, runs: list[list[tuple[float, str, int, int]]], greedy: list[str]) -> dict[str, Any]:
    """One row of the table."""
    times = [one[0] for run in runs for one in run]
    return {
        "system": row.name,
        "verifier": row.verifier,
        "p50": statistics.median(times),
        "p95": percentile(times, 0.95),
        "checks": statistics.mean(one[2] for one in runs[0]),
        "passes": statistics.mean(one[3] for one in runs[0]),
        "mean": statistics.mean(times),
        "same": sum(one[1] == line for one, line in zip(runs[0], greedy, strict=True)) if greedy else None,
        "round": None,
        "five_rounds": None,
    }


def add_rounds(results: list[dict[str, Any]]) -> None:
    """What a round takes: all that a row needs beyond one check, shared among its other rounds."""
    once = {result["system"]: result["mean"] for result in results}
    for result in results:
        first = once.get(f"{result['verifier']} rerank")
        if result["system"].endswith(("exact", "relaxed")) and result["checks"] > 1 and first is not None:
            result["round"] = (result["mean"] - first) / (result["checks"] - 1)
            result["five_rounds"] = first + 4 * result["round"]


def fitting(lines: list[str], translator: Translator, arguments: argparse.Namespace) -> list[str]:
    """Lines of the right length; where there are too few, neighbours joined to that length as well."""
    fewest, most, wanted = arguments.min_tokens, arguments.max_tokens, arguments.sentences
    counts = [len(translator.source_vocab.encode(line)) for line in lines]
    found = [line for line, count in zip(lines, counts, strict=True) if fewest <= count <= most][:wanted]
    gathered: list[str] = []
    for line in lines if len(found) < wanted else []:
        gathered.append(line)
        count = len(translator.source_vocab.encode(" ".join(gathered)))
        if fewest <= count <= most and len(gathered) > 1:
            found.append(" ".join(gathered))
        if count >= fewest:
            gathered = []
    return found[:wanted]


def random_pair(folder: Path, arguments: argparse.Namespace) -> tuple[Path, list[Path]]:
    """Models with random weights and the vocabulary of the bundled one."""
    vocab = lath.load("de-en", "cpu", "fp32").source_vocab
    found: dict[str, list[Path]] = {"LAT": [], "AT": []}
    for kind, shapes in SHAPES.items():
        for encoder, decoder in shapes:
            layers = (encoder, decoder) if not arguments.layers else (arguments.layers, arguments.layers)
            network = NetworkSettings(
                kind=kind, width=arguments.width, heads=8, feedforward=2 * arguments.width, encoder_layers=layers[0],
                decoder_layers=layers[1], max_positions=192,
            )  # fmt: skip
            write = write_random_student if kind == "LAT" else write_random_model
            write(folder / f"{kind}-{encoder}-{decoder}", vocab, network, TOKENS)
            found[kind].append(folder / f"{kind}-{encoder}-{decoder}")
    return found["LAT"][0], found["AT"]


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("--student", type=Path)
    parser.add_argument("--verifiers", type=Path, nargs="+")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--draft", type=int, default=1, help="passes of the first draft")
    parser.add_argument("--top", type=int, default=3)
    parser.add_argument("--nats", type=float, default=1.0)
    parser.add_argument("--min-tokens", type=int, default=20)
    parser.add_argument("--max-tokens", type=int, default=30)
    parser.add_argument("--sentences", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--width", type=int, default=512, help="of random models")
    parser.add_argument("--layers", type=int, default=0, help="of random models, instead of their names'")
    return parser.parse_args()


def main() -> None:
    """Print the table."""
    arguments = parsed()
    with tempfile.TemporaryDirectory() as folder:
        if arguments.student is None:
            student, verifiers = random_pair(Path(folder), arguments)
        else:
            student, verifiers = arguments.student, arguments.verifiers
        every = rows(student, verifiers, arguments)
        lines = fitting(list(read_lines(arguments.source)), every[0].translator, arguments)
        print(f"{len(lines)} sentences, {arguments.repeats} turns, torch {torch.__version__}", flush=True)
        runs: dict[str, list[list[tuple[float, str, int, int]]]] = {row.name: [] for row in every}
        for row in every:
            measured(row, lines)  # records
        draw = random.Random(1)
        for _ in range(arguments.repeats):
            for row in draw.sample(every, len(every)):
                runs[row.name].append(measured(row, lines))
    results = [
        summary(row, runs[row.name], [one[1] for run in runs.get(f"{row.verifier} greedy", [])[:1] for one in run])
        for row in every
    ]
    add_rounds(results)
    print("| system | p50 ms | p95 ms | checks | passes | ms a round | 5 rounds | same |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|")
    for one in results:
        numbers = ["-" if one[key] is None else f"{one[key]:.2f}" for key in ("round", "five_rounds")]
        print(
            f"| {one['system']} | {one['p50']:.2f} | {one['p95']:.2f} | {one['checks']:.2f} | {one['passes']:.2f} | "
            f"{' | '.join(numbers)} | {'-' if one['same'] is None else one['same']} |"
        )
    print(json.dumps({"sentences": len(lines), "torch": torch.__version__, "rows": results}))


if __name__ == "__main__":
    main()
