"""The command line: every verb end to end, exit codes, and mistakes reported on one line with nothing left behind."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import pty
import re
import select
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Runs

import lath.model.bundled
import lath.model.compress
import lath.model.directory
import lath.preparation
import lath.training.checkpoints
import lath.translator
from lath.analysis.settings import BenchSettings, EvaluateSettings
from lath.cli import build_parser, main, verb_parsers
from lath.config import CompressSettings, TrainSettings, load_recipe, to_tree
from lath.engine.settings import ExportSettings, ShortlistSettings

ROOT = Path(__file__).parents[1]
VERBS = (
    "init", "prepare", "train", "distill", "average", "shortlist", "compress", "pair", "export",
    "translate", "serve", "evaluate", "analyse", "reproduce", "bench", "show",
)  # fmt: skip
Capsys = pytest.CaptureFixture[str]
NOT_CHECKED = re.compile(r"^lath: warning: the languages of the text are not checked: xx, yy: .*\n")
"""What `lath prepare` says of the toy languages, which nobody can identify."""


def ok(capsys: Capsys, *arguments: object) -> str:
    """Run a command that succeeds; returns stdout. stderr is empty, because it is not a terminal here."""
    code = main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    assert (code, NOT_CHECKED.sub("", err)) == (0, "")
    return out


def refused(capsys: Capsys, *arguments: object) -> str:
    """Run a command that fails with exit code 2; returns its message, which is one line on stderr."""
    code = main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    err = NOT_CHECKED.sub("", err)
    assert (code, out) == (2, "")
    assert re.fullmatch(r"lath: error: [^\n]+\n", err)
    return err[len("lath: error: ") : -1]


@contextlib.contextmanager
def nothing_left_behind(folder: Path) -> Iterator[None]:
    """Every file in the folder, hidden ones too, is as before."""

    def contents() -> dict[Path, bytes | None]:
        return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}

    before = contents()
    yield
    assert contents() == before


def environment(**extra: str) -> dict[str, str]:
    """For a process of its own, whose output is buffered as it is for users."""
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return {**plain, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **extra}


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "lath", *(str(argument) for argument in arguments)]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def recipe(toy_folder: Path, tmp_path: Path) -> Path:
    """A recipe for the toy language: twelve steps of a tiny LAT."""
    path = tmp_path / "toy.toml"
    path.write_text(
        f"""
[data]
source_language = "xx"
target_language = "yy"
train_source = "{toy_folder}/train.src"
train_target = "{toy_folder}/train.tgt"
valid_source = "{toy_folder}/valid.src"
valid_target = "{toy_folder}/valid.tgt"
max_length = 30

[vocab]
size = 350

[network]
width = 16
heads = 2
feedforward = 16
encoder_layers = 1
decoder_layers = 1
max_positions = 64

