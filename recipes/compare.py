"""The paper's comparison on one task, from raw text to scores: python recipes/compare.py --help

Every step is a `lath` command whose result stays under the run directory, and a step whose result is there is not done
again. So the same command goes on after a kill, or after --minutes, which ends a step in a way that it can go on from.

    RUN/raw                   prepared text                          lath prepare
    RUN/teacher               AT on it                               lath train
    RUN/train.txt, valid.txt  its translations                       lath distill
    RUN/distilled             prepared text with these as targets    lath prepare
    RUN/lat, RUN/cmlm, ...    the systems                            lath train
    RUN/texts/TEST/lat.it4    their translations of each test        as lath translate writes them
    RUN/scores.json           scores with signatures                 lath evaluate; needs sacrebleu
"""

from __future__ import annotations

import argparse
import fnmatch
import importlib.util
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from lath.config import load_recipe, merge_overrides
from lath.errors import UserError
from lath.files import count_lines, misaligned, read_lines, whole_file
from lath.scores import Score, compare, evaluate

NOT_FINISHED = 75
"""The exit code when time was over."""
AT, CMLM, LAT = "network.kind=AT", "network.kind=CMLM", "network.kind=LAT"


@dataclass(frozen=True)
class System:
    """A model: the text it learns from, what it is, and how it translates the test."""

    text: str
    """raw or distilled."""
    settings: tuple[str, ...]
    """For `lath train`."""
    ways: dict[str, tuple[str, ...]]
    """For `lath translate`, by name."""

    @property
    def could_teach(self) -> bool:
        """An AT model on people's text is a teacher, of this or another seed; all others are students."""
        return self.text == "raw" and AT in self.settings


def iterations(*numbers: int, more: tuple[str, ...] = ()) -> dict[str, tuple[str, ...]]:
    """A way of decoding for each number of iterations."""
    return {f"it{number}": (f"decode.iterations={number}", *more) for number in numbers}


BEAM: dict[str, tuple[str, ...]] = {"beam5": ("decode.beam=5",)}
LENGTHS = ("decode.length_candidates=5",)
FOUR = "decode.iterations=4"
MERGING: dict[str, tuple[str, ...]] = {
    "it4-paper": (FOUR, "decode.rules=paper"),
    "it4-repeats": (FOUR, "decode.merge.collapse_repeats=false"),
    "it4-band10": (FOUR, "decode.merge.band=0.1"),
    "it4-input": (FOUR, "decode.merge.adjust_to=input"),
    "it4-first": (FOUR, "decode.adjust_towards=first"),
    "it4-lengths3": (FOUR, "decode.length_candidates=3"),
    "it4-lengths5": (FOUR, *LENGTHS),
    "it1-longer": ("decode.iterations=1", "decode.extra_length=1"),
    "it4-longer": (FOUR, "decode.extra_length=1"),
    "it4-longer-lengths3": (FOUR, "decode.extra_length=1", "decode.length_candidates=3"),
}
SYSTEMS = {
    "teacher": System("raw", (AT,), BEAM),
    "lat": System("distilled", (LAT,), {**iterations(1, 2, 4, 10), **MERGING}),
    "cmlm": System("distilled", (CMLM,), iterations(1, 4, 10, more=LENGTHS)),
    "at-12-1": System("distilled", (AT, "network.encoder_layers=12", "network.decoder_layers=1"), BEAM),
    **{f"teacher-seed{seed}": System("raw", (AT, f"train.seed={seed}"), BEAM) for seed in (2, 3)},
    "lat-raw": System("raw", (LAT,), iterations(1, 4)),
    "cmlm-raw": System("raw", (CMLM,), iterations(1, 4, 10, more=LENGTHS)),
    **{
        f"lat-k{length}": System("distilled", (LAT, f"network.piece_length={length}"), iterations(1, 4))
        for length in (2, 4, 5, 6)
    },
    **{f"lat-seed{seed}": System("distilled", (LAT, f"train.seed={seed}"), iterations(1, 2, 4, 10)) for seed in (2, 3)},
    **{
        f"cmlm-seed{seed}": System("distilled", (CMLM, f"train.seed={seed}"), iterations(1, 4, 10, more=LENGTHS))
        for seed in (2, 3)
    },
}
WAYS = sorted({way for system in SYSTEMS.values() for way in system.ways})
MAIN = ("teacher", "lat", "cmlm")
CLAIMS = (
    ("lat.it1", "cmlm.it1"),
    *((four, other) for four in ("lat.it4", "lat.it4-lengths5") for other in ("cmlm.it10", "teacher.beam5")),
)
"""What the paper says of these pairs is tested by paired bootstrap."""


