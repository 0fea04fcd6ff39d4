"""The command line: the verbs with their things and ways (what they do is in verbs.py), and how a command ends.

Positionals are things, flags are ways. stdout is the result, stderr everything else. Exit 0, 2 (the user's
mistake, told in one line), 1 (a defect, with its traceback) or 130 (Ctrl-C).
"""

from __future__ import annotations

import argparse
import errno
import io
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from lath import __version__
from lath.errors import UserError, did_you_mean
from lath.model.bundled import DEFAULT_MODEL
from lath.verbs import (
    run_average,
    run_bench,
    run_distill,
    run_evaluate,
    run_export,
    run_pack,
    run_prepare,
    run_shortlist,
    run_show,
    run_train,
    run_translate,
)


class _Parser(argparse.ArgumentParser):
    """argparse with our form of error and the example first."""

    example = ""

    def format_help(self) -> str:
        example = f"Example: {self.example}\n\n" if self.example else ""
        return example + super().format_help()

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message} (see {self.prog} --help)")


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Help in one width, whatever the terminal: it is also the text of docs/cli.md."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=100)


def build_parser() -> argparse.ArgumentParser:
    """All verbs with their things and ways."""
    parser = _Parser(
        prog="lath",
        description="Fast neural machine translation: train, distil, translate, evaluate.",
        epilog="Each verb has its own --help, which starts with an example.",
        formatter_class=_Formatter,
    )
    parser.add_argument("--version", action="version", version=f"lath {__version__}")
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", parser_class=_Parser)
    _add_making(verbs)
    _add_adapting(verbs)
    _add_using(verbs)
    return parser


def _add_making(verbs: Any) -> None:
    """The verbs that make a model."""
    prepare = _verb(verbs, "prepare", run_prepare, "Turn aligned text into a data directory.",
                    "lath prepare recipes/demo.toml runs/demo-data")  # fmt: skip
    prepare.add_argument("recipe", type=Path, help="TOML recipe with sections data and vocab")
    prepare.add_argument("out", type=Path, help="data directory to write; must not exist")
    prepare.add_argument(
        "--vocab-from", type=Path, metavar="DIR", help="take the vocabulary of this data or model directory"
    )
    _add_set(prepare)

    train = _verb(verbs, "train", run_train, "Train a model on a data directory.",
                  "lath train recipes/demo.toml runs/demo-data runs/demo")  # fmt: skip
    train.add_argument("recipe", type=Path, help="TOML recipe with sections network, objective, train and decode")
    train.add_argument("data", type=Path, help="data directory from lath prepare")
    train.add_argument(
        "run_directory", metavar="run", type=Path, help="run directory to write; the model ends up in RUN/model"
    )
    train.add_argument("--resume", action="store_true", help="go on with a run that was stopped or killed")
    _add_device(train)
    _add_set(train)

    distill = _verb(verbs, "distill", run_distill, "Let a teacher rewrite the target side of a corpus.",
                    "lath distill runs/teacher/model train.de train.distilled.en")  # fmt: skip
    distill.add_argument(
        "model", type=Path, help="model directory of the teacher, one of lath export, or a shipped model"
    )
    distill.add_argument("source", type=Path, help="source text: plain, .gz or .xz")
    distill.add_argument(
        "out", type=Path, help="text file to write, line n for line n; run again after a kill to go on"
    )
    _add_device(distill)
    _add_precision(distill)
    _add_engine(distill)
    _add_set(distill)

    average = _verb(verbs, "average", run_average, "Average a run's best checkpoints into a model.",
                    "lath average runs/demo runs/demo-best3 --best 3")  # fmt: skip
    average.add_argument("run_directory", metavar="run", type=Path, help="run directory of lath train")
    average.add_argument("out", type=Path, help="model directory to write; must not exist")
    average.add_argument(
        "--best", type=_count, metavar="N", default=5, help="checkpoints to average, the best at validation (5)"
    )


