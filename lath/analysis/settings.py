"""The settings of the verbs that measure: `lath evaluate`, `analyse`, `reproduce` and `bench`.

The command line shows these defaults in its help, so this file does not import torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lath.config import AUTO, DecodeOptions


@dataclass(frozen=True)
class EvaluateSettings:
    """What is computed from translations, and how it is printed (`lath evaluate`)."""

    tokenised: bool = False
    """The text is already tokenised: BLEU is of its own tokens."""
    ter: bool = False
    """Also TER, which is slow."""
    samples: int = 1000
    """Bootstrap samples of the paired test; 0 skips it."""
    repeats: bool = False
    """Also n-gram repeat rates."""
    window: int = 5
    """How many positions back a repeated n-gram counts."""
    buckets: bool = False
    """Also BLEU by reference length."""
    edges: tuple[int, ...] = (10, 20, 30, 40)
    """The longest reference of each bucket but the last, in words."""
    digits: int = 2
    """Decimals of the tables."""


@dataclass(frozen=True)
class AnalyseSettings:
    """What an analysis measures (`lath analyse`)."""

    tokenised: bool = EvaluateSettings.tokenised
    """The text is already tokenised: BLEU is of its own tokens."""
    ter: bool = True
    """Also TER, the slowest of the scores."""
    samples: int = EvaluateSettings.samples
    """Bootstrap samples of the paired test; 0 skips it."""
    window: int = EvaluateSettings.window
    """How many positions back a repeated n-gram counts."""
    edges: tuple[int, ...] = EvaluateSettings.edges
    """The longest reference of each bucket but the last, in words."""
    rare: int = 10
    """A name is rare if it occurs fewer times than this."""
    traced: int = 200
    """Lines whose passes are recorded with each model, spread over the text."""
    timed: int = 50
    """Sentences to time with each model, one at a time; 0 skips it."""
    repeats: int = 3
    """How often each sentence is timed."""
    device: str = AUTO
    """The device of all models."""
    precision: str = AUTO
    """The precision of all models except exported ones, which have their own."""


@dataclass(frozen=True)
class ReproduceSettings:
    """Which part of a task is made, and where (`lath reproduce`)."""

    tasks: str = "recipes/tasks.toml"
    """The file that describes tasks, systems and the paper's figures."""
    directory: str = ""
    """The run directory; empty: runs/TASK."""
    systems: str = ""
    """The systems instead of the task's, with commas between."""
    decode: str = ""
    """The decodings instead of the task's, with commas between."""
    jobs: int | None = None
    """Steps at the same time; None: as the task says."""
    device: str = AUTO
    """The device of all steps."""
    overrides: tuple[str, ...] = ()
    """SECTION.KEY=VALUE for all systems, NAME:SECTION.KEY=VALUE for those that fit NAME."""


@dataclass(frozen=True)
class BenchSettings:
    """How speed is measured (`lath bench`)."""

    device: str = AUTO
    """The device of all models."""
    precision: str = AUTO
    """The precision of all models except exported ones, which have their own."""
    threads: int | None = None
    """CPU threads; None keeps torch's default."""
    plain: bool = False
    """Also measure every model with the plain engine."""
    sentences: int = 100
    """Sentences to time, at most."""
    min_tokens: int = 1
    """Shortest sentence to time, in source tokens."""
    max_tokens: int | None = None
    """Longest sentence to time, in source tokens; None sets no limit."""
    repeats: int = 5
    """How often each row is measured."""
    batches: tuple[int, ...] = (8, 32, 128)
    """Batch sizes for the throughput."""
    lengths: tuple[int, ...] = (10, 20, 40, 80, 160)
    """Source lengths in tokens for the latency by length."""
    overrides: DecodeOptions = field(default_factory=DecodeOptions)
    """Decoding settings of all rows; they take precedence over a row's own."""
