"""Pieces of large batches on a GPU, approximate: only the likely tokens of a sentence can be written.

The oracle is `LAT.pieces` (model/network.py): with every token among the candidates the pieces are the same. As in
likely.py, the candidates of a sentence are the `LIKELY` best first tokens of all its positions (of all its length
candidates) in the first pass, with the special tokens; log-probabilities are those among them.

A batch of 512 sentences waits for arithmetic: in four passes with K = 3 each position would be multiplied with the
whole output matrix twelve times. Here that happens once, and eleven times with a block of C candidates of its sentence,
B x C x D, gathered once. Shapes are fixed, so a token that several positions propose stands in the block several times;
all but the first of its places are closed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lath.engine.likely import LIKELY
from lath.model.network import LAT, NEVER_WRITTEN, Pieces
from lath.text.vocab import EOS, SOP, SPECIALS

LIKELY_FROM = 4096
"""Positions of a batch (rows times width) from which this is worth its gathering: about 128 sentences of 25 tokens."""
WHOLE = 8
"""A block has a multiple of so many candidates, which matrix units like."""


def worth_it(model: LAT, positions: int) -> bool:
    """Whether a batch is large enough, and the precision one in which a batch may change a near-tie anyway."""
    return positions >= LIKELY_FROM and model.body.output_table.weight.dtype in (torch.float16, torch.bfloat16)


class LikelyBatch:
    """Writes the pieces of a batch, pass after pass."""

    def __init__(self, model: LAT, sentences: int, likely: int | None = None) -> None:
        self.model, self.sentences, self.likely = model, sentences, likely or LIKELY
        self._ids: Tensor | None = None
        """B x C candidates in order."""

    def pieces(self, states: Tensor, lengths: Tensor) -> Pieces:
        """As `LAT.pieces`, of R x T x D states, of which `lengths` (R) count in each row."""
        model = self.model
        hidden, cell = model.local.start(states)
        previous, tokens, scores = torch.full(states.shape[:-1], SOP, device=states.device), [], []
        for _ in range(model.piece_length):
            hidden, cell = model.local(model.body.embed_local(previous), hidden, cell)
            scaled = hidden * model.output_scale
            if self._ids is None:
                self._ids = self._choose(scaled, lengths)
            score, previous = self._best(scaled, self._ids)
            tokens.append(previous)
            scores.append(score)
        return Pieces(torch.stack(tokens, dim=-1), torch.stack(scores, dim=-1))

    def _choose(self, states: Tensor, lengths: Tensor) -> Tensor:
        """The candidates of each sentence, in order; and their rows of the output matrix."""
        best = self.model.body.top_tokens(states, NEVER_WRITTEN, self.likely)[1]
        there = torch.arange(states.shape[1], device=states.device) < lengths[:, None]
        best = torch.where(there[:, :, None], best, EOS).view(self.sentences, -1)
        specials = len(SPECIALS)
        places = torch.arange(specials + -(best.shape[1] + specials) % WHOLE, device=states.device)
        always = torch.where(places < specials, places, EOS).expand(self.sentences, -1)
        ids = torch.cat([best, always], dim=1).sort(dim=1).values
        again = torch.zeros_like(ids, dtype=torch.bool)
        again[:, 1:] = ids[:, 1:] == ids[:, :-1]
        never = torch.stack([ids == id for id in NEVER_WRITTEN]).any(dim=0)
        self._again, self._never = again[:, None], never[:, None]
        self._rows = self.model.body.output_table.weight[ids].transpose(1, 2)
        return ids

    def _best(self, states: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        """The log-probability and id of the likeliest candidate, for each state."""
        logits = torch.bmm(states.reshape(self.sentences, -1, states.shape[-1]), self._rows).float()
        logits.masked_fill_(self._again, -torch.inf)
        sums = logits.logsumexp(dim=2)  # what is forbidden keeps its share
        best = logits.masked_fill_(self._never, -torch.inf).max(dim=2)
        scores = best.values - sums
        return scores.view(states.shape[:-1]), ids.gather(1, best.indices).view(states.shape[:-1])
