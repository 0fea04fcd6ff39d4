"""Export to CTranslate2: its translations are those of our beam search, and every refusal leaves nothing behind."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from conftest import CPU, Runs
from toy import WORDS, toy_recipe, train_toy

from lath.config import DecodeSettings, NetworkSettings
from lath.decoding.decoder import decode
from lath.decoding.results import Hypothesis
from lath.engine.ctranslate2 import ALMOST_ZERO, CTranslate2Decoder, deciding_files
from lath.engine.export import QUANTIZATIONS, export, token_names
from lath.engine.shortlist import add_shortlist
from lath.errors import UserError
from lath.files import read_lines
from lath.model.directory import ModelInfo, is_exported, load_model, save_model
from lath.model.network import AT, NEVER_WRITTEN_AFTER_BEGIN, DecoderLayer, build_model
from lath.model.padding import pad
from lath.text.vocab import EOS, PAD, SPECIALS, SubwordNmtVocab, Vocab, learn_sentencepiece
from lath.translator import Translator, load

pytest.importorskip("ctranslate2", reason="the extra bench is not installed")

LINES = ["ba ko mi", "", "gu", "tu re sa lo ni pe du", "fa", "  ", "du fa ba", "sa sa", "ko mi tu re", "Привет 🎉"]


@pytest.fixture(scope="module")
def learnt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model directory of an AT that translates the toy language."""
    folder = tmp_path_factory.mktemp("learnt")
    return train_toy(folder, toy_recipe(folder, "AT", steps=120))


@pytest.fixture(scope="module")
def valid_lines(learnt: Path) -> list[str]:
    return list(read_lines(learnt.parents[1] / "valid.src"))


def both(model: Path, out: Path, quantization: str = "float32") -> tuple[Translator, Translator]:
    """A model and its export, each ready to translate."""
    export(model, out, quantization=quantization)
    return load(model, "cpu"), load(out, "cpu")


def changed(model: Path, out: Path, change: Callable[[AT], None]) -> Path:
    """A copy of a model directory with other weights."""
    loaded = load_model(model, CPU)
    assert isinstance(loaded.model, AT)
    with torch.no_grad():
        change(loaded.model)
    save_model(out, loaded.model.state_dict(), loaded.info, (loaded.source_vocab, loaded.target_vocab))
    return out


def make_wild(model: AT, std: float = 1.0) -> None:
    """Something different to say everywhere, forbidden tokens too."""
    generator = torch.Generator().manual_seed(7)
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            embedding = "tables" in name or "positions" in name
            torch.nn.init.normal_(parameter, std=std if embedding else 0.15, generator=generator)


def last_norm(model: AT) -> torch.nn.LayerNorm:
    """What decides the states that the output matrix takes."""
    return cast(DecoderLayer, model.body.decoder.layers[-1]).feedforward_residual.norm


def check_equal(ours: list[Hypothesis], theirs: list[Hypothesis]) -> None:
    """The same text in as many steps; scores may differ in the last digits."""
    assert [(h.text, h.iterations, h.fragments) for h in theirs] == [(h.text, h.iterations, h.fragments) for h in ours]
    assert [h.score for h in theirs] == pytest.approx([h.score for h in ours], abs=1e-4)


# ---- the same translations -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("beam", [1, 2, 5])
@pytest.mark.parametrize("length_penalty", [0.0, 0.6, 1.0])
def test_float32_is_our_beam_search(
    learnt: Path, valid_lines: list[str], tmp_path: Path, beam: int, length_penalty: float
) -> None:
    ours, theirs = both(learnt, tmp_path / "out")
    settings = {"beam": beam, "length_penalty": length_penalty, "batch_sentences": 30}
    lines = [*valid_lines, *LINES]
    expected = list(ours.hypotheses(lines, **settings))
    assert len({hypothesis.text for hypothesis in expected}) > 90  # otherwise equality would mean little
    check_equal(expected, list(theirs.hypotheses(lines, **settings)))


@pytest.mark.parametrize("beam", [1, 4])
def test_a_sentence_that_never_ends(toy_run: Runs, tmp_path: Path, beam: int) -> None:
    """Each is cut off at its own limit, independent of the batch."""

    def never_end(model: AT) -> None:
        model.body.output_table.weight[EOS] *= -1

    ours, theirs = both(changed(toy_run("AT") / "model", tmp_path / "endless", never_end), tmp_path / "out")
    expected = list(ours.hypotheses(LINES, beam=beam))
    assert len({hypothesis.iterations for hypothesis in expected}) > 4
    check_equal(expected, list(theirs.hypotheses(LINES, beam=beam)))


