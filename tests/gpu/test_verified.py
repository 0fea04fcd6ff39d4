"""A recorded pair gives what the plain pair gives, on a GPU. Skipped where there is none."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest
import torch
import verify_cases
from at_once import asked_at_once
from conftest import Runs
from wild import sentences, verifying

import lath
from lath.analysis.bench import load_rows
from lath.analysis.settings import BenchSettings
from lath.config import DecodeSettings
from lath.decoding.results import Decoded
from lath.decoding.verify import VerifyingDecoder
from lath.engine.beam import BeamSearch
from lath.engine.fused import causal_mask, fuse
from lath.engine.recorded import RecordedDecoder
from lath.engine.verified import Verification
from lath.model.padding import pad
from lath.text.vocab import EOS, MASK

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")

NEARLY = 1e-3
WIDE = {"width": 64, "heads": 4}  # heads of 16: what the kernel for few queries takes


def settings(verify: str, **others: object) -> DecodeSettings:
    return DecodeSettings(verify=verify, length_penalty=0.7, **others)  # type: ignore[arg-type]


def on_gpu(pair: VerifyingDecoder) -> VerifyingDecoder:
    return VerifyingDecoder(pair.student.cuda(), pair.verifier.cuda())


def recorded(pair: VerifyingDecoder, chosen: DecodeSettings) -> Verification:
    return Verification(fuse(pair.student), fuse(pair.verifier), chosen)


def same(found: list[Decoded], expected: list[Decoded]) -> None:
    assert [one.ids for one in found] == [one.ids for one in expected]
    assert [(one.iterations, one.checks) for one in found] == [(one.iterations, one.checks) for one in expected]
    assert [one.score for one in found] == pytest.approx([one.score for one in expected], abs=NEARLY)


def test_the_kernels_do_what_the_plain_functions_do() -> None:
    assert verify_cases.differences("cuda", seeds=200) == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("length", [1, 31, 40, 64, 80])
def test_a_text_attends_to_its_past_as_by_torch(dtype: torch.dtype, length: int) -> None:
    generator = torch.Generator("cuda").manual_seed(length)
    query, keys, values = torch.randn((3, length, 3, 8, 64), generator=generator, device="cuda").to(dtype).unbind(2)
    found = causal_mask(length, query).attend(query, keys, values).float()
    one, other, mixed = (tensor.float().cpu() for tensor in (query, keys, values))
    expected = causal_mask(length, one).attend(one, other, mixed)
    assert torch.allclose(found.cpu(), expected, atol=1e-4 if dtype == torch.float32 else 1e-2)


@pytest.mark.parametrize("network", [{}, WIDE], ids=["small", "wide"])
@pytest.mark.parametrize(
    "others",
    [
        {"iterations": 1},
        {"iterations": 3, "length_candidates": 3},
        {"iterations": 1, "verify_top": 30, "verify_nats": 9.0},  # much of a draft is accepted
    ],
)
@pytest.mark.parametrize("ends", [0.5, -5.0])  # AT ends a sentence sometimes, never
@pytest.mark.parametrize("verify", ["rerank", "relaxed", "exact"])
def test_a_recorded_pair_gives_what_the_plain_pair_gives(
    verify: str, ends: float, others: dict[str, object], network: dict[str, int]
) -> None:
    pair, chosen = on_gpu(verifying(1, 6, ends, **network)), settings(verify, **others)
    engine = recorded(pair, chosen)
    for count in (1, 12, 1, 12):  # the second time nothing is recorded any more
        source = sentences(count, count)
        same(engine.decode(source), pair.decode(source, chosen))


def test_exact_is_recorded_greedy_search() -> None:
    pair, draw = on_gpu(verifying(3, 8, 0.3, **WIDE)), random.Random(1)
    rows = [[*(draw.randrange(6, 40) for _ in range(draw.randint(1, 20))), EOS] for _ in range(200)]
    rows.sort(key=len)
    search = BeamSearch(fuse(pair.verifier), 1, 0.7)
    engine = recorded(pair, settings("exact", iterations=1))
    for size in (1, 50):
        for start in range(0, 200 if size > 1 else 20, size):
            source = pad(rows[start : start + size])
            expected = search.decode(source)
            found = engine.decode(source)
            assert [one.ids for one in found] == [one.ids for one in expected]
            assert [one.score for one in found] == pytest.approx([one.score for one in expected], abs=NEARLY)


def test_what_outgrows_its_width_and_old_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lath.engine.verified.target_width", lambda length, most: min(length + 1, most))
    monkeypatch.setattr("lath.engine.verified.MOST_SHAPES", 3)
    for verify in ("rerank", "relaxed"):
        pair, chosen = on_gpu(verifying(8, 2, -5.0, **WIDE)), settings(verify, iterations=4)
        engine = recorded(pair, chosen)
        for count in (1, 12, 3, 1):
            source = sentences(count, count)
            same(engine.decode(source), pair.decode(source, chosen))


def test_half_precision() -> None:
    pair = on_gpu(verifying(3, 8, 0.3, **WIDE))
    narrow = recorded(
        VerifyingDecoder(pair.student.half(), pair.verifier.half()), settings("relaxed", iterations=1, verify_nats=3.0)
    )
    for one in narrow.decode(sentences(40, 4)):
        assert all(id > MASK for id in one.ids)
        assert math.isfinite(one.score)
        assert one.checks >= 1


def test_threads_share_a_recorded_pair() -> None:
    pair = on_gpu(verifying(1, 6, 0.5))
    sources = [sentences(count, count) for count in range(1, 40)]
    for verify in ("rerank", "exact"):
        chosen = settings(verify, iterations=2)
        serial = [RecordedDecoder(fuse(pair.student), fuse(pair.verifier)).decode(one, chosen) for one in sources[:8]]
        shared = RecordedDecoder(fuse(pair.student), fuse(pair.verifier))
        found = asked_at_once(lambda one: shared.decode(one, chosen), sources)  # noqa: B023
        assert found[:8] == serial


def test_a_pair_is_recorded_by_default(toy_run: Runs) -> None:
    student, teacher = toy_run("LAT") / "model", toy_run("AT") / "model"
    lines = ["ba ko", "mi tu re sa", "ko"]
    pair = lath.load(student, "cuda", "fp32", verifier=teacher)
    plain = lath.load(student, "cuda", "fp32", engine="plain", verifier=teacher)
    assert [pair.engine, plain.engine] == ["recorded", "plain"]
    for verify in ("rerank", "relaxed", "exact"):
        assert pair.translate(lines, verify=verify) == plain.translate(lines, verify=verify)
    assert pair.translate(lines, verify="exact") == lath.load(teacher, "cuda", "fp32").translate(lines, beam=1)
    assert pair.translate(lines, verify="") == lath.load(student, "cuda", "fp32").translate(lines)
    assert all(one.passes for one in pair.hypotheses(lines, trace=True))


def test_a_pair_is_measured_recorded(toy_pair: Path) -> None:
    rows = load_rows([toy_pair], BenchSettings())
    assert [row.settings.verify for row in rows] == ["", "", "", "rerank", "relaxed", "exact"]
    assert {row.translator.engine for row in rows} == {"recorded"}
