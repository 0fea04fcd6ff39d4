"""Whole texts: laid out as sentences, each planned and translated, and put together again.

spans = lay_out("Guten Tag. Wie geht's?\n", "de")
found = translate_sentences([span.text for span in spans if span.sentence], vocab, translate)
put_together(spans, iter(found)).text  ->  "Good day. How are you?\n"
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from lath.decoding.results import Hypothesis
from lath.document.layout import Span, split_text
from lath.document.plan import plan
from lath.document.wrapping import broken, unbroken
from lath.text.vocab import Vocab


def lay_out(text: str, language: str) -> list[Span]:
    """The sentences of a text in `language`, and what stands between them."""
    # A lone surrogate (from a broken file name or JSON) is no text, and cannot be written.
    return split_text(text.encode("utf-8", "replace").decode(), language)


def translate_sentences(
    sentences: list[str], vocab: Vocab, translate: Callable[[list[str]], list[Hypothesis]]
) -> list[Hypothesis]:
    """Sentences, each in as many attempts as it needs to keep what must come through unchanged, and its line breaks."""
    plans = [plan(unbroken(sentence), vocab) for sentence in sentences]
    done: dict[int, Hypothesis] = {}
    for number in itertools.count():
        waiting = [index for index in range(len(plans)) if index not in done]
        if not waiting:
            return [done[index] for index in range(len(plans))]
        tried = [plans[index].attempts[number] for index in waiting]
        units = iter(translate([text for attempt in tried for text in attempt.texts]))
        for index, attempt in zip(waiting, tried, strict=True):
            parts = [next(units) for _ in attempt.texts]
            if (text := attempt.join([part.text for part in parts])) is not None:
                text = broken(text, sentences[index])
                done[index] = replace(_together(text, parts), copied=plans[index].copied)
    raise AssertionError("unreachable")


def without_invented(unit: Hypothesis, source: str, vocab: Vocab) -> Hypothesis:
    """The same without placeholders that the source has not."""
    invented = [word for word in vocab.placeholders if word in unit.text and word not in source]
    words = (word for word in unit.text.split() if word not in invented)
    return replace(unit, text=" ".join(words)) if invented else unit


def put_together(spans: Sequence[Span], found: Iterator[Hypothesis]) -> Hypothesis:
    """The hypothesis of a text that was laid out; the next ones of `found` are those of its sentences."""
    parts = [next(found) if span.sentence else Hypothesis(span.text, 0.0, 0, 0) for span in spans]
    return _together("".join(part.text for part in parts), parts)


def _together(text: str, parts: list[Hypothesis]) -> Hypothesis:
    """The hypothesis of a text from those of its parts; what was not translated has no say in the score."""
    translated = [part for part in parts if part.fragments]
    fragments = sum(part.fragments for part in translated)
    return Hypothesis(
        text=text,
        score=sum(part.score * part.fragments for part in translated) / max(fragments, 1),
        iterations=max((part.iterations for part in translated), default=0),
        fragments=fragments,
        copied=any(part.copied for part in parts),
        passes=[passes for part in translated for passes in part.passes],
        checks=max((part.checks for part in translated), default=0),
    )
