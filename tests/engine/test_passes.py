"""CMLM and LAT in fixed shapes give what the plain decoder gives."""

from __future__ import annotations

import weakref
from collections.abc import Iterator

import pytest
import torch
from wild import WAYS, sentences, wild_model

from lath.config import DecodeSettings, Kind
from lath.decoding.decoder import decode
from lath.engine.graphs import uncollected
from lath.engine.passes import Passes, target_width
from lath.model.padding import pad
from lath.text.vocab import EOS


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["CMLM", "LAT"])
def test_fixed_shapes_give_what_the_plain_decoder_gives(kind: Kind, way: str) -> None:
    for seed in (2, 7):
        model, settings = wild_model(kind, seed), WAYS[way]
        passes = Passes(model, settings)
        for count in (1, 7, 16):
            source = sentences(count, seed + count)
            found, expected = passes.decode(source), decode(model, source, settings)
            assert [result.ids for result in found] == [result.ids for result in expected]
            assert [result.iterations for result in found] == [result.iterations for result in expected]
            assert [result.score for result in found] == pytest.approx([result.score for result in expected], abs=1e-5)


def test_a_text_that_grows_beyond_its_width_is_decoded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    model, settings = wild_model("LAT", 8), DecodeSettings(iterations=4)
    monkeypatch.setattr("lath.engine.passes.target_width", lambda length, most: min(length + 1, most))
    passes, source = Passes(model, settings), sentences(16, 0)
    found = passes.decode(source)
    batches = [batch for batch, _, _ in passes._decoders]
    assert len(batches) > 1
    assert batches[-1] < batches[0]  # the others are not
    assert [result.ids for result in found] == [result.ids for result in decode(model, source, settings)]


@pytest.mark.parametrize("kind", ["CMLM", "LAT"])
def test_a_translation_far_longer_than_its_source_is_decoded_again(kind: Kind) -> None:
    model, settings = wild_model(kind, 8), DecodeSettings(iterations=2)  # it knows two lengths, 2 and 29
    widened = 0
    for word in range(6, 16):
        passes, source = Passes(model, settings), pad([[word, EOS]])
        assert [r.ids for r in passes.decode(source)] == [r.ids for r in decode(model, source, settings)]
        widened += len(passes._decoders) > 1
    assert 0 < widened < 10


def test_a_large_batch_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    model, settings = wild_model("LAT", 3), DecodeSettings(iterations=2)
    expected = Passes(model, settings).decode(sentences(9, 4))
    monkeypatch.setattr("lath.engine.passes.MOST_POSITIONS", 60)
    passes = Passes(model, settings)
    assert [result.ids for result in passes.decode(sentences(9, 4))] == [result.ids for result in expected]
    assert max(batch for batch, _ in passes._encoders) < 9


def test_old_shapes_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lath.engine.passes.MOST_SHAPES", 3)
    model, settings = wild_model("CMLM", 1), DecodeSettings(iterations=2)
    passes = Passes(model, settings)
    for word, count in enumerate((1, 2, 2, 4, 4, 8, 8, 16), start=6):  # again, just after others were forgotten
        source = pad([[word, word, EOS]] * count)
        assert [r.ids for r in passes.decode(source)] == [r.ids for r in decode(model, source, settings)]
        assert len(passes._encoders) + len(passes._decoders) <= 4


def test_what_nobody_holds_is_gone_at_once() -> None:
    # On a GPU it holds gigabytes and recordings, and the collector of circles comes when it likes.
    passes = Passes(wild_model("LAT", 2), WAYS["four"])
    passes.decode(sentences(2, 2))
    watched = weakref.ref(passes)
    with uncollected():
        del passes
        assert watched() is None


def test_widths_leave_room() -> None:
    assert [target_width(length, 512) for length in (2, 20, 30, 100, 500)] == [8, 32, 40, 128, 512]


@pytest.mark.parametrize("kind", ["CMLM", "LAT"])
def test_batch_after_batch_is_each_by_itself(kind: Kind) -> None:
    model, settings = wild_model(kind, 5), DecodeSettings(iterations=3)
    sources = [sentences(count, count) for count in (3, 1, 3, 8, 2)]
    found = list(Passes(model, settings).decode_many(iter(sources)))
    expected = [decode(model, source, settings) for source in sources]
    assert [[r.ids for r in batch] for batch in found] == [[r.ids for r in batch] for batch in expected]


def test_the_next_batch_is_under_way_when_one_is_given_back() -> None:
    asked: list[int] = []

    def sources() -> Iterator[torch.Tensor]:
        for count in (1, 2, 3):
            asked.append(count)
            yield sentences(count, count)

    batches = Passes(wild_model("LAT", 2), DecodeSettings(iterations=1)).decode_many(sources())
    assert len(next(batches)) == 1
    assert asked == [1, 2]
