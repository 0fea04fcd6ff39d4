"""Runs that meet, are terminated, killed or forked: nothing is lost, doubled or half there. Bounded and seeded."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Runs, small_recipe

from lath.cli import main
from lath.config import to_toml
from lath.distillation import distill
from lath.errors import UserError
from lath.files import whole_directory, whole_file

ROOT = Path(__file__).parents[2]
LINES = ["ba ko", "mi tu re", "", "sa", "lo ni pe du", "fa gu", "ko ba mi"] * 4


def environment(threads: int = 1) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": str(threads)}


def partials(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob(".*.partial-*")]


def steps_of(run: Path) -> list[int]:
    lines = (run / "log.jsonl").read_text(encoding="utf-8").splitlines()
    return [entry["step"] for entry in map(json.loads, lines) if "loss" in entry]


@pytest.fixture
def texts(toy_folder: Path, tmp_path: Path) -> Path:
    """A folder with a recipe, a source and its lines again as a reference."""
    (tmp_path / "toy.toml").write_text(to_toml(small_recipe(toy_folder, "LAT")), encoding="utf-8")
    (tmp_path / "text").write_text("".join(f"{number} {line}\n" for number, line in enumerate(LINES)), encoding="utf-8")
    return tmp_path


# ---- two at once ----------------------------------------------------------------------------------------------


def test_a_run_is_trained_by_one_process_at_a_time(
    toy_folder: Path, texts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = texts / "run"
    arguments = ["train", str(texts / "toy.toml"), str(toy_folder / "data"), str(run), "--device", "cpu"]
    frequent = ["--set", "train.steps=100000", "--set", "train.validate_every=100000", "--set", "train.log_every=1"]
    with subprocess.Popen(
        [sys.executable, "-m", "lath", *arguments, *frequent], env=environment(), stderr=subprocess.PIPE
    ) as process:
        try:
            deadline = time.monotonic() + 60
            while not (run / "log.jsonl").is_file() or len(steps_of_growing(run)) < 3:
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.02)
            assert main([*arguments, *frequent, "--resume"]) == 2
            out, err = capsys.readouterr()
            assert (out, err) == ("", f"lath: error: {run}: the run directory is in use by another process; "
                                  "wait for it to end, or stop it first\n")  # fmt: skip
        finally:
            process.terminate()
            message = process.communicate(timeout=60)[1].decode()
    assert process.returncode == 143
    assert re.fullmatch(
        r"lath: stopped at step \d+ and saved; run the same command with --resume to continue\n", message
    )
    steps = steps_of(run)
    assert steps == list(range(1, len(steps) + 1)), "no entry is doubled"
    more = ["--set", f"train.steps={len(steps) + 2}", "--set", "train.log_every=1", "--resume"]
    assert main([*arguments, *more]) == 0, "a lock ends with its process"
    assert steps_of(run) == list(range(1, len(steps) + 3))


def steps_of_growing(run: Path) -> list[str]:
    return (run / "log.jsonl").read_text(encoding="utf-8").split("\n")[:-1]


def test_distillations_of_one_output_do_not_mix(toy_run: Runs, texts: Path) -> None:
    model, source = toy_run("CMLM") / "model", texts / "text"
    distill(model, source, texts / "alone", device="cpu")
    random_, outcomes = random.Random(1), []
    for trial in range(12):
        out = texts / f"out{trial}"

        def work(delay: float, out: Path = out) -> None:
            time.sleep(delay)
            try:
                outcomes.append(str(distill(model, source, out, device="cpu")))
            except UserError as error:
                outcomes.append(str(error).replace(str(out), "OUT"))

        threads = [threading.Thread(target=work, args=(random_.random() * 0.03,)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert out.read_bytes() == (texts / "alone").read_bytes()
    busy = "OUT: the unfinished run in OUT.shards is in use by another process; wait for it to end, or stop it first"
    late = "OUT: exists already; choose another name or remove it"
    assert set(outcomes) <= {str(len(LINES)), busy, late}
    assert outcomes.count(str(len(LINES))) >= 12
    assert busy in outcomes
    assert not partials(texts)


# ---- SIGTERM --------------------------------------------------------------------------------------------------

FORKED = """
import json, os, random, signal, sys, time, traceback
import torch, sacrebleu, sentencepiece
import lath.trainer, lath.distillation, lath.analysis.scores, lath.preparation
from lath.cli import main

def start(arguments, folder):
    os.makedirs(folder)
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        for number, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(os.open(os.path.join(folder, name), os.O_WRONLY | os.O_CREAT), number)
        code = main([argument.replace("OUT", folder + "/out") for argument in arguments])
        sys.stdout.flush()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)

