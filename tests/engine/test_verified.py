"""A pair in fixed shapes gives what the plain pair gives; on a CPU the same work runs without being recorded."""

from __future__ import annotations

import random
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from wild import sentences, verifying

from lath.config import DecodeSettings
from lath.decoding.decoder import decode
from lath.decoding.results import Decoded
from lath.decoding.verify import VerifyingDecoder
from lath.engine.graphs import tensors_of, uncollected
from lath.engine.recorded import RecordedDecoder
from lath.engine.verified import Verification
from lath.model.padding import pad
from lath.text.vocab import EOS

MODES = ("rerank", "relaxed", "exact")
NEARLY = 1e-4


def settings(verify: str, **others: object) -> DecodeSettings:
    return DecodeSettings(verify=verify, length_penalty=0.7, **others)  # type: ignore[arg-type]


def in_fixed_shapes(pair: VerifyingDecoder, chosen: DecodeSettings) -> Verification:
    return Verification(pair.student, pair.verifier, chosen)


def same(found: list[Decoded], expected: list[Decoded]) -> None:
    assert [one.ids for one in found] == [one.ids for one in expected]
    assert [(one.iterations, one.checks) for one in found] == [(one.iterations, one.checks) for one in expected]
    assert [one.score for one in found] == pytest.approx([one.score for one in expected], abs=NEARLY)


@pytest.mark.parametrize(
    "others",
    [
        {"iterations": 1},
        {"iterations": 3, "length_candidates": 3},
        {"iterations": 2, "extra_length": 2, "rules": "paper"},
        {"iterations": 1, "verify_top": 30, "verify_nats": 9.0},  # much of a draft is accepted
    ],
)
@pytest.mark.parametrize("ends", [0.0, 0.5, -5.0])  # AT ends a sentence sometimes, early, never
@pytest.mark.parametrize("verify", MODES)
def test_fixed_shapes_give_what_the_plain_pair_gives(verify: str, ends: float, others: dict[str, object]) -> None:
    pair, chosen = verifying(1, 6, ends), settings(verify, **others)
    fixed = in_fixed_shapes(pair, chosen)
    for count in (1, 6):
        source = sentences(count, count)
        same(fixed.decode(source), pair.decode(source, chosen))


def test_exact_is_greedy_search() -> None:
    pair, source = verifying(3, 8, 0.5), sentences(20, 3)
    expected = decode(pair.verifier, source, DecodeSettings(beam=1, length_penalty=0.7))
    found = in_fixed_shapes(pair, settings("exact", iterations=1)).decode(source)
    assert [one.ids for one in found] == [one.ids for one in expected]
    assert [one.score for one in found] == pytest.approx([one.score for one in expected], abs=NEARLY)


