"""A whole comparison on one task, from text to a report beside the paper's figures (`lath reproduce`).

recipes/tasks.toml describes tasks, systems and the paper's figures. A plan is data: steps, each a `lath` command with
the files it needs and the one it makes. Steps whose result exists are left out, so the same call continues.

    RUN/raw                   prepared text                          lath prepare
    RUN/teacher               an AT model trained on it              lath train
    RUN/train.txt, valid.txt  its translations                       lath distill
    RUN/distilled             prepared text with these as targets    lath prepare
    RUN/lat, RUN/cmlm, ...    the other systems                      lath train
    RUN/TEST/                 translations, tables and plots         lath analyse
    RUN/report.md             the paper's figures beside ours
    RUN/evidence/             what docs/runs/TASK is a copy of: scores.json, training logs, translations or counts (.xz)
"""

from __future__ import annotations

import dataclasses
import fnmatch
import functools
import importlib.util
import itertools
import json
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from lath.analysis.analysis import Cell, Table
from lath.analysis.counts import write_counts
from lath.analysis.scores import Measured, evaluate, measure, measure_counts
from lath.analysis.settings import EvaluateSettings, ReproduceSettings
from lath.config import AUTO, NetworkSettings, Recipe, load_recipe, settings_from_tree
from lath.errors import UserError, did_you_mean
from lath.files import count_lines, locked, misaligned, read_lines, whole_file, write_xz
from lath.model.flops import update_flops
from lath.training.log import LOG

TRAINING_FLOPS = {"H200": 0.2 * 989e12, "2 CPU cores": 5.1e10}
"""Measured: 18 to 24 % of the peak on base networks (docs/benchmarks.md); recipes/demo.toml in four minutes."""
DISTILLED_LINES = {"H200": 2990.0, "2 CPU cores": 4.2}
"""Lines a second of a base AT network with beam 5 (docs/benchmarks.md)."""
BASE = NetworkSettings(kind="AT")
ESTIMATED = "From measured speeds of base networks (docs/benchmarks.md); expect up to twice as much."
CLAIMS = (
    ("lat.it1", "cmlm.it1"),
    ("lat.it1-longer", "cmlm.it1"),
    *itertools.product(("lat.it4", "lat.it4-lengths5", "lat.it4-longer"), ("cmlm.it10", "teacher.beam5")),
)
"""Pairs of which the paper claims something; each is tested by paired bootstrap."""
VARIANT = re.compile(r"(?P<base>.+?)(-k(?P<piece>\d))?(-seed(?P<seed>\d+))?")


# ---- tasks ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Task:
    """A comparison. Lists are separated by white space."""

    like: str = ""
    """A task whose values count where this one has none; that task has no `like` itself."""
    recipe: str = ""
    """The recipe of teacher and students."""
    tests: str = ""
    """Source and reference of each test."""
    development: bool = False
    """Also analyse the recipe's validation text."""
    systems: str = "teacher lat cmlm"
    """Names in [systems]; -k5 sets K, -seed2 the seed."""
    decode: str = ""
    """Names in [decodings] to keep of those that a system has; empty keeps all."""
    settings: str = ""
    """SECTION.KEY=VALUE for all systems; NAME:SECTION.KEY=VALUE for one, or for a pattern such as cmlm*."""
    from_teacher: bool = False
    """Students start from the teacher's weights where shapes match."""
    student_source: str = ""
    """Source text to distil for the students; empty: the recipe's."""
    vocab_from: str = ""
    """Data or model directory whose vocabulary is used."""
    tokenised: bool = False
    """The text is tokenised: BLEU of its tokens, and BLEU after detokenisation."""
    jobs: int = 1
    """Steps at the same time."""
    paper: str = ""
    """The task of the paper's tables to put beside it."""
    sentences: int = 0
    """Lines to distil, for the estimate where the file is not there."""
    claims: str = ""
    """Further pairs to test, SYSTEM.DECODING:OTHER.DECODING, besides those that the paper compares."""
    publishable: bool = True
    """Whether translations of its text may be published. If not, evidence/ has counts instead, from which the scores
    follow."""
    note: str = ""
    """What the text is and how to get it."""


