"""A LAT in int8 on a CPU: with every token a candidate it is the plain decoder; nobody's neighbours change anything."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from wild import WAYS, sentences, wild_model

import lath
from lath.config import DecodeSettings
from lath.decoding.decoder import decode
from lath.engine.int8 import Int8Table, quantise, quantised_rows
from lath.engine.likely import LikelyDecoder, MaskedStates, SpanMask, TokenGates, likeliest, next_state, token_gates
from lath.engine.shortlist import Shortlist
from lath.model.network import LAT, NEVER_WRITTEN, KeyValues, LocalTranslator, Table, sentence_mask, top_tokens
from lath.model.padding import row_lengths
from lath.text.vocab import MASK, SOP, SPECIALS

EVERYTHING = 10_000


def small_model(seed: int) -> LAT:
    model = quantise(wild_model("LAT", seed))
    assert isinstance(model, LAT)
    return model


@pytest.mark.parametrize("way", WAYS)
def test_with_every_token_a_candidate_it_is_the_plain_decoder(way: str) -> None:
    same = 0
    for seed in range(6):
        model, source = small_model(seed), sentences(8, seed)
        found = LikelyDecoder(model, likely=EVERYTHING).decode(source, WAYS[way])
        expected = decode(model, source, WAYS[way])
        alike = [(one, other) for one, other in zip(found, expected, strict=True) if one.ids == other.ids]
        same += len(alike)
        assert all(one.score == pytest.approx(other.score, abs=0.02) for one, other in alike)
    assert same >= 46  # of 48: rounding decides a near-tie


def test_it_reports_its_passes_as_the_plain_decoder_does() -> None:
    model, source, settings = small_model(2), sentences(5, 1), DecodeSettings(iterations=3)
    found = LikelyDecoder(model, likely=EVERYTHING).decode(source, settings, trace=True)
    expected = decode(model, source, settings, trace=True)
    assert [[one.output for one in sentence.passes] for sentence in found] == [
        [one.output for one in sentence.passes] for sentence in expected
    ]
    assert all(len(sentence.passes) == 3 for sentence in found)
    assert not any(sentence.passes for sentence in LikelyDecoder(model).decode(source, settings))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("short", [False, True])
def test_to_the_last_bit_a_sentence_is_what_it_is_alone(way: str, short: bool) -> None:
    model, source = small_model(4), sentences(16, 3)
    near = torch.randint(
        0, model.body.target_size, (model.body.target_size, 5), generator=torch.Generator().manual_seed(1)
    )
    always = torch.arange(model.body.target_size) < len(SPECIALS)
    decoder = LikelyDecoder(model, Shortlist(near, always), likely=2)
    settings = lath.config.with_options(WAYS[way], {"shortlist": short})
    together = decoder.decode(source, settings)
    for row, length in enumerate(row_lengths(source)):
        (alone,) = LikelyDecoder(model, Shortlist(near, always), likely=2).decode(
            source[row : row + 1, :length], settings
        )
        assert (alone.ids, alone.score) == (together[row].ids, together[row].score)


def test_only_tokens_of_the_shortlist_are_written_and_with_all_of_them_it_changes_nothing() -> None:
    model, source = small_model(5), sentences(8, 2)
    size = model.body.target_size
    near, some = torch.zeros((size, 1), dtype=torch.long), torch.arange(size) < len(SPECIALS) + 4
    settings = DecodeSettings(iterations=2, shortlist=True)
    written = LikelyDecoder(model, Shortlist(near, some)).decode(source, settings)
    assert {id for sentence in written for id in sentence.ids} <= set(range(len(SPECIALS) + 4))
    every = LikelyDecoder(model, Shortlist(near, torch.ones(size, dtype=torch.bool)))
    without = DecodeSettings(iterations=2)
    assert [one.ids for one in every.decode(source, settings)] == [one.ids for one in every.decode(source, without)]


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_it_attends_as_the_padded_mask() -> None:
    query, keys, values = (random(3, 7, 2, 8, seed=seed) for seed in range(3))
    lengths = torch.tensor([7, 3, 1])
    there = torch.arange(7) < lengths[:, None]
    expected = sentence_mask(there, there, query).attend(query, keys, values)
    places = [slice(0, 7), slice(7, 10), slice(10, 11)]
    mask = SpanMask([(place, place) for place in places])
    torch.testing.assert_close(mask.attend(query[there], keys[there], values[there]), expected[there])


@pytest.mark.parametrize(("columns", "size"), [(256, 250), (200, 200), (24, 20)])
def test_the_likeliest_tokens_are_those_of_all_logits(columns: int, size: int) -> None:
    table, states = Int8Table(Table(columns, 32), "fbgemm"), random(70, 32)
    found = likeliest(table.output, quantised_rows(states).numbers, size, 8)
    wanted = top_tokens(table.logits(states), size, NEVER_WRITTEN, 8)[1]
    assert found.sort().values.equal(wanted.sort().values)


def test_the_next_state_is_that_of_the_network() -> None:
    local, states, cell = LocalTranslator(16), random(5, 16), random(5, 16, seed=1)
    embedded = random(5, 16, seed=2)
    with torch.inference_mode():
        hidden, wanted = local(embedded, states, cell)
        rows, found = next_state(local.input(embedded) + local.recurrent(states), cell.clone())
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(rows.numbers * rows.ranges, hidden)


@torch.inference_mode()
def test_gates_of_tokens_are_kept() -> None:
    model = small_model(1)
    gates = TokenGates(model, token_gates(model, torch.tensor([SOP])))
    for tokens in ([SOP], [7, 9, 7], [9, 8, SOP], list(range(6, 20)) * 9):
        ids = torch.tensor(tokens)
        assert gates.of(ids).equal(token_gates(model, ids))


@torch.inference_mode()
def test_what_becomes_of_masks_is_kept_for_each_length() -> None:
    model = small_model(3)
    masked = MaskedStates(model)
    memory = [KeyValues(random(4, 2, 8), random(4, 2, 8, seed=1))] * len(model.body.decoder.layers)
    for length in (5, 3, 5):
        ids, span = torch.full((length,), MASK), slice(0, length)
        mask = SpanMask([(span, span)])
        layer = model.body.decoder.layers[0]
        x = model.body.embed_target(ids, torch.arange(length))
        seen = KeyValues(
            *(random(4, *masked.of(5).view(5, model.settings.heads, -1).shape[1:], seed=n) for n in (1, 2))
        )
        over = SpanMask([(span, slice(0, 4))])
        assert layer.attend_memory(masked.of(length), seen, over).equal(layer(x, mask, seen, over, None)[0])
    assert len(memory) == len(model.body.decoder.layers)


def test_a_model_in_int8_is_decoded_so_by_default() -> None:
    mt = lath.load("de-en", "cpu")
    assert (mt.engine, mt.precision) == ("likely", "int8")
    assert lath.load("de-en", "cpu", precision="fp32").engine == "plain"
    assert mt.with_engine("plain").engine == "plain"
    lines = ["Guten Morgen.", "Wo ist der Bahnhof?", "Das Haus am See ist rot."]
    assert mt.translate(lines) == mt.with_engine("plain").translate(lines)
