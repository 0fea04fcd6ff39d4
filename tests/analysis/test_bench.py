"""The protocol with a simulated clock, and the verb end to end with its error messages."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from conftest import CPU, Runs

import lath.analysis.bench
from lath.analysis.bench import (
    VARIANTS,
    GpuMemory,
    bench,
    decoding_stages,
    labels,
    load_rows,
    measure,
    reference_row,
    stages,
    variant_name,
    variants,
)
from lath.analysis.scores import evaluate
from lath.analysis.sentences import WARM_UP, Text
from lath.analysis.settings import BenchSettings
from lath.analysis.speed import STAGES, Row, signature
from lath.cli import main
from lath.config import DecodeSettings
from lath.decoding.merge import Merged, merge_pieces
from lath.devices import cpu_threads
from lath.engine.shortlist import Shortlist, save_shortlist
from lath.errors import UserError
from lath.files import read_lines
from lath.model.directory import read_info, write_info
from lath.model.pair import make_pair
from lath.translator import Translator, load

pytestmark = pytest.mark.usefixtures("few_batches")


Capsys = pytest.CaptureFixture[str]
QUICK = ("--device", "cpu", "--sentences", 3, "--repeats", 2, "--batches", "4,2")


def run(capsys: Capsys, *arguments: object) -> tuple[int, str, str]:
    code = main(["bench", *map(str, arguments)])
    return code, *capsys.readouterr()


def refused(capsys: Capsys, *arguments: object) -> str:
    """The message of a command that fails with exit code 2, which is one line on stderr."""
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert re.fullmatch(r"lath: error: [^\n]+\n", err)
    return err[len("lath: error: ") : -1]


@pytest.fixture
def source(toy_folder: Path) -> Path:
    return toy_folder / "valid.src"


# ---- the protocol -------------------------------------------------------------------------------------------------


class Clock:
    """A clock that only advances with work, and a diary of the work."""

    def __init__(self) -> None:
        self.now = 0.0
        self.diary: list[tuple[str, int, int]] = []

    def perf_counter(self) -> float:
        return self.now


class Spelling:
    """A vocabulary of characters that takes a second to encode a line and two to decode one."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def encode(self, text: str) -> list[int]:
        self.clock.now += 1
        return list(text.encode())

    def encode_lines(self, lines: list[str]) -> list[list[int]]:
        return [self.encode(line) for line in lines]

    def decode(self, ids: list[int]) -> str:
        self.clock.now += 2
        return bytes(ids).decode()


def worker(clock: Clock, name: str, speed: float, engine: str = "plain") -> Row:
    """A row that takes `speed` seconds for each character."""

    def translate(lines: list[str], batch_sentences: int, **_: Any) -> list[str]:
        clock.diary.append((name, len(lines), batch_sentences))
        clock.now += sum(map(len, lines)) * speed
        return lines

    stand_in: Any = SimpleNamespace(
        device=CPU,
        engine=engine,
        source_vocab=Spelling(clock),
        target_vocab=Spelling(clock),
        translate=translate,
        settings=lambda **_: DecodeSettings(),
        decoder=None,
    )
    return Row(name, name, cast(Translator, stand_in), {}, "fp32", 0)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(lath.analysis.bench, "time", made)
    return made


BULK = {"first": 5, "second": 6, "third": 5, "fourth": 6}
TEXT = Text(["w"] * WARM_UP, ["first", "second"], [5, 6], BULK, {10: ["ten", "eleven"]}, [])
SETTINGS = BenchSettings(repeats=3, batches=(2, 4))


def test_rows_take_turns_in_random_order_and_do_the_same_work(clock: Clock) -> None:
    turn = [(1, 1), (1, 1), (2, 2), (4, 4), (1, 1), (1, 1)]  # two sentences, two sizes of batches, two of a length
    warm_up = [(1, 1)] * (WARM_UP + 1) + [(2, 2), (4, 4)]
    repeats, orders = 20, []
    for _ in range(2):
        clock.diary.clear()
        rows = [worker(clock, name, 1.0) for name in "ABC"]
        measure(rows, TEXT, BenchSettings(repeats=repeats, batches=(2, 4)))
        diary, found = iter(clock.diary), []
        for work in [warm_up] + [turn] * repeats:
            done = [[next(diary) for _ in work] for _ in rows]
            names = [part[0][0] for part in done]
            assert sorted(names) == ["A", "B", "C"]
            assert done == [[(name, *each) for each in work] for name in names]
            found.append("".join(names))
        orders.append(found)
    assert orders[0] == orders[1]  # seeded
    assert len(set(orders[0])) == 6


