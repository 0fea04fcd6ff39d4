"""recipes/more_german.py: new sentences are made of old ones as its page says."""

from __future__ import annotations

import importlib.util
import random
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent
TALKS = ["ich denke , dass es regnet .", "wir hoffen sehr , dass die sonne für uns scheint .", "so ist es ."]


@pytest.fixture
def more_german() -> ModuleType:
    spec = importlib.util.spec_from_file_location("more_german", ROOT / "recipes" / "more_german.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_sentences_exchange_what_follows_a_comma(more_german: ModuleType) -> None:
    sentences = [line.split() for line in TALKS]
    made = {" ".join(words) for seed in range(9) for words in more_german.recombined(sentences, random.Random(seed))}
    starts, rests = ("ich denke", "wir hoffen sehr"), ("es regnet .", "die sonne für uns scheint .")
    assert made == {f"{start} , dass {rest}" for start in starts for rest in rests}


def test_clauses_of_some_words_become_sentences(more_german: ModuleType) -> None:
    found = [" ".join(words) for words in more_german.clauses([line.split() for line in TALKS])]
    assert found == ["dass die sonne für uns scheint ."]


def test_the_page_with_nothing_twice(
    more_german: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("sacremoses")
    (tmp_path / "train.de").write_text("\n".join([*TALKS, TALKS[0]]) + "\n", encoding="utf-8")
    (tmp_path / "valid.de").write_text("ich denke , dass die sonne für uns scheint .\n", encoding="utf-8")
    (tmp_path / "test.de").write_text("so ist es .\n", encoding="utf-8")
    (tmp_path / "other.de").write_text("„Ja!“, sagt Tom's Frau.\nNein.\n", encoding="utf-8")
    monkeypatch.setattr(more_german, "TALKS", tmp_path)
    monkeypatch.setattr(more_german, "OTHERS", {tmp_path / "other.de": (5, 3, 40)})
    monkeypatch.setattr(sys, "argv", ["more_german.py", str(tmp_path / "more.de")])
    more_german.main()
    lines = (tmp_path / "more.de").read_text(encoding="utf-8").splitlines()
    assert lines[:2] == TALKS[:2]
    assert lines[-1] == "„ ja ! “ , sagt tom &apos; s frau ."
    assert len(set(lines)) == len(lines)
    assert "so ist es ." not in lines
    assert "ich denke , dass die sonne für uns scheint ." not in lines
    assert "2 as they are" in capsys.readouterr().out
