"""Text in, text out: order, blank lines, batches, long lines, traces, and the text of every refusal."""

from __future__ import annotations

import ctypes
import dataclasses
import itertools
import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import torch
from conftest import Runs, Translators
from torch import Tensor
from toy import WORDS, ambiguous_pairs, toy_recipe, train_toy

import lath
from lath import translator as translator_module
from lath.config import DecodeOptions, DecodeSettings
from lath.decoding.results import Decoded, Hypothesis
from lath.devices import choose_device, release_memory
from lath.errors import UserError
from lath.model.directory import LoadedModel
from lath.text.vocab import BOS, EOS, MASK
from lath.translator import READ_AHEAD, Translator, load

KINDS = ("AT", "CMLM", "LAT")
LINES = ["ba ko mi", "gu", "tu re sa lo ni pe du", "fa", "du fa ba", "sa sa", "ko mi tu re"]


def looks(hypotheses: Iterator[Hypothesis]) -> list[tuple[str, int, int]]:
    """What must not change with the batch; scores may differ in the last digits."""
    return [(hypothesis.text, hypothesis.iterations, hypothesis.fragments) for hypothesis in hypotheses]


# ---- lines --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_same_length_same_order_blank_stays_blank(trained: Translators, wild: Translators, kind: str) -> None:
    lines = ["", *LINES[:3], "   ", "\t", LINES[3], "\u3000\u00a0", *LINES[4:], ""]
    for translator in (trained(kind), wild(kind)):
        out = translator.translate(lines)
        assert len(out) == len(lines)
        blank = [number for number, line in enumerate(lines) if not line.strip()]
        assert [number for number in blank if out[number] != lines[number].replace("\t", " ")] == []
        assert [out[number] for number in range(len(lines)) if number not in blank] == translator.translate(LINES)
    hypotheses = list(wild(kind).hypotheses(lines, trace=True))
    assert [(h.text, h.score, h.iterations, h.fragments, h.passes) for h in hypotheses[:1]] == [("", 0.0, 0, 0, [])]


def test_nothing_in_nothing_out(trained: Translators) -> None:
    assert trained("LAT").translate([]) == []
    assert trained("LAT").translate(["", " "]) == ["", " "]


def test_line_ends_are_no_words(wild: Translators) -> None:
    translator = wild("LAT")
    plain = translator.translate(LINES)
    assert translator.translate([line + "\r\n" for line in LINES]) == plain
    assert translator.translate([f" \t{line} \n" for line in LINES]) == [f"  {line} " for line in plain]


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_of_seven_is_seven_of_one(trained: Translators, wild: Translators, kind: str) -> None:
    assert len(LINES) == 7
    for translator, candidates in itertools.product((trained(kind), wild(kind)), (1, 3)):
        together = list(translator.hypotheses(LINES, length_candidates=candidates, trace=True))
        alone = [next(translator.hypotheses([line], length_candidates=candidates, trace=True)) for line in LINES]
        assert looks(iter(together)) == looks(iter(alone))
        assert [h.score for h in together] == pytest.approx([h.score for h in alone], rel=1e-4)
        outputs = [[[told.output for told in part] for part in h.passes] for h in together]
        assert outputs == [[[told.output for told in part] for part in h.passes] for h in alone]
    assert len(set(wild(kind).translate(LINES))) == len(LINES)  # else the equality above says nothing


@pytest.mark.parametrize("kind", KINDS)
def test_batch_sentences_changes_nothing(wild: Translators, kind: str) -> None:
    translator, lines = wild(kind), [*LINES, "", *LINES[::-1]]
    one, three, many = (looks(translator.hypotheses(lines, batch_sentences=size)) for size in (1, 3, 64))
    assert one == three == many


