"""Model directories: what is saved is loaded, and damaged files are reported."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import CPU, Runs
from safetensors.torch import load_file, save_file

from lath.config import DecodeSettings, NetworkSettings
from lath.errors import UserError
from lath.model.directory import (
    CONFIG,
    WEIGHTS,
    ModelInfo,
    load_model,
    read_config,
    read_info,
    save_model,
    save_tensors,
    write_info,
)
from lath.model.network import build_model
from lath.model.storage import FULL, SCALE, SMALLER, restore, shrink
from lath.text.vocab import load_vocabs

TINY = NetworkSettings(
    kind="LAT", width=8, heads=2, feedforward=8, encoder_layers=1, decoder_layers=1, max_positions=80
)


def refusal(ask: Callable[[], Any]) -> str:
    with pytest.raises(UserError) as refused:
        ask()
    assert "\n" not in str(refused.value)
    return str(refused.value)


def change_config(directory: Path, **changes: Any) -> None:
    """Other settings, by somebody who knows how: without digests."""
    tree = json.loads((directory / CONFIG).read_text(encoding="utf-8"))
    tree.update(changes)
    tree.pop("sha256", None)
    (directory / CONFIG).write_text(json.dumps(tree), encoding="utf-8")


# ---- round trips ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["AT", "CMLM", "LAT"])
def test_what_is_saved_is_loaded(toy_run: Runs, tmp_path: Path, kind: str) -> None:
    first = load_model(toy_run(kind) / "model", CPU)
    again = tmp_path / "deep" / "again"
    save_model(again, first.model.state_dict(), first.info, (first.source_vocab, first.target_vocab))
    second = load_model(again, CPU)
    assert second.info == first.info
    assert type(second.model) is type(first.model)
    assert not second.model.training
    assert second.source_vocab is second.target_vocab
    assert second.source_vocab.encode("ba ko") == first.source_vocab.encode("ba ko")
    weights = second.model.state_dict()
    assert all(torch.equal(tensor, weights[name]) for name, tensor in first.model.state_dict().items())
    assert sorted(path.name for path in again.iterdir()) == [
        "README.md", "config.json", "model.safetensors", "vocab.model",
    ]  # fmt: skip
    assert [path.name for path in again.parent.iterdir()] == ["again"]


def test_settings_survive_in_config_json(model_copy: Path) -> None:
    loaded = load_model(model_copy, CPU)
    decode = DecodeSettings(iterations=9, rules="paper")
    info = ModelInfo(TINY, decode, "de", "en", 350, 350, True, 77, 5)
    save_model(model_copy.with_name("new"), loaded.model.state_dict(), info, (loaded.source_vocab, loaded.target_vocab))
    assert read_info(model_copy.with_name("new")) == info


def test_the_card_tells_what_is_known(model_copy: Path) -> None:
    card = (model_copy / "README.md").read_text(encoding="utf-8")
    assert card.startswith("# xx to yy, LAT, pieces of 3\n")
    assert "350 source, 350 target, joint" in card
    assert "20 updates, sentences of up to 30 tokens" in card


def test_separate_vocabularies_stay_separate(toy_run: Runs, tmp_path: Path) -> None:
    info = read_info(toy_run("LAT") / "model")
    source, target = load_vocabs(toy_run("LAT") / "model")[0], load_vocabs(toy_run("AT") / "model")[0]
    model = build_model(TINY, source.size, target.size, False, torch.Generator().manual_seed(1))
    told = ModelInfo(TINY, info.decode, "xx", "yy", source.size, target.size, False, 30, 1)
    save_model(tmp_path / "two", model.state_dict(), told, (source, target))
    loaded = load_model(tmp_path / "two", CPU)
    assert loaded.source_vocab is not loaded.target_vocab
    (tmp_path / "two" / "vocab.target.model").unlink()
    assert "no vocabulary (vocab.target.model" in refusal(lambda: load_model(tmp_path / "two", CPU))


def test_an_existing_directory_is_never_written_into(model_copy: Path) -> None:
    loaded = load_model(model_copy, CPU)
    before = {path.name: path.read_bytes() for path in model_copy.iterdir()}
    message = refusal(lambda: save_model(model_copy, {}, loaded.info, (loaded.source_vocab, loaded.target_vocab)))
    assert message == f"{model_copy}: exists already; choose another name or remove it"
    assert {path.name: path.read_bytes() for path in model_copy.iterdir()} == before


def test_half_precision_weights_are_widened(model_copy: Path) -> None:
    weights = load_file(model_copy / WEIGHTS)
    save_file({name: tensor.bfloat16() for name, tensor in weights.items()}, model_copy / WEIGHTS)
    change_config(model_copy)
    loaded = load_model(model_copy, CPU).model.state_dict()
    assert {tensor.dtype for tensor in loaded.values()} == {torch.float32}


def store(directory: Path, storage: str) -> None:
    """Store the weights of a model directory in fewer bytes."""
    info, weights = read_info(directory), load_file(directory / WEIGHTS)
    save_file(shrink(weights, storage, ""), directory / WEIGHTS)
    write_info(directory, info, storage)


def test_full_weights_are_not_told_of(model_copy: Path) -> None:
    """As in directories that were written before there was another way."""
    assert "storage" not in json.loads((model_copy / CONFIG).read_text(encoding="utf-8"))
    assert read_config(model_copy).storage == FULL
    assert {tensor.dtype for tensor in load_file(model_copy / WEIGHTS).values()} == {torch.float32}
    before = load_model(model_copy, CPU).model.state_dict()
    change_config(model_copy, storage=FULL)
    assert read_config(model_copy).storage == FULL
    after = load_model(model_copy, CPU).model.state_dict()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())


@pytest.mark.parametrize("storage", SMALLER)
def test_smaller_weights_are_restored(model_copy: Path, storage: str) -> None:
    before = load_model(model_copy, CPU)
    store(model_copy, storage)
    assert read_config(model_copy).storage == storage
    after = load_model(model_copy, CPU)
    assert after.info == before.info
    full = before.model.state_dict()
    shrunk = shrink(full, storage, "")
    expected = {name: restore(shrunk, name, tensor.shape, "") for name, tensor in full.items()}
    weights = after.model.state_dict()
    assert all(torch.equal(tensor, weights[name]) for name, tensor in expected.items())
    assert {tensor.dtype for tensor in weights.values()} == {torch.float32}


def test_smaller_weights_are_checked_as_the_full_ones_are(model_copy: Path) -> None:
    store(model_copy, "int8")
    change_config(model_copy)
    path, stored = model_copy / WEIGHTS, load_file(model_copy / WEIGHTS)
    name = "length.table.weight"
    save_file({key: tensor for key, tensor in stored.items() if key != name + SCALE}, path)
    assert refusal(lambda: load_model(model_copy, CPU)) == (
        f"{path}: the scales of {name} are missing or do not fit; copy the model directory again"
    )
    save_file({key: tensor for key, tensor in stored.items() if not key.startswith(name)}, path)
    assert refusal(lambda: load_model(model_copy, CPU)).startswith(f"{path}: lacks tensor '{name}'; ")
    save_file({**stored, name: stored[name][:, :5].contiguous()}, path)
    assert refusal(lambda: load_model(model_copy, CPU)).startswith(f"{path}: {name} has shape (64, 5), config.json ")
    save_file(stored, path)
    write_info(model_copy, read_info(model_copy))  # the config.json of the model it was made from
    assert refusal(lambda: load_model(model_copy, CPU)).startswith(
        f"{path}: body.tables.0.weight is torch.int8, which "
    )


# ---- what can be wrong with a model directory ----------------------------------------------------------------------


def spoil_config(text: str | bytes) -> Callable[[Path], None]:
    raw = text if isinstance(text, bytes) else text.encode()
    return lambda directory: (directory / CONFIG).write_bytes(raw) and None


def drop_setting(directory: Path) -> None:
    tree = json.loads((directory / CONFIG).read_text(encoding="utf-8"))
    del tree["max_length"]
    (directory / CONFIG).write_text(json.dumps(tree), encoding="utf-8")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda d: shutil.rmtree(d), "{d}: no such model directory; `lath train` writes one as RUN/model"),
        (lambda d: (d / CONFIG).unlink(), "{d}: neither a model nor a run directory, it has no config.json"),
        (
            spoil_config('{"format": 1, "netw'),
            "{d}/config.json: damaged or not written by lath "
            "(Unterminated string starting at: line 1 column 15 (char 14)); "
            "copy the model directory again",
        ),
        (
            spoil_config(b'{"\xff'),
            "{d}/config.json: damaged or not written by lath "
            "('utf-8' codec can't decode byte 0xff in position 2: invalid start byte); "
            "copy the model directory again",
        ),
        (
            spoil_config('{"architectures": ["MarianMTModel"], "d_model": 512}'),
            "{d}/config.json: not written by lath; a model directory comes from `lath train` or `lath average`",
        ),
        (
            spoil_config("[1, 2]"),
            "{d}/config.json: not written by lath; a model directory comes from `lath train` or `lath average`",
        ),
        (
            lambda d: change_config(d, format=7),
            "{d}/config.json: format 7, but this version of lath reads formats 1 and 2; update lath",
        ),
        (
            lambda d: change_config(d, max_lenght=3),
            "{d}/config.json: unknown setting 'max_lenght' (did you mean 'max_length'?)",
        ),
        (
            lambda d: change_config(d, storage="int4"),
            "{d}/config.json: the weights are stored as 'int4', but this version of lath reads "
            "fp32, coded, int8, fp16; update lath",
        ),
        (
            lambda d: change_config(d, storage=["int8"]),
            "{d}/config.json: the weights are stored as ['int8'], but this version of lath reads "
            "fp32, coded, int8, fp16; update lath",
        ),
        (lambda d: change_config(d, network=3), None),
        (lambda d: change_config(d, joint="yes"), "{d}/config.json: joint: expected true or false, got 'yes'"),
        (drop_setting, None),
        (lambda d: (d / WEIGHTS).unlink(), "{d}/model.safetensors: missing; copy the whole directory again"),
        (
            lambda d: (d / "vocab.model").unlink(),
            "{d}: no vocabulary (vocab.model or vocab.json); "
            "name a directory written by lath prepare or lath train",
        ),
        (
            lambda d: change_config(d, source_size=349, target_size=349),
            "{d}: the vocabulary has 350 and 350 entries, the model was trained with 349 and 349; "
            "the files are of different models, copy the directory again",
        ),
        (
            lambda d: shutil.copy(d / "vocab.model", d / "vocab.source.model")
            and shutil.move(d / "vocab.model", d / "vocab.target.model")
            and None,
            None,
        ),
    ],
)  # fmt: skip
def test_a_bad_model_directory_is_told(model_copy: Path, spoil: Callable[[Path], None], message: str | None) -> None:
    spoil(model_copy)
    told = refusal(lambda: load_model(model_copy, CPU))
    if message is None:
        assert told.startswith(str(model_copy))
    else:
        assert told == message.format(d=model_copy)


def test_a_model_of_lath_0_1_loads(model_copy: Path) -> None:
    tree = json.loads((model_copy / CONFIG).read_text(encoding="utf-8"))
    del tree["sha256"]
    tree["format"] = 1
    tree["network"]["piece_logit_scale"] = 8.0
    tree["decode"] |= {"merge": None, "adjust_towards": "current"}
    (model_copy / CONFIG).write_text(json.dumps(tree), encoding="utf-8")
    assert load_model(model_copy, CPU).info == read_info(model_copy)
    tree["network"]["piece_logit_scale"] = 1.0
    (model_copy / CONFIG).write_text(json.dumps(tree), encoding="utf-8")
    assert refusal(lambda: load_model(model_copy, CPU)) == (
        f"{model_copy / CONFIG}: network: piece_logit_scale is 1.0, which only lath 0.1 supports; "
        "use that version, or remove piece_logit_scale and check what changes"
    )


@pytest.mark.parametrize("kept", [0, 5, 200, -1])
def test_truncated_weights_are_told(model_copy: Path, kept: int) -> None:
    raw = (model_copy / WEIGHTS).read_bytes()
    (model_copy / WEIGHTS).write_bytes(raw[:kept])
    told = refusal(lambda: load_model(model_copy, CPU))
    assert told.startswith(f"{model_copy / WEIGHTS}: damaged or not a safetensors file (")
    assert told.endswith("); copy it again")


@pytest.mark.parametrize("raw", [b"PK\x03\x04 a pickle in a zip file" * 9, b"\x80\x04\x95", b"{}"])
def test_a_file_of_another_format_is_told(model_copy: Path, raw: bytes) -> None:
    (model_copy / WEIGHTS).write_bytes(raw)
    assert "damaged or not a safetensors file" in refusal(lambda: load_model(model_copy, CPU))


def test_a_truncated_vocabulary_is_told(model_copy: Path) -> None:
    change_config(model_copy)
    raw = (model_copy / "vocab.model").read_bytes()
    (model_copy / "vocab.model").write_bytes(raw[: len(raw) // 2])
    told = refusal(lambda: load_model(model_copy, CPU))
    assert told.startswith(f"{model_copy / 'vocab.model'}: damaged or not written by lath")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda weights: weights.pop("length.table.weight") is None,
            "lacks tensor 'length.table.weight'; the weights are of another kind of model than config.json says",
        ),
        (
            lambda weights: weights.update({"aaa": torch.zeros(1)}),
            "has an unknown tensor 'aaa'; the weights are of another kind of model than config.json says",
        ),
        (
            lambda weights: weights.update({"local.input.bias": torch.zeros(3)}),
            "local.input.bias has shape (3,), config.json and vocabulary ask for (256,); "
            "the files are of different models",
        ),
    ],
)
def test_weights_that_do_not_fit_are_told(
    model_copy: Path, change: Callable[[dict[str, torch.Tensor]], Any], message: str
) -> None:
    weights = load_file(model_copy / WEIGHTS)
    change(weights)
    save_file(weights, model_copy / WEIGHTS)
    assert refusal(lambda: load_model(model_copy, CPU)) == f"{model_copy / WEIGHTS}: {message}"


def test_weights_of_another_kind_are_told(model_copy: Path, toy_run: Runs) -> None:
    shutil.copy(toy_run("AT") / "model" / WEIGHTS, model_copy / WEIGHTS)
    assert "the weights are of another kind of model than config.json says" in refusal(
        lambda: load_model(model_copy, CPU)
    )


def test_a_run_is_not_a_model(toy_run: Runs, tmp_path: Path) -> None:
    run = Path(shutil.copytree(toy_run("LAT"), tmp_path / "run"))
    assert refusal(lambda: load_model(run, CPU)) == f"{run}: a training run, not a model; use {run / 'model'}"
    shutil.rmtree(run / "model")
    told = refusal(lambda: load_model(run, CPU))
    assert told == f"{run}: a training run, not a model; finish it, or write a model with `lath average`"


def test_a_file_of_tensors_may_be_read_by_whoever_may_read_the_files_beside_it(tmp_path: Path) -> None:
    (tmp_path / "beside").write_bytes(b"")
    save_tensors({"m": torch.ones(2)}, tmp_path / "tensors", {"format": "1"})
    assert (tmp_path / "tensors").stat().st_mode == (tmp_path / "beside").stat().st_mode
    assert torch.equal(load_file(tmp_path / "tensors")["m"], torch.ones(2))
