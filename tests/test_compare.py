"""recipes/compare.py runs the missing steps in order and leaves finished ones alone."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from scripts import ROOT, load_script

from lath.config import load_recipe


@pytest.fixture
def compare() -> ModuleType:
    return load_script("recipes/compare.py")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """A recipe with its text, and a test."""
    for name, sample_name, lines in (("train", "tatoeba", 60), ("test", "tatoeba.test", 3)):
        for language in ("de", "en"):
            sample = (ROOT / "demo" / f"{sample_name}.{language}").read_text(encoding="utf-8").splitlines()
            (tmp_path / f"{name}.{language}").write_text("\n".join(sample[:lines]) + "\n", encoding="utf-8")
    recipe = (ROOT / "recipes" / "tutorial.toml").read_text(encoding="utf-8")
    recipe = recipe.replace("runs/tutorial/valid", str(tmp_path / "test")).replace("runs/tutorial", str(tmp_path))
    (tmp_path / "task.toml").write_text(recipe.replace("size = 1000", "size = 400"), encoding="utf-8")
    return tmp_path


def main(module: ModuleType, text: Path, *more: str, monkeypatch: pytest.MonkeyPatch) -> int:
    test = [str(text / "test.de"), str(text / "test.en")]
    arguments = [str(text / "task.toml"), str(text / "run"), "--test", *test, *more]
    monkeypatch.setattr(sys, "argv", ["compare.py", *arguments])
    return int(module.main())


class Fake:
    """Commands that only leave behind what the real ones would."""

    def __init__(self, seconds: float | None = None) -> None:
        self.asked: list[list[str]] = []

    def lath(self, *arguments: object) -> None:
        given = [str(argument) for argument in arguments]
        self.asked.append(given)
        if given[0] in ("prepare", "train"):
            made = Path(given[2 if given[0] == "prepare" else 3])
            (made / "model").mkdir(parents=True)
        else:
            assert given[0] == "distill"
            Path(given[3]).write_text("x\n", encoding="utf-8")

    def translate(self, model: Path, wanted: Iterable[Any], engine: str) -> None:
        for source, overrides, out in wanted:
            self.asked.append(["translate", str(model), str(source), *overrides])
            out.write_text("a b c d\n" * 3, encoding="utf-8")


def test_students_come_after_their_teacher(
    compare: ModuleType, text: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = Fake()
    monkeypatch.setattr(compare, "Steps", lambda minutes: fake)
    more = (
        "--systems",
        "cmlm",
        "lat",
        "--from-teacher",
        "--set",
        "train.steps=7",
        "--set",
        "lat:train.seed=5",
        "--set",
        "decode.beam=3",
    )
    assert main(compare, text, *more, monkeypatch=monkeypatch) == 0
    run = str(text / "run")
    made = [[word.removeprefix(run + "/") for word in line[: 4 if line[0] != "prepare" else 3]] for line in fake.asked]
    assert [line[0] for line in made[:7]] == ["prepare", "train", "distill", "distill", "prepare", "train", "translate"]
    assert [line[-1] for line in made[:6]] == ["raw", "teacher", "train.txt", "valid.txt", "distilled", "cmlm"]
    trained = {line[3].removeprefix(run + "/"): line for line in fake.asked if line[0] == "train"}
    assert all("train.steps=7" in line for line in trained.values())
    assert [name for name, line in trained.items() if "train.seed=5" in line] == ["lat"]
    started = f"train.start_from={run}/teacher/model"
    assert [name for name, line in trained.items() if started in line] == ["cmlm", "lat"]
    writing = [line for line in fake.asked if line[0] in ("distill", "translate")]
    assert all("decode.beam=3" in line for line in writing)
    assert not any(word.startswith("train.") for line in writing for word in line)
    assert "| lat.it4 |" in capsys.readouterr().out
    scores = json.loads((text / "run" / "scores.json").read_text(encoding="utf-8"))
    assert set(scores[f"{text.name}-test.de"]["claims"]) == {
        "lat.it1 against cmlm.it1", "lat.it1-longer against cmlm.it1", "lat.it4 against cmlm.it10",
        "lat.it4-lengths5 against cmlm.it10", "lat.it4-longer against cmlm.it10",
    }  # fmt: skip

    before = len(fake.asked)
    assert main(compare, text, *more, monkeypatch=monkeypatch) == 0
    assert len(fake.asked) == before  # everything is there


def test_students_may_have_another_source_text(
    compare: ModuleType, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = Fake()
    monkeypatch.setattr(compare, "Steps", lambda minutes: fake)
    monkeypatch.setattr(compare, "score", lambda options: None)
    more = ("--systems", "lat", "--from-teacher", "--student-source", "less.de", "--set", "lat:train.start_from=mine")
    assert main(compare, text, *more, monkeypatch=monkeypatch) == 0
    assert [line[2] for line in fake.asked if line[0] == "distill"] == ["less.de", str(text / "test.de")]
    raw, distilled = (line for line in fake.asked if line[0] == "prepare")
    assert "data.train_source=less.de" in distilled
    assert not any(word.startswith("data.") for word in raw)
    student = fake.asked[-1 - len(compare.SYSTEMS["lat"].decoding)]
    starts = [word for word in student if word.startswith("train.start_from=")]
    assert starts[-1] == "train.start_from=mine"  # what is said of one system comes last, and so counts


def test_a_system_on_raw_text_does_not_wait(compare: ModuleType, text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake()
    monkeypatch.setattr(compare, "Steps", lambda minutes: fake)
    for language in ("de", "en"):
        (text / f"other.{language}").write_text("a\n" * 3, encoding="utf-8")
    other = ("--test", str(text / "other.de"), str(text / "other.en"))
    decode = ("--decode", "it4", "it10", "beam5")
    assert main(compare, text, "--systems", "lat-raw", "cmlm-raw", *decode, *other, monkeypatch=monkeypatch) == 0
    assert {path.name for path in (text / "run" / "texts" / f"{text.name}-test.de").iterdir()} == {
        "lat-raw.it4", "cmlm-raw.it4", "cmlm-raw.it10",
    }  # fmt: skip
    assert set(json.loads((text / "run" / "scores.json").read_text(encoding="utf-8"))) == {
        f"{text.name}-test.de", f"{text.name}-other.de",
    }  # fmt: skip
    assert (text / "run" / "texts" / f"{text.name}-other.de" / "cmlm-raw.it10").exists()
    assert {line[0] for line in fake.asked} == {"prepare", "train", "translate"}
    assert [Path(line[3]).name for line in fake.asked if line[0] == "train"] == ["lat-raw", "cmlm-raw"]


def test_students_that_start_from_the_teacher_wait_for_it_on_raw_text_too(
    compare: ModuleType, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = Fake()
    monkeypatch.setattr(compare, "Steps", lambda minutes: fake)
    more = ("--systems", "lat-raw", "teacher-seed2", "--decode", "it1", "beam5", "--from-teacher")
    assert main(compare, text, *more, monkeypatch=monkeypatch) == 0
    trained = {Path(line[3]).name: line for line in fake.asked if line[0] == "train"}
    assert list(trained) in (["teacher-seed2", "teacher", "lat-raw"], ["teacher", "teacher-seed2", "lat-raw"])
    begun = [name for name, line in trained.items() if any(word.startswith("train.start_from=") for word in line)]
    assert begun == ["lat-raw"]  # another seed's teacher begins afresh
    assert "distill" not in {line[0] for line in fake.asked}


def test_a_setting_may_be_for_several_systems(compare: ModuleType, text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake()
    monkeypatch.setattr(compare, "Steps", lambda minutes: fake)
    more = (
        "--systems",
        "lat-raw",
        "cmlm-raw",
        "--decode",
        "it1",
        "--set",
        "cmlm*:train.steps=9",
        "--set",
        "train.steps=7",
    )
    assert main(compare, text, *more, monkeypatch=monkeypatch) == 0
    steps = {Path(line[3]).name: line[-1] for line in fake.asked if line[0] == "train"}
    assert steps == {"lat-raw": "train.steps=7", "cmlm-raw": "train.steps=9"}


def test_tokenised_text_is_also_scored_detokenised(
    compare: ModuleType, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare, "Steps", lambda minutes: Fake())
    reference = ["well , it &apos;s &quot; my &quot; house .", "a b c d", "a b c d e"]
    (text / "test.en").write_text("\n".join(reference) + "\n", encoding="utf-8")
    folder = text / "run" / "texts" / f"{text.name}-test.de"
    folder.mkdir(parents=True)
    (folder / "lat-raw.it1").write_text("\n".join(reference) + "\n", encoding="utf-8")
    more = ("--systems", "lat-raw", "--decode", "it1", "it4", "--tokenised")
    assert main(compare, text, *more, monkeypatch=monkeypatch) == 0
    found = json.loads((text / "run" / "scores.json").read_text(encoding="utf-8"))[folder.name]
    assert found["detokenised"]["lat-raw.it1"]["value"] == pytest.approx(100)
    assert "tok:13a" in found["detokenised"]["lat-raw.it4"]["signature"]
    assert "tok:none" in found["scores"]["lat-raw.it4"]["bleu"]["signature"]
    folder.joinpath("lat-raw.it1").write_text('well, it\'s "my" house.\na b c d\na b c d e\n', encoding="utf-8")
    joined = compare.detokenised_bleu(folder, text / "test.en", "en")
    assert joined["lat-raw.it1"].value == pytest.approx(100)  # so the tokens were put together


@pytest.mark.parametrize("missing", ["sacrebleu", "sacremoses"])
def test_without_a_scorer_the_translations_are_still_made(
    missing: str, compare: ModuleType, text: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(compare, "Steps", lambda minutes: Fake())
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == missing else find(name))
    more = ("--systems", "lat-raw", "--tokenised")
    assert main(compare, text, *more, monkeypatch=monkeypatch) == 0
    assert f"all translations are done, but scoring needs {missing}:" in capsys.readouterr().err
    assert len(list((text / "run" / "texts").glob("*/lat-raw.it*"))) == 2
    assert not (text / "run" / "scores.json").exists()


def test_a_real_teacher_and_a_time_limit(
    compare: ModuleType, text: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ("--systems", "teacher")
    assert main(compare, text, *more, "--minutes", "0", monkeypatch=monkeypatch) == compare.NOT_FINISHED
    assert main(compare, text, *more, "--minutes", "9", monkeypatch=monkeypatch) == 0
    written = text / "run" / "texts" / f"{text.name}-test.de" / "teacher.beam5"
    assert written.read_text(encoding="utf-8").count("\n") == 3
    assert "teacher.beam5" in capsys.readouterr().out


def test_a_failing_command_is_reported(
    compare: ModuleType, text: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(compare, text, "--set", "data.train_source=nowhere.de", monkeypatch=monkeypatch) == 2
    assert "compare: error: lath prepare ended with 2; see its message above" in capsys.readouterr().err


def test_a_missing_test_is_reported_first(
    compare: ModuleType, text: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (text / "short.en").write_text("a\n", encoding="utf-8")
    for name, message in (("nowhere.en", "no such file"), ("short.en", "3 lines")):
        more = ("--test", str(text / "test.de"), str(text / name))
        assert main(compare, text, *more, monkeypatch=monkeypatch) == 2
        assert message in capsys.readouterr().err
    (text / "short.en").write_text("a\n" * 3, encoding="utf-8")
    assert main(compare, text, *more, monkeypatch=monkeypatch) == 2
    assert "have the same name" in capsys.readouterr().err
    assert not (text / "run").exists()


def plan(
    compare: ModuleType, *arguments: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> list[str]:
    """What --dry-run prints, sorted: systems may be planned in any order."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", ["compare.py", *arguments, "--dry-run"])
    assert compare.main() == 0
    return sorted(capsys.readouterr().out.splitlines())


