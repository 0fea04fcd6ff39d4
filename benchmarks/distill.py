"""Speed of distillation on the CPU: `python benchmarks/distill.py TEXT`, where TEXT is in the source language.

Compares lath's beam search with the same model exported to CTranslate2 (float32 and int8), in interleaved rounds of one
process. Without --model, the model is a base network with random weights whose position table ends every translation
after the same number of tokens, so all systems do the same work. Prints a header, a table and finally one line of JSON.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import tempfile
import time
from pathlib import Path

import torch
from random_models import write_random_model

import lath
from lath.config import NetworkSettings
from lath.engine.export import export
from lath.files import read_lines
from lath.text.vocab import learn_sentencepiece
from lath.translator import Translator, load

VOCABULARY_LINES = 50_000
QUANTIZATIONS = ("float32", "int8")


def measure(
    systems: dict[str, Translator], lines: list[str], batch: int, beam: int, repeats: int
) -> list[dict[str, object]]:
    """Wall-clock and CPU time of each system for all lines, in rounds; a first batch warms up."""
    seconds: dict[str, list[float]] = {name: [] for name in systems}
    cpu_seconds: dict[str, list[float]] = {name: [] for name in systems}
    outputs: dict[str, list[str]] = {}
    for system in systems.values():
        system.translate(lines[:batch], beam=beam, batch_sentences=batch)
    for _ in range(repeats):
        for name, system in systems.items():
            began, cpu_began = time.perf_counter(), time.process_time()
            outputs[name] = system.translate(lines, beam=beam, batch_sentences=batch)
            seconds[name].append(time.perf_counter() - began)
            cpu_seconds[name].append(time.process_time() - cpu_began)
    first = next(iter(systems))
    return [
        {
            "system": name, "batch": batch, "lines_per_second": round(len(lines) / statistics.median(seconds[name]), 2),
            "times_ours": round(median_ratio(seconds[first], seconds[name]), 2),
            "times_ours_in_cpu_time": round(median_ratio(cpu_seconds[first], cpu_seconds[name]), 2),
            "same_lines": sum(ours == other for ours, other in zip(outputs[first], outputs[name], strict=True)),
        } for name in systems
    ]  # fmt: skip


def median_ratio(ours: list[float], others: list[float]) -> float:
    """The median over the rounds of how many times faster the other system is."""
    return statistics.median(our / other for our, other in zip(ours, others, strict=True))


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("text", type=Path, help="source text")
    parser.add_argument("--model", type=Path, help="a trained AT model (default: a base network, random weights)")
    parser.add_argument("--lines", type=int, default=192, help="lines to translate (192)")
    parser.add_argument("--join", type=int, default=1, help="lines of the text that make one line (1)")
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--batches", type=int, nargs="+", default=[16, 64], help="batch sizes (16 64)")
    parser.add_argument("--repeats", type=int, default=3, help="rounds; the median is reported (3)")
    parser.add_argument("--tokens", type=int, default=20, help="tokens per translation, random weights (20)")
    parser.add_argument(
        "--vocabulary", type=int, default=10_000, help="entries, learnt from the text, random weights (10000)"
    )
    parser.add_argument("--layers", type=int, default=6, help="layers on each side, random weights (6)")
    parser.add_argument("--width", type=int, default=512, help="width; feed-forward is 4 times that (512)")
    arguments = parser.parse_args()

    source = read_lines(arguments.text)
    lines = [" ".join(itertools.islice(source, arguments.join)) for _ in range(arguments.lines)]
    with tempfile.TemporaryDirectory() as folder:
        model = arguments.model
        if model is None:
            model = Path(folder) / "model"
            layers, width = arguments.layers, arguments.width
            network = NetworkSettings("AT", width, 8, 4 * width, layers, layers, dropout=0.0)
            lines_to_learn = itertools.islice(read_lines(arguments.text), VOCABULARY_LINES)
            vocab = learn_sentencepiece(lines_to_learn, arguments.vocabulary)
            write_random_model(model, vocab, network, arguments.tokens)
        systems = {"lath fp32": load(model, "cpu")}
        for quantization in QUANTIZATIONS:
            export(model, Path(folder) / quantization, quantization=quantization)
            systems[f"ctranslate2 {quantization}"] = load(Path(folder) / quantization, "cpu")
        info = systems["lath fp32"].info
        tokens = sum(map(len, systems["lath fp32"].source_vocab.encode_lines(lines))) / len(lines)
        card = {
            "lath": lath.__version__, "torch": torch.__version__, "threads": torch.get_num_threads(),
            "beam": arguments.beam, "lines": len(lines), "source_tokens": round(tokens, 1),
            "layers": f"{info.network.encoder_layers}-{info.network.decoder_layers}", "width": info.network.width,
            "vocabulary": info.target_size, "weights": "random" if arguments.model is None else "trained",
        }  # fmt: skip
        print("distill|" + "|".join(f"{key}:{value}" for key, value in card.items()))
        rows = [
            row for batch in arguments.batches
            for row in measure(systems, lines, batch, arguments.beam, arguments.repeats)
        ]  # fmt: skip
    print("\n| system | batch | lines/s | times ours | in CPU time | same lines |")
    print("|---|--:|--:|--:|--:|--:|")
    for row in rows:
        print("| " + " | ".join(str(value) for value in row.values()) + " |")
    print(json.dumps({"benchmark": "distill", **card, "repeats": arguments.repeats, "rows": rows}))


if __name__ == "__main__":
    main()
