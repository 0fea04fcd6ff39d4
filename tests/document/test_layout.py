from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lath.document.layout import Span, split_line, split_text

HARD = Path(__file__).parents[2] / "docs/runs/splitter"


def shown(text: str, language: str = "de") -> str:
    """The text with its sentences in brackets."""
    return "".join(f"⟨{span.text}⟩" if span.sentence else span.text for span in split_text(text, language))


@pytest.mark.parametrize(
    "layout",
    [
        "",
        "\n\n",
        "---\n***\n",
        "1234",
        "12,5 %\n",
        "…",
        "⟨Hallo.⟩ ⟨Wie geht es?⟩",
        "⟨Hallo.⟩  \t ⟨Wie geht es?⟩",
        "⟨Hallo⟩\n⟨Welt⟩",
        "⟨Hallo.⟩\r\n\r\n⟨Welt.⟩\r\n",
        "⟨Hallo.⟩\r⟨Welt.⟩",
        "⟨Hallo.⟩\u2028⟨Welt.⟩\u2029⟨Ja.⟩\x85⟨Nein.⟩\x0c⟨Gut.⟩\x0b",
        "    ⟨Hallo.⟩   \n\t⟨Welt.⟩\t",
        "\u3000⟨Hallo.⟩\u00a0",
        "\ufeff⟨Hallo.⟩",
        "- ⟨Brot⟩\n- ⟨Käse⟩\n",
        "* ⟨Brot⟩\n  * ⟨Käse⟩",
        "• ⟨Brot⟩\n– ⟨Käse⟩\n— ⟨Wein⟩",
        "-\n- \n⟨a⟩",
        "1. ⟨Brot kaufen.⟩\n2. ⟨Käse essen.⟩",
        "10) ⟨Brot⟩\n(11) ⟨Käse⟩",
        "1.2.3. ⟨Brot⟩",
        "a) ⟨Brot⟩\nB) ⟨Käse⟩\n(c) ⟨Wein⟩",
        "(iv) ⟨Brot⟩\nxii) ⟨Käse⟩",
        "> ⟨Hallo.⟩ ⟨Gut.⟩\n>> ⟨Nein.⟩\n> > ⟨Ja.⟩\n>⟨Eng.⟩",
        "> - 1. ⟨Hallo.⟩",
        "# ⟨Titel⟩\n###### ⟨Tief⟩",
        "⟨#Thema ist neu.⟩",
        "- [ ] ⟨Offen⟩\n- [x] ⟨Erledigt⟩\n☐ ⟨Offen⟩\n✓ ⟨Fertig⟩",
        "| ⟨Name⟩ | ⟨Ort⟩ |\n|---|--:|\n| ⟨Anna.⟩ ⟨Eva.⟩ | 12 |",
        "⟨Name⟩\t⟨Ort⟩\t12",
        "⟨Das ist a | b.⟩",
        "⟨3. Oktober 1990 war ein Tag.⟩\n3. ⟨Zimmer aufräumen⟩",
        "⟨z. B. Äpfel.⟩ ⟨Birnen.⟩",
        "⟨J. S. Bach lebte.⟩ ⟨Er schrieb.⟩",
        "⟨Am 3. Oktober.⟩ ⟨Im 21. Jahrhundert.⟩ ⟨Das 2. Mal.⟩",
        "⟨Er kennt mich.⟩ ⟨Tom geht.⟩",
        "⟨„Komm!“⟩ ⟨Er kam.⟩",
        "⟨Ja (er kam. Wirklich!) und ging.⟩ ⟨Gut.⟩",
        "⟨Siehe www.beispiel.de.⟩ ⟨Dort.⟩",
        "⟨-5 Grad.⟩ ⟨Kalt.⟩",
        "⟨**Wichtig:** Das gilt.⟩",
        "⟨你好。⟩⟨再见。⟩",
        "😀 😀\n⟨Hallo 😀⟩",
    ],
)
def test_layouts(layout: str) -> None:
    assert shown(layout.replace("⟨", "").replace("⟩", "")) == layout


@pytest.mark.parametrize(("language", "least"), [("de", 0.93), ("en", 0.96)])
def test_hard_cases(language: str, least: float) -> None:
    right = wrong = 0
    for line in (HARD / f"hard.{language}.txt").read_text(encoding="utf-8").splitlines():
        expected = line.split(" ¦ ")
        found = [span.text for span in split_line(" ".join(expected), language) if span.sentence]
        right += len({*expected} & {*found})
        wrong += len({*expected} ^ {*found})
    assert 2 * right / (2 * right + wrong) > least - 0.05  # whole sentences are harder than their ends


@pytest.mark.parametrize("language", ["de", "DE", "de-AT", "de_DE"])
def test_regions_share_the_rules_of_their_language(language: str) -> None:
    assert shown("Am 3. Oktober. Gut.", language) == "⟨Am 3. Oktober.⟩ ⟨Gut.⟩"


@pytest.mark.parametrize("language", ["", "xx", "tlh", "Deutsch"])
def test_an_unknown_language_is_split_all_the_same(language: str) -> None:
    assert shown("Bara. Nuqneh? Mev!", language) == "⟨Bara.⟩ ⟨Nuqneh?⟩ ⟨Mev!⟩"


def test_a_line_break_within_a_line_is_white_space() -> None:
    assert split_line("One.\nTwo.\n", "en") == [
        Span("One.", True),
        Span("\n", False),
        Span("Two.", True),
        Span("\n", False),
    ]


PARTS = st.sampled_from([*" \t\n\r\x0b\x0c\x00\x1c\x85\u2028\u3000\ufeff\u200b\ud800.!?…\"'„“«»()[]|->#*1aÄ中。😀",
                         "\r\n", "z. B. ", "mich. ", "im 3. ", "A\u2028.", "1. ", "- "])  # fmt: skip


@settings(max_examples=500, deadline=None)
@given(
    st.one_of(st.lists(PARTS, max_size=60).map("".join), st.text(max_size=60)), st.sampled_from(["de", "en", "ja", ""])
)
def test_nothing_is_lost_and_spans_are_tidy(text: str, language: str) -> None:
    for spans in (split_text(text, language), split_line(text, language)):
        assert "".join(span.text for span in spans) == text
        assert all(span.text for span in spans)
        assert all(span.text == span.text.strip() for span in spans if span.sentence)
        assert all(any(map(str.isalpha, span.text)) for span in spans if span.sentence)
        assert all(a.sentence or b.sentence for a, b in pairwise(spans))
    assert all(len(span.text.splitlines()) == 1 for span in split_text(text, language) if span.sentence)
