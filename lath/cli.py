"""The command line: arguments, help texts and exit codes. What each verb does is in verbs.py.

Inputs are positional, options are flags. stdout is the result, stderr everything else. The exit code is 0, 2 (a mistake
of the user, reported on one line), 1 (a defect, with its traceback), 130 (Ctrl-C) or 143 (SIGTERM).
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import io
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from lath import __version__
from lath.analysis.settings import AnalyseSettings, BenchSettings, EvaluateSettings, ReproduceSettings
from lath.config import AUTO, FORMATS, CompressSettings, TrainSettings
from lath.engine.settings import ExportSettings, ShortlistSettings
from lath.errors import Interrupted, UserError, did_you_mean, exit_code
from lath.files import one_line
from lath.model.bundled import DEFAULT_MODEL
from lath.serve.settings import ServeSettings
from lath.verbs import (
    run_analyse,
    run_average,
    run_bench,
    run_compress,
    run_distill,
    run_evaluate,
    run_export,
    run_init,
    run_pair,
    run_prepare,
    run_reproduce,
    run_serve,
    run_shortlist,
    run_show,
    run_train,
    run_translate,
)

DEFAULT = "(default: %(default)s)"


class _Parser(argparse.ArgumentParser):
    """argparse with errors as `UserError` and an example before the help."""

    example = ""

    def format_help(self) -> str:
        example = f"Example: {self.example}\n\n" if self.example else ""
        return example + super().format_help()

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message} (see {self.prog} --help)")


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Help of a fixed width, because it is also the text of docs/cli.md."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=100)


def build_parser() -> argparse.ArgumentParser:
    """The parser of all verbs."""
    parser = _Parser(
        prog="lath",
        description="Fast neural machine translation: train, distil, translate, evaluate.",
        epilog="lath VERB --help shows the options of a verb and an example.",
        formatter_class=_Formatter,
    )
    parser.add_argument("--version", action="version", version=f"lath {__version__}")
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", parser_class=_Parser)
    _add_making(verbs)
    _add_adapting(verbs)
    _add_translate(verbs)
    _add_serve(verbs)
    _add_evaluate(verbs)
    _add_analyse(verbs)
    _add_reproduce(verbs)
    _add_bench(verbs)
    _add_show(verbs)
    return parser


def _add_making(verbs: Any) -> None:
    """The verbs that make a model."""
    init = _verb(verbs, "init", run_init, "Write a commented recipe for your own text, DIR/recipe.toml, to be edited.",
                 "lath init --source fr --target en --train-source talks.fr.gz --train-target talks.en.gz")  # fmt: skip
    init.add_argument("directory", metavar="DIR", nargs="?", type=Path, default=Path("."),
                      help="folder (default: the current one)")  # fmt: skip
    for side in ("source", "target"):
        init.add_argument(f"--{side}", dest=f"{side}_language", metavar="CODE", help=f"language of the {side}, as de")
    for split in ("train", "valid"):
        for side in ("source", "target"):
            init.add_argument(
                f"--{split}-{side}", metavar="FILE", help=f"{side} side (default: {split}.CODE in the folder)"
            )

    prepare = _verb(verbs, "prepare", run_prepare, "Turn aligned text into a data directory.",
                    "lath prepare recipe.toml data")  # fmt: skip
    prepare.add_argument("recipe", type=Path, help="TOML recipe; its sections data and vocab are used")
    prepare.add_argument("out", type=Path, help="data directory to write; must not exist")
    prepare.add_argument(
        "--vocab-from", type=Path, metavar="DIR", help="use the vocabulary of this data or model directory"
    )
    prepare.add_argument("--strict", action="store_true", help="refuse text that looks wrong instead of warning")
    _add_set(prepare)

    train = _verb(verbs, "train", run_train, "Train a model on a data directory.",
                  "lath train recipe.toml data run")  # fmt: skip
    train.add_argument(
        "recipe", type=Path, help="TOML recipe; its sections network, objective, train and decode are used"
    )
    train.add_argument("data", type=Path, help="data directory from lath prepare")
    train.add_argument(
        "run_directory", metavar="run", type=Path, help="run directory to write; the model is written to RUN/model"
    )
    train.add_argument("--resume", action="store_true", help="continue a run that was interrupted or killed")
    _add_device(train)
    _add_set(train)

    distill = _verb(verbs, "distill", run_distill, "Translate the source side of a corpus with a teacher.",
                    "lath distill runs/teacher/model train.de train.distilled.en")  # fmt: skip
    distill.add_argument("model", type=Path, help="the teacher: model directory, exported model or bundled model")
    distill.add_argument("source", type=Path, help="source text: plain, .gz or .xz")
    distill.add_argument(
        "out", type=Path, help="text file to write, line n for line n; run the command again to continue after a kill"
    )
    _add_device(distill)
    _add_precision(distill)
    _add_engine(distill)
    _add_set(distill)

    average = _verb(verbs, "average", run_average, "Average the best checkpoints of a run into a model.",
                    "lath average runs/demo runs/demo-best3 --best 3")  # fmt: skip
    average.add_argument("run_directory", metavar="run", type=Path, help="run directory from lath train")
    average.add_argument("out", type=Path, help="model directory to write; must not exist")
    average.add_argument(
        "--best",
        type=_count,
        metavar="N",
        default=TrainSettings.keep_best,
        help=f"number of checkpoints to average, the best by validation {DEFAULT}",
    )


def _add_adapting(verbs: Any) -> None:
    """The verbs that make a model faster or smaller, or write it for another program."""
    shortlist = _verb(verbs, "shortlist", run_shortlist, "Add a lexical shortlist to a model: faster on a CPU.",
                      "lath shortlist data/prepared runs/lat/model")  # fmt: skip
    shortlist.add_argument("data", type=Path, help="data directory from lath prepare, with the model's vocabulary")
    shortlist.add_argument(
        "model", type=Path, help="model directory; use the shortlist with --set decode.shortlist=true"
    )
    shortlist.add_argument(
        "--near",
        type=_count,
        metavar="N",
        default=ShortlistSettings.near,
        help=f"target tokens for each source token {DEFAULT}",
    )
    shortlist.add_argument(
        "--frequent",
        type=_count,
        metavar="N",
        default=ShortlistSettings.frequent,
        help=f"most frequent target tokens, allowed in every sentence {DEFAULT}",
    )

    compress = _verb(verbs, "compress", run_compress, "Write a smaller copy of a model.",
                     "lath compress runs/lat/model models/de-en")  # fmt: skip
    compress.add_argument("model", type=Path, help="model directory")
    compress.add_argument("out", type=Path, help="model directory to write; must not exist")
    compress.add_argument(
        "--storage",
        metavar="TYPE",
        default=CompressSettings.storage,
        help=f"type of the weights: fp16 (half the size), int8 (a quarter) or coded (a seventh, coarser) {DEFAULT}",
    )

    pair = _verb(verbs, "pair", run_pair, "Put a LAT model and the AT model that checks it into one directory.",
                 "lath pair runs/lat/model runs/at/model pair --set decode.verify_nats=2")  # fmt: skip
    pair.add_argument("student", type=Path, help="model directory of a LAT model")
    pair.add_argument("verifier", type=Path, help="model directory of an AT model with the same vocabulary")
    pair.add_argument("out", type=Path, help="directory to write; must not exist. Every verb can use it")
    _add_set(pair)

    export = _verb(verbs, "export", run_export, "Export an AT model for CTranslate2.",
                   "lath export runs/teacher/model runs/teacher/int8 --to ctranslate2 --quantization int8")  # fmt: skip
    export.add_argument("model", type=Path, help="model directory of an AT model")
    export.add_argument(
        "out", type=Path, help="directory to write; must not exist. lath translate and lath distill can use it"
    )
    export.add_argument(
        "--to", metavar="FORMAT", default=ExportSettings.to, help=f"format; ctranslate2 needs the extra bench {DEFAULT}"
    )
    export.add_argument(
        "--quantization",
        metavar="TYPE",
        default=ExportSettings.quantization,
        help=f"type of the weights: float32, float16 or int8 {DEFAULT}",
    )


def _add_translate(verbs: Any) -> None:
    """The verb that translates."""
    translate = _verb(verbs, "translate", run_translate, "Translate text; line n of the output is line n of the input.",
                      "lath translate runs/demo/model news.de -o news.en")  # fmt: skip
    translate.add_argument(
        "model",
        type=Path,
        nargs="?",
        help=f"bundled model, model directory or exported model (default: the bundled model {DEFAULT_MODEL})",
    )
    translate.add_argument(
        "input",
        type=Path,
        nargs="?",
        help="text file, plain, .gz or .xz (default: - for standard input); a file alone uses the default model",
    )
    translate.add_argument("--text", metavar="TEXT", help="translate this text instead of a file")
    translate.add_argument("-o", "--output", type=Path, metavar="FILE", help="write to FILE instead of standard output")
    translate.add_argument(
        "--lines", action="store_true", help="translate each line as one sentence, with nothing protected"
    )
    translate.add_argument(
        "--format",
        choices=FORMATS,
        default=FORMATS[0],
        help=f"html translates the text between tags {DEFAULT}",
    )
    _add_verifier(translate)
    _add_verify(translate)
    _add_threads(translate)
    _add_device(translate)
    _add_precision(translate)
    _add_engine(translate)
    _add_set(translate)


def _add_serve(verbs: Any) -> None:
    """The verb that answers over HTTP."""
    serve = _verb(verbs, "serve", run_serve, "Translate over HTTP, with LibreTranslate's API and a page.",
                  "lath serve de-en --port 5000 --api-key-file keys.txt")  # fmt: skip
    serve.add_argument(
        "models",
        metavar="model",
        type=Path,
        nargs="*",
        help=f"models of different language pairs (default: the bundled model {DEFAULT_MODEL})",
    )
    serve.add_argument("--host", default=ServeSettings.host, help=f"address to listen at; 0.0.0.0 is all {DEFAULT}")
    serve.add_argument(
        "--api-key-file", type=Path, metavar="FILE", help="keys, one a line; without it nobody needs a key"
    )
    for name, sentence in {
        "port": "port to listen at; 0 takes a free one",
        "max_wait_ms": "longest wait of a batch for company, under load",
        "max_batch": "most sentences of a batch; 0 takes what suits the device",
        "max_queue": "requests that may wait for a model",
        "max_body": "bytes of a request",
        "max_characters": "characters to translate in a request",
        "rate": "requests a minute of a key or address; 0 is no limit",
    }.items():
        serve.add_argument(
            _flag(name),
            type=_count_or_0,
            metavar="N",
            default=getattr(ServeSettings, name),
            help=f"{sentence} {DEFAULT}",
        )
    serve.add_argument(
        "--cors",
        metavar="ORIGIN",
        default=ServeSettings.cors,
        help="origin whose pages may ask, * for all (default: none)",
    )
    _add_verifier(serve)
    _add_threads(serve)
    _add_device(serve)


def _add_evaluate(verbs: Any) -> None:
    """The verb that scores."""
    evaluate = _verb(verbs, "evaluate", run_evaluate, "Score translations, and test systems against the first one.",
                     "lath evaluate reference.en first.en second.en")  # fmt: skip
    evaluate.add_argument("reference", type=Path, help="reference translations")
    evaluate.add_argument(
        "hypotheses",
        type=Path,
        nargs="+",
        help="translations; each file is tested against the first (sacrebleu's paired bootstrap)",
    )
    for name, sentence in {
        "tokenised": "the text is already tokenised: score its tokens",
        "ter": "also compute TER, which is slow",
        "repeats": "also compute n-gram repeat rates, n = 1 to 4",
        "buckets": "also compute BLEU by reference length",
        "json": "print one JSON object, with every digit",
    }.items():
        evaluate.add_argument(_flag(name), action="store_true", help=sentence)
    for name, sentence in {
        "window": "a repeat starts up to N positions after the first",
        "samples": "bootstrap samples of the paired test; 0 skips it",
        "digits": "decimals of the tables",
    }.items():
        evaluate.add_argument(
            _flag(name),
            type=_count if name == "window" else _count_or_0,
            metavar="N",
            default=getattr(EvaluateSettings, name),
            help=f"{sentence} {DEFAULT}",
        )
    _add_edges(evaluate)


def _add_analyse(verbs: Any) -> None:
    """The verb that makes the paper's tables and figures."""
    analyse = _verb(verbs, "analyse", run_analyse, "Make the paper's tables and figures.",
                    "lath analyse test.en AT=at.en LAT=de-en@iterations=4 --source test.de --out report")  # fmt: skip
    analyse.add_argument("reference", type=Path, help="reference translations")
    analyse.add_argument(
        "systems",
        metavar="system",
        nargs="+",
        help="FILE or NAME=FILE with translations, or NAME=MODEL[@iterations=4,length_candidates=5], which is "
        "translated first; the first system is the baseline",
    )
    analyse.add_argument("--source", type=Path, metavar="FILE", help="source text, line n for line n")
    analyse.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        required=True,
        help="directory for the results; translations there are used again",
    )
    analyse.add_argument(
        "--counted", type=Path, metavar="FILE", help="text in which names are counted (default: the source itself)"
    )
    analyse.add_argument("--tokenised", action="store_true", help="the text is already tokenised: score its tokens")
    analyse.add_argument("--ter", action=argparse.BooleanOptionalAction, default=AnalyseSettings.ter,
                         help="compute TER, the slowest score")  # fmt: skip
    counts = {
        "samples": "bootstrap samples of the paired test; 0 skips it",
        "window": "a repeat starts up to N positions after the first",
        "rare": "a name is rare if it occurs fewer than N times",
        "traced": "lines whose passes are recorded with each model; 0 skips it",
        "timed": "sentences to time with each model, one at a time; 0 skips it",
        "repeats": "how often each sentence is timed",
    }
    for name, sentence in counts.items():
        parse = _count_or_0 if name in ("samples", "traced", "timed") else _count
        analyse.add_argument(_flag(name), type=parse, metavar="N", default=getattr(AnalyseSettings, name),
                             help=f"{sentence} {DEFAULT}")  # fmt: skip
    _add_edges(analyse)
    _add_device(analyse)
    _add_precision(analyse)