@pytest.mark.parametrize("kind", KINDS)
def test_extra_padding_changes_nothing(wild: Translators, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    translator, pad = wild(kind), translator_module.pad
    before = looks(translator.hypotheses(LINES))
    widths: list[int] = []

    def wider(rows: list[list[int]]) -> torch.Tensor:
        padded = torch.nn.functional.pad(pad(rows), (0, 9), value=lath.text.vocab.PAD)
        widths.append(padded.shape[1])
        return padded

    monkeypatch.setattr(translator_module, "pad", wider)
    assert looks(translator.hypotheses(LINES)) == before
    assert widths


@pytest.mark.parametrize("kind", KINDS)
def test_twice_the_same(toy_run: Runs, kind: str) -> None:
    model = toy_run(kind) / "model"
    first = list(lath.load(model, device="cpu").hypotheses(LINES))
    torch.manual_seed(99)
    assert list(lath.load(str(model)).hypotheses(LINES)) == first


def test_a_stream_is_read_as_it_is_needed(wild: Translators) -> None:
    translator, read = wild("CMLM"), 0

    def endless() -> Iterator[str]:
        nonlocal read
        for line in itertools.cycle(LINES):
            read += 1
            yield line

    hypotheses = translator.hypotheses(endless(), batch_sentences=2, iterations=1)
    assert read == 0
    found = [h.text for h in itertools.islice(hypotheses, 10)]
    assert found == translator.translate([*LINES, *LINES[:3]], iterations=1)
    assert read == READ_AHEAD * 2


def test_order_is_kept_across_what_is_read_at_once(wild: Translators) -> None:
    translator = wild("CMLM")
    lines = [*LINES, ""] * 10
    assert len(lines) > READ_AHEAD
    once = translator.translate([*LINES, ""], iterations=1)
    assert translator.translate(lines, iterations=1, batch_sentences=1) == once * 10


# ---- unusual text --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_text_of_any_script_is_taken(trained: Translators, wild: Translators, kind: str) -> None:
    lines = [
        "👩‍👩‍👧‍👦 🎉",
        "Привет, мир",
        "你好世界",
        "ბა",
        "e\u0301\u202e\u200b",
        "\ud800",
        "<mask> </s> <pad>",
        "a\x00b",
    ]
    for translator in (trained(kind), wild(kind)):
        out = translator.translate(lines)
        assert len(out) == len(lines)
        assert not any("\n" in text or "\r" in text or "\0" in text for text in out)


def test_special_names_in_the_text_are_text(wild: Translators) -> None:
    vocab = wild("LAT").source_vocab
    assert min(vocab.encode("<mask> </s> <pad> <s> <sop> <unk>")) > MASK


def test_a_translation_is_one_line(wild: Translators) -> None:
    """Byte tokens can spell a line break, which would shift every line after it."""
    translator = wild("CMLM")

    class Breaking:
        size = translator.target_vocab.size

        def decode(self, ids: list[int]) -> str:
            return " one\ntwo\r\nthree\0four \n"

    loaded = LoadedModel(translator.model, translator.info, translator.source_vocab, Breaking())  # type: ignore[arg-type]
    assert Translator(loaded, translator.decoder).translate(["ba"]) == ["one two  three four"]


# ---- lines over the maximum ----------------------------------------------------------------------------------------


class Echo:
    """A translator with a decoder of our own that copies the source, so that what was fed can be read off."""

    def __init__(self, translator: Translator) -> None:
        self.fed: list[list[int]] = []
        loaded = LoadedModel(translator.model, translator.info, translator.source_vocab, translator.source_vocab)
        self.translator = Translator(loaded, self)

    def decode(self, source: torch.Tensor, settings: Any, trace: bool) -> list[translator_module.Decoded]:
        rows = [[id for id in row if id != lath.text.vocab.PAD] for row in source.tolist()]
        assert all(row[-1] == EOS and EOS not in row[:-1] for row in rows)
        self.fed += [row[:-1] for row in rows]
        return [translator_module.Decoded(row[:-1], -1.0, 1) for row in rows]


@pytest.mark.parametrize(
    "line",
    [
        " ".join(f"{word} {word}." for word in WORDS * 4),
        " ".join(WORDS * 10),
        "bakomiture" * 40,
        "你好世界。" * 30,
        "👩‍👩‍👧‍👦" * 12,
    ],
    ids=["sentences", "words", "one word", "no spaces", "emoji"],
)
def test_a_long_line_is_translated_in_fragments_and_nothing_is_lost(trained: Translators, line: str) -> None:
    echo = Echo(trained("LAT"))
    limit = echo.translator.info.max_length
    whole = echo.translator.source_vocab.encode(line)
    assert len(whole) > limit
    before, (hypothesis,), after = (
        list(echo.translator.hypotheses([text], split=False)) for text in ("ba", line, "gu")
    )
    assert [before[0].fragments, after[0].fragments] == [1, 1]
    parts = echo.fed[1:-1]
    assert hypothesis.fragments == len(parts) >= len(whole) / limit
    assert all(0 < len(part) <= limit for part in parts)
    assert hypothesis.text.replace(" ", "") == line.replace(" ", "")


def test_fragments_come_back_in_order_and_to_their_own_line(
    trained: Translators, monkeypatch: pytest.MonkeyPatch
) -> None:
    echo = Echo(trained("LAT"))
    long = " ".join(WORDS * 9) + "."
    lines = ["ba.", long, "", "gu.", f"{long} {long}", "du"]
    out = list(echo.translator.hypotheses(lines, batch_sentences=2))
    assert [h.text for h in out] == lines
    assert [h.fragments > 1 for h in out] == [False, True, False, False, True, False]


def test_sentences_are_cut_between_not_inside(trained: Translators) -> None:
    echo = Echo(trained("LAT"))
    sentence = "ba ko mi tu re sa lo."
    echo.translator.translate([" ".join([sentence] * 20)])
    fed = {echo.translator.source_vocab.decode(part) for part in echo.fed}
    assert all(text.endswith("lo.") and text.startswith("ba ") for text in fed)


@pytest.mark.parametrize("kind", KINDS)
def test_a_long_line_has_the_fragments_translations(wild: Translators, kind: str) -> None:
    translator = wild(kind)
    sentence = " ".join(WORDS * 2)[:-12] + "."
    once = len(translator.source_vocab.encode(sentence))
    assert once <= translator.info.max_length < 2 * once
    (hypothesis,) = translator.hypotheses([" ".join([sentence] * 3)], trace=True)
    single = translator.translate([sentence])[0]
    assert (hypothesis.fragments, hypothesis.text) == (3, " ".join([single] * 3))
    assert len(hypothesis.passes) == (0 if kind == "AT" else 3)


def test_a_fragment_of_invisible_characters_says_nothing(trained: Translators) -> None:
    echo = Echo(trained("LAT"))
    assert echo.translator.source_vocab.encode("\u200b\ufeff") == []
    assert list(echo.translator.hypotheses(["\u200b\ufeff"], split=False)) == [Hypothesis("", 0.0, 0, 0)]
    line = "ba ko. \u200b\u200b " + "bakomiture" * 40  # a sentence end before, and a word that does not fit behind
    (hypothesis,) = echo.translator.hypotheses([line], split=False)
    assert all(echo.fed)
    assert hypothesis.text.replace(" ", "") == line.replace(" ", "").replace("\u200b", "")


# ---- traces --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("iterations", [1, 4])
@pytest.mark.parametrize("kind", ["CMLM", "LAT"])
def test_a_trace_tells_each_pass(wild: Translators, kind: str, iterations: int) -> None:
    translator = wild(kind)
    for hypothesis in translator.hypotheses(LINES, trace=True, iterations=iterations):
        (passes,) = hypothesis.passes
        assert len(passes) == hypothesis.iterations == iterations
        assert set(passes[0].input) - {BOS, EOS} == {MASK}
        for told in passes:
            assert len(told.pieces) == len(told.scores) == len(told.input)
            assert {len(piece) for piece in told.pieces} == {translator.model.piece_length}
            assert (told.output[0], told.output[-1]) == (BOS, EOS)
            assert all(0 < place < len(told.output) - 1 for place in told.masked)
        for told, following in itertools.pairwise(passes):
            kept = [id for place, id in enumerate(told.output) if place not in told.masked]
            assert [id for id in following.input if id != MASK] == kept or len(following.input) == 64
            if kind == "CMLM":
                assert following.input.count(MASK) == len(told.masked)
        assert passes[-1].masked == []
        assert passes[-1].length_change == 0
        assert hypothesis.text == translator.target_vocab.decode(passes[-1].output[1:-1])


@pytest.mark.parametrize("kind", KINDS)
def test_a_trace_changes_nothing_and_is_not_kept_unasked(wild: Translators, kind: str) -> None:
    translator = wild(kind)
    assert looks(translator.hypotheses(LINES, trace=True)) == looks(translator.hypotheses(LINES))
    assert all(h.passes == [] for h in translator.hypotheses(LINES))
    assert all(h.passes == [] for h in wild("AT").hypotheses(LINES, trace=True))


# ---- settings ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"iterations": 0}, "decode: iterations must be 1 to 1000"),
        ({"iterations": "4"}, "decode: iterations: expected a whole number, got '4'"),
        ({"iterations": True}, "decode: iterations: expected a whole number, got True"),
        ({"iteratons": 4}, "decode: unknown setting 'iteratons' (did you mean 'iterations'?)"),
        ({"beam_size": 4}, "decode: unknown setting 'beam_size' (did you mean 'beam'?)"),
        ({"length_candidates": 10}, "decode: length_candidates must be 1 to 9"),
        ({"beam": 0}, "decode: beam must be 1 to 1000"),
        ({"batch_sentences": -1}, "decode: batch_sentences must be 0 to 1000000"),
        ({"rules": "oficial"}, "decode: rules: 'oficial' is not one of official, paper (did you mean 'official'?)"),
    ],
)
def test_settings_are_checked_before_anything_is_read(
    trained: Translators, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError) as refused:
        trained("LAT").hypotheses(iter(()), **settings)
    assert str(refused.value) == message


