"""A teacher translates a corpus: order and count, and a resume that neither loses nor repeats a line."""

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
from typing import Any, cast

import pytest
from conftest import Runs

from lath.config import DecodeOptions
from lath.decoding.results import Hypothesis
from lath.distillation import SHARD_LINES, _create, distill, distill_with
from lath.engine.export import export
from lath.errors import UserError
from lath.model.directory import read_info, write_info
from lath.translator import Translator, load

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
    """A translator that records what it is asked to translate, and can fail at a line."""

    def __init__(self, translator: Translator, fail_at: str | None = None) -> None:
        self.translator, self.info, self.fail_at = translator, translator.info, fail_at
        self.precision, self.settings = translator.precision, translator.settings
        self.asked: list[str] = []

    def hypotheses(self, lines: list[str], **options: Any) -> Iterator[Hypothesis]:
        for line, hypothesis in zip(lines, self.translator.hypotheses(lines, **options), strict=True):
            if line == self.fail_at:
                raise RuntimeError("the machine went down")
            self.asked.append(line)
            # The output contains its source line, so that a lost, repeated or swapped line is noticed.
            yield Hypothesis(f"{line.strip()}: {hypothesis.text}".strip(": "), hypothesis.score, hypothesis.iterations)


def run(watched: Watched, model: Path, source: Path, out: Path, shard: int | None = SHARD, **options: Any) -> int:
    return distill_with(cast(Translator, watched), model, source, out, cast(DecodeOptions, options), shard)


def refusal(*arguments: Any, **options: Any) -> str:
    with pytest.raises(UserError) as refused:
        run(*arguments, **options)
    return str(refused.value)


@pytest.mark.parametrize("shard_lines", [1, 3, len(LINES), SHARD_LINES])
def test_the_output_is_the_translation_line_by_line(
    model: Path, source: Path, tmp_path: Path, shard_lines: int
) -> None:
    translator = load(model, "cpu")
    out = tmp_path / "new" / "train.tgt"
    assert distill_with(translator, model, source, out, {"beam": 2}, shard_lines) == len(LINES)
    expected = translator.translate(LINES, split=False, beam=2)
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


def test_a_source_that_changes_meanwhile_is_reported_and_no_work_is_lost(
    model: Path, source: Path, tmp_path: Path
) -> None:
    class Meddling(Watched):
        def hypotheses(self, lines: list[str], **options: Any) -> Iterator[Hypothesis]:
            yield from super().hypotheses(lines, **options)
            if lines[-1] == LINES[-1]:
                source.write_text("".join(f"{line}!\n" for line in LINES), encoding="utf-8")

    translator, out, before = load(model, "cpu"), tmp_path / "train.tgt", source.read_bytes()
    assert refusal(Meddling(translator), model, source, out) == (
        f"{source}: changed during translation; run the same command again"
    )
    assert not out.exists()
    source.write_bytes(before)
    again = Watched(translator)
    run(again, model, source, out)
    assert again.asked == [], "all shards were whole, so they are only joined"
    run(Watched(translator), model, source, tmp_path / "straight")
    assert out.read_bytes() == (tmp_path / "straight").read_bytes()


