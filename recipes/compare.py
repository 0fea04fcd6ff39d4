"""The paper's comparison on one task, from raw text to scores.

    python recipes/compare.py --preset tatoeba              a published comparison (recipes/README.md lists them)
    python recipes/compare.py --preset tatoeba --dry-run    the commands it would run
    python recipes/compare.py RECIPE RUN --test SOURCE REFERENCE [options]

Each step is a `lath` command whose result stays in the run directory, and a step whose result exists is skipped. So the
same command continues after a crash, or after --minutes, which stops a step so that it can be resumed.

    RUN/raw                   prepared text                          lath prepare
    RUN/teacher               an AT model trained on it              lath train
    RUN/train.txt, valid.txt  its translations                       lath distill
    RUN/distilled             prepared text with these as targets    lath prepare
    RUN/lat, RUN/cmlm, ...    the other systems                      lath train
    RUN/texts/TEST/lat.it4    their translations of each test        as lath translate writes them
    RUN/scores.json           scores with signatures                 lath evaluate; needs sacrebleu
"""

from __future__ import annotations

import argparse
import fnmatch
import importlib.util
import json
import shlex
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

from lath.analysis.scores import Score, bleu_gain, compare, evaluate
from lath.config import load_recipe, merge_overrides
from lath.errors import UserError
from lath.files import count_lines, misaligned, read_lines, whole_file

NOT_FINISHED = 75
"""The exit code when the time is up."""
AT, CMLM, LAT = "network.kind=AT", "network.kind=CMLM", "network.kind=LAT"


@dataclass(frozen=True)
class System:
    """A model: its training text, its settings, and how it translates the tests."""

    text: str
    """raw or distilled."""
    settings: tuple[str, ...]
    """For `lath train`."""
    decoding: dict[str, tuple[str, ...]]
    """Named settings for `lath translate`."""

    @property
    def could_teach(self) -> bool:
        """An AT model on human text is a teacher, of this or another seed; all others are students."""
        return self.text == "raw" and AT in self.settings


def iterations(*numbers: int, more: tuple[str, ...] = ()) -> dict[str, tuple[str, ...]]:
    """Decoding settings for each number of iterations."""
    return {f"it{number}": (f"decode.iterations={number}", *more) for number in numbers}