class Translation(NamedTuple):
    """A text that is to be written."""

    source: Path
    overrides: list[str]
    out: Path


class TimeOver(Exception):
    """The minutes are over; what was being done can go on later."""


class Steps:
    """Runs commands until a deadline."""

    def __init__(self, minutes: float | None) -> None:
        self.deadline = None if minutes is None else time.monotonic() + 60 * minutes
        self.one_at_a_time = threading.Lock()
        """For translations, which share this process."""

    def lath(self, *arguments: object) -> None:
        """One command."""
        left = self.left()
        print("lath", *arguments, flush=True)
        with subprocess.Popen([sys.executable, "-m", "lath", *map(str, arguments)]) as process:
            try:
                code = process.wait(left)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGTERM)  # training saves its state
                process.wait()
                raise TimeOver from None
        if code:
            raise UserError(f"lath {arguments[0]} ended with {code}; its own message is above")

    def left(self) -> float | None:
        """Seconds to the deadline; None where there is none."""
        left = None if self.deadline is None else self.deadline - time.monotonic()
        if left is not None and left <= 0:
            raise TimeOver
        return left

    def translate(self, model: Path, wanted: Iterable[Translation], engine: str) -> None:
        """Several translations by one model, which is loaded once: a start takes longer than many a text."""
        from lath.translator import load

        self.left()
        with self.one_at_a_time:
            translator = load(model, engine=engine)
            for source, overrides, out in wanted:
                self.left()
                print("lath translate", model, source, *sets(overrides), "->", out, flush=True)
                settings = merge_overrides(overrides).get("decode", {})
                with whole_file(out) as partial, partial.open("w", encoding="utf-8", newline="\n") as file:
                    file.writelines(text + "\n" for text in translator.translate(read_lines(source), **settings))


def require_tests(tests: list[list[Path]]) -> None:
    """Tell of a missing or misaligned test now, and not when everything is trained."""
    for source, reference in tests:
        lines = [count_lines(path) for path in (source, reference)]
        if lines[0] != lines[1]:
            raise misaligned(source, lines[0], reference, lines[1])
    names = [name_of(test) for test in tests]
    if len(set(names)) < len(names):
        raise UserError(f"--test: two of {', '.join(names)} have one name; put their texts into folders of their own")


def run(options: argparse.Namespace) -> None:
    """Do what is missing, up to the translations of the test."""
    steps = Steps(options.minutes)
    prepare(steps, options, "raw")
    for test in options.test:
        texts_of(options, test).mkdir(parents=True, exist_ok=True)
    alone = [name for name in options.systems if name != "teacher" and not needs_teacher(options, name)]
    with ThreadPoolExecutor(options.jobs) as pool:

        def finish(names: list[str]) -> list[Future[None]]:
            return [pool.submit(train_and_translate, steps, options, name) for name in names]

        work = finish(alone)
        others = [name for name in options.systems if name not in alone]
        if others:
            train(steps, options, "teacher")
        work += finish([name for name in others if SYSTEMS[name].text == "raw"])
        distilled = [name for name in others if SYSTEMS[name].text == "distilled"]
        if distilled:
            distill(steps, options)
        work += finish(distilled)
        for finished in work:
            finished.result()


def needs_teacher(options: argparse.Namespace, name: str) -> bool:
    """Whether a system learns from the teacher's text or begins with its weights."""
    system = SYSTEMS[name]
    return system.text == "distilled" or (options.from_teacher and not system.could_teach)


def train_and_translate(steps: Steps, options: argparse.Namespace, name: str) -> None:
    """All of one system."""
    train(steps, options, name)
    translate(steps, options, name)


