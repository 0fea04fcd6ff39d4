from __future__ import annotations

import random
import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lath.document.layout import split_text
from lath.document.protect import find_spans
from lath.document.wrapping import broken, unbroken


def shown(text: str) -> str:
    """The text with its sentences in brackets."""
    return "".join(f"⟨{span.text}⟩" if span.sentence else span.text for span in split_text(text, "de"))


@pytest.mark.parametrize(
    "layout",
    [
        "⟨Wenn du morgen kommst,\nbringe ich dir das Buch mit.⟩\n",  # behind a comma, in lower case
        "⟨Wenn du morgen kommst,\r\nbringe ich dir das Buch mit.⟩",
        "⟨Die Bäckerei an der Ecke verkauft Brot und alles,\nwas man braucht.⟩ ⟨Die Frau hinter der Theke\n"
        "kennt mich seit Jahren.⟩\n\n⟨Ja.⟩",
        "⟨Am nächsten Morgen ging der alte Mann wie jeden Tag in die kleine\nBäckerei.⟩ ⟨Er kaufte Brot.⟩",
        "> ⟨Ich wollte dich fragen, ob du am Wochenende\n> kommen kannst.⟩\n\n⟨Ja.⟩",
        "- ⟨Das ist der erste Punkt, der etwas länger ist\n  und hier weitergeht.⟩\n- ⟨Zwei⟩\n",
        # Other breaks
        "⟨Guten Morgen⟩\n⟨lieber Tom⟩",
        "⟨brot⟩\n⟨käse⟩\n⟨milch⟩",
        "⟨Musterstraße 12⟩\n⟨10115 Berlin⟩\n⟨Deutschland⟩",
        "⟨Über allen Gipfeln⟩\n⟨Ist Ruh,⟩\n⟨In allen Wipfeln⟩\n⟨Spürest du⟩",
        "⟨Hier ist zu Ende, was zu Ende ist, und nichts geht weiter.⟩\n⟨wirklich nicht.⟩",
        "# ⟨Eine Überschrift, die recht lang ist und kein Ende hat⟩\n⟨und ein Text.⟩",
        "⟨Eine Zeile, die so lang ist, dass sie gefüllt sein könnte⟩\n- ⟨und eine Liste⟩",
        "> ⟨Ich wollte dich fragen, ob du am Wochenende⟩\n⟨kommen kannst.⟩",
        "⟨Ich wollte dich fragen, ob du am Wochenende⟩\n    ⟨kommen kannst.⟩",
        "⟨Davor.⟩\n```python\nprint('Guten Morgen')\n```\n⟨Danach.⟩",
        "~~~\nGuten Morgen\n~~~",
        "```\n⟨Nie zu Ende⟩",
    ],
)
def test_lines_that_belong_together(layout: str) -> None:
    assert shown(re.sub("[⟨⟩]", "", layout)) == layout


def test_a_divided_word_is_one_again() -> None:
    assert unbroken("die Kunden-\nnummer fehlt") == "die Kundennummer fehlt"
    assert unbroken("Vor-\nund Nachteile,\r\n  > die es gibt") == "Vor- und Nachteile, die es gibt"
    assert unbroken("a  b") == "a  b"


def test_breaks_go_near_their_places_and_behind_commas() -> None:
    assert broken(
        "If you come tomorrow, I'll bring you the book.", "Wenn du kommst,\nbringe ich dir dieses Buch mit."
    ) == ("If you come tomorrow,\nI'll bring you the book.")
    assert broken("One two three four", "Eins zwei\n> drei vier") == "One two\n> three four"
    assert broken("One", "Eins\nzwei\ndrei") == "One\n\n"
    assert broken("Say `a b c` now", "Sag\n`a b c` jetzt") == "Say\n`a b c` now"
    assert broken("One  two", "Eins zwei") == "One  two"


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(["Wort", "`a b`", "x@y.de", ",", "–"]), min_size=1, max_size=12), st.integers(1, 4))
def test_no_break_is_lost_and_nothing_else_changes(words: list[str], breaks: int) -> None:
    translation = " ".join(words)
    sentence = "\n".join(["ein paar Wörter"] * (breaks + 1))
    result = broken(translation, sentence)
    assert result.count("\n") == breaks
    assert " ".join(result.split()) == " ".join(translation.split())
    for span in find_spans(translation):
        assert translation[span.start : span.end] in result


def test_the_time_is_linear() -> None:
    draw = random.Random(2)
    bits = ["```\n", "~~~\n", "> ", "Wort ", "und so weiter,\n", "ein langer Satz ohne Ende, der nie\n", "\n", "- "]
    for text in [
        "```\n~~~\n" * 5_000,
        "und weiter ohne Ende und Rast,\n" * 5_000,
        "".join(draw.choices(bits, k=20_000)),
    ]:
        begin = time.process_time()
        spans = split_text(text, "de")
        assert "".join(span.text for span in spans) == text
        for sentence in (span.text for span in spans if span.sentence):
            assert broken(sentence.replace("\n", " "), sentence).count("\n") == sentence.count("\n")
        assert time.process_time() - begin < 10
