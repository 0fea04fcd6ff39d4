"""Recipes: what they read, and the text of every refusal."""

from __future__ import annotations

import ast
import inspect
import json
import re
import tomllib
import typing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import lath.analysis.settings
import lath.config
import lath.engine.settings
import lath.serve.settings
from lath.config import (
    RULE_SETS,
    DecodeSettings,
    MergeRules,
    NetworkSettings,
    Recipe,
    TrainSettings,
    load_recipe,
    parse_override,
    recipe_from_tree,
    settings_from_tree,
    to_toml,
    to_tree,
)
from lath.errors import UserError


def _written(folder: Path, text: str) -> Path:
    path = folder / "small.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_an_empty_recipe_is_the_defaults(tmp_path: Path) -> None:
    assert load_recipe(_written(tmp_path, "")) == Recipe()


def test_a_recipe_holds_only_what_differs(tmp_path: Path) -> None:
    path = _written(tmp_path, '[network]\nkind = "AT"\nwidth = 256\n[train]\nsteps = 7\nlearning_rate = 1e-3\n')
    assert load_recipe(path) == Recipe(
        network=NetworkSettings(kind="AT", width=256), train=TrainSettings(steps=7, learning_rate=1e-3)
    )


def test_overrides_win_and_the_last_wins_most(tmp_path: Path) -> None:
    path = _written(tmp_path, "[train]\nsteps = 7\nseed = 2\n")
    recipe = load_recipe(path, ["train.steps=8", "train.steps=9", "network.kind=CMLM"])
    assert (recipe.train.steps, recipe.train.seed, recipe.network.kind) == (9, 2, "CMLM")


@pytest.mark.parametrize(
    ("override", "tree"),
    [
        ("train.steps=100", {"train": {"steps": 100}}),
        ("train.learning_rate=1e-4", {"train": {"learning_rate": 1e-4}}),
        ("train.steps = 100", {"train": {"steps": 100}}),
        ("vocab.joint=false", {"vocab": {"joint": False}}),
        ("network.kind=LAT", {"network": {"kind": "LAT"}}),
        ('data.train_source="a b.de"', {"data": {"train_source": "a b.de"}}),
        ("data.train_source=a=b.de", {"data": {"train_source": "a=b.de"}}),
        ("data.train_source=", {"data": {"train_source": ""}}),
    ],
)
def test_an_override_is_parsed_as_toml(override: str, tree: dict[str, Any]) -> None:
    assert parse_override(override) == tree


@pytest.mark.parametrize("override", ["train.steps", "steps=100", "=", ""])
def test_an_override_needs_section_key_and_value(override: str) -> None:
    expected = f"--set {override}: write it as section.key=value, for example --set train.steps=100"
    with pytest.raises(UserError, match=f"^{re.escape(expected)}$"):
        parse_override(override)


def test_an_override_meets_the_same_checks_as_the_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^small\.toml: train: unknown setting 'stpes' \(did you mean 'steps'\?\)$"):
        load_recipe(_written(tmp_path, ""), ["train.stpes=3"])