def distill(steps: Steps, options: argparse.Namespace) -> None:
    """Training and validation text in the teacher's words, prepared."""
    folder = options.run
    data = load_recipe(options.recipe, of(options)).data
    sources = {"train": options.students_read or data.train_source, "valid": data.valid_source}
    for part, source in sources.items():
        if not (folder / f"{part}.txt").exists():
            train(steps, options, "teacher")
            flags = sets(starting(of(options, "teacher"), "decode."))
            steps.lath("distill", folder / "teacher" / "model", source, folder / f"{part}.txt", *flags)
    text = [f"data.{part}_target={folder / f'{part}.txt'}" for part in sources]
    text += [f"data.train_source={sources['train']}"]
    prepare(steps, options, "distilled", "--vocab-from", folder / "raw", *sets(text))


def prepare(steps: Steps, options: argparse.Namespace, name: str, *more: object) -> None:
    """The recipe's text as a data directory."""
    if not (options.run / name).exists():
        overrides = starting(of(options), "data.", "vocab.")
        steps.lath("prepare", options.recipe, options.run / name, *sets(overrides), *more)


def train(steps: Steps, options: argparse.Namespace, name: str) -> None:
    """A system's model, from where it was left."""
    folder, system = options.run / name, SYSTEMS[name]
    if (folder / "model").exists():
        return
    overrides = list(system.settings)
    if options.from_teacher and not system.could_teach:
        overrides.append(f"train.start_from={options.run / 'teacher' / 'model'}")
    overrides += of(options, name)
    resume = ["--resume"] if (folder / "checkpoints").exists() and any((folder / "checkpoints").iterdir()) else []
    if folder.exists() and not resume:
        raise UserError(f"{folder}: a run without a checkpoint; remove it to start over")
    steps.lath("train", options.recipe, options.run / system.text, folder, *sets(overrides), *resume)


def translate(steps: Steps, options: argparse.Namespace, name: str) -> None:
    """All tests in a system's translations, in all ways that are asked for."""
    of_all = starting(of(options, name), "decode.")
    wanted = [
        Translation(test[0], [*of_all, *overrides], out)
        for test in options.test
        for way, overrides in SYSTEMS[name].ways.items()
        if (not options.ways or way in options.ways) and not (out := texts_of(options, test) / f"{name}.{way}").exists()
    ]
    if wanted:
        steps.translate(options.run / name / "model", wanted, options.engine)


def texts_of(options: argparse.Namespace, test: list[Path]) -> Path:
    """Where the translations of a test are."""
    return Path(options.run / "texts" / name_of(test))


def name_of(test: list[Path]) -> str:
    """A test by its source text and the folder that is in: there is many a test.de."""
    source = test[0].absolute()
    return f"{source.parent.name}-{source.name}"


def of(options: argparse.Namespace, name: str = "") -> list[str]:
    """The settings given for all systems, and behind them those for one, written NAME:section.key=value.

    The name may be a pattern: cmlm* means cmlm, cmlm-raw and cmlm of every seed.
    """
    owned = [override.partition(":") for override in options.overrides]
    of_all = ["".join(parts) for parts in owned if not fnmatch.filter(SYSTEMS, parts[0])]
    return of_all + [setting for owner, _, setting in owned if fnmatch.fnmatchcase(name, owner)]


def starting(overrides: Iterable[str], *sections: str) -> list[str]:
    """Those of some sections."""
    return [override for override in overrides if override.startswith(sections)]


def sets(overrides: Iterable[str]) -> list[str]:
    """As flags of a command."""
    return [part for override in overrides for part in ("--set", override)]


