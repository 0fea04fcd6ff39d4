"""The benchmark scripts run, and end in one line of JSON. What they measure is for people to read."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import Runs

ROOT = Path(__file__).parents[1]


def last_line(*arguments: object) -> dict[str, Any]:
    command = [sys.executable, *map(str, arguments)]
    output = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert output.count("|---") >= 1 or output.count("\n") > 4, "a table comes before the JSON"
    result: dict[str, Any] = json.loads(output.splitlines()[-1])
    return result


def test_merging() -> None:
    told = last_line("benchmarks/merge.py", "--sentences", 3, "--repeats", 2)
    assert {row["pieces"] for row in told["rows"]} == {10, 30, 100}
    assert all(row["official"] > 0 and row["paper"] > 0 for row in told["rows"])


@pytest.mark.parametrize("kind", ["AT", "LAT"])
def test_training(toy_folder: Path, kind: str) -> None:
    small = {"network.width": 16, "network.heads": 2, "network.feedforward": 16, "network.encoder_layers": 1,
             "network.decoder_layers": 1, "train.step_tokens": 300, "train.micro_batch_tokens": 400}  # fmt: skip
    changes = [word for name, value in small.items() for word in ("--set", f"{name}={value}")]
    told = last_line("benchmarks/train.py", toy_folder / "data", "--kinds", kind, "--engines", "plain", "--steps", 2,
                     "--device", "cpu", *changes)  # fmt: skip
    (row,) = told["rows"]
    assert row["kind"] == kind
    assert row["tokens_per_second"] > 0
    assert 0 <= row["padding"] < 1
    assert row["mfu"] is None


def test_distilling(toy_folder: Path) -> None:
    pytest.importorskip("ctranslate2", reason="the extra bench is not installed")
    small = ["--layers", 1, "--width", 16, "--vocabulary", 300, "--tokens", 5]
    told = last_line("benchmarks/distill.py", toy_folder / "train.src", "--lines", 8, "--join", 2, "--batches", 4,
                     "--repeats", 1, *small)  # fmt: skip
    assert [row["system"] for row in told["rows"]] == ["lath fp32", "ctranslate2 float32", "ctranslate2 int8"]
    assert [row["same_lines"] for row in told["rows"][:2]] == [8, 8]
    assert all(row["lines_per_second"] > 0 for row in told["rows"])


def test_splitting() -> None:
    told = last_line("benchmarks/split.py", "de", "docs/runs/splitter/hard.de.txt", "--repeats", 1)
    scores = {row["splitter"]: row["f1"] for row in told["rows"]}
    assert scores["lath (sentencex, corrected)"] > scores["sentencex"] > 0.9


@pytest.mark.parametrize("files", [(), ("demo/tatoeba.valid.de",)])
def test_protecting(files: tuple[str, ...]) -> None:
    result = last_line("benchmarks/protect.py", "de-en", *files, "--texts", 4)
    assert (result["texts"], result["wrong"]) == (4, 0)
    assert result["ratio"] > 0
    assert result["tokens"] > 1


def test_starting() -> None:
    result = last_line("benchmarks/startup.py", "de-en", "--file", "docs/runs/splitter/hard.de.txt", "--repeats", 1)
    torch, line, file = result["rows"]
    assert 0 < torch["cpu"] < line["cpu"] < file["cpu"]
    # 34 million weights take 68 MB in int8, with the copies that are prepared for products, and 33 MB of token vectors.
    assert 100 < line["peak_mb"] - torch["peak_mb"] < 225
    assert file["peak_mb"] - torch["peak_mb"] < 570  # torch alone takes 230 MB or, if built for CUDA, 660


def test_paragraphs() -> None:
    text = ("demo/tatoeba.test.de", "demo/tatoeba.test.en")
    result = last_line("benchmarks/paragraphs.py", "de-en", *text, "--paragraphs", 3, "--sentences", 2)
    assert (result["paragraphs"], result["alike"]) == (3, 3)
    assert result["joined"] == result["one_by_one"] > 0


def test_inline_tags() -> None:
    result = last_line("benchmarks/inline.py", "de-en", "demo/tatoeba.test.de", "--sentences", 8)
    assert (result["sentences"], result["lost"]) == (8, 0)
    assert result["same"] >= 6
    assert result["bleu"] > 90
    assert result["ratio"] > 0


@pytest.mark.parametrize("flags", [(), ("--no-ter",)])
def test_analysing(flags: tuple[str, ...]) -> None:
    sides = ("demo/tatoeba.test.en", "--source", "demo/tatoeba.test.de")
    result = last_line("benchmarks/analyse.py", *sides, "--lines", 20, "--systems", 2, *flags)
    assert (result["lines"], result["systems"], result["ter"]) == (20, 2, not flags)
    assert len(set(result["bleu"])) == 2
    assert all(10 < bleu < 95 for bleu in result["bleu"])
    assert result["cpu"] > 0
    assert 100 < result["largest_mb"] < 800
    assert result["together_mb"] > 0.5 * result["largest_mb"]


def test_threads() -> None:
    result = last_line("benchmarks/threads.py", "de-en", "demo/tatoeba.test.de", "--sentences", 1, "--turns", 1)
    assert all(result[load] > 0 for load in ("quiet", "busy"))


def test_serve(toy_run: Runs, toy_folder: Path) -> None:
    pytest.importorskip("fastapi", reason="the extra serve is not installed")
    few = ("--requests", 8, "--clients", 4, "--rates", 20, "--seconds", 0.4, "--servers", "batches")
    result = last_line("benchmarks/serve.py", toy_run("LAT") / "model", toy_folder / "valid.src", *few)
    assert [row["load"] for row in result["rows"]] == ["1 clients", "4 clients", "20/s"]
    assert all(row["speed"] > 0 and row["wrong"] == row["refused"] == 0 for row in result["rows"])


def test_serve_mixed_and_refused(toy_run: Runs, toy_folder: Path) -> None:
    pytest.importorskip("fastapi", reason="the extra serve is not installed")
    given = ("benchmarks/serve.py", toy_run("LAT") / "model", toy_folder / "valid.src")
    result = last_line(*given, "--mixed", 60, "--clients", 8, "--requests", 20)
    assert (result["requests"], result["lost"], result["wrong"]) == (60, 0, 0)
    assert 50 < result["before_mb"] < 2000
    refused = last_line(*given, "--refusals")["refusals"]
    assert len(refused) == 6
    assert all(0 < row["ms"] <= row["most_ms"] for row in refused)


def test_verifying(toy_folder: Path, toy_run: Runs) -> None:
    told = last_line("benchmarks/verify.py", toy_run("LAT") / "model", toy_run("AT") / "model",
                     toy_folder / "valid.src", toy_folder / "valid.tgt", "--lines", 20, "--drafts", 1, 2,
                     "--tops", 3, "--nats", 1, "--device", "cpu")  # fmt: skip
    rows = {row["system"]: row for row in told["rows"]}
    assert rows["AT greedy"]["same"] == rows["LAT-1, exact"]["same"] == rows["LAT-2, exact"]["same"] == 20
    assert rows["LAT-2, 5 lengths, rerank"]["at_passes"] == 1
    assert all(row["bleu"] >= 0 and row["tokens_a_round"] > 0 for row in told["rows"])