# Each: the recipe, and the message after "small.toml: ".
REFUSALS = {
    "[data]\nplaceholder_share = 1.5": "data: placeholder_share must be 0 to 1",
    "[vocab]\nplaceholders = 100": "vocab: placeholders must be 0 to 99",
    "[train]\nstpes = 1": "train: unknown setting 'stpes' (did you mean 'steps'?)",
    "[train]\nzebra = 1": "train: unknown setting 'zebra'",
    "[trian]\nsteps = 1": "unknown setting 'trian' (did you mean 'train'?)",
    "train = 3": "train is a section; write [train] and its settings below it",
    '[train]\nsteps = "many"': "train: steps: expected a whole number, got 'many'",
    "[train]\nsteps = 1.5": "train: steps: expected a whole number, got 1.5",
    "[train]\nsteps = true": "train: steps: expected a whole number, got True",
    '[train]\nlearning_rate = "1e-4"': "train: learning_rate: expected a number, got '1e-4'",
    "[vocab]\njoint = 1": "vocab: joint: expected true or false, got 1",
    "[data]\ntrain_source = 3": "data: train_source: expected a text in quotes, got 3",
    '[network]\nkind = "LTA"': "network: kind: 'LTA' is not one of AT, CMLM, LAT (did you mean 'LAT'?)",
    '[network]\nkind = "transformer"': "network: kind: 'transformer' is not one of AT, CMLM, LAT",
    '[train]\nprecision = "fp16"': "train: precision: 'fp16' is not one of fp32, bf16 (did you mean 'bf16'?)",
    "[decode.merge]\nband = 1": "decode: merge is {'band': 1}, which only lath 0.1 supports; use that version, "
    "or remove merge and check what changes",
    "[network]\nwidth = 100": "network: width must be divisible by heads",
    "[network]\npiece_length = 1": "network: piece_length must be 2 to 8",
    "[network]\npiece_length = 9": "network: piece_length must be 2 to 8",
    "[network]\ndropout = 1": "network: dropout must be at least 0 and below 1",
    "[network]\ndecoder_layers = 0": "network: decoder_layers must be 1 to 100",
    "[data]\nmax_length = 510": "network.max_positions 512 is too small for max_length 510; "
    "set network.max_positions to 513 or more",
    "[data]\nmax_length = 0": "data: max_length must be at least 1",
    "[data]\nmax_ratio = 0.5": "data: max_ratio must be at least 1",
    "[vocab]\nsize = 0": "vocab: size must be 1 to 1000000",
    "[network]\nheads = 0": "network: heads must be 1 to 65536",
    "[data]\nmax_length = 8\n[network]\nmax_positions = 15": "network: max_positions must be 16 to 65536",
    "[train]\nlearning_rate = nan": "train: learning_rate: nan is out of range; give a finite number up to 2^62",
    "[train]\nlearning_rate = 101": "train: learning_rate must be above 0 and at most 100",
    "[train]\nlearning_rate = 1e300": "train: learning_rate: 1e+300 is out of range; give a finite number up to 2^62",
    "[train]\nadam_epsilon = inf": "train: adam_epsilon: inf is out of range; give a finite number up to 2^62",
    f"[train]\nlearning_rate = {'9' * 400}": "train: learning_rate: 999999999999999999...9999999999999999999 is out of "
    "range; give a finite number up to 2^62",
    f"[train]\nsteps = {2**62 + 1}": f"train: steps: {2**62 + 1} is out of range; give a finite number up to 2^62",
    f"[train]\nsteps = -{2**62 + 1}": f"train: steps: -{2**62 + 1} is out of range; give a finite number up to 2^62",
    f"[train]\nsteps = {'9' * 5000}": "not valid TOML: a number has too many digits",
    f"[network]\nkind = 0x{'f' * 5000}": "network: kind: a huge number is not one of AT, CMLM, LAT",
    f"[train]\nsteps = 0x{'f' * 5000}": "train: steps: a huge number is out of range; give a finite number up to 2^62",
    f"[train]\nsteps = {'[' * 2000}": "not valid TOML: it is nested too deeply",
    f"{'a.' * 2000}a = 1": "not valid TOML: a line has over 1000 dots",
    "#" * 70_000: "over 65536 bytes, so this is not a recipe; name a TOML file",
    '[data]\ntrain_source = "a\\u0000"': "data: train_source: 'a\\x00' must be UTF-8 without "
    "NUL characters; rename the file",
    "[train]\nseed = -1": "train: seed must be at least 0",
    "[train]\nstep_tokens = 1_000_000_001": "train: step_tokens must be 1 to 1000000000",
    "[train]\nweight_decay = 2": "train: weight_decay must be 0 to 1",
    "[objective]\nlength_weight = -1": "objective: length_weight must be 0 to 1000",
    "[train]\nadam_beta2 = 1.5": "train: adam_beta2 must be at least 0 and below 1",
    "[train]\nclip_norm = -1": "train: clip_norm must be 0 to 1000000000",
    "[decode]\nlength_penalty = 11": "decode: length_penalty must be -10 to 10",
    "[decode]\nlength_penalty = nan": "decode: length_penalty: nan is out of range; give a finite number up to 2^62",
    "[network]\nencoder_layers = 1000000000": "network: encoder_layers must be 1 to 100",
    "[decode]\nbeam = 1001": "decode: beam must be 1 to 1000",
    "[objective]\nalpha = 1.1": "objective: alpha must be 0 to 1",
    "[objective]\nlabel_smoothing = 1": "objective: label_smoothing must be at least 0 and below 1",
    "[objective]\ndeletion_rate = -0.1": "objective: deletion_rate must be at least 0 and below 1",
    "[decode]\nextra_length = 10": "decode: extra_length must be 0 to 9",
    "[objective]\ninsertion_rate = 1": "objective: insertion_rate must be at least 0 and below 1",
    "[objective]\ndelete_from_short = true\ndeletion_rate = 0": (
        "objective: delete_from_short needs a deletion_rate above 0"
    ),
    "[objective]\nglancing_share = 1.5": "objective: glancing_share must be 0 to 1",
    "[objective]\nglancing_final_ratio = -0.1": "objective: glancing_final_ratio must be 0 to 1",
    '[network]\nkind = "AT"\n[objective]\nglancing_share = 0.5': (
        "objective: glancing_share is for LAT and CMLM; an AT sees no masks, so set it to 0"
    ),
    "[data]\nmax_length = 100\n[network]\nmax_positions = 110\n[objective]\ninsertion_rate = 0.15": (
        "data.max_length 100 with up to 15 inserted masks does not fit network.max_positions 110; "
        "set network.max_positions to 118 or more"
    ),
    "[train]\nsteps = 0": "train: steps must be 1 to 1000000000",
    "[train]\nkeep_best = 0": "train: keep_best must be at least 1",
    "[train]\npatience = -1": "train: patience must be at least 0",
    '[train]\nstop_by = "ter"': "train: stop_by: 'ter' is not one of loss, bleu",
    "[train]\nmicro_batch_tokens = 129": "train: step_tokens and micro_batch_tokens must be at least "
    "data.max_length + 2 = 130, the longest sentence",
    "[train]\nstep_tokens = 129": "train: step_tokens and micro_batch_tokens must be at least "
    "data.max_length + 2 = 130, the longest sentence",
    "[decode]\niterations = 0": "decode: iterations must be 1 to 1000",
    "[decode]\nlength_candidates = 10": "decode: length_candidates must be 1 to 9",
    "[decode]\nbeam = 0": "decode: beam must be 1 to 1000",
    "[decode]\nverify_top = 0": "decode: verify_top must be 1 to 1000",
    "[decode]\nverify_nats = -0.5": "decode: verify_nats must be at least 0",
    '[decode]\nverify = "exact"\nshortlist = true': "decode: verify needs the whole vocabulary; set shortlist to false",
    "[decode]\nbatch_sentences = -1": "decode: batch_sentences must be 0 to 1000000",
}


