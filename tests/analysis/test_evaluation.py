"""`lath evaluate`: every figure is that of the sacrebleu command, and the output is as documented."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

import pytest
import sacrebleu

import lath
from lath.cli import main

Capsys = pytest.CaptureFixture[str]
WORDS = [
    "The",
    "house",
    "isn't",
    "red",
    "3.5",
    "km",
    "grüße",
    "café",
    "A&amp;B",
    "(old)",
    "well-known",
    "€20,000",
    "你好",
]
ENDS = [".", " .", "?", "!", "", "...", "  ", "\u00a0", "\u2028x", "\t", "\rx\r"]
MARK = "\ufeff"


def draw_lines(count: int, seed: int) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(0, 45))) + draw.choice(ENDS) for _ in range(count)]


def spoil(lines: list[str], rate: float, seed: int) -> list[str]:
    draw = random.Random(seed)
    return [" ".join("x" if draw.random() < rate else word for word in line.split(" ")) for line in lines]


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """A reference, a baseline and two systems: one hardly different, one better."""
    right = draw_lines(80, 1)
    texts = [right, spoil(right, 0.3, 2), spoil(right, 0.29, 3), spoil(right, 0.2, 4)]
    return [write(tmp_path / f"{name}.en", lines) for name, lines in zip("rabc", texts, strict=True)]


def write(path: Path, lines: list[str], mark: str = "", end: str = "\n") -> Path:
    path.write_bytes((mark + "".join(line + end for line in lines)).encode())
    return path


def command_line(*arguments: object) -> str:
    """What the sacrebleu command prints."""
    done = subprocess.run(
        [sys.executable, "-m", "sacrebleu", *map(str, arguments), "--quiet", "--no-color"],
        capture_output=True, check=True, env={**os.environ, "PYTHONWARNINGS": "ignore"},
    )  # fmt: skip
    return done.stdout.decode()


def tree_of(capsys: Capsys, *arguments: object) -> tuple[dict[str, Any], str]:
    """The object that `lath evaluate --json` prints, and its stderr."""

    def refuse(constant: str) -> NoReturn:
        raise AssertionError(f"{constant} is not JSON")

    assert main(["evaluate", "--json", *map(str, arguments)]) == 0
    out, err = capsys.readouterr()
    assert out.count("\n") == 1
    return json.loads(out, parse_constant=refuse), err


@pytest.mark.parametrize("seed", ["", "7"])
@pytest.mark.parametrize("tokenised", [False, True])
def test_the_paired_test_is_sacrebleus(
    files: list[Path], tokenised: bool, seed: str, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scores, means, intervals and p-values to the last digit, for BLEU, chrF and TER."""
    if seed:
        monkeypatch.setenv("SACREBLEU_SEED", seed)
    how = ["--tokenize", "none", "--force"] if tokenised else []
    given = [files[0], "-i", *files[1:], "--paired-bs", *how]
    tree, err = tree_of(capsys, *files, "--ter", *(["--tokenised"] if tokenised else []))
    assert err == ""
    for row, system in zip(json.loads(command_line(*given, "-m", "bleu")), tree["systems"], strict=True):
        found = system["bleu"]
        assert row["BLEU"] == {
            "score": found["value"], "p_value": found["p_value"], "mean": found["mean"], "ci": found["margin"]
        }  # fmt: skip
    p_values = [system[metric]["p_value"] for system in tree["systems"] for metric in ("bleu", "chrf", "ter")]
    assert p_values[:3] == [None] * 3
    assert max(p_values[3:6]) > 0.05 > max(p_values[6:])

    # Its JSON fails with chrF and TER ("float32 is not JSON serializable"), so here its table.
    table = command_line(*given, "-m", "bleu", "chrf", "ter", "-f", "text", "--width", 12)
    number = r"\d+\.\d+"
    figures = re.findall(rf"({number}) \(({number}) ± ({number})\)", table)
    ours = [system[metric] for system in tree["systems"] for metric in ("bleu", "chrf", "ter")]
    assert figures == [tuple(f"{found[key]:.12f}" for key in ("value", "mean", "margin")) for found in ours]
    assert re.findall(r"\(p = ([\d.]+)\)", table) == [f"{found['p_value']:.4f}" for found in ours[3:]]
    signatures = re.findall(r"^ - (\w+) +(nrefs:\S+)$", table, re.MULTILINE)
    names = ["tokenised BLEU" if tokenised else "BLEU", "chrF2", "TER"]
    assert [(found["metric"], found["signature"]) for found in ours[:3]] == [
        (name, signature) for name, (_, signature) in zip(names, signatures, strict=True)
    ]