def test_some_ended_and_some_cut_off(learnt: Path, valid_lines: list[str], tmp_path: Path) -> None:
    """A model that ends by chance: many searches come to the limit with one or two hypotheses that ended."""

    def end_by_chance(model: AT) -> None:
        make_wild(model, std=0.6)
        rows = model.body.output_table.weight
        rows[list(NEVER_WRITTEN_AFTER_BEGIN)] = 0
        rows[model.body.target_size :] = 0
        last_norm(model).weight.mul_(0.3)
        last_norm(model).bias.copy_(1.1 * rows[EOS] / rows[EOS].norm())

    ours, theirs = both(changed(learnt, tmp_path / "rough", end_by_chance), tmp_path / "out")
    lines = [*valid_lines[:60], " ".join(WORDS * 2)]  # the last has a limit far beyond the others'
    expected = list(ours.hypotheses(lines))
    assert len({hypothesis.iterations for hypothesis in expected}) > 8
    check_equal(expected, list(theirs.hypotheses(lines)))


def test_no_length_penalty_is_almost_none() -> None:
    """With 0 the engine would stop by another rule; the value that stands for it must change no score."""
    assert np.float32(512) ** np.float32(ALMOST_ZERO) == 1
    asked: list[float] = []

    def translate_batch(source: list[list[str]], **options: Any) -> list[SimpleNamespace]:
        asked.append(options["length_penalty"])
        return [SimpleNamespace(hypotheses=[["</s>"]], scores=[-1.0]) for _ in source]

    vocab = SubwordNmtVocab([], ["a"])
    info = ModelInfo(NetworkSettings("AT"), DecodeSettings(), "xx", "yy", vocab.size, vocab.size, True, 100, 0)
    exported = CTranslate2Decoder(SimpleNamespace(translate_batch=translate_batch), info, vocab, vocab)
    for length_penalty in (0.0, 0.5):
        exported.decode(torch.tensor([[6, EOS]]), DecodeSettings(length_penalty=length_penalty))
    assert asked == [ALMOST_ZERO, 0.5]


def test_forbidden_tokens_are_never_written(toy_run: Runs, tmp_path: Path) -> None:
    """With greedy search the translations are equal: forbidden tokens change the probabilities, not their order."""

    def love_padding(model: AT) -> None:
        make_wild(model)
        last_norm(model).bias.add_(model.body.output_table.weight[PAD])

    ours, theirs = both(changed(toy_run("AT") / "model", tmp_path / "wild", love_padding), tmp_path / "out")
    sentences = [ours.source_vocab.encode(line) for line in LINES if line.strip()]
    source = pad([[*sentence, EOS] for sentence in sentences])
    for beam in (1, 3):
        settings = ours.settings(beam=beam)
        written = [decoded.ids for decoded in theirs.decoder.decode(source, settings)]
        forbidden = {*NEVER_WRITTEN_AFTER_BEGIN, *range(ours.target_vocab.size, 1000)}
        assert [ids for ids in written if forbidden & set(ids)] == []
        if beam == 1:
            assert isinstance(ours.model, AT)
            assert written == [decoded.ids for decoded in decode(ours.model, source, settings)]


def test_two_vocabularies(toy_folder: Path, tmp_path: Path) -> None:
    """One for each side, of sizes that are no multiples of 8: no table, row or position is taken for another."""
    source = learn_sentencepiece(read_lines(toy_folder / "train.src"), 301)
    target = learn_sentencepiece(read_lines(toy_folder / "train.tgt"), 323)
    network = NetworkSettings("AT", 32, 2, 48, 2, 3, max_positions=40)
    model = build_model(network, source.size, target.size, False, torch.Generator().manual_seed(3))
    assert isinstance(model, AT)
    make_wild(model)
    info = ModelInfo(network, DecodeSettings(), "xx", "yy", source.size, target.size, False, 30, 0)
    save_model(tmp_path / "model", model.state_dict(), info, (source, target))
    ours, theirs = both(tmp_path / "model", tmp_path / "out")
    check_equal_texts(ours, theirs)
    assert (tmp_path / "out" / "source_vocabulary.json").is_file()


