"""The numbers of docs/results.md are those of stored files, and stored scores can be checked against translations."""

from __future__ import annotations

import json
import lzma
import re
import runpy
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from lath.analysis.scores import evaluate, measure

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
RIGHT = ["the old dog barks", "a cat sees the dog", "it is late now", "so the dog goes home"] * 3
TEXTS = {"lat.it1": [line.replace("the", "a") for line in RIGHT], "cmlm.it1": [line[4:] for line in RIGHT]}

PAIR = "lat.it1 against cmlm.it1"


@pytest.fixture(scope="module")
def check() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "docs" / "check_results.py"))


def test_every_measured_number_of_the_page_is_that_of_a_stored_file(check: dict[str, Any]) -> None:
    assert check["mistakes"](PAGE) == []


@pytest.mark.parametrize("number", ["79.5 %", "1.32 BLEU", "20.62 and", "2.178", "| 13.65 |", "1.82 ms", "± 0.14"])
def test_a_number_that_changes_is_noticed(number: str, check: dict[str, Any]) -> None:
    outside = check["GENERATED"].sub("", PAGE)
    assert outside.count(number) == 1
    found = re.search(r"\d+\.\d+", number)
    assert found is not None
    wrong = check["mistakes"](outside.replace(number, number.replace(found[0], "98.76")))
    assert any(line.startswith("stored files say: ") and found[0] in line for line in wrong)
    assert "nothing explains: 98.76" in wrong


def store(run: Path, claims: dict[str, Any], metric: str = "BLEU") -> dict[str, Any]:
    """A run with translations and no scores; what its scores.json holds."""
    for name, lines in TEXTS.items():
        path = run / "translations" / "t" / f"{name}.txt.xz"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(lzma.compress("".join(line + "\n" for line in lines).encode()))
    (run / "right").write_text("".join(line + "\n" for line in RIGHT), encoding="utf-8")
    lost = {"bleu": {"metric": metric, "value": 1.0}}
    return {"t": {"reference": str(run / "right"), "scores": {"lost.it4": lost}, "claims": claims}}


def save(run: Path, document: dict[str, Any]) -> None:
    (run / "scores.json").write_text(json.dumps(document), encoding="utf-8")


@pytest.mark.parametrize("tokenised", [False, True])
def test_stored_scores_are_made_from_translations_and_compared_with_them(
    tokenised: bool, check: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(tmp_path, store(tmp_path, {PAIR: {}}, "tokenised BLEU" if tokenised else "BLEU"))
    assert check["main"]([str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert "t: lat.it1: no scores are stored of it" in out
    assert f"t: {PAIR}: no interval is stored" in out
    assert check["main"](["--write", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "2 systems from translations, 1 from stored scores alone" in out
    assert out.endswith("no difference\n")

    stored = json.loads((tmp_path / "scores.json").read_text(encoding="utf-8"))
    found = dict(zip(TEXTS, measure(list(TEXTS.values()), RIGHT, tokenised, samples=1000), strict=True))
    low, high = found["lat.it1"].gain_over(found["cmlm.it1"])
    bleu = stored["t"]["claims"][PAIR]["bleu"]
    assert (bleu["low"], bleu["high"]) == (low, high)
    assert stored["t"]["scores"]["lat.it1"] == asdict(evaluate(TEXTS["lat.it1"], RIGHT, tokenised))
    bleu["high"] = high + 0.001
    stored["t"]["scores"]["cmlm.it1"]["length_ratio"] += 0.001
    save(tmp_path, stored)
    assert check["main"]([str(tmp_path)]) == 1
    lines = capsys.readouterr().out.splitlines()[1:]
    assert [line.split("t: ")[1].split(": stored")[0] for line in lines] == ["cmlm.it1 length", f"{PAIR} high"]


def test_translations_without_their_reference_are_reported(
    check: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(tmp_path, store(tmp_path, {}))
    (tmp_path / "right").unlink()
    assert check["main"]([str(tmp_path)]) == 0
    assert f"1 from stored scores alone ({tmp_path / 'right'} is not here)" in capsys.readouterr().out


STORED = sorted({path.parent for path in ROOT.glob("docs/runs/*/*/*/*.xz")})


@pytest.mark.parametrize("folder", STORED, ids=lambda path: "-".join(path.parts[-3:]))
def test_stored_translations_and_counts_give_the_stored_scores(folder: Path, check: dict[str, Any]) -> None:
    run, test = folder.parents[1], folder.name
    stored = check["load_scores"](run)[test]
    if folder.parent.name == "translations" and not (ROOT / stored["reference"]).is_file():
        pytest.skip(f"{stored['reference']} is not part of the repository")
    assert check["differences"](stored, check["measured"](run, test, stored)) == []


def test_the_first_page_and_the_model_card_name_stored_scores(check: dict[str, Any]) -> None:
    bleu = {test: check["bleu"]("bundled", "lat.it4", test) for test in ("tatoeba", "wmt_newstest")}
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    card = " ".join((ROOT / "models" / "de-en" / "README.md").read_text(encoding="utf-8").split())
    assert f"({bleu['tatoeba']:.2f} BLEU on Tatoeba;" in readme
    assert f"news ({bleu['wmt_newstest']:.2f} BLEU)" in readme
    assert f"({bleu['tatoeba']:.2f} BLEU on Tatoeba)" in card
    pair = [(f"{check['bleu']('iwslt14-shapes', system, 'iwslt14_deen_53k-test'):.2f}", check["milliseconds"](row))
            for system, row in (("pair-12-1.relaxed", "pair-12-1/relaxed"), ("at-12-1.beam5", "at-12-1/beam:5"),
                                ("teacher.beam5", "teacher/beam:5"))]  # fmt: skip
    assert "H200: {} in {} ms a sentence".format(*pair[0]) in readme
    assert "beam 5 has {} in {} ms".format(*pair[1]) in readme
    assert "AT 6-6 {} in {} ms".format(*pair[2]) in readme