@pytest.mark.parametrize("text", REFUSALS)
def test_a_refusal_names_file_section_and_remedy(text: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        load_recipe(_written(tmp_path, text))
    assert str(caught.value).removeprefix(f"{tmp_path}/") == f"small.toml: {REFUSALS[text]}"


def test_every_requirement_has_a_refusal_in_the_table() -> None:
    """Read the messages out of the checks, so that a new one without a test is noticed."""
    messages = [
        " ".join(
            part.value for part in ast.walk(node) if isinstance(part, ast.Constant) and isinstance(part.value, str)
        )
        for check in (lath.config.check_recipe, lath.config.check_network, lath.config.check_decode)
        for node in ast.walk(ast.parse(inspect.getsource(check)))
        if isinstance(node, ast.Raise)
    ]
    assert len(messages) > 5
    refusals = [set(refusal.split()) for refusal in REFUSALS.values()]
    words = [{word for word in message.split() if word.isalpha()} for message in messages]
    assert [message for message, said in zip(messages, words, strict=True) if not any(map(said.__le__, refusals))] == []


RANGES = {
    (kind, name): typing.get_args(hint)[1]
    for kind in map(type, vars(Recipe()).values())
    for name, hint in typing.get_type_hints(kind, include_extras=True).items()
    if typing.get_origin(hint) is typing.Annotated
}


@pytest.mark.parametrize(("kind", "name"), RANGES)
def test_a_number_outside_its_range_is_refused(kind: type[Any], name: str) -> None:
    allowed = RANGES[kind, name]
    beyond = [allowed.least - 1, *([allowed.most + 1] if allowed.most < 2**62 else []), allowed.without]
    for number in filter(lambda number: number is not None, beyond):
        with pytest.raises(UserError, match=f"^here: {name} must be {allowed}$"):
            settings_from_tree(kind, {name: number}, "here")


def test_every_number_of_a_recipe_has_a_range() -> None:
    numbers = [
        (kind, name)
        for kind in map(type, vars(Recipe()).values())
        for name, hint in typing.get_type_hints(kind).items()
        if hint in (int, float)
    ]
    # Only LAT has pieces, so check_network looks at both settings.
    assert set(numbers) - RANGES.keys() == {(NetworkSettings, "piece_length")}


def test_settings_made_in_python_are_checked_before_training(tmp_path: Path) -> None:
    recipe = Recipe(train=TrainSettings(steps=0))
    with pytest.raises(UserError, match=r"^recipe: train: steps must be 1 to 1000000000$"):
        lath.train(recipe, tmp_path / "data", tmp_path / "run")


@pytest.mark.parametrize(
    "text",
    [
        '[network]\nkind = "AT"\npiece_length = 1',
        "[objective]\nalpha = 0",
        "[objective]\nalpha = 1",
        "[data]\nmax_length = 509",
        "[train]\nstep_tokens = 130\nmicro_batch_tokens = 130",
        "[train]\nlearning_rate = 100",
        f"[train]\nseed = {2**62}",
    ],
)
def test_the_edge_of_what_is_allowed_is_allowed(text: str, tmp_path: Path) -> None:
    load_recipe(_written(tmp_path, text))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "none.toml"
    with pytest.raises(UserError, match=r"none\.toml: no such recipe.*; write one with lath init, or name a"):
        load_recipe(path)


def test_bytes_that_are_no_text_are_named(tmp_path: Path) -> None:
    path = tmp_path / "latin.toml"
    path.write_bytes("# Grüße".encode("latin-1"))
    with pytest.raises(UserError, match=r"latin\.toml: not valid UTF-8 \(byte 4\); a recipe is TOML text$"):
        load_recipe(path)


def test_a_slip_in_the_toml_is_placed(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"small\.toml: not valid TOML: .*line 2"):
        load_recipe(_written(tmp_path, "[train]\nsteps = = 3\n"))


def test_whole_numbers_are_welcome_where_fractions_are() -> None:
    value = settings_from_tree(TrainSettings, {"clip_norm": 1}, "here").clip_norm
    assert (value, type(value)) == (1.0, float)


def test_a_rule_set_by_name() -> None:
    assert DecodeSettings().merge_rules == RULE_SETS["official"] == MergeRules()
    assert DecodeSettings(rules="paper").merge_rules == RULE_SETS["paper"]


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["decode.rules=paper"],
        ["network.kind=CMLM", "train.learning_rate=3e-4", 'data.train_source="ä.de"'],
    ],
)
def test_settings_survive_json(overrides: list[str], tmp_path: Path) -> None:
    recipe = load_recipe(_written(tmp_path, ""), overrides)
    assert recipe_from_tree(json.loads(json.dumps(to_tree(recipe))), "resolved.json") == recipe


