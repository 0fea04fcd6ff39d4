"""The shortlist: which tokens occur together, and decoding with some rows of the output matrix."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import Translators
from safetensors import safe_open
from safetensors.torch import save_file
from toy import RENDERED, WORDS, ambiguous_pairs, toy_recipe

from lath.cli import main
from lath.config import DecodeSettings
from lath.decoding.decoder import decode
from lath.engine import shortlist
from lath.engine.int8 import quantise
from lath.engine.shortlist import (
    Shortlist,
    add_shortlist,
    build_shortlist,
    decode_shortlisted,
    has_shortlist,
    load_shortlist,
    save_shortlist,
    with_shortlist,
)
from lath.errors import UserError
from lath.model.directory import SHORTLIST, add_digest, read_info
from lath.model.network import LAT
from lath.model.padding import pad
from lath.preparation import prepare
from lath.text.corpus import Corpus, Side
from lath.text.vocab import EOS, PAD, SPECIALS
from lath.translator import load

KINDS = ("AT", "CMLM", "LAT")


def corpus(pairs: list[tuple[list[int], list[int]]]) -> Corpus:
    sides = list(zip(*pairs, strict=True))
    tokens = [np.array([id for ids in side for id in ids], np.uint16) for side in sides]
    lengths = [np.array([len(ids) for ids in side], np.int32) for side in sides]
    offsets = [np.concatenate([[0], np.cumsum(length)]).astype(np.int64) for length in lengths]
    return Corpus(*map(Side, tokens, offsets, lengths))


PAIRS = [([10, 11], [20, 21, 7]), ([10, 12], [20, 22, 7]), ([11, 12], [21, 22, 7]), ([13], [23, 7])]


def test_a_word_finds_its_translation() -> None:
    made = build_shortlist(corpus(PAIRS), 14, 24, near=1, frequent=0)
    assert made.near[10:14, 0].tolist() == [20, 21, 22, 23]
    assert made.always.nonzero()[:, 0].tolist() == list(range(len(SPECIALS)))


def test_candidates_are_those_of_all_words_and_the_frequent_ones_in_order() -> None:
    made = build_shortlist(corpus(PAIRS), 14, 24, near=1, frequent=1)
    assert made.candidates(torch.tensor([[13, 10, EOS]])).tolist() == [*range(len(SPECIALS)), 7, 20, 23]


def test_a_word_never_seen_brings_nothing() -> None:
    made = build_shortlist(corpus(PAIRS), 20, 24, near=3, frequent=0)
    assert made.candidates(torch.tensor([19])).tolist() == list(range(len(SPECIALS)))


def test_counting_in_blocks_changes_nothing(toy_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = Corpus.open(toy_folder / "data", "train")
    whole = build_shortlist(text, 400, 400, near=4, frequent=3)
    monkeypatch.setattr(shortlist, "BLOCK", 1000)
    in_blocks = build_shortlist(text, 400, 400, near=4, frequent=3)
    assert whole.near.equal(in_blocks.near)
    assert whole.always.equal(in_blocks.always)


def test_the_toy_language_is_found(trained: Translators, toy_folder: Path) -> None:
    mt = trained("LAT")
    made = build_shortlist(Corpus.open(toy_folder / "data", "train"), mt.source_vocab.size, mt.target_vocab.size, 6, 0)
    for word, rendered in zip(WORDS, RENDERED, strict=True):
        candidates = made.candidates(torch.tensor(mt.source_vocab.encode(word))).tolist()
        assert set(mt.target_vocab.encode(rendered)) <= set(candidates)


def everything(size: int) -> Shortlist:
    return Shortlist(torch.zeros(size, 1, dtype=torch.long), torch.ones(size, dtype=torch.bool))


@pytest.mark.parametrize("small", [False, True], ids=["fp32", "int8"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_whole_vocabulary_changes_nothing(wild: Translators, kind: str, small: bool) -> None:
    mt = wild(kind)
    model = quantise(mt.model) if small else mt.model
    source = pad([[*mt.source_vocab.encode(line), EOS] for line in ("ba ko mi", "tu re sa lo ni pe du", "fa")])
    settings = DecodeSettings(iterations=3, length_candidates=2, beam=2)
    wanted = [decode(model, row[row != PAD][None], settings)[0] for row in source]
    found = decode_shortlisted(model, source, settings, everything(mt.info.target_size))
    assert [one.ids for one in found] == [one.ids for one in wanted]
    assert [one.score for one in found] == pytest.approx([one.score for one in wanted], abs=0.02)


@pytest.mark.parametrize("small", [False, True], ids=["fp32", "int8"])
@pytest.mark.parametrize("kind", KINDS)
def test_only_what_is_on_the_list_is_written(wild: Translators, kind: str, small: bool) -> None:
    mt = wild(kind)
    model = quantise(mt.model) if small else mt.model
    always = torch.zeros(mt.info.target_size, dtype=torch.bool)
    always[: len(SPECIALS)] = True
    always[[30, 31, 40]] = True
    short = Shortlist(torch.zeros(mt.info.source_size, 1, dtype=torch.long), always)
    source = pad([[*mt.source_vocab.encode("ba ko mi tu re"), EOS]])
    (decoded,) = decode_shortlisted(model, source, DecodeSettings(iterations=2), short)
    assert decoded.ids
    assert set(decoded.ids) <= set(always.nonzero()[:, 0].tolist())


def test_scores_are_probabilities_among_the_list(wild: Translators) -> None:
    model = wild("LAT").model
    assert isinstance(model, LAT)
    ids = torch.tensor([*range(len(SPECIALS)), 30, 31])
    short = with_shortlist(model, ids)
    states = torch.randn(1, 4, model.settings.width, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        scores, chosen = short.body.best_tokens(states, (1, 4, 5))
        wanted = model.body.logits(states)[..., ids].log_softmax(-1)
    torch.testing.assert_close(scores, wanted.gather(-1, torch.searchsorted(ids, chosen)[..., None])[..., 0])
    assert len(model.body.logits(states)[0, 0].isfinite().nonzero()) > len(ids), "the model itself is as it was"


# ---- files ------------------------------------------------------------------------------------------------------


def test_a_shortlist_lives_in_a_model_directory(model_copy: Path, toy_folder: Path) -> None:
    assert add_shortlist(toy_folder / "data", model_copy, near=5, frequent=10) == model_copy / SHORTLIST
    info = read_info(model_copy)
    made = build_shortlist(Corpus.open(toy_folder / "data", "train"), info.source_size, info.target_size, 5, 10)
    loaded = load_shortlist(model_copy)
    assert loaded.near.equal(made.near)
    assert loaded.always.equal(made.always)


@pytest.mark.parametrize(("entries", "stored"), [(1 << 16, torch.uint16), ((1 << 16) + 1, torch.int32)])
def test_ids_take_two_bytes_where_they_fit(model_copy: Path, entries: int, stored: torch.dtype) -> None:
    config = json.loads((model_copy / "config.json").read_text(encoding="utf-8"))
    config |= {"source_size": 3, "target_size": entries, "joint": False}
    del config["sha256"]
    (model_copy / "config.json").write_text(json.dumps(config), encoding="utf-8")
    near = torch.tensor([[0, 1], [(1 << 15) - 1, 1 << 15], [entries - 2, entries - 1]])
    made = Shortlist(near, torch.arange(entries) < len(SPECIALS))
    with safe_open(save_shortlist(made, model_copy), framework="pt") as file:
        assert file.get_tensor("near").dtype == stored
    loaded = load_shortlist(model_copy)
    assert loaded.near.equal(near)
    assert loaded.candidates(torch.tensor([2])).tolist() == [*range(len(SPECIALS)), entries - 2, entries - 1]


def test_ids_of_four_bytes_are_read(model_copy: Path, toy_folder: Path) -> None:
    """As earlier versions wrote them."""
    add_shortlist(toy_folder / "data", model_copy, near=5, frequent=10)
    made = load_shortlist(model_copy)
    save_file({"near": made.near.int(), "always": made.always}, model_copy / SHORTLIST, metadata={"format": "1"})
    add_digest(model_copy, model_copy / SHORTLIST)
    loaded = load_shortlist(model_copy)
    assert loaded.near.equal(made.near)
    assert loaded.always.equal(made.always)


def test_a_missing_shortlist_is_reported_with_the_remedy(model_copy: Path) -> None:
    assert not has_shortlist(model_copy)
    translator = load(model_copy, "cpu")
    with pytest.raises(UserError, match="the model has none; make one with lath shortlist DATA MODEL"):
        translator.translate(["ba"], shortlist=True)
    with pytest.raises(UserError, match="is for the CPU and engine plain or auto"):
        translator.with_engine("recorded").translate(["ba", "ko"], shortlist=True)


def test_the_command_line_makes_and_uses_one(toy_folder: Path, model_copy: Path) -> None:
    assert main(["shortlist", str(toy_folder / "data"), str(model_copy), "--near", "3", "--frequent", "5"]) == 0
    assert has_shortlist(model_copy)
    translator = load(model_copy, "cpu")
    lines = ["ba ko", "gu"]
    expected = translator.with_engine("plain").translate(lines, shortlist=True)
    assert translator.translate(lines, shortlist=True) == expected


def test_a_damaged_file_is_reported(model_copy: Path) -> None:
    (model_copy / SHORTLIST).write_bytes(b"not a shortlist")
    with pytest.raises(UserError, match="damaged or not a safetensors file"):
        load_shortlist(model_copy)


def test_a_foreign_vocabulary_is_refused(model_copy: Path, tmp_path: Path) -> None:
    other = prepare(toy_recipe(tmp_path, "LAT", ambiguous_pairs), tmp_path / "other").directory
    with pytest.raises(
        UserError, match="have different vocabularies; prepare the text with the vocabulary of the model"
    ):
        add_shortlist(other, model_copy, near=5, frequent=10)