def _add_reproduce(verbs: Any) -> None:
    """The verb that runs a whole comparison."""
    reproduce = _verb(verbs, "reproduce", run_reproduce,
                      "Run or continue a whole comparison and put the paper's figures beside it.",
                      "lath reproduce iwslt14-de-en --dry-run")  # fmt: skip
    reproduce.add_argument("task", help="a task of the file --tasks")
    reproduce.add_argument("--dry-run", action="store_true", help="print files, commands and estimates; run none")
    reproduce.add_argument("--tasks", metavar="FILE", default=ReproduceSettings.tasks,
                           help=f"tasks, systems and the paper's figures {DEFAULT}")  # fmt: skip
    reproduce.add_argument("--run", metavar="DIR", dest="directory", default=ReproduceSettings.directory,
                           help="run directory (default: runs/TASK)")  # fmt: skip
    for name, what in {"systems": "systems", "decode": "decodings"}.items():
        reproduce.add_argument(f"--{name}", metavar="A,B", default=getattr(ReproduceSettings, name),
                               help=f"only these {what} (default: the task's)")  # fmt: skip
    reproduce.add_argument("--jobs", type=_count, metavar="N", help="steps at the same time (default: the task's)")
    _add_device(reproduce)
    reproduce.add_argument("--set", action="append", default=[], dest="overrides", metavar="[NAME:]KEY=VALUE",
                           help="change a setting of all systems, or of those named")  # fmt: skip


