"""`lath analyse`: every figure is that of `lath evaluate` or can be worked by hand, and what is there is used again."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest
from conftest import Runs, Translators

from lath.analysis import tables
from lath.analysis.analyse import analyse
from lath.analysis.analysis import Analysis, Cell, Table, Trace
from lath.analysis.settings import AnalyseSettings
from lath.analysis.systems import Asked, KnownLengths, load_systems, parse_system, parse_systems, translate
from lath.analysis.traces import VERIFIED_OUT, Traced, changed_tokens, judged, trace_tables
from lath.cli import main
from lath.config import RULE_SETS, DecodeSettings
from lath.decoding.merge import merge_pieces
from lath.decoding.results import Check, Pass
from lath.distillation import fingerprint
from lath.errors import UserError
from lath.text.vocab import BOS, EOS, MASK, SPECIALS

QUICK = AnalyseSettings(samples=50, traced=10, timed=2, repeats=1)
RIGHT = ["Anna sees the old house .", "Where is Bob today ?", "It is late now .", "So she goes home to Ulm ."]
SOURCE = ["Anna sieht das alte Haus .", "Wo ist Bob heute ?", "Es ist jetzt spät .", "Also geht sie heim nach Ulm ."]
FIRST = ["Anna sees a old house .", "Where is is he today ?", "It is late .", "So goes she home home to Ulm ."]
SECOND = ["Anna sees the old house .", "Where is Bob , today ?", "It is late now now .", "So she goes to Berlin ."]


def put(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


@pytest.fixture
def texts(tmp_path: Path) -> dict[str, Path]:
    lines = {"source": SOURCE, "right": RIGHT, "first": FIRST, "second": SECOND}
    return {name: put(tmp_path / f"{name}.txt", some) for name, some in lines.items()}


@pytest.fixture(scope="module")
def modelled(toy_run: Runs, toy_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Analysis, Path]:
    """An analysis of a toy model of each kind and of the reference itself, and where it is."""
    out = tmp_path_factory.mktemp("analysis")
    lat = toy_run("LAT") / "model"
    systems = [f"AT={toy_run('AT') / 'model'}@beam=1", f"CMLM={toy_run('CMLM') / 'model'}@iterations=2",
               f"LAT-1={lat}@iterations=1", f"LAT-3={lat}@iterations=3,length_candidates=2",
               f"right={toy_folder / 'valid.tgt'}"]  # fmt: skip
    return analyse(toy_folder / "valid.tgt", systems, out, QUICK, toy_folder / "valid.src"), out


def table(found: Analysis, name: str) -> Table:
    return next(table for table in found.tables if table.name == name)


def column(found: Table, heading: str) -> list[Cell]:
    return [row[found.header.index(heading)] for row in found.rows]


def never(value: str) -> NoReturn:
    raise AssertionError(f"{value} in JSON")


def test_the_verb_writes_the_figures_of_evaluate(
    texts: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    right, first, second = (str(texts[name]) for name in ("right", "first", "second"))
    assert main(["evaluate", right, first, second, "--json", "--ter", "--repeats", "--buckets", "--edges", "4,5"]) == 0
    scored = json.loads(capsys.readouterr().out)
    out = tmp_path / "out"
    assert main(["analyse", right, f"A={first}", f"B={second}", "--out", str(out), "--edges", "4,5"]) == 0
    printed = capsys.readouterr()
    assert printed.out == f"{out / 'analysis.md'}\n"
    found = json.loads((out / "analysis.json").read_text(encoding="utf-8"), parse_constant=never)
    assert (found["format"], found["lines"], found["source"], found["reference"]) == (1, 4, None, right)
    assert [(system["name"], system["path"]) for system in found["systems"]] == [("A", first), ("B", second)]
    for system, other in zip(found["systems"], scored["systems"], strict=True):
        assert system["scores"] == {key: other[key] for key in system["scores"]}
        assert len(system["sentence_chrf"]) == 4
        assert (system["model"], system["latency"], system["traces"]) == (None, None, [])
    by_name = {found["name"]: found for found in found["tables"]}
    rates = [scored["reference"]["repeats"], *(system["repeats"] for system in scored["systems"])]
    assert [row[2:] for row in by_name["repeats"]["rows"]] == rates
    sizes, *scores = (row[1:] for row in by_name["buckets"]["rows"])
    assert sizes == [str(size) for size in scored["buckets"]["lines"]]
    assert scores == [system["buckets"] for system in scored["systems"]]
    assert [row[3] for row in by_name["significance"]["rows"]] == [s["bleu"]["p_value"] for s in scored["systems"]]
    reasons = {
        "passes": "needs the passes",
        "agreement": "needs the pieces",
        "names": "give --source",
        "pieces": "no system is a LAT model",
        "parameters": "no system is a model",
    }
    for name, reason in reasons.items():
        assert by_name[name]["rows"] == []
        assert by_name[name]["note"].startswith("Left out: ")
        assert reason in by_name[name]["note"]


def test_the_markdown_has_every_table_and_whole_rows(texts: dict[str, Path], tmp_path: Path) -> None:
    odd = tmp_path / "a|b.txt"
    odd.write_text(texts["first"].read_text(encoding="utf-8"), encoding="utf-8")
    found = analyse(texts["right"], [str(odd), str(texts["second"])], tmp_path / "out", QUICK, texts["source"])
    page = (tmp_path / "out" / "analysis.md").read_text(encoding="utf-8")
    assert page == found.markdown()
    assert [line[3:] for line in page.splitlines() if line.startswith("## ")] == [one.title for one in found.tables]
    for one in found.tables:
        shown = one.markdown()
        bars = {line.count("|") for line in shown.splitlines() if line.startswith("|")}
        assert bars == ({len(one.header) + 1} if one.rows else set())


def test_plots_are_drawn_the_same_each_time(texts: dict[str, Path], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    systems = [f"A={texts['first']}", f"B={texts['second']}"]
    for out in ("one", "two"):
        found = analyse(texts["right"], systems, tmp_path / out, QUICK)
        assert [plot.name for plot in found.plots] == ["buckets"]  # nothing is timed, nothing has passes
        assert (tmp_path / out / "plots" / "buckets.png").read_bytes().startswith(b"\x89PNG")
    one, two = ((tmp_path / out / "plots" / "buckets.svg").read_text(encoding="utf-8") for out in ("one", "two"))
    assert one == two
    assert ">B</text>" in one


def test_without_matplotlib_there_are_tables_and_a_note(
    texts: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    found = analyse(texts["right"], [str(texts["first"])], tmp_path / "out", QUICK)
    assert found.plots == []
    assert found.notes == ["no plots: plots need the package matplotlib: pip install 'lath[plots]'"]
    assert table(found, "systems").rows
    assert table(found, "pairs").note == "Left out: there is one system, or --samples is 0."


def test_rare_names_by_hand(texts: dict[str, Path], tmp_path: Path) -> None:
    systems = [f"A={texts['first']}", f"B={texts['second']}"]
    found = analyse(texts["right"], systems, tmp_path / "out", QUICK, texts["source"])
    # Anna, Bob and Ulm; A has lost Bob, B has lost Ulm
    assert column(table(found, "names"), "kept %") == [pytest.approx(200 / 3)] * 2
    assert "3 names, in 3 of 4 lines" in table(found, "names").note
    counted = put(tmp_path / "train.txt", ["Anna Anna", "Bob"])
    for rare, names in ((2, 2), (1, 1)):  # Anna occurs twice; then Bob once
        settings = AnalyseSettings(samples=0, rare=rare)
        found = analyse(texts["right"], systems, tmp_path / "out", settings, texts["source"], counted)
        assert f"fewer than {rare} times in {counted}. {names} names" in table(found, "names").note


def test_the_windows_show_the_papers_row_and_the_nearest() -> None:
    found = tables.window_table(["a b a c a", "d e f g h"], 3)
    assert found.rows[0] == ["the paper, WMT'14 EN-DE", 2.49, 0.03, 0.0, 0.0, None]
    assert [row[0] for row in found.rows[3:5]] == ["3 (used here)", "4"]
    assert found.rows[2][1:] == [20.0, 0.0, 0.0, 0.0, pytest.approx(17.51)]
    assert "1 comes nearest, 2.49 from its row" in found.note


def test_models_are_translated_scored_and_timed(
    modelled: tuple[Analysis, Path], toy_folder: Path, trained: Translators
) -> None:
    found, out = modelled
    source = (toy_folder / "valid.src").read_text(encoding="utf-8").splitlines()
    by_name = {system.name: system for system in found.systems}
    assert by_name["LAT-3"].texts == trained("LAT").translate(source, iterations=3, length_candidates=2)
    assert by_name["AT"].path == str(out / "translations" / "AT.txt")
    assert by_name["right"].scores.bleu.value == pytest.approx(100)
    for name, system in by_name.items():
        assert (system.model is None) == (system.latency is None) == (name == "right")
    latency = by_name["LAT-3"].latency
    assert latency is not None
    assert 0 < latency.p50_ms <= latency.p95_ms
    assert latency.signature.startswith("lat|")
    assert "it:3|len:2|b:1|" in latency.signature
    assert column(table(found, "systems"), "kind") == ["AT", "CMLM", "LAT, K = 3", "LAT, K = 3", "text"]
    assert column(table(found, "systems"), "decoding")[:2] == ["beam 1", "2 passes, 1 length"]
    assert column(table(found, "pieces"), "system") == ["LAT-1", "LAT-3"]
    parameters = sum(one.numel() for one in trained("AT").model.parameters()) / 1e6  # type: ignore[union-attr]
    assert column(table(found, "parameters"), "million parameters")[0] == parameters
    json.loads((out / "analysis.json").read_text(encoding="utf-8"), parse_constant=never)


def test_traces_lead_to_the_translations(modelled: tuple[Analysis, Path]) -> None:
    found, _ = modelled
    for system in found.systems:
        assert [trace.line for trace in system.traces] == (
            list(range(0, 100, 10)) if system.name in ("CMLM", "LAT-1", "LAT-3") else []
        )
        for trace in system.traces:
            assert trace.text == trace.pass_texts[-1] == system.texts[trace.line]
            for one in trace.passes[0]:
                assert {*one.input, *one.output, *(id for piece in one.pieces for id in piece)} <= system.tokens.keys()
    passes = table(found, "passes")
    assert column(passes, "system") == ["CMLM", "CMLM", "LAT-1", "LAT-3", "LAT-3", "LAT-3"]
    assert column(passes, "pass") == ["1", "2", "1", "1", "2", "3"]
    agreement = table(found, "agreement")
    assert set(column(agreement, "system")) == {"LAT-1", "LAT-3"}
    for row in agreement.rows:
        assert sum(float(cell) for cell in row[-3:] if cell is not None) == pytest.approx(100)
    for name in ("conflicts", "collapse", "lengths", "calibration"):
        assert table(found, name).rows
    assert {plot.name for plot in found.plots} == {"latency", "buckets", "passes", "calibration"}


def test_translations_are_used_again_while_all_they_depend_on_is_the_same(
    toy_run: Runs, toy_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = put(tmp_path / "s.txt", (toy_folder / "valid.src").read_text(encoding="utf-8").splitlines()[:3])
    made: list[Path] = []

    def count(*arguments: Any) -> int:
        made.append(arguments[3])
        return put(arguments[3], ["x"] * 3) and 3

    monkeypatch.setattr("lath.analysis.systems.distill_with", count)

    def again(options: str) -> int:
        asked = parse_systems([f"M={toy_run('LAT') / 'model'}@{options}"])
        translate(load_systems(asked, QUICK)["M"], source, tmp_path / "translations")
        return len(made)

    assert again("iterations=1") == 1
    assert again("iterations=1") == 1
    assert again("iterations=1,batch_sentences=7") == 1  # the text does not depend on it
    assert again("iterations=2") == 2
    put(source, ["ba", "ko", "mi"])
    assert again("iterations=2") == 3
    (tmp_path / "translations" / "M.json").unlink()  # stopped before the card was written
    assert again("iterations=2") == 4


def test_a_stopped_translation_continues(toy_run: Runs, toy_folder: Path, tmp_path: Path) -> None:
    system = load_systems(parse_systems([f"M={toy_run('LAT') / 'model'}"]), QUICK)["M"]
    shards = tmp_path / "M.txt.shards"
    shards.mkdir()
    (shards / "job.json").write_text('{"model": "another"}')
    with pytest.raises(UserError, match=r"has an unfinished run that differs in .*; repeat the command"):
        translate(system, toy_folder / "valid.src", tmp_path)
    (shards / "job.json").unlink()
    shards.rmdir()
    out = translate(system, toy_folder / "valid.src", tmp_path)
    assert len(out.read_text(encoding="utf-8").splitlines()) == 100


@pytest.mark.parametrize("kind", ["CMLM", "LAT"])
def test_a_known_length_is_the_length_of_the_first_input(kind: str, trained: Translators) -> None:
    translator = trained(kind)
    lines, extra = ["ba ko", "mi tu re sa", "lo"], 1 if kind == "LAT" else 0
    ids = translator.source_vocab.encode_lines(lines)
    assert translator.model is not None
    lengths = {(*one, EOS): 5 + number for number, one in enumerate(ids[:2])}
    known = translator.with_decoder(KnownLengths(translator.model, lengths))
    found = list(known.hypotheses(lines, trace=True, length_candidates=3, extra_length=extra))
    own = next(iter(translator.hypotheses(["lo"], trace=True, length_candidates=1, extra_length=extra)))
    inputs = [len(one.passes[0][0].input) for one in found]
    assert inputs == [5 + extra, 6 + extra, len(own.passes[0][0].input)]  # the last one's is not given


# ---- traces by hand ---------------------------------------------------------------------------------------------


class Words:
    """A vocabulary of whole words."""

    words = (*SPECIALS, "the", "old", "dog", "cat", "barks", "loudly")
    size = len(words)

    def encode(self, text: str) -> list[int]:
        return [self.words.index(word) for word in text.split()]

    def encode_lines(self, lines: Sequence[str]) -> list[list[int]]:
        return [self.encode(line) for line in lines]

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(self.words[id] for id in ids)

    def token(self, id: int) -> str:
        return self.words[id]


WORDS = Words()
THE, OLD, DOG, CAT, BARKS = range(len(SPECIALS), len(SPECIALS) + 5)
SURE, UNSURE = math.log(0.95), math.log(0.45)


def merged(pieces: list[list[int]], scores: list[list[float]], masked: list[int] | None = None) -> Pass:
    found = merge_pieces(pieces, scores, RULE_SETS["official"])
    ids = [BOS, *(id for id in found.ids if id not in (BOS, EOS)), EOS]
    return Pass([MASK] * len(pieces), pieces, scores, found.decisions, ids, masked or [])


@pytest.fixture
def by_hand() -> Traced:
    """Two passes over "the old dog barks": the second changes one word."""
    first = merged(
        [[BOS, THE], [THE, CAT], [DOG, BARKS], [CAT, BARKS], [EOS, EOS]],
        [[0.0, SURE], [SURE, SURE], [SURE, SURE], [UNSURE, SURE], [SURE, SURE]],
        masked=[2],
    )
    last = merged(
        [[BOS, THE], [THE, OLD], [OLD, DOG], [DOG, BARKS], [BARKS, EOS]],
        [[0.0, SURE], [SURE, SURE], [SURE, UNSURE], [UNSURE, SURE], [SURE, SURE]],
    )
    texts = ["the cat dog barks", "the old dog barks"]
    trace = Trace(0, texts[1], -0.1, [[first, last]], texts)
    settings = DecodeSettings(iterations=2, extra_length=0)
    return Traced("LAT", "LAT", settings, WORDS, [trace], ["the old cat barks loudly"], ["the old dog barks barks"])


def test_verified_systems_have_a_table_of_their_own(by_hand: Traced) -> None:
    draft, redraft = by_hand.traces[0].passes[0]
    passes = [
        dataclasses.replace(draft, masked=[], check=Check(2, OLD)),
        dataclasses.replace(redraft, prefix=[THE, CAT, OLD], check=Check(5, None)),
    ]
    settings = dataclasses.replace(by_hand.settings, verify="relaxed")
    verified = dataclasses.replace(
        by_hand, name="V", settings=settings, traces=[dataclasses.replace(by_hand.traces[0], passes=[passes])]
    )
    found = {table.name: table for table in trace_tables([by_hand, verified], tokenised=True, window=5)}
    # 5 tokens and 5 were drafted (</s> counts), 7 accepted, one corrected.
    assert found.pop("checks").rows == [["V", "relaxed (3 best, 1 nats)", "1", 2.0, 2.0, 70.0, 4.0]]
    assert {row[0] for table in found.values() for row in table.rows} == {"LAT"}
    assert all(table.note.endswith(VERIFIED_OUT) for table in found.values())
    assert "checks" not in [table.name for table in trace_tables([by_hand], tokenised=True, window=5)]


def test_a_pair_is_analysed(toy_pair: Path, pair_parts: tuple[Path, Path], toy_folder: Path, tmp_path: Path) -> None:
    systems = [f"AT={pair_parts[1]}@beam=1", f"LAT={toy_pair}@verify=", f"EXACT={toy_pair}@verify=exact",
               f"RERANK={toy_pair}@verify=rerank,length_candidates=3"]  # fmt: skip
    sides = [(toy_folder / f"valid.{side}").read_text(encoding="utf-8").splitlines()[:6] for side in ("src", "tgt")]
    source, right = put(tmp_path / "source", sides[0]), put(tmp_path / "right", sides[1])
    found = analyse(right, systems, tmp_path / "out", dataclasses.replace(QUICK, ter=False), source)
    at, lat, exact, _ = found.systems
    assert exact.texts == at.texts
    assert lat.texts != exact.texts
    assert column(table(found, "systems"), "decoding")[2:] == [
        "4 passes, 1 length, exact",
        "4 passes, 3 lengths, rerank",
    ]
    assert exact.model is not None
    assert (exact.model.verifier, lat.model and lat.model.verifier) == ("at-1-2", None)
    assert exact.latency is not None
    assert "|exact:at-" in exact.latency.signature
    assert set(column(table(found, "passes"), "system")) == {"LAT"}
    assert column(table(found, "checks"), "checks")[1] == 1.0
    for trace in exact.traces:
        kept = [trace.passes[0][-1].prefix, trace.passes[0][-1].output[1:]]
        assert {id for some in kept for id in some} <= exact.tokens.keys()
        assert len(trace.pass_texts) == len(trace.passes[0]) > 1
    cards = [json.loads((tmp_path / "out/translations" / f"{name}.json").read_text()) for name in ("LAT", "EXACT")]
    assert [card["settings"]["verify"] for card in cards] == ["", "exact"]
    assert cards[0]["model"] == fingerprint(toy_pair)


def test_trace_tables_by_hand(by_hand: Traced) -> None:
    found = {table.name: table for table in trace_tables([by_hand], tokenised=True, window=5)}
    assert by_hand.traces[0].passes[0][1].output == [BOS, THE, OLD, DOG, BARKS, EOS]
    assert changed_tokens(by_hand, 2) == 1  # cat became old
    assert column(found["passes"], "tokens changed %") == [None, 25.0]
    assert column(found["passes"], "masked next %") == [25.0, 0.0]
    # first: <s> the | the cat overlap, dog barks starts anew, cat barks against it, </s>; then all overlap
    assert column(found["agreement"], "same overlap %") == [25.0, 100.0]
    assert column(found["agreement"], "joined exactly %")[1] == 100.0
    conflicts = found["conflicts"].rows[0]
    assert conflicts[3:6] == [1.0, 100.0, 0.0]  # dog (0.95) against cat (0.45): the left wins
    assert found["conflicts"].rows[1][4] is None
    [lengths] = found["lengths"].rows
    assert lengths[2] == 5 - 7  # five words, <s> and </s>


def test_confidence_and_correctness_by_hand(by_hand: Traced) -> None:
    passes, reference = by_hand.traces[0].passes[0], by_hand.references[0]
    assert list(judged(by_hand, passes, reference)) == [
        (pytest.approx(0.95), True), (pytest.approx(0.95), True), (pytest.approx(0.45), False),
        (pytest.approx(0.95), True),
    ]  # fmt: skip
    found = next(one for one in trace_tables([by_hand], True, 5) if one.name == "calibration")
    assert [[cell if isinstance(cell, str) else round(cell or 0, 6) for cell in row] for row in found.rows] == [
        ["LAT", "40-50 %", 25.0, 45.0, 0.0, 45.0],
        ["LAT", "90-100 %", 75.0, 95.0, 100.0, -5.0],
    ]
    assert "LAT: expected calibration error 15.0 %" in found.note


def test_a_token_of_cmlm_has_the_score_of_the_pass_that_wrote_it(by_hand: Traced) -> None:
    first = Pass([BOS, MASK, MASK, EOS], [[BOS], [THE], [CAT], [EOS]], [[0.0], [SURE], [SURE], [0.0]], [],
                 [BOS, THE, CAT, EOS], [2])  # fmt: skip
    last = Pass([BOS, THE, MASK, EOS], [[BOS], [OLD], [DOG], [EOS]], [[0.0], [UNSURE], [UNSURE], [0.0]], [],
                [BOS, THE, DOG, EOS])  # fmt: skip
    cmlm = Traced("C", "CMLM", by_hand.settings, WORDS, [], [], [])
    assert list(judged(cmlm, [first, last], "the dog")) == [(pytest.approx(0.95), True), (pytest.approx(0.45), True)]


# ---- mistakes ---------------------------------------------------------------------------------------------------


def test_systems_on_the_command_line(tmp_path: Path, toy_run: Runs) -> None:
    text, odd = put(tmp_path / "a.txt", ["a"]), put(tmp_path / "b=c.txt", ["a"])
    assert parse_system(f"A={text}") == Asked("A", text, None)
    assert parse_system(str(odd)) == Asked(str(odd), odd, None)
    assert parse_system(f"B={odd}") == Asked("B", odd, None)
    model = toy_run("LAT") / "model"
    assert parse_system(f"M={model}@iterations=2,rules=paper") == Asked(
        "M", model, {"iterations": 2, "rules": "paper"}
    )  # fmt: skip


@pytest.mark.parametrize(
    ("systems", "message"),
    [
        (["nothing.txt"], "nothing.txt: no such file; a system is FILE, NAME=FILE or NAME=MODEL@iterations=4"),
        (["{folder}"], "a directory; give a model a name, for example LAT-4="),
        (["A=nothing-here"], "nothing-here: no such file or directory, and no bundled model"),
        (["a/b={file}"], "no such file; a system is"),
        (["A={file}", "A={file}"], "a second system of the name A; use another NAME"),
        (["M={model}@iteration=2"], "iteration"),
        (["M={model}@iterations=0"], "iterations"),
        (["M={model}@iterations"], "write it as"),
        (["M={model}"], "M is a model: give the source text with --source FILE"),
        (["A={file}"], "two.txt has 2: line n of one"),
    ],
)
def test_a_mistake_names_its_remedy(
    systems: list[str], message: str, texts: dict[str, Path], tmp_path: Path, toy_run: Runs
) -> None:
    places = {"folder": tmp_path, "file": put(tmp_path / "two.txt", ["a", "b"]), "model": toy_run("LAT") / "model"}
    given = [system.format(**places) for system in systems]
    with pytest.raises(UserError) as refused:
        analyse(texts["right"], given, tmp_path / "out", QUICK)
    assert message in str(refused.value)
    assert not (tmp_path / "out").exists()


def test_a_source_of_other_length_is_refused(texts: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has 1 lines but"):
        analyse(texts["right"], [str(texts["first"])], tmp_path / "out", QUICK, put(tmp_path / "one.txt", ["a"]))


def test_blank_lines_and_empty_translations_are_analysed(toy_run: Runs, tmp_path: Path) -> None:
    source, right = put(tmp_path / "s", ["ba ko", "", "mi"]), put(tmp_path / "r", ["ark oak", "elm", ""])
    empty = put(tmp_path / "e", ["", "", ""])
    found = analyse(right, [f"E={empty}", f"M={toy_run('LAT') / 'model'}"], tmp_path / "out", QUICK, source)
    assert [trace.line for trace in found.systems[1].traces] == [0]  # the others lack words on one side
    assert found.systems[0].scores.bleu.value == 0
    json.loads((tmp_path / "out" / "analysis.json").read_text(encoding="utf-8"), parse_constant=never)
