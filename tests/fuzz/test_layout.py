"""Hostile texts are split in linear time: the library sees short pieces, and no character more than about twice."""

from __future__ import annotations

from typing import Any

import pytest
import sentencex

from lath.document.layout import split_text


@pytest.mark.parametrize(
    "pattern", ["„Hallo. ", "“ ", "。", "a", "a ", ".", "Ein Satz. ", "a. [1] ", "(", "im 3. ", "! ?", "\n", "a\n"]
)
def test_hostile_texts(pattern: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    library = sentencex.get_sentence_boundaries

    def counted(language: str, text: str) -> Any:
        seen.append(len(text))
        return library(language, text)

    monkeypatch.setattr(sentencex, "get_sentence_boundaries", counted)
    text = "a" + pattern * (100_000 // len(pattern))
    spans = split_text(text, "de")
    assert "".join(span.text for span in spans) == text
    assert max(seen) <= 4000
    assert sum(seen) <= 2.1 * len(text)
