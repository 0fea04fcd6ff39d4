"""Scores of translations, each with its signature.

    scores = evaluate(hypotheses, references)
    print(scores.bleu)      # BLEU|nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0 = 27.35

BLEU, chrF and TER are computed by sacrebleu, which is imported only when it is needed. Repetition follows section 4 of
the paper ("On repeated translation", Table 2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from lath.errors import UserError

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF
    from sacrebleu.metrics.ter import TER


@dataclass(frozen=True)
class Score:
    """The value of one metric, with the signature needed to reproduce it."""

    metric: str
    value: float
    signature: str

    def __str__(self) -> str:
        return f"{self.metric}|{self.signature} = {self.value:.2f}"


@dataclass(frozen=True)
class SystemScores:
    """All scores of one system's output."""

    bleu: Score
    chrf: Score
    ter: Score | None
    """Translation edit rate, lower is better; None unless requested, because it is slow."""
    tokens: str
    """The tokeniser of the next two numbers, named as in BLEU's signature."""
    length_ratio: float
    """Output tokens per reference token."""
    repeat_rate: float
    """Percentage of tokens that equal the token before."""

    @property
    def scores(self) -> tuple[Score, ...]:
        """The scores that were computed."""
        return (self.bleu, self.chrf) if self.ter is None else (self.bleu, self.chrf, self.ter)

    def __str__(self) -> str:
        lines = [str(score) for score in self.scores]
        lines.append(f"length ratio|tok:{self.tokens} = {self.length_ratio:.3f}")
        lines.append(f"adjacent repeats|tok:{self.tokens} = {self.repeat_rate:.2f} %")
        return "\n".join(lines)


@dataclass(frozen=True)
class Difference:
    """The difference of two systems in one metric."""

    metric: str
    first: float
    second: float
    low: float
    """Lower end of the 95 % interval of second - first."""
    high: float
    """Upper end of the 95 % interval of second - first."""
    p_value: float
    """How often two equal systems would differ by this much or more by chance."""
    signature: str

    def __str__(self) -> str:
        return (
            f"{self.metric}|{self.signature} = {self.first:.2f} -> {self.second:.2f} "
            f"({self.second - self.first:+.2f}, 95 % {self.low:+.2f} to {self.high:+.2f}, p = {self.p_value:.3f})"
        )


@dataclass(frozen=True)
class Comparison:
    """A paired comparison of two systems on the same sentences."""

    bleu: Difference
    chrf: Difference

    def __str__(self) -> str:
        return f"{self.bleu}\n{self.chrf}"


def evaluate(
    hypotheses: Sequence[str], references: Sequence[str], tokenised: bool = False, *, ter: bool = False
) -> SystemScores:
    """Score translations against one reference each, line by line.

    Text that is already tokenised (`tokenised`) is scored on its own tokens. The metric is then called "tokenised
    BLEU", because it is not comparable with BLEU on plain text.
    """
    _check_lines([("hypotheses", hypotheses), ("references", references)])
    bleu, chrf, edit_rate = _metrics(tokenised)
    bleu_score = bleu.corpus_score(hypotheses, [references])
    if not bleu_score.ref_len:
        raise UserError("references: no words in any line; give the file with the reference translations")
    lines = [bleu.tokenizer(line) for line in hypotheses]
    return SystemScores(
        bleu=Score(_bleu_name(tokenised), bleu_score.score, str(bleu.get_signature())),
        chrf=_corpus_score(chrf, hypotheses, references),
        ter=_corpus_score(edit_rate, hypotheses, references) if ter else None,
        tokens=_tokens_name(tokenised),
        length_ratio=bleu_score.sys_len / bleu_score.ref_len,
        repeat_rate=repeat_rates(lines, width=1, orders=(1,))[0],
    )


def compare(
    first: Sequence[str],
    second: Sequence[str],
    references: Sequence[str],
    tokenised: bool = False,
    *,
    samples: int = 1000,
    seed: int = 12345,
) -> Comparison:
    """Paired bootstrap resampling (Koehn 2004): is the difference between two systems significant?

    Both systems are scored on the same `samples` random draws of sentences, with replacement.
    """
    _check_lines([("first", first), ("second", second), ("references", references)])
    if samples < 1:
        raise UserError(f"samples: {samples} is too few; 1000 is usual")
    # The same draws as in sacrebleu's own test with this seed, so that results can be compared.
    draws = np.random.default_rng(seed).choice(len(references), size=(samples, len(references)), replace=True)
    weights = np.stack([np.bincount(draw, minlength=len(references)) for draw in draws])
    bleu, chrf, _ = _metrics(tokenised)
    return Comparison(
        bleu=_difference(bleu, _bleu_name(tokenised), first, second, references, weights, seed),
        chrf=_difference(chrf, "chrF2", first, second, references, weights, seed),
    )


