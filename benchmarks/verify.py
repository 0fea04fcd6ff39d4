"""What a teacher's checks cost and bring: every mode of `decode.verify` on one test set, and both models alone.

    python benchmarks/verify.py runs/lat/model runs/at/model test.de test.en --device cuda --drafts 1 2 4 \
        --tops 1 2 3 5 --nats 0.5 1 2

A row is one way to translate the whole source: the student and the verifier alone, rerank, exact, and relaxed with each
pair of `verify_top` and `verify_nats`, the last two with each number of passes for the first draft. Lines are
translated as they are (`lath translate --lines`). AT and LAT passes are means of a sentence, tokens a round those that
a check accepts or writes; `same` counts the lines that are as the verifier writes them greedily. BLEU is sacrebleu's on
the text (--tokenize none for tokenised text); without sacrebleu, write the translations into files with --out. Prints
the table and then the same as JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

import lath
from lath.config import DecodeOptions, DecodeSettings
from lath.decoding.decoder import Decoder
from lath.decoding.results import Decoded
from lath.files import read_lines
from lath.translator import Translator


class Counting:
    """A decoder that keeps what it has decoded."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder, self.has_verifier = decoder, True
        self.decoded: list[Decoded] = []

    def decode(self, source: Tensor, settings: DecodeSettings, trace: bool = False) -> list[Decoded]:
        """As the other decoder does."""
        batch = self.decoder.decode(source, settings, trace)
        self.decoded += batch
        return batch


class Row(NamedTuple):
    """One way to translate."""

    name: str
    by_verifier: bool
    options: DecodeOptions


def rows(arguments: argparse.Namespace) -> Iterator[Row]:
    """All that are asked for; greedy AT first, which the others are compared with."""
    yield Row("AT greedy", True, {"beam": 1})
    yield Row("AT beam 5", True, {"beam": 5})
    for iterations in arguments.drafts:
        yield Row(f"LAT-{iterations}", False, {"iterations": iterations, "verify": ""})
    for lengths in arguments.lengths:
        four: DecodeOptions = {"iterations": max(arguments.drafts), "length_candidates": lengths}
        yield Row(f"LAT-{four['iterations']}, {lengths} lengths", False, {**four, "verify": ""})
        yield Row(f"LAT-{four['iterations']}, {lengths} lengths, rerank", False, {**four, "verify": "rerank"})
    for iterations in arguments.drafts:
        yield Row(f"LAT-{iterations}, exact", False, {"iterations": iterations, "verify": "exact"})
        for top in arguments.tops:
            for nats in arguments.nats if top > 1 else arguments.nats[:1]:  # the best token alone has no rival
                options: DecodeOptions = {"iterations": iterations, "verify": "relaxed"}
                options |= {"verify_top": top, "verify_nats": nats}
                yield Row(f"LAT-{iterations}, relaxed {top} {nats:g}", False, options)


def bleu(translations: list[str], references: list[str], tokenize: str) -> float | None:
    """sacrebleu's, or nothing where it is not installed."""
    try:
        import sacrebleu
    except ImportError:
        return None
    force = tokenize == "none"
    return float(sacrebleu.corpus_bleu(translations, [references], tokenize=tokenize, force=force).score)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("student", type=Path)
    parser.add_argument("verifier", type=Path)
    parser.add_argument("source", type=Path)
    parser.add_argument("reference", type=Path)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--lines", type=int, help="the first so many lines only")
    parser.add_argument("--drafts", type=int, nargs="+", default=[1, 2, 4], help="passes for the first draft")
    parser.add_argument("--lengths", type=int, nargs="+", default=[5], help="length candidates for rerank")
    parser.add_argument("--tops", type=int, nargs="+", default=[2, 3, 5])
    parser.add_argument("--nats", type=float, nargs="+", default=[0.5, 1.0, 2.0])
    parser.add_argument("--tokenize", default="13a", help="sacrebleu's tokeniser")
    parser.add_argument("--out", type=Path, help="directory for the translations, a file for each row")
    arguments = parser.parse_args()
    sources, references = list(read_lines(arguments.source)), list(read_lines(arguments.reference))
    sources, references = sources[: arguments.lines], references[: arguments.lines]
    of_pair = lath.load(arguments.student, arguments.device, arguments.precision, verifier=arguments.verifier)
    alone = lath.load(arguments.verifier, arguments.device, arguments.precision)
    if arguments.out is not None:
        arguments.out.mkdir(parents=True, exist_ok=True)
    print("| system | BLEU | same | AT passes | LAT passes | tokens a round | seconds |\n|---|--:|--:|--:|--:|--:|--:|")
    greedy: list[str] = []
    told: list[dict[str, Any]] = []
    for row in rows(arguments):
        translator = alone if row.by_verifier else of_pair
        result, lines = measure(translator, row, sources, arguments.batch)
        greedy = greedy or lines
        result["bleu"] = bleu(lines, references, arguments.tokenize)
        result["same"] = sum(one == other for one, other in zip(lines, greedy, strict=True))
        told.append(result)
        quality = "-" if result["bleu"] is None else f"{result['bleu']:.2f}"
        numbers = [f"{result[key]:.2f}" for key in ("at_passes", "lat_passes", "tokens_a_round")]
        print(f"| {row.name} | {quality} | {result['same']} | {' | '.join(numbers)} | {result['seconds']:.1f} |")
        sys.stdout.flush()
        if arguments.out is not None:
            name = row.name.replace(",", "").replace(" ", "-")
            (arguments.out / f"{name}.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    print(json.dumps({"lines": len(sources), "torch": torch.__version__, "rows": told}))


def measure(translator: Translator, row: Row, sources: list[str], batch: int) -> tuple[dict[str, Any], list[str]]:
    """What one row costs, and its translations."""
    counting = Counting(translator.decoder)
    begun = time.perf_counter()
    lines = translator.with_decoder(counting).translate(sources, split=False, batch_sentences=batch, **row.options)
    seconds = time.perf_counter() - begun
    tokens = statistics.mean(len(one.ids) + 1 for one in counting.decoded)
    own = statistics.mean(one.iterations for one in counting.decoded)
    checks = statistics.mean(one.checks for one in counting.decoded)
    at_passes, lat_passes = (own, 0.0) if row.by_verifier else (checks, own)
    result = {
        "system": row.name,
        "tokens": tokens,
        "at_passes": at_passes,
        "lat_passes": lat_passes,
        "tokens_a_round": tokens / at_passes if at_passes else tokens / lat_passes,
        "seconds": seconds,
    }
    return result, lines


if __name__ == "__main__":
    main()
