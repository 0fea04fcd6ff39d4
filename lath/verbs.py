"""What each verb of the command line (cli.py) does: one function is called, and its result printed.

Everything that needs torch is imported inside the verbs: help and mistakes answer at once.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lath.errors import UserError
from lath.files import STANDARD_INPUT
from lath.model.bundled import DEFAULT_MODEL, default_model, find_model

if TYPE_CHECKING:
    from lath.training.ranks import World
    from lath.translator import Translator

BENCH_COUNTS = ("sentences", "repeats", "batches", "lengths")
"""Flags of `lath bench` whose defaults `bench.Ways` knows."""


def run_prepare(arguments: argparse.Namespace) -> None:
    """Text to a data directory."""
    from lath.config import load_recipe
    from lath.text.corpus import prepare

    report = prepare(load_recipe(arguments.recipe, arguments.overrides), arguments.out, arguments.vocab_from)
    print(report)


def run_train(arguments: argparse.Namespace) -> None:
    """Train a model on a data directory."""
    from lath.config import load_recipe
    from lath.trainer import train
    from lath.training.ranks import is_first_rank

    recipe = load_recipe(arguments.recipe, arguments.overrides)
    model = train(recipe, arguments.data, arguments.run_directory, device=arguments.device, resume=arguments.resume)
    if is_first_rank():
        print(model)


def run_distill(arguments: argparse.Namespace) -> None:
    """Translate a corpus with a teacher."""
    from lath.distill import distill
    from lath.training.ranks import is_first_rank

    device, precision, engine = arguments.device, arguments.precision, arguments.engine
    options = _decode_overrides(arguments.overrides)
    lines = distill(
        arguments.model, arguments.source, arguments.out, device=device, precision=precision, engine=engine, **options
    )
    if is_first_rank():
        print(f"{arguments.out}: {lines} lines")


def run_average(arguments: argparse.Namespace) -> None:
    """A run's best checkpoints to a model."""
    from lath.training.run import average_run

    for checkpoint in average_run(arguments.run_directory, arguments.best, arguments.out):
        print(checkpoint.state)


def run_shortlist(arguments: argparse.Namespace) -> None:
    """A shortlist for a model."""
    from lath.engine.shortlist import add_shortlist

    print(add_shortlist(arguments.data, arguments.model, arguments.near, arguments.frequent))


def run_pack(arguments: argparse.Namespace) -> None:
    """A smaller copy of a model."""
    from lath.model.compress import directory_size, pack

    pack(arguments.model, arguments.out, arguments.storage)
    for directory in (arguments.model, arguments.out):
        print(f"{directory}: {directory_size(directory) / 1e6:.2f} MB")


def run_export(arguments: argparse.Namespace) -> None:
    """A model for another program."""
    from lath.engine.export import export

    export(arguments.model, arguments.out, arguments.to, arguments.quantization)
    print(arguments.out)


def run_translate(arguments: argparse.Namespace) -> None:
    """Text to text."""
    model, source = _model_and_text(arguments.model, arguments.input)
    from lath.files import read_lines
    from lath.training.ranks import join_world
    from lath.translator import load, preferred_device

    with join_world(preferred_device(model, arguments.device)) as (world, device):
        lines: Iterator[str] = read_lines(source)
        settings = _decode_overrides(arguments.overrides)
        translator = load(model, str(device), arguments.precision, arguments.engine)
        if world.size > 1:
            texts = _shared(translator, lines, source, settings, world)
        else:
            texts = (hypothesis.text for hypothesis in translator.hypotheses(lines, **settings))
        if source == STANDARD_INPUT and sys.stdin.isatty():  # else it looks as if nothing happened
            print("reading from the terminal: one sentence a line, then Ctrl-D to translate", file=sys.stderr)
        for text in _with_bar(texts, source) if world.first else texts:
            if world.first:
                sys.stdout.write(text + "\n")


def _model_and_text(first: Path | None, second: Path | None) -> tuple[Path, Path]:
    """The model and the text of lath translate [MODEL] [FILE]. A file alone is a text, for a model is a directory."""
    first_is_text = first == STANDARD_INPUT or (first is not None and first.exists() and not first.is_dir())
    if first is None or (first_is_text and second is None):
        return default_model(), first or STANDARD_INPUT
    if first_is_text:
        raise UserError(
            f"{first}: a text and not a model; the model comes first, then one text: "
            f"lath translate {DEFAULT_MODEL} {first}"
        )
    model = find_model(first)
    if second is None and not model.exists():
        raise UserError(
            f"{first}: no such file or model directory; a file is translated with lath translate FILE, "
            f"a sentence with echo SENTENCE | lath translate"
        )
    return model, second or STANDARD_INPUT


