"""A teacher that checks: exact is greedy AT, rerank is AT's best, relaxed is what its rule says."""

from __future__ import annotations

import random

import pytest
import torch
from conftest import CPU
from toy import ambiguous_pairs, toy_recipe, train_toy
from wild import SMALL, verifying

from lath.config import DecodeSettings
from lath.decoding.decoder import decode
from lath.decoding.lengths import length_limit
from lath.decoding.merge import merge_pieces
from lath.decoding.pieces import write_candidates
from lath.decoding.results import Decoded
from lath.decoding.verify import VerifyingDecoder, behind, score_candidates
from lath.model.directory import load_model
from lath.model.network import AT, LAT
from lath.model.padding import pad
from lath.text.vocab import BOS, EOS, MASK, PAD, SOP

GREEDY = DecodeSettings(beam=1, length_penalty=0.7)
NEARLY = 1e-4


def sentences(count: int) -> list[list[int]]:
    draw = random.Random(1)
    return [[*(draw.randrange(6, 40) for _ in range(draw.randint(1, 9))), EOS] for _ in range(count)]


def settings(verify: str, **others: object) -> DecodeSettings:
    chosen: dict[str, object] = {"iterations": 1, "length_penalty": GREEDY.length_penalty, **others}
    return DecodeSettings(verify=verify, **chosen)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def learnt_pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[VerifyingDecoder, list[list[int]]]:
    """A trained student and its verifier, which disagree often enough, and sentences of their language."""
    decoders: dict[str, AT | LAT] = {}
    for kind in ("AT", "LAT"):
        folder = tmp_path_factory.mktemp(kind)
        loaded = load_model(train_toy(folder, toy_recipe(folder, kind, ambiguous_pairs, steps=250)), CPU)
        assert isinstance(loaded.model, AT | LAT)
        decoders[kind] = loaded.model
        lines = (folder / "train.src").read_text(encoding="utf-8").splitlines()[:300]
        encoded = [[*loaded.source_vocab.encode(line), EOS] for line in lines]
    student, verifier = decoders["LAT"], decoders["AT"]
    assert isinstance(student, LAT)
    assert isinstance(verifier, AT)
    return VerifyingDecoder(student, verifier), encoded


@pytest.mark.parametrize("iterations", [1, 3])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("ends", [0.0, 0.5])
def test_exact_is_greedy_search_of_random_models(seed: int, iterations: int, ends: float) -> None:
    decoder, source = verifying(seed, seed + 5, ends), pad(sentences(60))
    expected = decode(decoder.verifier, source, GREEDY)
    for one, other in zip(expected, decoder.decode(source, settings("exact", iterations=iterations)), strict=True):
        assert one.ids == other.ids
        assert one.score == pytest.approx(other.score, abs=NEARLY)


def test_exact_is_greedy_search_of_trained_models(learnt_pair: tuple[VerifyingDecoder, list[list[int]]]) -> None:
    decoder, encoded = learnt_pair
    expected = decode(decoder.verifier, pad(encoded), GREEDY)
    checked = decoder.decode(pad(encoded), settings("exact"))
    assert [one.ids for one in checked] == [one.ids for one in expected]
    assert [one.score for one in checked] == pytest.approx([one.score for one in expected], abs=NEARLY)
    tokens = sum(len(one.ids) + 1 for one in checked)
    assert sum(one.checks for one in checked) < 0.8 * tokens, "a draft of a trained model saves passes"
    assert all(one.iterations == one.checks for one in checked), "one pass of LAT for each of AT"


def test_relaxed_needs_fewer_checks_the_more_it_accepts(learnt_pair: tuple[VerifyingDecoder, list[list[int]]]) -> None:
    decoder, encoded = learnt_pair
    checks = []
    for mode in (settings("exact"), settings("relaxed", verify_nats=0.3), settings("relaxed", verify_nats=3.0)):
        checks.append(sum(one.checks for one in decoder.decode(pad(encoded), mode)))
    assert checks[0] > checks[1] > checks[2] >= len(encoded)


def test_relaxed_with_one_token_or_no_nats_is_exact() -> None:
    decoder, source = verifying(1, 2, 0.5), pad(sentences(20))
    exact = [one.ids for one in decoder.decode(source, settings("exact"))]
    for few in ({"verify_top": 1, "verify_nats": 9.0}, {"verify_top": 9, "verify_nats": 0.0}):
        assert [one.ids for one in decoder.decode(source, settings("relaxed", **few))] == exact


def test_relaxed_keeps_what_its_rule_says(learnt_pair: tuple[VerifyingDecoder, list[list[int]]]) -> None:
    decoder, encoded = learnt_pair
    rule = settings("relaxed", verify_top=4, verify_nats=0.8)
    decoded = decoder.decode(pad(encoded[:40]), rule)
    for sentence, one in zip(encoded, decoded, strict=False):
        memory = decoder.verifier.encode(torch.tensor([sentence]))
        states, _ = decoder.verifier.decode(torch.tensor([[BOS, *one.ids]]), memory)
        logp = decoder.verifier.body.logits(states)[0].log_softmax(-1)
        logp[:, [PAD, MASK, SOP, BOS]] = -torch.inf
        written = [*one.ids, EOS]
        for place, id in enumerate(written):
            assert logp[place, id] >= logp[place].max() - 0.8 - NEARLY
            assert id in logp[place].topk(4).indices.tolist()
        total = sum(logp[place, id].item() for place, id in enumerate(written))
        assert one.score == pytest.approx(total / len(written) ** rule.length_penalty, abs=NEARLY)


