from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lath.config import VocabSettings
from lath.errors import UserError
from lath.text.subword import learn_codes, learn_words
from lath.text.vocab import (
    BOS,
    EOS,
    MASK,
    PAD,
    SOP,
    SPECIALS,
    UNK,
    SentencePieceVocab,
    SubwordNmtVocab,
    Vocab,
    learn_sentencepiece,
    learn_vocabs,
    load_vocabs,
    save_vocabs,
    vocab_files,
)

GERMAN = [
    "der alte Mann geht langsam über die Brücke .",
    "die alte Frau geht schnell durch den Garten .",
    "ein Hund läuft über die Wiese und bellt laut .",
    "im Garten steht ein alter Baum , der nie blüht .",
    "langsam wird es dunkel , und der Hund schläft .",
]
ENGLISH = [
    "the old man walks slowly across the bridge .",
    "the old woman walks quickly through the garden .",
    "a dog runs across the meadow and barks loudly .",
    "in the garden there is an old tree that never blooms .",
    "slowly it gets dark , and the dog sleeps .",
]
BOTH = GERMAN + ENGLISH


@pytest.fixture(scope="module")
def pieces() -> SentencePieceVocab:
    return learn_sentencepiece(BOTH * 3, 380)


@pytest.fixture(scope="module")
def units() -> SubwordNmtVocab:
    merges = ["e r</w>", "t h", "th e</w>", "a n", "o l", "ol d</w>", "e n</w>", "d er</w>"]
    return SubwordNmtVocab(merges, learn_words(BOTH, merges))


def test_the_specials_come_first(pieces: SentencePieceVocab, units: SubwordNmtVocab) -> None:
    assert (BOS, PAD, EOS, UNK, MASK, SOP) == (0, 1, 2, 3, 4, 5)
    vocabs: list[Vocab] = [pieces, units]
    for vocab in vocabs:
        assert [vocab.token(id) for id in range(6)] == ["<s>", "<pad>", "</s>", "<unk>", "<mask>", "<sop>"]
        assert vocab.token(vocab.size - 1)
        assert vocab.decode(range(6)) == ""


# --- SentencePiece ---


def test_sentencepiece_round_trip(pieces: SentencePieceVocab) -> None:
    assert pieces.size == 380
    assert pieces.token(pieces.encode("der Hund")[0]) == "▁der"
    for line in BOTH:
        ids = pieces.encode(line)
        assert pieces.decode(ids) == line
        assert len(ids) < len(line) / 2
    assert pieces.encode_lines(BOTH) == [pieces.encode(line) for line in BOTH]


@pytest.mark.parametrize(
    "text",
    [
        "😀👩‍👩‍👧 🇩🇪",
        "مرحبا بالعالم",
        "你好，世界".replace("，", ","),
        "𐨀𐨁 𞤀𞤁 \ue000\U000f1234",
        "ꙮ ᚠᛇ",
        "naïve Ωμέγα",
        "x\u0301q",
    ],
)
def test_scripts_it_never_saw_are_spelled_in_bytes(pieces: SentencePieceVocab, text: str) -> None:
    ids = pieces.encode(text)
    assert UNK not in ids
    assert pieces.decode(ids) == text


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=30))
def test_no_text_becomes_a_special(pieces: SentencePieceVocab, text: str) -> None:
    assert all(len(SPECIALS) <= id < pieces.size for id in pieces.encode(text))


@pytest.mark.parametrize("text", ["<mask>", "</s>", "<s> <pad> <unk> <sop>", "a<mask>b", "<0x41>", "▁", "\ud800 lone"])
def test_special_words_are_plain_text(pieces: SentencePieceVocab, text: str) -> None:
    # Also when the vocabulary was learnt from text that is full of them.
    learnt = learn_sentencepiece([text.replace("\ud800", "")] * 50 + BOTH, 380)
    for vocab in (pieces, learnt):
        ids = vocab.encode(text)
        assert all(id >= len(SPECIALS) for id in ids)
        assert vocab.decode(ids) == text.replace("▁", "").replace("\ud800", "?")