def _add_edges(parser: argparse.ArgumentParser) -> None:
    edges = ",".join(map(str, EvaluateSettings.edges))
    parser.add_argument("--edges", type=_counts, metavar="N,N", default=edges,
                        help=f"longest reference of each bucket but the last, in words {DEFAULT}")  # fmt: skip


def _add_bench(verbs: Any) -> None:
    """The verb that measures speed."""
    bench = _verb(verbs, "bench", run_bench, "Measure how fast models translate, all in one run.",
                  "lath bench runs/at/model runs/lat/model test.de --references test.en --plot speed.svg")  # fmt: skip
    bench.add_argument(
        "models", metavar="model", type=Path, nargs="+", help="model directories, exported models or bundled models"
    )
    bench.add_argument("data", type=Path, help="source text, one sentence per line: plain, .gz or .xz")
    bench.add_argument(
        "--references", type=Path, metavar="FILE", help="reference translations, line n for line n: adds BLEU"
    )
    bench.add_argument(
        "--plot", type=Path, metavar="FILE", help="plot quality against latency into FILE (.svg or .png)"
    )
    bench.add_argument("--against", metavar="ROW", help="row to compare with (default: LAT with 4 iterations)")
    counts = {
        "sentences": "sentences to time, at most",
        "min_tokens": "shortest sentence to time, in source tokens",
        "max_tokens": "longest sentence to time, in source tokens",
        "repeats": "how often each row is measured",
        "threads": "CPU threads",
    }
    unset = {"max_tokens": "no limit", "threads": "chosen by torch"}
    for name, sentence in counts.items():
        shown = f"(default: {unset[name]})" if name in unset else DEFAULT
        bench.add_argument(
            _flag(name), type=_count, metavar="N", default=getattr(BenchSettings, name), help=f"{sentence} {shown}"
        )
    for name, sentence in {
        "batches": "batch sizes for the throughput",
        "lengths": "source lengths in tokens for the latency by length",
    }.items():
        default = ",".join(map(str, getattr(BenchSettings, name)))
        bench.add_argument(_flag(name), type=_counts, metavar="N,N", default=default, help=f"{sentence} {DEFAULT}")
    bench.add_argument("--plain", action="store_true", help="also measure every model with the plain engine")
    _add_device(bench)
    _add_precision(bench)
    _add_set(bench)