@pytest.mark.parametrize("verify", MODES)
def test_a_text_that_outgrows_its_width_is_written_again(verify: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lath.engine.verified.target_width", lambda length, most: min(length + 1, most))
    pair, chosen = verifying(8, 2, -5.0), settings(verify, iterations=4)
    fixed = in_fixed_shapes(pair, chosen)
    for count in (1, 12):
        source = sentences(count, count)
        same(fixed.decode(source), pair.decode(source, chosen))
    assert max(len(shape.rounds) + len(shape.reranks) for shape in fixed._shapes.values()) > 1


@pytest.mark.parametrize("verify", MODES)
def test_a_draft_far_longer_than_its_source(verify: str) -> None:
    pair, chosen = verifying(8, 9, 0.3), settings(verify, iterations=2)  # the student knows two lengths, 2 and 29
    for word in range(6, 12):
        source = pad([[word, EOS]])
        same(in_fixed_shapes(pair, chosen).decode(source), pair.decode(source, chosen))


@pytest.mark.parametrize("verify", MODES)
@pytest.mark.parametrize("positions", [48, 96])
def test_the_shorter_table_of_positions_ends_a_text(verify: str, positions: int) -> None:
    long, short = verifying(1, 2, -5.0), verifying(1, 2, -5.0, max_positions=positions)
    draw = random.Random(1)
    source = pad([[*(draw.randrange(6, 40) for _ in range(length)), EOS] for length in (3, 40)])
    for pair in (
        VerifyingDecoder(long.student, short.verifier),
        VerifyingDecoder(short.student, long.verifier),
    ):
        chosen = settings(verify, iterations=1, length_candidates=2)
        same(in_fixed_shapes(pair, chosen).decode(source), pair.decode(source, chosen))


@torch.inference_mode()
def test_complete_texts_leave_a_batch_by_halves() -> None:
    pair, chosen = verifying(2, 7, 0.4), settings("exact", iterations=1, length_candidates=2)
    fixed, source = in_fixed_shapes(pair, chosen), sentences(30, 5)
    checked: list[int] = []
    shape = fixed._shape(32, fixed.width(source.shape[1]))
    rounds = fixed._rounds(shape, 96)
    for size, check in list(rounds.checks.items()):

        def counted(size: int = size, check: object = check) -> torch.Tensor:
            checked.append(size)
            return check()  # type: ignore[operator,no-any-return]

        rounds.checks[size] = counted
    found = fixed._decode_rows(source, at_least=96)
    same(found, pair.decode(source, chosen))
    assert checked == sorted(checked, reverse=True)
    assert len(set(checked)) > 2
    assert len(checked) == max(one.checks for one in found)


def test_a_large_batch_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lath.engine.verified.MOST_POSITIONS", 60)
    monkeypatch.setattr("lath.engine.verified.RERANKED_POSITIONS", 60)
    for verify in MODES:
        pair, chosen = verifying(3, 4, 0.3), settings(verify, iterations=1)
        fixed = in_fixed_shapes(pair, chosen)
        same(fixed.decode(sentences(9, 4)), pair.decode(sentences(9, 4), chosen))
        assert max(batch for batch, _ in fixed._shapes) < 9


def test_old_shapes_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lath.engine.verified.MOST_SHAPES", 3)
    pair, chosen = verifying(1, 6, 0.3), settings("relaxed", iterations=1)
    fixed = in_fixed_shapes(pair, chosen)
    for count in (1, 2, 4, 8, 1, 2):
        same(fixed.decode(sentences(count, count)), pair.decode(sentences(count, count), chosen))
        assert len(fixed._shapes) <= 3


def test_what_nobody_holds_is_gone_at_once() -> None:
    pair = verifying(1, 6, 0.3)
    for verify in ("rerank", "exact"):
        fixed = in_fixed_shapes(pair, settings(verify, iterations=1))
        fixed.decode(sentences(2, 2))
        watched = weakref.ref(fixed)
        with uncollected():
            del fixed
            assert watched() is None


def test_the_recorded_decoder_takes_a_verifier() -> None:
    pair = verifying(2, 7, 0.3)
    decoder, source = RecordedDecoder(pair.student, pair.verifier), sentences(5, 2)
    assert decoder.has_verifier
    assert not RecordedDecoder(pair.student).has_verifier
    for verify in ("", *MODES):
        chosen = settings(verify, iterations=2)
        decoder.warm_up(chosen, tokens=10, batch=2)
        same(decoder.decode(source, chosen), pair.decode(source, chosen))
        many = list(decoder.decode_many(iter([source, source[:2]]), chosen))
        assert [len(batch) for batch in many] == [5, 2]
        traced = decoder.decode(source, chosen, trace=True)
        assert all(one.passes for one in traced)


@pytest.mark.parametrize("verify", MODES)
def test_works_may_run_before_they_are_asked_and_keep_their_tensors(
    verify: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As on a GPU: work is done before it is recorded, and every replay leaves its result in the tensors of the first.
    def replayed(work: Callable[[], Any], device: torch.device, pool: object) -> Callable[[], Any]:
        work()
        kept = work()

        def replay() -> Any:
            for old, new in zip(tensors_of(kept), tensors_of(work()), strict=True):
                old.copy_(new)
            return kept

        return replay

    monkeypatch.setattr("lath.engine.verified.recorded", replayed)
    pair, chosen = verifying(2, 7, 0.4), settings(verify, iterations=1, length_candidates=2)
    fixed = in_fixed_shapes(pair, chosen)
    for count in (1, 9, 1, 9):
        source = sentences(count, count)
        same(fixed.decode(source), pair.decode(source, chosen))


def test_what_a_recording_reads_outlives_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[weakref.ref[torch.Tensor]] = []

    def recorded(work: Any, device: torch.device, pool: object) -> Callable[[], Any]:
        read.extend(weakref.ref(tensor) for part in work.args for tensor in tensors_of(part))
        result = work()  # as a recording does: it keeps the result, and no tensor that the work reads
        return lambda: result

    monkeypatch.setattr("lath.engine.verified.recorded", recorded)
    engine = in_fixed_shapes(verifying(1, 6), settings("relaxed", iterations=1))
    engine.prepare(2, 8)
    assert read
    assert [tensor for tensor in read if tensor() is None] == []
