"""Bundled models by name: an existing path takes precedence, and an unknown name is reported with the known ones."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Runs

import lath
from lath.errors import UserError
from lath.model import bundled
from lath.model.bundled import DEFAULT_MODEL, bundled_models, default_model, find_model

ROOT = Path(__file__).parents[2]


@pytest.fixture
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder beside the package, with three models; there is none in the package, and we are elsewhere."""
    inside, beside = tmp_path / "package" / "models", tmp_path / "models"
    for name in ("fr-en", "en-de", "de-en"):
        (beside / name).mkdir(parents=True)
    (beside / "README.md").write_text("# Models\n", encoding="utf-8")
    monkeypatch.setattr(bundled, "FOLDERS", (inside, beside))
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    return beside


@pytest.fixture
def nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundled, "FOLDERS", (tmp_path / "package" / "models", tmp_path / "models"))
    monkeypatch.chdir(tmp_path)


def refusal(name: str | Path) -> str:
    with pytest.raises(UserError) as refused:
        find_model(name)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_the_folders_are_in_the_package_and_beside_it() -> None:
    assert bundled.FOLDERS == (ROOT / "lath" / "models", ROOT / "models")


def test_a_name_is_found(beside: Path) -> None:
    assert bundled_models() == ["de-en", "en-de", "fr-en"]
    assert find_model("de-en") == find_model(Path("de-en")) == beside / "de-en"
    assert default_model() == beside / DEFAULT_MODEL


def test_the_folder_in_the_package_comes_first(beside: Path) -> None:
    inside = bundled.FOLDERS[0]
    (inside / "de-en").mkdir(parents=True)
    assert bundled_models() == ["de-en"]
    assert find_model("de-en") == inside / "de-en"
    assert refusal("en-de").startswith("en-de: no such file or directory")


@pytest.mark.parametrize("directory", [True, False])
def test_an_existing_path_takes_precedence(beside: Path, directory: bool) -> None:
    own = Path("de-en")
    own.mkdir() if directory else own.write_text("ba ko\n", encoding="utf-8")
    assert find_model("de-en") == own
    assert default_model() == beside / DEFAULT_MODEL  # which nobody has named


@pytest.mark.parametrize(
    "path", ["runs/demo/model", "./de-en", "models/de-en", "../de-en", "news.de", "-", "Guten Tag"]
)
def test_anything_but_a_plain_name_is_a_path(beside: Path, path: str) -> None:
    assert find_model(path) == Path(path)


def test_an_unknown_name_is_reported_with_the_known_ones(beside: Path) -> None:
    assert refusal("de-em") == (
        "de-em: no such file or directory, and no bundled model (did you mean 'de-en'?) "
        "(bundled: de-en, en-de, fr-en); give the path of a model directory, for example runs/demo/model"
    )
    assert refusal(Path("zh")).startswith("zh: no such file or directory, and no bundled model (bundled: de-en, ")
    assert refusal("README").startswith("README: no such file or directory, and no bundled model (bundled: ")


@pytest.mark.usefixtures("nothing")
def test_no_bundled_models() -> None:
    assert bundled_models() == []
    assert refusal("de-en") == (
        "de-en: no such file or directory, and no bundled model (this installation has no bundled models); "
        "give the path of a model directory, for example runs/demo/model"
    )
    with pytest.raises(UserError) as refused:
        default_model()
    assert str(refused.value) == (
        "no model given, and this installation does not have the default model de-en; "
        "name a model directory: lath translate MODEL FILE"
    )


def test_load_takes_a_name(beside: Path, toy_run: Runs) -> None:
    shutil.copytree(toy_run("LAT") / "model", beside / "de-en", dirs_exist_ok=True)
    expected = lath.load(toy_run("LAT") / "model", "cpu").translate(["ba ko", ""])
    assert lath.load("de-en", "cpu").translate(["ba ko", ""]) == expected
    with pytest.raises(UserError, match="de-em: no such file or directory, and no bundled model"):
        lath.load("de-em")


def test_finding_a_model_does_not_import_torch() -> None:
    script = "import sys, lath.model.bundled; lath.model.bundled.bundled_models(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=False).returncode == 0


# ---- the bundled models -------------------------------------------------------------------------------------------


def test_the_default_model_is_bundled_and_small() -> None:
    assert DEFAULT_MODEL in bundled_models()
    files = [path for path in (ROOT / "models").rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 36_000_000


def test_the_card_names_data_and_scores() -> None:
    card = (default_model() / "README.md").read_text(encoding="utf-8")
    assert "Not said by training" not in card
    for fact in ("CC-BY 2.0 FR", "tatoeba.org", "European Parliament", "version:2.6.0", "## Limits"):
        assert fact in card


def test_everyday_sentences_are_translated_as_the_page_says() -> None:
    """A few may differ: processors round differently."""
    page = (ROOT / "docs/everyday.md").read_text(encoding="utf-8")
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| ") and line.count(" | ") == 2]
    listed = {german.removeprefix("| "): english for german, english, _ in rows[1:]}
    sentences = (ROOT / "demo/everyday.de").read_text(encoding="utf-8").splitlines()
    assert list(listed) == sentences
    found = dict(zip(sentences, lath.load(DEFAULT_MODEL, "cpu").translate(sentences), strict=True))
    assert sum(listed[german] == english for german, english in found.items()) >= 45
    assert found["Ich habe meinen Schlüssel verloren."] == "I lost my key."
