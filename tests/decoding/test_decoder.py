"""Beam search, mask-predict and iterative decoding of pieces, on models with random weights.

Random weights are the hard case: pieces disagree everywhere, so nothing is right by luck.
"""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch

from lath.config import RULE_SETS, DecodeSettings, Kind, NetworkSettings
from lath.decoding.beam import beam_search
from lath.decoding.decoder import decode
from lath.decoding.lengths import length_candidates
from lath.decoding.masks import only_at
from lath.decoding.merge import merge_pieces, wrap
from lath.model.network import AT, CMLM, LAT, Model, build_model
from lath.model.padding import pad
from lath.text.vocab import BOS, EOS, MASK, PAD, SOP

SMALL = NetworkSettings(
    width=32, heads=4, feedforward=48, encoder_layers=1, decoder_layers=2, max_positions=48, dropout=0.0
)
SENTENCES = [[9, 8, 7, EOS], [10, EOS], [6, 7, 8, 9, 10, 11, 12, 13, EOS], [20, 19, 18, EOS], [15, 6, EOS]]


def model_of(kind: Kind, seed: int = 1, size: int = 40) -> Model:
    settings = dataclasses.replace(SMALL, kind=kind)
    model = build_model(settings, size, size, True, torch.Generator().manual_seed(seed)).eval()
    with torch.no_grad():  # sharpen the outputs: at its initial scale every prediction is nearly a tie
        for name, parameter in model.named_parameters():
            if "table" in name or "positions" in name:
                parameter.mul_(20)
    return model


