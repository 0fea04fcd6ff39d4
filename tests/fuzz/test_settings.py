"""Hostile settings, recipes and arguments: each is taken or refused on one line. Seeded, bounded."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import os
import random
import sys
import tomllib
from pathlib import Path

import pytest
from conftest import Runs
from toy import toy_recipe

from lath.cli import main
from lath.config import Recipe, load_recipe, recipe_from_tree, to_toml, to_tree
from lath.errors import UserError
from lath.preparation import prepare
from lath.trainer import train

Capture = pytest.CaptureFixture[bytes]

SETTINGS = [f"{section}.{name}" for section, values in to_tree(Recipe()).items() for name in values]
VALUES = [
    "-1", "0", "1", "-0", "1e300", "-1e300", "1e-320", "1e999", "inf", "-inf", "nan", "+nan", str(10**20),
    str(-(10**30)),
    str(2**63), str(-(2**63)), str(2**63 - 1), str(2**62), str(2**62 - 1),
    "9" * 400, "9" * 5000, "-" + "9" * 5000, "0x" + "f" * 5000, "0b" + "1" * 9,
    "1e" + "9" * 5000, "[" * 2000, "[" * 400 + "]" * 400, "{a=" * 2000, "{" + "a." * 900 + "a=1}",
    "{" + "a." * 5000 + "a=1}",
    "[0x" + "f" * 5000 + "]", "[]", "{}", "[1]", "{a = 1}", "true", "false",
    '""', '"\\u0000"', '"\\ud800"', "\udcff", "",
    " ", "\0", "\n", "1\n[decode]\nbeam = 2", "1 # one", "1.5.5", "07:32:00", "1979-05-27", "1979-05-27T07:32:00Z",
    "'''", '"""', "a" * 100_000, '"' + "é" * 50_000 + '"', "\x1b[31m", "\u2028", "LAT", "AT ", "loss", "=", "==",
    ".", "1_000",
]  # fmt: skip
KEYS = ["", ".", "..", "a", "train", "train.", ".steps", "train.steps.x", "a" * 50_000 + ".b", "train." + "b" * 50_000,
        "train." + "a." * 5000 + "a", "x\ny.z", "\0.\0", "\udcff.a", "[train].steps", "train.stpes", " train.steps ",
        "TRAIN.STEPS", "train.__class__", "decode.merge_rules"]  # fmt: skip


def is_one_line(message: str) -> bool:
    return 0 < len(message) < 2000 and len(message.splitlines()) == 1


def taken(path: Path, overrides: list[str]) -> bool:
    """Whether the settings are taken; what is taken is finite and survives JSON and TOML."""
    try:
        recipe = load_recipe(path, overrides)
    except UserError:
        return False
    tree = to_tree(recipe)
    assert json.loads(json.dumps(tree, allow_nan=False)) == tree
    numbers = [n for section in tree.values() for n in section.values() if isinstance(n, int | float)]
    assert all(math.isfinite(number) and abs(number) <= 2**62 for number in numbers)
    assert recipe_from_tree(tomllib.loads(to_toml(recipe).encode().decode()), "written") == recipe
    return True


def test_every_setting_with_every_value(tmp_path: Path) -> None:
    path = tmp_path / "empty.toml"
    path.touch()
    found = [taken(path, [f"{name}={value}"]) for name in SETTINGS for value in VALUES]
    assert len(found) > 3000
    assert 0.05 < sum(found) / len(found) < 0.5  # both branches are met


def refused_or_done(capture: Capture, *arguments: str) -> int:
    """The exit code of a command that must end with 0, or with 2 and one line."""
    assert isinstance(sys.stderr, io.TextIOWrapper)
    sys.stderr.reconfigure(errors="backslashreplace")  # as outside of pytest
    code = main(arguments)
    out, raw = capture.readouterr()
    err = raw.decode()
    assert code in (0, 2), arguments
    if code == 2:
        assert out == b"", arguments
        assert err.startswith("lath: error: "), arguments
        assert err.endswith("\n"), arguments
        assert is_one_line(err[:-1]), (arguments, err[:300])
    return code


def test_the_command_line_refuses_on_one_line(tmp_path: Path, capsysbinary: Capture) -> None:
    path = tmp_path / "empty.toml"
    path.touch()
    draw = random.Random(23)
    overrides = [f"{key}={value}" for key in KEYS for value in draw.sample(VALUES, 6)]
    overrides += [f"{draw.choice(SETTINGS)}={value}" for value in VALUES for _ in range(2)]
    overrides += ["", "=", "a", "\n", "\udcff"]
    codes = [refused_or_done(capsysbinary, "show", str(path), "--set", override) for override in overrides]
    codes += [refused_or_done(capsysbinary, "translate", "--set", f"x{override}") for override in overrides]
    assert len(codes) > 400
    assert set(codes) == {0, 2}