[train]
steps = 12
step_tokens = 200
micro_batch_tokens = 2000
warmup_steps = 4
validate_every = 4
keep_best = 2
log_every = 1
""",
        encoding="utf-8",
    )
    return path


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "news.src"
    path.write_text("ba ko mi\n\ngu du\n", encoding="utf-8")
    return path


# ---- every verb ---------------------------------------------------------------------------------------------------


def test_from_text_to_scores(recipe: Path, toy_folder: Path, tmp_path: Path, capsys: Capsys) -> None:
    data, run = tmp_path / "data", tmp_path / "run"
    report = ok(capsys, "prepare", recipe, data).splitlines()
    assert report[0] == f"{data}: xx -> yy"
    assert report[1] == "  vocabulary  350 source and 350 target entries"
    assert report[2].startswith("  train       3,000 pairs, 0 left out; ")
    assert [line.split()[:3] for line in ok(capsys, "show", data).splitlines()[1:3]] == [
        ["train", "3,000", "pairs,"],
        ["valid", "100", "pairs,"],
    ]

    assert ok(capsys, "train", recipe, data, run, "--device", "cpu") == f"{run / 'model'}\n"
    assert load_recipe(run / "recipe.toml") == load_recipe(recipe)
    assert ok(capsys, "show", run).splitlines()[-1] == "  finished"

    best = ok(capsys, "average", run, tmp_path / "best", "--best", 1)
    assert re.fullmatch(r"step (4|8|12): validation loss \d+\.\d{4}\n", best)
    assert ok(capsys, "show", tmp_path / "best").startswith("# xx to yy, LAT, pieces of 3\n")

    sources = (toy_folder / "valid.src").read_text(encoding="utf-8").splitlines()[:20]
    (tmp_path / "test.src").write_text("".join(f"{line}\n" for line in [*sources, ""]), encoding="utf-8")
    translated = ok(capsys, "translate", run / "model", tmp_path / "test.src", "--set", "decode.iterations=2")
    expected = lath.translator.load(run / "model", "cpu").translate([*sources, ""], iterations=2)
    raw = lath.translator.load(run / "model", "cpu").translate([*sources, ""], split=False, iterations=2)
    assert translated == "".join(f"{line}\n" for line in expected)

    out = tmp_path / "distilled"
    assert ok(capsys, "distill", run / "model", tmp_path / "test.src", out, "--set", "decode.iterations=2") == (
        f"{out}: 21 lines\n"
    )
    assert out.read_text(encoding="utf-8") == "".join(f"{line}\n" for line in raw)


def test_the_vocabulary_of_another_directory(recipe: Path, toy_folder: Path, tmp_path: Path, capsys: Capsys) -> None:
    ok(capsys, "prepare", recipe, tmp_path / "new", "--vocab-from", toy_folder / "data", "--set", "vocab.size=9")
    assert (tmp_path / "new" / "vocab.model").read_bytes() == (toy_folder / "data" / "vocab.model").read_bytes()


def test_a_run_can_be_prolonged(recipe: Path, toy_folder: Path, tmp_path: Path, capsys: Capsys) -> None:
    data, run = toy_folder / "data", tmp_path / "run"
    ok(capsys, "train", recipe, data, run, "--set", "train.steps=4")
    ok(capsys, "train", recipe, data, run, "--set", "train.steps=6", "--resume")
    log = [json.loads(line) for line in (run / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [entry["step"] for entry in log if "loss" in entry] == [1, 2, 3, 4, 5, 6]
    assert "6 updates" in ok(capsys, "show", run / "model")


def test_translate_from_standard_input(toy_run: Runs, text: Path) -> None:
    """In a process of its own: a pipe, buffered output, line ends of Windows, and not a word on stderr."""
    model = toy_run("CMLM") / "model"
    raw = text.read_bytes().replace(b"\n", b"\r\n")
    done = subprocess.run(command("translate", model), input=raw, capture_output=True, env=environment(), check=False)
    expected = lath.translator.load(model, "cpu").translate(["ba ko mi", "", "gu du"])
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode() == "".join(f"{line}\n" for line in expected)


def test_a_line_on_an_open_pipe_is_answered_at_once() -> None:
    """Before the next line comes; within a second, once the first line has warmed the model up."""
    process = subprocess.Popen(
        command("translate", "de-en", "--device", "cpu"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment(),
    )
    assert process.stdin is not None
    assert process.stdout is not None
    waited = []
    with process:
        for line in ("Guten Morgen.", "Wie geht es dir?", "", "Das Wetter ist schön. Wir gehen spazieren.", "Danke."):
            began = time.monotonic()
            process.stdin.write(f"{line}\n".encode())
            process.stdin.flush()
            ready, _, _ = select.select([process.stdout], [], [], 60)
            assert ready, f"no answer to {line!r} while the pipe is open"
            assert bool(process.stdout.readline().strip()) == bool(line)
            waited.append(time.monotonic() - began)
    assert process.returncode == 0
    assert statistics.median(waited[1:]) < 1


def test_translate_from_a_terminal(toy_run: Runs) -> None:
    """Without a message it would look as if it hung."""
    model = toy_run("CMLM") / "model"
    screen, keyboard = pty.openpty()
    try:
        os.write(screen, b"ba ko mi\ngu du\n\x04")  # Ctrl-D once
        done = subprocess.run(
            command("translate", model), stdin=keyboard, capture_output=True, env=environment(), check=False, timeout=60
        )
    finally:
        os.close(screen)
        os.close(keyboard)
    prompts = done.stderr.decode()
    assert (done.returncode, prompts.splitlines()[0]) == (
        0,
        "Type a line and press Enter to translate it; Ctrl-D ends.",
    )
    assert prompts.splitlines()[1].startswith("xx> ")
    expected = lath.translator.load(model, "cpu").translate(["ba ko mi", "gu du"])
    assert done.stdout.decode() == "".join(f"{line}\n" for line in expected)


def test_a_terminal_that_is_not_read_is_not_mentioned(
    toy_run: Runs, text: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal())
    model = toy_run("CMLM") / "model"
    assert len(ok(capsys, "translate", model, text).splitlines()) == 3
    refused(capsys, "translate", model, "--set", "decode.iterations=0")  # before any input is read


@pytest.fixture
def bundled(toy_run: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of bundled models: de-en, a compressed LAT. The current directory is empty."""
    folder = tmp_path / "models"
    lath.model.compress.compress(toy_run("LAT") / "model", folder / "de-en", "int8")
    monkeypatch.setattr(lath.model.bundled, "FOLDERS", (tmp_path / "none", folder))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return folder


def test_a_bundled_model_by_name(bundled: Path, text: Path, tmp_path: Path, capsys: Capsys) -> None:
    model = bundled / "de-en"
    translated = ok(capsys, "translate", model, text)
    assert len(translated.splitlines()) == 3
    assert ok(capsys, "translate", "de-en", text) == translated
    assert ok(capsys, "distill", "de-en", text, tmp_path / "out") == f"{tmp_path / 'out'}: 3 lines\n"
    assert (tmp_path / "out").read_text(encoding="utf-8") == translated
    assert ok(capsys, "show", "de-en") == ok(capsys, "show", model)
    assert ok(capsys, "show", "de-en", "ba ko") == ok(capsys, "show", model, "ba ko")
    with nothing_left_behind(tmp_path):
        for arguments in (["translate"], ["translate", text], ["distill", text, "new"], ["show"], ["bench", text]):
            verb, *rest = arguments
            assert refused(capsys, verb, "de-em", *rest) == (
                "de-em: no such file or directory, and no bundled model (did you mean 'de-en'?) (bundled: de-en); "
                "give the path of a model directory, for example runs/demo/model"
            )
    shutil.copytree(model, "de-en")  # a path takes precedence over a name
    (Path("de-en") / "README.md").write_text("mine\n", encoding="utf-8")
    assert ok(capsys, "show", "de-en").startswith("mine\n")


def test_a_bundled_model_is_benched_by_name(bundled: Path, toy_folder: Path, few_batches: None, capsys: Capsys) -> None:
    assert bundled.is_dir()
    options = ["--sentences", 5, "--repeats", 1, "--batches", 2, "--lengths", 2, "--device", "cpu"]
    assert "de-en" in ok(capsys, "bench", "de-en", toy_folder / "valid.src", *options)


