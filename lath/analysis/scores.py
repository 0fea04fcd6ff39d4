"""Scores of translations, each with its signature.

    scores = evaluate(hypotheses, references)
    print(scores.bleu)      # BLEU|nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0 = 27.35

BLEU, chrF, TER and the paired test are those of sacrebleu, which is imported only when it is needed: every figure
equals that of its command line. Repetition follows section 4 of the paper ("On repeated translation", Table 2).
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lath.analysis.bootstrap import Figures, gather_statistics, resample, sacrebleu_seed, total_score
from lath.analysis.settings import EvaluateSettings
from lath.errors import UserError
from lath.progress import Bar

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric
    from sacrebleu.metrics.bleu import BLEU


MOST_SAMPLES = 1_000_000


@dataclass(frozen=True)
class Score:
    """The value of one metric, with the signature needed to reproduce it; after a paired test also its results."""

    metric: str
    value: float
    signature: str
    mean: float | None = None
    """The mean over the bootstrap samples."""
    margin: float | None = None
    """Half the width of the 95 % confidence interval around the mean."""
    p_value: float | None = None
    """Against the first system, which has none itself."""

    def __str__(self) -> str:
        interval = "" if self.mean is None else f" ({self.mean:.2f} ± {self.margin:.2f})"
        p_value = "" if self.p_value is None else f", p = {self.p_value:.4f}"
        return f"{self.metric}|{self.signature} = {self.value:.2f}{interval}{p_value}"


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


class Counts(NamedTuple):
    """What the scores of one system follow from: a row for each line. They hold no words (counts.py stores them)."""

    repeated: Figures
    """Tokens that equal the token before."""
    bleu: Figures
    """sacrebleu's statistics, as of the other scores."""
    chrf: Figures
    ter: Figures | None


@dataclass(frozen=True)
class Measured:
    """One system's scores, and what they were computed from."""

    scores: SystemScores
    sentence_chrf: list[float]
    """chrF of each line."""
    counts: Counts
    bleu_samples: Figures
    """BLEU of each sample of the paired bootstrap, the same samples for all systems; empty without a test."""

    def bleu_of(self, lines: Sequence[int]) -> float | None:
        """BLEU of some lines alone, by number; None for no lines."""
        return total_score(_bleu(tokenised=False), self.counts.bleu[list(lines)]) if lines else None

    def gain_over(self, other: Measured) -> tuple[float, float]:
        """The 95 % interval of how far this system's BLEU is above the other's; sacrebleu's is that of one system."""
        low, high = np.quantile(self.bleu_samples - other.bleu_samples, [0.025, 0.975])
        return float(low), float(high)


def evaluate(
    hypotheses: Sequence[str], references: Sequence[str], tokenised: bool = False, *, ter: bool = False
) -> SystemScores:
    """Score translations against one reference each, line by line.

    Text that is already tokenised (`tokenised`) is scored on its own tokens. The metric is then called "tokenised
    BLEU", because it is not comparable with BLEU on plain text.
    """
    return measure([hypotheses], references, tokenised, ter=ter)[0].scores


def compare(
    systems: Sequence[Sequence[str]],
    references: Sequence[str],
    tokenised: bool = False,
    *,
    ter: bool = False,
    samples: int = EvaluateSettings.samples,
) -> list[SystemScores]:
    """Score several systems, and test each against the first: sacrebleu's paired bootstrap (`--paired-bs`).

    As in sacrebleu, the environment variable SACREBLEU_SEED sets the seed; signatures name it. The p-value of a system
    whose text equals the first one's means nothing: it is always 1 / (samples + 1).
    """
    if not 1 <= samples <= MOST_SAMPLES:
        raise UserError(f"samples: {samples} is not between 1 and {MOST_SAMPLES}; {EvaluateSettings.samples} is usual")
    return [found.scores for found in measure(systems, references, tokenised, ter=ter, samples=samples)]