@pytest.mark.parametrize("settings", [
    DecodeSettings(iterations=1), DecodeSettings(iterations=4), DecodeSettings(iterations=10, length_candidates=3),
    DecodeSettings(iterations=3, rules="paper"),
    DecodeSettings(iterations=3, extra_length=2, length_candidates=2),
    DecodeSettings(beam=1), DecodeSettings(beam=4, length_penalty=0.6),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("kind", ["AT", "CMLM", "LAT"])
def test_a_batch_gives_what_each_sentence_gives_alone(kind: Kind, settings: DecodeSettings) -> None:
    model = model_of(kind)
    together = decode(model, pad(SENTENCES), settings)
    for sentence, shared in zip(SENTENCES, together, strict=True):
        for extra in (0, 3):  # alone, and alone with padding
            alone = decode(model, torch.tensor([sentence + [PAD] * extra]), settings)[0]
            assert alone.ids == shared.ids
            assert alone.score == pytest.approx(shared.score, abs=1e-4)


@pytest.mark.parametrize("kind", ["AT", "CMLM", "LAT"])
def test_special_tokens_are_never_in_a_translation(kind: Kind) -> None:
    for seed in range(5):
        for result in decode(model_of(kind, seed), pad(SENTENCES), DecodeSettings(iterations=3, beam=2)):
            assert not {BOS, PAD, EOS, MASK, SOP} & set(result.ids)


def test_greedy_equals_the_plain_loop_without_a_cache() -> None:
    model = model_of("AT")
    assert isinstance(model, AT)
    for sentence in SENTENCES:
        source = torch.tensor([sentence])
        memory, ids, score = model.encode(source), [BOS], 0.0
        while len(ids) < 2 * len(sentence) + 16 + 1:
            states, _ = model.decode(torch.tensor([ids]), memory)
            logits = model.body.logits(states[:, -1] * model.output_scale)[0]
            allowed = [id for id in range(40) if id not in (PAD, MASK, SOP, BOS)]
            ids.append(max(allowed, key=lambda id: logits[id].item()))
            score += logits.log_softmax(0)[ids[-1]].item()
            if ids[-1] == EOS:
                break
        written = [id for id in ids[1:] if id != EOS]
        result = decode(model, source, DecodeSettings(beam=1))[0]
        assert result.ids == written
        assert result.score == pytest.approx(score / (len(ids) - 1), abs=1e-4)


def test_a_wide_beam_finds_the_best_of_all_short_translations() -> None:
    model = model_of("AT", seed=3, size=9)  # three words: every translation of up to two can be listed
    assert isinstance(model, AT)
    with torch.no_grad():
        model.body.tables[0].weight[EOS] += 1.0  # type: ignore[union-attr, operator]
    source = torch.tensor([[6, 7, EOS]])
    memory = model.encode(source)

    def score(words: tuple[int, ...]) -> float:
        states, _ = model.decode(torch.tensor([[BOS, *words]]), memory)
        logp = model.body.logits(states[0] * model.output_scale).log_softmax(-1)
        return sum(logp[place, id].item() for place, id in enumerate([*words, EOS]))

    words = [3, 6, 7, 8]
    every = [w for n in range(3) for w in itertools.product(words, repeat=n)]
    best = max(every, key=score)
    found = beam_search(model, source, 40, 0.0)[0]
    assert found.score >= score(best) - 1e-4
    assert found.score == pytest.approx(score(tuple(found.ids)), abs=1e-4)


def test_a_translation_without_end_is_cut_at_its_own_limit() -> None:
    model = model_of("AT")
    with torch.no_grad():
        model.body.tables[0].weight[EOS] = 0.0  # type: ignore[union-attr, operator]
    results = decode(model, pad(SENTENCES), DecodeSettings(beam=3))
    assert [len(r.ids) <= min(2 * len(s) + 16, 47) for r, s in zip(results, SENTENCES, strict=True)] == [True] * 5
    assert any(result.ids for result in results)


def test_lat_in_one_pass_is_one_merge_of_the_pieces() -> None:
    model = model_of("LAT")
    assert isinstance(model, LAT)
    source = torch.tensor([SENTENCES[2]])
    memory, lengths = model.encode(source)
    length = max(2, int(lengths.argmax()))
    written = model.pieces(model.decode(torch.full((1, length), MASK), memory))
    merged = merge_pieces(written.tokens[0].tolist(), written.scores[0].double().tolist(), RULE_SETS["official"])
    expected = wrap(merged, length, bos=BOS, eos=EOS, mask=MASK).ids[1:-1]
    assert decode(model, source, DecodeSettings(iterations=1))[0].ids == expected


def test_the_trace_of_lat_is_what_happened() -> None:
    settings = DecodeSettings(iterations=4)
    for traced, plain in zip(decode(model_of("LAT"), pad(SENTENCES), settings, trace=True),
                             decode(model_of("LAT"), pad(SENTENCES), settings), strict=True):  # fmt: skip
        assert plain.passes == []
        assert traced.ids == plain.ids
        assert len(traced.passes) == 4
        assert set(traced.passes[0].input) == {MASK}
        assert traced.passes[-1].output[1:-1] == traced.ids
        assert traced.passes[-1].masked == []
        for told, following in itertools.pairwise(traced.passes):
            assert len(told.pieces) == len(told.scores) == len(told.input)
            size = len(told.output)
            assert len(told.masked) == min(size - size * (traced.passes.index(told) + 1) // 4, size - 2)
            visible = [id for place, id in enumerate(told.output) if place not in told.masked]
            kept = [id for id in following.input if id != MASK]
            assert kept == visible[: len(kept)] or len(following.input) == SMALL.max_positions


def test_cmlm_keeps_what_is_visible_and_masks_fewer_words_each_time() -> None:
    for result in decode(model_of("CMLM"), pad(SENTENCES), DecodeSettings(iterations=4), trace=True):
        words = len(result.passes[0].input) - 2
        masked = [told.input.count(MASK) for told in result.passes]
        assert masked == [words * (4 - done) // 4 for done in range(4)]
        for told in result.passes:
            assert [o for i, o in zip(told.input, told.output, strict=True) if i != MASK] == [
                i for i in told.input if i != MASK
            ]


@pytest.mark.parametrize("kind", ["CMLM", "LAT"])
def test_length_candidates_include_the_single_one_and_the_best_score_wins(kind: Kind) -> None:
    model = model_of(kind, seed=2)
    one = decode(model, pad(SENTENCES), DecodeSettings(iterations=2))
    nine = decode(model, pad(SENTENCES), DecodeSettings(iterations=2, length_candidates=9))
    assert all(many.score >= single.score - 1e-6 for single, many in zip(one, nine, strict=True))
    assert isinstance(model, CMLM | LAT)
    _, scores = model.encode(pad(SENTENCES))
    lengths, log_probabilities = length_candidates(scores, 9)
    assert len(lengths) == len(log_probabilities) == 45
    assert lengths[::9].tolist() == length_candidates(scores, 1)[0].tolist()
    assert int(lengths.min()) >= 2


def test_a_length_that_is_next_to_impossible_is_not_tried() -> None:
    chances = torch.tensor([[0, 0, 0.01, 0.5, 0.47, 0.0199, 0.0001], [0.0, 0.0, 0.13, 0.12, 0.11, 0.1, 0.54]])
    lengths, scores = length_candidates(chances.log(), 5)
    assert lengths.view(2, 5).tolist() == [[3, 4, 5, 2, 3], [6, 2, 3, 4, 5]]  # 6 is 5,000 times less likely than 3
    assert scores.exp().view(2, 5)[0].tolist() == pytest.approx([0.5, 0.47, 0.0199, 0.01, 0.5])


def test_lengths_can_be_longer_than_predicted_up_to_the_position_table() -> None:
    chances = torch.tensor([[0, 0, 0.01, 0.5, 0.47, 0.0199, 0.0001], [0.0, 0.0, 0.13, 0.12, 0.11, 0.1, 0.54]])
    lengths, scores = length_candidates(chances.log(), 2, extra=1)
    assert lengths.view(2, 2).tolist() == [[4, 5], [6, 3]]
    assert torch.equal(scores, length_candidates(chances.log(), 2)[1])


def test_what_is_computed_for_some_positions_stands_in_its_place() -> None:
    asked = torch.tensor([[True, False, True], [False, True, False]])
    states = torch.arange(12.0).view(2, 3, 2)
    sums, doubled = only_at(asked, states, lambda rows: (rows.sum(dim=-1), 2 * rows))
    assert sums.tolist() == [[1, 0, 9], [0, 17, 0]]
    assert doubled[1].tolist() == [[0, 0], [16, 18], [0, 0]]
    assert only_at(asked | True, states, lambda rows: (rows,))[0] is states


@pytest.mark.parametrize("kind", ["CMLM", "LAT"])
def test_tokens_are_chosen_only_where_they_are_asked_for(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    model, chosen = model_of(kind), []
    inner = model.body.best_tokens

    def watch(states: torch.Tensor, forbidden: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
        chosen.append(states.shape[:-1].numel())
        return inner(states, forbidden)

    monkeypatch.setattr(model.body, "best_tokens", watch)
    settings = DecodeSettings(iterations=2)
    told = decode(model, pad(SENTENCES), settings, trace=True)
    shown = [sum(len(result.passes[number].input) for result in told) for number in range(2)]
    masks = [sum(result.passes[number].input.count(MASK) for result in told) for number in range(2)]
    traced, wanted = len(chosen), {"LAT": shown[:1] * 3 + shown[1:] * 3, "CMLM": masks}[kind]
    assert [result.ids for result in decode(model, pad(SENTENCES), settings)] == [result.ids for result in told]
    assert chosen[traced:] == wanted


def test_the_score_of_pieces_is_the_mean_of_all_that_the_last_pass_predicted() -> None:
    model = model_of("LAT", seed=2)
    assert isinstance(model, LAT)
    _, lengths = model.encode(pad(SENTENCES))
    settings = DecodeSettings(iterations=6)
    for result, scores in zip(decode(model, pad(SENTENCES), settings, trace=True), lengths, strict=True):
        predicted = [score for piece in result.passes[-1].scores for score in piece] + [scores.max().item()]
        assert result.score == pytest.approx(sum(predicted) / len(predicted), abs=1e-5)
        assert len(predicted) == 3 * len(result.passes[-1].input) + 1


def test_pieces_that_never_agree_do_not_outgrow_the_position_table() -> None:
    model = model_of("LAT", seed=4)
    with torch.no_grad():  # a length near the limit, three new tokens at each position
        model.length.table.weight.zero_()  # type: ignore[union-attr]
        model.length.table.weight[45:] = 5.0  # type: ignore[union-attr]
    results = decode(model, pad(SENTENCES), DecodeSettings(iterations=5), trace=True)
    assert max(len(told.input) for result in results for told in result.passes) <= SMALL.max_positions
