"""What `lath serve` refuses before it starts."""

from __future__ import annotations

import shutil
import socket
import sys
from pathlib import Path

import pytest
from conftest import Runs

pytest.importorskip("fastapi", reason="the extra serve is not installed")
from lath.cli import main


def refusal(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one line on stderr."""
    assert main(["serve", *map(str, arguments)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_an_address_that_is_not_free(toy_run: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    model = toy_run("LAT") / "model"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"port {port}: Address already in use; choose another" in refusal(capsys, model, "--port", port)
    assert "cannot listen" in refusal(capsys, model, "--port", 99999)
    assert "cannot listen" in refusal(capsys, model, "--host", "no.such.host.invalid")


def test_two_models_of_one_pair(toy_run: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = toy_run("LAT") / "model"
    other = shutil.copytree(model, tmp_path / "other")
    assert "another model translates xx to yy" in refusal(capsys, model, other, "--port", 0)


def test_a_verifier_is_for_one_model(toy_run: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    student, verifier = toy_run("LAT") / "model", toy_run("AT") / "model"
    line = refusal(capsys, student, shutil.copytree(student, tmp_path / "other"), "--verifier", verifier, "--port", 0)
    assert "--verifier is for one model; make a directory of each pair with lath pair" in line
    assert "LAT, but they are checked by AT" in refusal(capsys, student, "--verifier", student, "--port", 0)


def test_keys_that_are_not_there(toy_run: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [toy_run("LAT") / "model", "--port", 0, "--api-key-file"]
    assert "nothing" in refusal(capsys, *arguments, tmp_path / "nothing")
    (tmp_path / "empty").touch()
    assert "no key in it" in refusal(capsys, *arguments, tmp_path / "empty")


def test_a_missing_extra_is_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lath.serve.server", None)
    assert "pip install 'lath[serve]'" in refusal(capsys)