def measure(
    systems: Sequence[Sequence[str]],
    references: Sequence[str],
    tokenised: bool = False,
    *,
    ter: bool = False,
    samples: int = 0,
    workers: int = 1,
) -> list[Measured]:
    """`evaluate` or, with samples, `compare`; also what the scores were computed from.

    With several `workers` sentences are analysed in forked processes, which helps where TER is computed.
    """
    _check(systems, references, tokenised)
    with Bar("scoring", len(references), "lines") as bar:
        metrics, statistics = gather_statistics(
            systems, references, lambda block: _metrics(block, tokenised, ter), bar.advance, workers
        )
    counts = [
        Counts(_repeated(lines, tokenised), bleu, chrf, others[0] if others else None)
        for lines, (bleu, chrf, *others) in zip(systems, statistics, strict=True)
    ]
    return _measured(metrics, counts, tokenised, samples)


def measure_counts(counts: Sequence[Counts], tokenised: bool = False, *, samples: int = 0) -> list[Measured]:
    """`measure` from its counts alone, without the texts."""
    return _measured(_metrics(["-"], tokenised, ter=counts[0].ter is not None), counts, tokenised, samples)


def _measured(metrics: dict[str, Metric], counts: Sequence[Counts], tokenised: bool, samples: int) -> list[Measured]:
    statistics = [[one.bleu, one.chrf, *([] if one.ter is None else [one.ter])] for one in counts]
    values = [[total_score(metric, rows) for metric, rows in zip(metrics.values(), found, strict=True)]
              for found in statistics]  # fmt: skip
    tests = resample(list(metrics.values()), statistics, values, samples) if samples else []
    signatures = {name: metric.get_signature() for name, metric in metrics.items()}
    if samples:
        for signature in signatures.values():
            signature.update("seed", str(sacrebleu_seed()).lower())
            signature.update("bs", samples)
    measured = []
    for number, one in enumerate(counts):
        scores = [
            Score(name, value, str(signatures[name])) for name, value in zip(metrics, values[number], strict=True)
        ]
        if samples:
            scores = [
                replace(score, mean=test.mean, margin=test.margin, p_value=test.p_value)
                for score, test in zip(scores, tests[number], strict=True)
            ]
        sentences = [float(metrics["chrF2"]._compute_score_from_stats(row).score) for row in one.chrf.tolist()]
        drawn = tests[number][0].samples if samples else np.empty(0)
        measured.append(Measured(_system_scores(scores, one, tokenised), sentences, one, drawn))
    return measured


def bleu_gain(
    first: Sequence[str],
    second: Sequence[str],
    references: Sequence[str],
    tokenised: bool = False,
    samples: int = EvaluateSettings.samples,
) -> tuple[float, float]:
    """The 95 % interval of how far the second system's BLEU is above the first's, on the draws of sacrebleu's test."""
    one, other = measure([first, second], references, tokenised, samples=samples)
    return other.gain_over(one)


def bucket_lines(references: Sequence[str], edges: Sequence[int] = EvaluateSettings.edges) -> list[list[int]]:
    """The numbers of the lines in each bucket of reference length: up to edges[0] words, up to edges[1], ..., more.

    >>> bucket_lines(["a b", "a", "a b c"], edges=[1, 2])
    [[1], [0], [2]]
    """
    buckets: list[list[int]] = [[] for _ in (*edges, None)]
    for number, line in enumerate(references):
        buckets[bisect.bisect_left(edges, len(line.split()))].append(number)
    return buckets


def bucket_bleu(
    hypotheses: Sequence[str], references: Sequence[str], buckets: Sequence[Sequence[int]], tokenised: bool = False
) -> list[float | None]:
    """BLEU of each bucket's lines alone (Figure 3 of the paper); None for an empty bucket."""
    bleu = _bleu(tokenised)
    return [
        bleu.corpus_score([hypotheses[n] for n in lines], [[references[n] for n in lines]]).score if lines else None
        for lines in buckets
    ]


