"""Two ranks do what one process does: the same weights, the same text, one log, one message."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from conftest import Runs
from safetensors.torch import load_file
from toy import toy_recipe

from lath.config import Recipe, load_recipe, to_toml
from lath.errors import UserError
from lath.text.corpus import Corpus
from lath.trainer import train
from lath.training.batches import make_batch
from lath.training.learner import build_learner
from lath.training.loop import update
from lath.training.ranks import ALONE, VARIABLES, gather, join_world, lead, share_stream, sum_gradients, together
from lath.translator import load

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")
STEPS = 20


def environment(**extra: str) -> dict[str, str]:
    """For processes that communicate on this machine only."""
    plain = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    loopback = {"GLOO_SOCKET_IFNAME": "lo"} if Path("/sys/class/net/lo").exists() else {}
    return {**plain, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **loopback, **extra}


class Ranks:
    """The same command in two processes with torchrun's variables; unlike torchrun's they are easy to kill."""

    def __init__(self, *command: object) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            meeting = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(probe.getsockname()[1])}
        self.processes = [
            subprocess.Popen(
                [sys.executable, *map(str, command)],
                env=environment(RANK=rank, LOCAL_RANK=rank, **meeting),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in ("0", "1")
        ]

    def end(self) -> list[tuple[int, str, str]]:
        """Exit code, stdout and stderr of each, after all have ended."""
        outputs = [process.communicate(timeout=60) for process in self.processes]
        return [(process.returncode, out, err) for process, (out, err) in zip(self.processes, outputs, strict=True)]

    def kill(self, number: signal.Signals, *ranks: int) -> None:
        """Send a signal to some of them."""
        for rank in ranks:
            self.processes[rank].send_signal(number)


def finished(ranks: Ranks) -> str:
    """What the first rank printed; all must have succeeded, and the others must print nothing."""
    outcomes = ranks.end()
    assert [code for code, _, _ in outcomes] == [0, 0], outcomes
    assert [out for _, out, _ in outcomes[1:]] == [""]
    return outcomes[0][1]


@pytest.fixture(scope="module")
def recipe_file(toy_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings = {"steps": STEPS, "validate_every": 5, "log_every": 1, "step_tokens": 400, "micro_batch_tokens": 100}
    recipe = toy_recipe(toy_folder, "LAT", **settings)
    path = tmp_path_factory.mktemp("recipe") / "toy.toml"
    path.write_text(to_toml(recipe), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def recipe(recipe_file: Path) -> Recipe:
    return load_recipe(recipe_file, [])


@pytest.fixture(scope="module")
def alone(recipe: Recipe, toy_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of a single process without interruption."""
    run = tmp_path_factory.mktemp("alone") / "run"
    train(recipe, toy_folder / "data", run, device="cpu")
    return run


def log_of(run: Path) -> list[dict[str, float]]:
    """The whole lines of a log that may be growing."""
    path = run / "log.jsonl"
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]] if path.exists() else []


def assert_same_weights(first: Path, second: Path) -> None:
    """To 1e-6: the order of additions differs."""
    one, two = (load_file(run / f"checkpoints/step-{STEPS}/model.safetensors") for run in (first, second))
    assert one.keys() == two.keys()
    assert max(float((one[name] - two[name]).abs().max()) for name in one) <= 1e-6


def wait_for_step(run: Path, step: int, ranks: Ranks) -> None:
    while not any(line["step"] >= step for line in log_of(run)):
        assert [process.poll() for process in ranks.processes] == [None, None], ranks.end()
        time.sleep(0.01)


# ---- training -----------------------------------------------------------------------------------------------------