@pytest.mark.parametrize("tokenised", [False, True])
@pytest.mark.parametrize(
    ("mark", "end", "right_mark"), [("", "\n", ""), ("", "\r\n", ""), (MARK, "\n", ""), (MARK, "\r\n", MARK)]
)
def test_one_file_scores_as_with_sacrebleu_whatever_its_line_ends_and_mark(
    tmp_path: Path, tokenised: bool, mark: str, end: str, right_mark: str, capsys: Capsys
) -> None:
    lines = ["The first line is here.", *draw_lines(40, 5)]
    right = write(tmp_path / "r.en", lines, right_mark)
    text = write(tmp_path / "a.en", [lines[0], *spoil(lines[1:], 0.2, 6)], mark, end)
    how = ["--tokenize", "none", "--force"] if tokenised else []
    printed = command_line(right, "-i", text, "-m", "bleu", "chrf", "ter", "--width", 12, *how)
    expected = {row["name"]: (row["score"], row["signature"]) for row in json.loads(printed)}
    tree, err = tree_of(capsys, right, text, "--ter", *(["--tokenised"] if tokenised else []))
    [system] = tree["systems"]
    found = {
        name: (round(system[metric]["value"], 12), system[metric]["signature"])
        for name, metric in (("BLEU", "bleu"), ("chrF2", "chrf"), ("TER", "ter"))
    }
    assert found == expected
    marked = [path for path, its in ((right, right_mark), (text, mark)) if its]
    assert [note.partition(": ")[0] for note in tree["notes"]] == [str(path) for path in marked]
    assert err == "".join(f"lath: note: {note}\n" for note in tree["notes"])


def test_repeats_and_buckets(tmp_path: Path, capsys: Capsys) -> None:
    right = write(tmp_path / "r.en", ["a b c d", "e f", "a a b c d e f g"])
    text = write(tmp_path / "a.en", ["a b c d", "e e", "a b c d e f g a"])
    given = (right, text, "--repeats", "--buckets", "--window", 1, "--edges", "9,2,5")
    tree, _ = tree_of(capsys, *given)
    assert (tree["window"], tree["buckets"]) == (1, {"edges": [2, 5, 9], "lines": [1, 1, 1, 0]})
    assert tree["reference"] == {"name": str(right), "lines": 3, "repeats": [100 / 14, 0, 0, 0]}
    [system] = tree["systems"]
    assert system["repeats"] == [100 / 14, 0, 0, 0]  # "e e" of 14 tokens
    assert system["repeat_rate"] == 100 / 14
    # All 8 words, 6 of 7 pairs, 5 of 6 triples, 4 of 5 quadruples
    assert system["buckets"][1:] == [pytest.approx(100), pytest.approx(100 * (4 / 7) ** 0.25), None]


def test_what_was_not_asked_for_is_null(files: list[Path], capsys: Capsys) -> None:
    tree, _ = tree_of(capsys, *files, "--samples", 0)
    assert set(tree) == {"format", "lath", "reference", "window", "buckets", "notes", "systems"}
    assert (tree["format"], tree["lath"], tree["window"], tree["buckets"]) == (1, lath.__version__, None, None)
    assert [system["name"] for system in tree["systems"]] == list(map(str, files[1:]))
    for system in tree["systems"]:
        assert set(system) == {
            "name", "bleu", "chrf", "ter", "tokens", "length_ratio", "repeat_rate", "repeats", "buckets"
        }  # fmt: skip
        assert (system["ter"], system["repeats"], system["buckets"]) == (None, None, None)
        assert [system["bleu"][key] for key in ("mean", "margin", "p_value")] == [None] * 3
        assert "bs:" not in system["bleu"]["signature"]


