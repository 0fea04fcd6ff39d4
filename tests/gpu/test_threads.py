"""A translator on a GPU may be shared between threads, while it records and when it replays."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from at_once import answers, asked_at_once, requests, wrong_answers
from wild import WAYS, sentences, wild_model

import lath
from lath.engine.fused import fuse
from lath.engine.recorded import RecordedDecoder

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")

LINES = (Path(__file__).parents[2] / "demo/tatoeba.test.de").read_text(encoding="utf-8").splitlines()[:400]


def test_two_thousand_requests_of_eight_threads() -> None:
    shared, alone = (lath.load("de-en", "cuda", "fp32") for _ in range(2))
    assert wrong_answers(shared, alone, requests(LINES, 200, 1), 2000) == 0


def test_two_translators_record_at_the_same_time() -> None:
    both = [lath.load("de-en", "cuda", "fp32") for _ in range(2)]
    asked = requests(LINES, 120, 2)
    found = asked_at_once(lambda number: answers(both[number % 2])(asked[number]), range(len(asked)))
    assert found == list(map(answers(both[0]), asked))


def test_masked_models() -> None:
    model = wild_model("CMLM", 1).to("cuda")
    sources = [sentences(count, count) for count in range(1, 60)]
    serial = [RecordedDecoder(fuse(model)).decode(source, WAYS["candidates"]) for source in sources]
    shared = RecordedDecoder(fuse(model))
    assert asked_at_once(lambda source: shared.decode(source, WAYS["candidates"]), sources) == serial