def test_two_ranks_under_torchrun_train_what_one_process_does(
    recipe_file: Path, alone: Path, toy_folder: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    verb = ["-m", "lath", "train", str(recipe_file), str(toy_folder / "data"), str(run), "--device", "cpu"]
    done = subprocess.run([*torchrun, *verb], env=environment(), text=True, capture_output=True, timeout=100)
    assert (done.returncode, done.stdout) == (0, f"{run / 'model'}\n"), done.stderr
    assert_same_weights(alone, run)
    logged, expected = log_of(run), log_of(alone)
    assert [(line["step"], "loss" in line) for line in logged] == [(line["step"], "loss" in line) for line in expected]
    for name in ("loss", "valid_loss", "gradient_norm"):
        values = [[line[name] for line in log if name in line] for log in (logged, expected)]
        assert values[0] == pytest.approx(values[1], rel=1e-5)
    assert {path.name for path in run.iterdir()} == {path.name for path in alone.iterdir()}


def test_stopped_ranks_go_on_and_killed_ones_are_resumed_by_one(
    recipe: Recipe, recipe_file: Path, alone: Path, toy_folder: Path, tmp_path: Path
) -> None:
    data, run = toy_folder / "data", tmp_path / "run"
    verb = ["-m", "lath", "train", recipe_file, data, run, "--device", "cpu"]
    ranks = Ranks(*verb)
    wait_for_step(run, 2, ranks)
    ranks.kill(signal.SIGTERM, 1)  # one gets the signal, all stop
    outcomes = ranks.end()
    assert [code for code, _, _ in outcomes] == [143, 143], outcomes
    step = int(log_of(run)[-1]["step"])
    assert f"lath: stopped at step {step} and saved" in outcomes[0][2]
    assert "lath" not in outcomes[1][2]

    ranks = Ranks(*verb, "--resume")
    wait_for_step(run, step + 5, ranks)
    ranks.kill(signal.SIGKILL, 0, 1)
    assert [code for code, _, _ in ranks.end()] == [-signal.SIGKILL] * 2

    train(recipe, data, run, device="cpu", resume=True)
    assert_same_weights(alone, run)
    assert [line["step"] for line in log_of(run)] == [line["step"] for line in log_of(alone)]


UPDATE = """
import sys, torch
from pathlib import Path
from safetensors.torch import save_file
from lath.training.batches import make_batch
from lath.config import load_recipe
from lath.text.corpus import Corpus
from lath.training.ranks import any_rank, gather, join_world, lead, share_stream, sum_scalars
from lath.training.learner import build_learner
from lath.training.loop import update
from lath.text.vocab import load_vocabs
recipe, data, out = (Path(argument) for argument in sys.argv[1:])
with join_world("cpu") as (world, device):
    learner = build_learner(load_recipe(recipe, []), data, device, world)
    for step in (1, 2):
        update(learner, make_batch(Corpus.open(data, "train"), [step]), step)
    save_file(dict(learner.model.named_parameters()), out / f"{world.rank}.safetensors")
    assert gather(world, lambda: world.rank) == [0, 1]
    assert lead(world, lambda: 7 + world.rank) == 7
    assert sum_scalars(world, torch.tensor(1.0), torch.tensor(float(world.rank))) == (2, 1)
    assert any_rank(world, world.rank == 1) and not any_rank(world, False)
    asked = []
    doubled = share_stream(world, iter(range(11)), lambda own: asked.extend(own) or [2 * n for n in own], 5)
    assert list(doubled) == list(range(0, 22, 2))
    assert asked == [[0, 2, 4, 5, 7, 9, 10], [1, 3, 6, 8]][world.rank]
"""


def test_a_rank_without_rows_steps_like_the_others(
    recipe: Recipe, recipe_file: Path, toy_folder: Path, tmp_path: Path
) -> None:
    """An update of one sentence leaves the second rank no rows; it still makes the same step."""
    finished(Ranks("-c", UPDATE, recipe_file, toy_folder / "data", tmp_path))
    learner = build_learner(recipe, toy_folder / "data", CPU)
    for step in (1, 2):
        update(learner, make_batch(Corpus.open(toy_folder / "data", "train"), [step]), step)
    first, second = (load_file(tmp_path / f"{rank}.safetensors") for rank in (0, 1))
    for name, parameter in learner.model.named_parameters():
        assert torch.equal(first[name], second[name])
        assert torch.allclose(first[name], parameter, atol=1e-6)


# ---- text ---------------------------------------------------------------------------------------------------------

WORDS = ["ba", "ko", "mi", "gu", "du", "tu"]
LINES = [" ".join(WORDS[(number // 6**place) % 6] for place in range(3 + number % 3)) for number in range(150)]
LINES[4] = LINES[149] = ""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "news.src"
    path.write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
    return path


def test_ranks_translate_in_order(toy_run: Runs, source: Path) -> None:
    model = toy_run("LAT") / "model"
    expected = load(model, "cpu").translate(LINES)
    # Batches of one, so that it takes several rounds.
    verb = ["-m", "lath", "translate", model, source, "--device", "cpu", "--set", "decode.batch_sentences=1"]
    assert finished(Ranks(*verb)) == "".join(f"{line}\n" for line in expected)


SMALL_SHARDS = """
import sys
from pathlib import Path
from lath.distillation import distill_with
from lath.training.ranks import join_world
from lath.translator import load
model, source, out = map(Path, sys.argv[1:])
translator = load(model, "cpu")
translate, counts = translator.hypotheses, []
def counted(lines, **options):
    counts.append(len(lines))
    return translate(lines, **options)
translator.hypotheses = counted
with join_world("cpu") as (world, _):
    assert distill_with(translator, model, source, out, {}, shard_lines=40, world=world) == 150
    assert counts == [[40, 40], [40, 29]][world.rank], counts  # 149 different lines: the empty line occurs twice
"""


def test_ranks_distil_in_turn_and_the_first_joins(toy_run: Runs, source: Path, tmp_path: Path) -> None:
    model, out = toy_run("AT") / "model", tmp_path / "distilled"
    assert finished(Ranks("-c", SMALL_SHARDS, model, source, out)) == ""
    assert out.read_text(encoding="utf-8") == "".join(f"{line}\n" for line in load(model, "cpu").translate(LINES))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["distilled", "news.src"]


def test_ranks_distil_from_the_command_line(toy_run: Runs, source: Path, tmp_path: Path) -> None:
    out = tmp_path / "distilled"
    ranks = Ranks("-m", "lath", "distill", toy_run("AT") / "model", source, out, "--device", "cpu")
    assert finished(ranks) == f"{out}: 150 lines\n"
    assert len(out.read_text(encoding="utf-8").splitlines()) == 150


# ---- mistakes -----------------------------------------------------------------------------------------------------


def test_an_error_is_reported_once(recipe_file: Path, alone: Path, toy_folder: Path) -> None:
    outcomes = Ranks("-m", "lath", "train", recipe_file, toy_folder / "data", alone, "--device", "cpu").end()
    assert [code for code, _, _ in outcomes] == [2, 2]
    errors = [line for _, _, err in outcomes for line in err.splitlines() if "lath" in line]
    assert errors == [f"lath: error: {alone}: exists already; add --resume to continue it, or choose another name"]


def test_standard_input_is_refused_for_several(toy_run: Runs) -> None:
    outcomes = Ranks("-m", "lath", "translate", toy_run("LAT") / "model", "--device", "cpu").end()
    assert [code for code, _, _ in outcomes] == [2, 2]
    assert "lath: error: several ranks cannot read standard input; give a text file" in outcomes[0][2]


def test_without_torchrun_there_is_a_world_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    with join_world("cpu") as (world, device):
        assert (world, device) == (ALONE, CPU)
        assert not torch.distributed.is_initialized()
    assert gather(ALONE, lambda: 5) == [5]
    assert lead(ALONE, lambda: 5) == together(ALONE, lambda: 5) == 5
    assert list(share_stream(ALONE, iter("abcde"), lambda own: [letter * 2 for letter in own], 2)) == [
        "aa", "bb", "cc", "dd", "ee",
    ]  # fmt: skip
    layer = torch.nn.Linear(2, 1)
    assert sum_gradients(layer, ALONE, torch.tensor(3.0)) == (3.0,)
    assert layer.weight.grad is None


WHOLE = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"LOCAL_RANK": None}, "environment: RANK is set but LOCAL_RANK is not; start with torchrun, or unset RANK"),
        ({"MASTER_PORT": None}, "environment: RANK is set but MASTER_PORT is not; start with torchrun, or unset RANK"),
        ({"RANK": "first"}, "environment: RANK is 'first', not a whole number; start with torchrun"),
        ({"RANK": "2"}, "environment: RANK is 2 in a WORLD_SIZE of 2; ranks count from 0"),
    ],
)
def test_half_an_environment_is_refused(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, str | None], message: str
) -> None:
    for name, value in {**WHOLE, **changes}.items():
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    with pytest.raises(UserError) as refused, join_world("cpu"):
        pass
    assert str(refused.value) == message


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cuda:0", "device cuda:0: under torchrun every rank uses its own GPU; use --device cuda"),
        (
            "cuda",
            "local rank 3 has no GPU, this machine has 2; start one rank per GPU with torchrun --nproc-per-node",
        ),
    ],
)
def test_a_gpu_for_each_rank(monkeypatch: pytest.MonkeyPatch, name: str, message: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for variable, value in {**WHOLE, "WORLD_SIZE": "4", "RANK": "3", "LOCAL_RANK": "3"}.items():
        monkeypatch.setenv(variable, value)
    with pytest.raises(UserError, match=message), join_world(name):
        pass