@dataclass(frozen=True)
class System:
    """A model: its training text, its settings and its decodings; or a pair of two others."""

    text: Literal["raw", "distilled"] = "distilled"
    """Human or distilled targets."""
    student: str = ""
    """Of a pair: the system that drafts. A variant such as -k5 or -seed2 is one of the student's."""
    verifier: str = ""
    """Of a pair: the system that checks."""
    settings: str = ""
    """SECTION.KEY=VALUE of its recipe."""
    decode: str = ""
    """Names in [decodings]; a variant such as -k5 or -seed2 takes those without a dash, and what its task names."""


class Step(NamedTuple):
    """A `lath` command."""

    command: list[str]
    needs: list[Path]
    makes: Path
    seconds: dict[str, float] = {}  # noqa: RUF012 (never changed)
    """The estimate for each device that was measured."""
    systems: frozenset[str] = frozenset()
    """What an analysis must hold to be complete."""

    @property
    def done(self) -> bool:
        """Whether its result is there."""
        if not self.makes.exists() or not self.systems:
            return self.makes.exists()
        held = json.loads(self.makes.read_text(encoding="utf-8"))["systems"]
        return self.systems <= {system["name"] for system in held}


@dataclass(frozen=True)
class Comparison:
    """A task with all that its plan depends on."""

    name: str
    task: Task
    run: Path
    device: str
    known: dict[str, System]
    """All systems."""
    decodings: dict[str, str]
    paper: list[dict[str, Any]]

    @property
    def systems(self) -> list[str]:
        """The names of the systems."""
        return self.task.systems.split()

    @property
    def tests(self) -> list[tuple[Path, Path]]:
        """Source and reference of each test; a development set comes last."""
        paths = list(map(Path, shlex.split(self.task.tests)))
        tests = list(zip(paths[::2], paths[1::2], strict=True))
        data = self.recipe("teacher").data
        return tests + [(Path(data.valid_source), Path(data.valid_target))] * self.task.development

    def folder(self, test: tuple[Path, Path]) -> Path:
        """A test is named after its source file and that file's folder: many files are called test.de."""
        source = test[0].absolute()
        return self.run / f"{source.parent.name}-{source.name}"

    def system(self, name: str) -> System:
        """A system with the settings of its K and its seed."""
        found = VARIANT.fullmatch(name)
        assert found is not None  # any text fits
        if found["base"] not in self.known:
            raise UserError(
                f"{name}: no such system{did_you_mean(name, self.known)}; the systems are {', '.join(self.known)}"
            )
        system = self.known[found["base"]]
        if system.student:
            return dataclasses.replace(system, student=system.student + name.removeprefix(found["base"]))
        variant = f" network.piece_length={found['piece']}" * bool(found["piece"])
        variant += f" train.seed={found['seed']}" * bool(found["seed"])
        if not variant:
            return system
        asked = self.task.decode.split()
        plain = [decoding for decoding in system.decode.split() if "-" not in decoding or decoding in asked]
        return dataclasses.replace(system, settings=system.settings + variant, decode=" ".join(plain))

    @property
    def trained(self) -> list[str]:
        """The names of the systems that are trained: instead of a pair its two members."""
        named = [(name, self.system(name)) for name in self.systems]
        members = [[system.student, system.verifier] if system.student else [name] for name, system in named]
        return list(dict.fromkeys(itertools.chain(*members)))

    def own(self, name: str = "") -> list[str]:
        """The task's settings for all systems, then those for one."""
        owned = [setting.partition(":") for setting in shlex.split(self.task.settings)]
        of_all = ["".join(parts) for parts in owned if "=" in parts[0]]
        return of_all + [
            setting for owner, _, setting in owned if "=" not in owner and fnmatch.fnmatchcase(name, owner)
        ]

    def settings(self, name: str) -> list[str]:
        """All settings of a system that differ from the recipe's."""
        system = self.system(name)
        adopted = [f"train.start_from={self.run / 'teacher' / 'model'}"]
        adopts = self.task.from_teacher and not (system.text == "raw" and "network.kind=AT" in system.settings)
        return system.settings.split() + adopted * adopts + self.own(name)

    def recipe(self, name: str) -> Recipe:
        """The resolved recipe of a system."""
        return load_recipe(self.task.recipe, self.settings(name))

    def decoded(self, name: str) -> dict[str, str]:
        """The systems of an analysis that one model gives: their names, and how `lath analyse` takes them."""
        kept, found = self.task.decode.split(), {}
        common = [setting.removeprefix("decode.") for setting in self.settings(name) if setting.startswith("decode.")]
        for decoding in self.system(name).decode.split():
            if not kept or decoding in kept:
                options = dict(option.split("=") for option in [*common, *self.decodings[decoding].split()])
                text = ",".join("=".join(option) for option in options.items())
                found[f"{name}.{decoding}"] = f"{name}.{decoding}={self.run / name / 'model'}@{text}"
        return found


