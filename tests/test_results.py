"""The numbers of docs/results.md are those of stored files, and stored scores can be checked against translations."""

from __future__ import annotations

import json
import re
import runpy
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from lath.analysis.scores import measure

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
RIGHT = ["the old dog barks", "a cat sees the dog", "it is late now", "so the dog goes home"] * 3
TEXTS = {"lat.it1": [line.replace("the", "a") for line in RIGHT], "cmlm.it1": [line[4:] for line in RIGHT]}


@pytest.fixture(scope="module")
def check() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "docs" / "check_results.py"))


def test_every_measured_number_of_the_page_is_that_of_a_stored_file(check: dict[str, Any]) -> None:
    assert check["mistakes"](PAGE) == []


@pytest.mark.parametrize("number", ["79.5 %", "1.32 BLEU", "20.62 and", "2.178", "| 13.65 |", "(1.070)", "± 0.14"])
def test_a_number_that_changes_is_noticed(number: str, check: dict[str, Any]) -> None:
    outside = check["GENERATED"].sub("", PAGE)
    assert outside.count(number) == 1
    found = re.search(r"\d+\.\d+", number)
    assert found is not None
    wrong = check["mistakes"](outside.replace(number, number.replace(found[0], "98.76")))
    assert any(line.startswith("stored files say: ") and found[0] in line for line in wrong)
    assert "nothing explains: 98.76" in wrong


@pytest.mark.parametrize("tokenised", [False, True])
def test_stored_scores_are_compared_with_translations(
    tokenised: bool,
    check: dict[str, Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = dict(zip(TEXTS, measure(list(TEXTS.values()), RIGHT, tokenised, samples=1000), strict=True))
    low, high = found["lat.it1"].gain_over(found["cmlm.it1"])
    stored = {
        "scores": {name: asdict(measured.scores) for name, measured in found.items()},
        "claims": {"lat.it1 against cmlm.it1": {"bleu": {"low": low, "high": high}}},
    }
    folder = tmp_path / "texts"
    folder.mkdir()
    for name, lines in TEXTS.items():
        (folder / name).write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    (tmp_path / "right").write_text("".join(line + "\n" for line in RIGHT), encoding="utf-8")
    (tmp_path / "runs" / "r").mkdir(parents=True)
    monkeypatch.setitem(check["main"].__globals__, "RUNS", tmp_path / "runs")
    arguments = ["r", "t", str(tmp_path / "right"), str(folder)]
    for change in (0.0, 0.001):
        stored["claims"]["lat.it1 against cmlm.it1"]["bleu"]["high"] = high + change
        (tmp_path / "runs" / "r" / "scores.json").write_text(json.dumps({"t": stored}), encoding="utf-8")
        assert check["main"](arguments) == bool(change)
        printed = capsys.readouterr().out
        assert "2 systems scored again: cmlm.it1, lat.it1" in printed
        assert ("no difference" in printed) == (not change)
        assert ("lat.it1 against cmlm.it1 high" in printed) == bool(change)