def test_settings_decide(wild: Translators) -> None:
    translator = wild("LAT")
    assert [h.iterations for h in translator.hypotheses(LINES[:1], iterations=7)] == [7]
    assert translator.translate(LINES, rules="paper") != translator.translate(LINES, rules="official")
    assert wild("AT").translate(LINES, beam=1) != wild("AT").translate(LINES, beam=4)
    assert translator.translate(LINES, iterations=None) == translator.translate(LINES)


def test_settings_are_complete_for_the_device(trained: Translators) -> None:
    translator = trained("LAT")
    expected = dataclasses.replace(translator.info.decode, iterations=1, batch_sentences=32)  # what suits a CPU
    assert translator.settings(iterations=1) == expected
    assert translator.settings(batch_sentences=7) == dataclasses.replace(translator.info.decode, batch_sentences=7)
    assert translator.settings(length_candidates=5).batch_sentences == 6
    assert translator.settings(iterations=1).iterations == 1
    with pytest.raises(UserError, match="expected a whole number, got True"):
        translator.settings(iterations=True)


@pytest.mark.parametrize("kind", KINDS)
def test_an_engine_by_name(toy_run: Runs, wild: Translators, kind: str) -> None:
    model = toy_run(kind) / "model"
    assert [load(model, "cpu", engine=engine).engine for engine in ("auto", "plain", "recorded")] == [
        "plain", "plain", "recorded"
    ]  # fmt: skip
    plain = wild(kind)
    recorded = plain.with_engine("recorded")
    assert (plain.engine, recorded.engine) == ("plain", "recorded")
    assert plain.model is recorded.model
    assert plain.translate(LINES) == recorded.translate(LINES)