def test_empty_translations_have_finite_scores(tmp_path: Path, capsys: Capsys) -> None:
    right, text = write(tmp_path / "r.en", ["a b", "c"]), write(tmp_path / "a.en", ["", ""])
    tree, _ = tree_of(capsys, right, text, text, "--ter", "--repeats", "--buckets", "--tokenised")
    assert [system["bleu"]["value"] for system in tree["systems"]] == [0, 0]
    assert tree["notes"] == [f"{text}: the same text as {text}; its p-value means nothing"]


def test_the_table_of_one_system(tmp_path: Path, capsys: Capsys) -> None:
    right = write(tmp_path / "r.en", ["the cat sat down."])
    assert main(["evaluate", str(right), str(right), "--digits", "3"]) == 0
    version, width = f"version:{sacrebleu.__version__}", len(str(right))
    assert capsys.readouterr().out.splitlines() == [
        f"{'':{width}}     BLEU    chrF2  length  repeats %",
        f"{right}  100.000  100.000   1.000      0.000",
        "",
        f"BLEU|nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|{version}",
        f"chrF2|nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|{version}",
        "length (tokens per token of the reference), repeats (of the token before)|tok:13a",
    ]


def test_the_tables_show_the_figures_of_the_json(files: list[Path], capsys: Capsys) -> None:
    given = [*map(str, files), "--ter", "--repeats", "--buckets", "--edges", "5,60", "--samples", "50"]
    tree, _ = tree_of(capsys, *given)
    assert main(["evaluate", *given, "--digits", "4"]) == 0
    tables = capsys.readouterr().out.split("\n\n")
    scores, repeats, buckets, signatures = (table.splitlines() for table in tables)
    assert scores[0].split() == ["BLEU", "±", "p", "chrF2", "±", "p", "TER", "±", "p", "length", "repeats", "%"]
    for line, system in zip(scores[1:], tree["systems"], strict=True):
        found = [system[metric] for metric in ("bleu", "chrf", "ter")]
        cells = [
            f"{score[key]:.4f}" for score in found for key in ("value", "margin", "p_value") if score[key] is not None
        ]
        assert line.split() == [
            system["name"], *cells, f"{system['length_ratio']:.3f}", f"{system['repeat_rate']:.4f}"
        ]  # fmt: skip
    assert len({len(line) for line in scores}) == 1
    rates = [tree["reference"]["repeats"], *(system["repeats"] for system in tree["systems"])]
    assert [line.split()[1:] for line in repeats[1:]] == [[f"{rate:.4f}" for rate in row] for row in rates]
    assert buckets[0].startswith("BLEU by words of the reference")
    assert buckets[0].split()[-4:] == ["1-5", "6-60", "over", "60"]
    assert buckets[1].split() == ["lines", *map(str, tree["buckets"]["lines"])]
    assert tree["buckets"]["lines"][2] == 0
    for line, system in zip(buckets[2:], tree["systems"], strict=True):
        assert line.split() == [system["name"], *(f"{score:.4f}" for score in system["buckets"][:2])]
    assert signatures[-1] == f"±: 95 % interval; p: against {files[1]}; both by sacrebleu's paired bootstrap"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--digits", "99"], "--digits 99: give at most 15"),
        (["--digits", "-1"], "argument --digits: "),
        (["--samples", str(10**8)], f"samples: {10**8} is not between 1 and 1000000; 1000 is usual"),
        (["--samples", "x"], "argument --samples: 'x' is not a whole number of at least 1"),
        (["--window", "0"], "argument --window: '0' is not a whole number of at least 1"),
        (["--edges", "5,0"], "argument --edges: '0' is not a whole number of at least 1"),
    ],
)
def test_impossible_options(files: list[Path], arguments: list[str], message: str, capsys: Capsys) -> None:
    assert main(["evaluate", *map(str, files), *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(r"lath: error: [^\n]+\n", err)
    assert err.startswith(f"lath: error: {message}")