def _add_adapting(verbs: Any) -> None:
    """The verbs that make a model faster, smaller, or another program's."""
    shortlist = _verb(verbs, "shortlist", run_shortlist, "Give a model a shortlist of tokens: faster on a CPU.",
                      "lath shortlist data/prepared runs/lat/model")  # fmt: skip
    shortlist.add_argument("data", type=Path, help="directory of lath prepare, with the model's vocabulary")
    shortlist.add_argument(
        "model", type=Path, help="model directory; translate with --set decode.shortlist=true afterwards"
    )
    shortlist.add_argument("--near", type=_count, metavar="N", default=100, help="tokens for each source token (100)")
    shortlist.add_argument(
        "--frequent", type=_count, metavar="N", default=1000, help="tokens for every sentence (1000)"
    )

    pack = _verb(verbs, "pack", run_pack, "Write a smaller copy of a model.",
                 "lath pack runs/lat/model models/de-en")  # fmt: skip
    pack.add_argument("model", type=Path, help="model directory")
    pack.add_argument("out", type=Path, help="model directory to write; must not exist")
    pack.add_argument(
        "--storage",
        metavar="TYPE",
        default="int8",
        help="type of the weights: int8 (default, a quarter), fp16 (a half), coded (a seventh, rounded more)",
    )

    export = _verb(verbs, "export", run_export, "Write an AT model for another program.",
                   "lath export runs/teacher/model runs/teacher/int8 --to ctranslate2 --quantization int8")  # fmt: skip
    export.add_argument("model", type=Path, help="model directory of an AT model")
    export.add_argument(
        "out", type=Path, help="directory to write; must not exist. lath distill and lath translate take it as a model"
    )
    export.add_argument("--to", metavar="FORMAT", default="ctranslate2", help="ctranslate2, the default (extra bench)")
    export.add_argument(
        "--quantization",
        metavar="TYPE",
        default="float32",
        help="type of the weights: float32 (default), float16, int8",
    )


def _add_using(verbs: Any) -> None:
    """The verbs that use and judge one."""
    translate = _verb(verbs, "translate", run_translate, "Translate text, line n in is line n out.",
                      "lath translate runs/demo/model news.de > news.en")  # fmt: skip
    translate.add_argument(
        "model",
        type=Path,
        nargs="?",
        help=f"shipped model, model directory, or one of lath export (default: {DEFAULT_MODEL}, where it is shipped)",
    )
    translate.add_argument(
        "input",
        type=Path,
        nargs="?",
        help="text file, plain, .gz or .xz (default: - for standard input); alone, for the default model",
    )
    _add_device(translate)
    _add_precision(translate)
    _add_engine(translate)
    _add_set(translate)

    evaluate = _verb(verbs, "evaluate", run_evaluate, "Score translations, and compare two systems.",
                     "lath evaluate reference.en first.en second.en")  # fmt: skip
    evaluate.add_argument("reference", type=Path, help="reference text")
    evaluate.add_argument(
        "hypotheses", type=Path, nargs="+", help="translations; two of them are also compared (paired bootstrap)"
    )
    evaluate.add_argument(
        "--tokenised", action="store_true", help="the text is tokenised: BLEU on its tokens as they are"
    )
    evaluate.add_argument("--ter", action="store_true", help="also TER, which takes a while")

    _add_bench(verbs)

    show = _verb(verbs, "show", run_show, "Show what a recipe or directory holds, or how a translation came about.",
                 'lath show runs/demo/model "Guten Morgen."')  # fmt: skip
    show.add_argument("thing", type=Path, help="recipe, data, run or model directory, or shipped model")
    show.add_argument("sentence", nargs="?", help="with a model: translate this sentence and show every pass")
    show.add_argument("--plot", type=Path, metavar="FILE", help="with a run: draw its losses into FILE (.svg or .png)")
    _add_device(show)
    _add_precision(show)
    _add_set(show)


