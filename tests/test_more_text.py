"""recipes/more_text.py: new sentences are made of old ones as its page says."""

from __future__ import annotations

import lzma
import random
import sys
from pathlib import Path
from types import ModuleType

import pytest
from scripts import load_script

from lath.errors import UserError

TALKS = ["ich denke , dass es regnet .", "wir hoffen sehr , dass die sonne für uns scheint .", "so ist es ."]


@pytest.fixture
def more_text() -> ModuleType:
    return load_script("recipes/more_text.py")


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
    more_text: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("sacremoses")
    write(tmp_path / "train.de", *TALKS, TALKS[0])
    write(tmp_path / "valid.de", "ich denke , dass die sonne für uns scheint .")
    write(tmp_path / "test.de", "so ist es .")
    write(tmp_path / "other" / "train.de", "„Ja!“, sagt Tom's Frau.", "Nein.")
    write(tmp_path / "speeches" / "train.de.xz")
    lines = written(more_text, "talks", tmp_path, monkeypatch)
    assert lines[:2] == TALKS[:2]
    assert lines[-1] == "„ ja ! “ , sagt tom &apos; s frau ."
    assert len(set(lines)) == len(lines)
    assert "so ist es ." not in lines
    assert "ich denke , dass die sonne für uns scheint ." not in lines
    assert "2 as they are" in capsys.readouterr().out


def test_everyday_sentences_and_speeches_that_nobody_has_read(
    more_text: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "other" / "train.de", "Ich denke, dass es bald regnet.", "Er hofft sehr, dass die Sonne scheint.")
    write(tmp_path / "other" / "extra.de", "Ja.")
    write(tmp_path / "other" / "valid.de", "Ich denke, dass die Sonne scheint.")
    write(tmp_path / "other" / "test.de", "Ja.")
    speech = "Der Haushalt, Herr Swoboda, ist ausgeglichen, weil wir in diesem Jahr gespart haben."
    write(tmp_path / "speeches" / "train.de.xz", "Erstens.", "Korhola: Danke.", speech, "Ja, danke.", "Nein.", "Danke.")
    write(tmp_path / "speeches" / "valid.de", "Danke.")
    write(tmp_path / "speeches" / "test.de", "Bitte.")
    write(tmp_path / "speeches" / "train.en.xz", "Firstly.", "Korhola: Danke.", "In balance, Mr Swoboda.", "Yes.")
    write(tmp_path / "other" / "train.en", "I think it will rain.", "He hopes.")
    write(tmp_path / "other" / "extra.en", "Yes.")
    lines = written(more_text, "everyday", tmp_path, monkeypatch)
    assert lines[2:5] == [
        "Er hofft sehr, dass es bald regnet.", "Weil wir in diesem Jahr gespart haben.", speech,
    ]  # fmt: skip
    # "Danke" is no name, for it is also written without a capital.
    assert lines[5:] == [speech.replace("Swoboda", "Korhola")]


def test_speeches_that_a_teacher_has_read_and_others(
    more_text: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for language in ("de", "en"):
        write(tmp_path / "other" / f"train.{language}", "Ja.")
        write(tmp_path / "other" / f"extra.{language}", "Nein.")
        # Of fourteen the fourteenth and the first four are the teacher's.
        speeches = [f"danke, {name}" for name in ("Alvaro", "Bonino", "Corbett", "Dell", "Elles", "Fatuzzo")]
        write(tmp_path / "speeches" / f"train.{language}.xz", *speeches, *map(str, range(7, 15)))
    for place in ("other", "speeches"):
        write(tmp_path / place / "valid.de", "8")
        write(tmp_path / place / "test.de", "9")
    lines = written(more_text, "speeches", tmp_path, monkeypatch)
    assert lines[:7] == ["danke, Alvaro", "danke, Bonino", "danke, Corbett", "danke, Dell", "14", "Ja.", "Nein."]
    assert set(lines[7:14]) == {"danke, Elles", "danke, Fatuzzo", "7", "10", "11", "12", "13"}  # 8 and 9 are held out
    renamed = lines[14:]
    assert renamed
    assert all(line.startswith("danke, ") for line in renamed)


def test_what_is_missing_is_told(
    more_text: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["more_text.py", "short", "de", "more.de"])
    assert more_text.main() == 2
    missing = Path("data", "tatoeba_deen", "valid.de")
    assert capsys.readouterr().err.startswith(f"more_text: error: {missing}: no such file; ")
    assert not Path("more.de").exists()
    monkeypatch.setitem(sys.modules, "sacremoses", None)
    with pytest.raises(UserError, match=r"pip install 'lath\[paper\]'"):
        more_text.like_talks(["Ja."], "de", 1, fewest=1)


def write(path: Path, *lines: str) -> None:
    path.parent.mkdir(exist_ok=True)
    content = "".join(line + "\n" for line in lines).encode()
    path.write_bytes(lzma.compress(content) if path.suffix == ".xz" else content)


def written(module: ModuleType, name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the script writes where the texts are in a folder."""
    places = {"TALKS": folder, "TATOEBA": folder / "other", "EUROPARL": folder / "speeches"}
    for constant, place in places.items():
        monkeypatch.setattr(module, constant, place)
    both = [folder / "other", folder / "speeches"]
    held_out = {"talks": [folder], "short": [folder / "other"], "everyday": both, "speeches": both}
    monkeypatch.setattr(module, "HELD_OUT", held_out)
    monkeypatch.setattr(sys, "argv", ["more_text.py", name, "de", str(folder / "more.de")])
    assert module.main() == 0
    return (folder / "more.de").read_text(encoding="utf-8").splitlines()
