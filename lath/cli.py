"""The command line: each verb calls one function.

Positionals are things, flags are ways. stdout is the result, stderr everything else. Exit 0, 2 (the user's
mistake, told in one line), 1 (a defect, with its traceback) or 130 (Ctrl-C).
"""

from __future__ import annotations

import argparse
import errno
import io
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from lath import __version__
from lath.errors import UserError, did_you_mean
from lath.files import STANDARD_INPUT
from lath.shipped import DEFAULT_MODEL, default_model, find_model

if TYPE_CHECKING:
    from lath.distributed import World
    from lath.translator import Translator

# Everything that needs torch is imported inside the verbs: help and mistakes answer at once.


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
    prepare = _verb(verbs, "prepare", _prepare, "Turn aligned text into a data directory.",
                    "lath prepare recipes/demo.toml runs/demo-data")  # fmt: skip
    prepare.add_argument("recipe", type=Path, help="TOML recipe with sections data and vocab")
    prepare.add_argument("out", type=Path, help="data directory to write; must not exist")
    prepare.add_argument(
        "--vocab-from", type=Path, metavar="DIR", help="take the vocabulary of this data or model directory"
    )
    _add_set(prepare)

    train = _verb(verbs, "train", _train, "Train a model on a data directory.",
                  "lath train recipes/demo.toml runs/demo-data runs/demo")  # fmt: skip
    train.add_argument("recipe", type=Path, help="TOML recipe with sections network, objective, train and decode")
    train.add_argument("data", type=Path, help="data directory from lath prepare")
    train.add_argument(
        "run_directory", metavar="run", type=Path, help="run directory to write; the model ends up in RUN/model"
    )
    train.add_argument("--resume", action="store_true", help="go on with a run that was stopped or killed")
    _add_device(train)
    _add_set(train)

    distill = _verb(verbs, "distill", _distill, "Let a teacher rewrite the target side of a corpus.",
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

    average = _verb(verbs, "average", _average, "Average a run's best checkpoints into a model.",
                    "lath average runs/demo runs/demo-best3 --best 3")  # fmt: skip
    average.add_argument("run_directory", metavar="run", type=Path, help="run directory of lath train")
    average.add_argument("out", type=Path, help="model directory to write; must not exist")
    average.add_argument(
        "--best", type=_count, metavar="N", default=5, help="checkpoints to average, the best at validation (5)"
    )


def _add_adapting(verbs: Any) -> None:
    """The verbs that make a model faster, smaller, or another program's."""
    shortlist = _verb(verbs, "shortlist", _shortlist, "Give a model a shortlist of tokens: faster on a CPU.",
                      "lath shortlist data/prepared runs/lat/model")  # fmt: skip
    shortlist.add_argument("data", type=Path, help="directory of lath prepare, with the model's vocabulary")
    shortlist.add_argument(
        "model", type=Path, help="model directory; translate with --set decode.shortlist=true afterwards"
    )
    shortlist.add_argument("--near", type=_count, metavar="N", default=100, help="tokens for each source token (100)")
    shortlist.add_argument(
        "--frequent", type=_count, metavar="N", default=1000, help="tokens for every sentence (1000)"
    )

    pack = _verb(verbs, "pack", _pack, "Write a smaller copy of a model.",
                 "lath pack runs/lat/model models/de-en")  # fmt: skip
    pack.add_argument("model", type=Path, help="model directory")
    pack.add_argument("out", type=Path, help="model directory to write; must not exist")
    pack.add_argument(
        "--storage",
        metavar="TYPE",
        default="int8",
        help="type of the weights: int8 (default, a quarter), fp16 (a half)",
    )

    export = _verb(verbs, "export", _export, "Write an AT model for another program.",
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
    translate = _verb(verbs, "translate", _translate, "Translate text, line n in is line n out.",
                      "lath translate de-en news.de > news.en")  # fmt: skip
    translate.add_argument(
        "model",
        type=Path,
        nargs="?",
        help=f"shipped model, model directory, or one of lath export (default: {DEFAULT_MODEL})",
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

    evaluate = _verb(verbs, "evaluate", _evaluate, "Score translations, and compare two systems.",
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

    show = _verb(verbs, "show", _show, "Show what a recipe or directory holds, or how a translation came about.",
                 'lath show runs/demo/model "Guten Morgen."')  # fmt: skip
    show.add_argument("thing", type=Path, help="recipe, data, run or model directory, or shipped model")
    show.add_argument("sentence", nargs="?", help="with a model: translate this sentence and show every pass")
    show.add_argument("--plot", type=Path, metavar="FILE", help="with a run: draw its losses into FILE (.svg or .png)")
    _add_device(show)
    _add_precision(show)
    _add_set(show)


BENCH_COUNTS = ("sentences", "repeats", "batches", "lengths")
"""Flags whose defaults `bench.Ways` knows."""


def _add_bench(verbs: Any) -> None:
    """The verb that measures speed."""
    bench = _verb(verbs, "bench", _bench, "Measure how fast models translate, all in one run.",
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


# ---- verbs ------------------------------------------------------------------------------------------------------


def _prepare(arguments: argparse.Namespace) -> None:
    from lath.config import load_recipe
    from lath.data import prepare

    report = prepare(load_recipe(arguments.recipe, arguments.overrides), arguments.out, arguments.vocab_from)
    print(report)


def _train(arguments: argparse.Namespace) -> None:
    from lath.config import load_recipe
    from lath.distributed import join_world
    from lath.train import train

    with join_world(arguments.device) as (world, device):
        recipe = load_recipe(arguments.recipe, arguments.overrides)
        text = arguments.recipe.read_text(encoding="utf-8")
        finished = train(recipe, text, arguments.data, arguments.run_directory, device, arguments.resume, world)
        if world.first:
            print(finished)


def _distill(arguments: argparse.Namespace) -> None:
    model = find_model(arguments.model)
    from lath.distill import distill
    from lath.distributed import join_world
    from lath.translator import load, preferred_device

    with join_world(preferred_device(model, arguments.device)) as (world, device):
        settings = _decode_overrides(arguments.overrides)
        translator = load(model, str(device), arguments.precision, arguments.engine)
        lines = distill(translator, model, arguments.source, arguments.out, world=world, **settings)
        if world.first:
            print(f"{arguments.out}: {lines} lines")


def _average(arguments: argparse.Namespace) -> None:
    from lath.run import average_run

    for checkpoint in average_run(arguments.run_directory, arguments.best, arguments.out):
        print(checkpoint.state)


def _shortlist(arguments: argparse.Namespace) -> None:
    from lath.engine.shortlist import add_shortlist

    print(add_shortlist(arguments.data, arguments.model, arguments.near, arguments.frequent))


def _pack(arguments: argparse.Namespace) -> None:
    from lath.pack import directory_size, pack

    pack(arguments.model, arguments.out, arguments.storage)
    for directory in (arguments.model, arguments.out):
        print(f"{directory}: {directory_size(directory) / 1e6:.2f} MB")


def _export(arguments: argparse.Namespace) -> None:
    from lath.export import export

    export(arguments.model, arguments.out, arguments.to, arguments.quantization)
    print(arguments.out)


def _translate(arguments: argparse.Namespace) -> None:
    model, source = _model_and_text(arguments.model, arguments.input)
    from lath.distributed import join_world
    from lath.files import read_lines
    from lath.translator import load, preferred_device

    with join_world(preferred_device(model, arguments.device)) as (world, device):
        lines: Iterator[str] = read_lines(source)
        settings = _decode_overrides(arguments.overrides)
        translator = load(model, str(device), arguments.precision, arguments.engine)
        if world.size > 1:
            texts = _shared(translator, lines, source, settings, world)
        else:
            texts = (hypothesis.text for hypothesis in translator.hypotheses(lines, **settings))
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
    from lath.distributed import share_stream
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


def _evaluate(arguments: argparse.Namespace) -> None:
    from lath.evaluate import compare, evaluate
    from lath.files import misaligned, read_lines

    reference = list(read_lines(arguments.reference))
    systems = [list(read_lines(path)) for path in arguments.hypotheses]
    for path, lines in zip(arguments.hypotheses, systems, strict=True):
        if len(lines) != len(reference):
            raise misaligned(arguments.reference, len(reference), path, len(lines))
    for path, lines in zip(arguments.hypotheses, systems, strict=True):
        print(f"{path}\n{evaluate(lines, reference, arguments.tokenised, ter=arguments.ter)}")
    if len(systems) == 2:
        print(compare(systems[0], systems[1], reference, arguments.tokenised))


def _bench(arguments: argparse.Namespace) -> None:
    from lath.bench import Ways, bench

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


def _show(arguments: argparse.Namespace) -> None:
    thing = find_model(arguments.thing)
    from lath.exported import OURS, is_exported
    from lath.show import explain, plot_run, show

    if arguments.plot is not None:
        plot_run(thing, arguments.plot)
    if arguments.sentence is None:
        described = thing / OURS if is_exported(thing) else thing
        print(show(described, arguments.overrides))
        return
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