def test_translate_needs_no_model(bundled: Path, text: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    translated = ok(capsys, "translate", "de-en", text)
    assert ok(capsys, "translate", text) == translated  # a file is a text, because models are directories
    assert ok(capsys, "translate", text, "--set", "decode.iterations=4") == translated
    assert ok(capsys, "translate", "--device", "cpu", text) == translated
    for arguments in ([], ["-"], ["de-en"], ["de-en", "-"], [bundled / "de-en"]):
        with text.open(encoding="utf-8") as stream, monkeypatch.context() as patch:
            patch.setattr(sys, "stdin", stream)
            assert ok(capsys, "translate", *arguments) == translated
    Path("de-en").mkdir()  # the default model is the bundled one, not this
    assert ok(capsys, "translate", text) == translated


def test_a_model_and_a_text_in_the_wrong_places(bundled: Path, text: Path, capsys: Capsys) -> None:
    assert refused(capsys, "translate", text, bundled / "de-en") == (
        f"{text}: a text file, not a model; give the model first, then one text: lath translate de-en {text}"
    )
    for missing in ("nwes.src", "Guten Morgen.", "runs/none"):
        assert refused(capsys, "translate", missing) == (
            f"{missing}: no such file or model directory; translate a file with lath translate FILE, "
            "a sentence with lath translate --text SENTENCE"
        )
    assert refused(capsys, "show", "de-en", text) == (
        f"{text}: a file, not a sentence; give the sentence in quotes, "
        f"or translate the file with lath translate de-en {text}"
    )
    assert "Translation:" in ok(capsys, "show", "de-en", "lang " * 60)  # too long for the name of a file
    assert refused(capsys, "translate", "runs/none", text) == (
        "runs/none: no such model directory; `lath train` writes one as RUN/model"
    )


def test_translate_without_a_model_where_none_is_bundled(
    text: Path, tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lath.model.bundled, "FOLDERS", (tmp_path / "none",))
    for arguments in ([], [text]):
        assert refused(capsys, "translate", *arguments) == (
            "no model given, and this installation does not have the default model de-en; "
            "name a model directory: lath translate MODEL FILE"
        )


def test_a_model_is_compressed(toy_run: Runs, text: Path, tmp_path: Path, capsys: Capsys) -> None:
    model, out = toy_run("LAT") / "model", tmp_path / "small"
    sizes = re.fullmatch(rf"{model}: (\d+\.\d\d) MB\n{out}: (\d+\.\d\d) MB\n", ok(capsys, "compress", model, out))
    assert sizes
    before, after = (sum(path.stat().st_size for path in d.iterdir()) / 1e6 for d in (model, out))
    assert float(sizes[1]) == pytest.approx(before, abs=0.006)
    assert float(sizes[2]) == pytest.approx(after, abs=0.006)
    assert after < before
    assert len(ok(capsys, "translate", out, text).splitlines()) == 3
    assert ok(capsys, "show", out) == ok(capsys, "show", model)
    ok(capsys, "compress", model, tmp_path / "half", "--storage", "fp16")
    with nothing_left_behind(tmp_path):
        assert refused(capsys, "compress", model, out) == f"{out}: exists already; choose another name or remove it"
        assert refused(capsys, "compress", out, tmp_path / "again").startswith(
            f"{out}: already compressed as int8, and "
        )
        assert refused(capsys, "compress", tmp_path / "half", tmp_path / "again").startswith(
            f"{tmp_path / 'half'}: already compressed as fp16, and rounding the weights twice loses quality; "
        )
        assert refused(capsys, "compress", model, tmp_path / "again", "--storage", "int4") == (
            "unknown storage 'int4' (did you mean 'int8'?); use coded, int8 or fp16"
        )


def test_a_compressed_model_is_exported(toy_run: Runs, text: Path, tmp_path: Path, capsys: Capsys) -> None:
    pytest.importorskip("ctranslate2", reason="the extra bench is not installed")
    small, out = tmp_path / "small", tmp_path / "exported"
    ok(capsys, "compress", toy_run("AT") / "model", small)
    ok(capsys, "export", small, out)
    assert ok(capsys, "translate", out, text) == ok(capsys, "translate", small, text)
    assert refused(capsys, "compress", out, tmp_path / "again") == (
        f"{out}: an exported model cannot be compressed; name the model directory it came from"
    )


def test_an_exported_model_is_a_model(toy_run: Runs, toy_folder: Path, tmp_path: Path, capsys: Capsys) -> None:
    pytest.importorskip("ctranslate2", reason="the extra bench is not installed")
    model, out, text = toy_run("AT") / "model", tmp_path / "exported", toy_folder / "valid.src"
    assert ok(capsys, "export", model, out, "--to", "ctranslate2") == f"{out}\n"
    expected = ok(capsys, "translate", model, text, "--set", "decode.beam=2")
    assert ok(capsys, "translate", out, text, "--set", "decode.beam=2") == expected
    assert ok(capsys, "distill", out, text, tmp_path / "out", "--set", "decode.beam=2") == (
        f"{tmp_path / 'out'}: 100 lines\n"
    )
    assert (tmp_path / "out").read_text(encoding="utf-8") == expected
    assert ok(capsys, "show", out) == ok(capsys, "show", model)
    assert ok(capsys, "show", out, "ba ko") == ok(capsys, "show", model, "ba ko")
    ok(capsys, "export", model, tmp_path / "int8", "--quantization", "int8")
    assert len(ok(capsys, "translate", tmp_path / "int8", text).splitlines()) == 100


def test_an_engine_by_name(toy_run: Runs, text: Path, tmp_path: Path, capsys: Capsys) -> None:
    model = toy_run("LAT") / "model"
    expected = ok(capsys, "translate", model, text)
    assert ok(capsys, "translate", model, text, "--engine", "plain", "--device", "cpu") == expected
    out = tmp_path / "out"
    assert ok(capsys, "distill", model, text, out, "--engine", "plain", "--device", "cpu") == f"{out}: 3 lines\n"
    assert out.read_text(encoding="utf-8") == expected
    for verb, inputs in (("translate", [text]), ("distill", [text, tmp_path / "other"])):
        assert refused(capsys, verb, model, *inputs, "--engine", "quick") == (
            "unknown engine 'quick'; use auto, plain or recorded"
        )


def test_show_a_translation_step_by_step(toy_run: Runs, capsys: Capsys) -> None:
    shown = ok(capsys, "show", toy_run("LAT") / "model", "ba ko mi", "--set", "decode.iterations=2")
    assert "\nPass 1 of 2\n    0 <mask> " in shown
    assert "\x1b" not in shown  # no terminal, no colour
    (translation,) = lath.translator.load(toy_run("LAT") / "model", "cpu").translate(["ba ko mi"], iterations=2)
    assert shown.endswith(f"\nTranslation: {translation}\n")
    assert "No passes to show" in ok(capsys, "show", toy_run("AT") / "model", "ba ko mi")


def test_show_draws_the_passes_of_a_sentence(toy_run: Runs, tmp_path: Path, capsys: Capsys) -> None:
    model, plain = toy_run("LAT") / "model", ok(capsys, "show", toy_run("LAT") / "model", "ba ko")
    assert ok(capsys, "show", model, "ba ko", "--plot", tmp_path / "merge.svg") == plain
    drawn = (tmp_path / "merge.svg").read_text(encoding="utf-8")
    assert drawn.startswith("<svg ")
    assert ">Pass 4 of 4<" in drawn
    assert refused(capsys, "show", model, "ba ko", "--plot", tmp_path / "merge.png").endswith(
        "merge.png: the picture of a sentence is written as SVG; use a name that ends in .svg"
    )


@pytest.mark.parametrize(
    ("settings", "coloured"),
    [({}, True), ({"NO_COLOR": ""}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)],
)
def test_show_uses_the_colours_and_the_width_of_a_terminal(
    toy_run: Runs, monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], coloured: bool
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in {"TERM": "xterm", "COLUMNS": "40", **settings}.items():
        monkeypatch.setenv(name, value)
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys, "stdout", terminal)
    assert main(["show", str(toy_run("LAT") / "model"), "ba ko mi"]) == 0
    assert ("\x1b[1m" in terminal.getvalue()) == coloured
    passes = re.sub(r"\x1b\[[\d;]*m", "", terminal.getvalue()).split("Pass 1 of 4\n")[1]
    assert max(len(line) for line in passes.splitlines() if "<mask>" in line) <= 40