def test_a_placeholder_is_one_token_behind_the_specials(pieces: SentencePieceVocab, tmp_path: Path) -> None:
    assert pieces.placeholders == SubwordNmtVocab(["e n</w>"], ["en"]).placeholders == ()
    learnt = learn_sentencepiece(BOTH, 380, 12)
    assert learnt.placeholders == tuple(f"⟦{number}⟧" for number in range(12))
    assert learnt.size == 380
    save_vocabs(tmp_path, learnt, learnt)
    vocab, _ = load_vocabs(tmp_path)
    assert vocab.placeholders == learnt.placeholders
    for text in ("⟦0⟧", "an ⟦11⟧.", "⟦3⟧ und ⟦0⟧, ( ⟦7⟧)"):
        ids = vocab.encode(text)
        assert vocab.decode(ids) == text
        numbers = [id - len(SPECIALS) for id in ids if id < len(SPECIALS) + 12]
        assert numbers == [int(found) for found in re.findall(r"\d+", text)]
        assert vocab.encode(vocab.decode(ids)) == ids
    assert vocab.decode(vocab.encode("a⟦0⟧ ⟦12⟧ ⟦x⟧")) == "a⟦0⟧ ⟦12⟧ ⟦x⟧"  # no placeholders: spelled out


@pytest.mark.parametrize("text", ["", " ", "\t", "\u3000", "\u200b"])
def test_blank_is_nothing(pieces: SentencePieceVocab, text: str) -> None:
    assert pieces.encode(text) == []
    assert pieces.decode([]) == ""


@settings(max_examples=100, deadline=None)
@given(ids=st.lists(st.integers(-5, 400) | st.integers(200, 262) | st.just(2**40), max_size=12))
def test_any_ids_decode(pieces: SentencePieceVocab, units: SubwordNmtVocab, ids: list[int]) -> None:
    for vocab in (pieces, units):
        assert vocab.decode(ids) == vocab.decode([id for id in ids if len(SPECIALS) <= id < vocab.size])
    pieces.decode(ids).encode("utf-8")


def test_broken_bytes_leave_no_trace(pieces: SentencePieceVocab) -> None:
    first_byte = pieces.encode("😀")[1]
    assert pieces.token(first_byte) == "<0xF0>"
    assert pieces.decode([first_byte]) == ""
    assert pieces.decode([*pieces.encode("der"), first_byte, *pieces.encode("😀")]) == "der 😀"


def test_the_same_text_gives_the_same_bytes(pieces: SentencePieceVocab) -> None:
    assert learn_sentencepiece(iter(BOTH * 3), 380).model == pieces.model


def test_learning_is_quiet(capfd: pytest.CaptureFixture[str]) -> None:
    learn_sentencepiece(BOTH, 320)
    assert capfd.readouterr() == ("", "")


def test_long_lines_and_giant_words_are_learnt_from() -> None:
    # The trainer would drop the first and end the process at the second.
    vocab = learn_sentencepiece(["Zwiebelkuchen schmeckt " * 3000, "xy" * 50_000], 310)
    assert [vocab.token(id) for id in vocab.encode("Zwiebelkuchen")] == ["▁Zwiebelkuchen"]


def test_tabs_do_not_hide_a_line() -> None:
    vocab = learn_sentencepiece(["Zwiebelkuchen\tschmeckt"] * 50, 300)
    assert [vocab.token(id) for id in vocab.encode("schmeckt")] == ["▁schmeckt"]


def test_impossible_sizes_name_a_possible_one() -> None:
    with pytest.raises(UserError, match=r"^vocab.size 99999 is too large .*: set vocab.size to (\d+) or less") as large:
        learn_sentencepiece(BOTH, 99_999)
    most = int(str(large.value).split("set vocab.size to ")[1].split()[0])
    assert learn_sentencepiece(BOTH, most).size == most
    with pytest.raises(UserError, match=r"^vocab.size 100 is too small .*; set vocab.size to (\d+) or more") as small:
        learn_sentencepiece(BOTH, 100)
    least = int(str(small.value).split("set vocab.size to ")[1].split()[0])
    assert learn_sentencepiece(BOTH, least).size == least
    with pytest.raises(UserError, match=r"^vocab.size 0 is too small; set vocab.size to a few thousand"):
        learn_vocabs(VocabSettings(size=0), lambda: GERMAN, lambda: ENGLISH)