def score(options: argparse.Namespace) -> None:
    """Score every translation there is, and test the claims."""
    document = {name_of(test): scores_of(texts_of(options, test), test[1], options.tokenised) for test in options.test}
    if options.tokenised:
        language = load_recipe(options.recipe, of(options)).data.target_language
        for test in options.test:
            found = detokenised_bleu(texts_of(options, test), test[1], language)
            document[name_of(test)]["detokenised"] = {name: asdict(score) for name, score in found.items()}
            print("", *(f"{name}, detokenised: {score}" for name, score in found.items()), sep="\n")
    (options.run / "scores.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def scores_of(folder: Path, reference: Path, tokenised: bool) -> dict[str, Any]:
    """A table of one test's scores, printed, and everything in it."""
    references, texts = list(read_lines(reference)), texts_in(folder)
    kind = "tokenised BLEU" if tokenised else "BLEU"
    print(f"\n| {folder.name} | {kind} | length | chrF | adjacent repeats |\n|---|--:|--:|--:|--:|")
    scores = {name: evaluate(lines, references, tokenised=tokenised) for name, lines in texts.items()}
    for name, report in scores.items():
        repeats = f"{report.repeat_rate:.2f} %"
        print(f"| {name} | {report.bleu.value:.2f} | {report.length_ratio:.3f} | {report.chrf.value:.1f} | {repeats} |")
    claims = {}
    for one, other in CLAIMS:
        if one in texts and other in texts:
            found = compare(texts[other], texts[one], references, tokenised=tokenised)
            claims[f"{one} against {other}"] = asdict(found)
            print(f"\n{one} against {other}: {found}")
    return {"scores": {name: asdict(report) for name, report in scores.items()}, "claims": claims}


def texts_in(folder: Path) -> dict[str, list[str]]:
    """The translations of one test, by system and way."""
    return {path.name: list(read_lines(path)) for path in sorted(folder.iterdir()) if ".partial" not in path.name}


def detokenised_bleu(folder: Path, reference: Path, language: str) -> dict[str, Score]:
    """BLEU of tokenised texts whose tokens are put together again as Moses does it, theirs and the reference's."""
    from sacremoses import MosesDetokenizer

    join = MosesDetokenizer(lang=language).detokenize
    references = [join(line.split()) for line in read_lines(reference)]
    texts = {name: [join(line.split()) for line in lines] for name, lines in texts_in(folder).items()}
    return {name: evaluate(lines, references).bleu for name, lines in texts.items()}


def build_parser() -> argparse.ArgumentParser:
    """What the command line may say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", type=Path)
    parser.add_argument("run", type=Path, help="directory for everything that is made")
    parser.add_argument("--test", type=Path, nargs=2, action="append", required=True, metavar=("SOURCE", "REFERENCE"),
                        help="may be given several times")  # fmt: skip
    parser.add_argument(
        "--systems", nargs="+", default=list(MAIN), choices=SYSTEMS, metavar="NAME", help=", ".join(SYSTEMS)
    )
    parser.add_argument("--jobs", type=int, default=1, help="systems trained side by side (1)")
    parser.add_argument("--from-teacher", action="store_true",
                        help="students begin with the teacher's weights where they fit")  # fmt: skip
    parser.add_argument("--students-read", type=Path, metavar="SOURCE",
                        help="source text that is distilled for the students (all that the teacher reads)")  # fmt: skip
    parser.add_argument("--ways", nargs="+", choices=WAYS, metavar="WAY",
                        help="ways of translating the test, for example it1 it4 beam5 (all)")  # fmt: skip
    parser.add_argument("--engine", default="auto", help="for the translations of the test (auto); plain starts sooner")
    parser.add_argument("--minutes", type=float, help="stop after so many, with exit code 75; the same command goes on")
    parser.add_argument(
        "--tokenised",
        action="store_true",
        help="the text is tokenised: BLEU on its tokens, and on what Moses makes of them",
    )
    parser.add_argument("--set", action="append", default=[], dest="overrides", metavar="[NAME:]SECTION.KEY=VALUE",
                        help="a setting for all systems, or for those named, for example lat or cmlm*")  # fmt: skip
    return parser


def main() -> int:
    """Run, then score."""
    options = build_parser().parse_args()
    try:
        require_tests(options.test)
        options.run.mkdir(parents=True, exist_ok=True)
        run(options)
        packages = ("sacrebleu", "sacremoses") if options.tokenised else ("sacrebleu",)
        missing = [package for package in packages if importlib.util.find_spec(package) is None]
        if missing:
            told = f"the translations are there, but not {' and '.join(missing)} to score them"
            print(f"{told}; pip install 'lath[paper]' and repeat the command, here or elsewhere", file=sys.stderr)
        else:
            score(options)
    except TimeOver:
        print("time is over; the same command goes on from here", file=sys.stderr)
        return NOT_FINISHED
    except UserError as error:
        print(f"compare: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