def test_show_draws_the_losses_of_a_run(toy_run: Runs, tmp_path: Path, capsys: Capsys) -> None:
    pytest.importorskip("matplotlib")
    shown = ok(capsys, "show", toy_run("LAT"), "--plot", tmp_path / "curve.png")
    assert shown.startswith(f"{toy_run('LAT')}: LAT, 20 steps\n")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    model = toy_run("LAT") / "model"
    assert refused(capsys, "show", model, "--plot", tmp_path / "other.png") == (
        f"{model}: not a training run, so it has no losses to plot; name a run directory of lath train"
    )


def test_show_a_recipe_with_changes(recipe: Path, capsys: Capsys) -> None:
    shown = json.loads(ok(capsys, "show", recipe, "--set", "network.kind=AT", "--set", "train.seed=5"))
    assert (shown["network"]["kind"], shown["train"]["seed"], shown["train"]["steps"]) == ("AT", 5, 12)


# ---- help ---------------------------------------------------------------------------------------------------------


def test_every_verb_is_there() -> None:
    assert tuple(verb_parsers(build_parser())) == VERBS


@pytest.mark.parametrize("verb", VERBS)
def test_help_starts_with_an_example_that_works(verb: str, capsys: Capsys) -> None:
    first = ok(capsys, verb, "--help").splitlines()[0]
    assert first.startswith(f"Example: lath {verb} ")
    words = shlex.split(first.removeprefix("Example: lath ").partition(" > ")[0])
    assert callable(build_parser().parse_args(words).run)


@pytest.mark.parametrize(
    ("verb", "inputs", "settings"),
    [
        ("average", 2, {"best": TrainSettings.keep_best}),
        ("shortlist", 2, to_tree(ShortlistSettings())),
        ("compress", 2, to_tree(CompressSettings())),
        ("export", 2, to_tree(ExportSettings())),
        ("bench", 2, {**to_tree(BenchSettings()), "overrides": []}),
        ("evaluate", 2, to_tree(EvaluateSettings())),
    ],
)
def test_defaults_are_those_of_the_settings(verb: str, inputs: int, settings: dict[str, Any]) -> None:
    parser = verb_parsers(build_parser())[verb]
    parsed = vars(parser.parse_intermixed_args(["x"] * inputs))
    assert {name: parsed[name] for name in settings} == settings
    text = " ".join(parser.format_help().split())
    for name, value in settings.items():
        shown = ",".join(map(str, value)) if isinstance(value, tuple) else value
        if value not in (None, False, []):
            assert re.search(rf"--{name.replace('_', '-')} [^-]*\(default: {shown}\)", text), name


def test_no_verb_prints_the_help(capsys: Capsys) -> None:
    general = ok(capsys)
    assert general == ok(capsys, "--help")
    assert re.findall(r"^    ([a-z]+)\b", general, re.MULTILINE) == list(VERBS)
    assert ok(capsys, "--version") == f"lath {lath.__version__}\n"