def test_times_are_those_of_the_clock_and_warming_up_is_none_of_them(clock: Clock) -> None:
    quick, slow = measure([worker(clock, "A", 1.0), worker(clock, "B", 2.0)], TEXT, SETTINGS)
    assert quick.single == [[5, 6]] * 3
    assert slow.single == [[10, 12]] * 3
    assert quick.batches == {2: [11, 11, 11], 4: [22, 22, 22]}
    assert slow.lengths == {10: [[6, 12], [6, 12], [6, 12]]}


def test_the_stages_of_a_decoder_without_a_merging_function(clock: Clock) -> None:
    (found,) = measure([worker(clock, "A", 10.0, engine="recorded")], TEXT, SETTINGS)
    # Two single sentences of 5 and 6 characters, and a batch of four.
    assert found.stages[1] == {"tokenise": 2, "decode": 110 - 2 - 4, "detokenise": 4}
    assert found.stages[4] == {"tokenise": 4, "decode": 220 - 4 - 8, "detokenise": 8}


def test_merging_and_encoding_are_timed_inside_decoding(
    toy_run: Runs, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = load_rows([toy_run("LAT") / "model"], BenchSettings(device="cpu"))[1]
    assert row.settings.iterations == 2
    encode = row.translator.model.encode  # type: ignore[union-attr]

    def slow_encode(source: torch.Tensor) -> object:
        clock.now += 3
        return encode(source)

    def slow_merge(*arguments: Any) -> Merged:
        clock.now += 5
        return merge_pieces(*arguments)

    monkeypatch.setattr(row.translator.model, "encode", slow_encode)
    found = decoding_stages(row, [[9, 10], [11]], slow_merge)
    assert found == {
        "encode": 3,
        "decode": 0,
        "merge": 2 * 2 * 5,
    }  # two passes, two sentences


@pytest.mark.parametrize("kind", ["AT", "CMLM", "LAT"])
def test_the_stages_of_a_decoder_on_the_cpu(toy_run: Runs, kind: str) -> None:
    row = load_rows([toy_run(kind) / "model"], BenchSettings(device="cpu"))[0]
    assert row.translator.engine == "plain"
    for lines in (["ba ko"], ["ba ko mi"] * 12):
        found = stages(row, lines)
        assert tuple(found) == STAGES
        assert min(found.values()) >= 0
        assert (found["merge"] > 0) == (kind == "LAT")


def test_what_is_recorded_at_first_use_is_recorded_before_the_clock_counts(clock: Clock) -> None:
    measure([worker(clock, "A", 1.0, engine="recorded")], TEXT, BenchSettings(repeats=1, batches=(2,)))
    once = clock.diary[WARM_UP + 2 :]
    assert once[:5] == once[5:10] == [("A", 1, 1), ("A", 1, 1), ("A", 2, 2), ("A", 1, 1), ("A", 1, 1)]


def test_a_rows_memory_is_what_it_keeps_and_takes_not_what_others_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    held = {"now": 1000, "most": 5000}  # by all, this row's weights of 100 among them
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: held["now"])
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _: held["most"])
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda _: held.update(most=held["now"]))
    memory = GpuMemory(torch.device("cuda"), weights=100)
    with memory.measured():  # takes 70, keeps 30 of it
        held.update(now=1030, most=1070)
    assert memory.most == 170
    held.update(now=9000, most=9900)  # somebody else
    with memory.measured():
        held.update(now=9000, most=9050)
    assert memory.most == 180


def test_so_many_threads_for_a_while() -> None:
    before = torch.get_num_threads()
    with cpu_threads(before + 1):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before


# ---- rows ---------------------------------------------------------------------------------------------------------


def test_every_kind_has_its_rows() -> None:
    names = {kind: [variant_name(kind, settings) for settings in variants(kind, {})] for kind in VARIANTS}
    assert names == {"AT": ["greedy", "beam:5"], "CMLM": ["it:4", "it:10"], "LAT": ["it:1", "it:2", "it:4"]}
    assert all(settings["length_candidates"] == 5 for settings in variants("CMLM", {}))


def test_an_override_wins_and_rows_that_become_alike_are_one() -> None:
    assert variants("LAT", {"iterations": 3}) == [{"iterations": 3}]
    assert variants("AT", {"iterations": 3}) == [{"beam": 1, "iterations": 3}, {"beam": 5, "iterations": 3}]
    assert variants("CMLM", {"length_candidates": 2})[1] == {"iterations": 10, "length_candidates": 2}