def test_a_preset_stands_for_a_long_command(
    compare: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    long = (
        "recipes/europarl-third-ende.toml runs/europarl-en-de --from-teacher --systems teacher lat at-12-1"
        " --student-source data/europarl-third/more.en --vocab-from runs/europarl-de-en/raw"
        " --decode beam5 it1 it2 it4 it10 it4-lengths3 it4-lengths5"
        " --set teacher:train.steps=3600 --set teacher:train.validate_every=900"
        " --set teacher:train.start_from=runs/europarl-de-en/teacher/model --set teacher:decode.batch_sentences=2048"
        " --set at-12-1:train.steps=1800 --set at-12-1:train.validate_every=1800"
        " --test data/wmt_newstest/newstest2014.de-en.en data/wmt_newstest/newstest2014.de-en.de"
        " --test data/europarl_deen/test.en data/europarl_deen/test.de"
    )
    found = plan(compare, "--preset", "europarl-en-de", monkeypatch=monkeypatch, capsys=capsys)
    assert found == plan(compare, *long.split(), monkeypatch=monkeypatch, capsys=capsys)
    verbs = [line.split()[1] for line in found]
    assert {verb: verbs.count(verb) for verb in verbs} == {"distill": 2, "prepare": 2, "train": 3, "translate": 16}
    assert not (ROOT / "runs" / "europarl-en-de").exists()


def test_every_preset_has_a_plan_and_a_stored_run(
    compare: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in compare.PRESETS:
        assert (ROOT / "docs" / "runs" / name / "scores.json").exists()
        found = plan(compare, "--preset", name, monkeypatch=monkeypatch, capsys=capsys)
        trained = {line.split()[4] for line in found if line.startswith("lath train ")}
        options = compare.parse(["--preset", name])
        assert trained == {f"runs/{name}/{system}" for system in options.systems}
        for system in options.systems:
            load_recipe(ROOT / options.recipe, [*compare.SYSTEMS[system].settings, *compare.of(options, system)])


def test_options_after_a_preset_win(compare: ModuleType) -> None:
    options = compare.parse(["--preset", "tatoeba", "--systems", "teacher", "--set", "train.seed=7"])
    assert (options.systems, options.overrides[-1], options.run) == (["teacher"], "train.seed=7", Path("runs/tatoeba"))


def test_an_unknown_preset_is_refused(compare: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        compare.parse(["--preset", "nowhere"])
    assert "invalid choice: 'nowhere'" in capsys.readouterr().err
