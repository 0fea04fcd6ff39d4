"""A compressed copy of a model: it loads and translates like the model, is small, and is not compressed again."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from conftest import CPU, Runs
from safetensors.torch import load_file
from toy import toy_recipe, train_toy

import lath.model.compress
from lath.config import DecodeSettings, NetworkSettings
from lath.engine.shortlist import add_shortlist
from lath.errors import UserError
from lath.files import read_lines
from lath.model.compress import compress, directory_size
from lath.model.directory import CONFIG, WEIGHTS, load_model, read_config, read_info, save_model
from lath.model.network import build_model
from lath.model.storage import SMALLER, restore, shrink
from lath.text.vocab import load_vocabs
from lath.translator import load


@pytest.fixture(scope="module")
def learnt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model directory of an AT that translates the toy language."""
    folder = tmp_path_factory.mktemp("learnt")
    return train_toy(folder, toy_recipe(folder, "AT", steps=120))


def refusal(ask: Callable[[], object]) -> str:
    with pytest.raises(UserError) as refused:
        ask()
    assert "\n" not in str(refused.value)
    return str(refused.value)


# ---- what is written -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["AT", "CMLM", "LAT"])
@pytest.mark.parametrize("storage", SMALLER)
def test_a_compressed_model_loads_as_float32(toy_run: Runs, tmp_path: Path, kind: str, storage: str) -> None:
    model, out = toy_run(kind) / "model", tmp_path / "deep" / "small"
    compress(model, out, storage)
    assert read_config(out).storage == storage
    assert json.loads((out / CONFIG).read_text(encoding="utf-8"))["storage"] == storage
    first, second = load_model(model, CPU), load_model(out, CPU)
    assert second.info == first.info == read_info(out)
    assert type(second.model) is type(first.model)
    before = first.model.state_dict()
    shrunk = shrink(before, storage, "")
    expected = {name: restore(shrunk, name, tensor.shape, "") for name, tensor in before.items()}
    weights = second.model.state_dict()
    assert weights.keys() == expected.keys()
    assert {tensor.dtype for tensor in weights.values()} == {torch.float32}
    assert all(torch.equal(tensor, weights[name]) for name, tensor in expected.items())
    assert second.source_vocab is second.target_vocab


def test_the_card_the_vocabulary_and_the_shortlist_come_along(
    model_copy: Path, toy_folder: Path, tmp_path: Path
) -> None:
    out = tmp_path / "small"
    (model_copy / "README.md").write_text("# Mine, with scores\n", encoding="utf-8")
    (model_copy / "notes.txt").write_text("not part of a model", encoding="utf-8")
    add_shortlist(toy_folder / "data", model_copy, near=5, frequent=20)
    compress(model_copy, out, "int8")
    assert sorted(path.name for path in out.iterdir()) == [
        "README.md", "config.json", "model.safetensors", "shortlist.safetensors", "vocab.model",
    ]  # fmt: skip
    for name in ("README.md", "shortlist.safetensors", "vocab.model"):
        assert (out / name).read_bytes() == (model_copy / name).read_bytes()
    assert len(load(out, "cpu").translate(["ba ko"], shortlist=True)) == 1


def test_separate_vocabularies_and_no_card(toy_run: Runs, tmp_path: Path) -> None:
    compress(separate(toy_run, tmp_path / "two"), tmp_path / "small", "int8")
    loaded = load_model(tmp_path / "small", CPU)
    assert loaded.source_vocab is not loaded.target_vocab
    assert not (tmp_path / "small" / "README.md").exists()
    tables = [name for name in load_file(tmp_path / "small" / WEIGHTS) if "tables" in name]
    assert sorted(tables) == [f"body.tables.{side}.weight{end}" for side in (0, 1) for end in ("", "/scale")]


def separate(toy_run: Runs, directory: Path) -> Path:
    """A model with a vocabulary for each side, and without a card."""
    info = read_info(toy_run("LAT") / "model")
    source, target = load_vocabs(toy_run("LAT") / "model")[0], load_vocabs(toy_run("AT") / "model")[0]
    model = build_model(info.network, source.size, target.size, False, torch.Generator().manual_seed(1))
    changed = type(info)(info.network, DecodeSettings(), "xx", "yy", source.size, target.size, False, 30, 1)
    save_model(directory, model.state_dict(), changed, (source, target))
    (directory / "README.md").unlink()
    return directory


@pytest.mark.parametrize(("storage", "share"), [("coded", 0.14), ("int8", 0.25), ("fp16", 0.5)])
def test_a_compressed_model_is_small(toy_run: Runs, tmp_path: Path, storage: str, share: float) -> None:
    """Weights wide enough to matter, on the disk, everything counted."""
    vocab = load_vocabs(toy_run("LAT") / "model")[0]
    network = NetworkSettings(
        kind="LAT", width=256, heads=4, feedforward=1024, encoder_layers=2, decoder_layers=2, max_positions=64
    )
    info = type(read_info(toy_run("LAT")))(network, DecodeSettings(), "xx", "yy", vocab.size, vocab.size, True, 30, 1)
    weights = build_model(network, vocab.size, vocab.size, True, torch.Generator().manual_seed(1)).state_dict()
    save_model(tmp_path / "model", weights, info, (vocab, vocab))
    compress(tmp_path / "model", tmp_path / "small", storage)
    before, after = directory_size(tmp_path / "model"), directory_size(tmp_path / "small")
    assert before == sum(path.stat().st_size for path in (tmp_path / "model").rglob("*"))
    assert share * before < after < 1.1 * share * before