def test_a_shortlist_is_measured_beside_the_whole_vocabulary(model_copy: Path) -> None:
    names = [variant_name("LAT", settings) for settings in variants("LAT", {}, has_shortlist=True)]
    assert names == ["it:1", "it:1/shortlist", "it:2", "it:2/shortlist", "it:4", "it:4/shortlist"]
    assert variants("LAT", {"iterations": 4, "shortlist": True}, True) == [{"iterations": 4, "shortlist": True}]

    near = torch.zeros(read_info(model_copy).source_size, 1, dtype=torch.long)
    save_shortlist(Shortlist(near, torch.ones(read_info(model_copy).target_size, dtype=torch.bool)), model_copy)
    rows = load_rows([model_copy], BenchSettings(device="cpu"))
    assert [row.settings.shortlist for row in rows] == [False, True] * 3
    assert "|shortlist:True|b:1|" in signature(rows[1], 1, 25.0)


def test_short_names_unless_they_are_alike() -> None:
    assert labels([Path("runs/at/model"), Path("int8"), Path("x/lat")]) == ["at", "int8", "lat"]
    assert labels([Path("a/best"), Path("b/best")]) == ["a/best", "b/best"]
    with pytest.raises(UserError) as error:
        labels([Path("a/best"), Path("b"), Path("a/../a/best")])
    assert str(error.value) == "a/../a/best: given twice; remove one"


def test_rows_share_weights_but_no_decoder(toy_run: Runs) -> None:
    model = toy_run("LAT") / "model"
    rows = load_rows([model], BenchSettings(device="cpu", precision="bf16", plain=True))
    label = model.parent.name
    assert [row.name for row in rows] == [f"{label}/it:{n}{end}" for n in (1, 2, 4) for end in ("", "/plain")]
    assert [row.precision for row in rows] == ["bf16", "fp32"] * 3
    assert len({id(row.translator.decoder) for row in rows[::2]}) == 3
    assert len({id(row.translator.model) for row in rows}) == 2
    assert rows[reference_row(rows, None)].name == f"{label}/it:4"
    assert reference_row(rows, f"{label}/it:2/plain") == 3


def test_a_pair_has_the_rows_of_its_student_and_of_every_mode(toy_pair: Path) -> None:
    rows = load_rows([toy_pair], BenchSettings(device="cpu", plain=True, precision="bf16"))
    names = ["it:1", "it:2", "it:4", "rerank", "relaxed", "exact"]
    assert [row.name for row in rows] == [f"pair/{name}{end}" for name in names for end in ("", "/plain")]
    assert [row.settings.verify for row in rows[::2]] == ["", "", "", "rerank", "relaxed", "exact"]
    assert [row.translator.verifier is None for row in rows] == [True] * 6 + [False] * 6
    assert [row.precision for row in rows] == ["bf16", "fp32"] * 6
    assert rows[reference_row(rows, None)].name == "pair/it:4"
    assert len({id(row.translator.decoder) for row in rows[::2]}) == 6
    assert "|len:1|relaxed:at-" in signature(rows[8], 1, 25.0)


# ---- the verb -----------------------------------------------------------------------------------------------------