@pytest.mark.parametrize("verify", ["rerank", "relaxed", "exact"])
def test_a_batch_gives_what_each_sentence_gives_alone(
    verify: str, learnt_pair: tuple[VerifyingDecoder, list[list[int]]]
) -> None:
    chosen = settings(verify, length_candidates=3, iterations=2)
    for decoder, rows in ((verifying(3, 4, 0.3), sentences(12)), (learnt_pair[0], learnt_pair[1][:12])):
        for sentence, shared in zip(rows, decoder.decode(pad(rows), chosen), strict=True):
            alone = decoder.decode(torch.tensor([[*sentence, PAD, PAD]]), chosen)[0]
            assert (alone.ids, alone.iterations, alone.checks) == (shared.ids, shared.iterations, shared.checks)
            assert alone.score == pytest.approx(shared.score, abs=NEARLY)


def test_rerank_takes_the_candidate_that_at_finds_best(learnt_pair: tuple[VerifyingDecoder, list[list[int]]]) -> None:
    decoder, encoded = learnt_pair
    chosen = settings("rerank", length_candidates=4)
    differing = 0
    for sentence in encoded[:30]:
        source = torch.tensor([sentence])
        candidates = write_candidates(decoder.student, *decoder.student.encode(source), chosen, False, merge_pieces)

        def score(candidate: Decoded, source: torch.Tensor = source) -> float:
            memory, ids = decoder.verifier.encode(source), candidate.ids
            states, _ = decoder.verifier.decode(torch.tensor([[BOS, *ids]]), memory)
            logp = decoder.verifier.body.logits(states)[0].log_softmax(-1)
            total = sum(logp[place, id].item() for place, id in enumerate([*ids, EOS]))
            return total / (len(ids) + 1) ** chosen.length_penalty

        best = max(candidates, key=score)
        found = decoder.decode(source, chosen)[0]
        assert found.ids == best.ids
        assert found.score == pytest.approx(score(best), abs=NEARLY)
        assert (found.checks, found.iterations) == (1, 1)
        differing += best.ids != max(candidates, key=lambda candidate: candidate.score).ids
    assert differing, "the choice must not always be LAT's own"


def test_rerank_of_candidates_longer_than_the_table_of_positions() -> None:
    decoder = verifying(1, 2)
    long = Decoded([7] * 120, -0.1, 1)
    short = Decoded([7], -9.0, 1)
    memory = decoder.verifier.encode(torch.tensor([[9, EOS]]))
    with torch.inference_mode():
        scored = score_candidates(decoder.verifier, memory, [long, short], settings("rerank", length_candidates=2))
    assert scored[0].score == -torch.inf
    assert scored[1].score > -torch.inf


def test_a_text_without_end_stops_at_its_limit() -> None:
    for verify in ("relaxed", "exact"):
        decoder, rows = verifying(1, 2, -5.0), sentences(20)
        for sentence, one in zip(rows, decoder.decode(pad(rows), settings(verify)), strict=True):
            assert len(one.ids) <= length_limit(len(sentence), SMALL.max_positions)
            assert one.checks <= length_limit(len(sentence), SMALL.max_positions)


def test_special_tokens_are_never_written() -> None:
    for verify in ("rerank", "relaxed", "exact"):
        for one in verifying(4, 5, 0.3).decode(pad(sentences(20)), settings(verify, length_candidates=2)):
            assert not {BOS, PAD, EOS, MASK, SOP} & set(one.ids)


def test_without_a_mode_the_student_decodes_alone() -> None:
    decoder, source = verifying(1, 2), pad(sentences(9))
    alone = decode(decoder.student, source, settings(""))
    assert decoder.decode(source, settings("")) == alone


def test_the_trace_tells_every_draft_and_what_became_of_it(
    learnt_pair: tuple[VerifyingDecoder, list[list[int]]],
) -> None:
    for decoder, rows in ((verifying(3, 4, 0.3), sentences(12)), (learnt_pair[0], learnt_pair[1][:50])):
        for one in decoder.decode(pad(rows), settings("exact", iterations=2), trace=True):
            assert len(one.passes) == one.iterations
            drafts = one.passes[1:]
            assert len(drafts) == one.checks
            assert one.passes[0].check is None
            kept: list[int] = []
            for traced in drafts:
                assert traced.check is not None
                assert traced.prefix == kept
                kept = [*kept, *traced.output[1 : 1 + traced.check.accepted]]
                if traced.check.correction is not None:
                    kept.append(traced.check.correction)
                assert len(traced.pieces) == len(traced.input)
            assert [id for id in kept if id != EOS] == one.ids
        assert all(traced.passes == [] for traced in decoder.decode(pad(rows), settings("exact")))


def test_what_follows_a_correction() -> None:
    assert behind([5, 6, 7], 9) == [6, 7]  # another token in its place
    assert behind([5, 6, 7], 6) == [7]  # one token too many
    assert behind([5], 9) == []
    assert behind([], 9) == []
