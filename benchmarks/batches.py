"""Does a translation depend on what shares its batch? Counts the lines that change; every count should be 0.

    python benchmarks/batches.py de-en news.de tatoeba.de --lines 500 [--device cuda]

The first lines of each file are translated one by one, in batches of 3 and of 100, and shuffled in the default batch,
in int8 and fp32 on a CPU (fp16 and fp32 on a GPU), with the shortlist too if the model has one. Prints one row of
counts for each file, precision and shortlist.
"""

from __future__ import annotations

import argparse
import random
from itertools import islice
from pathlib import Path

import lath
from lath.config import DecodeOptions
from lath.files import read_lines
from lath.translator import Translator


def changed(translator: Translator, lines: list[str], options: DecodeOptions) -> list[int]:
    """How many lines differ from those translated alone: in batches of 3, of 100, and shuffled."""
    alone = translator.translate(lines, split=False, **{**options, "batch_sentences": 1})
    order = random.Random(1).sample(range(len(lines)), len(lines))
    shuffled = translator.translate([lines[number] for number in order], split=False, **options)
    found = [translator.translate(lines, split=False, **{**options, "batch_sentences": size}) for size in (3, 100)]
    back = dict(zip(order, shuffled, strict=True))
    found.append([back[number] for number in range(len(lines))])
    return [sum(a != b for a, b in zip(alone, texts, strict=True)) for texts in found]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Count translations that depend on their batch.")
    parser.add_argument("model")
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--lines", type=int, default=500)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    print("| file | lines | precision | shortlist | batch 3 | batch 100 | shuffled |")
    print("|---|--:|---|---|--:|--:|--:|")
    for precision in ("int8" if arguments.device == "cpu" else "fp16", "fp32"):
        translator = lath.load(arguments.model, arguments.device, precision)
        for shortlist in (False, True) if translator.has_shortlist else (False,):
            for path in arguments.files:
                lines = list(islice(read_lines(path), arguments.lines))
                counts = " | ".join(map(str, changed(translator, lines, {"shortlist": shortlist})))
                word = "on" if shortlist else "off"
                print(f"| {path.name} | {len(lines)} | {precision} | {word} | {counts} |", flush=True)


if __name__ == "__main__":
    main()