def test_from_models_to_a_table_and_a_line_of_json(
    toy_run: Runs, toy_folder: Path, source: Path, tmp_path: Path, capsys: Capsys
) -> None:
    pytest.importorskip("matplotlib")
    models = [toy_run(kind) / "model" for kind in ("AT", "CMLM", "LAT")]
    image = tmp_path / "speed.svg"
    code, out, err = run(capsys, *models, source, *QUICK, "--references", toy_folder / "valid.tgt", "--plot", image,
                         "--threads", 1, "--set", "decode.rules=paper")  # fmt: skip
    assert (code, err) == (0, "")
    tree = json.loads(out.splitlines()[-1])
    names = ["run-AT/greedy", "run-AT/beam:5", "run-CMLM/it:4", "run-CMLM/it:10", "run-LAT/it:1", "run-LAT/it:2",
             "run-LAT/it:4"]  # fmt: skip
    assert [row["name"] for row in tree["rows"]] == names
    assert tree["against"] == "run-LAT/it:4"
    assert (tree["warm_up"], tree["sentences"], tree["repeats"], tree["threads"]) == (20, 3, 2, 1)
    assert tree["sentences_at_length"] == {"10": 10, "20": 10}  # the models take 30 tokens at most
    assert tree["notes"] == [f"{n} tokens left out: a model would translate them in fragments" for n in (40, 80, 160)]
    assert tree["peak_rss_mib"] > 10

    table = [line.strip("| ").split(" | ") for line in out.splitlines()[: len(names) + 2]]
    assert table[0] == ["row", "p50 ms", "p95 ms", "mean ms", "times", "sent/s b:2", "sent/s b:4", "best batch", "BLEU"]
    against = tree["rows"][-1]["p50_ms"]
    right = list(read_lines(toy_folder / "valid.tgt"))
    for row, cells in zip(tree["rows"], table[2:], strict=True):
        assert 0 < row["p50_ms"] <= row["p95_ms"]
        assert row["times"] == pytest.approx(row["p50_ms"] / against)
        assert row["best_batch"] == int(max(row["sentences_per_second"], key=row["sentences_per_second"].get))
        assert cells[:2] == [row["name"], f"{row['p50_ms']:.2f}"]
        assert cells[4:] == [f"{row['times']:.2f}", *(f"{n:.1f}" for n in row["sentences_per_second"].values()),
                             str(row["best_batch"]), f"{row['bleu']:.2f}"]  # fmt: skip
        assert len(row["p50_ms_of_turns"]) == 2
        assert set(row["ms_at_length"]) == {"10", "20"}
        assert set(row["shares"]) == {"1", "4"}
        assert all(sum(stages.values()) == pytest.approx(1) for stages in row["shares"].values())
        assert f"- `{row['signature']}`\n" in out
        assert "|rules:paper|b:1|" in row["signature"]
        translated = load(row["model"], "cpu").translate(read_lines(source), **row["overrides"])
        assert row["bleu"] == pytest.approx(evaluate(translated, right).bleu.value)
    assert image.read_bytes().startswith(b"<?xml")


def test_a_pair_is_measured(toy_run: Runs, toy_folder: Path, source: Path, tmp_path: Path, capsys: Capsys) -> None:
    pytest.importorskip("matplotlib")
    pair, image = tmp_path / "pair", tmp_path / "speed.svg"
    make_pair(toy_run("LAT") / "model", toy_run("AT") / "model", pair, {})
    code, out, err = run(capsys, pair, pair / "verifier", source, *QUICK, "--lengths", 3, "--references",
                         toy_folder / "valid.tgt", "--plot", image)  # fmt: skip
    assert (code, err) == (0, "")
    rows = {row["name"]: row for row in json.loads(out.splitlines()[-1])["rows"]}
    assert rows["pair/exact"]["bleu"] == rows["verifier/greedy"]["bleu"]
    assert rows["pair/rerank"]["checks"] == 1 <= rows["pair/exact"]["checks"]
    assert rows["pair/it:4"]["checks"] is rows["verifier/greedy"]["checks"] is None
    assert "best batch | checks | BLEU |" in out.splitlines()[0]
    assert refused(capsys, pair, source, *QUICK, "--set", "decode.verify=exact").startswith("--set decode.verify: not")


def test_an_exported_model_is_a_peer(toy_run: Runs, source: Path, tmp_path: Path, capsys: Capsys) -> None:
    pytest.importorskip("ctranslate2", reason="the extra bench is not installed")
    model, exported = toy_run("AT") / "model", tmp_path / "at-int8"
    assert main(["export", str(model), str(exported), "--quantization", "int8"]) == 0
    capsys.readouterr()
    # --precision and --plain do not apply to the exported model.
    code, out, _ = run(capsys, model, exported, source, *QUICK, "--precision", "bf16", "--plain", "--set",
                       "decode.beam=2", "--against", "at-int8/beam:2")  # fmt: skip
    assert code == 0
    tree = json.loads(out.splitlines()[-1])
    assert [(row["name"], row["engine"], row["precision"].split("_")[0]) for row in tree["rows"]] == [
        ("run-AT/beam:2", "plain", "bf16"),
        ("run-AT/beam:2/plain", "plain", "fp32"),
        ("at-int8/beam:2", "ctranslate2", "int8"),
    ]
    assert tree["rows"][2]["times"] == 1.0
    assert set(tree["rows"][2]["shares"]["1"]) == {"tokenise", "decode", "detokenise"}
    assert "|ctranslate2:" in tree["rows"][2]["signature"]
    assert tree["rows"][0]["bleu"] is None


def test_sentences_of_a_range(toy_run: Runs, source: Path, capsys: Capsys) -> None:
    _, out, _ = run(capsys, toy_run("LAT") / "model", source, *QUICK, "--min-tokens", 3, "--max-tokens", 4, "--set",
                    "decode.iterations=1")  # fmt: skip
    tree = json.loads(out.splitlines()[-1])
    assert (tree["source_tokens"]["min"], tree["source_tokens"]["max"]) in [(3, 3), (3, 4), (4, 4)]
    assert tree["against"] == "run-LAT/it:1"


