"""Large batches: with every token a candidate the pieces are those of the network; with few, the best among them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from wild import WAYS, sentences, wild_model

from lath.decoding.decoder import decode
from lath.engine.likely_batch import LikelyBatch, worth_it
from lath.engine.passes import Passes
from lath.model.network import LAT, NEVER_WRITTEN, allowed_logits
from lath.text.vocab import SOP, SPECIALS

LENGTHS = torch.tensor([5, 3, 7, 2, 6, 7])


def model_and_states(seed: int) -> tuple[LAT, Tensor]:
    model = wild_model("LAT", seed)
    assert isinstance(model, LAT)
    return model, torch.randn(6, 7, model.settings.width, generator=torch.Generator().manual_seed(seed))


@torch.inference_mode()
def first_logits(model: LAT, states: Tensor) -> Tensor:
    start = torch.full(states.shape[:-1], SOP)
    hidden, _ = model.local(model.body.embed_local(start), *model.local.start(states))
    return model.body.logits(hidden * model.output_scale)


@torch.inference_mode()
def test_with_every_token_a_candidate_the_pieces_are_those_of_the_network() -> None:
    for seed in range(4):
        model, states = model_and_states(seed)
        every = model.body.target_size - len(NEVER_WRITTEN)
        found, expected = LikelyBatch(model, 6, every).pieces(states, LENGTHS), model.pieces(states)
        assert found.tokens.equal(expected.tokens)
        torch.testing.assert_close(found.scores, expected.scores)


@pytest.mark.parametrize("each", [1, 2])
@torch.inference_mode()
def test_the_candidates_are_the_best_first_tokens_of_all_positions_of_a_sentence(each: int) -> None:
    model, states = model_and_states(5)
    writer = LikelyBatch(model, 6 // each, likely=3)
    first, second = writer.pieces(states, LENGTHS), writer.pieces(states.flip(1), LENGTHS)
    logits = first_logits(model, states)
    for sentence in range(6 // each):
        rows = range(sentence * each, (sentence + 1) * each)
        likely = set(range(len(SPECIALS)))
        for row in rows:
            best = allowed_logits(logits[row, : LENGTHS[row]], model.body.target_size, NEVER_WRITTEN).topk(3)
            likely |= set(best.indices.flatten().tolist())
        ids = torch.tensor(sorted(likely))
        for row in rows:
            for place in range(int(LENGTHS[row])):
                among = logits[row, place, ids].log_softmax(dim=0)
                among[list(NEVER_WRITTEN)] = -torch.inf
                assert int(first.tokens[row, place, 0]) == int(ids[among.argmax()])
                assert float(first.scores[row, place, 0]) == pytest.approx(float(among.max()), abs=1e-5)
            assert set(first.tokens[row].flatten().tolist()) | set(second.tokens[row].flatten().tolist()) <= likely


@pytest.mark.parametrize("way", WAYS)
def test_passes_that_write_likely_tokens_translate_as_the_plain_decoder(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lath.engine.passes.worth_it", lambda model, positions: True)
    monkeypatch.setattr("lath.engine.likely_batch.LIKELY", 10_000)
    model, settings = wild_model("LAT", 2), WAYS[way]
    for count in (1, 7, 16):
        source = sentences(count, count)
        found, expected = Passes(model, settings).decode(source), decode(model, source, settings)
        assert [result.ids for result in found] == [result.ids for result in expected]


def test_small_batches_and_full_precision_keep_the_whole_vocabulary() -> None:
    model, _ = model_and_states(1)
    assert not worth_it(model, 1 << 16)
    model.half()
    assert worth_it(model, 1 << 16)
    assert not worth_it(model, 512)
