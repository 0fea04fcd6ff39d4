"""Hostile text: one line out for each line in, none of them broken, and bounded time and memory. Seeded and bounded."""

from __future__ import annotations

import gzip
import json
import lzma
import math
import os
import random
import subprocess
import sys
import unicodedata
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Runs, Translators

from lath.decoding.results import Decoded
from lath.errors import UserError
from lath.files import MAX_LINE, count_lines, json_line, read_lines
from lath.text.vocab import SPECIALS
from lath.translator import Translator, load

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
KINDS = ("AT", "CMLM", "LAT")


def broken(text: str) -> bool:
    """Whether a text would be more than one line to some reader, or holds another control character."""
    return len(text.splitlines()) > 1 or any(unicodedata.category(c) in ("Cc", "Zl", "Zp", "Cs") for c in text)


ALPHABETS = [
    "".join(map(chr, range(0x20))), "".join(map(chr, range(0x7F, 0xA1))), "\u2028\u2029\u0085\x0b\x0c\x1c\x1d\x1e\r\n",
    "\ud800\udbff\udc00\udfff\udc80\udcff", "\u0300\u0301\u0327\u0489\u20dd\u1ab0", "אבגد\u200f\u202e\u2066\u061cنص",
    "\u200b\u200c\u200d\u2060\ufeff\u00ad\u180e", "👩\u200d👧🏽🇩🇪🇺\U000e0067\U000e007f✊🏿\ufe0f",
    "漢字かなカナ한글。、！", "ßẞİıǅﬁ℀①",
    "\ufffd\uffff\U0010ffff\ufdd0\U000f0000", "▁<0x0A><s></s><mask><pad><unk>@@ </w>", "bakomituresaloni ",
    ".,;:!?-–—…\"'»«()[]{}",
    "0123456789٠१², ", "\u00a0\u2003\u3000\t  ", "".join(map(chr, range(0x1D400, 0x1D420))), "ไทยภาษา", "हिन्दी।", "\0",
]  # fmt: skip


def hostile_lines(count: int, longest: int, seed: int) -> list[str]:
    """Lines from one to three alphabets, a few of them very long."""
    draw = random.Random(seed)
    lines = []
    for number in range(count):
        alphabet = "".join(draw.choices(ALPHABETS, k=draw.randint(1, 3)))
        length = draw.randint(longest * 5, longest * 20) if number % 50 == 49 else draw.randint(0, longest)
        lines.append("".join(draw.choices(alphabet, k=length)))
    return lines


def assert_one_for_one(translator: Translator, lines: list[str], **options: Any) -> None:
    hypotheses = list(translator.hypotheses(lines, **options))
    assert len(hypotheses) == len(lines)
    assert [h.text for h in hypotheses if broken(h.text)] == []
    assert all(not h.text.strip() for h, line in zip(hypotheses, lines, strict=True) if not line.strip())
    empty = [h.score == -math.inf for h in hypotheses]  # some part of it, which ranks last among candidates
    assert all(math.isfinite(h.score) or none for h, none in zip(hypotheses, empty, strict=True))
    assert json.loads(json_line([h.score for h in hypotheses])).count(None) == sum(empty)


@pytest.mark.parametrize("kind", KINDS)
def test_a_toy_model_takes_any_text(trained: Translators, kind: str) -> None:
    options = {"beam": 1} if kind == "AT" else {"iterations": 1}
    assert_one_for_one(trained(kind), hostile_lines(250, 30, seed=KINDS.index(kind)), **options)


def test_the_bundled_model_takes_any_text() -> None:
    assert_one_for_one(load("de-en", "cpu"), hostile_lines(100, 25, seed=9), iterations=1)


class Scribbler:
    """A decoder that writes any tokens, bytes most of all."""

    def __init__(self, size: int) -> None:
        self.draw, self.size = random.Random(5), size

    def decode(self, source: torch.Tensor, settings: Any, trace: bool = False) -> list[Decoded]:
        sizes = (len(SPECIALS) + 256, self.size)  # the bytes come first
        return [
            Decoded([self.draw.randrange(self.draw.choice(sizes)) for _ in range(self.draw.randint(0, 60))], 0.0, 1)
            for _ in source
        ]


def test_whatever_a_model_writes_is_one_line(trained: Translators) -> None:
    translator = trained("LAT").with_decoder(Scribbler(trained("LAT").target_vocab.size))
    raw = [translator.target_vocab.decode([id]) for id in range(translator.target_vocab.size)]
    assert sum(map(broken, raw)) > 30, "this vocabulary can spell control characters"
    assert_one_for_one(translator, ["ba"] * 3000)


NO_TEXTS: list[Any] = [
    None,
    1,
    1.5,
    float("nan"),
    b"ba",
    ["ba"],
    ("ba",),
    {},
    object(),
    True,
    [["ba"]],
    10**5000,
]


@pytest.mark.parametrize("number", range(len(NO_TEXTS)))
def test_an_item_that_is_no_text_is_named(trained: Translators, number: int) -> None:
    with pytest.raises(UserError, match=r"^translate: item 2 is .{1,100}, not a text; give a list of texts$"):
        trained("LAT").translate(["ba", NO_TEXTS[number]])


