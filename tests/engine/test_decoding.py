"""Every engine gives the same translations, and the plain one is the oracle."""

from __future__ import annotations

import pytest
import torch
from wild import sentences, wild_model

from lath.config import DecodeSettings, Kind
from lath.decoding.decoder import decode, merge_rows
from lath.engine.decoding import (
    MERGE_TOGETHER,
    BatchedDecoder,
    PlainDecoder,
    RecordedDecoder,
    choose_decoder,
    merge_together,
    works,
)
from lath.errors import UserError

CPU = torch.device("cpu")


@pytest.mark.parametrize("engine", ["auto", "plain", "recorded"])
@pytest.mark.parametrize("kind", ["CMLM", "LAT"])
def test_every_engine_gives_the_same_translations(kind: Kind, engine: str) -> None:
    model, settings = wild_model(kind, 2), DecodeSettings(iterations=3)
    decoder = choose_decoder(model, CPU, engine)
    for count in (1, MERGE_TOGETHER + 2):
        source = sentences(count, count)
        found, expected = decoder.decode(source, settings), decode(model, source, settings)
        assert [(result.ids, result.iterations) for result in found] == [(r.ids, r.iterations) for r in expected]


def test_larger_batches_are_merged_together(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(
        "lath.engine.decoding.merge_together", lambda *given: (seen.append(len(given[0])), merge_rows(*given))[1]
    )
    decoder, settings = BatchedDecoder(wild_model("LAT", 2), CPU), DecodeSettings(iterations=1, length_candidates=2)
    decoder.decode(sentences(4, 1), settings)
    decoder.decode(sentences(5, 1), settings, trace=True)
    assert seen == []
    decoder.decode(sentences(5, 1), settings)
    assert seen == [MERGE_TOGETHER]


def test_merging_together_is_merging_one_by_one() -> None:
    model = wild_model("LAT", 2)
    inputs = [[4] * length for length in (9, 3, 6)]
    with torch.inference_mode():
        target = torch.tensor([[*shown, *[0] * (9 - len(shown))] for shown in inputs])
        written = model.pieces(model.decode(target, model.encode(sentences(3, 1))[0]))
        for iteration in (1, 2):
            given = inputs, written, [9, 3, 6], DecodeSettings(iterations=2), iteration, 96
            for one, other in zip(merge_together(*given), merge_rows(*given), strict=True):
                assert one.sentence.ids == other.sentence.ids
                assert one.sentence.scores == pytest.approx(other.sentence.scores)
                assert iteration == 2 or one.next_input == other.next_input


def test_a_trace_comes_from_the_plain_way() -> None:
    decoder = RecordedDecoder(wild_model("LAT", 2), CPU)
    assert all(result.passes for result in decoder.decode(sentences(2, 1), DecodeSettings(), trace=True))


def test_few_ways_are_kept_ready() -> None:
    decoder = RecordedDecoder(wild_model("LAT", 2), CPU)
    for iterations in range(1, 8):
        decoder.decode(sentences(1, 1), DecodeSettings(iterations=iterations))
        decoder.decode(sentences(1, 1), DecodeSettings(iterations=iterations, batch_sentences=3))
    assert len(decoder._searches) == 4


def test_engines_are_chosen_by_name() -> None:
    model = wild_model("LAT", 2)
    assert isinstance(choose_decoder(model, CPU), BatchedDecoder)
    assert isinstance(choose_decoder(model, CPU, "plain"), PlainDecoder)
    with pytest.raises(UserError, match="unknown engine 'fast'; use auto, plain or recorded"):
        choose_decoder(model, CPU, "fast")


@pytest.mark.parametrize("engine", ["plain", "auto", "recorded"])
def test_a_decode_and_its_parts(engine: str) -> None:
    settings = DecodeSettings(iterations=2)
    for kind, count in (("LAT", 1), ("LAT", 12), ("CMLM", 2)):
        decoder, source = choose_decoder(wild_model(kind, 2), CPU, engine), sentences(count, 1)  # type: ignore[arg-type]
        whole, encode, merge = works(decoder, source, settings)
        assert whole() == decoder.decode(source, settings)
        encode()
        assert len(merge() or []) == (settings.iterations if kind == "LAT" else 0)  # type: ignore[arg-type]


def test_what_is_warmed_up_need_not_be_recorded_later() -> None:
    decoder, settings = RecordedDecoder(wild_model("LAT", 2), CPU), DecodeSettings(iterations=2)
    decoder.warm_up(settings, tokens=20, batch=3)
    passes = decoder._search(settings)
    shapes = set(passes._encoders)  # type: ignore[union-attr]
    assert shapes == {(4, 7), (4, 15), (4, 23)}
    decoder.decode(sentences(3, 1), settings)
    assert set(passes._encoders) == shapes  # type: ignore[union-attr]


def test_without_triton_a_gpu_merges_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lath.engine.decoding.has_merge_kernel", lambda: False)
    model, gpu = wild_model("LAT", 2), torch.device("cuda")
    with pytest.warns(UserWarning, match="Triton is missing, so pieces are merged on the CPU"):
        assert isinstance(choose_decoder(model, gpu), PlainDecoder)
    with pytest.raises(UserError, match="needs Triton; pip install triton, or use --engine plain"):
        choose_decoder(model, gpu, "recorded")
    assert isinstance(choose_decoder(wild_model("CMLM", 2), gpu), RecordedDecoder)
