"""What people install: the wheel holds what messages point to, and make uses the interpreter that it is given."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of this checkout, built from a copy, because building leaves files behind."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in ("lath", "recipes", "models"):
        shutil.copytree(ROOT / name, folder / "tree" / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / "tree" / name)
    command = [*PIP, "wheel", "--no-deps", "--no-build-isolation", "-w", str(folder), str(folder / "tree")]
    subprocess.run(command, check=True, capture_output=True)
    [path] = folder.glob("*.whl")
    return path


def test_the_wheel_has_every_recipe(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    recipes = {f"lath/recipes/{path.name}" for path in (ROOT / "recipes").glob("*.toml")}
    assert recipes <= set(names)
    assert {"lath/recipes/README.md", "lath/models/de-en/config.json", "lath/py.typed"} <= set(names)


INSTALLED = """
import sys
sys.path.insert(0, sys.argv[1])
from lath.cli import main
from lath.config import BUNDLED_RECIPES, load_recipe
assert BUNDLED_RECIPES.is_relative_to(sys.argv[1]), BUNDLED_RECIPES
for recipe in set(BUNDLED_RECIPES.glob("*.toml")) - {BUNDLED_RECIPES / "tasks.toml"}:
    assert load_recipe(recipe.name) == load_recipe(f"recipes/{recipe.name}") == load_recipe(recipe)
assert main(["init", "mine"]) == 0
assert load_recipe("mine/recipe.toml").data.train_source == "mine/train.de"
sys.exit(main(["show", "tutorial.toml"]))
"""


def test_an_installed_wheel_finds_its_recipes_by_name(wheel: Path, tmp_path: Path) -> None:
    target = tmp_path / "site"
    subprocess.run([*PIP, "install", "--no-deps", "--target", str(target), str(wheel)], check=True, capture_output=True)
    done = subprocess.run(
        [sys.executable, "-P", "-c", INSTALLED, str(target)], cwd=tmp_path, text=True, capture_output=True
    )
    assert done.returncode == 0, done.stderr
    assert '"train_source": "runs/tutorial/train.de"' in done.stdout


def test_the_pythons_of_makefile_and_package_agree() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    listed = re.findall(r"Python :: (3\.\d+)", " ".join(project["classifiers"]))
    assert re.findall(r"\((\d), (\d+)\)", makefile) == [tuple(version.split(".")) for version in listed]
    assert project["requires-python"] == f">={listed[0]},<3.{int(listed[-1][2:]) + 1}"


STUB = """#!/bin/sh
case "$*" in
  *base_prefix*) echo {name} ;;
  "-m venv"*) echo "{name} $*" >> made; mkdir -p .venv/bin; cp "$0" .venv/bin/python ;;
  *ensurepip*) exit {fits} ;;
esac
"""


def stub(folder: Path, name: str, fits: bool = True) -> Path:
    """A program that answers as an interpreter would, and notes what it makes."""
    path = folder / name
    path.write_text(STUB.format(name=name, fits=0 if fits else 1), encoding="utf-8")
    path.chmod(0o755)
    return path


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_takes_the_interpreter_it_is_given(tmp_path: Path) -> None:
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path / name)
    one, other, old = stub(tmp_path, "one"), stub(tmp_path, "the other"), stub(tmp_path, "old", fits=False)

    def make(python: Path | str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["make", f"PYTHON={python}", "venv"], cwd=tmp_path, text=True, capture_output=True)

    made = tmp_path / "made"
    for python, lines in ((one, 1), (one, 1), (other, 2), (other, 2), ("", 2), (one, 3)):
        done = make(python)
        assert done.returncode == 0, done.stderr
        assert len(made.read_text(encoding="utf-8").splitlines()) == lines
    assert "the other -m venv --clear .venv" in made.read_text(encoding="utf-8")
    for python in (old, tmp_path / "none"):
        done = make(python)
        assert done.returncode == 2
        assert f"lath: error: {python} is not Python 3.11, 3.12 or 3.13 with venv and pip" in done.stderr
    assert len(made.read_text(encoding="utf-8").splitlines()) == 3
    assert (tmp_path / ".venv/bin/python").read_text(encoding="utf-8") == one.read_text(encoding="utf-8")
