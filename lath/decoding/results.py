"""What decoding returns: the tokens of a translation, on request every pass that led to them, and the text."""

from __future__ import annotations

from dataclasses import dataclass, field

from lath.decoding.merge import Decision, Source

DOUBTFUL_SCORE = -0.45
"""With the bundled model 0.2 % of everyday sentences and 1 % of news lines score lower, and 79 % of nonsense."""


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


@dataclass(frozen=True)
class Hypothesis:
    """The translation of one line."""

    text: str
    score: float
    """Mean log-probability of its tokens (AT: divided by the length penalty); 0 for a blank line, minus infinity if
    the translation of a sentence is empty (CMLM, LAT); `files.json_line` writes null for it."""
    iterations: int
    """Passes of the decoder (AT: tokens written)."""
    fragments: int = 1
    """Pieces that the model translated: sentences, parts around protected text, parts of lines over its maximum length;
    0 for a blank line."""
    copied: bool = False
    """Whether something was protected, and so came through unchanged."""
    passes: list[list[Pass]] = field(default_factory=list)
    """With trace: the passes of each fragment."""

    @property
    def doubtful(self) -> bool:
        """Whether the score is so low that a person should look at the translation."""
        return self.score < DOUBTFUL_SCORE
