"""Validation: the loss on fixed masks, and BLEU on held-out sentences."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from lath.config import DecodeSettings, Recipe
from lath.decoding.decoder import decode
from lath.errors import UserError
from lath.files import chunks
from lath.model.network import Model
from lath.model.padding import pad
from lath.text.corpus import Corpus, spread
from lath.text.vocab import EOS, SubwordNmtVocab, Vocab
from lath.training.batches import cut_rows, make_batch, sort_by_length
from lath.training.learner import Learner
from lath.training.objective import Losses, Totals, draw_examples, loss_share
from lath.training.ranks import lead, sum_scalars
from lath.training.step import autocast

SENTENCES = 200
"""Validation sentences translated for BLEU, at most; evenly spread."""
LOGITS = 1 << 27
"""Logits per forward pass, at most: half a gigabyte in float32."""
SEED = 20200
"""Seed of the validation masks in every run, so that losses can be compared."""


class Validation:
    """Validates a model on a corpus: its loss, and its BLEU if `heldout` is given.

    The loss is that of the recipe's objective, also for runs with an objective of their own: so runs can be compared.
    """

    def __init__(self, corpus: Corpus, recipe: Recipe, vocabulary: int, heldout: HeldOut | None = None) -> None:
        self.heldout = heldout
        order = sort_by_length(np.arange(len(corpus)), corpus.source.lengths, corpus.target.lengths)
        batch = make_batch(corpus, order)
        # A CPU generator, so that all devices see the same masks.
        generator = torch.Generator().manual_seed(SEED)
        self.examples = draw_examples(batch, recipe.network, recipe.objective, generator)
        self.totals = Totals.of(self.examples)
        # The plain loss holds all logits in memory, so micro-batches may have to be smaller than in training.
        piece_length = self.examples.targets.shape[2]
        limit = min(recipe.train.micro_batch_tokens, LOGITS // (piece_length * vocabulary))
        self.micro_batches = cut_rows(batch, limit)

    @torch.no_grad()
    def loss(self, learner: Learner) -> Losses:
        """Token and length loss without dropout. The ranks share the work."""
        learner.model.eval()
        world, device = learner.world, learner.device
        token, length = torch.zeros((), device=device), torch.zeros((), device=device)
        totals = self.totals.to(device)
        for micro_batch in self.micro_batches[world.rank :: world.size]:
            examples = self.examples.rows(micro_batch).to(device)
            with autocast(learner.recipe, device):
                losses = loss_share(learner.model, examples, totals, learner.recipe.objective)
            token, length = token + losses.token, length + losses.length
        return Losses(*sum_scalars(world, token, length))

    def metrics(self, learner: Learner) -> dict[str, float]:
        """The fields of a validation in log.jsonl."""
        loss, heldout = self.loss(learner), self.heldout
        token, length = loss.token.item(), loss.length.item()
        metrics = {"valid_loss": token + length, "valid_token_loss": token, "valid_length_loss": length}
        if heldout is not None:
            metrics["valid_bleu"] = lead(learner.world, lambda: heldout.bleu(learner.model))
        return metrics


class HeldOut:
    """Validation sentences to translate, with their references."""

    def __init__(self, corpus: Corpus, target_vocab: Vocab, settings: DecodeSettings) -> None:
        numbers = sorted(
            spread(range(len(corpus)), len(corpus), SENTENCES), key=lambda number: int(corpus.source.lengths[number])
        )
        self.sources = [[*corpus.source.sentence(number).tolist(), EOS] for number in numbers]
        self.references = [target_vocab.decode(corpus.target.sentence(number).tolist()) for number in numbers]
        self.vocab, self.settings = target_vocab, settings

    def bleu(self, model: Model) -> float:
        """BLEU with the recipe's decoding settings.

        The references have been encoded and decoded, so the score is for comparing validations, not for publication.
        """
        model.eval()
        device = next(model.parameters()).device
        hypotheses: list[str] = []
        size = self.settings.batch_sentences or len(self.sources)
        for rows in chunks(self.sources, size):
            decoded = decode(model, pad(rows).to(device), self.settings)
            hypotheses += [self.vocab.decode(result.ids) for result in decoded]
        tokenised = isinstance(self.vocab, SubwordNmtVocab)
        return corpus_bleu(hypotheses, self.references, tokenised)


def corpus_bleu(hypotheses: Sequence[str], references: Sequence[str], tokenised: bool) -> float:
    """BLEU by sacrebleu, which is imported only when it is needed; the rest of scoring is analysis."""
    try:
        from sacrebleu.metrics.bleu import BLEU
    except ImportError:
        raise UserError('train.stop_by = "bleu" needs the package sacrebleu: pip install sacrebleu') from None
    metric = BLEU(tokenize="none" if tokenised else "13a", force=True)  # force: no warning about tokenised text
    return float(metric.corpus_score(hypotheses, [references]).score)


@contextlib.contextmanager
def lent_weights(model: Model, weights: dict[str, Tensor]) -> Iterator[None]:
    """Give a model other weights inside a with-block; its own come back bit for bit."""
    own = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    _copy(weights, model)
    try:
        yield
    finally:
        _copy(own, model)


@torch.no_grad()
def _copy(weights: dict[str, Tensor], model: Model) -> None:
    """Copy in place: an optimiser and a recorded graph refer to these tensors."""
    for name, parameter in model.named_parameters():
        parameter.copy_(weights[name])