def test_mistakes_are_answered_at_once(tmp_path: Path) -> None:
    """Without the seconds that torch takes to import."""
    check = "import sys, lath.cli; code = lath.cli.main(); sys.exit(99 if 'torch' in sys.modules else code)"
    for arguments in (["trian"], ["translate", "de-em"], ["prepare", "nowhere.toml", "out"], ["train", "--help"]):
        started = [sys.executable, "-c", check, *arguments]
        done = subprocess.run(started, env=environment(), cwd=tmp_path, capture_output=True, check=False)
        assert done.returncode == (0 if "--help" in arguments else 2)


# ---- mistakes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trian"], "unknown verb 'trian' (did you mean 'train'?); see lath --help"),
        (["translat"], "unknown verb 'translat' (did you mean 'translate'?); see lath --help"),
        (["zzz"], "unknown verb 'zzz'; see lath --help"),
        (["distill"], "the following arguments are required: model, source, out (see lath distill --help)"),
        (["train", "a", "b"], "the following arguments are required: run (see lath train --help)"),
        (["--"], "unrecognized arguments: -- (see lath --help)"),
        (["show", "x", "--frobnicate"], "unrecognized arguments: --frobnicate (see lath show --help)"),
        (
            ["average", "a", "b", "--best", "0"],
            "argument --best: '0' is not a whole number of at least 1 (see lath average --help)",
        ),
        (
            ["average", "a", "b", "--best", "-1"],
            "argument --best: '-1' is not a whole number of at least 1 (see lath average --help)",
        ),
        (
            ["average", "a", "b", "--best", "two"],
            "argument --best: 'two' is not a whole number of at least 1 (see lath average --help)",
        ),
    ],
)
def test_a_mistyped_command(capsys: Capsys, arguments: list[str], message: str) -> None:
    assert refused(capsys, *arguments) == message


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.stpes=5", "toy.toml: train: unknown setting 'stpes' (did you mean 'steps'?)"),
        ("trian.steps=5", "toy.toml: unknown setting 'trian' (did you mean 'train'?)"),
        ("steps=5", "--set steps=5: write it as section.key=value, for example --set train.steps=100"),
        ("train.steps", "--set train.steps: write it as section.key=value, for example --set train.steps=100"),
        ("train.steps=many", "toy.toml: train: steps: expected a whole number, got 'many'"),
        ("network.kind=NAT", "toy.toml: network: kind: 'NAT' is not one of AT, CMLM, LAT (did you mean 'AT'?)"),
        ("train.steps=0", "toy.toml: train: steps must be 1 to 1000000000"),
    ],
)
def test_a_wrong_setting(recipe: Path, tmp_path: Path, capsys: Capsys, override: str, message: str) -> None:
    with nothing_left_behind(tmp_path):
        for verb in (["prepare", recipe, tmp_path / "out"], ["train", recipe, tmp_path / "data", tmp_path / "out"]):
            assert refused(capsys, *verb, "--set", override) == message


def test_a_wrong_recipe(tmp_path: Path, capsys: Capsys) -> None:
    path, out = tmp_path / "wmt14.toml", tmp_path / "out"
    path.write_text("[train]\nstpes = 5\n", encoding="utf-8")
    with nothing_left_behind(tmp_path):
        assert refused(capsys, "prepare", path, out) == (
            "wmt14.toml: train: unknown setting 'stpes' (did you mean 'steps'?)"
        )
        assert refused(capsys, "prepare", tmp_path / "no.toml", out) == (
            f"{tmp_path / 'no.toml'}: no such recipe (did you mean 'roen.toml'?); write one with lath init, "
            "or name a bundled one, for example tatoeba.toml"
        )
        assert refused(capsys, "prepare", tmp_path, out).startswith(f"{tmp_path}: ")
        assert refused(capsys, "prepare", path / "deeper.toml", out).startswith(f"{path / 'deeper.toml'}: ")
    path.write_text("[train\n", encoding="utf-8")
    assert refused(capsys, "show", path).startswith(f"{path}: not valid TOML: ")
    path.write_text("[train]\nsteps = 5\n", encoding="utf-8")
    assert refused(capsys, "prepare", path, out) == (
        "data.train_source is not set; name the text file under [data] in the recipe, "
        "or with --set data.train_source=FILE"
    )


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(recipe: Path, tmp_path: Path, capsys: Capsys) -> None:
    recipe.chmod(0)
    assert "Permission denied" in refused(capsys, "prepare", recipe, tmp_path / "out")


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (
            b"ba\nko\nmi\n",
            "{source} has 3 lines but {target} has 2: line n of one must be the translation of line n of the other; "
            "fix or re-export the files",
        ),
        (
            b"ba\nk\xe4o\n",
            "{source}: line 2 is not valid UTF-8 (byte 2 of the line); "
            "convert it to UTF-8, for example with iconv -f LATIN1 -t UTF-8",
        ),
        (
            b"ba\nk\0o\n",
            "{source}: line 2 contains a NUL byte, so this is not plain text; convert it to UTF-8, for example with "
            "iconv -f UTF-16 -t UTF-8, or remove the NUL bytes with tr -d '\\000'",
        ),
        (None, "{source}: no such file; check the path (it is relative to the current directory)"),
    ],
    ids=["lengths", "encoding", "nul", "missing"],
)
def test_bad_training_text(recipe: Path, tmp_path: Path, capsys: Capsys, raw: bytes | None, expected: str) -> None:
    source, target = tmp_path / "bad.src", tmp_path / "good.tgt"
    target.write_bytes(b"ark\noak\n")
    if raw is not None:
        source.write_bytes(raw)
    settings = ["--set", f"data.train_source={source}", "--set", f"data.train_target={target}"]
    with nothing_left_behind(tmp_path):
        message = refused(capsys, "prepare", recipe, tmp_path / "out", *settings)
        assert message == expected.format(source=source, target=target)


