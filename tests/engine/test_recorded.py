"""The recorded decoder gives what the plain one gives; on a CPU it runs the same work without recording it."""

from __future__ import annotations

import pytest
import torch
from wild import sentences, wild_model

from lath.config import DecodeSettings, Kind
from lath.decoding.decoder import PlainDecoder, decode
from lath.devices import choose_engine
from lath.engine.recorded import RecordedDecoder
from lath.errors import UserError
from lath.translator import choose_decoder

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize("engine", ["auto", "plain", "recorded"])
@pytest.mark.parametrize("kind", ["CMLM", "LAT"])
def test_every_engine_gives_the_same_translations(kind: Kind, engine: str) -> None:
    model, settings = wild_model(kind, 2), DecodeSettings(iterations=3)
    decoder = choose_decoder(model, engine)
    for count in (1, 12):
        source = sentences(count, count)
        found, expected = decoder.decode(source, settings), decode(model, source, settings)
        assert [(result.ids, result.iterations) for result in found] == [(r.ids, r.iterations) for r in expected]


def test_a_trace_comes_from_the_plain_decoder() -> None:
    decoder = RecordedDecoder(wild_model("LAT", 2))
    assert all(result.passes for result in decoder.decode(sentences(2, 1), DecodeSettings(), trace=True))


def test_settings_may_change_from_call_to_call() -> None:
    model = wild_model("LAT", 2)
    decoder, source = RecordedDecoder(model), sentences(3, 1)
    for iterations in (1, 2, 3, 4, 5, 6, 7, 1, 2):  # more than are kept ready, then some that were forgotten
        settings = DecodeSettings(iterations=iterations)
        assert [r.ids for r in decoder.decode(source, settings)] == [r.ids for r in decode(model, source, settings)]


def test_engines_are_chosen_by_name() -> None:
    model = wild_model("LAT", 2)
    assert isinstance(choose_decoder(model), PlainDecoder)
    assert isinstance(choose_decoder(model, "plain"), PlainDecoder)
    assert isinstance(choose_decoder(model, "recorded"), RecordedDecoder)
    with pytest.raises(UserError, match="unknown engine 'fast'; use auto, plain or recorded"):
        choose_decoder(model, "fast")
    assert [choose_engine("auto", "AT", device) for device in (CPU, GPU)] == ["plain", "recorded"]


def test_warming_up_changes_no_result() -> None:
    model, settings = wild_model("LAT", 2), DecodeSettings(iterations=2)
    decoder, source = RecordedDecoder(model), sentences(3, 1)
    decoder.warm_up(settings, tokens=20, batch=3)
    assert [r.ids for r in decoder.decode(source, settings)] == [r.ids for r in decode(model, source, settings)]


def test_without_triton_a_gpu_decodes_plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lath.devices.HAS_TRITON", False)
    with pytest.warns(UserWarning, match="Triton is missing, so LAT runs in plain PyTorch"):
        assert choose_engine("auto", "LAT", GPU) == "plain"
    with pytest.raises(UserError, match="needs Triton; pip install triton, or use --engine plain"):
        choose_engine("recorded", "LAT", GPU)
    assert choose_engine("auto", "CMLM", GPU) == "recorded"