def test_options_are_the_settings_of_decoding() -> None:
    assert get_type_hints(DecodeOptions) == get_type_hints(DecodeSettings)


def test_one_text_is_not_a_list_of_lines(trained: Translators) -> None:
    translator = trained("LAT")
    assert translator.translate("ba ko") == translator.translate(["ba ko"])[0]
    with pytest.raises(UserError, match=r"takes a list of lines, not one text; write hypotheses\(\[text\]\)"):
        translator.hypotheses("ba ko")


# ---- devices -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gpu", "cpuu", "", "meta", "mps", "cuda:x"])
def test_an_unknown_device_is_refused(name: str) -> None:
    with pytest.raises(UserError) as refused:
        choose_device(name)
    assert str(refused.value) == f"unknown device {name!r}; use cpu, cuda or auto"


def test_a_gpu_that_is_not_there_is_refused(toy_run: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto") == choose_device("cpu") == torch.device("cpu")
    with pytest.raises(UserError) as refused:
        lath.load(toy_run("AT") / "model", "cuda")
    assert str(refused.value) == "device cuda: this machine has no usable GPU; use --device cpu"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert choose_device("auto") == torch.device("cuda")
    assert choose_device("cuda:1") == torch.device("cuda:1")
    with pytest.raises(UserError) as refused:
        choose_device("cuda:2")
    assert str(refused.value) == "device cuda:2: this machine has 2 GPUs, the first is cuda:0"


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere: no such model directory; `lath train` writes one as RUN/model"):
        lath.load(tmp_path / "nowhere")


def test_long_sentences_are_decoded_first(trained: Translators) -> None:
    """So that a batch finds room where the last one was."""
    translator = trained("CMLM")
    widths: list[int] = []

    class Watched:
        def decode(self, source: Tensor, settings: DecodeSettings, trace: bool = False) -> list[Decoded]:
            widths.append(source.shape[1])
            return translator.decoder.decode(source, settings, trace)

    lines = ["ba", "ba ko mi tu re", "ba ko", "ba ko mi"]
    found = translator.with_decoder(Watched()).translate(lines, batch_sentences=1)
    assert widths == sorted(widths, reverse=True)
    assert len(set(widths)) > 1
    assert found == translator.translate(lines)


def resident() -> int:
    """Bytes of memory that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="the C library is not glibc")
def test_freed_memory_can_be_returned() -> None:
    pieces = [b"x" * 100_000 for _ in range(600)]
    last = b"y" * 100_000  # what lies below it cannot be cut off
    before = resident()
    pieces.clear()
    release_memory()
    assert before - resident() > 40_000_000
    assert last


# ---- a verifier -----------------------------------------------------------------------------------------------------


def test_a_pair_verifies_as_its_settings_and_options_say(toy_run: Runs) -> None:
    student, teacher = toy_run("LAT") / "model", toy_run("AT") / "model"
    pair, alone = load(student, "cpu", verifier=teacher), load(student, "cpu")
    assert pair.settings().verify == "relaxed", "a verifier is there to verify"
    assert pair.translate(LINES, verify="exact") == load(teacher, "cpu").translate(LINES, beam=1)
    assert pair.translate(LINES, verify="") == alone.translate(LINES)
    assert [one.checks for one in pair.hypotheses(LINES, verify="rerank")] == [1] * len(LINES)
    assert all(one.checks >= 1 and one.passes for one in pair.hypotheses(LINES, trace=True))
    recorded = load(student, "cpu", engine="recorded", verifier=teacher)
    assert [recorded.engine, pair.engine] == ["recorded", "plain"]
    for other in (recorded, pair.with_engine("recorded"), recorded.with_engine("plain")):
        assert other.settings().verify == "relaxed"
        for verify in ("exact", "rerank"):
            assert other.translate(LINES, verify=verify) == pair.translate(LINES, verify=verify)


@pytest.mark.parametrize("verify", ["rerank", "relaxed", "exact"])
def test_to_verify_takes_a_verifier(trained: Translators, verify: Any) -> None:
    with pytest.raises(UserError, match="no verifier.*--verifier MODEL"):
        trained("LAT").translate(LINES, verify=verify)


def test_models_that_are_no_pair_are_refused(toy_run: Runs) -> None:
    student, teacher = toy_run("LAT") / "model", toy_run("AT") / "model"
    for first, second, message in (
        (student, toy_run("CMLM") / "model", "CMLM, but they are checked by AT"),
        (student, student, "LAT, but they are checked by AT"),
        (toy_run("CMLM") / "model", teacher, "CMLM, but drafts are written by LAT"),
        (teacher, teacher, "AT, but drafts are written by LAT"),
        ("de-en", teacher, "source_language 'xx', but .* has 'de'"),
    ):
        with pytest.raises(UserError, match=message):
            load(first, "cpu", verifier=second)


def test_a_verifier_with_another_vocabulary_is_refused(toy_run: Runs, tmp_path: Path) -> None:
    recipe = toy_recipe(tmp_path, "AT", ambiguous_pairs, steps=2, validate_every=1, keep_best=1)
    with pytest.raises(UserError, match="another vocabulary than .*--vocab-from"):
        load(toy_run("LAT") / "model", "cpu", verifier=train_toy(tmp_path, recipe))