def _add_show(verbs: Any) -> None:
    """The verb that prints what is in a file or behind a translation."""
    show = _verb(verbs, "show", run_show, "Summarise a recipe or directory, or show a translation step by step.",
                 'lath show runs/demo/model "Guten Morgen."')  # fmt: skip
    show.add_argument("path", type=Path, help="recipe, data, run or model directory, or bundled model")
    show.add_argument("sentence", nargs="?", help="with a model: translate this sentence and show every pass")
    show.add_argument(
        "--plot",
        type=Path,
        metavar="FILE",
        help="with a run: plot its losses into FILE (.svg or .png); with a sentence: draw its passes (.svg)",
    )
    _add_verifier(show)
    _add_verify(show)
    _add_device(show)
    _add_precision(show)
    _add_set(show)


def _verb(
    verbs: Any, name: str, run: Callable[[argparse.Namespace], None], what: str, example: str
) -> argparse.ArgumentParser:
    parser: _Parser = verbs.add_parser(name, help=what, description=what, formatter_class=_Formatter)
    parser.example = example
    parser.set_defaults(run=run)
    return parser


def _add_set(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE", dest="overrides",
                        help="change a setting, for example --set decode.iterations=1; can be repeated")  # fmt: skip


def _add_verifier(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--verifier", type=Path, metavar="MODEL", help="AT model with the same vocabulary, which checks what LAT writes"
    )