def mutated(text: bytes, draw: random.Random) -> bytes:
    """A recipe with some bytes lost, doubled, changed, or with something hostile between them."""
    for _ in range(draw.randint(1, 4)):
        start = draw.randrange(len(text) + 1)
        end = min(len(text), start + draw.choice([0, 1, 1, 5, 40]))
        text = text[:start] + draw.choice([
            b"", text[start:end] * 2, draw.randbytes(draw.randint(1, 4)), draw.choice(VALUES).encode("utf-8",
            "replace"),
            b"\r", b"\r\n", b"\xef\xbb\xbf", b'"', b"[", b"]]", b"=", b".", b"\n[train]\n", b"\n[[train]]\n",
            b"\ntrain = 3\n",
        ]) + text[end:]  # fmt: skip
    return text


def test_broken_recipes(tmp_path: Path, capsysbinary: Capture) -> None:
    path = tmp_path / "broken.toml"
    whole = (Path(__file__).parents[2] / "recipes/demo.toml").read_bytes()
    draw = random.Random(24)
    codes = []
    for number in range(300):
        path.write_bytes(draw.randbytes(number) if number % 10 == 0 else mutated(whole, draw))
        codes.append(refused_or_done(capsysbinary, "show", str(path)))
    assert 20 < codes.count(0) < 280


def test_the_largest_settings_train(tmp_path: Path) -> None:
    """What is allowed works: two steps at the upper bounds, and the log is JSON."""
    recipe = toy_recipe(tmp_path, "LAT", steps=2, step_tokens=10**9, micro_batch_tokens=10**7, seed=2**62,
                        learning_rate=100, adam_epsilon=1, weight_decay=1, clip_norm=1e9, warmup_steps=10**18,
                        validate_every=10**18, log_every=1, keep_best=10**18, patience=10**18)  # fmt: skip
    objective = dataclasses.replace(recipe.objective, length_weight=1000)
    few = {"train_source": recipe.data.valid_source, "train_target": recipe.data.valid_target}
    recipe = dataclasses.replace(recipe, objective=objective, data=dataclasses.replace(recipe.data, **few))
    prepare(recipe, tmp_path / "data")
    train(recipe, tmp_path / "data", tmp_path / "run", device="cpu")
    entries = (tmp_path / "run/log.jsonl").read_text().splitlines()
    assert [json.loads(entry)["step"] for entry in entries] == [1, 2, 2]


@pytest.fixture
def odd_place(toy_run: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder full of odd files, with the link `model`; standard input is empty."""
    (tmp_path / "model").symlink_to(toy_run("LAT") / "model")
    files = {
        "text": b"ba ko\n", "empty": b"", "latin": b"\xe4\n", "nul": b"a\0b\n",
        "noise": random.Random(3).randbytes(3000),
        "noise.gz": random.Random(4).randbytes(300), "noise.xz": random.Random(5).randbytes(300),
        "long": b"a" * (1 << 21),
        "new\nline": b"ba\n", "u\u2028x\x85y": b"ba\n", "sur\udcff": b"ba\n",
    }  # fmt: skip
    for name, raw in files.items():
        (tmp_path / name).write_bytes(raw)
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(open(os.devnull, "rb")))  # noqa: SIM115
    return tmp_path


ODD = ["", "-", "--", "/", "..", "nope", "nope/nope", "text/x", "x" * 300, "a/" * 3000, "/dev/null", "/dev/zero",
"/dev/full",
       "loop", "folder", "latin", "nul", "noise", "noise.gz", "noise.xz", "long", "empty", "new\nline", "u\u2028x\x85y",
       "sur\udcff", "new\r\nnot there", "\x1b[31m", "~", "*", "0", "-1", "nan", "9" * 5000]  # fmt: skip
COMMANDS = [
    "translate ? text", "translate model ?", "translate model text --device ?", "translate model text --precision ?",
    "translate model text --engine ?", "translate model text --set ?", "translate model text --set decode.rules=?",
    "distill ? text out", "distill model ? out", "distill model text ?", "evaluate ? text", "evaluate text ?",
    "average ? out", "average model ?", "average model out --best ?", "shortlist ? model", "shortlist folder ?",
    "compress ? out", "compress model out --storage ?", "export ? out", "export model out --to ?", "show ?",
    "show model ?",
    "show model --plot ?", "prepare ? out", "prepare text ?", "train text folder ?", "train text ? out", "bench ? text",
    "bench model text --threads ?", "bench model text --batches ?", "bench model text --plot ?", "?", "? ?",
]  # fmt: skip


def test_odd_arguments_for_every_verb(odd_place: Path, capsysbinary: Capture) -> None:
    # A translation to /dev/full is tested in test_cli.py; here it is an input, and ends at once.
    calls = [[odd if word == "?" else word for word in command.split(" ")] for command in COMMANDS for odd in ODD]
    codes = [refused_or_done(capsysbinary, *call) for call in random.Random(25).sample(calls, 300)]
    assert codes.count(2) > 200
