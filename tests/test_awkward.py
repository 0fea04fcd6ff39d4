"""What people put into a translator, through the bundled model: tests/document/awkward.toml."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

import lath
from lath.translator import Translator

CASES = tomllib.loads((Path(__file__).parent / "document/awkward.toml").read_text(encoding="utf-8"))["case"]


@pytest.fixture(scope="module")
def bundled() -> Translator:
    return lath.load("de-en", "cpu")


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_awkward_text(bundled: Translator, case: dict[str, Any]) -> None:
    text, verbatim = case["text"], case.get("verbatim", [])
    found = bundled.translate(text, format="html" if case.get("html") else "text")
    assert found == case.get("exact", found)
    assert {part: found.count(part) for part in verbatim} == {part: text.count(part) for part in verbatim}
    assert [line.strip() == "" for line in found.split("\n")] == [line.strip() == "" for line in text.split("\n")]
    assert not [part for part in [*case.get("absent", []), "\N{REPLACEMENT CHARACTER}"] if part in found]
    if case.get("capitals"):
        rest = found
        for part in verbatim:
            rest = rest.replace(part, "")
        assert rest == rest.upper() != ""
