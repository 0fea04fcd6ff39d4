"""What decoding returns: the tokens of a translation, on request every pass that led to them, and the text."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from lath.decoding.merge import Decision, Source

DOUBTFUL_SCORE = -0.45
"""With the bundled model 0.2 % of everyday sentences and 1 % of news lines score lower, and 79 % of nonsense."""


class Check(NamedTuple):
    """What a verifier said to a draft (decoding/verify.py)."""

    accepted: int
    """Tokens that stay, from the first of the draft on; EOS counts."""
    correction: int | None
    """The verifier's own token behind them; none where nothing may follow."""


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
    prefix: list[int] = field(default_factory=list)
    """A redraft continues these tokens, and its input, pieces and output begin behind them."""
    check: Check | None = None
    """Of the output, where it was a draft."""


@dataclass(slots=True)
class Decoded:
    """The translation of one source sentence, in tokens without BOS and EOS."""

    ids: list[int]
    score: float
    """Mean log-probability of the tokens (AT: divided by the length penalty; LAT: `pieces.certainty`); if
    it was verified, AT's."""
    iterations: int
    """Passes of the decoder (AT: one for each token; verified: of LAT's)."""
    passes: list[Pass] = field(default_factory=list)
    checks: int = 0
    """Passes of the verifier, where there is one."""


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
    checks: int = 0
    """Passes of the verifier, where there is one."""

    @property
    def doubtful(self) -> bool:
        """Whether the score is so low that a person should look at the translation."""
        return self.score < DOUBTFUL_SCORE
