"""BLEU on held-out sentences while training."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import Translators

from lath.decoding.decoder import Decoded
from lath.scores import evaluate
from lath.text.corpus import Corpus
from lath.text.vocab import EOS
from lath.training.validation import HeldOut


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