def read_task(name: str, settings: ReproduceSettings) -> Comparison:
    """A task of the file `settings.tasks`."""
    path = Path(settings.tasks)
    try:
        tree = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; go to the folder that holds recipes/, or give --tasks") from None
    except ValueError as error:
        raise UserError(f"{path}: not valid TOML: {error}") from None
    tasks = tree.get("tasks", {})
    for wanted in (name, tasks.get(name, {}).get("like", name)):
        if wanted not in tasks:
            raise UserError(f"{wanted}: no such task{did_you_mean(wanted, tasks)}; {path} has {', '.join(tasks)}")
    values = {**tasks[tasks[name].get("like", name)], **tasks[name]}
    stored = settings_from_tree(Task, values, f"{path}: tasks.{name}")
    known = {key: settings_from_tree(System, value, f"{path}: systems.{key}") for key, value in tree["systems"].items()}
    given: dict[str, Any] = {
        key: value.replace(",", " ") for key in ("systems", "decode") if (value := getattr(settings, key))
    }
    given |= {"jobs": settings.jobs} if settings.jobs else {}
    overrides = shlex.join([*shlex.split(stored.settings), *settings.overrides])
    task = dataclasses.replace(stored, settings=overrides, **given)
    for decoding in task.decode.split():
        if decoding not in tree["decodings"]:
            raise UserError(f"{decoding}: no such decoding; {path} has {', '.join(tree['decodings'])}")
    names = [*known, *stored.systems.split(), *task.systems.split()]
    for setting in shlex.split(task.settings):
        owner, _, owned = setting.partition(":")
        if owned and "=" not in owner and not fnmatch.filter(names, owner):
            raise UserError(f"{setting}: no system is called {owner}; {path} has {', '.join(known)}")
    run = Path(settings.directory or f"runs/{name}")
    return Comparison(name, task, run, settings.device, known, tree["decodings"], tree.get("paper", []))


# ---- the plan ---------------------------------------------------------------------------------------------------


