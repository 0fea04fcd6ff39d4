"""A hypothesis as JSON: its text, how sure the model is, and every pass that led to it."""

from __future__ import annotations

import math
from typing import Any

from lath.decoding.merge import Source
from lath.decoding.results import Hypothesis, Pass
from lath.text.vocab import MASK, Vocab


def hypothesis_json(hypothesis: Hypothesis, vocab: Vocab) -> dict[str, Any]:
    """One text; `passes` has a list for each fragment that the model translated, empty without a trace."""
    return {
        "text": hypothesis.text,
        "score": hypothesis.score if math.isfinite(hypothesis.score) else None,
        "doubtful": hypothesis.doubtful,
        "copied": hypothesis.copied,
        "checks": hypothesis.checks,
        "passes": [[pass_json(one, vocab) for one in passes] for passes in hypothesis.passes],
    }


def pass_json(traced: Pass, vocab: Vocab) -> dict[str, Any]:
    """One pass: its input (null is a mask), the piece at each position, and each token of the output with its origins.

    An origin is the position of a piece and the place in it. `masked` are the places of the output that the next pass
    sees as masks. A draft of verified decoding continues `prefix`, which is kept; `check` has how many of its tokens
    behind the first were accepted, and the verifier's correction behind them, or null.
    """
    check = traced.check and {
        "accepted": traced.check.accepted,
        "correction": None if traced.check.correction is None else vocab.token(traced.check.correction),
    }
    return {
        "prefix": [vocab.token(id) for id in traced.prefix],
        "input": [None if id == MASK else vocab.token(id) for id in traced.input],
        "pieces": [
            [{"t": vocab.token(id), "p": _probability(score)} for id, score in zip(piece, scores, strict=True)]
            for piece, scores in zip(traced.pieces, traced.scores, strict=True)
        ],
        "output": [
            {"t": vocab.token(id), "p": _probability(score), "from": sources} for id, score, sources in _output(traced)
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
        "check": check,
    }


def _output(traced: Pass) -> list[tuple[int, float, list[Source]]]:
    """Each token of the output with its score and sources; a merged token has the best score of its proposals."""
    if traced.sources:
        scores = [max((traced.scores[n][k] for n, k in sources), default=0.0) for sources in traced.sources]
        return list(zip(traced.output, scores, traced.sources, strict=True))
    # CMLM: tokens fill masks, nothing is merged.
    filled = zip(traced.output, traced.input, traced.scores, strict=True)
    return [(id, score if shown == MASK else 0.0, [(n, 0)]) for n, (id, shown, (score,)) in enumerate(filled)]


def _probability(score: float) -> float:
    return round(math.exp(score), 4)