random_ = random.Random(int(sys.argv[1]))
for job in json.load(sys.stdin):
    began = time.monotonic()
    codes = [os.waitstatus_to_exitcode(os.waitpid(start(job["command"], job["folder"] + "/whole"), 0)[1])]
    whole = time.monotonic() - began
    for trial in range(job["trials"]):
        child = start(job["command"], job["folder"] + f"/{trial}")
        time.sleep(random_.random() * whole)
        for _ in range(1 + trial % 2):  # every second process gets the signal twice
            os.kill(child, signal.SIGTERM)
            time.sleep(0.002)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    print(json.dumps(codes), flush=True)
"""
"""Runs commands in forks of a process that has imported everything: a trial takes as long as its work."""

TRIALS = int(os.environ.get("LATH_TRIALS", "2"))
"""For each verb."""


def test_sigterm_ends_every_verb_cleanly(
    toy_folder: Path, toy_run: Runs, texts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, text = toy_run("LAT") / "model", texts / "text"
    train = ["train", texts / "toy.toml", toy_folder / "data", "OUT", "--device", "cpu"]
    distilled = ["distill", model, text, "OUT", "--device", "cpu", "--set", "decode.batch_sentences=1"]
    commands: dict[str, list[Any]] = {
        "prepare": ["prepare", texts / "toy.toml", "OUT"],
        "train": train,
        "distill": distilled,
        "translate": ["translate", model, text, "--device", "cpu", "--set", "decode.batch_sentences=1"],
        "evaluate": ["evaluate", toy_folder / "valid.tgt", toy_folder / "valid.tgt", toy_folder / "valid.src"],
    }
    jobs = [
        {"command": list(map(str, command)), "folder": str(texts / verb), "trials": TRIALS}
        for verb, command in commands.items()
    ]
    done = subprocess.run(
        [sys.executable, "-c", FORKED, "1"], input=json.dumps(jobs), env=environment(), text=True, capture_output=True
    )
    assert done.returncode == 0, done.stderr
    terminated = 0
    for verb, line in zip(commands, done.stdout.splitlines(), strict=True):
        whole, *codes = json.loads(line)
        assert whole == 0
        for folder, code in terminated_trials(texts / verb, codes):
            terminated += 1
            assert_clean(folder, code, texts / verb / "whole")
    assert terminated >= TRIALS * len(commands) // 2
    assert not partials(texts)
    for out in sorted(texts.glob("train/*/out")):
        if out.exists() and not (out / "model").exists():
            assert main([*map(str, train[:3]), str(out), *train[4:], "--resume"]) == 0
            assert steps_of(out) == steps_of(texts / "train" / "whole" / "out")
    for shards in sorted(texts.glob("distill/*/out.shards")):
        out = shards.with_suffix("")
        assert main([*map(str, distilled[:3]), str(out), *distilled[4:]]) == 0
        assert out.read_bytes() == (texts / "distill" / "whole" / "out").read_bytes()


def terminated_trials(folder: Path, codes: list[int]) -> Iterator[tuple[Path, int]]:
    for trial, code in enumerate(codes):
        if code != 0:
            yield folder / str(trial), code


def assert_clean(folder: Path, code: int, whole: Path) -> None:
    error = (folder / "stderr").read_text(encoding="utf-8") if (folder / "stderr").exists() else ""
    if code == -signal.SIGTERM and error == "":  # before the command had begun
        assert not (folder / "out").exists()
        return
    # A second signal may find the command finished but for its exit, with the system's handler back in place.
    assert code in (143, -signal.SIGTERM), error
    message = re.sub(r"\Alath: warning: the languages of the text are not checked: .*\n", "", error)
    assert re.fullmatch(r"lath: (terminated|stopped at step \d+ and saved; .*--resume to continue)\n", message)
    out = (folder / "stdout").read_bytes()
    assert out == b"" or out.endswith(b"\n")
    assert (whole / "stdout").read_bytes().startswith(out) or out.startswith(str(folder).encode())


@pytest.mark.parametrize("delay", [0.3, 0.8, 1.6])
def test_sigterm_while_modules_are_imported(toy_run: Runs, texts: Path, delay: float) -> None:
    arguments = ["translate", str(toy_run("LAT") / "model"), "-", "--device", "cpu"]
    with subprocess.Popen(
        [sys.executable, "-m", "lath", *arguments],
        env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        time.sleep(delay)
        process.terminate()
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) in [(143, b"", b"lath: terminated\n"), (-signal.SIGTERM, b"", b"")]


# ---- kill -9 --------------------------------------------------------------------------------------------------

KILLED = """
import os, signal, sys
from pathlib import Path
from lath.files import whole_directory, whole_file
with whole_directory(Path(sys.argv[1], "dead")) as folder, whole_file(Path(sys.argv[1], "dead.txt")) as file:
    (folder / "deep").mkdir()
    (folder / "deep" / "text").write_text("half")
    file.write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_left_is_removed_and_what_a_live_one_writes_is_not(tmp_path: Path) -> None:
    with whole_directory(tmp_path / "live") as live, whole_file(tmp_path / "live.txt") as text:
        (live / "a").write_text("1")
        text.write_text("2")
        killed = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], env=environment())
        assert killed.returncode == -signal.SIGKILL
        assert len(partials(tmp_path)) == 4
        with whole_file(tmp_path / "next"):
            assert len(partials(tmp_path)) == 3, "those of the live process, and its own"
        assert sorted(partials(tmp_path)) == sorted([live.name, text.name])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["live", "live.txt", "next"]
    assert (tmp_path / "live" / "a").read_text() == "1"
    assert (tmp_path / "live.txt").read_text() == "2"