def plan(of: Comparison) -> list[Step]:
    """All steps, those that others need first."""
    students = [name for name in of.trained if of.system(name).text == "distilled"]
    adopts = any(str(of.run / "teacher") in of.recipe(name).train.start_from for name in of.trained)
    teaches = ["teacher"] if students or adopts or "teacher" in of.trained else []
    raw = [name for name in of.trained if name not in (*students, "teacher")]
    own_claims(of)  # what is no system is reported before anything runs
    steps = [_prepare(of, "raw", [], of.task.vocab_from)]
    steps += [_train(of, name) for name in teaches + raw]
    if students:
        data = of.recipe("teacher").data
        sources = {"train": of.task.student_source or data.train_source, "valid": data.valid_source}
        steps += [_distill(of, source, part) for part, source in sources.items()]
        text = [f"data.{part}_target={of.run / part}.txt" for part in sources]
        steps.append(_prepare(of, "distilled", [*text, f"data.train_source={sources['train']}"], str(of.run / "raw")))
        steps += [_train(of, name) for name in students]
    steps += [_pair(of, name) for name in of.systems if of.system(name).student]
    steps += [_analyse(of, test) for test in of.tests]
    made = [step.makes for step in steps]
    if len(set(made)) < len(made):
        raise UserError(f"{of.name}: two tests or systems have the same name; put the tests into different folders")
    return steps


def own_claims(of: Comparison) -> list[tuple[str, str]]:
    """The pairs that the task wants tested besides the paper's; systems that are left out today may be named."""
    pairs = []
    for claim in of.task.claims.split():
        one, _, other = claim.partition(":")
        for side in (one, other):
            name, _, decoding = side.partition(".")
            if decoding not in of.system(name).decode.split():
                raise UserError(
                    f"claims: {claim}: {side} is no system and decoding; write SYSTEM.DECODING:OTHER.DECODING"
                )
        pairs.append((one, other))
    return pairs


def _prepare(of: Comparison, out: str, text: list[str], vocab_from: str) -> Step:
    settings = [setting for setting in of.own() if setting.startswith(("data.", "vocab."))] + text
    recipe = load_recipe(of.task.recipe, settings)
    data, vocab = recipe.data, recipe.vocab
    files = [data.train_source, data.train_target, data.valid_source, data.valid_target]
    files += [vocab.source_codes, vocab.target_codes, vocab_from]
    known = ["--vocab-from", vocab_from] if vocab_from else []
    needs = [Path(file) for file in files if file]
    return Step(["prepare", of.task.recipe, str(of.run / out), *_sets(settings), *known], needs, of.run / out)


def _train(of: Comparison, name: str) -> Step:
    recipe, text = of.recipe(name), of.run / of.system(name).text
    start = recipe.train.start_from
    command = ["train", of.task.recipe, str(text), str(of.run / name), *_sets(of.settings(name)), *_device(of)]
    work = recipe.train.steps * recipe.train.step_tokens * token_flops(recipe.network, recipe.vocab.size)
    seconds = {device: work / speed for device, speed in TRAINING_FLOPS.items()}
    return Step(command, [text, *([Path(start)] if start else [])], of.run / name / "model", seconds)


def _pair(of: Comparison, name: str) -> Step:
    student, verifier = (of.run / member / "model" for member in (of.system(name).student, of.system(name).verifier))
    made = of.run / name / "model"
    return Step(["pair", str(student), str(verifier), str(made)], [student, verifier], made)


def _distill(of: Comparison, source: str, part: str) -> Step:
    model, out = of.run / "teacher" / "model", of.run / f"{part}.txt"
    settings = [setting for setting in of.own("teacher") if setting.startswith("decode.")]
    command = ["distill", str(model), source, str(out), *_sets(settings), *_device(of)]
    lines = count_lines(Path(source)) if Path(source).exists() else of.task.sentences * (part == "train")
    return Step(command, [model, Path(source)], out, _translating(of, lines))


def _analyse(of: Comparison, test: tuple[Path, Path]) -> Step:
    source, reference = test
    systems = {key: text for name in of.systems for key, text in of.decoded(name).items()}
    folder = of.folder(test)
    out = ["--source", str(source), "--out", str(folder), *["--tokenised"] * of.task.tokenised, *_device(of)]
    needs = [source, reference, *(of.run / name / "model" for name in of.systems)]
    lines = count_lines(source) * len(systems) if source.exists() else 0
    command = ["analyse", str(reference), *systems.values(), *out]
    return Step(command, needs, folder / "analysis.json", _translating(of, lines), frozenset(systems))