def _shared(
    translator: Translator, lines: Iterator[str], source: Path, settings: dict[str, Any], world: World
) -> Iterator[str]:
    """The translations, made by all ranks together; a few batches for each at a time."""
    from lath.training.ranks import share_stream
    from lath.translator import READ_AHEAD

    if source == STANDARD_INPUT:
        raise UserError("standard input can be read by one rank only; name a text file to translate it with several")
    chosen = translator.settings(**settings)
    chunk = world.size * READ_AHEAD * chosen.batch_sentences
    return share_stream(world, lines, lambda own: translator.translate(own, **settings), chunk)


def _with_bar(texts: Iterator[str], source: Path) -> Iterable[str]:
    """The translations with a progress bar, unless the translations themselves can be seen to go by."""
    from lath.files import count_lines
    from lath.progress import watched

    if sys.stdout.isatty() or not sys.stderr.isatty():
        return texts
    # A pipe, unlike a file, can be read only once.
    total = count_lines(source) if source.is_file() else None
    return watched(texts, "translating", total)


def run_evaluate(arguments: argparse.Namespace) -> None:
    """Translations to scores."""
    from lath.files import misaligned, read_lines
    from lath.scores import compare, evaluate

    reference = list(read_lines(arguments.reference))
    systems = [list(read_lines(path)) for path in arguments.hypotheses]
    for path, lines in zip(arguments.hypotheses, systems, strict=True):
        if len(lines) != len(reference):
            raise misaligned(arguments.reference, len(reference), path, len(lines))
    for path, lines in zip(arguments.hypotheses, systems, strict=True):
        print(f"{path}\n{evaluate(lines, reference, arguments.tokenised, ter=arguments.ter)}")
    if len(systems) == 2:
        print(compare(systems[0], systems[1], reference, arguments.tokenised))


def run_bench(arguments: argparse.Namespace) -> None:
    """Models to speeds."""
    from lath.analysis.bench import Ways, bench

    fewest, most = arguments.min_tokens, arguments.max_tokens
    if most is not None and fewest > most:
        raise UserError(f"--min-tokens {fewest} is above --max-tokens {most}; no sentence has both")
    ways = Ways(
        device=arguments.device,
        precision=arguments.precision,
        threads=arguments.threads,
        plain=arguments.plain,
        tokens=(fewest, most),
        overrides=_decode_overrides(arguments.overrides),
        **{name: value for name in BENCH_COUNTS if (value := getattr(arguments, name)) is not None},
    )
    models = [find_model(model) for model in arguments.models]
    print(bench(models, arguments.data, ways, arguments.references, arguments.against, arguments.plot))


def run_show(arguments: argparse.Namespace) -> None:
    """What a file or directory holds, or how a translation came about."""
    thing = find_model(arguments.thing)
    from lath.analysis.show import explain, plot_run, show
    from lath.engine.ctranslate2 import OURS, is_exported

    if arguments.plot is not None:
        plot_run(thing, arguments.plot)
    if arguments.sentence is None:
        described = thing / OURS if is_exported(thing) else thing
        print(show(described, arguments.overrides))
        return
    if os.path.isfile(arguments.sentence):  # for a Path, a long sentence would be an error
        raise UserError(
            f"{arguments.sentence}: a file and not a sentence; give the sentence itself, in quotes, "
            f"or translate the file with lath translate {arguments.thing} {arguments.sentence}"
        )
    from lath.translator import load

    translator = load(thing, arguments.device, arguments.precision)
    settings = _decode_overrides(arguments.overrides)
    hypothesis = next(translator.hypotheses([arguments.sentence], trace=True, **settings))
    print(explain(hypothesis, translator.target_vocab))


def _decode_overrides(overrides: Sequence[str]) -> dict[str, Any]:
    """Settings of the section decode, the only one that a trained model still listens to."""
    from lath.config import merge_overrides

    tree = merge_overrides(overrides)
    for section in tree:
        if section != "decode":
            raise UserError(
                f"--set {section}...: a trained model takes settings of decode only, such as decode.iterations"
            )
    return dict(tree.get("decode", {}))
