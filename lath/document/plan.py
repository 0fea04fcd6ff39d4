"""What a model gets to see of a sentence, and how its output becomes the translation.

    sentence = plan("ÖFFNE {name}!", vocab)
    for attempt in sentence.attempts:           # tried in order; the last one always joins
        joined = attempt.join([translate(text) for text in attempt.texts])

The spelling is made usual (surface.py), and what must come through unchanged is protected (protect.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from lath.document.protect import Attempt, Span, attempts, find_spans
from lath.document.surface import foreign_runs, in_capitals, simplify
from lath.text.vocab import Vocab


class Plan(NamedTuple):
    """One sentence, ready to be translated."""

    attempts: list[Attempt]
    copied: bool
    """Whether some of it is protected: it comes through unchanged."""


def plan(sentence: str, vocab: Vocab) -> Plan:
    """What to translate for a sentence, with the vocabulary of its side."""
    found = find_spans(sentence)
    simple = simplify(sentence, vocab, [span[:2] for span in found])
    spans = [Span(*place, span.kind) for place, span in zip(simple.keep, found, strict=True)]
    foreign = [Span(*run, "foreign") for run in foreign_runs(simple.text, vocab)]
    spans = sorted([*spans, *(run for run in foreign if not any(_overlap(run, span) for span in spans))])
    if not spans and not vocab.placeholders and any(map(str.isalnum, simple.text)):
        tries = [Attempt([simple.text], lambda outputs: outputs[0])]
    else:
        tries = attempts(simple.text, spans, vocab.placeholders)
    protected = [simple.text[span.start : span.end] for span in spans]
    return Plan(
        [_finished(attempt, simple.text, protected if simple.capitals else None) for attempt in tries], bool(spans)
    )


def _overlap(one: Span, other: Span) -> bool:
    return one.start < other.end and other.start < one.end


def _finished(attempt: Attempt, source: str, shouted: list[str] | None) -> Attempt:
    """The attempt with its result in capitals if the source was, but for `shouted`, and without an added full stop."""
    join: Callable[[list[str]], str | None] = attempt.join

    def finish(outputs: list[str]) -> str | None:
        joined = join(outputs)
        if joined is None:
            return None
        if source[-1:].isalnum() and joined.endswith(".") and not joined.endswith(".."):
            joined = joined[:-1]
        return joined if shouted is None else in_capitals(joined, shouted)

    return Attempt(attempt.texts, finish)
