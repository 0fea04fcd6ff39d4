"""A student and its verifier in one directory: what `lath pair` writes, and what is refused on one line."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Runs

from lath.cli import main
from lath.distillation import fingerprint
from lath.errors import UserError
from lath.model.compress import compress
from lath.model.directory import CONFIG, WEIGHTS, read_info
from lath.model.pair import VERIFIER, find_verifier, make_pair
from lath.translator import load

LINES = ["ba ko mi", "", "tu re sa lo"]


@pytest.fixture
def copy(toy_pair: Path, tmp_path: Path) -> Path:
    """A pair that a test may damage."""
    return Path(shutil.copytree(toy_pair, tmp_path / "pair"))


def test_a_pair_is_a_model_with_its_verifier(toy_pair: Path, pair_parts: tuple[Path, Path]) -> None:
    student, teacher = pair_parts
    pair, named = load(toy_pair, "cpu"), load(student, "cpu", verifier=teacher)
    assert pair.settings().verify == "relaxed"
    for verify in ("rerank", "relaxed", "exact"):
        assert pair.translate(LINES, verify=verify) == named.translate(LINES, verify=verify)
    assert len({tuple(pair.translate(LINES, verify=verify)) for verify in ("", "exact")}) == 2
    assert pair.alone().translate(LINES) == load(student, "cpu").translate(LINES)
    assert load(toy_pair / VERIFIER, "cpu").translate(LINES) == load(teacher, "cpu").translate(LINES)
    with pytest.raises(UserError, match="decode.verify exact: no verifier"):
        pair.alone().translate(LINES, verify="exact")
    with pytest.raises(UserError, match="verify needs the whole vocabulary"):
        pair.translate(LINES, shortlist=True)


def test_the_verb(pair_parts: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    student, teacher, out = *map(str, pair_parts), str(tmp_path / "pair")
    command = ["pair", student, teacher, out, "--set", "decode.verify=exact", "--set", "decode.verify_top=7"]
    assert (main(command), capsys.readouterr().out) == (0, f"{out}\n")
    decode = read_info(tmp_path / "pair").decode
    assert (decode.verify, decode.verify_top) == ("exact", 7)
    assert (main(["show", out]), capsys.readouterr().out.count(f"verifier: lath show {out}/verifier")) == (0, 1)
    text = tmp_path / "text"
    text.write_text("ba ko\n")
    assert main(["translate", out, str(text)]) == 0
    assert main(["translate", student, str(text), "--verifier", teacher, "--verify", "exact"]) == 0
    one, other = capsys.readouterr().out.splitlines()
    assert one == other != ""
    for wrong, message in (
        ([student, student, out], "LAT, but they are checked by AT"),
        ([student, teacher, out], "exists already"),
        ([student, teacher, f"{out}2", "--set", "decode.shortlist=true"], "verify needs the whole vocabulary"),
    ):
        assert (main(["pair", *wrong]), message in capsys.readouterr().err) == (2, True)
    assert not (tmp_path / "pair2").exists()


def test_a_compressed_pair_has_a_compressed_verifier(toy_pair: Path, tmp_path: Path) -> None:
    compress(toy_pair, tmp_path / "small", "int8")
    assert (tmp_path / "small" / VERIFIER / WEIGHTS).stat().st_size < (toy_pair / VERIFIER / WEIGHTS).stat().st_size / 2
    assert load(tmp_path / "small", "cpu").settings().verify == "relaxed"


def test_the_fingerprint_covers_the_verifier(copy: Path, pair_parts: tuple[Path, Path]) -> None:
    before = fingerprint(copy)
    assert before != fingerprint(pair_parts[0])
    with (copy / VERIFIER / WEIGHTS).open("ab") as stream:
        stream.write(b"x")
    assert fingerprint(copy) != before


def foreign(copy: Path, toy_run: Runs) -> None:
    """The folder of a stranger."""
    shutil.rmtree(copy / VERIFIER)
    shutil.copytree(toy_run("CMLM") / "model", copy / VERIFIER)


def rewritten(copy: Path, toy_run: Runs) -> None:
    """As it could be after somebody has copied one file."""
    tree = json.loads((copy / VERIFIER / CONFIG).read_text(encoding="utf-8"))
    tree["decode"]["beam"] = 3
    (copy / VERIFIER / CONFIG).write_text(json.dumps(tree), encoding="utf-8")


def without_digests(copy: Path, toy_run: Runs) -> None:
    """A stranger's pair of two students."""
    tree = json.loads((copy / CONFIG).read_text(encoding="utf-8"))
    del tree["sha256"]
    (copy / CONFIG).write_text(json.dumps(tree), encoding="utf-8")
    shutil.rmtree(copy / VERIFIER)
    shutil.copytree(toy_run("LAT") / "model", copy / VERIFIER)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda copy, _: shutil.rmtree(copy / VERIFIER), "verifier: missing, but config.json of .* lists it; copy"),
        (lambda copy, _: (copy / VERIFIER / CONFIG).unlink(), "verifier: no model directory, it has no config.json"),
        (lambda copy, _: (copy / VERIFIER / WEIGHTS).write_bytes(b""), f"{VERIFIER}/{WEIGHTS}: damaged"),
        (foreign, "verifier/config.json: does not have the SHA-256"),
        (rewritten, "verifier/config.json: does not have the SHA-256"),
        (without_digests, "LAT, but they are checked by AT"),
    ],
)
def test_a_malformed_pair_is_refused(
    copy: Path, toy_run: Runs, damage: Callable[[Path, Runs], object], message: str
) -> None:
    damage(copy, toy_run)
    with pytest.raises(UserError, match=message) as refused:
        load(copy, "cpu")
    assert "\n" not in str(refused.value)


def test_a_folder_that_nobody_lists_is_refused(model_copy: Path, toy_run: Runs) -> None:
    assert find_verifier(model_copy) is None
    shutil.copytree(toy_run("AT") / "model", model_copy / VERIFIER)
    with pytest.raises(UserError, match="does not have the SHA-256"):
        load(model_copy, "cpu")


def test_a_damaged_model_does_not_become_a_pair(model_copy: Path, toy_run: Runs, tmp_path: Path) -> None:
    raw = bytearray((model_copy / WEIGHTS).read_bytes())
    raw[-1] ^= 1
    (model_copy / WEIGHTS).write_bytes(raw)
    with pytest.raises(UserError, match="does not have the SHA-256"):
        make_pair(model_copy, toy_run("AT") / "model", tmp_path / "out", {})
    assert not (tmp_path / "out").exists()
