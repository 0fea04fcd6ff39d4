"""`lath analyse` on texts of any characters: it never raises but for a mistake, and what it writes can be read."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import NoReturn

import pytest

from lath.analysis.analyse import analyse
from lath.analysis.scores import token_lines
from lath.analysis.settings import AnalyseSettings
from lath.errors import UserError
from lath.files import read_lines

CASES = 25
PIECES = [
    *(
        "a",
        "A",
        "Ulm",
        " ",
        "  ",
        "\t",
        "\u2028",
        "\u00a0",
        "|",
        "`",
        "<skipped>",
        "&amp;",
        "ä",
        "你好",
        "🙂",
        "\ufeff",
    ),
    *("$x$", "\\", "\r", "1.5", "-", "“", "a a a", "\x85", "e\u0301"),
]


def never(value: str) -> NoReturn:
    raise AssertionError(f"{value} in JSON")


@pytest.mark.parametrize("seed", range(CASES))
def test_any_text_is_analysed_or_refused(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    count = draw.randint(1, 6)
    paths = []
    for name in ("source", "right", "a|b", "c"):
        lines = ["".join(draw.choices(PIECES, k=draw.choice((0, 1, 3, 30)))) for _ in range(count)]
        paths.append(tmp_path / name)
        paths[-1].write_bytes("".join(line + "\n" for line in lines).encode())
    source, right, *systems = paths
    edges = tuple(sorted(draw.sample(range(1, 40), draw.randint(1, 5))))
    settings = AnalyseSettings(
        samples=draw.choice((0, 7)), window=draw.randint(1, 9), edges=edges, rare=draw.randint(1, 3)
    )
    out = tmp_path / "out"
    given = [str(path) for path in systems]
    if not any(line.split() for line in token_lines(list(read_lines(right, keep_mark=True)))):
        with pytest.raises(UserError, match="references: no words in any line"):
            analyse(right, given, out, settings, source)
        assert not out.exists()
        return
    analyse(right, given, out, settings, source)
    found = json.loads((out / "analysis.json").read_text(encoding="utf-8"), parse_constant=never)
    for table in found["tables"]:
        assert {len(row) for row in table["rows"]} <= {len(table["header"])}
    page = (out / "analysis.md").read_text(encoding="utf-8")
    assert page.count("\n## ") == len(found["tables"])