def check_equal_texts(ours: Translator, theirs: Translator) -> None:
    """Greedy, of wild weights: the text alone, for the share of forbidden tokens in the scores is large there."""
    expected = [hypothesis.text for hypothesis in ours.hypotheses(LINES, beam=1)]
    assert len(set(expected)) > 4
    assert [hypothesis.text for hypothesis in theirs.hypotheses(LINES, beam=1)] == expected


@pytest.mark.parametrize("quantization", QUANTIZATIONS[1:])
def test_fewer_bits_are_close(learnt: Path, valid_lines: list[str], tmp_path: Path, quantization: str) -> None:
    ours, theirs = both(learnt, tmp_path / "out", quantization)
    same = sum(a == b for a, b in zip(ours.translate(valid_lines), theirs.translate(valid_lines), strict=True))
    assert same >= 95
    assert theirs.precision.startswith("int8" if quantization == "int8" else "float32")
    export(learnt, tmp_path / "whole")
    sizes = [(tmp_path / name / "model.bin").stat().st_size for name in ("out", "whole")]
    assert sizes[0] < 0.6 * sizes[1]


def test_the_batch_changes_nothing(learnt: Path, valid_lines: list[str], tmp_path: Path) -> None:
    _, theirs = both(learnt, tmp_path / "out")
    one, seven = (theirs.translate(valid_lines[:20], batch_sentences=size) for size in (1, 7))
    assert one == seven


def test_the_shortlist_comes_along(learnt: Path, valid_lines: list[str], tmp_path: Path) -> None:
    model = Path(shutil.copytree(learnt, tmp_path / "model"))
    add_shortlist(learnt.parents[1] / "data", model, near=1, frequent=3)
    ours, theirs = both(model, tmp_path / "out")
    settings: dict[str, Any] = {"beam": 3, "batch_sentences": 30}
    expected = ours.translate(valid_lines, shortlist=True, **settings)
    whole = ours.translate(valid_lines, **settings)
    assert 5 < sum(a == b for a, b in zip(expected, whole, strict=True)) < 50  # it matters, and not all is nonsense
    assert theirs.translate(valid_lines, shortlist=True, **settings) == expected
    with pytest.raises(UserError, match="the exported model has none; add one to the model it came from"):
        both(learnt, tmp_path / "without")[1].translate(["ba"], shortlist=True)


def test_threads_are_those_of_torch(learnt: Path, tmp_path: Path) -> None:
    export(learnt, tmp_path / "out")
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        assert load(tmp_path / "out").translate(["ba"]) == load(learnt, "cpu").translate(["ba"])
    finally:
        torch.set_num_threads(before)


# ---- the directory -------------------------------------------------------------------------------------------------


def test_the_directory_is_enough_by_itself(learnt: Path, tmp_path: Path) -> None:
    model = Path(shutil.copytree(learnt, tmp_path / "model"))
    expected = load(model, "cpu").translate(LINES)
    export(model, tmp_path / "out")
    shutil.rmtree(model)
    moved = (tmp_path / "out").rename(tmp_path / "elsewhere")
    assert is_exported(moved)
    assert not is_exported(learnt)
    assert load(moved).translate(LINES) == expected
    assert sorted(str(path.relative_to(moved)) for path in moved.rglob("*") if path.is_file()) == [
        "config.json", "lath/README.md", "lath/config.json", "lath/vocab.model", "model.bin", "shared_vocabulary.json",
    ]  # fmt: skip
    assert [path.name for path in deciding_files(moved)] == [
        "config.json", "model.bin", "shared_vocabulary.json", "config.json", "vocab.model",
    ]  # fmt: skip


def test_another_program_can_use_it(learnt: Path, valid_lines: list[str], tmp_path: Path) -> None:
    """As its own documentation has it: pieces in, pieces out."""
    import ctranslate2

    export(learnt, tmp_path / "out")
    vocab: Vocab = load_model(learnt, CPU).source_vocab
    pieces = [[vocab.token(id) for id in vocab.encode(line)] for line in valid_lines[:20]]
    engine = ctranslate2.Translator(str(tmp_path / "out"), intra_threads=1)
    texts = [
        "".join(result.hypotheses[0]).replace("▁", " ").strip()
        for result in engine.translate_batch(pieces, beam_size=1)
    ]
    assert texts == load(learnt, "cpu").translate(valid_lines[:20], beam=1)


