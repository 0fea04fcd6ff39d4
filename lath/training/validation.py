"""BLEU on held-out sentences while a model is trained: the measure that people read, at a price of seconds."""

from __future__ import annotations

from lath.config import DecodeSettings
from lath.decoding.decoder import decode
from lath.model.network import Model
from lath.model.padding import pad
from lath.scores import evaluate
from lath.text.corpus import Corpus, spread
from lath.text.vocab import EOS, SubwordNmtVocab, Vocab

SENTENCES = 200
"""At most this many of the validation sentences, evenly spread, are translated at each validation."""


class HeldOut:
    """Validation sentences to translate, and the right translations as text."""

    def __init__(self, corpus: Corpus, target_vocab: Vocab, settings: DecodeSettings) -> None:
        numbers = sorted(
            spread(range(len(corpus)), len(corpus), SENTENCES), key=lambda number: int(corpus.source_lengths[number])
        )
        self.sources = [[*corpus.source(number).tolist(), EOS] for number in numbers]
        self.references = [target_vocab.decode(corpus.target(number).tolist()) for number in numbers]
        self.vocab, self.settings = target_vocab, settings

    def bleu(self, model: Model) -> float:
        """BLEU of the model as it is, with the recipe's settings of decoding.

        The references went through the vocabulary, so the score is for comparing validations, not for a paper.
        """
        model.eval()
        device = next(model.parameters()).device
        hypotheses: list[str] = []
        size = self.settings.batch_sentences or len(self.sources)
        for start in range(0, len(self.sources), size):
            source = pad(self.sources[start : start + size]).to(device)
            hypotheses += [self.vocab.decode(decoded.ids) for decoded in decode(model, source, self.settings)]
        tokenised = isinstance(self.vocab, SubwordNmtVocab)
        return evaluate(hypotheses, self.references, tokenised).bleu.value
