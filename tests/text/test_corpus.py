from __future__ import annotations

import dataclasses
import json
import lzma
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lath import preparation
from lath.config import DataSettings, Recipe, VocabSettings
from lath.errors import UserError
from lath.preparation import prepare
from lath.text import corpus as data_module
from lath.text.corpus import Corpus, drop_reason, read_data_info, spread
from lath.text.vocab import SubwordNmtVocab, learn_vocabs, load_vocabs, save_vocabs

PAIRS = [
    ("der alte Mann geht über die Brücke", "the old man walks across the bridge"),
    ("die alte Frau geht durch den Garten", "the old woman walks through the garden"),
    ("ein Hund läuft über die Wiese", "a dog runs across the meadow"),
    ("im Garten steht ein alter Baum", "in the garden there is an old tree"),
]
TRAIN = [*PAIRS, ("", "nothing"), ("etwas", "  "), ("lang " * 100, "long"), ("kurz", "short " * 30), *PAIRS]


def write_pairs(stem: Path, pairs: Sequence[tuple[str, str]]) -> tuple[str, str]:
    for side, lines in zip(("de", "en"), zip(*pairs, strict=True), strict=True):
        Path(f"{stem}.{side}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return f"{stem}.de", f"{stem}.en"


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    train, valid = write_pairs(tmp_path / "train", TRAIN), write_pairs(tmp_path / "valid", PAIRS)
    return Recipe(data=DataSettings("de", "en", *train, *valid, max_length=60), vocab=VocabSettings(size=330))


def changed(recipe: Recipe, **settings: object) -> Recipe:
    """The recipe with other data settings."""
    return dataclasses.replace(recipe, data=dataclasses.replace(recipe.data, **settings))  # type: ignore[arg-type]


@pytest.fixture
def prepared(recipe: Recipe, tmp_path: Path) -> Path:
    prepare(recipe, tmp_path / "out")
    return tmp_path / "out"


def test_prepare_end_to_end(recipe: Recipe, tmp_path: Path) -> None:
    out = tmp_path / "new" / "out"
    report = prepare(recipe, out)
    sides = ["train.source", "train.target", "valid.source", "valid.target"]
    arrays = [f"{side}.{what}" for side in sides for what in ("offsets", "tokens")]
    assert sorted(os.listdir(out)) == ["data.json", *arrays, "vocab.model"]
    source, target = load_vocabs(out)
    assert source is target
    kept = PAIRS * 2
    train = Corpus.open(out, "train")
    assert len(train) == len(kept)
    for index, (german, english) in enumerate(kept):
        assert train.source.sentence(index).tolist() == source.encode(german)
        assert train.target.sentence(index).tolist() == target.encode(english)
    assert train.source.lengths.tolist() == [len(source.encode(german)) for german, _ in kept]
    assert train.target.lengths.tolist() == [len(target.encode(english)) for _, english in kept]
    assert len(Corpus.open(out, "valid")) == len(PAIRS)
    assert report.info == read_data_info(out)
    assert report.info.splits["train"].dropped == {"empty": 2, "too long": 1, "ratio": 1}
    assert report.info.splits["train"].source_tokens == train.source.lengths.sum()
    tree = json.loads((out / "data.json").read_text())
    assert tree["format"] == 1
    assert tree["languages"] == {"source": "de", "target": "en"}
    assert tree["dtype"] == "uint16"
    assert tree["vocab"]["size"] == tree["source_vocab_size"] == 330


def test_the_report_reads_well(recipe: Recipe, tmp_path: Path) -> None:
    lines = str(prepare(recipe, tmp_path / "out")).splitlines()
    assert lines[0] == f"{tmp_path / 'out'}: de -> en"
    assert lines[1] == "  vocabulary  330 source and 330 target entries"
    assert lines[2].startswith("  train       8 pairs, 4 left out (2 empty, 1 too long, 1 ratio); ")
    assert lines[3].startswith("  valid       4 pairs, 0 left out; ")
    assert lines[3].endswith(" target tokens")


def test_the_same_text_gives_the_same_bytes_compressed_or_not(recipe: Recipe, tmp_path: Path) -> None:
    prepare(recipe, tmp_path / "one")
    compressed = tmp_path / "train.de.xz"
    compressed.write_bytes(lzma.compress(Path(recipe.data.train_source).read_bytes()))
    prepare(changed(recipe, train_source=str(compressed)), tmp_path / "two")
    for path in (tmp_path / "one").iterdir():
        if path.name != "data.json":
            assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes(), path.name


def test_chunks_do_not_show(recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(recipe, tmp_path / "one")
    monkeypatch.setattr(data_module, "CHUNK_PAIRS", 3)
    prepare(recipe, tmp_path / "two")
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes(), path.name


def test_the_vocabulary_of_another_directory(recipe: Recipe, prepared: Path, tmp_path: Path) -> None:
    other = write_pairs(tmp_path / "other", [("ganz anderer Text", "text of another kind")])
    prepare(changed(recipe, train_source=other[0], train_target=other[1]), tmp_path / "second", vocab_from=prepared)
    assert (tmp_path / "second" / "vocab.model").read_bytes() == (prepared / "vocab.model").read_bytes()
    vocab, _ = load_vocabs(prepared)
    assert Corpus.open(tmp_path / "second", "train").source.sentence(0).tolist() == vocab.encode("ganz anderer Text")


def test_placeholders_in_a_share_of_the_training_pairs(recipe: Recipe, tmp_path: Path) -> None:
    pairs = [(f"Tom sieht den Hund {number}", f"{number} times the dog sees Tom") for number in range(200)]
    files = write_pairs(tmp_path / "named", pairs)
    named = changed(recipe, train_source=files[0], train_target=files[1], valid_source=files[0], valid_target=files[1])

    def prepared_with(share: float, seed: int = 1, placeholders: int = 3) -> tuple[list[tuple[str, str]], int]:
        out = tmp_path / f"{share}-{seed}-{placeholders}"
        vocab = dataclasses.replace(named.vocab, placeholders=placeholders)
        train = dataclasses.replace(named.train, seed=seed)
        if not out.exists():
            prepare(dataclasses.replace(changed(named, placeholder_share=share), vocab=vocab, train=train), out)
        source, target = load_vocabs(out)
        for index, pair in enumerate(pairs):
            valid = Corpus.open(out, "valid")
            assert (
                source.decode(valid.source.sentence(index).tolist()),
                target.decode(valid.target.sentence(index).tolist()),
            ) == pair
        corpus = Corpus.open(out, "train")
        rows = [
            (source.decode(corpus.source.sentence(i).tolist()), target.decode(corpus.target.sentence(i).tolist()))
            for i in range(200)
        ]
        return rows, source.size

    made, size = prepared_with(0.25)
    assert size == 330
    marked = [(source, target) for source, target in made if "⟦" in source]
    assert 25 <= len(marked) <= 75
    assert all(pair in pairs for pair in made if pair not in marked)
    for source, target in marked:  # both strings, in the other order on the other side
        first, second = re.findall("⟦[012]⟧", source)
        assert source == f"{first} sieht den Hund {second}"
        assert target == f"{second} times the dog sees {first}"
    assert {word for pair in marked for word in re.findall("⟦.⟧", pair[0])} == {"⟦0⟧", "⟦1⟧", "⟦2⟧"}
    assert prepared_with(0.25) == (made, 330)
    assert prepared_with(0.25, seed=2)[0] != made
    assert prepared_with(0.0)[0] == prepared_with(1.0, placeholders=0)[0] == pairs


def test_separate_vocabularies(recipe: Recipe, tmp_path: Path) -> None:
    separate = dataclasses.replace(recipe, vocab=VocabSettings(size=310, joint=False))
    prepare(separate, tmp_path / "out")
    source, target = load_vocabs(tmp_path / "out")
    corpus = Corpus.open(tmp_path / "out", "valid")
    assert source.decode(corpus.source.sentence(1).tolist()) == PAIRS[1][0]
    assert target.decode(corpus.target.sentence(1).tolist()) == PAIRS[1][1]


def test_subword_nmt(recipe: Recipe, tmp_path: Path) -> None:
    codes = tmp_path / "codes"
    codes.write_text("#version: 0.2\nt h\nth e</w>\n")
    paper = dataclasses.replace(recipe, vocab=VocabSettings(kind="subword-nmt", source_codes=str(codes)))
    prepare(paper, tmp_path / "out")
    vocab, _ = load_vocabs(tmp_path / "out")
    assert vocab.decode(Corpus.open(tmp_path / "out", "train").target.sentence(0).tolist()) == PAIRS[0][1]


def test_a_huge_vocabulary_needs_wider_tokens(recipe: Recipe, tmp_path: Path) -> None:
    words = ["the", *(f"w{number}" for number in range(70_000)), "t@@"]
    huge = SubwordNmtVocab(["t h", "th e</w>"], words)
    (tmp_path / "huge").mkdir()
    save_vocabs(tmp_path / "huge", huge, huge)
    valid = write_pairs(tmp_path / "wide", [("the txy", "the")])
    wide = changed(recipe, train_source=valid[0], train_target=valid[1])
    report = prepare(wide, tmp_path / "out", vocab_from=tmp_path / "huge")
    assert report.info.dtype == "uint32"
    assert (
        Corpus.open(tmp_path / "out", "train").source.sentence(0).tolist()
        == huge.encode("the txy")
        == [6, 70_007, 3, 3]
    )


@pytest.mark.parametrize(
    ("source", "target", "reason"),
    [
        (1, 1, None),
        (0, 5, "empty"),
        (5, 0, "empty"),
        (0, 0, "empty"),
        (0, 999, "empty"),
        (10, 10, None),
        (11, 10, "too long"),
        (1, 11, "too long"),
        (1, 9, None),  # nine times as long, but only 8 more
        (1, 10, "ratio"),
    ],
)
def test_drop_reason(source: int, target: int, reason: str | None) -> None:
    assert drop_reason(source, target, DataSettings(max_length=10)) == reason


def test_the_ratio_is_exact() -> None:
    settings = DataSettings(max_length=100, max_ratio=3.0)
    assert drop_reason(20, 60, settings) is None
    assert drop_reason(61, 20, settings) == "ratio"


@given(st.integers(0, 60), st.integers(1, 80))
def test_a_sample_is_spread_evenly(total: int, sample: int) -> None:
    chosen = list(spread(range(total), total, sample))
    assert len(chosen) == min(total, sample)
    gaps = [after - before for before, after in pairwise(chosen)]
    assert not gaps or max(gaps) - min(gaps) <= 1


def test_both_sides_are_sampled_at_the_same_lines(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[str]] = []

    def spy(settings, source_lines, target_lines):  # type: ignore[no-untyped-def]
        seen.extend([list(source_lines()), list(target_lines())])
        return learn_vocabs(dataclasses.replace(settings, size=300), source_lines, target_lines)

    monkeypatch.setattr(preparation, "learn_vocabs", spy)
    monkeypatch.setattr(preparation, "VOCAB_LINES", 3)
    prepare(dataclasses.replace(recipe, vocab=VocabSettings(size=300)), tmp_path / "out")
    assert seen == [[TRAIN[index][side] for index in (0, 4, 8)] for side in (0, 1)]


# --- mistakes ---


@pytest.mark.parametrize("name", ["train_source", "train_target", "valid_source", "valid_target"])
def test_a_file_that_is_not_named(recipe: Recipe, tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match=rf"^data.{name} is not set; .*--set data.{name}=FILE"):
        prepare(changed(recipe, **{name: ""}), tmp_path / "out")


@pytest.mark.parametrize("split", ["train", "valid"])
def test_misaligned_files_are_reported_before_the_long_work(
    recipe: Recipe, tmp_path: Path, split: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparation, "learn_vocabs", lambda *_: pytest.fail("the long work has begun"))
    path = tmp_path / f"{split}.en"
    count = len(path.read_text().splitlines())
    path.write_text("one\n")
    with pytest.raises(UserError, match=rf"{split}.de has {count} lines but .*{split}.en has 1: line n of one"):
        prepare(recipe, tmp_path / "out")
    assert not [name for name in os.listdir(tmp_path) if "out" in name]


def test_missing_text_and_existing_output(recipe: Recipe, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="none: no such file; check the path"):
        prepare(changed(recipe, train_target=str(tmp_path / "none")), tmp_path / "out")
    (tmp_path / "out").mkdir()
    with pytest.raises(UserError, match="out: exists already; choose another name or remove it"):
        prepare(recipe, tmp_path / "out")


@pytest.mark.parametrize("split", ["train", "valid"])
def test_no_pair_is_left(recipe: Recipe, prepared: Path, tmp_path: Path, split: str) -> None:
    source, target = write_pairs(tmp_path / "bad", [("", "x"), ("lang " * 100, "y"), ("", "")])
    bad = changed(recipe, **{f"{split}_source": source, f"{split}_target": target})
    message = (
        r"no usable pair in .*bad.de and .*bad.en: 0 pairs, 3 left out \(2 empty, 1 too long\);"
        r".*data.max_length 60 and data.max_ratio 3.0"
    )
    with pytest.raises(UserError, match=message):
        prepare(bad, tmp_path / "second", vocab_from=prepared)
    assert not (tmp_path / "second").exists()


def test_empty_training_text(recipe: Recipe, tmp_path: Path) -> None:
    for side in ("de", "en"):
        (tmp_path / f"train.{side}").write_text("")
    with pytest.raises(UserError, match="no text to learn a vocabulary from"):
        prepare(recipe, tmp_path / "out")


def test_a_full_disk(recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(preparation, "save_vocabs", full)
    with pytest.raises(UserError, match="disk full while writing .*out: free some space and run the same command"):
        prepare(recipe, tmp_path / "out")


def test_not_a_prepared_directory(prepared: Path, tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "none", prepared / "data.json"):
        with pytest.raises(UserError, match=r": no data.json; name a directory written by lath prepare"):
            Corpus.open(place, "train")
    with pytest.raises(UserError, match=r"no split 'vaild' \(did you mean 'valid'\?\); it has train, valid"):
        Corpus.open(prepared, "vaild")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 1}', "\xff", '{"format": 1, "dtype": "u9"}', "cut"])
def test_foreign_info(prepared: Path, text: str) -> None:
    path = prepared / "data.json"
    whole = path.read_text()
    path.write_text(whole[:200] if text == "cut" else text, encoding="latin-1")
    with pytest.raises(UserError, match=r"data.json: damaged or not written by lath .*run lath prepare"):
        read_data_info(prepared)


def test_an_unknown_format_names_both_numbers(prepared: Path) -> None:
    path = prepared / "data.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 7}))
    with pytest.raises(
        UserError, match="data.json: format 7, but this version of lath reads format 1; run lath prepare"
    ):
        Corpus.open(prepared, "train")


@pytest.mark.parametrize("name", ["train.source.tokens", "train.target.offsets"])
def test_truncated_arrays(prepared: Path, name: str) -> None:
    path = prepared / name
    raw = path.read_bytes()
    path.write_bytes(raw[:-8])
    with pytest.raises(UserError, match=rf"{name}: damaged .{len(raw) - 8} bytes instead of {len(raw)}"):
        Corpus.open(prepared, "train")
    path.unlink()
    with pytest.raises(UserError, match=f"{name}: no such file; copy the whole directory again"):
        Corpus.open(prepared, "train")


def test_foreign_offsets(prepared: Path) -> None:
    path = prepared / "train.source.offsets"
    offsets = np.fromfile(path, "<i8")
    offsets[[2, 3]] = offsets[[3, 2]]
    path.write_bytes(offsets.tobytes())
    with pytest.raises(UserError, match="train.source.offsets: .*its offsets do not fit the tokens"):
        Corpus.open(prepared, "train")


def test_data_of_lath_0_1_still_opens(prepared: Path) -> None:
    tree = json.loads((prepared / "data.json").read_text(encoding="utf-8"))
    tree["vocab"]["sample_lines"] = 1_000_000
    (prepared / "data.json").write_text(json.dumps(tree), encoding="utf-8")
    assert len(Corpus.open(prepared, "train")) > 0


def test_an_empty_split_opens(prepared: Path) -> None:
    tree = json.loads((prepared / "data.json").read_text())
    tree["splits"]["valid"].update(pairs=0, source_tokens=0, target_tokens=0)
    (prepared / "data.json").write_text(json.dumps(tree))
    for side in ("source", "target"):
        (prepared / f"valid.{side}.tokens").write_bytes(b"")
        (prepared / f"valid.{side}.offsets").write_bytes(bytes(8))
    corpus = Corpus.open(prepared, "valid")
    assert len(corpus) == len(corpus.target.lengths) == 0


def test_text_needs_neither_torch_nor_the_extras() -> None:
    package = Path(preparation.__file__).parent
    modules = [f"{room}.{path.stem}" for room in ("text", "document") for path in (package / room).glob("[!_]*.py")]
    assert {"text.vocab", "document.plan"} <= {*modules}
    blocked = "import sys; sys.modules.update(dict.fromkeys(['sacrebleu', 'subword_nmt', 'tqdm', 'torch']));"
    imports = "".join(f"import lath.{name};" for name in modules)
    subprocess.run([sys.executable, "-c", blocked + imports], check=True)


def test_no_bar_without_a_terminal(recipe: Recipe, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    prepare(recipe, tmp_path / "out")
    assert capfd.readouterr() == ("", "")
