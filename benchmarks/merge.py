"""How long merging takes: pieces -> merge_pieces -> wrap -> next_input.

    python benchmarks/merge.py

Prints a card, tables, and one line of JSON last: the plain version, a sentence at a time; and the kernel, where there
is a GPU, in a CUDA graph. The pieces are cut from a random sentence and then corrupted as a weak model would: wrong
tokens, shifted windows, doubled and dropped tokens.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import time

import torch
from torch import Tensor

from lath.config import RULE_SETS, MergeRules
from lath.decoding.masks import mask_count
from lath.decoding.merge import merge_pieces, next_input, wrap
from lath.decoding.pieces import MergeStep
from lath.engine.merge_kernel import available, merge_on_device

BOS, EOS, MASK, FIRST_WORD, VOCABULARY = 0, 2, 4, 10, 8000
BAR_MS = 0.5
"""What 30 pieces of 3 tokens may cost under the official rules."""
KERNEL_BATCHES = (1, 8, 32, 128)
CALLS = 20
"""Calls of the kernel in a graph: its launch costs next to nothing for each of so many."""

Pieces = list[list[int]]
Scores = list[list[float]]


def noisy_pieces(count: int, length: int, noise: float, rng: random.Random) -> tuple[Pieces, Scores]:
    """`count` pieces of `length` tokens around one sentence; about a share `noise` of the tokens is wrong."""
    words = [rng.randrange(FIRST_WORD, VOCABULARY) for _ in range(count - 2)]
    target = [BOS, *words, EOS, *[EOS] * length]
    pieces: Pieces = []
    for start in range(count):
        shift = rng.choice([-1, 1]) if rng.random() < noise / 2 else 0
        first = min(max(start + shift, 0), count)
        piece = [
            rng.randrange(FIRST_WORD, VOCABULARY) if rng.random() < noise else id for id in target[first:][:length]
        ]
        piece += [EOS] * (length - len(piece))
        place = rng.randrange(length)
        if rng.random() < noise / 2:  # a token said twice
            piece = [*piece[: place + 1], *piece[place:]][:length]
        elif rng.random() < noise / 2:  # a token left out
            piece = [*piece[:place], *piece[place + 1 :], EOS]
        pieces.append(piece)
    return pieces, [[-rng.expovariate(2.0) for _ in piece] for piece in pieces]


def one_pass(pieces: Pieces, scores: Scores, rules: MergeRules) -> int:
    """All the work between two passes of the decoder; the length of what comes out."""
    sentence = wrap(merge_pieces(pieces, scores, rules), len(pieces), bos=BOS, eos=EOS, mask=MASK)
    masks = mask_count(len(sentence.ids), 1, 4)
    return len(next_input(sentence, masks, len(pieces), rules, mask=MASK).ids)


def milliseconds(sentences: list[tuple[Pieces, Scores]], rules: MergeRules, repeats: int) -> float:
    """Median over `repeats` of the mean time for one of the sentences; one more run first is not counted."""
    times: list[float] = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        for pieces, scores in sentences:
            one_pass(pieces, scores, rules)
        times.append(1000 * (time.perf_counter() - start) / len(sentences))
    return statistics.median(times[1:])


def tensors(batch: int, fewest: int, most: int, noise: float) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens, scores and lengths of a batch of sentences of `fewest` to `most` pieces, K = 3."""
    rng = random.Random(f"{batch} {fewest} {most}")
    made = [noisy_pieces(most, 3, noise, rng) for _ in range(batch)]
    lengths = [rng.randint(fewest, most) for _ in made]
    return torch.tensor([p for p, _ in made]), torch.tensor([s for _, s in made]), torch.tensor(lengths)


def kernel_microseconds(batch: int, fewest: int, most: int, rules: MergeRules, noise: float, repeats: int) -> float:
    """Median time of one call of the kernel inside a CUDA graph, by the GPU's own clock."""
    tokens, scores, lengths = (tensor.cuda() for tensor in tensors(batch, fewest, most, noise))
    step = MergeStep(rules, 1, 4, 512)
    merge_on_device(tokens, scores, lengths, step)  # compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            merge_on_device(tokens, scores, lengths, step)
    times: list[float] = []
    for _ in range(repeats + 3):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(1000 * begin.elapsed_time(end) / CALLS)
    return statistics.median(times[3:])


def kernel_rows(noise: float, repeats: int) -> list[dict[str, float | str]]:
    """Measure and print the kernel, where it can run."""
    if not (torch.cuda.is_available() and available()):
        print("\nno kernel: it needs a GPU and Triton")
        return []
    print(f"\n{torch.cuda.get_device_name()}, torch {torch.__version__}")
    print("pieces     K  batch  rules     kernel us")
    rows: list[dict[str, float | str]] = []
    for fewest, most in ((20, 30), (160, 160)):
        for name, rules in RULE_SETS.items():
            for batch in KERNEL_BATCHES:
                spent = kernel_microseconds(batch, fewest, most, rules, noise, repeats)
                print(f"{fewest:3d} - {most:3d}  3  {batch:5d}  {name:8s}  {spent:9.1f}")
                rows.append({"pieces": most, "batch": batch, "rules": name, "microseconds": round(spent, 2)})
    return rows


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Time the mergers.", epilog="example: python benchmarks/merge.py")
    parser.add_argument("--sentences", type=int, default=50, help="different sentences (default 50)")
    parser.add_argument("--repeats", type=int, default=7, help="rounds, of which the median counts (default 7)")
    parser.add_argument("--noise", type=float, default=0.15, help="share of wrong tokens (default 0.15)")
    options = parser.parse_args()

    print(f"merge|noise:{options.noise}|sentences:{options.sentences}|repeats:{options.repeats}")
    print(f"python {platform.python_version()}, {os.cpu_count()} CPUs, {platform.machine()}\n")
    print("pieces  K   official ms   paper ms")
    rows: list[dict[str, float]] = []
    for count in (10, 30, 100):
        for length in (2, 3, 4, 5, 6):
            rng = random.Random(f"{count} {length}")
            sentences = [noisy_pieces(count, length, options.noise, rng) for _ in range(options.sentences)]
            spent = {name: milliseconds(sentences, rules, options.repeats) for name, rules in RULE_SETS.items()}
            print(f"{count:6d}  {length}  {spent['official']:12.3f} {spent['paper']:10.3f}")
            rows.append({"pieces": count, "K": length, **{name: round(ms, 4) for name, ms in spent.items()}})
    typical = next(row["official"] for row in rows if (row["pieces"], row["K"]) == (30, 3))
    print(f"\n30 pieces, K = 3, official: {typical:.3f} ms (bar {BAR_MS} ms)")
    faster = {"kernel": kernel_rows(options.noise, options.repeats)}
    card = {"python": platform.python_version(), "cpus": os.cpu_count(), "noise": options.noise}
    print(json.dumps({"benchmark": "merge", **card, "bar_ms": BAR_MS, "typical_ms": typical, "rows": rows, **faster}))


if __name__ == "__main__":
    main()