def _sets(settings: Iterable[str]) -> list[str]:
    return [part for setting in settings for part in ("--set", setting)]


def _device(of: Comparison) -> list[str]:
    return [] if of.device == AUTO else ["--device", of.device]


def _translating(of: Comparison, lines: int) -> dict[str, float]:
    """The seconds of translating lines, by the cost of a token in the teacher's network."""
    recipe = of.recipe("teacher")
    cost = token_flops(recipe.network, recipe.vocab.size) / token_flops(BASE, 10_000)
    return {device: cost * lines / speed for device, speed in DISTILLED_LINES.items()}


@functools.cache
def token_flops(network: NetworkSettings, entries: int) -> float:
    """Operations of a training update for each target token, in sentences of 25."""
    return update_flops(network, entries, np.array([25]), np.array([25])) / 25


def missing(steps: Sequence[Step]) -> list[Path]:
    """Files that are neither there nor made by a step before they are needed."""
    made = {step.makes for step in steps}
    needed = (path for step in steps if not step.done for path in step.needs)
    return list(dict.fromkeys(path for path in needed if path not in made and not path.exists()))


def show_plan(of: Comparison, steps: Sequence[Step]) -> str:
    """The steps with their estimates, their commands and the files that they need."""
    made = {step.makes for step in steps}
    inputs = dict.fromkeys(path for step in steps for path in step.needs if path not in made)
    lines = [f"{of.name}: {len(steps)} steps in {of.run}. {of.task.note}".rstrip(), "", "Files:"]
    lines += [*(f"  {path}{'' if path.exists() else ': missing'}" for path in inputs), "", "Steps:"]
    for step in steps:
        state = "done" if step.done else _durations([step]) or "not estimated"
        lines += [f"  {step.command[0]} {step.makes}: {state}", f"    {shlex.join(['lath', *step.command])}"]
    left = _durations([step for step in steps if not step.done]) or "nothing"
    return "\n".join([*lines, "", f"Estimate for what is left, one step at a time: {left}.", ESTIMATED])


def _durations(steps: Sequence[Step]) -> str:
    totals = {device: sum(step.seconds.get(device, 0.0) for step in steps) for device in TRAINING_FLOPS}
    return ", ".join(f"{duration(total)} on {device}" for device, total in totals.items() if total)


def duration(seconds: float) -> str:
    """A time to two digits.

    >>> duration(90), duration(40 * 86400), duration(9e8)
    ('1.5 minutes', '40 days', '29 years')
    """
    units = {"years": 365 * 86400, "days": 86400, "hours": 3600, "minutes": 60}
    unit = next((unit for unit, size in units.items() if seconds >= size), "minutes")
    return f"{float(f'{max(seconds, 6) / units[unit]:.2g}'):g} {unit}"


# ---- running it -------------------------------------------------------------------------------------------------


def reproduce(of: Comparison) -> Path:
    """Run the steps that are left and write the report; returns its path."""
    steps = plan(of)
    if of.task.tokenised and importlib.util.find_spec("sacremoses") is None:
        raise UserError("scoring tokenised text needs sacremoses: pip install 'lath[paper]'")
    if absent := missing(steps):
        raise UserError(f"{of.name}: missing {', '.join(map(str, absent))}; see --dry-run. {of.task.note}".rstrip())
    for source, reference in of.tests:
        lines = [count_lines(path) for path in (source, reference)]
        if lines[0] != lines[1]:
            raise misaligned(source, lines[0], reference, lines[1])
    of.run.mkdir(parents=True, exist_ok=True)
    with locked(of.run, f"{of.run}: the run directory"):
        report = of.run / "report.md"
        if run_steps(steps, of.task.jobs) or not report.exists():
            write_report(of)
    return report