@pytest.mark.parametrize("lines", [None, 1, b"ba", True, object()])
def test_what_is_no_list_is_refused(trained: Translators, lines: Any) -> None:
    with pytest.raises(UserError, match=r"^translate takes a list of lines, not .*; write translate\(\[text\]\)$"):
        trained("LAT").translate(lines)


# ---- long lines ----------------------------------------------------------------------------------------------------


def zeros(path: Path) -> None:
    with {".gz": gzip.open, ".xz": lzma.open}.get(path.suffix, open)(path, "wb") as stream:
        for _ in range(64):
            stream.write(bytes(1 << 20))


BOUNDED = """
import resource, sys
from pathlib import Path
from lath.files import read_lines
from lath.errors import UserError
resource.setrlimit(resource.RLIMIT_DATA, (64 << 20,) * 2)
try:
    list(read_lines(Path(sys.argv[1])))
except UserError as error:
    print(error)
"""


@pytest.mark.parametrize("name", ["/dev/zero", "-", "bomb.gz", "bomb.xz"])
def test_a_line_without_end_is_refused_in_little_memory(tmp_path: Path, name: str) -> None:
    """64 MiB of zeros in a file of a few KB, or no end at all."""
    path = name if name in ("/dev/zero", "-") else str(tmp_path / name)
    if path.endswith(("gz", "xz")):
        zeros(Path(path))
        assert Path(path).stat().st_size < 1 << 17
    with open("/dev/zero", "rb") as endless:
        done = subprocess.run([sys.executable, "-c", BOUNDED, path], stdin=endless, capture_output=True, text=True,
                              env=ENVIRONMENT, timeout=60)  # fmt: skip
    assert done.stdout.startswith(f"{path}: line 1 is longer than {MAX_LINE} bytes; give a text file"), done.stderr


def test_the_bound_of_a_line(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"one\n" + b"a" * (MAX_LINE - 1) + b"\nthree")
    assert [len(line) for line in read_lines(path)] == [3, MAX_LINE - 1, 5]
    assert count_lines(path) == 3
    path.write_bytes(b"one\n" + b"a" * (2 * MAX_LINE + 2) + b"\nthree")
    for read in (lambda path: list(read_lines(path)), count_lines):
        with pytest.raises(UserError, match=f"text: line [12] is longer than {MAX_LINE} bytes"):
            read(path)


LONGEST = """
import json, resource, sys, time
from lath.decoding.results import Decoded
from lath.files import MAX_LINE
from lath.translator import load
class Echo:
    def decode(self, source, settings, trace=False):
        return [Decoded([token for token in row if token > 5], 0.0, 1) for row in source.tolist()]
translator = load(sys.argv[1], "cpu").with_decoder(Echo())
units = {"one word": "bakomi", "dots": "."}
def memory():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
translator.translate(["ba ko " * 2000])
found = {}
before = memory()
for name, unit in units.items():
    line = (unit * (MAX_LINE // len(unit)))[: MAX_LINE // len(unit[:1].encode())]
    found[name] = []
    for part in (line[: len(line) // 4], line):
        start = time.process_time()
        translator.translate([part])
        found[name].append(time.process_time() - start)
print(json.dumps([found, memory() - before]))
"""


def test_the_longest_line_takes_linear_time_and_little_memory(toy_run: Runs) -> None:
    """All but the network: a line of 1 MiB without a place to cut, against its first quarter."""
    done = subprocess.run([sys.executable, "-c", LONGEST, str(toy_run("LAT") / "model")],
    capture_output=True, text=True,
                          env=ENVIRONMENT, timeout=200, check=True)  # fmt: skip
    seconds, megabytes = json.loads(done.stdout)
    assert {name: took for name, took in seconds.items() if took[1] > 8 * took[0] + 0.5 or took[1] > 30} == {}
    assert megabytes < 150


# ---- closed streams ------------------------------------------------------------------------------------------------


def closed(redirection: str, *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command with a stream closed by the shell."""
    shell = f'"$@" {redirection}'
    done = subprocess.run(["sh", "-c", shell, "sh", sys.executable, "-m", "lath", *arguments], capture_output=True,
                          text=True, env=ENVIRONMENT, stdin=subprocess.DEVNULL, timeout=60)  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def test_closed_streams(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("One two three four.\n")
    evaluate, shown = ("evaluate", "-", str(text)), ("show", str(ROOT / "recipes/demo.toml"))
    closed_input = "lath: error: standard input is closed; give a text file, or pipe text into the command\n"
    assert closed("<&-", *evaluate) == (2, "", closed_input)
    code, out, err = closed(">&-", *shown)
    assert (code, out) == (2, "")
    assert err.startswith("lath: error: standard output is closed")
    whole = closed("", *shown)
    assert whole[0] == 0
    assert closed("<&- 2>&-", *shown) == whole
    assert closed("2>&-", "show", "nothing") == (2, "", "")