def _add_verify(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--verify",
        metavar="MODE",
        choices=("rerank", "relaxed", "exact"),
        help="how it checks: rerank chooses a length, relaxed accepts what is likely, exact what it would write itself "
        "(default: the model's, or relaxed)",
    )


def _add_precision(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--precision",
        default=AUTO,
        help="auto, fp32, bf16, fp16 or int8; auto is fp16 on a GPU and int8 on a CPU, or fp32 for a narrow network "
        f"{DEFAULT}",
    )


def _add_engine(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--engine", default=AUTO, help=f"auto, plain or recorded; auto is the fastest for the device {DEFAULT}"
    )


def _add_device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", default=AUTO, help=f"auto, cpu or cuda; auto is a GPU if there is one {DEFAULT}")


def _add_threads(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--threads",
        type=_count,
        metavar="N",
        help="CPU threads (default: as many as cores are idle, up to torch's own choice)",
    )


def _flag(name: str) -> str:
    """The flag of a setting: min_tokens is --min-tokens."""
    return "--" + name.replace("_", "-")


def _count(text: str) -> int:
    if not text.isdecimal() or int(text[:10]) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    if len(text) > 9:
        raise argparse.ArgumentTypeError(f"{text[:20]!r} is above 999999999")
    return int(text)


def _count_or_0(text: str) -> int:
    return 0 if text == "0" else _count(text)


def _counts(text: str) -> tuple[int, ...]:
    return tuple(sorted({_count(number) for number in text.split(",")}))


# ---- running ----------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    if "stdout" in _closed_streams():
        return _refuse("standard output is closed, so the result would be lost; redirect it to a file or to /dev/null")
    if isinstance(sys.stdout, io.TextIOWrapper):  # output is UTF-8 in every locale
        sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape")
    try:
        with _terminable():
            _run(sys.argv[1:] if arguments is None else list(arguments))
            sys.stdout.flush()  # here, where a full disk or a broken pipe is handled
        return 0
    except UserError as error:
        return _refuse(str(error))
    except KeyboardInterrupt as error:
        print(f"lath: {str(error) or 'interrupted'}", file=sys.stderr)
        return exit_code(error)
    except BrokenPipeError:
        # The reader of our output has finished (lath translate | head): not an error.
        _drop_output()
        return 0
    except OSError as error:
        if error.errno == errno.ENOSPC:
            _drop_output()
            where = error.filename or "standard output"
            return _refuse(f"disk full while writing {where}: free some space and run the same command again")
        if error.filename is None:
            raise
        return _refuse(f"{error.filename}: {error.strerror}; check the path and its permissions")


