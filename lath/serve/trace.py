"""A hypothesis as JSON: its text, how sure the model is, and every pass that led to it."""

from __future__ import annotations

import math
from typing import Any

from lath.config import MergeRules
from lath.decoding.merge import Source, Token, merge_pieces
from lath.decoding.results import Pass
from lath.text.vocab import BOS, EOS, MASK, Vocab
from lath.translator import Hypothesis


def hypothesis_json(hypothesis: Hypothesis, vocab: Vocab, rules: MergeRules) -> dict[str, Any]:
    """One text; `passes` has a list for each fragment that the model translated, empty without a trace."""
    return {
        "text": hypothesis.text,
        "score": hypothesis.score if math.isfinite(hypothesis.score) else None,
        "doubtful": hypothesis.doubtful,
        "copied": hypothesis.copied,
        "passes": [[pass_json(one, vocab, rules) for one in passes] for passes in hypothesis.passes],
    }


def pass_json(traced: Pass, vocab: Vocab, rules: MergeRules) -> dict[str, Any]:
    """One pass: its input (null is a mask), the piece at each position, and each token of the output with its origins.

    An origin is the position of a piece and the place in it. `masked` are the places of the output that the next pass
    sees as masks.
    """
    return {
        "input": [None if id == MASK else vocab.token(id) for id in traced.input],
        "pieces": [
            [{"t": vocab.token(id), "p": _probability(score)} for id, score in zip(piece, scores, strict=True)]
            for piece, scores in zip(traced.pieces, traced.scores, strict=True)
        ],
        "output": [
            {"t": vocab.token(id), "p": _probability(score), "from": sources}
            for id, score, sources in _output(traced, rules)
        ],
        "masked": traced.masked,
        "conflicts": [
            {
                "piece": decision.piece,
                "left": [vocab.token(id) for id in decision.left],
                "right": [vocab.token(id) for id in decision.right],
                "kept": decision.kept,
            }
            for decision in traced.decisions
            if decision.step == "conflict"
        ],
    }


def _output(traced: Pass, rules: MergeRules) -> list[tuple[int, float, list[Source]]]:
    """Each token of the output with its score and sources; merging is repeated, for a pass does not keep them."""
    if all(len(piece) == 1 for piece in traced.pieces):  # CMLM: tokens fill masks, nothing is merged
        given = [place for place, id in enumerate(traced.input) if id != MASK]
        scores = [0.0 if place in given else score[0] for place, score in enumerate(traced.scores)]
        return [(id, score, [(place, 0)]) for place, (id, score) in enumerate(zip(traced.output, scores, strict=True))]
    tokens = merge_pieces(traced.pieces, traced.scores, rules).tokens
    begin, end = _edge(tokens[:1], BOS), _edge(tokens[-1:], EOS)
    words = [token for token in tokens if token.id not in (BOS, EOS, MASK)]
    return [(BOS, 0.0, begin), *((token.id, token.score, token.sources) for token in words), (EOS, 0.0, end)]


def _edge(tokens: list[Token], id: int) -> list[Source]:
    return [source for token in tokens if token.id == id for source in token.sources]


def _probability(score: float) -> float:
    return round(math.exp(score), 4)