# ---- mistakes -----------------------------------------------------------------------------------------------------


def test_text_that_cannot_be_measured_with(toy_run: Runs, source: Path, tmp_path: Path, capsys: Capsys) -> None:
    model = toy_run("LAT") / "model"
    missing, empty, short = tmp_path / "none", tmp_path / "empty", tmp_path / "short"
    empty.write_text("\n  \n", encoding="utf-8")
    short.write_text("ba ko\n\n" * 20, encoding="utf-8")
    assert refused(capsys, model, missing) == (
        f"{missing}: no such file; check the path (it is relative to the current directory)"
    )
    assert refused(capsys, model, empty) == f"{empty}: empty; give text of the source language, one sentence per line"
    assert refused(capsys, model, short) == (
        f"{short}: 20 sentences, but 21 or more are needed, because the first 20 are not timed; give a longer text"
    )
    assert refused(capsys, model, model) == f"{model}: is a directory; name a text file (plain, .gz or .xz)"
    assert refused(capsys, model) == "the following arguments are required: data (see lath bench --help)"
    assert refused(capsys, source, source) == (
        f"{source}: no such model directory; `lath train` writes one as RUN/model"
    )


def test_references_that_do_not_fit(toy_run: Runs, source: Path, tmp_path: Path, capsys: Capsys) -> None:
    other = tmp_path / "other.tgt"
    other.write_text("ark\n" * 99, encoding="utf-8")
    assert refused(capsys, toy_run("LAT") / "model", source, "--references", other).startswith(
        f"{source} has 100 lines but {other} has 99: "
    )


def test_plots_that_cannot_be_written(
    toy_run: Runs, toy_folder: Path, source: Path, tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Told at once, before anything is measured."""
    monkeypatch.setattr(lath.analysis.bench, "load", None)
    given = (toy_run("LAT") / "model", source)
    references = ("--references", toy_folder / "valid.tgt")
    image = tmp_path / "speed.svg"
    assert refused(capsys, *given, "--plot", image) == (
        f"--plot {image}: needs --references, because it shows quality against latency"
    )
    assert refused(capsys, *given, *references, "--plot", tmp_path / "speed.pdf").endswith(
        "speed.pdf: unknown image format; use a name that ends in .svg or .png"
    )
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert refused(capsys, *given, *references, "--plot", image).endswith("pip install 'lath[plots]'")
    assert list(tmp_path.iterdir()) == []


def test_models_of_different_languages(toy_run: Runs, model_copy: Path, source: Path, capsys: Capsys) -> None:
    write_info(model_copy, dataclasses.replace(read_info(model_copy), target_language="zz"))
    first = toy_run("LAT") / "model"
    assert refused(capsys, first, model_copy, source, "--device", "cpu") == (
        f"models of different languages: {first} translates xx to yy, {model_copy} xx to zz; "
        f"name models with the same languages"
    )


def test_impossible_options(toy_run: Runs, source: Path, capsys: Capsys) -> None:
    given = (toy_run("LAT") / "model", source, "--device", "cpu")
    assert refused(capsys, *given, "--against", "run-LAT/it:5") == (
        "--against run-LAT/it:5: no such row (did you mean 'run-LAT/it:4'?); "
        "the rows are run-LAT/it:1, run-LAT/it:2, run-LAT/it:4"
    )
    assert refused(capsys, *given, "--min-tokens", 9, "--max-tokens", 5) == (
        "--min-tokens 9 is above --max-tokens 5; swap them"
    )
    assert refused(capsys, *given, "--set", "decode.batch_sentences=4") == (
        "--set decode.batch_sentences: not for lath bench; use --batches"
    )
    assert refused(capsys, *given, "--batches", "8,no") == (
        "argument --batches: 'no' is not a whole number of at least 1 (see lath bench --help)"
    )
    assert refused(capsys, *given, "--set", "decode.iterations=0") == "decode: iterations must be 1 to 1000"
    assert refused(capsys, given[0], *given) == f"{given[0]}: given twice; remove one"


def test_in_python(toy_run: Runs, source: Path) -> None:
    report = bench(
        [toy_run("CMLM") / "model"], source, BenchSettings(device="cpu", sentences=1, repeats=1, batches=(1,))
    )
    assert [speed.name for speed in report.speeds] == ["run-CMLM/it:4", "run-CMLM/it:10"]
    assert report.speeds[0].best_batch == 1