def test_no_two_tokens_have_one_name() -> None:
    words = ["<s>", "a@@", "</s>", "<s>#", "<unused>"]
    names = token_names(SubwordNmtVocab([], words))
    assert names == [
        *SPECIALS,
        "<s>#",
        "a@@",
        "</s>#",
        "<s>##",
        "<unused>",
        *(f"<unused>{'#' * n}" for n in range(1, 6)),
    ]
    assert len(set(names)) == len(names) == 16


# ---- refusals ------------------------------------------------------------------------------------------------------


def refusal(*arguments: object) -> str:
    with pytest.raises(UserError) as refused:
        export(*arguments)  # type: ignore[arg-type]
    return str(refused.value)


@pytest.mark.parametrize("kind", ["CMLM", "LAT"])
def test_other_kinds_are_refused(toy_run: Runs, tmp_path: Path, kind: str) -> None:
    model = toy_run(kind) / "model"
    assert refusal(model, tmp_path / "out") == (
        f"{model}: a {kind} model, but CTranslate2 runs autoregressive models (AT) only; export an AT model"
    )
    assert list(tmp_path.iterdir()) == []


def test_what_exists_is_not_touched(learnt: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine", encoding="utf-8")
    assert refusal(learnt, tmp_path) == f"{tmp_path}: exists already; choose another name or remove it"
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_unknown_formats_and_types(learnt: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert refusal(learnt, out, "ctranslate") == (
        "unknown format 'ctranslate' (did you mean 'ctranslate2'?); use ctranslate2"
    )
    assert refusal(learnt, out, "ctranslate2", "int4") == (
        "unknown quantization 'int4' (did you mean 'int8'?); use float32, float16 or int8"
    )
    assert not out.exists()


def test_a_missing_package_is_named(learnt: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    export(learnt, tmp_path / "out")
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    message = "exported models need the package ctranslate2: pip install 'lath[bench]'"
    assert refusal(learnt, tmp_path / "other") == message
    with pytest.raises(UserError) as refused:
        load(tmp_path / "out")
    assert str(refused.value) == message
    assert not (tmp_path / "other").exists()


def test_a_failure_leaves_nothing_behind(learnt: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lath.engine.export.save_vocabs", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        export(learnt, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda d: (d / "model.bin").unlink(), "{d}/model.bin: missing; copy the whole directory again"),
        (
            lambda d: (d / "model.bin").write_bytes((d / "model.bin").read_bytes()[:-9999]),
            "{d}/model.bin: does not have the SHA-256 that config.json gives for it; copy the whole directory again",
        ),
        (lambda d: (d / "lath" / "vocab.model").unlink(), "{d}/lath: no vocabulary"),
    ],
    ids=["missing", "truncated", "vocabulary"],
)
def test_a_bad_directory(learnt: Path, tmp_path: Path, spoil: Callable[[Path], object], message: str) -> None:
    export(learnt, tmp_path / "out")
    spoil(tmp_path / "out")
    with pytest.raises(UserError, match=message.format(d=tmp_path / "out")):
        load(tmp_path / "out")


def test_a_precision_it_does_not_have(learnt: Path, tmp_path: Path) -> None:
    export(learnt, tmp_path / "out")
    with pytest.raises(UserError) as refused:
        load(tmp_path / "out", precision="bf16")
    assert str(refused.value) == (
        f"{tmp_path / 'out'}: an exported model has the precision it was exported with; leave out --precision bf16 "
        "or export the model again with another --quantization"
    )


def test_it_has_an_engine_of_its_own(learnt: Path, tmp_path: Path) -> None:
    export(learnt, tmp_path / "out", quantization="int8")
    translator = load(tmp_path / "out", engine="auto")
    assert translator.engine == "ctranslate2"
    assert isinstance(translator.decoder, CTranslate2Decoder)
    assert translator.precision.startswith("int8")
    assert translator.model is None
    with pytest.raises(UserError) as refused:
        load(tmp_path / "out", engine="plain")
    assert str(refused.value) == (
        f"{tmp_path / 'out'}: an exported model is run by CTranslate2; leave out --engine plain, "
        "or use the model it came from"
    )


def test_it_stays_on_the_cpu(learnt: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    export(learnt, tmp_path / "out")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert load(tmp_path / "out").translate(["ba"]) == load(learnt, "cpu").translate(["ba"])
    with pytest.raises(
        UserError, match="an exported model runs on the CPU; use --device cpu, or the model it came from"
    ):
        load(tmp_path / "out", "cuda")