def run_steps(steps: Sequence[Step], jobs: int) -> int:
    """Run the steps that are left in processes of their own; the number that ran. If one fails the others are ended."""
    waiting = [step for step in steps if not step.done]
    count, running = len(waiting), dict[Path, subprocess.Popen[bytes]]()
    try:
        while waiting or running:
            unmade = {step.makes for step in waiting} | set(running)
            for step in [step for step in waiting if not unmade.intersection(step.needs)][: jobs - len(running)]:
                waiting.remove(step)
                running[step.makes] = _start(step)
            for made, process in list(running.items()):
                if process.poll() is None:
                    continue
                del running[made]
                if process.returncode:
                    raise UserError(f"lath for {made} ended with {process.returncode}; see its message above")
            time.sleep(0.05)
    finally:
        for process in running.values():
            process.terminate()  # training and distillation save what they have
        for process in running.values():
            process.wait()
    return count


def _start(step: Step) -> subprocess.Popen[bytes]:
    resume = ["--resume"] * (step.command[0] == "train" and step.makes.parent.exists())
    print(shlex.join(["lath", *step.command, *resume]), file=sys.stderr, flush=True)
    # A process group of its own: Ctrl-C reaches it through us alone. Our standard output has only the report's path.
    return subprocess.Popen([sys.executable, "-m", "lath", *step.command, *resume], stdout=2, process_group=0)


# ---- the report -------------------------------------------------------------------------------------------------


def write_report(of: Comparison) -> None:
    """Score every translation, test the claims, and put the paper's figures beside ours."""
    document = write_evidence(of)
    found = [json.loads((of.folder(test) / "analysis.json").read_text(encoding="utf-8")) for test in of.tests]
    tables = [beside(of, [figures(analysis) for analysis in found]), claims_table(document)]
    tables += [
        Table(**{**table, "title": f"{name}: {table['title']}"})
        for name, analysis in zip(document, found, strict=True)
        for table in analysis["tables"]
        if table["name"] == "systems"
    ]
    pages = [f"- [{name}]({name}/analysis.md)" for name in document]
    blocks = [f"# {of.name}", of.task.note, *(table.markdown() for table in tables), "All tables:", "\n".join(pages)]
    with whole_file(of.run / "report.md") as partial:
        partial.write_text("\n\n".join(filter(None, blocks)) + "\n", encoding="utf-8")


def write_evidence(of: Comparison) -> dict[str, Any]:
    """Write all that the published figures can be made from again; returns what scores.json holds, by test."""
    evidence, document = of.run / "evidence", {}
    for test in of.tests:
        name, texts = of.folder(test).name, translations(of, test)
        references = list(read_lines(test[1], keep_mark=True))
        measured = dict(zip(texts, measure(list(texts.values()), references, of.task.tokenised), strict=True))
        for system, lines in texts.items():
            if of.task.publishable:
                write_xz(evidence / "translations" / name / f"{system}.txt.xz", lines)
            else:
                write_counts(evidence / "counts" / name / f"{system}.tsv.xz", measured[system].counts)
        document[name] = {
            "source": str(test[0]),
            "reference": str(test[1]),
            "scores": {system: dataclasses.asdict(found.scores) for system, found in measured.items()},
            "claims": claims_of(of, measured),
            **({"detokenised": detokenised(of, texts, references)} if of.task.tokenised else {}),
        }
    for system in of.systems:
        if (log := of.run / system / LOG).exists():  # a model that was put there by hand has none
            with whole_file(evidence / f"{system}.jsonl") as partial:
                shutil.copyfile(log, partial)
    with whole_file(evidence / "scores.json") as partial:
        partial.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return document


def translations(of: Comparison, test: tuple[Path, Path]) -> dict[str, list[str]]:
    """The translations of one test by system."""
    folder, names = of.folder(test) / "translations", [key for name in of.systems for key in of.decoded(name)]
    return {name: list(read_lines(folder / f"{name}.txt", keep_mark=True)) for name in names}


