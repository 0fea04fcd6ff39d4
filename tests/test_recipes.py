"""Every recipe resolves, and holds only what differs from the defaults."""

from __future__ import annotations

import dataclasses
import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from scripts import load_script

from lath.cli import build_parser
from lath.config import RULE_SETS, DecodeSettings, Recipe, load_recipe, to_tree

FOLDER = Path(__file__).parent.parent / "recipes"
RECIPES = sorted(set(FOLDER.glob("*.toml")) - {FOLDER / "tasks.toml"})
PAPER = {
    "iwslt14-deen": ("de", "en", 10_000, False, 50_000, 32_000),
    "wmt14-ende": ("en", "de", 32_000, True, 300_000, 128_000),
    "wmt14-deen": ("de", "en", 32_000, True, 300_000, 128_000),
    "wmt16-enro": ("en", "ro", 40_000, True, 300_000, 128_000),
    "wmt16-roen": ("ro", "en", 40_000, True, 300_000, 128_000),
}

each_recipe = pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)


def same_as_default(tree: Mapping[str, Any], default: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """The settings of a tree that equal the default, by name."""
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from same_as_default(value, default[key], f"{prefix}{key}.")
        elif value == default[key]:
            yield prefix + key


@each_recipe
def test_a_recipe_resolves_and_holds_only_what_differs(path: Path) -> None:
    load_recipe(path)
    tree = tomllib.loads(path.read_text(encoding="utf-8"))
    default = to_tree(Recipe())
    rules = tree.get("decode", {}).get("rules", DecodeSettings.rules)
    default["decode"]["merge"] = dataclasses.asdict(RULE_SETS[rules])
    assert list(same_as_default(tree, default)) == []


def test_a_setting_that_says_nothing_is_found() -> None:
    tree = {"train": {"steps": 300_000, "seed": 2}, "decode": {"merge": {"band": 0.05}}}
    default = to_tree(Recipe())
    default["decode"]["merge"] = dataclasses.asdict(RULE_SETS["official"])
    assert list(same_as_default(tree, default)) == ["train.steps", "decode.merge.band"]


@each_recipe
@pytest.mark.parametrize("kind", ["AT", "CMLM", "LAT"])
def test_a_recipe_serves_teacher_and_students(path: Path, kind: str) -> None:
    assert load_recipe(path, [f"network.kind={kind}"]).network.kind == kind


@each_recipe
def test_a_recipe_states_its_purpose_and_names_its_text(path: Path) -> None:
    data = load_recipe(path).data
    assert path.read_text(encoding="utf-8").startswith("# ")
    for side, language in (("source", data.source_language), ("target", data.target_language)):
        for split in ("train", "valid"):
            name = getattr(data, f"{split}_{side}")
            assert Path(name.removesuffix(".xz")).suffix == f".{language}", name
            assert not Path(name).is_absolute()


@pytest.mark.parametrize("name", PAPER)
def test_the_papers_tasks_have_the_papers_settings(name: str) -> None:
    """Appendices A and B, section 4.1."""
    source, target, size, joint, steps, tokens = PAPER[name]
    recipe = load_recipe(FOLDER / f"{name}.toml")
    assert (recipe.data.source_language, recipe.data.target_language) == (source, target)
    assert (recipe.vocab.kind, recipe.vocab.size, recipe.vocab.joint) == ("subword-nmt", size, joint)
    train, network = recipe.train, recipe.network
    assert (train.steps, train.step_tokens, train.learning_rate, train.warmup_steps) == (steps, tokens, 5e-4, 10_000)
    assert (train.adam_beta1, train.adam_beta2, train.adam_epsilon, train.weight_decay) == (0.9, 0.999, 1e-6, 0.01)
    assert (network.width, network.feedforward, network.heads, network.dropout) == (512, 2048, 8, 0.3)
    assert (network.encoder_layers, network.decoder_layers, network.piece_length) == (6, 6, 3)
    assert (recipe.objective.alpha, recipe.objective.label_smoothing, train.keep_best) == (0.1, 0.1, 5)


def test_the_page_lists_every_recipe() -> None:
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"\]\((\S+\.toml)\)", text)) == {path.name for path in RECIPES} | {"tasks.toml"}


def check_command(line: str, recipe: Path) -> None:
    """Parse a command without running it, and resolve the settings that it changes."""
    parsed = build_parser().parse_args(shlex.split(line.partition(" > ")[0])[1:])
    load_recipe(recipe, getattr(parsed, "overrides", []))


@each_recipe
def test_the_commands_of_the_page_fit(path: Path) -> None:
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    lines = re.findall(r"^lath (?!reproduce).+$", text, re.MULTILINE)
    assert len(lines) == 8
    for line in lines:
        check_command(line.replace("$recipe", str(path)).replace("$run", "runs/x").replace("$source", "data/x"), path)


def test_the_page_names_every_published_comparison() -> None:
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    tasks = tomllib.loads((FOLDER / "tasks.toml").read_text(encoding="utf-8"))["tasks"]
    assert set(re.findall(r"lath reproduce ([\w-]+)", text)) <= {*tasks, "TASK"}
    stored = {path.parent.name for path in (FOLDER.parent / "docs" / "runs").glob("*/scores.json")}
    assert [name for name in stored & set(tasks) if not re.search(rf"(?:reproduce |`){name}\b", text)] == []


def test_the_sets_of_extra_text_that_the_page_names_exist() -> None:
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    sets = load_script("recipes/more_text.py").SETS
    assert set(re.findall(r"^python recipes/more_text\.py (\w+)", text, re.MULTILINE)) <= set(sets)


@each_recipe
def test_the_commands_of_a_recipes_head_fit(path: Path) -> None:
    text = re.sub(r"\\\n#", "", path.read_text(encoding="utf-8"))
    for line in re.findall(r"^# +(lath .+)$", text, re.MULTILINE):
        check_command(line, path)