def test_no_training_text_is_left_after_the_filters(
    recipe: Path, toy_folder: Path, tmp_path: Path, capsys: Capsys
) -> None:
    source, target = tmp_path / "x.src", tmp_path / "x.tgt"
    source.write_text("\n" + "ba " * 50 + "\nba\n", encoding="utf-8")
    target.write_text("ark\n" + "ark " * 50 + "\n" + "ark " * 20 + "\n", encoding="utf-8")
    settings = ["--set", f"data.train_source={source}", "--set", f"data.train_target={target}"]
    with nothing_left_behind(tmp_path):
        message = refused(capsys, "prepare", recipe, tmp_path / "out", *settings, "--vocab-from", toy_folder / "data")
    assert message == (
        f"no usable pair in {source} and {target}: 0 pairs, 3 left out (1 empty, 1 too long, 1 ratio); "
        "0 source and 0 target tokens; check the text, data.max_length 30 and data.max_ratio 3.0"
    )


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"ba\nk\xe4o\n", "line 2 is not valid UTF-8 (byte 2 of the line)"),
        (b"ba\nk\0o\n", "line 2 contains a NUL byte"),
        (None, "no such file"),
    ],
    ids=["encoding", "nul", "missing"],
)
def test_bad_text_to_translate(toy_run: Runs, tmp_path: Path, capsys: Capsys, raw: bytes | None, message: str) -> None:
    path = tmp_path / "bad.src"
    if raw is not None:
        path.write_bytes(raw)
    assert refused(capsys, "translate", toy_run("AT") / "model", path).startswith(f"{path}: {message}")
    assert refused(capsys, "translate", toy_run("AT") / "model", tmp_path) == (
        f"{tmp_path}: is a directory; name a text file (plain, .gz or .xz)"
    )


def test_text_of_different_length_to_evaluate(tmp_path: Path, capsys: Capsys) -> None:
    reference, first, second = (tmp_path / name for name in ("ref", "first", "second"))
    for path, lines in ((reference, 3), (first, 3), (second, 2)):
        path.write_text("ba\n" * lines, encoding="utf-8")
    assert refused(capsys, "evaluate", reference, first, second) == (
        f"{reference} has 3 lines but {second} has 2: line n of one must be the translation of line n of the other; "
        "fix or re-export the files"
    )
    reference.write_text("", encoding="utf-8")
    assert refused(capsys, "evaluate", reference, reference).startswith("nothing to evaluate")


@pytest.mark.parametrize("verb", ["translate", "distill", "show"])
@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda d: shutil.rmtree(d), "{d}: no such model directory; `lath train` writes one as RUN/model"),
        (
            lambda d: (d / "model.safetensors").write_bytes((d / "model.safetensors").read_bytes()[:-9]),
            "{d}/model.safetensors: damaged or not a safetensors file (",
        ),
        (
            lambda d: (d / "config.json").write_text('{"model_type": "marian"}', encoding="utf-8"),
            "{d}/config.json: not written by lath; a model directory comes from `lath train` or `lath average`",
        ),
    ],
    ids=["missing", "truncated", "foreign"],
)
def test_a_bad_model(
    model_copy: Path, text: Path, tmp_path: Path, capsys: Capsys, verb: str, spoil: Callable[[Path], Any], message: str
) -> None:
    spoil(model_copy)
    rest = {"translate": [text], "distill": [text, tmp_path / "out"], "show": ["ba ko"]}[verb]
    with nothing_left_behind(tmp_path):
        assert refused(capsys, verb, model_copy, *rest).startswith(message.format(d=model_copy))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("decode.iteratons=4", "decode: unknown setting 'iteratons' (did you mean 'iterations'?)"),
        ("decode.iterations=0", "decode: iterations must be 1 to 1000"),
        (
            "train.steps=4",
            "--set train...: a trained model only has decoding settings; use for example decode.iterations=1",
        ),
    ],
)
def test_a_wrong_setting_for_a_model(
    toy_run: Runs, text: Path, tmp_path: Path, capsys: Capsys, override: str, message: str
) -> None:
    model = toy_run("LAT") / "model"
    with nothing_left_behind(tmp_path):
        assert refused(capsys, "translate", model, text, "--set", override) == message
        assert refused(capsys, "distill", model, text, tmp_path / "out", "--set", override) == message
        assert refused(capsys, "show", model, "ba", "--set", override) == message


def test_a_device_that_is_not_there(recipe: Path, toy_run: Runs, text: Path, tmp_path: Path, capsys: Capsys) -> None:
    message = "unknown device 'gpu'; use cpu, cuda or auto"
    with nothing_left_behind(tmp_path):
        assert refused(capsys, "translate", toy_run("AT") / "model", text, "--device", "gpu") == message
        assert refused(capsys, "train", recipe, tmp_path / "data", tmp_path / "run", "--device", "gpu") == message