# ---- translations --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("storage", "nearness"), [("int8", 0.02), ("fp16", 0.002)])
def test_translations_are_those_of_the_model(learnt: Path, tmp_path: Path, storage: str, nearness: float) -> None:
    lines = list(read_lines(learnt.parents[1] / "valid.src"))
    compress(learnt, tmp_path / "small", storage)
    before, after = (list(load(model, "cpu", "fp32").hypotheses(lines)) for model in (learnt, tmp_path / "small"))
    assert [hypothesis.text for hypothesis in after] == [hypothesis.text for hypothesis in before]
    assert max(abs(a.score - b.score) for a, b in zip(after, before, strict=True)) < nearness
    assert len({hypothesis.text for hypothesis in before}) > 80  # it has something to say


def test_a_coded_model_translates_nearly_as_the_model(learnt: Path, tmp_path: Path) -> None:
    lines = list(read_lines(learnt.parents[1] / "valid.src"))
    compress(learnt, tmp_path / "small", "coded")
    before, after = (load(model, "cpu", "fp32").translate(lines) for model in (learnt, tmp_path / "small"))
    alike = sum(one == other for one, other in zip(before, after, strict=True))
    assert 0.97 * len(lines) < alike


def test_int8_twice_is_hardly_more_than_once(learnt: Path, tmp_path: Path) -> None:
    """Stored and computed in int8; the linear layers have the same numbers either way (test_storage.py)."""
    lines = list(read_lines(learnt.parents[1] / "valid.src"))
    compress(learnt, tmp_path / "small", "int8")
    before, after = (list(load(model, "cpu", "int8").hypotheses(lines)) for model in (learnt, tmp_path / "small"))
    assert [hypothesis.text for hypothesis in after] == [hypothesis.text for hypothesis in before]
    assert max(abs(a.score - b.score) for a, b in zip(after, before, strict=True)) < 0.02


# ---- refusals ------------------------------------------------------------------------------------------------------


def test_a_compressed_model_is_not_compressed_again(model_copy: Path, tmp_path: Path) -> None:
    compress(model_copy, tmp_path / "half", "fp16")
    assert refusal(lambda: compress(tmp_path / "half", tmp_path / "again", "int8")) == (
        f"{tmp_path / 'half'}: already compressed as fp16, and rounding the weights twice loses quality; "
        "name the model directory it came from"
    )
    assert not (tmp_path / "again").exists()


def test_an_unknown_storage_is_reported(model_copy: Path, tmp_path: Path) -> None:
    assert refusal(lambda: compress(model_copy, tmp_path / "out", "int9")) == (
        "unknown storage 'int9' (did you mean 'int8'?); use coded, int8 or fp16"
    )
    assert refusal(lambda: compress(model_copy, tmp_path / "out", "fp32")).endswith("; use coded, int8 or fp16")


def test_what_is_no_model_is_reported(toy_run: Runs, tmp_path: Path) -> None:
    out = tmp_path / "out"
    exported = tmp_path / "exported"
    shutil.copytree(toy_run("AT") / "model", exported / "lath")
    assert refusal(lambda: compress(exported, out, "int8")) == (
        f"{exported}: an exported model cannot be compressed; name the model directory it came from"
    )
    run = toy_run("LAT")
    assert refusal(lambda: compress(run, out, "int8")) == f"{run}: a training run, not a model; use {run / 'model'}"
    assert refusal(lambda: compress(tmp_path / "none", out, "int8")) == (
        f"{tmp_path / 'none'}: no such model directory; `lath train` writes one as RUN/model"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["exported"]


def test_what_exists_is_not_overwritten(model_copy: Path) -> None:
    before = {path.name: path.read_bytes() for path in model_copy.iterdir()}
    assert refusal(lambda: compress(model_copy, model_copy, "int8")) == (
        f"{model_copy}: exists already; choose another name or remove it"
    )
    assert {path.name: path.read_bytes() for path in model_copy.iterdir()} == before


def test_a_failure_leaves_nothing(model_copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(lath.model.compress, "write_info", killed)
    with pytest.raises(KeyboardInterrupt):
        compress(model_copy, tmp_path / "out", "int8")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_weights_that_are_not_numbers_are_reported(model_copy: Path, tmp_path: Path) -> None:
    loaded = load_model(model_copy, CPU)
    loaded.model.state_dict()["length.table.weight"][3, 3] = float("nan")
    spoilt = tmp_path / "spoilt"
    save_model(spoilt, loaded.model.state_dict(), loaded.info, (loaded.source_vocab, loaded.target_vocab))
    assert refusal(lambda: compress(spoilt, tmp_path / "out", "int8")).startswith(
        f"{spoilt / WEIGHTS}: length.table.weight contains values"
    )
    assert not (tmp_path / "out").exists()