BEAM: dict[str, tuple[str, ...]] = {"beam5": ("decode.beam=5",)}
LENGTHS = ("decode.length_candidates=5",)
FOUR = "decode.iterations=4"
ONE_MORE = "decode.extra_length=1"
LAT_OPTIONS: dict[str, tuple[str, ...]] = {
    **iterations(1, 2, 4, 10),
    "it4-paper": (FOUR, "decode.rules=paper"),
    "it4-lengths3": (FOUR, "decode.length_candidates=3"),
    "it4-lengths5": (FOUR, *LENGTHS),
    "it1-longer": ("decode.iterations=1", ONE_MORE),
    "it4-longer": (FOUR, ONE_MORE),
    "it4-longer-lengths3": (FOUR, ONE_MORE, "decode.length_candidates=3"),
}
NO_NOISE = ("objective.delete_from_short=false", "objective.insertion_rate=0.0")
"""LAT without length noise in training: the authors' rule of deletion."""
SYSTEMS = {
    "teacher": System("raw", (AT,), BEAM),
    "lat": System("distilled", (LAT,), LAT_OPTIONS),
    "lat-baseline": System("distilled", (LAT, *NO_NOISE), LAT_OPTIONS),
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
DECODING = sorted({name for system in SYSTEMS.values() for name in system.decoding})
MAIN = ("teacher", "lat", "cmlm")
CLAIMS = (
    ("lat.it1", "cmlm.it1"),
    ("lat.it1-longer", "cmlm.it1"),
    *(
        (four, other)
        for four in ("lat.it4", "lat.it4-lengths5", "lat.it4-longer")
        for other in ("cmlm.it10", "teacher.beam5")
    ),
)
"""Pairs of which the paper claims something; each is tested by paired bootstrap."""


def sets(overrides: Iterable[str]) -> list[str]:
    """Settings as flags of a command."""
    return [part for override in overrides for part in ("--set", override)]


def preset(recipe: str, options: str, settings: str) -> list[str]:
    """The arguments of a comparison, less the run directory: a recipe, options, and settings as --set takes them."""
    return [f"recipes/{recipe}.toml", *shlex.split(options), *sets(settings.split())]


NEWS = "data/wmt_newstest/newstest2014.de-en"
TATOEBA_TEST = "--test data/tatoeba_deen/test.de data/tatoeba_deen/test.en"
IWSLT_TEST = "--tokenised --test data/iwslt14_deen_53k/test.de data/iwslt14_deen_53k/test.en"
DE_EN_TESTS = f"--test {NEWS}.de {NEWS}.en --test data/europarl_deen/test.de data/europarl_deen/test.en"
EN_DE_TESTS = f"--test {NEWS}.en {NEWS}.de --test data/europarl_deen/test.en data/europarl_deen/test.de"
USUAL = "--decode beam5 it1 it2 it4 it10 it4-lengths3 it4-lengths5"
LONGER = "it1-longer it4-longer it4-longer-lengths3"
IWSLT_TEACHER = """
    teacher*:train.step_tokens=8000 teacher*:train.micro_batch_tokens=8192 teacher*:train.warmup_steps=800
    teacher*:network.dropout=0.3 teacher*:decode.batch_sentences=1024"""
TATOEBA_TEACHER = "teacher:network.dropout=0.3 teacher:train.steps=2600 teacher:train.validate_every=260"
EUROPARL_TEACHER = "teacher:train.steps=5000 teacher:train.validate_every=1000"
EN_DE_TEACHER = "teacher:train.steps=3600 teacher:train.validate_every=900"
BUNDLED_TEACHER = """
    teacher:network.decoder_layers=6 teacher:network.feedforward=2048 teacher:decode.batch_sentences=2048
    teacher:train.steps=7200 teacher:train.warmup_steps=800 teacher:train.validate_every=1200"""
PRESETS = {
    "iwslt14": preset(
        "iwslt14-53k",
        f"{IWSLT_TEST} --from-teacher --student-source data/iwslt14_deen_53k/more.de --systems teacher lat cmlm",
        f"""network.dropout=0.2 {IWSLT_TEACHER} lat:train.steps=7000 lat:train.validate_every=700
        cmlm:train.steps=4500 cmlm:train.validate_every=450 cmlm:objective.length_weight=0.1""",
    ),
    "iwslt14-paper-setup": preset(
        "iwslt14-53k",
        f"""{IWSLT_TEST} --from-teacher --jobs 3 --systems teacher lat cmlm at-12-1 lat-raw cmlm-raw
        lat-seed2 cmlm-seed2 lat-seed3 cmlm-seed3 teacher-seed2 teacher-seed3 lat-k2 lat-k4 lat-k5 lat-k6""",
        f"""{IWSLT_TEACHER} cmlm*:train.steps=3000 cmlm*:train.validate_every=300 cmlm*:objective.length_weight=0.1
        at-12-1:train.step_tokens=8000 at-12-1:train.micro_batch_tokens=8192 at-12-1:train.steps=2500""",
    ),
    "tatoeba": preset(
        "tatoeba",
        f"""{TATOEBA_TEST} --from-teacher --student-source data/tatoeba/more.de {USUAL} {LONGER}
        --systems teacher lat lat-baseline cmlm""",
        f"""decode.extra_length=0 network.dropout=0.1 {TATOEBA_TEACHER} teacher:decode.batch_sentences=2048
        lat*:train.validate_every=900 cmlm:objective.delete_from_short=false cmlm:objective.insertion_rate=0.0
        cmlm:objective.length_weight=0.1 cmlm:train.steps=5000 cmlm:train.validate_every=500""",
    ),
    "tatoeba-first": preset(
        "tatoeba",
        f"""{TATOEBA_TEST} --from-teacher --student-source data/tatoeba/students.de
        --systems teacher lat cmlm at-12-1""",
        f"""{" ".join(NO_NOISE)} decode.extra_length=0 {TATOEBA_TEACHER}
        at-12-1:train.steps=2000 at-12-1:train.validate_every=400
        cmlm:objective.length_weight=0.1 cmlm:train.steps=5000 cmlm:train.validate_every=500""",
    ),
    "europarl-de-en": preset(
        "europarl-third-deen",
        f"""{DE_EN_TESTS} --jobs 2 --from-teacher --student-source data/europarl-third/more.de
        {USUAL} it4-paper {LONGER} --systems teacher lat cmlm""",
        f"{EUROPARL_TEACHER} teacher:decode.batch_sentences=1024",
    ),
    "europarl-de-en-first": preset(
        "europarl-third-deen",
        f"""{DE_EN_TESTS} --from-teacher --student-source data/europarl-third/more.de {USUAL}
        --systems teacher lat at-12-1""",
        f"""{EUROPARL_TEACHER} teacher:decode.batch_sentences=2048
        at-12-1:train.steps=2000 at-12-1:train.validate_every=2000""",
    ),
    "europarl-en-de": preset(
        "europarl-third-ende",
        f"""{EN_DE_TESTS} --from-teacher --student-source data/europarl-third/more.en {USUAL}
        --vocab-from runs/europarl-de-en/raw --systems teacher lat at-12-1""",
        f"""{EN_DE_TEACHER} teacher:train.start_from=runs/europarl-de-en/teacher/model
        teacher:decode.batch_sentences=2048 at-12-1:train.steps=1800 at-12-1:train.validate_every=1800""",
    ),
    "europarl-noise-de-en": preset(
        "europarl-third-deen",
        f"""{DE_EN_TESTS} --jobs 2 --from-teacher --student-source data/europarl-third/more.de --engine plain
        {USUAL} {LONGER} --systems teacher lat cmlm""",
        f"""{EUROPARL_TEACHER} teacher:decode.batch_sentences=1024
        lat:objective.delete_from_short=true lat:objective.insertion_rate=0.15
        lat:train.steps=5460 lat:train.validate_every=1365 cmlm:train.steps=5460 cmlm:train.validate_every=1365""",
    ),
    "europarl-noise-en-de": preset(
        "europarl-third-ende",
        f"""{EN_DE_TESTS} --jobs 2 --from-teacher --student-source data/europarl-third/more.en --engine plain
        --decode beam5 it1 it2 it4 it10 --vocab-from runs/europarl-noise-de-en/raw --systems teacher lat cmlm""",
        f"""{EN_DE_TEACHER} teacher:train.start_from=runs/europarl-noise-de-en/teacher/model
        teacher:decode.batch_sentences=1024 lat:objective.delete_from_short=true lat:objective.insertion_rate=0.15
        lat:train.steps=4600 lat:train.validate_every=1325 cmlm:train.steps=4600 cmlm:train.validate_every=1325""",
    ),
    "europarl-32k": preset(
        "europarl-third-deen",
        f"{DE_EN_TESTS} --from-teacher --systems teacher lat cmlm",
        """vocab.size=32000 objective.mask_everything=false train.steps=5000 train.validate_every=500
        train.learning_rate=7e-4 train.warmup_steps=1000""",
    ),
    "bundled-first": preset(
        "de-en",
        f"""{TATOEBA_TEST} {DE_EN_TESTS} --from-teacher --student-source data/de-en/student.de.xz
        --systems teacher lat""",
        BUNDLED_TEACHER,
    ),
    "bundled": preset(
        "de-en",
        f"""{TATOEBA_TEST} {DE_EN_TESTS} --student-source data/de-en/bundled.de --vocab-from runs/bundled-first/int8
        --systems teacher lat""",
        f"""{BUNDLED_TEACHER} lat:train.start_from=runs/bundled-first/int8 lat:train.learning_rate=8e-4
        lat:train.steps=29046 lat:train.validate_every=4841 lat:objective.delete_from_short=true
        lat:objective.insertion_rate=0.15 lat:objective.length_weight=0.3
        lat:decode.extra_length=1 lat:decode.length_candidates=2""",
    ),
    "mixed-de-en": preset(
        "de-en",
        f"""{TATOEBA_TEST} {DE_EN_TESTS} --from-teacher --student-source data/de-en/student.de.xz
        --systems teacher lat cmlm at-12-1""",
        f"""{BUNDLED_TEACHER} lat:network.decoder_layers=6 lat:network.feedforward=2048
        lat:train.steps=5200 lat:train.validate_every=1300 cmlm:network.decoder_layers=6 cmlm:network.feedforward=2048
        cmlm:train.steps=5200 cmlm:train.validate_every=1300
        at-12-1:network.feedforward=2048 at-12-1:train.steps=2500 at-12-1:train.validate_every=1250""",
    ),
    "mixed-en-de": preset(
        "en-de",
        f"""{EN_DE_TESTS} --jobs 2 --from-teacher --student-source data/en-de/student.en.xz
        --vocab-from runs/bundled/raw --systems teacher lat cmlm at-12-1""",
        f"""{EN_DE_TEACHER} teacher:train.start_from=runs/bundled/teacher/model teacher:decode.batch_sentences=2048
        lat:train.validate_every=1200 cmlm:train.steps=4200 cmlm:train.validate_every=1050
        at-12-1:train.steps=1800 at-12-1:train.validate_every=900""",
    ),
}
"""The published comparisons, by the name of their folder in docs/runs."""


class Translation(NamedTuple):
    """A translation to make."""

    source: Path
    overrides: list[str]
    out: Path


class TimeOver(Exception):
    """The minutes are up; the step can be resumed."""


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
            raise UserError(f"lath {arguments[0]} ended with {code}; see its message above")

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


class Plan(Steps):
    """Prints the commands and runs none."""

    def __init__(self) -> None:
        super().__init__(None)
        self.printed: set[str] = set()

    def lath(self, *arguments: object) -> None:
        """Print a command, once: nothing that would keep it from being asked for again is made."""
        command = shlex.join(["lath", *map(str, arguments)])
        if command not in self.printed:
            self.printed.add(command)
            print(command + "\n", end="")  # one write: several threads may print

    def translate(self, model: Path, wanted: Iterable[Translation], engine: str) -> None:
        """Print the translations as commands."""
        for source, overrides, out in wanted:
            arguments = ["lath", "translate", model, source, "--engine", engine, *sets(overrides)]
            print(f"{shlex.join(map(str, arguments))} > {out}\n", end="")


def require_tests(tests: list[list[Path]]) -> None:
    """Report a missing or misaligned test now, not after all the training."""
    for source, reference in tests:
        lines = [count_lines(path) for path in (source, reference)]
        if lines[0] != lines[1]:
            raise misaligned(source, lines[0], reference, lines[1])
    names = [name_of(test) for test in tests]
    if len(set(names)) < len(names):
        raise UserError(f"--test: two of {', '.join(names)} have the same name; put their files into different folders")


def run(options: argparse.Namespace) -> None:
    """Run the missing steps, up to the translations of the tests."""
    steps = Plan() if options.dry_run else Steps(options.minutes)
    prepare(steps, options, "raw", *(["--vocab-from", options.vocab_from] if options.vocab_from else []))
    if not options.dry_run:
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
    """Whether a system learns from the teacher's text or starts from its weights."""
    system = SYSTEMS[name]
    return system.text == "distilled" or (options.from_teacher and not system.could_teach)


def train_and_translate(steps: Steps, options: argparse.Namespace, name: str) -> None:
    """Train one system and translate the tests with it."""
    train(steps, options, name)
    translate(steps, options, name)


def distill(steps: Steps, options: argparse.Namespace) -> None:
    """Distil training and validation text, and prepare the result."""
    folder = options.run
    data = load_recipe(options.recipe, of(options)).data
    sources = {"train": options.student_source or data.train_source, "valid": data.valid_source}
    for part, source in sources.items():
        if not (folder / f"{part}.txt").exists():
            train(steps, options, "teacher")
            flags = sets(starting(of(options, "teacher"), "decode."))
            steps.lath("distill", folder / "teacher" / "model", source, folder / f"{part}.txt", *flags)
    text = [f"data.{part}_target={folder / f'{part}.txt'}" for part in sources]
    text += [f"data.train_source={sources['train']}"]
    prepare(steps, options, "distilled", "--vocab-from", folder / "raw", *sets(text))


def prepare(steps: Steps, options: argparse.Namespace, name: str, *more: object) -> None:
    """Make a data directory of the recipe's text."""
    if not (options.run / name).exists():
        overrides = starting(of(options), "data.", "vocab.")
        steps.lath("prepare", options.recipe, options.run / name, *sets(overrides), *more)


def train(steps: Steps, options: argparse.Namespace, name: str) -> None:
    """Train a system's model, or resume its training."""
    folder, system = options.run / name, SYSTEMS[name]
    if (folder / "model").exists():
        return
    overrides = list(system.settings)
    if options.from_teacher and not system.could_teach:
        overrides.append(f"train.start_from={options.run / 'teacher' / 'model'}")
    overrides += of(options, name)
    resume = ["--resume"] if (folder / "checkpoints").exists() and any((folder / "checkpoints").iterdir()) else []
    if folder.exists() and not resume:
        raise UserError(f"{folder}: this run has no checkpoint; remove it to start over")
    steps.lath("train", options.recipe, options.run / system.text, folder, *sets(overrides), *resume)


def translate(steps: Steps, options: argparse.Namespace, name: str) -> None:
    """Translate all tests with one system, with all decoding options asked for."""
    of_all = starting(of(options, name), "decode.")
    wanted = [
        Translation(test[0], [*of_all, *overrides], out)
        for test in options.test
        for decoding, overrides in SYSTEMS[name].decoding.items()
        if not options.decode or decoding in options.decode
        if not (out := texts_of(options, test) / f"{name}.{decoding}").exists()
    ]
    if wanted:
        steps.translate(options.run / name / "model", wanted, options.engine)


def texts_of(options: argparse.Namespace, test: list[Path]) -> Path:
    """The folder for the translations of a test."""
    return Path(options.run / "texts" / name_of(test))


def name_of(test: list[Path]) -> str:
    """A test is named after its source file and that file's folder: many files are called test.de."""
    source = test[0].absolute()
    return f"{source.parent.name}-{source.name}"


def of(options: argparse.Namespace, name: str = "") -> list[str]:
    """The settings for all systems, then those for one system, which are written NAME:section.key=value.

    The name may be a pattern: cmlm* means cmlm, cmlm-raw and cmlm of every seed.
    """
    owned = [override.partition(":") for override in options.overrides]
    of_all = ["".join(parts) for parts in owned if not fnmatch.filter(SYSTEMS, parts[0])]
    return of_all + [setting for owner, _, setting in owned if fnmatch.fnmatchcase(name, owner)]


def starting(overrides: Iterable[str], *sections: str) -> list[str]:
    """The settings of some sections."""
    return [override for override in overrides if override.startswith(sections)]


def score(options: argparse.Namespace) -> None:
    """Score every translation, and test the claims."""
    document = {name_of(test): scores_of(texts_of(options, test), test[1], options.tokenised) for test in options.test}
    if options.tokenised:
        language = load_recipe(options.recipe, of(options)).data.target_language
        for test in options.test:
            found = detokenised_bleu(texts_of(options, test), test[1], language)
            document[name_of(test)]["detokenised"] = {name: asdict(score) for name, score in found.items()}
            print("", *(f"{name}, detokenised: {score}" for name, score in found.items()), sep="\n")
    (options.run / "scores.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def scores_of(folder: Path, reference: Path, tokenised: bool) -> dict[str, Any]:
    """Print a table of one test's scores, and return them."""
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
            _, found = compare([texts[other], texts[one]], references, tokenised=tokenised)
            low, high = bleu_gain(texts[other], texts[one], references, tokenised=tokenised)
            tested = {"bleu": {**asdict(found.bleu), "low": low, "high": high}, "chrf": asdict(found.chrf)}
            claims[f"{one} against {other}"] = tested
            print(f"\n{one} against {other}: {found.bleu}, gain {low:+.2f} to {high:+.2f}; {found.chrf}")
    return {"scores": {name: asdict(report) for name, report in scores.items()}, "claims": claims}


def texts_in(folder: Path) -> dict[str, list[str]]:
    """The translations of one test, by system and decoding option."""
    return {path.name: list(read_lines(path)) for path in sorted(folder.iterdir()) if ".partial" not in path.name}


def detokenised_bleu(folder: Path, reference: Path, language: str) -> dict[str, Score]:
    """BLEU of tokenised texts after Moses detokenisation of both sides."""
    from sacremoses import MosesDetokenizer

    join = MosesDetokenizer(lang=language).detokenize
    references = [join(line.split()) for line in read_lines(reference)]
    texts = {name: [join(line.split()) for line in lines] for name, lines in texts_in(folder).items()}
    return {name: evaluate(lines, references).bleu for name, lines in texts.items()}


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", choices=PRESETS, metavar="NAME",
                        help=f"must come first; for RECIPE, runs/NAME and options: {', '.join(PRESETS)}")  # fmt: skip
    parser.add_argument("recipe", type=Path)
    parser.add_argument("run", type=Path, help="the run directory: everything that is made")
    parser.add_argument("--test", type=Path, nargs=2, action="append", required=True, metavar=("SOURCE", "REFERENCE"),
                        help="may be given several times")  # fmt: skip
    parser.add_argument(
        "--systems", nargs="+", default=list(MAIN), choices=SYSTEMS, metavar="NAME", help=", ".join(SYSTEMS)
    )
    parser.add_argument("--jobs", type=int, default=1, help="systems trained at the same time (1)")
    parser.add_argument("--from-teacher", action="store_true",
                        help="students start from the teacher's weights where shapes match")  # fmt: skip
    parser.add_argument("--student-source", type=Path, metavar="SOURCE",
                        help="source text to distil for the students (the recipe's training text)")  # fmt: skip
    parser.add_argument("--vocab-from", type=Path, metavar="DIR",
                        help="use the vocabulary of this data or model directory")  # fmt: skip
    parser.add_argument("--decode", nargs="+", choices=DECODING, metavar="NAME",
                        help=f"decoding options for the tests (all): {', '.join(DECODING)}")  # fmt: skip
    parser.add_argument("--engine", default="auto", help="for translating the tests (auto); plain starts faster")
    parser.add_argument(
        "--minutes", type=float, help="stop after this time with exit code 75; the same command resumes"
    )
    parser.add_argument("--dry-run", action="store_true", help="print the commands and run none")
    parser.add_argument(
        "--tokenised",
        action="store_true",
        help="the text is tokenised: report BLEU on tokens, and after detokenisation",
    )
    parser.add_argument("--set", action="append", default=[], dest="overrides", metavar="[NAME:]SECTION.KEY=VALUE",
                        help="a setting for all systems, or for those named, for example lat or cmlm*")  # fmt: skip
    return parser


def parse(arguments: list[str]) -> argparse.Namespace:
    """The options; a leading --preset NAME stands for its arguments, and later ones win."""
    parser = build_parser()
    if arguments[:1] == ["--preset"] and len(arguments) > 1 and arguments[1] in PRESETS:
        recipe, *options = PRESETS[arguments[1]]
        arguments = [recipe, f"runs/{arguments[1]}", *options, *arguments[2:]]
    return parser.parse_args(arguments)


def main() -> int:
    """Run, then score."""
    options = parse(sys.argv[1:])
    try:
        if options.dry_run:
            run(options)
            return 0
        require_tests(options.test)
        options.run.mkdir(parents=True, exist_ok=True)
        run(options)
        packages = ("sacrebleu", "sacremoses") if options.tokenised else ("sacrebleu",)
        missing = [package for package in packages if importlib.util.find_spec(package) is None]
        if missing:
            reason = f"all translations are done, but scoring needs {' and '.join(missing)}"
            print(f"{reason}: pip install 'lath[paper]' and repeat the command", file=sys.stderr)
        else:
            score(options)
    except TimeOver:
        print("time is up; repeat the command to continue", file=sys.stderr)
        return NOT_FINISHED
    except UserError as error:
        print(f"compare: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