def test_the_public_function_loads_the_model_itself(model: Path, source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert distill(str(model), str(source), str(out), device="cpu", engine="plain", beam=2) == len(LINES)
    expected = load(model, "cpu", engine="plain").translate(LINES, split=False, beam=2)
    assert out.read_text(encoding="utf-8") == "".join(f"{line}\n" for line in expected)
    with pytest.raises(UserError, match="unknown device 'gpu'"):
        distill(model, source, tmp_path / "other", device="gpu")


def test_compressed_text_without_a_final_newline_is_read(model: Path, source: Path, tmp_path: Path) -> None:
    compressed = tmp_path / "train.src.gz"
    compressed.write_bytes(gzip.compress(source.read_bytes().rstrip(b"\n").replace(b"\n", b"\r\n")))
    distill(model, source, tmp_path / "a", device="cpu")
    distill(model, compressed, tmp_path / "b", device="cpu")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert (tmp_path / "a").read_bytes().count(b"\n") == len(LINES)


def test_an_empty_corpus_stays_empty(model: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert distill(model, tmp_path / "empty", tmp_path / "out", device="cpu") == 0
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


KILLABLE = """
import sys, time
from pathlib import Path
from lath.distillation import distill_with
from lath.translator import load
model, source, out, pause = Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), float(sys.argv[4])
translator = load(model, "cpu")
ask = translator.hypotheses
def slowly(lines, **options):
    for hypothesis in ask(lines, **options):
        time.sleep(pause)
        yield hypothesis
translator.hypotheses = slowly
distill_with(translator, model, source, out, {}, shard_lines=3)
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
    watched = Watched(load(model, "cpu"))
    run(watched, model, source, out)
    assert watched.asked == LINES[6:]
    written = out.read_bytes().split(b"\n")
    expected = [text.encode() for text in load(model, "cpu").translate(LINES, split=False)]
    assert written[:6] == expected[:6]
    assert len(written) == len(LINES) + 1
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
    message = refusal(Watched(load(model, "cpu")), model, source, unfinished, beam=3)
    assert message == (
        f"{shards}: has an unfinished run that differs in settings; "
        "repeat the command of that run to finish it, or remove the folder to start over"
    )
    assert {path.name: path.read_bytes() for path in shards.iterdir()} == before


def test_a_setting_equal_to_the_models_own_is_no_change(model: Path, source: Path, tmp_path: Path) -> None:
    translator, out = load(model, "cpu"), tmp_path / "out"
    with pytest.raises(RuntimeError):
        run(Watched(translator, fail_at="fa fa ba"), model, source, out)
    watched = Watched(translator)
    run(watched, model, source, out, beam=translator.info.decode.beam, batch_sentences=2)
    assert watched.asked == LINES[6:]


def test_another_model_is_refused(model: Path, source: Path, unfinished: Path, toy_run: Runs, tmp_path: Path) -> None:
    other = toy_run("CMLM") / "model"
    message = refusal(Watched(load(other, "cpu")), other, source, unfinished, beam=2)
    assert "differs in model; repeat the command" in message
    retrained = Path(shutil.copytree(model, tmp_path / "retrained"))
    raw = bytearray((retrained / "model.safetensors").read_bytes())
    raw[-1] ^= 1
    (retrained / "model.safetensors").write_bytes(raw)
    write_info(retrained, read_info(retrained))
    message = refusal(Watched(load(retrained, "cpu")), retrained, source, unfinished, beam=2)
    assert "differs in model; repeat the command" in message


def test_a_moved_model_and_source_are_the_same(model: Path, source: Path, unfinished: Path, tmp_path: Path) -> None:
    moved = Path(shutil.copytree(model, tmp_path / "moved"))
    watched = Watched(load(moved, "cpu"))
    run(watched, moved, source.rename(tmp_path / "elsewhere.src"), unfinished, beam=2)
    assert watched.asked == LINES[6:]


def test_lines_that_were_fixed_meanwhile_are_translated_again(model: Path, source: Path, unfinished: Path) -> None:
    fixed = [*LINES[:4], "gu gu", *LINES[5:]]  # line 5, in the second shard
    source.write_text("".join(f"{line}\n" for line in fixed), encoding="utf-8")
    watched = Watched(load(model, "cpu"))
    run(watched, model, source, unfinished, beam=2)
    assert watched.asked == fixed[3:]
    lines = unfinished.read_text(encoding="utf-8").split("\n")
    assert [line.partition(":")[0] for line in lines] == [*(line.strip() for line in fixed), ""]


def test_a_bad_setting_leaves_nothing_behind(model: Path, source: Path, tmp_path: Path) -> None:
    message = refusal(Watched(load(model, "cpu")), model, source, tmp_path / "out", beeam=2)
    assert message == "decode: unknown setting 'beeam' (did you mean 'beam'?)"
    assert [path.name for path in tmp_path.iterdir()] == ["train.src"]


def test_a_missing_source_leaves_nothing_behind(model: Path, tmp_path: Path) -> None:
    message = refusal(Watched(load(model, "cpu")), model, tmp_path / "nowhere", tmp_path / "out")
    assert message.startswith(f"{tmp_path / 'nowhere'}: no such file")
    assert list(tmp_path.iterdir()) == []


def test_bad_text_is_reported_and_finished_work_is_kept(model: Path, source: Path, tmp_path: Path) -> None:
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
    message = refusal(Watched(load(model, "cpu")), model, source, out)
    assert message == f"{out}: exists already; choose another name or remove it"
    assert refusal(Watched(load(model, "cpu")), model, source, source).startswith(f"{source}: exists already")
    assert out.read_text(encoding="utf-8") == "mine\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "train.src"]


def test_a_folder_of_someone_else_is_never_touched(model: Path, source: Path, tmp_path: Path) -> None:
    """The shard folder is removed at the end, so it must not contain other files."""
    (tmp_path / "out.shards").mkdir()
    (tmp_path / "out.shards" / "thesis.tex").write_text("mine", encoding="utf-8")
    message = refusal(Watched(load(model, "cpu")), model, source, tmp_path / "out")
    assert message == f"{tmp_path / 'out.shards'}: exists already; choose another name or remove it"
    assert (tmp_path / "out.shards" / "thesis.tex").read_text(encoding="utf-8") == "mine"


@pytest.mark.parametrize("ending", [".gz", ".xz"])
def test_a_compressed_output_is_refused(model: Path, source: Path, tmp_path: Path, ending: str) -> None:
    out = tmp_path / f"out{ending}"
    message = refusal(Watched(load(model, "cpu")), model, source, out)
    assert message == f"{out}: the output is written uncompressed; choose a name without {ending}"


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
        assert distill(teacher, source, out, device="cpu", beam=2, batch_sentences=2) == len(LINES)
    assert distill(exported, source, tmp_path / "greedy", beam=1) == len(LINES)
    texts = [path.read_text(encoding="utf-8") for path in sorted(tmp_path.glob("out-*"))]
    assert (
        texts[0]
        == texts[1]
        == "".join(f"{line}\n" for line in load(model, "cpu").translate(LINES, split=False, beam=2))
    )
    assert (tmp_path / "greedy").read_text(encoding="utf-8").splitlines() == load(model, "cpu").translate(
        LINES, split=False, beam=1
    )


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
    """With other weights or another quantisation, the shards of one are not continued by the other."""
    message = refusal(Watched(load(exported)), exported, source, unfinished, beam=2)
    assert "differs in model, precision, settings; repeat the command" in message
    out = unfinished.with_name("other")
    with pytest.raises(RuntimeError):
        run(Watched(load(exported), fail_at="fa fa ba"), exported, source, out)
    small = exported.with_name("int8")
    export(model, small, quantization="int8")
    assert "differs in model" in refusal(Watched(load(small)), small, source, out)
    assert "differs in settings" in refusal(Watched(load(exported)), exported, source, out, beam=3)
    assert "unknown setting 'beeam'" in refusal(Watched(load(exported)), exported, source, out, beeam=3)


def test_large_batches_have_large_shards_to_choose_from(
    model: Path, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lath.distillation.SHARD_LINES", 2)
    monkeypatch.setattr("lath.distillation.READ_AHEAD", 2)
    translator, out = load(model, "cpu"), tmp_path / "out"
    with pytest.raises(RuntimeError, match="the machine went down"):
        run(Watched(translator, fail_at="fa fa ba"), model, source, out, shard=None, batch_sentences=2)
    job = json.loads((tmp_path / "out.shards" / "job.json").read_text(encoding="utf-8"))
    assert job["shard size"] == 4
    second = Watched(translator)
    run(second, model, source, out, shard=None, batch_sentences=1)
    assert second.asked == LINES[4:]  # existing shards are kept


def test_where_near_ties_may_depend_on_the_batch_an_unfinished_run_keeps_its_size(
    model: Path, source: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    with pytest.raises(RuntimeError, match="the machine went down"):
        run(Watched(load(model, "cpu", "bf16"), fail_at="fa fa ba"), model, source, out, shard=2, batch_sentences=2)
    assert "differs in settings" in refusal(Watched(load(model, "cpu", "bf16")), model, source, out, batch_sentences=1)


def test_an_output_that_another_process_has_just_finished_is_named(tmp_path: Path) -> None:
    """It removes its folder after it has written the output: what is left of the folder is not the reason."""
    out, shards = tmp_path / "out", tmp_path / "out.shards"
    shards.mkdir()
    with pytest.raises(UserError, match=r"out\.shards: exists already"):
        _create(shards, {}, out)
    out.write_text("done\n", encoding="utf-8")
    with pytest.raises(UserError, match="out: exists already"):
        _create(shards, {}, out)