def _closed_streams() -> list[str]:
    """The standard streams that the caller has closed; the null device takes their numbers, which files opened later
    would get. It takes standard input for writing, so that reading fails."""
    closed = [name for name in ("stdin", "stdout", "stderr") if getattr(sys, name) is None]
    for name in closed:
        setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    return closed


PATIENCE = 5
"""Seconds after which another SIGTERM interrupts again."""


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM end the block as Ctrl-C does, so that partial files are removed."""
    received: list[float] = []

    def receive(number: int, frame: FrameType | None) -> None:
        received.append(time.monotonic())
        # A second signal must not cut the removal short, unless the first was lost in a library's import.
        if len(received) == 1 or received[-1] > received[0] + PATIENCE:
            raise Interrupted("terminated", number)

    if threading.current_thread() is not threading.main_thread():  # Python allows signal handlers only there
        yield
        return
    before = signal.signal(signal.SIGTERM, receive)
    try:
        yield
        if received:
            raise Interrupted("terminated", signal.SIGTERM)
    except Exception:
        if not received:
            raise
        # An extension that was just being imported, for example, has replaced the exception by its own.
        raise Interrupted("terminated", signal.SIGTERM) from None
    finally:
        signal.signal(signal.SIGTERM, before)


def _refuse(message: str) -> int:
    line = one_line(message)
    print("lath: error:", line if len(line) < 2000 else f"{line[:1000]} ... {line[-500:]}", file=sys.stderr)
    return 2


def _drop_output() -> None:
    """Discard unwritten output; otherwise the interpreter would try to write it again at exit, and fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(arguments: list[str]) -> None:
    parser = build_parser()
    verbs = verb_parsers(parser)
    if not arguments:
        parser.print_help()
        return
    if not arguments[0].startswith("-") and arguments[0] not in verbs:
        raise UserError(f"unknown verb {arguments[0]!r}{did_you_mean(arguments[0], verbs)}; see lath --help")
    try:
        if arguments[0] in verbs:  # flags may come between inputs: lath translate MODEL --device cpu FILE
            parsed = verbs[arguments[0]].parse_intermixed_args(arguments[1:])
        else:
            parsed = parser.parse_args(arguments)
    except SystemExit:  # --help and --version; mistakes raise UserError
        return
    parsed.run(parsed)


def verb_parsers(parser: argparse.ArgumentParser) -> dict[str, _Parser]:
    """The parser of each verb, by name."""
    action = next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return dict(action.choices)


def reference() -> str:
    """docs/cli.md: the help of every verb; options that several verbs have are described once."""
    parser = build_parser()
    verbs = verb_parsers(parser)
    options = [action for verb in verbs.values() for action in verb._actions if action.option_strings]
    counts = Counter(map(_described, options))
    shared = {_described(action): action for action in options if counts[_described(action)] > 1}
    lines = ["# Command line", "", "The help of every verb. What several verbs have is described once, before them.",
             "Written by `make docs`; do not edit.", ""]  # fmt: skip
    lines += _block("lath", [parser.format_help()])
    lines += _block("Options of several verbs", [_listed(parser, "options", list(shared.values()))])
    for name, verb in verbs.items():
        sections = [
            _listed(verb, str(group.title), [a for a in group._group_actions if _described(a) not in shared])
            for group in verb._action_groups
        ]
        start = [f"{verb.description}\nExample: {verb.example}\n", verb.format_usage()]
        lines += _block(f"lath {name}", [*start, *filter(None, sections)])
    return "\n".join(lines)


def _described(action: argparse.Action) -> tuple[object, ...]:
    """What the help says of an argument."""
    return (*action.option_strings, action.help, action.metavar, str(action.default))


def _listed(parser: argparse.ArgumentParser, title: str, actions: list[argparse.Action]) -> str:
    """A section of the help; empty without arguments."""
    formatter = _Formatter(parser.prog)
    formatter.start_section(title)
    formatter.add_arguments(actions)
    formatter.end_section()
    return formatter.format_help()


def _block(title: str, texts: list[str]) -> list[str]:
    return [f"## {title}", "", "```text", "\n".join(texts).rstrip(), "```", ""]