@pytest.mark.parametrize("lines", [[], ["", "  "]])
def test_no_text_to_learn_from(lines: list[str]) -> None:
    for learn in (learn_sentencepiece, learn_codes):
        with pytest.raises(UserError, match="no text to learn a vocabulary from: the training files are empty"):
            learn(lines, 300)


def test_an_error_while_reading_is_not_swallowed() -> None:
    def lines() -> Iterator[str]:
        yield from BOTH
        raise UserError("corpus.de: line 11 is not valid UTF-8")

    with pytest.raises(UserError, match="corpus.de: line 11"):
        learn_sentencepiece(lines(), 300)


# --- subword-nmt ---


def test_subword_nmt_round_trip(units: SubwordNmtVocab) -> None:
    for line in BOTH:
        ids = units.encode(line)
        assert units.decode(ids) == line
        assert min(ids) >= len(SPECIALS)
    assert units.encode_lines(BOTH) == [units.encode(line) for line in BOTH]
    assert units.encode("  the   old ") == units.encode("the old")
    assert units.encode("") == units.encode(" ") == []


def test_unseen_units_are_unknown(units: SubwordNmtVocab) -> None:
    assert units.encode("€") == [UNK]
    assert units.encode("old € man") == [*units.encode("old"), UNK, *units.encode("man")]
    assert units.decode([*units.encode("old"), UNK, *units.encode("man")]) == "old man"


def test_special_words_are_plain_units() -> None:
    vocab = SubwordNmtVocab([], learn_words(["</s> <mask>"], []))
    assert min(vocab.encode("</s> <mask>")) >= len(SPECIALS)
    assert vocab.decode(vocab.encode("</s> <mask>")) == "</s> <mask>"


def test_a_joiner_at_the_end_is_dropped(units: SubwordNmtVocab) -> None:
    ids = units.encode("dark")
    assert [units.token(id) for id in ids] == ["d@@", "a@@", "r@@", "k"]
    assert units.decode(ids[:2]) == "da"


def test_giant_words_are_segmented_in_no_time(units: SubwordNmtVocab) -> None:
    assert len(units.encode("the" * 30_000)) > 30_000


def test_the_package_is_asked_for_only_when_codes_are_learnt(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "subword_nmt.learn_bpe", None)
    with pytest.raises(UserError, match=r"pip install 'lath\[paper\]', or set vocab.source_codes"):
        learn_codes(BOTH, 10)
    (tmp_path / "codes").write_text("#version: 0.2\nt h\n")
    vocab_settings = VocabSettings(kind="subword-nmt", source_codes=str(tmp_path / "codes"))
    source, target = learn_vocabs(vocab_settings, lambda: GERMAN, lambda: ENGLISH)
    assert source is target
    assert "th@@" in [source.token(id) for id in range(source.size)]


# --- learning, saving, loading ---


def german() -> Iterable[str]:
    return iter(GERMAN)


def english() -> Iterable[str]:
    return iter(ENGLISH)


