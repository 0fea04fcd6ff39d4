from __future__ import annotations

import tomllib
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lath
from lath.document.surface import foreign_runs, in_capitals, simplify
from lath.text.vocab import SubwordNmtVocab, Vocab, learn_sentencepiece
from lath.translator import Translator

CASES = tomllib.loads((Path(__file__).parent / "awkward.toml").read_text(encoding="utf-8"))["case"]


@pytest.fixture(scope="module")
def mt() -> Translator:
    return lath.load("de-en", device="cpu")


@pytest.fixture(scope="module")
def vocab(mt: Translator) -> Vocab:
    return mt.source_vocab


@pytest.mark.parametrize(
    ("text", "simple"),
    [
        ("Das ist gut.", "Das ist gut."),
        ("»Hilfe!«", '"Hilfe!"'),
        ("›Nein‹ – «ja»", '"Nein" – "ja"'),
        ("„Ja“, sagte er.", "„Ja“, sagte er."),  # the vocabulary has these
        ("„Er sagte: ‚Ja.‘“", '„Er sagte: "Ja."“'),
        ("Er rief 'Komm her!' und ging.", 'Er rief "Komm her!" und ging.'),
        ("Wie geht's? So geht’s.", "Wie geht's? So geht’s."),
        ("Ja — nein―ja", "Ja – nein–ja"),
        ("Das - so er - geht, 5 - 3, E\u2011Mail", "Das – so er – geht, 5 - 3, E-Mail"),
        ("Scho\u00adko\u200blade  ist\t\u00a0gut", "Schokolade ist gut"),
        ("mu\u0308de", "müde"),
        ("Das ist NICHT wahr.", "Das ist nicht wahr."),
        ("Ich habe DIE GANZE NACHT gelesen.", "Ich habe die ganze Nacht gelesen."),
        ("Die EU, die NATO, CDU, CSU und der ADAC.", "Die EU, die NATO, CDU, CSU und der ADAC."),
        ("BMW", "BMW"),
    ],
)
def test_the_usual_spelling(vocab: Vocab, text: str, simple: str) -> None:
    assert simplify(text, vocab) == (simple, [], False)


@pytest.mark.parametrize(
    ("text", "simple"),
    [
        ("ICH GEHE IN DIE SCHULE.", "Ich gehe in die Schule."),
        ("DIE STRASSE IST GROSS.", "Die Straße ist groß."),
        ("WIE GEHT'S DIR?", "Wie geht's dir?"),
        ("DIE EU HILFT DER UKRAINE.", "Die EU hilft der Ukraine."),
        ("»NEIN!«", '"Nein!"'),
    ],
)
def test_capitals(vocab: Vocab, text: str, simple: str) -> None:
    assert simplify(text, vocab) == (simple, [], True)


def test_protected_text_is_left_alone(vocab: Vocab) -> None:
    text = "SCHREIB »AN\u00ad« A\u00adB—C JETZT NICHT IN  CAPS"
    start = text.index("A\u00adB—C")
    simple = simplify(text, vocab, [(start, start + 5), (len(text) - 4, len(text))])
    assert [simple.text[slice(*span)] for span in simple.keep] == ["A\u00adB—C", "CAPS"]
    assert simple.text == 'Schreib "an" A\u00adB—C jetzt nicht in CAPS'
    assert in_capitals("write max@x.de or ß now: max", ["max@x.de"]) == "WRITE max@x.de OR SS NOW: MAX"


@pytest.mark.parametrize(
    ("text", "runs"),
    [
        ("Das ist 中国 und schön.", ["中国"]),
        ("中国，北京 2023年。 Das", ["中国，北京 2023年。"]),
        ("Москва und мир, да", ["Москва", "мир, да"]),
        ("สวัสดีครับ ist नमस्ते", ["สวัสดีครับ", "नमस्ते"]),
        ("A = B → C", ["=", "→"]),
        ("Señor François sagt: „é“ – 5 €", []),
    ],
)
def test_what_the_vocabulary_cannot_spell(vocab: Vocab, text: str, runs: list[str]) -> None:
    assert [text[slice(*run)] for run in foreign_runs(text, vocab)] == runs


def test_a_vocabulary_of_words_lacks_what_it_has_not_seen() -> None:
    vocab = SubwordNmtVocab([], ["e@@", "i", "n@@", "n", '"@@', '"', "–"])
    assert foreign_runs("nein 中国", vocab) == [(5, 7)]
    assert simplify("»nein« — nein", vocab).text == '"nein" – nein'


def test_characters_that_a_vocabulary_has_stay() -> None:
    vocab = learn_sentencepiece(["»Nein« — ja, sagte er — 中国 "] * 20, 300)
    assert simplify("»Nein« — ja", vocab).text == "»Nein« — ja"
    assert foreign_runs("中国 ja", vocab) == []


@settings(max_examples=200, deadline=None)
@given(st.text(st.sampled_from("aB ÄßSÉ'’‚‘\"»«—- \u00ad\u200d中д\u0301=😀.,1"), max_size=30), st.data())
def test_any_text(vocab: Vocab, text: str, data: st.DataObject) -> None:
    places = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=4).filter(lambda it: len(it) % 2 == 0)))
    spans = list(zip(places[::2], places[1::2], strict=True))
    simple = simplify(text, vocab, spans)
    assert [simple.text[slice(*span)] for span in simple.keep] == [text[slice(*span)] for span in spans]
    runs = foreign_runs(text, vocab)
    assert all(start < end for start, end in runs)
    assert runs == sorted(runs)
    assert all(one[1] <= other[0] for one, other in pairwise(runs))


@pytest.mark.parametrize("marks", ["»«", "›‹", "‚‘", "''", "«»"])
def test_quotation_marks_come_out_as_quotation_marks(mt: Translator, marks: str) -> None:
    texts = [f"Er sagte: {marks[0]}{said}{marks[1]}" for said in ("Ich komme nicht.", "Tom ist hier.", "Das ist gut.")]
    simple = [simplify(text, mt.source_vocab).text for text in texts]
    assert [text.count('"') for text in mt.translate(simple)] == [2, 2, 2]


def test_the_table_of_awkward_texts_is_sound() -> None:
    assert len(CASES) >= 60
    assert len({case["name"] for case in CASES}) == len(CASES)
    for case in CASES:
        assert case.keys() <= {"name", "text", "verbatim", "exact", "absent", "capitals", "html"}, case["name"]
        assert all(string in case["text"] for string in case.get("verbatim", [])), case["name"]