def test_what_cannot_be_exported(
    toy_run: Runs, text: Path, tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ctranslate2", reason="the extra bench is not installed")
    model, out = toy_run("AT") / "model", tmp_path / "out"
    with nothing_left_behind(tmp_path):
        assert refused(capsys, "export", toy_run("LAT") / "model", out).startswith(
            f"{toy_run('LAT') / 'model'}: a LAT model, but CTranslate2 runs autoregressive models (AT) only; "
        )
        assert refused(capsys, "export", toy_run("AT"), out).startswith(f"{toy_run('AT')}: ")
        assert refused(capsys, "export", tmp_path / "none", out) == (
            f"{tmp_path / 'none'}: no such model directory; `lath train` writes one as RUN/model"
        )
        assert refused(capsys, "export", model, out, "--to", "onnx") == "unknown format 'onnx'; use ctranslate2"
        assert refused(capsys, "export", model, out, "--quantization", "int9") == (
            "unknown quantization 'int9' (did you mean 'int8'?); use float32, float16 or int8"
        )
        assert refused(capsys, "export", model, text) == f"{text}: exists already; choose another name or remove it"
    ok(capsys, "export", model, out)
    with nothing_left_behind(tmp_path):
        assert refused(capsys, "export", out, tmp_path / "again") == (
            f"{out}: already exported; name the model directory it came from"
        )
        assert refused(capsys, "translate", out, text, "--precision", "bf16").startswith(
            f"{out}: an exported model has the precision it was exported with; "
        )
        monkeypatch.setitem(sys.modules, "ctranslate2", None)
        missing = "exported models need the package ctranslate2: pip install 'lath[bench]'"
        assert refused(capsys, "export", model, tmp_path / "again") == missing
        assert refused(capsys, "translate", out, text) == missing
        assert refused(capsys, "distill", out, text, tmp_path / "distilled") == missing


def test_what_exists_is_never_overwritten(
    recipe: Path, toy_folder: Path, toy_run: Runs, text: Path, tmp_path: Path, capsys: Capsys
) -> None:
    out = tmp_path / "mine"
    out.mkdir()
    (out / "thesis.tex").write_text("mine", encoding="utf-8")
    exists = f"{out}: exists already; choose another name or remove it"
    with nothing_left_behind(tmp_path):
        assert refused(capsys, "prepare", recipe, out) == exists
        assert refused(capsys, "train", recipe, toy_folder / "data", out) == (
            f"{out}: exists already; add --resume to continue it, or choose another name"
        )
        assert refused(capsys, "average", toy_run("AT"), out) == exists
        assert refused(capsys, "distill", toy_run("AT") / "model", text, out) == exists


def test_a_directory_of_the_wrong_sort(
    recipe: Path, toy_folder: Path, toy_run: Runs, text: Path, tmp_path: Path, capsys: Capsys
) -> None:
    data, run, out = toy_folder / "data", toy_run("LAT"), tmp_path / "out"
    with nothing_left_behind(tmp_path):
        assert refused(capsys, "translate", data, text) == (
            f"{data}: neither a model nor a run directory, it has no config.json"
        )
        assert refused(capsys, "translate", run, text) == f"{run}: a training run, not a model; use {run / 'model'}"
        assert refused(capsys, "train", recipe, run, out) == (
            f"{run}: no data.json; name a directory written by lath prepare"
        )
        assert refused(capsys, "average", data, out) == (
            f"{data}: neither a model nor a run directory, it has no config.json"
        )
        assert refused(capsys, "average", run / "model", out).startswith(f"{run / 'model'}: ")


def test_a_run_is_resumed_with_its_own_recipe_only(
    recipe: Path, toy_folder: Path, tmp_path: Path, capsys: Capsys
) -> None:
    data, run = toy_folder / "data", tmp_path / "run"
    ok(capsys, "train", recipe, data, run, "--set", "train.steps=2")
    with nothing_left_behind(tmp_path):
        changes = ["--set", "train.learning_rate=0.1", "--set", "network.width=32", "--set", "train.steps=5"]
        assert refused(capsys, "train", recipe, data, run, "--resume", *changes) == (
            f"{run}: was started with a different network.width, learning_rate; resume with the recipe it was started "
            f"with ({run / 'recipe.toml'}), or start a new run"
        )
        assert refused(capsys, "train", recipe, data, tmp_path / "other", "--resume") == (
            f"{tmp_path / 'other'}: not a run directory, so it cannot be resumed; remove --resume to start a new run"
        )


# ---- a full disk, a reader gone away, a defect ---------------------------------------------------------------------


def full(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_while_preparing(
    recipe: Path, tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lath.preparation, "save_vocabs", full)
    with nothing_left_behind(tmp_path):
        assert refused(capsys, "prepare", recipe, tmp_path / "out") == (
            f"disk full while writing {tmp_path / 'out'}: free some space and run the same command again"
        )


def test_a_full_disk_while_saving_a_checkpoint_loses_no_other(
    recipe: Path, toy_folder: Path, tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, run = toy_folder / "data", tmp_path / "run"
    save, saved = lath.training.checkpoints.save_tensors, []

    def save_some(weights: Any, path: Path) -> None:
        saved.append(path)
        full() if len(saved) > 3 else save(weights, path)  # the second checkpoint's optimiser

    monkeypatch.setattr(lath.training.checkpoints, "save_tensors", save_some)
    message = refused(capsys, "train", recipe, data, run)
    where = run / "checkpoints" / "step-8"
    assert message == f"disk full while writing {where}: free some space and run the same command again"
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["step-4"]
    monkeypatch.setattr(lath.training.checkpoints, "save_tensors", save)
    ok(capsys, "train", recipe, data, run, "--resume")
    log = [json.loads(line) for line in (run / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [entry["step"] for entry in log if "loss" in entry] == list(range(1, 13))


def test_a_full_disk_while_averaging_compressing_or_distilling(
    toy_run: Runs, text: Path, tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    with nothing_left_behind(tmp_path), monkeypatch.context() as patch:
        patch.setattr(lath.model.directory, "save_tensors", full)
        assert refused(capsys, "average", toy_run("AT"), out) == (
            f"disk full while writing {out}: free some space and run the same command again"
        )
    with nothing_left_behind(tmp_path), monkeypatch.context() as patch:
        patch.setattr(lath.model.compress, "save_tensors", full)
        assert refused(capsys, "compress", toy_run("AT") / "model", out) == (
            f"disk full while writing {out}: free some space and run the same command again"
        )
    with monkeypatch.context() as patch:
        patch.setattr(lath.translator.Translator, "hypotheses", full)
        message = refused(capsys, "distill", toy_run("AT") / "model", text, out)
        assert message.startswith("disk full while writing ")
    assert not out.exists()
    ok(capsys, "distill", toy_run("AT") / "model", text, out)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_behind_standard_output(text: Path, unbuffered: str) -> None:
    # argparse itself swallows the error of an unbuffered --help.
    for arguments in (["evaluate", text, text], *([] if unbuffered else [["--help"]])):
        with open("/dev/full", "wb") as stream:
            done = subprocess.run(
                command(*arguments), stdout=stream, stderr=subprocess.PIPE, check=False,
                env=environment(PYTHONUNBUFFERED=unbuffered),
            )  # fmt: skip
        assert done.stderr.decode() == (
            "lath: error: disk full while writing standard output: free some space and run the same command again\n"
        )
        assert done.returncode == 2


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_goes_away_is_no_mistake(text: Path, unbuffered: str) -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        command("evaluate", text, text), stdout=write, stderr=subprocess.PIPE, check=False,
        env=environment(PYTHONUNBUFFERED=unbuffered),
    )  # fmt: skip
    os.close(write)
    assert (done.returncode, done.stderr) == (0, b"")


def test_output_is_utf_8_whatever_the_locale(tmp_path: Path) -> None:
    path = tmp_path / "grüße.en"
    path.write_text("ba ko\n", encoding="utf-8")
    done = subprocess.run(
        command("evaluate", path, path), capture_output=True, env=environment(PYTHONIOENCODING="ascii"), check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode("utf-8").splitlines()[1].startswith(str(path))


def test_a_defect_is_not_hidden(toy_run: Runs, text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr("lath.decoding.decoder.decode", broken)
    with pytest.raises(ZeroDivisionError, match="ours"):
        main(["translate", str(toy_run("AT") / "model"), str(text)])


# ---- progress ------------------------------------------------------------------------------------------------------


def test_progress_is_shown_on_a_terminal_only(
    toy_run: Runs, text: Path, tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = toy_run("CMLM") / "model"
    quiet = ok(capsys, "translate", model, text)
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    assert main(["translate", str(model), str(text)]) == 0
    assert capsys.readouterr().out == quiet
    assert "translating:" in terminal.getvalue()
    assert "/3 [" in terminal.getvalue()
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    assert main(["distill", str(model), str(text), str(tmp_path / "out")]) == 0
    assert "distilling:" in terminal.getvalue()
    # Where the translations themselves are on the screen, a bar would only get between them.
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    monkeypatch.setattr(sys, "stdout", screen := Terminal())
    assert main(["translate", str(model), str(text)]) == 0
    assert (screen.getvalue(), terminal.getvalue()) == (quiet, "")


# ---- Ctrl-C --------------------------------------------------------------------------------------------------------


def test_an_interrupted_verb_exits_with_130(
    toy_run: Runs, text: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("lath.decoding.decoder.decode", interrupted)
    assert main(["translate", str(toy_run("AT") / "model"), str(text)]) == 130
    assert capsys.readouterr() == ("", "lath: interrupted\n")


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_training_is_saved_at_ctrl_c_and_goes_on(
    recipe: Path, toy_folder: Path, tmp_path: Path, capsys: Capsys
) -> None:
    data, run, log = toy_folder / "data", tmp_path / "run", tmp_path / "run" / "log.jsonl"
    arguments = ["train", recipe, data, run, "--set", "train.validate_every=1000"]
    endless = command(*arguments, "--set", "train.steps=100000")
    with subprocess.Popen(endless, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        wait_for(lambda: log.is_file() and log.read_bytes().count(b"\n") >= 3, process)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, b"")
    stopped = re.fullmatch(
        r"lath: stopped at step (\d+) and saved; run the same command with --resume to continue\n", err.decode()
    )
    assert stopped
    step = int(stopped[1])
    assert [path.name for path in (run / "checkpoints").iterdir()] == [f"step-{step}"]
    assert not (run / "model").exists()
    assert ok(capsys, "show", run).endswith("unfinished; continue with lath train ... --resume\n")
    assert "no validated checkpoint yet" in refused(capsys, "average", run, tmp_path / "model")
    ok(capsys, *arguments, "--set", f"train.steps={step + 2}", "--resume")
    entries = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    assert [entry["step"] for entry in entries if "loss" in entry] == list(range(1, step + 3))
    assert (run / "model" / "model.safetensors").is_file()


def test_translation_ends_quietly_at_ctrl_c(toy_run: Runs) -> None:
    arguments = command("translate", toy_run("CMLM") / "model", "--set", "decode.batch_sentences=1")
    with subprocess.Popen(
        arguments, env=environment(PYTHONUNBUFFERED="1"),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        # A shell lets what it runs in the background ignore Ctrl-C, and its children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"ba ko\n" * 1000)  # and the stream stays open
        process.stdin.flush()
        lines = [process.stdout.readline() for _ in range(3)]
        try:
            process.send_signal(signal.SIGINT)
            rest, err = process.communicate(timeout=30)
        finally:
            process.kill()  # a failure must not leave the stream open for ever
    assert (process.returncode, err) == (130, b"lath: interrupted\n")
    assert set(lines) | set(rest.splitlines(keepends=True)) == {lines[0]}  # whole lines to the end


def test_inputs_and_options_may_come_in_any_order(
    toy_run: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "text"
    text.write_text("ba ko\n", encoding="utf-8")
    model = str(toy_run("LAT") / "model")
    option, file = ["--device", "cpu"], str(text)
    printed = []
    for arguments in ([model, file, *option], [model, *option, file], [*option, model, file]):
        assert main(["translate", *arguments]) == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1] == printed[2] != ""
