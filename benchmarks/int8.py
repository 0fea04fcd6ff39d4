"""How long LAT decodes one sentence on one CPU thread: fp32, bf16, int8, and int8 with a shortlist.

    OMP_NUM_THREADS=1 python benchmarks/int8.py

Random weights and a source of fixed length; every pass has the same number of positions, so that the engines do the
same work whatever they write. Repeats are interleaved, medians count. Prints a card, a table of milliseconds with the
share of each part, and one line of JSON last.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import statistics
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

import lath
from lath.config import NetworkSettings
from lath.engine.int8 import choose_backend, quantise
from lath.engine.shortlist import with_shortlist
from lath.merge import RULE_SETS, mask_count, merge_pieces, next_input, wrap
from lath.model import LAT, build_model
from lath.vocab import BOS, EOS, MASK, SPECIALS

PARTS = ("shortlist", "encode", "decode", "pieces", "merge")


@dataclass(frozen=True)
class Row:
    """One measurement: milliseconds for a sentence, and which share each part has."""

    engine: str
    iterations: int
    milliseconds: float
    times_fp32: float
    """How many times as fast as fp32 with as many iterations."""
    shares: dict[str, float]


@torch.inference_mode()
def translate(model: LAT, shortlist: Tensor | None, source: Tensor, iterations: int) -> Counter[str]:
    """The work of one sentence, in seconds for each part; what a pass is shown does not depend on what was written."""
    spent: Counter[str] = Counter()
    clock = time.perf_counter()

    def lap(part: str) -> None:
        nonlocal clock
        now = time.perf_counter()
        spent[part] += now - clock
        clock = now

    if shortlist is not None:
        short = with_shortlist(model, shortlist)
        assert isinstance(short, LAT)
        model = short
        lap("shortlist")
    memory, _ = model.encode(source)
    lap("encode")
    target = torch.full((1, source.shape[1] + 1), MASK)
    for iteration in range(1, iterations + 1):
        states = model.decode(target, memory)
        lap("decode")
        written = model.pieces(states)
        tokens, scores = written.tokens[0].tolist(), written.scores[0].double().tolist()
        lap("pieces")
        rules = RULE_SETS["official"]
        sentence = wrap(merge_pieces(tokens, scores, rules), len(tokens), bos=BOS, eos=EOS, mask=MASK)
        next_input(sentence, mask_count(len(sentence.ids), iteration, iterations), len(tokens), rules, mask=MASK)
        lap("merge")
    return spent


def engines(options: argparse.Namespace) -> dict[str, Callable[[Tensor, int], Counter[str]]]:
    """Each engine as a function of the source and the number of iterations."""
    settings = NetworkSettings(
        width=options.width, heads=8, feedforward=4 * options.width, encoder_layers=options.layers,
        decoder_layers=options.layers, dropout=0.0,
    )  # fmt: skip
    model = build_model(settings, options.vocabulary, options.vocabulary, True, torch.Generator().manual_seed(1)).eval()
    small = quantise(model)
    half = build_model(settings, options.vocabulary, options.vocabulary, True, torch.Generator().manual_seed(1)).eval()
    half = half.bfloat16()
    assert isinstance(model, LAT)
    assert isinstance(small, LAT)
    assert isinstance(half, LAT)
    chosen = torch.randperm(options.vocabulary - len(SPECIALS), generator=torch.Generator().manual_seed(2))
    ids = torch.cat([torch.arange(len(SPECIALS)), (chosen[: options.shortlist] + len(SPECIALS)).sort().values])
    return {
        "fp32": lambda source, iterations: translate(model, None, source, iterations),
        "bf16": lambda source, iterations: translate(half, None, source, iterations),
        "int8": lambda source, iterations: translate(small, None, source, iterations),
        "int8 + shortlist": lambda source, iterations: translate(small, ids, source, iterations),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Time LAT on one CPU thread.", epilog=__doc__.split("\n")[2].strip())
    parser.add_argument("--tokens", type=int, default=25, help="source tokens, EOS not counted (default 25)")
    parser.add_argument("--vocabulary", type=int, default=32000, help="entries (default 32000)")
    parser.add_argument("--shortlist", type=int, default=1800, help="candidates of the shortlist (default 1800)")
    parser.add_argument("--width", type=int, default=512, help="width; feed-forward is four times that (default 512)")
    parser.add_argument("--layers", type=int, default=6, help="layers of the encoder and of the decoder (default 6)")
    parser.add_argument("--iterations", type=int, nargs="+", default=[1, 4], help="passes (default 1 4)")
    parser.add_argument("--repeats", type=int, default=11, help="rounds, of which the median counts (default 11)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    card = {
        "lath": lath.__version__, "torch": torch.__version__, "backend": choose_backend(),
        "processor": platform.machine(), "tokens": options.tokens, "vocabulary": options.vocabulary,
        "shortlist": options.shortlist, "width": options.width, "layers": options.layers,
    }  # fmt: skip
    print("|".join(f"{key}:{value}" for key, value in {"lat": "K:3", **card}.items()), "\n", flush=True)

    ways = engines(options)
    source = torch.randint(6, options.vocabulary, (1, options.tokens + 1), generator=torch.Generator().manual_seed(3))
    source[0, -1] = EOS
    spent: dict[tuple[str, int], list[Counter[str]]] = {(way, n): [] for way in ways for n in options.iterations}
    gc.collect()
    gc.freeze()  # what was loaded need not be looked at by every collection
    for _ in range(options.repeats + 1):
        for way, count in spent:
            spent[way, count].append(ways[way](source, count))

    typical = {key: statistics.median(one.total() for one in times[1:]) for key, times in spent.items()}
    rows = []
    for (way, count), times in spent.items():
        total = sum(times[1:], Counter())
        shares = {part: round(total[part] / total.total(), 3) for part in PARTS if part in total}
        milliseconds = typical[way, count]
        rows.append(
            Row(way, count, round(1000 * milliseconds, 2), round(typical["fp32", count] / milliseconds, 2), shares)
        )
    print("| engine | iterations | ms | times fp32 | " + " | ".join(PARTS) + " |")
    print("|---|--:|--:|--:|" + "--:|" * len(PARTS))
    for row in rows:
        shares_ = " | ".join(f"{row.shares[part]:.0%}" if part in row.shares else "" for part in PARTS)
        print(f"| {row.engine} | {row.iterations} | {row.milliseconds} | {row.times_fp32} | {shares_} |")
    print(json.dumps({"benchmark": "int8", **card, "rows": [asdict(row) for row in rows]}))


if __name__ == "__main__":
    main()
