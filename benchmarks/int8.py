"""How long LAT decodes one sentence on one CPU thread: fp32, bf16, int8, and int8 with a shortlist.

    OMP_NUM_THREADS=1 python benchmarks/int8.py [--peers DATA]

Random weights and a source of fixed length; every pass has the same number of positions, so that the engines do the
same work whatever they write. With --peers (the extra bench; a directory of `lath prepare` for its vocabulary) AT
models of the same size are exported to CTranslate2 and decode greedily in the same rounds: as many layers on both
sides, and twice as many in the encoder with one in the decoder. Repeats are interleaved, medians count. Prints a card,
a table of milliseconds with the share of each part, and one line of JSON last.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from random_models import write_random_model
from torch import Tensor

import lath
from lath.config import RULE_SETS, NetworkSettings
from lath.decoding.masks import mask_count
from lath.decoding.merge import merge_pieces, next_input, wrap
from lath.engine.export import export, import_ctranslate2, token_names
from lath.engine.int8 import choose_backend, quantise
from lath.engine.shortlist import with_shortlist
from lath.model.network import LAT, build_model
from lath.text.vocab import BOS, EOS, MASK, SPECIALS, load_vocabs

PARTS = ("shortlist", "encode", "decode", "pieces", "merge")


@dataclass(frozen=True)
class Row:
    """One measurement: milliseconds for a sentence, and which share each part has."""

    engine: str
    iterations: int
    milliseconds: float
    times_fp32: float
    """How many times as fast as fp32 with as many iterations."""
    times_peer: float | None
    """How many times as fast as the first peer."""
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


def peers(options: argparse.Namespace, folder: Path) -> dict[str, Callable[[Tensor, int], Counter[str]]]:
    """AT models of the same size in CTranslate2, int8, that write as many tokens as the source has; with all of the
    vocabulary, and with as many candidates as our shortlist has.

    The engine is called directly: by our own rules (exported.py) a network that writes at random is searched twice.
    """
    ctranslate2 = import_ctranslate2()
    vocab = load_vocabs(options.peers)[1]
    names = token_names(vocab)
    found: dict[str, Callable[[Tensor, int], Counter[str]]] = {}
    for encoder, decoder in ((options.layers, options.layers), (2 * options.layers, 1)):
        name = f"{encoder}-{decoder}"
        network = NetworkSettings("AT", options.width, 8, 4 * options.width, encoder, decoder, dropout=0.0)
        write_random_model(folder / name, vocab, network, options.tokens)
        export(folder / name, folder / f"{name}-int8", quantization="int8")
        candidates = " ".join(names[len(SPECIALS) : len(SPECIALS) + options.shortlist])
        (folder / f"{name}-int8" / "vmap.txt").write_text(f"\t{candidates}\n", encoding="utf-8")
        engine = ctranslate2.Translator(str(folder / f"{name}-int8"), compute_type="int8", intra_threads=1)
        for short in (False, True):

            def search(source: Tensor, iterations: int, engine: Any = engine, short: bool = short) -> Counter[str]:
                words = [names[id] for id in source[0, :-1].tolist()]
                began = time.perf_counter()
                engine.translate_batch(
                    [words], beam_size=1, use_vmap=short, min_decoding_length=options.tokens,
                    max_decoding_length=options.tokens,
                )  # fmt: skip
                return Counter(decode=time.perf_counter() - began)

            found[f"CTranslate2 int8 AT {name}" + " + shortlist" * short] = search
    return found


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
    parser.add_argument("--peers", type=Path, metavar="DATA", help="also CTranslate2, with this vocabulary")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.peers:
        options.vocabulary = load_vocabs(options.peers)[1].size
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
    if options.peers:
        with tempfile.TemporaryDirectory() as folder:
            found = peers(options, Path(folder))
        ways.update(found)
        spent.update({(way, 1): [] for way in found})
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
        peer = typical[next(iter(found)), 1] / milliseconds if options.peers else None
        fp32 = typical["fp32", count] / milliseconds
        rows.append(Row(way, count, round(1000 * milliseconds, 2), round(fp32, 2), peer and round(peer, 2), shares))
    print("| engine | iterations | ms | times fp32 | times the first peer | " + " | ".join(PARTS) + " |")
    print("|---|--:|--:|--:|--:|" + "--:|" * len(PARTS))
    for row in rows:
        shares_ = " | ".join(f"{row.shares[part]:.0%}" if part in row.shares else "" for part in PARTS)
        figures = f"{row.iterations} | {row.milliseconds} | {row.times_fp32} | {row.times_peer or ''}"
        print(f"| {row.engine} | {figures} | {shares_} |")
    print(json.dumps({"benchmark": "int8", **card, "rows": [asdict(row) for row in rows]}))


if __name__ == "__main__":
    main()