FOLDER = Path(__file__).parent.parent / "recipes"
RECIPES = sorted(set(FOLDER.glob("*.toml")) - {FOLDER / "tasks.toml"})


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_recipes_survive_toml(path: Path, tmp_path: Path) -> None:
    recipe = load_recipe(path, ["train.seed=7"])
    written = to_toml(recipe)
    assert load_recipe(_written(tmp_path, written)) == recipe
    settings = tomllib.loads(path.read_text(encoding="utf-8"))
    settings.setdefault("train", {})["seed"] = 7
    assert tomllib.loads(written) == settings, "only what differs from the defaults is written, overrides included"


@given(
    text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
    steps=st.integers(1, 10**9),
    rate=st.floats(0, 100, exclude_min=True),
    penalty=st.floats(-10, 10),
    joint=st.booleans(),
)
def test_any_value_survives_toml(text: str, steps: int, rate: float, penalty: float, joint: bool) -> None:
    tree = {"data": {"train_source": text}, "train": {"steps": steps, "learning_rate": rate}}
    recipe = recipe_from_tree({**tree, "vocab": {"joint": joint}, "decode": {"length_penalty": penalty}}, "here")
    assert recipe_from_tree(tomllib.loads(to_toml(recipe)), "written") == recipe


def test_the_defaults_are_an_empty_recipe() -> None:
    assert to_toml(Recipe()) == ""


def test_every_setting_has_a_sentence() -> None:
    """A default lives in one place, with a sentence below it."""
    modules = (lath.config, lath.analysis.settings, lath.engine.settings, lath.serve.settings)
    for node in [node for module in modules for node in ast.parse(inspect.getsource(module)).body]:
        if isinstance(node, ast.ClassDef) and node.name.endswith("Settings"):
            for field, after in zip(node.body, [*node.body[1:], None], strict=True):
                if isinstance(field, ast.AnnAssign):
                    assert isinstance(after, ast.Expr), f"{node.name}: {ast.unparse(field)}"
