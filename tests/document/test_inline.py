"""Elements find their place in the translation of a whole sentence."""

from __future__ import annotations

import pytest

from lath.document.inline import MOST_MARKS, Marked, one_sentence, translate_marked
from lath.document.layout import Span, split_text

WORDS = {
    "Guten Morgen, Tom!": "Good morning, Tom!",
    "Guten": "Good",
    "Guten Morgen": "Good morning",
    "Tom": "Tom",
    "Morgen": "Tomorrow",
    "Tom!": "Tom!",
    "Das habe ich gestern in der Stadt gekauft.": "I bought that in town yesterday.",
    "Das habe ich": "I have that",
    "gestern": "Yesterday",
    "in der Stadt": "In town",
    "gekauft.": "Bought.",
    "Ich kenne <x0/> gut.": "I know <x0/> well.",
    "Ich kenne": "I know",
    "Ich": "I",
    "kenne": "know",
    "gut.": "Well.",
    "Ja, gut.": "Yes, well.",
    "Ja": "Yes",
    "Nein.": "No.",
}


def placed(text: str, *contents: str) -> list[str]:
    """The content of each mark in the translation, after the translation."""
    marks = [(start := text.index(content), start + len(content)) for content in contents]
    [result] = translate_marked([Marked(text, marks)], lambda texts: [WORDS[text] for text in texts], one_sentence)
    return [result.text, *(result.text[start:end] for start, end in result.marks)]


@pytest.mark.parametrize(
    ("text", "contents", "found"),
    [
        ("Guten Morgen, Tom!", ["Morgen"], ["morning"]),  # what is left for it
        ("Guten Morgen, Tom!", ["Guten Morgen"], ["Good morning"]),
        ("Guten Morgen, Tom!", ["Tom!"], ["Tom!"]),  # with its punctuation
        ("Guten Morgen, Tom!", ["Guten Morgen, Tom"], ["Good morning, Tom"]),  # all words
        (
            "Das habe ich gestern in der Stadt gekauft.",
            ["gestern", "in der Stadt"],
            ["yesterday", "in town"],
        ),  # crossed
        ("Ich kenne <x0/> gut.", ["kenne <x0/>"], ["know <x0/>"]),
        ("Ich kenne <x0/> gut.", ["Ich kenne <x0/>", "kenne"], ["I know <x0/>", "know"]),
    ],
)
def test_a_mark_is_around_what_it_was_around(text: str, contents: list[str], found: list[str]) -> None:
    assert placed(text, *contents) == [WORDS[text], *found]


def test_a_mark_may_reach_over_sentences() -> None:
    text = "Ja, gut. Guten Morgen, Tom!"
    asked: list[list[str]] = []

    def translate(texts: list[str]) -> list[str]:
        asked.append(texts)
        return [WORDS[text] for text in texts]

    marked = Marked(text, [(text.index("gut"), text.index(", Tom"))])
    [result] = translate_marked([marked], translate, lambda text: split_text(text, "de"))
    assert result.text == "Yes, well. Good morning, Tom!"
    assert result.text[slice(*result.marks[0])] == "well. Good morning"
    assert asked[0] == ["Ja, gut.", "Guten Morgen, Tom!"]


def test_stretches_take_the_place_of_a_sentence_that_lost_a_stand_in_or_has_too_many_marks() -> None:
    lost = translate_marked(
        [Marked("Ja <x0/> gut", [(0, 2)])],
        lambda texts: [text.replace("<x0/>", "").upper() for text in texts],
        one_sentence,
    )
    assert lost == [Marked("JA <x0/> GUT", [(0, 2)])]
    words = " ".join("abcdefghijklmnopqrstuvwxyz")
    marks = [(2 * number, 2 * number + 1) for number in range(MOST_MARKS + 1)]
    assert (
        translate_marked([Marked(words, marks)], lambda texts: ["Nein."] * len(texts), one_sentence)[0].text != "Nein."
    )


def test_what_is_kept_between_sentences_keeps_its_marks() -> None:
    spans = [Span("1. ", False), Span("Nein.", True)]
    [result] = translate_marked([Marked("1. Nein.", [(0, 1)])], lambda texts: ["No."] * len(texts), lambda _: spans)
    assert result == Marked("1. No.", [(0, 1)])