def claims_of(of: Comparison, measured: dict[str, Measured]) -> dict[str, Any]:
    """The tested differences of pairs of systems: those of the paper, and those of the task."""
    claims = {}
    for one, other in (*CLAIMS, *own_claims(of)):
        if one in measured and other in measured:
            counts = [measured[other].counts, measured[one].counts]
            pair = measure_counts(counts, of.task.tokenised, samples=EvaluateSettings.samples)
            low, high = pair[1].gain_over(pair[0])
            tested = {"bleu": {**dataclasses.asdict(pair[1].scores.bleu), "low": low, "high": high}}
            claims[f"{one} against {other}"] = {**tested, "chrf": dataclasses.asdict(pair[1].scores.chrf)}
    return claims


def detokenised(of: Comparison, texts: dict[str, list[str]], references: list[str]) -> dict[str, Any]:
    """BLEU of each system after detokenisation."""
    from sacremoses import MosesDetokenizer

    join = MosesDetokenizer(lang=of.recipe("teacher").data.target_language).detokenize
    right, *plain = [[join(line.split()) for line in lines] for lines in (references, *texts.values())]
    return {name: dataclasses.asdict(evaluate(lines, right).bleu) for name, lines in zip(texts, plain, strict=True)}


def figures(analysis: dict[str, Any]) -> dict[str, dict[str, float]]:
    """The figures of an analysis by name and system."""
    systems = {system["name"]: system for system in analysis["systems"]}
    repeats = next(table for table in analysis["tables"] if table["name"] == "repeats")
    return {
        "bleu": {name: system["scores"]["bleu"]["value"] for name, system in systems.items()},
        "latency": {name: system["latency"]["mean_ms"] for name, system in systems.items() if system["latency"]},
        "parameters": {name: system["model"]["parameters"] / 1e6 for name, system in systems.items()},
        **{head: {row[0]: row[place] for row in repeats["rows"]} for place, head in enumerate(repeats["header"])},
    }


def beside(of: Comparison, found: Sequence[dict[str, dict[str, float]]]) -> Table:
    """The paper's figures beside ours, cell by cell; ours are means over seeds. `found` is of each test."""
    rows: list[list[Cell]] = []
    for table in of.paper if of.task.paper else []:
        development = table.get("development", False)
        ours = found[-1 if development else 0]
        for system, values in {} if development and not of.task.development else table["rows"].items():
            name, dot, decoding = system.partition(".")
            seeds = re.compile(rf"{re.escape(name)}(-seed\d+)?{re.escape(dot + decoding)}")
            for task, figure, paper in zip(table["tasks"], table["figures"], values, strict=True):
                same = [value for key, value in ours[figure].items() if seeds.fullmatch(key)]
                if same and task in ("", of.task.paper):
                    mean, single = statistics.fmean(same), " ".join(f"{value:.2f}" for value in same)
                    rows.append([f"{table['table']}: {figure}", system, paper, mean, mean - paper, single])
    note = "The paper's latency is of a TITAN RTX, ours of the device used here. Its window of repeats is not known."
    header = ["figure", "system", "paper", "ours", "difference", "each seed"]
    return Table("paper", "The paper's figures and ours", header, [0, 0, 2, 2, 2, 0], rows,
                 note if rows else "The paper has no figures of this task.")  # fmt: skip


def claims_table(document: dict[str, Any]) -> Table:
    """By how much BLEU one system is above another."""
    rows: list[list[Cell]] = []
    for test, scored in document.items():
        for pair, found in scored["claims"].items():
            one, other = (scored["scores"][name]["bleu"]["value"] for name in pair.split(" against "))
            bleu = found["bleu"]
            rows.append([test, pair, one - other, f"{bleu['low']:+.2f} to {bleu['high']:+.2f}", bleu["p_value"]])
    header = ["test", "pair", "BLEU difference", "95 % interval", "p"]
    return Table("claims", "What the paper claims", header, [0, 0, 2, 0, 4], rows, "p: sacrebleu's paired bootstrap.")
