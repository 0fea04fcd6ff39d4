"""What decoding returns: the tokens of a translation and, on request, every pass that led to them."""

from __future__ import annotations

from dataclasses import dataclass, field

from lath.decoding.merge import Decision, Source


@dataclass(slots=True)
class Pass:
    """One pass of the decoder over one sentence."""

    input: list[int]
    pieces: list[list[int]]
    """One piece for each position of the input (pieces of one token for CMLM)."""
    scores: list[list[float]]
    decisions: list[Decision]
    """How the pieces were merged; none for CMLM, which only fills masks."""
    output: list[int]
    masked: list[int] = field(default_factory=list)
    """Places of the output that were masked for the next pass; none after the last."""
    length_change: int = 0
    """Masks asked to be inserted (positive) or deleted (negative) before the next pass."""
    sources: list[list[Source]] = field(default_factory=list)
    """The proposals that were aligned into each token of the output; empty for CMLM."""


@dataclass(slots=True)
class Decoded:
    """The translation of one source sentence, in tokens without BOS and EOS."""

    ids: list[int]
    score: float
    """Mean log-probability of the tokens (AT: divided by the length penalty; LAT: `pieces.certainty`)."""
    iterations: int
    """Passes of the decoder (AT: one for each token)."""
    passes: list[Pass] = field(default_factory=list)