@pytest.mark.parametrize("kind", ["sentencepiece", "subword-nmt"])
@pytest.mark.parametrize("joint", [True, False])
def test_learn_save_load(tmp_path: Path, kind: str, joint: bool) -> None:
    if kind == "subword-nmt":
        pytest.importorskip("subword_nmt")
        learnt = learn_vocabs(VocabSettings(kind="subword-nmt", size=40, joint=joint), german, english)
    else:
        learnt = learn_vocabs(VocabSettings(size=320, joint=joint), german, english)
    assert (learnt[0] is learnt[1]) is joint
    save_vocabs(tmp_path, *learnt)
    end = {"sentencepiece": "model", "subword-nmt": "json"}[kind]
    names = [f"vocab.{end}"] if joint else [f"vocab.source.{end}", f"vocab.target.{end}"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    assert [path.name for path in vocab_files(tmp_path)] == names
    loaded = load_vocabs(tmp_path)
    assert (loaded[0] is loaded[1]) is joint
    for old, new, lines in zip(learnt, loaded, (GERMAN, ENGLISH), strict=True):
        assert type(new) is type(old)
        assert new.size == old.size
        assert new.encode_lines(lines) == old.encode_lines(lines)
        assert [new.decode(new.encode(line)) for line in lines] == lines


def test_separate_codes(tmp_path: Path) -> None:
    for name, merge in (("de", "d e"), ("en", "t h")):
        (tmp_path / name).write_text(f"#version: 0.2\n{merge}\n")
    de, en = str(tmp_path / "de"), str(tmp_path / "en")

    def learn(joint: bool, source_codes: str, target_codes: str) -> list[tuple[str, ...]]:
        chosen = VocabSettings(kind="subword-nmt", joint=joint, source_codes=source_codes, target_codes=target_codes)
        vocabs = learn_vocabs(chosen, german, english)
        return [vocab.merges for vocab in vocabs if isinstance(vocab, SubwordNmtVocab)]

    assert learn(False, de, en) == [("d e",), ("t h",)]
    assert learn(False, de, "") == [("d e",), ("d e",)]
    assert learn(True, de, de) == [("d e",), ("d e",)]
    with pytest.raises(UserError, match=r"one codes file; remove vocab.target_codes or set vocab.joint = false"):
        learn(True, de, en)
    with pytest.raises(UserError, match=r"vocab.target_codes is set but vocab.source_codes is not"):
        learn(False, "", en)


def test_no_vocabulary_there(tmp_path: Path, units: SubwordNmtVocab) -> None:
    for directory in (tmp_path, tmp_path / "none"):
        with pytest.raises(UserError, match=r": no vocabulary \(vocab.model or vocab.json\); name a directory"):
            load_vocabs(directory)
    save_vocabs(tmp_path, units, SubwordNmtVocab([], ["a"]))
    (tmp_path / "vocab.target.json").unlink()
    with pytest.raises(UserError, match=r"no vocabulary \(vocab.target.model or vocab.target.json\)"):
        load_vocabs(tmp_path)


def foreign_model() -> bytes:
    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(BOTH), model_writer=model, model_type="bpe", vocab_size=60, minloglevel=2
    )
    return model.getvalue()


def test_broken_models(tmp_path: Path, pieces: SentencePieceVocab) -> None:
    path = tmp_path / "vocab.model"
    remedy = "vocab.model: damaged or not written by lath .*run lath prepare again"
    for raw in (b"", b"hello", pieces.model[:100], pieces.model[:-100], pieces.model[: len(pieces.model) // 50]):
        path.write_bytes(raw)
        with pytest.raises(UserError, match=remedy):
            load_vocabs(tmp_path)
    path.write_bytes(foreign_model())
    with pytest.raises(UserError, match=r"its first entries are <unk> <s> </s> .*, not <s> <pad> </s> <unk>"):
        load_vocabs(tmp_path)


def test_broken_word_lists(tmp_path: Path, units: SubwordNmtVocab) -> None:
    save_vocabs(tmp_path, units, units)
    path = tmp_path / "vocab.json"
    whole = path.read_text(encoding="utf-8")
    remedy = "vocab.json: damaged or not written by lath .*run lath prepare again"
    for text in ("", whole[:-20], "[]", "{}", '{"format": 1, "merges": ["a"], "words": []}', '{"format": 1}'):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(UserError, match=remedy):
            load_vocabs(tmp_path)
    path.write_text(json.dumps({"format": 1, "merges": [], "words": [1]}))
    with pytest.raises(UserError, match=remedy):
        load_vocabs(tmp_path)
    path.write_text(json.dumps({"format": 2, "merges": [], "words": []}))
    with pytest.raises(UserError, match="vocab.json: format 2, but this version of lath reads format 1; use"):
        load_vocabs(tmp_path)