def test_many_writers_in_one_folder_leave_each_other_alone(tmp_path: Path) -> None:
    failures: list[BaseException] = []

    def write(writer: int) -> None:
        try:
            for number in range(40):
                with whole_file(tmp_path / "same") as partial:
                    partial.write_text(f"{writer}")
                with whole_directory(tmp_path / f"{writer}-{number}") as folder:
                    (folder / "a").write_text("1")
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert (tmp_path / "same").read_text() in "0123"
    assert sum((path / "a").read_text() == "1" for path in tmp_path.glob("*-*")) == 160
    assert partials(tmp_path) == []


# ---- power cuts -----------------------------------------------------------------------------------------------


def test_everything_is_on_the_disk_before_it_gets_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    sync, replace = os.fsync, os.replace

    def fsync(descriptor: int) -> None:
        calls.append(f"sync {os.readlink(f'/proc/self/fd/{descriptor}')}")
        sync(descriptor)

    def rename(old: Path, new: Path) -> None:
        calls.append(f"rename {new}")
        replace(old, new)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", rename)
    with whole_directory(tmp_path / "out") as folder:
        (folder / "deep").mkdir()
        (folder / "deep" / "a").write_text("1")
        (folder / "b").write_text("2")
    directory = [call.replace(str(folder), "PARTIAL").replace(str(tmp_path), "PARENT") for call in calls]
    assert directory == [
        "sync PARTIAL/deep/a", "sync PARTIAL/deep", "sync PARTIAL/b", "sync PARTIAL", "rename PARENT/out",
        "sync PARENT",
    ]  # fmt: skip
    calls.clear()
    with whole_file(tmp_path / "text") as file:
        file.write_text("3")
    assert calls == [f"sync {file}", f"rename {tmp_path / 'text'}", f"sync {tmp_path}"]


# ---- fork -----------------------------------------------------------------------------------------------------

FORKING = """
import multiprocessing, os, sys, time
import lath

def answer(loaded, lines):
    mt = loaded or lath.load(sys.argv[1], "cpu")
    return mt.translate(lines, iterations=1)

def check(mt, lines, expected):
    sys.exit(answer(mt, lines) != expected)

if __name__ == "__main__":
    lines = ["Guten Morgen.", "Das Haus ist sehr klein.", "Wir sehen uns am Montag."]
    for precision, engine in (("fp32", "plain"), ("int8", "auto"), ("int8", "recorded")):
        mt = lath.load(sys.argv[1], "cpu", precision, engine)
        expected = mt.translate(lines, iterations=1)
        process = multiprocessing.get_context("fork").Process(target=check, args=(mt, lines, expected))
        process.start()
        process.join(20)
        print("fork", precision, engine, process.exitcode, flush=True)
        process.kill()
    lazily = lath.load(sys.argv[1], "cpu").translate(lines, iterations=1)
    process = multiprocessing.get_context("spawn").Process(target=check, args=(None, lines, lazily))
    process.start()
    process.join(60)
    print("spawn", process.exitcode, flush=True)
"""


def test_a_process_that_has_translated_can_be_forked_or_spawn_others(tmp_path: Path) -> None:
    program = tmp_path / "forking.py"
    program.write_text(FORKING, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(program), str(ROOT / "models" / "de-en")], env=environment(threads=2),
        text=True, capture_output=True, timeout=120,
    )  # fmt: skip
    assert done.stdout.splitlines() == [
        "fork fp32 plain 0", "fork int8 auto 0", "fork int8 recorded 0", "spawn 0",
    ], done.stderr  # fmt: skip
