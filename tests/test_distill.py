"""A teacher rewrites a corpus: order and count, and going on after a kill without a line lost or doubled."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Runs

import lath.distill
from lath.distill import SHARD_LINES, distill
from lath.engine.export import export
from lath.errors import UserError
from lath.translator import Hypothesis, Translator, load

LINES = ["ba ko", "", "gu du fa", "mi tu re", "  ", "sa", "lo ni pe", "fa fa ba", "tu", "re mi", "du"]
SHARD = 3


@pytest.fixture
def model(toy_run: Runs) -> Path:
    return toy_run("AT") / "model"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "train.src"
    path.write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
    return path


class Watched:
    """A translator that notes what it was asked to translate, and can fail at a line."""

    def __init__(self, translator: Translator, fail_at: str | None = None) -> None:
        self.translator, self.info, self.fail_at = translator, translator.info, fail_at
        self.precision, self.settings = translator.precision, translator.settings
        self.asked: list[str] = []

    def hypotheses(self, lines: list[str], **settings: Any) -> Iterator[Hypothesis]:
        for line, hypothesis in zip(lines, self.translator.hypotheses(lines, **settings), strict=True):
            if line == self.fail_at:
                raise RuntimeError("the machine went down")
            self.asked.append(line)
            # Each line is told apart, so that a lost, doubled or exchanged one is seen.
            yield Hypothesis(f"{line.strip()}: {hypothesis.text}".strip(": "), hypothesis.score, hypothesis.iterations)


def run(watched: Watched, model: Path, source: Path, out: Path, **settings: Any) -> int:
    return distill(watched, model, source, out, shard_lines=SHARD, **settings)  # type: ignore[arg-type]


def refusal(*arguments: Any, **settings: Any) -> str:
    with pytest.raises(UserError) as refused:
        run(*arguments, **settings)
    return str(refused.value)


@pytest.mark.parametrize("shard_lines", [1, 3, len(LINES), SHARD_LINES])
def test_the_output_is_the_translation_line_by_line(
    model: Path, source: Path, tmp_path: Path, shard_lines: int
) -> None:
    translator = load(model, "cpu")
    out = tmp_path / "new" / "train.tgt"
    assert distill(translator, model, source, out, shard_lines, beam=2) == len(LINES)
    expected = translator.translate(LINES, beam=2)
    assert out.read_text(encoding="utf-8") == "".join(f"{line}\n" for line in expected)
    assert [expected[1], expected[4]] == ["", ""]
    assert [path.name for path in out.parent.iterdir()] == ["train.tgt"]


def test_a_line_that_comes_again_is_translated_once(model: Path, tmp_path: Path) -> None:
    source, out = tmp_path / "train.src", tmp_path / "train.tgt"
    lines = [*LINES, *LINES[:4], "new", *LINES, "", "new"]
    source.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    watched = Watched(load(model, "cpu"))
    assert run(watched, model, source, out, beam=1) == len(lines)
    assert watched.asked == [*LINES, "new"]
    written = out.read_text(encoding="utf-8").split("\n")[:-1]
    assert [text.partition(":")[0] for text in written] == [line.strip() for line in lines]
    assert written[: len(LINES)] == written[len(LINES) + 5 : -2]


def test_a_source_that_changes_meanwhile_is_told(model: Path, source: Path, tmp_path: Path) -> None:
    class Meddling(Watched):
        def hypotheses(self, lines: list[str], **settings: Any) -> Iterator[Hypothesis]:
            yield from super().hypotheses(lines, **settings)
            source.write_text("".join(f"{line}!\n" for line in LINES), encoding="utf-8")

    assert refusal(Meddling(load(model, "cpu")), model, source, tmp_path / "train.tgt", beam=1) == (
        f"{source}: was changed while it was translated; run the same command again"
    )


def test_packed_text_without_a_last_line_end_is_read(model: Path, source: Path, tmp_path: Path) -> None:
    packed = tmp_path / "train.src.gz"
    packed.write_bytes(gzip.compress(source.read_bytes().rstrip(b"\n").replace(b"\n", b"\r\n")))
    translator = load(model, "cpu")
    assert distill(translator, model, source, tmp_path / "a") == distill(translator, model, packed, tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert (tmp_path / "a").read_bytes().count(b"\n") == len(LINES)


def test_an_empty_corpus_stays_empty(model: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert distill(load(model, "cpu"), model, tmp_path / "empty", tmp_path / "out") == 0
    assert (tmp_path / "out").read_bytes() == b""


def test_a_failed_run_goes_on_and_ends_the_same(model: Path, source: Path, tmp_path: Path) -> None:
    translator = load(model, "cpu")
    run(Watched(translator), model, source, tmp_path / "straight")
    out = tmp_path / "out"
    first = Watched(translator, fail_at="fa fa ba")
    with pytest.raises(RuntimeError, match="the machine went down"):
        run(first, model, source, out)
    assert first.asked == LINES[:7]
    assert not out.exists()
    second = Watched(translator)
    run(second, model, source, out)
    assert second.asked == LINES[6:]  # shards 0 and 1 were whole, shard 2 is done again
    assert out.read_bytes() == (tmp_path / "straight").read_bytes()
    assert not (tmp_path / "out.shards").exists()


def test_a_run_that_was_stopped_before_the_end_is_only_joined(
    model: Path, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    translator, out = load(model, "cpu"), tmp_path / "out"

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(lath.distill, "_repeated", killed)
        run(Watched(translator), model, source, out)
    assert not out.exists()
    again = Watched(translator)
    run(again, model, source, out)
    assert again.asked == []
    run(Watched(translator), model, source, tmp_path / "straight")
    assert out.read_bytes() == (tmp_path / "straight").read_bytes()


KILLABLE = """
import sys, time
from pathlib import Path
import lath.distill
from lath.translator import load
model, source, out, pause = Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), float(sys.argv[4])
translator = load(model, "cpu")
ask = translator.hypotheses
def slowly(lines, **settings):
    for hypothesis in ask(lines, **settings):
        time.sleep(pause)
        yield hypothesis
