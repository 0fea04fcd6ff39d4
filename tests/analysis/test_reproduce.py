"""`lath reproduce`: plans are data, steps are skipped and resumed, the report puts the paper's figures beside ours."""

from __future__ import annotations

import json
import re
import runpy
import shlex
import signal
import subprocess
import sys
import time
import tomllib
from dataclasses import asdict
from pathlib import Path

import pytest
from scripts import ROOT
from toy import plain_pairs, write_pairs

import lath
from lath.analysis.analyse import analyse
from lath.analysis.counts import read_counts
from lath.analysis.reproduce import (
    Comparison,
    Step,
    beside,
    duration,
    missing,
    plan,
    read_task,
    reproduce,
    run_steps,
    show_plan,
    write_evidence,
)
from lath.analysis.scores import evaluate, measure_counts
from lath.analysis.settings import ReproduceSettings
from lath.config import load_recipe
from lath.errors import UserError
from lath.files import read_lines

TASKS = tomllib.loads((ROOT / "recipes" / "tasks.toml").read_text(encoding="utf-8"))
TRIALS = re.compile("fp32|unpacked|weight-1|band10|-first|-input|-repeats|lengths[12]$|shorter")
"""Stored scores of single trials, which docs/log.md explains."""
PAPER = ("wmt14-en-de", "wmt14-de-en", "wmt16-en-ro", "wmt16-ro-en", "iwslt14-de-en")
RECIPE = """
[data]
source_language = "ba"
target_language = "en"
train_source = "train.src"
train_target = "train.tgt"
valid_source = "valid.src"
valid_target = "valid.tgt"
max_length = 24
placeholder_share = 0.0
[vocab]
size = 320
placeholders = 0
[network]
width = 16
heads = 2
feedforward = 16
encoder_layers = 1
decoder_layers = 1
max_positions = 32
[train]
steps = 20
step_tokens = 300
micro_batch_tokens = 300
warmup_steps = 4
learning_rate = 1e-2
validate_every = 10
keep_best = 1
log_every = 5
"""
TASK = """
[tasks.toy]
recipe = "toy.toml"
tests = "test.src test.tgt"
systems = "teacher lat lat-seed2"
decode = "beam5 it4"
paper = "wmt14-en-de"
development = true
settings = "lat:train.steps=10 *seed*:train.steps=10"

[tasks.one-test]
like = "toy"
development = false
systems = "teacher lat lat-seed2 duo"
decode = "beam5 it4 exact"

[systems.duo]
student = "lat"
verifier = "teacher"
decode = "relaxed exact"
"""

