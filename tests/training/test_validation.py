"""Validation: the loss on fixed masks, BLEU, and borrowed weights."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from conftest import CPU, Translators, small_recipe
from drawn import SMALL, generator
from toy import with_train

from lath.analysis.scores import evaluate
from lath.decoding.decoder import Decoded
from lath.errors import UserError
from lath.model.network import Model, build_model
from lath.text.corpus import Corpus
from lath.text.vocab import EOS
from lath.training.learner import build_learner
from lath.training.validation import HeldOut, Validation, corpus_bleu, lent_weights


@pytest.mark.parametrize("kind", ["AT", "LAT"])
def test_it_is_the_score_of_the_translations(toy_folder: Path, trained: Translators, kind: str) -> None:
    translator = trained(kind)
    corpus = Corpus.open(toy_folder / "data", "valid")
    sources, references = (
        (toy_folder / f"valid.{side}").read_text(encoding="utf-8").splitlines() for side in ("src", "tgt")
    )
    expected = evaluate(translator.translate(sources), references).bleu.value
    heldout = HeldOut(corpus, translator.target_vocab, translator.info.decode)
    assert heldout.bleu(translator.model.train()) == pytest.approx(expected)
    assert heldout.bleu(translator.model) == pytest.approx(expected)


def test_right_translations_score_100_and_only_some_are_used(
    toy_folder: Path, trained: Translators, monkeypatch: pytest.MonkeyPatch
) -> None:
    translator = trained("AT")
    monkeypatch.setattr("lath.training.validation.SENTENCES", 7)
    heldout = HeldOut(Corpus.open(toy_folder / "data", "valid"), translator.target_vocab, translator.info.decode)
    assert len(heldout.sources) == len(heldout.references) == 7
    assert all(ids[-1] == EOS for ids in heldout.sources)
    right = [Decoded(translator.target_vocab.encode(line), 0.0, 1) for line in heldout.references]
    monkeypatch.setattr("lath.training.validation.decode", lambda model, source, settings: right)
    assert heldout.bleu(translator.model) == pytest.approx(100)


def test_without_sacrebleu_the_setting_and_the_remedy_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sacrebleu.metrics.bleu", None)
    with pytest.raises(UserError, match=r'train.stop_by = "bleu" needs the package sacrebleu: pip install sacrebleu'):
        corpus_bleu(["a"], ["a"], tokenised=False)


def test_the_loss_uses_the_same_masks_every_time(toy_folder: Path) -> None:
    recipe, corpus = small_recipe(toy_folder, "LAT"), Corpus.open(toy_folder / "data", "valid")
    learner = build_learner(recipe, toy_folder / "data", CPU)
    size = learner.model.body.target_size
    losses = []
    for seed in (1, 99):
        torch.manual_seed(seed)
        losses.append(Validation(corpus, recipe, size).loss(learner).total.item())
    few = Validation(corpus, with_train(recipe, micro_batch_tokens=100), size)
    assert len(few.micro_batches) > 1
    assert losses[0] == losses[1] == pytest.approx(few.loss(learner).total.item(), rel=1e-5)


def tiny_model(seed: int) -> Model:
    return build_model(SMALL, 40, 40, True, generator(seed))


def test_a_model_borrows_weights_and_gets_its_own_back() -> None:
    model, other = tiny_model(1), tiny_model(2)
    own = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    places = [parameter.data_ptr() for parameter in model.parameters()]
    with lent_weights(model, other.state_dict()):
        assert all(torch.equal(tensor, other.state_dict()[name]) for name, tensor in model.state_dict().items())
    assert all(torch.equal(tensor, own[name]) for name, tensor in model.state_dict().items())
    assert [parameter.data_ptr() for parameter in model.parameters()] == places