translator.hypotheses = slowly
lath.distill.distill(translator, model, source, out, shard_lines=3)
"""


def test_a_killed_run_goes_on_and_ends_the_same(model: Path, source: Path, tmp_path: Path) -> None:
    out, shards = tmp_path / "out", tmp_path / "out.shards"
    command = [sys.executable, "-c", KILLABLE, str(model), str(source), str(out), "0.2"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, env=environment) as process:
        deadline = time.monotonic() + 60
        while not any(shards.glob("000001*")) and time.monotonic() < deadline:
            assert process.poll() is None
            time.sleep(0.02)
        time.sleep(0.3)  # into the third shard
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    whole = {path.name: path.read_bytes() for path in shards.glob("0*.txt")}
    assert len(whole) == 2
    assert not out.exists()
    translator = load(model, "cpu")
    asked: list[str] = []
    ask = translator.hypotheses

    def noted(lines: list[str], **settings: Any) -> Iterator[Hypothesis]:
        asked.extend(lines)
        return ask(lines, **settings)

    translator.hypotheses = noted  # type: ignore[method-assign,assignment]
    distill(translator, model, source, out, shard_lines=3)
    assert asked == LINES[6:]
    assert out.read_text(encoding="utf-8") == "".join(f"{line}\n" for line in load(model, "cpu").translate(LINES))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "train.src"]


@pytest.fixture
def unfinished(model: Path, source: Path, tmp_path: Path) -> Path:
    """The output of a run that failed in its third shard."""
    out = tmp_path / "out"
    with pytest.raises(RuntimeError):
        run(Watched(load(model, "cpu"), fail_at="fa fa ba"), model, source, out, beam=2)
    return out


def test_other_settings_are_refused_and_nothing_is_touched(model: Path, source: Path, unfinished: Path) -> None:
    shards = Path(f"{unfinished}.shards")
    before = {path.name: path.read_bytes() for path in shards.iterdir()}
    told = refusal(Watched(load(model, "cpu")), model, source, unfinished, beam=3)
    assert told == (
        f"{shards}: holds an unfinished run that differs from this one in settings; "
        "repeat that command to finish it, or remove the folder to start over"
    )
    assert {path.name: path.read_bytes() for path in shards.iterdir()} == before


def test_a_setting_that_is_the_models_own_is_no_other(model: Path, source: Path, tmp_path: Path) -> None:
    translator, out = load(model, "cpu"), tmp_path / "out"
    with pytest.raises(RuntimeError):
        run(Watched(translator, fail_at="fa fa ba"), model, source, out)
    watched = Watched(translator)
    run(watched, model, source, out, beam=translator.info.decode.beam, batch_sentences=2)
    assert watched.asked == LINES[6:]


def test_another_model_is_refused(model: Path, source: Path, unfinished: Path, toy_run: Runs, tmp_path: Path) -> None:
    other = toy_run("CMLM") / "model"
    told = refusal(Watched(load(other, "cpu")), other, source, unfinished, beam=2)
    assert "differs from this one in model; repeat that command" in told
    retrained = Path(shutil.copytree(model, tmp_path / "retrained"))
    raw = bytearray((retrained / "model.safetensors").read_bytes())
    raw[-1] ^= 1
    (retrained / "model.safetensors").write_bytes(raw)
    told = refusal(Watched(load(retrained, "cpu")), retrained, source, unfinished, beam=2)
    assert "differs from this one in model; repeat that command" in told


def test_a_moved_model_and_source_are_the_same(model: Path, source: Path, unfinished: Path, tmp_path: Path) -> None:
    moved = Path(shutil.copytree(model, tmp_path / "moved"))
    watched = Watched(load(moved, "cpu"))
    run(watched, moved, source.rename(tmp_path / "elsewhere.src"), unfinished, beam=2)
    assert watched.asked == LINES[6:]


def test_lines_that_were_mended_meanwhile_are_translated_anew(model: Path, source: Path, unfinished: Path) -> None:
    mended = [*LINES[:4], "gu gu", *LINES[5:]]  # line 5, in the second shard
    source.write_text("".join(f"{line}\n" for line in mended), encoding="utf-8")
    watched = Watched(load(model, "cpu"))
    run(watched, model, source, unfinished, beam=2)
    assert watched.asked == mended[3:]
    lines = unfinished.read_text(encoding="utf-8").split("\n")
    assert [line.partition(":")[0] for line in lines] == [*(line.strip() for line in mended), ""]


def test_a_bad_setting_leaves_nothing_behind(model: Path, source: Path, tmp_path: Path) -> None:
    told = refusal(Watched(load(model, "cpu")), model, source, tmp_path / "out", beeam=2)
    assert told == "decode: unknown setting 'beeam' (did you mean 'beam'?)"
    assert [path.name for path in tmp_path.iterdir()] == ["train.src"]


def test_a_missing_source_leaves_nothing_behind(model: Path, tmp_path: Path) -> None:
    told = refusal(Watched(load(model, "cpu")), model, tmp_path / "nowhere", tmp_path / "out")
    assert told.startswith(f"{tmp_path / 'nowhere'}: no such file")
    assert list(tmp_path.iterdir()) == []


def test_bad_text_is_told_and_what_is_done_is_kept(model: Path, source: Path, tmp_path: Path) -> None:
    raw = source.read_bytes()
    source.write_bytes(raw.replace(b"sa\n", b"s\xff\n"))
    watched = Watched(load(model, "cpu"))
    assert f"{source}: line 6 is not valid UTF-8 (byte 2 of the line)" in refusal(
        watched, model, source, tmp_path / "out"
    )
    assert watched.asked == LINES[:3]
    source.write_bytes(raw)
    run(watched, model, source, tmp_path / "out")
    assert watched.asked == LINES


def test_existing_output_is_never_touched(model: Path, source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.write_text("mine\n", encoding="utf-8")
    told = refusal(Watched(load(model, "cpu")), model, source, out)
    assert told == f"{out}: exists already; choose another name or remove it"
    assert refusal(Watched(load(model, "cpu")), model, source, source).startswith(f"{source}: exists already")
    assert out.read_text(encoding="utf-8") == "mine\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "train.src"]


def test_a_folder_of_someone_else_is_never_touched(model: Path, source: Path, tmp_path: Path) -> None:
    """Shards are removed at the end, so they must never be put among other files."""
    (tmp_path / "out.shards").mkdir()
    (tmp_path / "out.shards" / "thesis.tex").write_text("mine", encoding="utf-8")
    told = refusal(Watched(load(model, "cpu")), model, source, tmp_path / "out")
    assert told == f"{tmp_path / 'out.shards'}: exists already; choose another name or remove it"
    assert (tmp_path / "out.shards" / "thesis.tex").read_text(encoding="utf-8") == "mine"


@pytest.mark.parametrize("ending", [".gz", ".xz"])
def test_a_packed_name_is_refused(model: Path, source: Path, tmp_path: Path, ending: str) -> None:
    out = tmp_path / f"out{ending}"
    told = refusal(Watched(load(model, "cpu")), model, source, out)
    assert told == f"{out}: the text is written unpacked; choose a name without {ending}"


# ---- an exported teacher -------------------------------------------------------------------------------------------


@pytest.fixture
def exported(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("ctranslate2", reason="the extra bench is not installed")
    out = tmp_path_factory.mktemp("exported") / "model"
    export(model, out)
    return out


def test_an_exported_teacher_writes_the_same(model: Path, exported: Path, source: Path, tmp_path: Path) -> None:
    for teacher in (model, exported):
        out = tmp_path / f"out-{teacher.parent.name}"
        assert distill(load(teacher, "cpu"), teacher, source, out, SHARD, beam=2, batch_sentences=2) == len(LINES)
    assert distill(load(exported), exported, source, tmp_path / "greedy", beam=1) == len(LINES)
    texts = [path.read_text(encoding="utf-8") for path in sorted(tmp_path.glob("out-*"))]
    assert texts[0] == texts[1] == "".join(f"{line}\n" for line in load(model, "cpu").translate(LINES, beam=2))
    assert (tmp_path / "greedy").read_text(encoding="utf-8").splitlines() == load(model, "cpu").translate(LINES, beam=1)


def test_an_exported_teacher_goes_on_after_a_failure(exported: Path, source: Path, tmp_path: Path) -> None:
    translator, out = load(exported), tmp_path / "out"
    with pytest.raises(RuntimeError, match="the machine went down"):
        run(Watched(translator, fail_at="fa fa ba"), exported, source, out)
    again = Watched(translator)
    run(again, exported, source, out)
    assert again.asked == LINES[6:]
    run(Watched(translator), exported, source, tmp_path / "straight")
    assert out.read_bytes() == (tmp_path / "straight").read_bytes()


def test_another_export_is_another_teacher(model: Path, exported: Path, source: Path, unfinished: Path) -> None:
    """Of other weights, or of the same ones in fewer bits: the shards of one are not continued by another."""
    told = refusal(Watched(load(exported)), exported, source, unfinished, beam=2)
    assert "differs from this one in model, precision; repeat that command" in told
    out = unfinished.with_name("other")
    with pytest.raises(RuntimeError):
        run(Watched(load(exported), fail_at="fa fa ba"), exported, source, out)
    small = exported.with_name("int8")
    export(model, small, quantization="int8")
    assert "differs from this one in model" in refusal(Watched(load(small)), small, source, out)
    assert "differs from this one in settings" in refusal(Watched(load(exported)), exported, source, out, beam=3)
    assert "unknown setting 'beeam'" in refusal(Watched(load(exported)), exported, source, out, beeam=3)


def test_large_batches_have_large_shards_to_choose_from(
    model: Path, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lath.distill.SHARD_LINES", 2)
    monkeypatch.setattr("lath.distill.READ_AHEAD", 2)
    translator, out = load(model, "cpu"), tmp_path / "out"
    with pytest.raises(RuntimeError, match="the machine went down"):
        distill(Watched(translator, fail_at="fa fa ba"), model, source, out, batch_sentences=2)  # type: ignore[arg-type]
    job = json.loads((tmp_path / "out.shards" / "job.json").read_text(encoding="utf-8"))
    assert job["shard size"] == 4
    second = Watched(translator)
    distill(second, model, source, out, batch_sentences=1)  # type: ignore[arg-type]
    assert second.asked == LINES[4:]  # it goes on with the shards that are there
