"""recipes/more_text.py makes new sentences from old ones as its docstring describes."""

from __future__ import annotations

import lzma
import random
import sys
from pathlib import Path
from types import ModuleType

import pytest
from scripts import load_script

from lath.errors import UserError

TEXTS, TATOEBA, EUROPARL = (Path("data", name) for name in ("iwslt14_deen_53k", "tatoeba_deen", "europarl_deen"))
TALKS = ["ich denke , dass es regnet .", "wir hoffen sehr , dass die sonne für uns scheint .", "so ist es ."]


@pytest.fixture
def more_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, in a folder where nothing is yet."""
    module = load_script("recipes/more_text.py")
    monkeypatch.chdir(tmp_path)
    return module


def test_sentences_exchange_what_follows_a_comma(more_text: ModuleType) -> None:
    sentences = [line.split() for line in TALKS]
    made = {" ".join(words) for seed in range(9) for words in more_text.recombined(sentences, random.Random(seed), 2)}
    starts, rests = ("ich denke", "wir hoffen sehr"), ("es regnet .", "die sonne für uns scheint .")
    assert made == {f"{start} , dass {rest}" for start in starts for rest in rests}


def test_sentences_cross_where_they_share_two_words(more_text: ModuleType) -> None:
    lines = ["Wir fuhren mit dem Zug.", "Er kam mit dem Auto.", "Sie fuhren alle im Auto.", "Kam er mit dem Bus?"]
    sentences = [line.split() for line in lines]
    made = {" ".join(words) for seed in range(20) for words in more_text.crossed(sentences, random.Random(seed), 2)}
    # "Er kam mit dem Zug." is left out, for no sentence ends so after "kam"; a question does not become a statement.
    assert made - set(lines) == {"Wir fuhren mit dem Auto."}


def test_clauses_of_some_words_become_sentences(more_text: ModuleType) -> None:
    assert list(more_text.clauses([line.split() for line in TALKS], " .")) == ["dass die sonne für uns scheint ."]
    written = ["Wir hoffen sehr, dass die Sonne für uns scheint!", "Ich denke, dass es regnet."]
    assert list(more_text.clauses([line.split() for line in written], ".")) == ["Dass die Sonne für uns scheint."]


def test_names_are_exchanged_for_others(more_text: ModuleType) -> None:
    lines = ["Herr Swoboda, danke.", "Swoboda sagte: Danke, Swoboda!", "Nein."]
    made = list(more_text.renamed([line.split() for line in lines], ["Swoboda", "Korhola"], random.Random(3), 3))
    texts = {" ".join(words) for words in made}
    assert len(made) == 6
    assert texts <= {line.replace("Swoboda", name) for line in lines[:2] for name in ("Swoboda", "Korhola")}
    assert "Herr Korhola, danke." in texts


def test_the_talks_with_nothing_twice(
    more_text: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("sacremoses")
    write(TEXTS / "train.de", *TALKS, TALKS[0])
    write(TEXTS / "valid.de", "ich denke , dass die sonne für uns scheint .")
    write(TEXTS / "test.de", "so ist es .")
    write(TATOEBA / "train.de", "„Ja!“, sagt Tom's Frau.", "Nein.")
    write(EUROPARL / "train.de.xz")
    lines = written(more_text, "talks", monkeypatch)
    assert lines[:2] == TALKS[:2]
    assert lines[-1] == "„ ja ! “ , sagt tom &apos; s frau ."
    assert len(set(lines)) == len(lines)
    assert "so ist es ." not in lines
    assert "ich denke , dass die sonne für uns scheint ." not in lines
    assert "2 as they are" in capsys.readouterr().out


def test_everyday_sentences_and_unseen_speeches(more_text: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    write(TATOEBA / "train.de", "Ich denke, dass es bald regnet.", "Er hofft sehr, dass die Sonne scheint.")
    write(TATOEBA / "extra.de", "Ja.")
    write(TATOEBA / "valid.de", "Ich denke, dass die Sonne scheint.")
    write(TATOEBA / "test.de", "Ja.")
    speech = "Der Haushalt, Herr Swoboda, ist ausgeglichen, weil wir in diesem Jahr gespart haben."
    write(EUROPARL / "train.de.xz", "Erstens.", "Korhola: Danke.", speech, "Ja, danke.", "Nein.", "Danke.")
    write(EUROPARL / "valid.de", "Danke.")
    write(EUROPARL / "test.de", "Bitte.")
    write(EUROPARL / "train.en.xz", "Firstly.", "Korhola: Danke.", "In balance, Mr Swoboda.", "Yes.")
    write(TATOEBA / "train.en", "I think it will rain.", "He hopes.")
    write(TATOEBA / "extra.en", "Yes.")
    lines = written(more_text, "everyday", monkeypatch)
    assert lines[2:5] == [
        "Er hofft sehr, dass es bald regnet.", "Weil wir in diesem Jahr gespart haben.", speech,
    ]  # fmt: skip
    # "Danke" is no name, for it is also written without a capital.
    assert lines[5:] == [speech.replace("Swoboda", "Korhola")]
    copied = written(more_text, "bundled", monkeypatch)
    assert sorted(copied) == sorted([*lines, *lines[:2], *lines[:2], lines[2]])  # everyday sentences, then a new one


def test_speeches_of_the_teacher_and_others(more_text: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    for language in ("de", "en"):
        write(TATOEBA / f"train.{language}", "Ja.")
        write(TATOEBA / f"extra.{language}", "Nein.")
        # Of fourteen the fourteenth and the first four are the teacher's.
        speeches = [f"danke, {name}" for name in ("Alvaro", "Bonino", "Corbett", "Dell", "Elles", "Fatuzzo")]
        write(EUROPARL / f"train.{language}.xz", *speeches, *map(str, range(7, 15)))
    for folder in (TATOEBA, EUROPARL):
        write(folder / "valid.de", "8")
        write(folder / "test.de", "9")
    lines = written(more_text, "speeches", monkeypatch)
    assert lines[:7] == ["danke, Alvaro", "danke, Bonino", "danke, Corbett", "danke, Dell", "14", "Ja.", "Nein."]
    assert set(lines[7:14]) == {"danke, Elles", "danke, Fatuzzo", "7", "10", "11", "12", "13"}  # 8 and 9 are held out
    renamed = lines[14:]
    assert renamed
    assert all(line.startswith("danke, ") for line in renamed)


def test_a_missing_file_is_reported(
    more_text: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["more_text.py", "short", "de", "more.de"])
    assert more_text.main() == 2
    missing = Path("data", "tatoeba_deen", "valid.de")
    assert capsys.readouterr().err.startswith(f"more_text: error: {missing}: no such file; ")
    assert not Path("more.de").exists()
    monkeypatch.setitem(sys.modules, "sacremoses", None)
    with pytest.raises(UserError, match=r"pip install 'lath\[paper\]'"):
        more_text.like_talks(["Ja."], "de", 1, fewest=1)


def write(path: Path, *lines: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = "".join(line + "\n" for line in lines).encode()
    path.write_bytes(lzma.compress(content) if path.suffix == ".xz" else content)


def written(module: ModuleType, name: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the script writes."""
    monkeypatch.setattr(sys, "argv", ["more_text.py", name, "de", "more.de"])
    assert module.main() == 0
    return Path("more.de").read_text(encoding="utf-8").splitlines()
