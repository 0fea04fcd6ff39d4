"""What each verb of the command line (cli.py) does: it calls one function and prints the result.

Modules that need torch are imported inside the functions, so that help and mistakes are answered at once.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import queue
import shutil
import stat
import sys
import threading
from collections.abc import Iterable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from lath.analysis.settings import AnalyseSettings, BenchSettings, EvaluateSettings, ReproduceSettings
from lath.config import DataSettings, DecodeOptions, decode_options, load_recipe
from lath.errors import UserError
from lath.files import STANDARD_INPUT, count_lines, read_lines, whole_file
from lath.model.bundled import DEFAULT_MODEL, default_model, find_model
from lath.progress import watched
from lath.serve.settings import ServeSettings

if TYPE_CHECKING:
    from lath.training.ranks import World
    from lath.translator import Translator


def run_init(arguments: argparse.Namespace) -> None:
    """Nothing to a recipe."""
    from lath.starter import write_starter

    given = {field.name: getattr(arguments, field.name, None) for field in fields(DataSettings)}
    print(write_starter(arguments.directory, given))


def run_prepare(arguments: argparse.Namespace) -> None:
    """Text to a data directory."""
    recipe = load_recipe(arguments.recipe, arguments.overrides)
    from lath.preparation import prepare

    print(prepare(recipe, arguments.out, arguments.vocab_from, strict=arguments.strict, warn=_warn))


def _warn(message: str) -> None:
    print(f"lath: warning: {message}", file=sys.stderr)


def run_train(arguments: argparse.Namespace) -> None:
    """A data directory to a model."""
    from lath.trainer import train
    from lath.training.ranks import is_first_rank

    recipe = load_recipe(arguments.recipe, arguments.overrides)
    model = train(recipe, arguments.data, arguments.run_directory, device=arguments.device, resume=arguments.resume)
    if is_first_rank():
        print(model)


def run_distill(arguments: argparse.Namespace) -> None:
    """A source text to its translation by a teacher."""
    from lath.distillation import distill
    from lath.training.ranks import is_first_rank

    device, precision, engine = arguments.device, arguments.precision, arguments.engine
    options = decode_options(arguments.overrides)
    lines = distill(
        arguments.model, arguments.source, arguments.out, device=device, precision=precision, engine=engine, **options
    )
    if is_first_rank():
        print(f"{arguments.out}: {lines} lines")


def run_average(arguments: argparse.Namespace) -> None:
    """The best checkpoints of a run to a model."""
    from lath.training.run import average_run

    for checkpoint in average_run(arguments.run_directory, arguments.best, arguments.out):
        print(checkpoint.state)


def run_shortlist(arguments: argparse.Namespace) -> None:
    """A shortlist for a model."""
    from lath.engine.shortlist import add_shortlist

    print(add_shortlist(arguments.data, arguments.model, arguments.near, arguments.frequent))


def run_compress(arguments: argparse.Namespace) -> None:
    """A smaller copy of a model."""
    from lath.model.compress import compress, directory_size

    compress(arguments.model, arguments.out, arguments.storage)
    for directory in (arguments.model, arguments.out):
        print(f"{directory}: {directory_size(directory) / 1e6:.2f} MB")


def run_pair(arguments: argparse.Namespace) -> None:
    """A student and its verifier to one model."""
    from lath.model.pair import make_pair

    student, verifier = find_model(arguments.student), find_model(arguments.verifier)
    make_pair(student, verifier, arguments.out, decode_options(arguments.overrides))
    print(arguments.out)


def run_export(arguments: argparse.Namespace) -> None:
    """A model for another program."""
    from lath.engine.export import export

    export(arguments.model, arguments.out, arguments.to, arguments.quantization)
    print(arguments.out)


def run_translate(arguments: argparse.Namespace) -> None:
    """Text to text."""
    model, source = _model_and_text(arguments)
    from lath.training.ranks import join_world
    from lath.translator import load, preferred_device

    with join_world(preferred_device(model, arguments.device)) as (world, device):
        options = _verified_options(arguments)
        translator = load(
            model, str(device), arguments.precision, arguments.engine, arguments.threads, arguments.verifier
        )
        if arguments.text is not None or arguments.format == "html":
            text = arguments.text if arguments.text is not None else "\n".join(read_lines(source)) + "\n"
            whole = translator.translate(text, split=not arguments.lines, format=arguments.format, **options)
            texts = iter([whole.removesuffix("\n")])
        else:
            texts = _translations(translator, source, world, not arguments.lines, options)
        with _output(arguments.output if world.first else None) as stream:
            for text in _with_bar(texts, source, arguments) if world.first else texts:
                if world.first:
                    stream.write(text + "\n")
                    if _is_live(source):
                        stream.flush()


def _verified_options(arguments: argparse.Namespace) -> DecodeOptions:
    """What --set and --verify say."""
    options = decode_options(arguments.overrides)
    return options if arguments.verify is None else {**options, "verify": arguments.verify}


@contextlib.contextmanager
def _output(path: Path | None) -> Iterator[TextIO]:
    """Standard output, or a file that appears when it is complete."""
    if path is None:
        yield sys.stdout
        return
    with whole_file(path) as partial, partial.open("w", encoding="utf-8", newline="\n") as stream:
        yield stream


def _model_and_text(arguments: argparse.Namespace) -> tuple[Path, Path]:
    """The model and the text of `lath translate [MODEL] [FILE]`; a file alone is a text, a directory alone a model."""
    first, second = arguments.model, arguments.input
    first_is_text = first == STANDARD_INPUT or (first is not None and first.exists() and not first.is_dir())
    if first is None or (first_is_text and second is None):
        return default_model(), first or STANDARD_INPUT
    if first_is_text:
        raise UserError(
            f"{first}: a text file, not a model; give the model first, then one text: "
            f"lath translate {DEFAULT_MODEL} {first}"
        )
    model = find_model(first)
    if second is None and not model.exists():
        raise UserError(
            f"{first}: no such file or model directory; translate a file with lath translate FILE, "
            f"a sentence with lath translate --text SENTENCE"
        )
    if second is not None and arguments.text is not None:
        raise UserError(f"{second}: --text {arguments.text!r} is a text already; leave out one of the two")
    return model, second or STANDARD_INPUT


def _translations(
    translator: Translator, source: Path, world: World, split: bool, options: DecodeOptions
) -> Iterator[str]:
    """The translations of all lines; several ranks share each chunk, which holds a few batches for each of them."""
    from lath.training.ranks import share_stream
    from lath.translator import READ_AHEAD

    chunk = world.size * READ_AHEAD * translator.settings(**options).batch_sentences
    if world.size > 1 and (source == STANDARD_INPUT or _is_live(source)):
        raise UserError("several ranks cannot read standard input; give a text file")
    if not _is_live(source):
        return share_stream(
            world, read_lines(source), lambda lines: translator.translate(lines, split=split, **options), chunk
        )
    arrived = _prompted(_read_as_it_comes(source, chunk), translator)
    return (text for lines in arrived for text in translator.translate(lines, split=split, **options))


def _is_live(path: Path) -> bool:
    """Whether lines come as somebody writes them: from a terminal or a pipe, not from a file."""
    if path == STANDARD_INPUT:
        return not stat.S_ISREG(os.fstat(sys.stdin.fileno()).st_mode)
    return path.is_fifo()


def _read_as_it_comes(path: Path, most: int) -> Iterator[list[str]]:
    """The lines that have arrived, up to `most` at a time: one if they come slowly, many if they come fast."""
    arrived: queue.Queue[str | BaseException | None] = queue.Queue(most)

    def read() -> None:
        try:
            for line in read_lines(path):
                arrived.put(line)
            arrived.put(None)
        except BaseException as error:
            arrived.put(error)

    threading.Thread(target=read, daemon=True).start()
    while True:
        lines: list[str] = []
        item = arrived.get()
        while isinstance(item, str):
            lines.append(item)
            if len(lines) == most or arrived.empty():
                break
            item = arrived.get()
        if lines:
            yield lines
        if isinstance(item, BaseException):
            raise item
        if item is None:
            return


def _prompted(arrived: Iterator[list[str]], translator: Translator) -> Iterator[list[str]]:
    """The lines as they come; who types them is asked for each."""
    info, asked = translator.info, sys.stdin.isatty()
    if asked:  # otherwise it would look as if it hung
        print("Type a line and press Enter to translate it; Ctrl-D ends.", file=sys.stderr)
    while True:
        if asked:
            print(f"{info.source_language}> ", end="", file=sys.stderr, flush=True)
        lines = next(arrived, None)
        if lines is None:
            return
        yield lines


def _with_bar(texts: Iterator[str], source: Path, arguments: argparse.Namespace) -> Iterable[str]:
    """The translations with a progress bar, unless they are printed to the terminal themselves."""
    printed = arguments.output is None and sys.stdout.isatty()
    if printed or arguments.text is not None or not sys.stderr.isatty():
        return texts
    # Only a file can be read a second time; a pipe cannot.
    total = count_lines(source) if source.is_file() else None
    return watched(texts, "translating", total)


def run_serve(arguments: argparse.Namespace) -> None:
    """Text to text over HTTP."""
    settings = ServeSettings(**{field.name: getattr(arguments, field.name) for field in fields(ServeSettings)})
    models = [find_model(model) for model in arguments.models] or [default_model()]
    try:
        from lath.serve.server import serve
    except ModuleNotFoundError as error:
        raise UserError(f"lath serve needs {error.name}: pip install 'lath[serve]'") from None
    serve(models, settings, arguments.device, arguments.threads, arguments.api_key_file, arguments.verifier)
    raise SystemExit(0)  # SIGTERM is how a server ends; cli.main would report it as lost in an import


def run_evaluate(arguments: argparse.Namespace) -> None:
    """Translations to scores."""
    settings = EvaluateSettings(**{field.name: getattr(arguments, field.name) for field in fields(EvaluateSettings)})
    from lath.analysis.evaluation import evaluate_files

    found = evaluate_files(arguments.reference, arguments.hypotheses, settings)
    for note in found.notes:
        print(f"lath: note: {note}", file=sys.stderr)
    print(found.as_json() if arguments.json else found)


def run_analyse(arguments: argparse.Namespace) -> None:
    """Translations and models to tables and plots."""
    settings = AnalyseSettings(**{field.name: getattr(arguments, field.name) for field in fields(AnalyseSettings)})
    from lath.analysis.analyse import analyse

    found = analyse(
        arguments.reference, arguments.systems, arguments.out, settings, arguments.source, arguments.counted
    )
    for note in found.notes:
        print(f"lath: note: {note}", file=sys.stderr)
    print(arguments.out / "analysis.md")


def run_reproduce(arguments: argparse.Namespace) -> None:
    """A task to all its models, and a report."""
    given = {field.name: getattr(arguments, field.name) for field in fields(ReproduceSettings)}
    settings = ReproduceSettings(**{**given, "overrides": tuple(arguments.overrides)})
    from lath.analysis.reproduce import plan, read_task, reproduce, show_plan

    task = read_task(arguments.task, settings)
    print(show_plan(task, plan(task)) if arguments.dry_run else reproduce(task))


def run_bench(arguments: argparse.Namespace) -> None:
    """Models to speeds."""
    given = {field.name: getattr(arguments, field.name) for field in fields(BenchSettings)}
    settings = BenchSettings(**{**given, "overrides": decode_options(arguments.overrides)})
    if settings.max_tokens is not None and settings.min_tokens > settings.max_tokens:
        raise UserError(f"--min-tokens {settings.min_tokens} is above --max-tokens {settings.max_tokens}; swap them")
    models = [find_model(model) for model in arguments.models]
    from lath.analysis.bench import bench

    print(bench(models, arguments.data, settings, arguments.references, arguments.against, arguments.plot))


def run_show(arguments: argparse.Namespace) -> None:
    """A summary of a file or directory, or a translation step by step."""
    path = find_model(arguments.path)
    from lath.analysis.show import explain, plot_passes, plot_run, show

    if arguments.sentence is None:
        if arguments.verifier is not None or arguments.verify is not None:
            raise UserError("--verifier and --verify are for a sentence; add one, or leave them out")
        if arguments.plot is not None:
            plot_run(path, arguments.plot)
        print(show(path, arguments.overrides))
        return
    if os.path.isfile(arguments.sentence):  # not Path.is_file: it raises an error for a long sentence
        raise UserError(
            f"{arguments.sentence}: a file, not a sentence; give the sentence in quotes, "
            f"or translate the file with lath translate {arguments.path} {arguments.sentence}"
        )
    options = _verified_options(arguments)
    from lath.translator import load

    translator = load(path, arguments.device, arguments.precision, verifier=arguments.verifier)
    hypothesis = next(translator.hypotheses([arguments.sentence], trace=True, split=False, **options))
    if arguments.plot is not None:
        plot_passes(hypothesis, translator.target_vocab, arguments.plot)
    # https://no-color.org: any value but the empty one.
    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    width = shutil.get_terminal_size(fallback=(100, 24)).columns
    print(explain(hypothesis, translator.target_vocab, width, colour))