def repeat_rates(lines: Sequence[str], width: int = 5, orders: Sequence[int] = (1, 2, 3, 4)) -> list[float]:
    """Percentage of n-grams that repeat a nearby one, for each n in `orders`; tokens are separated by spaces.

    An n-gram counts if the same n-gram starts at one of the `width` positions before it in its sentence. The paper
    does not define "nearby", and no width reproduces the reference row of its Table 2 (2.49, 0.03, 0.00, 0.00) exactly.
    On newstest2014 German with Moses tokens, a width of 5 comes closest: 2.36, 0.06, 0.01, 0.00.

    >>> repeat_rates(["a b a b c"], width=2, orders=(1, 2))
    [40.0, 25.0]
    """
    rates: list[float] = []
    for order in orders:
        repeated = total = 0
        for line in lines:
            tokens = line.split()
            starts = [tuple(tokens[start : start + order]) for start in range(len(tokens) - order + 1)]
            repeated += sum(gram in starts[max(0, place - width) : place] for place, gram in enumerate(starts))
            total += len(starts)
        rates.append(100 * repeated / total if total else 0.0)
    return rates


def _check_lines(files: Sequence[tuple[str, Sequence[str]]]) -> None:
    counts = [f"{name} {len(lines)}" for name, lines in files]
    if len({len(lines) for _, lines in files}) > 1:
        raise UserError(f"line counts differ: {', '.join(counts)}; line n of each must be the same sentence")
    if not files[0][1]:
        raise UserError(f"nothing to evaluate: {' and '.join(name for name, _ in files)} are empty; give text")


def _metrics(tokenised: bool) -> tuple[BLEU, CHRF, TER]:
    try:
        from sacrebleu.metrics.bleu import BLEU
        from sacrebleu.metrics.chrf import CHRF
        from sacrebleu.metrics.ter import TER
    except ImportError:
        raise UserError("scoring needs the package sacrebleu: pip install sacrebleu") from None
    # force: no warning about tokenised text, because the caller has specified what the text is.
    return BLEU(tokenize=_tokens_name(tokenised), force=True), CHRF(), TER()


def _tokens_name(tokenised: bool) -> str:
    return "none" if tokenised else "13a"


def _bleu_name(tokenised: bool) -> str:
    return "tokenised BLEU" if tokenised else "BLEU"


def _corpus_score(metric: Metric, hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    score = metric.corpus_score(hypotheses, [references])
    return Score(score.name, score.score, str(metric.get_signature()))


def _difference(
    metric: Metric,
    name: str,
    first: Sequence[str],
    second: Sequence[str],
    references: Sequence[str],
    weights: npt.NDArray[np.int64],
    seed: int,
) -> Difference:
    """Score both systems on the whole text and on every draw; weights[d, s] is how often draw d has sentence s."""
    (first_score, first_draws), (second_score, second_draws) = (
        _scores_of_draws(metric, hypotheses, references, weights) for hypotheses in (first, second)
    )
    real = second_score - first_score
    gains = second_draws - first_draws
    low, high = np.quantile(gains, [0.025, 0.975])
    # Departure: sacrebleu centres the absolute differences, and then a system differs significantly from itself
    # (p = 0.001). Here the signed differences are centred, which models two equal systems.
    as_far = int(np.sum(np.abs(gains - gains.mean()) >= abs(real)))
    signature = metric.get_signature()
    signature.update("bs", len(weights))
    signature.update("seed", seed)
    return Difference(
        metric=name,
        first=first_score,
        second=second_score,
        low=float(low),
        high=float(high),
        p_value=(as_far + 1) / (len(weights) + 1),
        signature=str(signature),
    )


def _scores_of_draws(
    metric: Metric, hypotheses: Sequence[str], references: Sequence[str], weights: npt.NDArray[np.int64]
) -> tuple[float, npt.NDArray[np.float64]]:
    """The score of the whole text and of each draw, from statistics collected once per sentence.

    sacrebleu has these statistics under private names only; collecting them again for every draw would take minutes.
    """
    whole = metric.corpus_score(hypotheses, [references]).score
    counts: Any = np.array(metric._extract_corpus_statistics(hypotheses, [references]), dtype=np.int64)
    draws = [metric._compute_score_from_stats(row).score for row in (weights @ counts).tolist()]
    return whole, np.array(draws)