WRONG = """
[tasks.wrong-pair]
like = "toy"
systems = "wrong"
settings = ""

[tasks.wrong-claim]
like = "toy"
claims = "lat.it4:lat.it44"

[systems.wrong]
student = "latt"
verifier = "teacher"
"""
CLOSED = """
[tasks.closed]
like = "toy"
development = false
systems = "lat lat-seed2"
claims = "lat-seed2.it4:lat.it4 cmlm.it4:lat.it4"
publishable = false
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A corpus, a recipe and a task; the current directory."""
    for name, count in (("train", 120), ("valid", 12), ("test", 6)):
        write_pairs(tmp_path, name, plain_pairs, count, seed=len(name))
    (tmp_path / "toy.toml").write_text(RECIPE, encoding="utf-8")
    shared = (ROOT / "recipes" / "tasks.toml").read_text(encoding="utf-8")
    (tmp_path / "tasks.toml").write_text(shared + TASK + WRONG, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def toy(**settings: str | int | tuple[str, ...]) -> Comparison:
    return read_task("toy", ReproduceSettings(tasks="tasks.toml", **settings))  # type: ignore[arg-type]


def task_of(name: str, monkeypatch: pytest.MonkeyPatch, **settings: str | tuple[str, ...]) -> Comparison:
    """A task of the project."""
    monkeypatch.chdir(ROOT)
    return read_task(name, ReproduceSettings(**settings))  # type: ignore[arg-type]


def made(steps: list[Step]) -> list[str]:
    return [str(step.makes) for step in steps]


def test_the_papers_tasks_train_every_piece_length_and_three_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PAPER:
        of = task_of(name, monkeypatch)
        assert (of.task.paper, of.task.tokenised, len(of.tests)) == (name, True, 2)
        steps = {step.makes.parent.name: step for step in plan(of) if step.command[0] == "train"}
        assert next(iter(steps)) == "teacher"
        recipes = {key: of.recipe(key) for key in steps}
        assert {recipe.network.piece_length for key, recipe in recipes.items() if key.startswith("lat")} == {
            2,
            3,
            4,
            5,
            6,
        }
        assert {recipe.train.seed for key, recipe in recipes.items() if key.startswith("cmlm")} == {1, 2, 3}
        assert recipes["teacher"].train.steps == (50_000 if name == "iwslt14-de-en" else 300_000)
        rows = {row for table in of.paper for row in table["rows"] if name in table["tasks"]} - {"reference"}
        assert rows <= set().union(*(step.systems for step in plan(of)))  # each row of the paper gets a figure


@pytest.mark.parametrize(
    "name", [name for name in TASKS["tasks"] if (ROOT / "docs" / "runs" / name / "scores.json").exists()]
)
def test_stored_scores_can_be_made(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each stored score is in the plan of its task."""
    planned = {step.makes.parent.name: step.systems for step in plan(task_of(name, monkeypatch)) if step.systems}
    stored = json.loads((ROOT / "docs" / "runs" / name / "scores.json").read_text(encoding="utf-8"))
    assert set(stored) == set(planned)
    for test, found in stored.items():
        assert {system for system in found["scores"] if not TRIALS.search(system)} <= planned[test]


def test_all_tasks_have_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in TASKS["tasks"]:
        of = task_of(name, monkeypatch)
        commands = [step.command for step in plan(of)]
        assert all(len(command) > 2 for command in commands)
        assert [command[0] for command in commands][-1] == "analyse"


def test_a_published_comparison_keeps_its_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = plan(task_of("europarl-en-de", monkeypatch))
    commands = [shlex.join(step.command) for step in steps]
    assert [command.split()[0] for command in commands] == [
        "prepare", "train", "distill", "distill", "prepare", "train", "train", "analyse", "analyse",
    ]  # fmt: skip
    assert "--vocab-from runs/europarl-de-en/raw" in commands[0]
    assert "train.start_from=runs/europarl-de-en/teacher/model" in commands[1]
    assert "data/europarl-third/more.en" in commands[2]
    assert "train.start_from=runs/europarl-en-de/teacher/model" in commands[5]
    lengths = "lat.it4-lengths3=runs/europarl-en-de/lat/model@iterations=4,length_candidates=3"
    assert lengths in commands[7]
    assert Path("runs/europarl-de-en/teacher/model") in missing(steps)


def test_students_come_after_their_teacher_and_others_do_not_wait(folder: Path) -> None:
    of = toy(systems="lat-raw,cmlm,lat-k2")
    names = [name.removeprefix("runs/toy/") for name in made(plan(of))]
    assert names == [
        "raw", "teacher/model", "lat-raw/model", "train.txt", "valid.txt", "distilled", "cmlm/model", "lat-k2/model",
        f"{folder.name}-test.src/analysis.json", f"{folder.name}-valid.src/analysis.json",
    ]  # fmt: skip
    assert of.recipe("lat-k2").network.piece_length == 2
    assert made(plan(toy(systems="lat-raw")))[:2] == ["runs/toy/raw", "runs/toy/lat-raw/model"]


def test_a_pair_is_made_of_its_members_which_are_trained_once(folder: Path) -> None:
    of = toy(systems="teacher,duo,duo-seed2,lat", decode="it4,exact")
    steps = plan(of)
    assert [name.removeprefix("runs/toy/") for name in made(steps)] == [
        "raw", "teacher/model", "train.txt", "valid.txt", "distilled", "lat/model", "lat-seed2/model", "duo/model",
        "duo-seed2/model", f"{folder.name}-test.src/analysis.json", f"{folder.name}-valid.src/analysis.json",
    ]  # fmt: skip
    assert shlex.join(steps[8].command) == (
        "pair runs/toy/lat-seed2/model runs/toy/teacher/model runs/toy/duo-seed2/model"
    )
    exact = "duo-seed2.exact=runs/toy/duo-seed2/model@iterations=1,length_candidates=1,verify=exact"
    assert exact in steps[-1].command
    assert not any("relaxed" in word for word in steps[-1].command)


def test_settings_are_for_all_systems_or_for_those_that_fit(folder: Path) -> None:
    of = toy(systems="teacher,cmlm,cmlm-seed2", overrides=("train.steps=7", "cmlm*:train.steps=9", "decode.beam=3"))
    assert [of.recipe(name).train.steps for name in of.systems] == [7, 9, 9]
    assert [of.recipe(name).train.seed for name in of.systems] == [1, 1, 2]
    distill = next(step for step in plan(of) if step.command[0] == "distill")
    assert not any("train." in word for word in distill.command[4:])
    assert next(iter(of.decoded("cmlm").values())).partition("@")[2] == "length_candidates=5,beam=3,iterations=4"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"systems": "teacher,latt"}, "latt: no such system (did you mean 'lat'?)"),
        ({"decode": "beam6"}, "beam6: no such decoding"),
        ({"overrides": ("latt:train.steps=1",)}, "no system is called latt"),
        ({"task": "wrong-pair"}, "latt: no such system (did you mean 'lat'?)"),
        ({"task": "wrong-claim"}, "claims: lat.it4:lat.it44: lat.it44 is no system and decoding"),
    ],
)
def test_unknown_names_are_refused(settings: dict[str, str], message: str, folder: Path) -> None:
    task = settings.pop("task", "toy")
    with pytest.raises(UserError, match=".") as caught:
        plan(read_task(task, ReproduceSettings(tasks="tasks.toml", **settings)))  # type: ignore[arg-type]
    assert message in str(caught.value)


def test_an_unknown_task_is_refused(folder: Path) -> None:
    with pytest.raises(UserError, match="did you mean 'toy'"):
        read_task("toi", ReproduceSettings(tasks="tasks.toml"))
    with pytest.raises(UserError, match="give --tasks"):
        read_task("toy", ReproduceSettings(tasks="nowhere.toml"))


def test_missing_and_misaligned_text_is_reported_before_anything_runs(folder: Path) -> None:
    (folder / "test.tgt").write_text("a\n", encoding="utf-8")
    with pytest.raises(UserError, match="6 lines"):
        reproduce(toy())
    (folder / "test.tgt").unlink()
    (folder / "train.src").unlink()
    with pytest.raises(UserError, match=r"missing train\.src, test\.tgt; see --dry-run"):
        reproduce(toy())
    assert "train.src: missing" in show_plan(toy(), plan(toy()))
    assert not (folder / "runs").exists()


def test_the_estimate_of_a_plan_follows_the_measured_speeds(monkeypatch: pytest.MonkeyPatch) -> None:
    of = task_of("wmt14-en-de", monkeypatch, systems="teacher,lat")
    teacher = next(step for step in plan(of) if step.makes.parent.name == "teacher")
    # 300,000 updates of 128,000 tokens at 565,439 a second (docs/benchmarks.md, AT with 32,000 entries)
    assert teacher.seconds["H200"] == pytest.approx(300_000 * 128_000 / 565_439, rel=0.15)
    assert "years on 2 CPU cores" in show_plan(of, plan(of))
    assert [duration(seconds) for seconds in (1, 7200, 3e5)] == ["0.1 minutes", "2 hours", "3.5 days"]


def test_the_papers_cells_stand_beside_means_over_seeds(folder: Path) -> None:
    of = toy()
    test = {"bleu": {"lat.it4": 20.0, "lat-seed2.it4": 22.0, "lat-k2.it4": 9.0}, "latency": {"lat.it4": 3.0},
            "parameters": {}, "n = 1": {"reference": 2.5}, "n = 2": {}, "n = 3": {}, "n = 4": {}}  # fmt: skip
    valid = {**test, "bleu": {"lat.it4": 30.0}}
    assert beside(of, [test, valid]).shown() == [
        ["Table 1: bleu", "lat.it4", "27.35", "21.00", "-6.35", "20.00 22.00"],
        ["Table 1: latency", "lat.it4", "73.00", "3.00", "-70.00", "3.00"],
        ["Table 2: n = 1", "reference", "2.49", "2.50", "0.01", "2.50"],
        ["Development set (appendix): bleu", "lat.it4", "26.03", "30.00", "3.97", "30.00"],
    ]


def test_a_failing_step_ends_the_others(folder: Path) -> None:
    steps = [Step(["prepare", "nowhere.toml", "a"], [], Path("a")), Step(["prepare", "toy.toml", "b"], [], Path("b"))]
    with pytest.raises(UserError, match="lath for a ended with 2; see its message above"):
        run_steps(steps, jobs=2)
    assert run_steps([Step(["x"], [], folder)], jobs=1) == 0  # what is there is not made again


def test_a_task_is_killed_and_continues_to_the_report(folder: Path) -> None:
    flags = shlex.split(
        "reproduce one-test --tasks tasks.toml --device cpu --jobs 2 --set 'lat*:decode.extra_length=1'"
    )
    command = [sys.executable, "-m", "lath", *flags]
    teacher, run = folder / "runs" / "one-test" / "teacher", folder / "runs" / "one-test"
    with subprocess.Popen([*command, "--set", "teacher:train.steps=100000"]) as first:
        until = time.monotonic() + 120
        while first.poll() is None and not list(teacher.glob("checkpoints/step-*")) and time.monotonic() < until:
            time.sleep(0.1)
        first.send_signal(signal.SIGTERM)
        assert first.wait() == 143
    steps = max(int(path.name.removeprefix("step-")) for path in teacher.glob("checkpoints/step-*"))
    assert steps >= 10
    assert not (teacher / "model").exists()
    again = [*command, "--set", f"teacher:train.steps={steps + 5}"]  # continues where it was
    second = subprocess.run(again, capture_output=True, text=True, check=False)
    assert second.returncode == 0, second.stderr
    assert second.stdout == "runs/one-test/report.md\n"
    assert "lath prepare toy.toml runs/one-test/raw" not in second.stderr
    assert json.loads((teacher / "model" / "config.json").read_text(encoding="utf-8"))["steps"] == steps + 5
    report = (run / "report.md").read_text(encoding="utf-8")
    [row] = [line for line in report.splitlines() if line.startswith("| Table 1: bleu | lat.it4 | 27.35 |")]
    assert f"## {folder.name}-test.src: Quality and latency" in report
    test_name, evidence = f"{folder.name}-test.src", run / "evidence"
    test = json.loads((evidence / "scores.json").read_text(encoding="utf-8"))[test_name]
    assert (test["source"], test["reference"]) == ("test.src", "test.tgt")
    assert {path.name for path in evidence.glob("*.jsonl")} == {
        f"{name}.jsonl" for name in ("teacher", "lat", "lat-seed2")
    }
    packed = evidence / "translations" / test_name / "lat.it4.txt.xz"
    stored = list(read_lines(packed))
    assert stored == list(read_lines(run / test_name / "translations" / "lat.it4.txt"))
    assert asdict(evaluate(stored, list(read_lines(folder / "test.tgt")))) == test["scores"]["lat.it4"]
    [analysed] = analyse(folder / "test.tgt", [f"lat={packed}"], folder / "out").systems
    assert asdict(analysed.scores.bleu) == test["scores"]["lat.it4"]["bleu"]
    by_hand = lath.load(teacher / "model", "cpu").translate(list(read_lines(folder / "test.src")), split=False, beam=1)
    assert list(read_lines(evidence / "translations" / test_name / "duo.exact.txt.xz")) == by_hand
    values = [test["scores"][name]["bleu"]["value"] for name in ("lat.it4", "lat-seed2.it4")]
    assert f"| {sum(values) / 2:.2f} | {sum(values) / 2 - 27.35:.2f} | {values[0]:.2f} {values[1]:.2f} |" in row
    assert list(test["claims"]) == ["lat.it4 against teacher.beam5"]
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.is_file()}
    third = subprocess.run(again, capture_output=True, text=True, check=True)
    assert third.stderr == ""
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.is_file()} == before


def test_what_may_not_be_published_leaves_counts_and_own_claims_are_tested(folder: Path) -> None:
    with (folder / "tasks.toml").open("a", encoding="utf-8") as tasks:
        tasks.write(CLOSED)
    of = read_task("closed", ReproduceSettings(tasks="tasks.toml"))
    right, [test] = list(read_lines(folder / "test.tgt")), of.tests
    texts = {"lat.it4": [line[:9] for line in right], "lat-seed2.it4": [line[3:] for line in right]}
    written = of.folder(test) / "translations"
    written.mkdir(parents=True)
    for name, lines in texts.items():
        (written / f"{name}.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    document = write_evidence(of)
    evidence = of.run / "evidence"
    assert not (evidence / "translations").exists()
    counted = {path.name.removesuffix(".tsv.xz"): read_counts(path) for path in evidence.glob("counts/*/*.tsv.xz")}
    assert {name: asdict(measure_counts([one])[0].scores) for name, one in counted.items()} == {
        name: asdict(evaluate(lines, right)) for name, lines in texts.items()
    }
    [scored] = document.values()
    assert list(scored["claims"]) == ["lat-seed2.it4 against lat.it4"]  # cmlm is not part of the task
    check = runpy.run_path(str(ROOT / "docs" / "check_results.py"))
    assert check["main"]([str(evidence)]) == 0
    scored["scores"]["lat.it4"]["bleu"]["value"] += 0.01
    (evidence / "scores.json").write_text(json.dumps(document), encoding="utf-8")
    assert check["main"]([str(evidence)]) == 1


def test_the_tasks_recipes_exist() -> None:
    for name, task in TASKS["tasks"].items():
        recipe = task.get("recipe") or TASKS["tasks"][task["like"]]["recipe"]
        load_recipe(ROOT / recipe)
        assert (ROOT / recipe).is_file(), name