def _add_bench(verbs: Any) -> None:
    """The verb that measures speed."""
    bench = _verb(verbs, "bench", run_bench, "Measure how fast models translate, all in one run.",
                  "lath bench runs/at/model runs/lat/model test.de --references test.en --plot speed.svg")  # fmt: skip
    bench.add_argument(
        "models",
        metavar="model",
        type=Path,
        nargs="+",
        help="model directories, ones of lath export, or shipped models",
    )
    bench.add_argument("data", type=Path, help="source text, one sentence a line: plain, .gz or .xz")
    bench.add_argument(
        "--references", type=Path, metavar="FILE", help="the right translations, line n for line n: adds BLEU"
    )
    bench.add_argument(
        "--plot", type=Path, metavar="FILE", help="draw quality against latency into FILE (.svg or .png)"
    )
    bench.add_argument("--against", metavar="ROW", help="row of the table to compare with (LAT with 4 iterations)")
    bench.add_argument("--sentences", type=_count, metavar="N", help="sentences to time at most (100)")
    bench.add_argument("--min-tokens", type=_count, metavar="N", default=1, help="source tokens of each at least (1)")
    bench.add_argument("--max-tokens", type=_count, metavar="N", help="source tokens of each at most (any number)")
    bench.add_argument("--repeats", type=_count, metavar="N", help="turns of each row, medians count (5)")
    bench.add_argument(
        "--batches",
        type=_counts,
        metavar="N,N",
        help="sizes of batches for the throughput (8,32,128)",
    )
    bench.add_argument(
        "--lengths",
        type=_counts,
        metavar="N,N",
        help="source tokens for latency against length (10,20,40,80,160)",
    )
    bench.add_argument("--plain", action="store_true", help="measure the plain engine too, beside the fast ones")
    bench.add_argument("--threads", type=_count, metavar="N", help="threads of the CPU (as torch has it)")
    _add_device(bench)
    _add_precision(bench)
    _add_set(bench)


def _verb(
    verbs: Any, name: str, run: Callable[[argparse.Namespace], None], what: str, example: str
) -> argparse.ArgumentParser:
    parser: _Parser = verbs.add_parser(name, help=what, description=what, formatter_class=_Formatter)
    parser.example = example
    parser.set_defaults(run=run)
    return parser


def _add_set(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE", dest="overrides",
                        help="change a setting, for example --set decode.iterations=1; may be repeated")  # fmt: skip


def _add_precision(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--precision",
        default="auto",
        help="auto (default: fp16 on a GPU, int8 on a CPU unless the network is narrow), fp32, bf16, fp16 or int8",
    )


def _add_engine(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--engine", default="auto", help="auto (default: what is fastest on the device), plain or recorded"
    )


def _add_device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", default="auto", help="cpu, cuda or auto (default: a GPU where there is one)")


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def _counts(text: str) -> tuple[int, ...]:
    return tuple(sorted({_count(part) for part in text.split(",")}))


# ---- running ----------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # our text is UTF-8 whatever the locale
        sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape")
    try:
        _run(sys.argv[1:] if arguments is None else list(arguments))
        sys.stdout.flush()  # here, where a full disk or a broken pipe is answered
        return 0
    except UserError as error:
        return _refuse(str(error))
    except KeyboardInterrupt as error:
        print(f"lath: {str(error) or 'interrupted'}", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of our output went away (lath translate | head): nothing is wrong, and nothing is left to say.
        _drop_output()
        return 0
    except OSError as error:
        if error.errno == errno.ENOSPC:
            _drop_output()
            where = error.filename or "standard output"
            return _refuse(f"disk full while writing {where}: free some space and run the same command again")
        if error.filename is None:
            raise
        return _refuse(f"{error.filename}: {error.strerror}; check the path and your rights to it")


def _refuse(message: str) -> int:
    print("lath: error:", message.replace("\n", " "), file=sys.stderr)
    return 2


def _drop_output() -> None:
    """Give up what could not be written; the interpreter would try it again at exit, and complain."""
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
        if arguments[0] in verbs:  # things and ways may come in any order: lath translate MODEL --device cpu FILE
            parsed = verbs[arguments[0]].parse_intermixed_args(arguments[1:])
        else:
            parsed = parser.parse_args(arguments)
    except SystemExit:  # --help and --version; a mistake is a UserError
        return
    parsed.run(parsed)


def verb_parsers(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The parser of each verb by name."""
    action = next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return dict(action.choices)


def reference() -> str:
    """docs/cli.md: the help of every verb."""
    parser = build_parser()
    parts = ["# Command line", "", "Made by `make docs` from the program itself; a test compares.", ""]
    for name, verb in {"lath": parser, **verb_parsers(parser)}.items():
        title = name if verb is parser else f"lath {name}"
        parts += [f"## {title}", "", "```text", verb.format_help().rstrip(), "```", ""]
    return "\n".join(parts)
