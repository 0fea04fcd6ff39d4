"""A translator may be shared between threads: each caller gets its own translations."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from at_once import answers, asked_at_once, requests, wrong_answers
from conftest import Runs, Translators
from toy import WORDS

import lath
from lath import devices
from lath.config import DecodeOptions

ROOT = Path(__file__).parents[1]


def toy_lines(count: int, seed: int) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(1, 6))) for _ in range(count)]


@pytest.mark.parametrize(("engine", "count"), [("plain", 400), ("recorded", 2000)])
def test_many_requests_of_eight_threads(wild: Translators, engine: str, count: int) -> None:
    shared, distinct = wild("LAT").with_engine(engine), requests(toy_lines(300, 1), 200, 1)
    assert wrong_answers(shared, wild("LAT"), distinct, count) == 0


@pytest.mark.parametrize("kind", ["AT", "CMLM"])
def test_other_kinds(wild: Translators, kind: str) -> None:
    asked = [([line], DecodeOptions()) for line in toy_lines(60, 2)]
    assert wrong_answers(wild(kind).with_engine("recorded"), wild(kind), asked, 60) == 0


def test_the_first_use_of_int8_by_many_threads() -> None:
    lines = (ROOT / "demo/tatoeba.test.de").read_text(encoding="utf-8").splitlines()[:16]
    asked = [([line], DecodeOptions(iterations=1)) for line in lines]
    found = asked_at_once(answers(lath.load("de-en", "cpu", "int8")), asked)  # prepares its weights only now
    assert found == list(map(answers(lath.load("de-en", "cpu", "int8")), asked))


def test_a_stream_left_half_read_holds_up_nobody(toy_run: Runs) -> None:
    translator = lath.load(toy_run("LAT") / "model", "cpu", engine="recorded")
    stream = translator.hypotheses(["ba ko"] * 100, batch_sentences=1)
    next(stream)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(translator.translate, ["mi"]).result(timeout=60) == translator.translate(["mi"])


def test_one_decode_at_a_time_takes_several_threads_always_in_the_same_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_leader", None)
    monkeypatch.setattr(devices, "idle_threads", lambda: 3)

    def taken(chosen: int | None = None) -> int:
        with devices.decode_threads(chosen):
            return torch.get_num_threads()

    def elsewhere(chosen: int | None = None) -> int:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(taken, chosen).result()

    assert elsewhere() == 3  # the first to ask leads, and its thread has ended
    assert taken() == 3
    assert elsewhere() == 1
    assert elsewhere(2) == 2  # what a user asks for is done
    with devices.decode_threads(None):
        assert taken() == 1
    assert taken() == 3