def repeat_rates(
    lines: Sequence[str], window: int = EvaluateSettings.window, orders: Sequence[int] = (1, 2, 3, 4)
) -> list[float]:
    """Percentage of n-grams that repeat a nearby one, for each n in `orders`; tokens are separated by spaces.

    An n-gram counts if the same n-gram starts at one of the `window` positions before it in its sentence. The paper
    does not define "nearby", and no window gives exactly the reference row of its Table 2 (2.49, 0.03, 0.00, 0.00).
    On newstest2014 German with Moses tokens, a window of 5 comes closest: 2.36, 0.06, 0.01, 0.00.

    >>> repeat_rates(["a b a b c"], window=2, orders=(1, 2))
    [40.0, 25.0]
    """
    rates: list[float] = []
    for order in orders:
        repeated = total = 0
        for line in lines:
            tokens = line.split()
            starts = [tuple(tokens[start : start + order]) for start in range(len(tokens) - order + 1)]
            repeated += sum(gram in starts[max(0, place - window) : place] for place, gram in enumerate(starts))
            total += len(starts)
        rates.append(100 * repeated / total if total else 0.0)
    return rates


def token_lines(lines: Sequence[str], tokenised: bool = False) -> list[str]:
    """Lines as BLEU counts them: its tokens, separated by spaces."""
    tokenise = _bleu(tokenised).tokenizer
    return [tokenise(line) for line in lines]


def _check(systems: Sequence[Sequence[str]], references: Sequence[str], tokenised: bool) -> None:
    for number, lines in enumerate(systems, 1):
        if len(lines) != len(references):
            name = "hypotheses" if len(systems) == 1 else f"system {number}"
            raise UserError(
                f"line counts differ: {name} {len(lines)}, references {len(references)}; line n of each must be the "
                f"same sentence"
            )
    if not references:
        raise UserError("nothing to evaluate: hypotheses and references are empty; give text")
    if not any(line.split() for line in token_lines(references, tokenised)):
        raise UserError("references: no words in any line; give the file with the reference translations")


def _metrics(references: Sequence[str], tokenised: bool, ter: bool) -> dict[str, Metric]:
    """The metrics by name. They hold the references, which sacrebleu then analyses only once."""
    name = "tokenised BLEU" if tokenised else "BLEU"
    metrics: dict[str, Metric] = {name: _bleu(tokenised, references)}
    from sacrebleu.metrics.chrf import CHRF
    from sacrebleu.metrics.ter import TER

    metrics["chrF2"] = CHRF(references=[references])
    if ter:
        metrics["TER"] = TER(references=[references])
    return metrics


def _bleu(tokenised: bool, references: Sequence[str] | None = None) -> BLEU:
    try:
        from sacrebleu.metrics.bleu import BLEU
    except ImportError:
        raise UserError("scoring needs the package sacrebleu: pip install sacrebleu") from None
    # force: no warning about tokenised text, because the caller has specified what the text is.
    given = None if references is None else [references]
    return BLEU(tokenize=_tokens_name(tokenised), force=True, references=given)


def _tokens_name(tokenised: bool) -> str:
    return "none" if tokenised else "13a"


def _repeated(lines: Sequence[str], tokenised: bool) -> Figures:
    """How many tokens of each line equal the token before."""
    found = (line.split() for line in token_lines(lines, tokenised))
    return np.array([sum(one == other for one, other in itertools.pairwise(tokens)) for tokens in found], np.float32)


def _system_scores(scores: Sequence[Score], counts: Counts, tokenised: bool) -> SystemScores:
    written, right = counts.bleu[:, 0].sum(dtype=np.float64), counts.bleu[:, 1].sum(dtype=np.float64)
    repeated = counts.repeated.sum(dtype=np.float64)
    bleu, chrf, *ter = scores
    return SystemScores(
        bleu=bleu,
        chrf=chrf,
        ter=ter[0] if ter else None,
        tokens=_tokens_name(tokenised),
        length_ratio=float(written / right),
        repeat_rate=float(100 * repeated / written) if written else 0.0,
    )
