"""lath init writes a recipe that works, for any names of files and languages, and never over another file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_cli import Capsys, nothing_left_behind, ok, refused

from lath.config import load_recipe, to_tree

ROOT = Path(__file__).parents[1]


def test_the_recipe_prepares_the_files_in_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    for name, text in (("train", "tatoeba"), ("valid", "tatoeba.valid")):
        for code in ("de", "en"):
            lines = (ROOT / f"demo/{text}.{code}").read_text(encoding="utf-8").splitlines()
            (tmp_path / f"{name}.{code}").write_text("\n".join(lines[:2000]) + "\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert ok(capsys, "init") == "recipe.toml\n"
    assert "2,000 pairs" in ok(capsys, "prepare", "recipe.toml", "data", "--set", "vocab.size=1000")


def test_what_is_given_is_in_the_recipe(tmp_path: Path, capsys: Capsys) -> None:
    names = {"train_source": "talks.gz", "train_target": 'a "b"\\c.txt', "valid_target": "mine/données"}
    flags = [word for key, name in names.items() for word in (f"--{key.replace('_', '-')}", name)]
    path = Path(ok(capsys, "init", tmp_path / "new", "--source", "fr", "--target", "ro", *flags).removesuffix("\n"))
    data = load_recipe(path).data
    named = {**names, "source_language": "fr", "target_language": "ro", "valid_source": str(tmp_path / "new/valid.fr")}
    assert {key: getattr(data, key) for key in named} == named
    others = to_tree(load_recipe("starter.toml")) | {"data": to_tree(data)}
    assert json.loads(ok(capsys, "show", path)) == others


def test_nothing_is_overwritten(tmp_path: Path, capsys: Capsys) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text("# mine\n", encoding="utf-8")
    with nothing_left_behind(tmp_path):
        assert refused(capsys, "init", tmp_path) == f"{path}: exists already; name another directory, or remove it"
        assert refused(capsys, "init", path / "deeper").startswith(f"{path / 'deeper'}")
