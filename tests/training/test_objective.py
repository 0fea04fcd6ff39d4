"""Masks, deletions, windows and losses."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
import torch
from drawn import SMALL, batch_of, generator
from numpy.typing import NDArray
from torch import Tensor

from lath.config import Kind, NetworkSettings, ObjectiveSettings, Recipe, TrainSettings, recipe_from_tree
from lath.errors import UserError
from lath.model.network import build_model
from lath.text.vocab import BOS, EOS, MASK, PAD, UNK
from lath.training.batches import cut_rows
from lath.training.objective import (
    MASKED,
    NO_TARGET,
    VISIBLE,
    Draw,
    Examples,
    Totals,
    draw_deletions,
    draw_examples,
    draw_masks,
    glance_masks,
    glanced_rows,
    insert_masks,
    loss_share,
    piece_examples,
)


@pytest.mark.parametrize(
    ("words_only", "whole", "least", "most"), [(False, False, 1, 5), (False, True, 1, 6), (True, True, 1, 4)]
)
def test_the_number_of_masks_is_uniform(words_only: bool, whole: bool, least: int, most: int) -> None:
    lengths = torch.full((20_000,), 6)  # BOS, four words, EOS
    masks = draw_masks(lengths, 8, generator(), words_only=words_only, whole=whole)
    counts = Counter(masks.sum(dim=1).tolist())
    assert sorted(counts) == list(range(least, most + 1))
    expected = 20_000 / len(counts)
    assert all(abs(count - expected) < 5 * expected**0.5 for count in counts.values())
    assert not masks[:, 6:].any(), "padding is never masked"
    if words_only:
        assert not masks[:, 0].any()
        assert not masks[:, 5].any()
    places = masks[:, 1:5].float().mean(dim=0)
    assert (places - places.mean()).abs().max() < 0.02, "every word is as likely as any other"


@pytest.mark.parametrize(("words", "most"), [(9, 0), (10, 1), (16, 1), (17, 2), (23, 2), (100, 14)])
def test_deletions_reach_the_recorded_numbers(words: int, most: int) -> None:
    lengths = torch.full((4000,), words + 2)
    deleted = draw_deletions(lengths, words + 4, ObjectiveSettings(), generator())
    counts = deleted.sum(dim=1)
    assert sorted(set(counts.tolist())) == list(range(most + 1))
    assert not deleted[:, 0].any()
    assert not deleted[:, words + 1 :].any(), "neither end nor padding is deleted"


@pytest.mark.parametrize(("words", "most"), [(0, 0), (1, 1), (9, 1), (10, 2), (17, 3), (100, 15)])
def test_deletions_from_short_sentences_reach_the_whole_share(words: int, most: int) -> None:
    lengths = torch.full((4000,), words + 2)
    deleted = draw_deletions(lengths, words + 4, ObjectiveSettings(delete_from_short=True), generator())
    assert sorted(set(deleted.sum(dim=1).tolist())) == list(range(most + 1))
    assert not deleted[:, 0].any()
    assert not deleted[:, words + 1 :].any(), "neither end nor padding is deleted"


def test_draws_of_a_row_depend_on_the_generator_alone() -> None:
    lengths = torch.tensor([8, 5, 8])
    first, second = (draw_masks(lengths, 9, generator(3), words_only=False, whole=False) for _ in range(2))
    assert torch.equal(first, second)
    assert not torch.equal(first, draw_masks(lengths, 9, generator(4), words_only=False, whole=False))


def test_windows_run_over_the_undeleted_target_and_end_in_eos() -> None:
    batch = batch_of(3, 1)
    masked = torch.tensor([[False, True, False, False, True], [False] * 5])
    deleted = torch.tensor([[False, False, True, False, False], [False] * 5])
    examples = piece_examples(batch, masked, deleted, 3, "official")
    assert examples.decoder_input.tolist() == [[BOS, MASK, 12, MASK, PAD], [BOS, 10, EOS, PAD, PAD]]
    assert examples.targets[0].tolist() == [[BOS, 10, 11], [10, 11, 12], [12, EOS, EOS], [EOS, EOS, EOS], [PAD] * 3]
    assert examples.groups[0].tolist() == [
        [VISIBLE, MASKED, VISIBLE],
        [MASKED, VISIBLE, VISIBLE],
        [VISIBLE, MASKED, VISIBLE],
        [MASKED, VISIBLE, VISIBLE],
        [NO_TARGET] * 3,
    ]
    assert examples.lengths.tolist() == [5, 3]
    paper = piece_examples(batch, masked, deleted, 3, "paper")
    assert paper.groups[0, 0].tolist() == [VISIBLE, MASKED, MASKED], "a deleted token does not appear in the input"


def shown_examples() -> Examples:
    batch = batch_of(12, 1)
    masked = torch.zeros(batch.target.shape, dtype=torch.bool)
    return piece_examples(batch, masked, masked, 3, "official")


def test_an_extra_mask_predicts_what_the_token_after_it_predicts() -> None:
    examples = shown_examples()
    counts = set()
    for seed in range(40):
        longer = insert_masks(examples, 0.15, generator(seed))
        for row, (old, new) in enumerate(
            zip(examples.decoder_input.tolist(), longer.decoder_input.tolist(), strict=True)
        ):
            without_masks = [token for token in new if token not in (MASK, PAD)]
            assert without_masks == [token for token in old if token != PAD], "no token is lost or moved"
            assert new[0] == BOS
            counts.add((row, new.count(MASK)))
            for place, token in enumerate(new):
                asked = longer.targets[row, place].tolist()
                if token == MASK:
                    following = place + 1 + next(n for n, later in enumerate(new[place + 1 :]) if later != MASK)
                    assert asked == longer.targets[row, following].tolist()
                else:
                    assert asked[0] == token
                assert (longer.groups[row, place] == NO_TARGET).all() == (token == PAD)
    assert counts == {(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)}, "up to 0.15 of 12 words, and one where that is less"
    assert torch.equal(longer.lengths, examples.lengths), "the length to predict is the target's own"


@pytest.mark.parametrize("loss", ["official", "paper"])
def test_the_papers_loss_gives_deleted_tokens_full_weight(loss: str) -> None:
    objective = ObjectiveSettings(loss=loss, deletion_rate=0.5)  # type: ignore[arg-type]
    examples = draw_examples(batch_of(*[20] * 30), NetworkSettings(kind="LAT"), objective, generator(3))
    groups_of_deleted = set()
    for targets, groups in zip(examples.targets.tolist(), examples.groups.tolist(), strict=True):
        kept = {window[0] for window in targets}
        for window, window_groups in zip(targets, groups, strict=True):
            groups_of_deleted |= {g for token, g in zip(window, window_groups, strict=True) if token not in kept}
    assert groups_of_deleted == ({MASKED} if loss == "paper" else {MASKED, VISIBLE})


def test_micro_batches_keep_longer_inputs_whole() -> None:
    batch = batch_of(1, 3, 4, 9, 14, 20)
    settings = ObjectiveSettings(insertion_rate=0.3, delete_from_short=True)
    examples = draw_examples(batch, NetworkSettings(kind="LAT"), settings, generator(5))
    cut = [examples.rows(micro_batch) for micro_batch in cut_rows(batch, 30)]
    assert len(cut) > 1
    inputs = [[t for t in row if t != PAD] for rows in cut for row in rows.decoder_input.tolist()]
    assert inputs == [[t for t in row if t != PAD] for row in examples.decoder_input.tolist()]
    assert any(len(row) > words + 2 for row, words in zip(inputs, (1, 3, 4, 9, 14, 20), strict=True))


def test_at_predicts_the_next_token() -> None:
    examples = draw_examples(batch_of(2, 1), NetworkSettings(kind="AT"), ObjectiveSettings(), generator())
    assert examples.decoder_input.tolist() == [[BOS, 10, 11], [BOS, 10, PAD]]
    assert examples.targets[:, :, 0].tolist() == [[10, 11, EOS], [10, EOS, PAD]]
    assert examples.groups[1, :, 0].tolist() == [MASKED, MASKED, NO_TARGET]


def test_cmlm_predicts_masked_words_only() -> None:
    examples = draw_examples(batch_of(5, 2), NetworkSettings(kind="CMLM"), ObjectiveSettings(), generator())
    hidden = examples.decoder_input == MASK
    assert torch.equal(examples.groups[:, :, 0] == MASKED, hidden)
    assert hidden.any(dim=1).all()
    assert (examples.decoder_input[:, 0] == BOS).all()


@pytest.mark.parametrize("insertion_rate", [0.0, 0.15])
@pytest.mark.parametrize("loss", ["official", "paper"])
@pytest.mark.parametrize("kind", ["AT", "CMLM", "LAT"])
def test_the_loss_and_gradient_do_not_depend_on_the_micro_batches(kind: str, loss: str, insertion_rate: float) -> None:
    settings = dataclasses.replace(SMALL, kind=kind)  # type: ignore[arg-type]
    objective = ObjectiveSettings(loss=loss, insertion_rate=insertion_rate)  # type: ignore[arg-type]
    model = build_model(settings, 40, 40, True, generator())
    batch = batch_of(1, 3, 4, 9, 14, 20)
    examples = draw_examples(batch, settings, objective, generator(5))
    totals = Totals.of(examples)
    results = []
    for limit in (1000, 50, 25):
        model.zero_grad()
        micro_batches = cut_rows(batch, limit)
        shares = [loss_share(model, examples.rows(micro), totals, objective) for micro in micro_batches]
        total = torch.stack([share.total for share in shares]).sum()
        total.backward()  # type: ignore[no-untyped-call]
        gradient = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
        results.append((len(micro_batches), total.item(), gradient))
    assert results[0][0] == 1
    assert results[2][0] > results[1][0] > 1
    for _, total, gradient in results[1:]:
        assert total == pytest.approx(results[0][1], rel=1e-5)
        assert torch.allclose(gradient, results[0][2], atol=1e-6)


def test_paper_loss_is_the_weighted_sum_over_tokens() -> None:
    settings = dataclasses.replace(SMALL, kind="LAT")
    model = build_model(settings, 40, 40, True, generator())
    objective = ObjectiveSettings(loss="paper", label_smoothing=0.0)
    examples = draw_examples(batch_of(4, 7), settings, objective, generator(5))
    share = loss_share(model, examples, Totals.of(examples), objective)
    states, lengths = model.output_states(examples.source, examples.decoder_input, examples.targets)
    assert lengths is not None
    logp = (
        model.body.logits(states * model.output_scale)
        .log_softmax(dim=-1)
        .gather(3, examples.targets[..., None])[..., 0]
    )
    weights = torch.where(examples.groups == MASKED, 1.0, 0.1).masked_fill(examples.groups == NO_TARGET, 0.0)
    tokens = examples.lengths.sum()
    assert share.token.item() == pytest.approx((-(weights * logp).sum() / tokens).item(), rel=1e-5)
    length_nll = -lengths.gather(1, examples.lengths[:, None]).sum()
    assert share.length.item() == pytest.approx((length_nll / tokens).item(), rel=1e-5)


# ---- glancing ------------------------------------------------------------------------------------------------------


def glancing_draw(kind: Kind, count: int, predict: Callable[[Tensor], Tensor], step: int = 1) -> Draw:
    """An update of sentences of 9 words whose first tokens are predicted by a function of the gold tokens."""
    network = dataclasses.replace(SMALL, kind=kind)
    objective = ObjectiveSettings(glancing_share=0.5, glancing_ratio=0.5, glancing_final_ratio=0.25, deletion_rate=0.0)
    train = dataclasses.replace(TrainSettings(), steps=101)
    recipe = dataclasses.replace(Recipe(), network=network, objective=objective, train=train)
    batch, model = batch_of(*[9] * count), build_model(network, 40, 40, True, generator())

    def predict_first(rows: NDArray[np.int64], decoder_input: Tensor) -> Tensor:
        words = batch.target[rows]
        assert set(decoder_input.unique().tolist()) <= ({MASK, PAD} if kind == "LAT" else {MASK, PAD, BOS, EOS})
        assert torch.equal(decoder_input == PAD, words == PAD)
        return predict(words)

    return Draw(model, batch, recipe, generator(), step, predict_first)


@pytest.mark.parametrize(("kind", "places"), [("LAT", 11), ("CMLM", 9)])
def test_the_more_first_tokens_are_wrong_the_more_is_shown(kind: Kind, places: int) -> None:
    def half_wrong(words: Tensor) -> Tensor:
        return torch.where(torch.arange(words.shape[1]) < 6, 0 * words + UNK, words)

    for predict, wrong in [(lambda words: words, 0), (lambda words: 0 * words + UNK, places), (half_wrong, None)]:
        for step, ratio in [(1, 0.5), (51, 0.375), (101, 0.25), (500, 0.25)]:
            draw = glancing_draw(kind, 40, predict, step)
            uniform = draw_masks((draw.batch.target != PAD).sum(dim=1), draw.batch.target.shape[1], generator(7),
                                 words_only=kind == "CMLM", whole=True)  # fmt: skip
            masked = glance_masks(draw, uniform)
            glanced = glanced_rows(40, 0.5, step)
            others = np.setdiff1d(np.arange(40), glanced)
            assert len(glanced) == 20
            assert torch.equal(masked[others], uniform[others]), "the other half keeps its masks"
            expected = wrong if wrong is not None else (6 if kind == "LAT" else 5)
            assert (masked[glanced].sum(dim=1) == places - int(ratio * expected)).all()


def test_glancing_shows_random_places_from_the_generator() -> None:
    draw = glancing_draw("LAT", 400, lambda words: 0 * words + UNK)
    uniform = torch.zeros_like(draw.batch.target, dtype=torch.bool)
    masked = glance_masks(draw, uniform)
    shares = masked[glanced_rows(400, 0.5, 1)][:, :11].float().mean(dim=0)
    assert ((shares - 6 / 11).abs() < 0.15).all(), "5 of 11 tokens are shown, each as often as any other"
    again = glancing_draw("LAT", 400, lambda words: 0 * words + UNK)
    assert torch.equal(glance_masks(again, uniform), masked)


def test_over_the_steps_every_row_glances_equally_often() -> None:
    for share in (0.25, 0.5, 1.0):
        counts = np.bincount(np.concatenate([glanced_rows(10, share, step) for step in range(1, 101)]), minlength=10)
        assert (abs(counts - 100 * share) <= 1).all()


def test_an_at_cannot_glance() -> None:
    with pytest.raises(UserError, match=r"glancing_share is for LAT and CMLM.*set it to 0"):
        recipe_from_tree({"network": {"kind": "AT"}, "objective": {"glancing_share": 0.5}}, "recipe")
