"""Write the generated parts of the documentation: all of docs/cli.md, and the tables of settings in docs/formats.md.

    python docs/generate.py     (or: make docs)

A default and its sentence live once, in a dataclass of lath; tests/test_docs.py says when the pages lag behind.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import re
import typing
from pathlib import Path
from typing import Any

from lath.cli import reference
from lath.config import MergeRules, Recipe

FOLDER = Path(__file__).parent
SECTIONS: dict[str, type[Any]] = {**typing.get_type_hints(Recipe), "decode.merge": MergeRules}
TABLE = re.compile(r"(<!-- settings: (\S+) -->\n).*?(?=<!-- end -->)", re.DOTALL)


def pages() -> dict[Path, str]:
    """Each generated page and what it should say."""
    formats = FOLDER / "formats.md"
    text = formats.read_text(encoding="utf-8")
    return {
        FOLDER / "cli.md": reference(),
        formats: TABLE.sub(lambda found: found[1] + settings_table(SECTIONS[found[2]]), text),
    }


def settings_table(settings: type[Any]) -> str:
    """The settings of one section with their defaults and sentences."""
    sentences, hints = field_sentences(settings), typing.get_type_hints(settings)
    rows = ["| setting | default | |", "|---|---|---|"]
    for field in dataclasses.fields(settings):
        if field.name in SECTIONS or f"decode.{field.name}" in SECTIONS:
            continue  # a section of its own
        choices = ""
        if typing.get_origin(hints[field.name]) is typing.Literal:
            choices = "; ".join(f"`{json.dumps(choice)}`" for choice in typing.get_args(hints[field.name]))
        sentence = sentences[field.name] + (f" One of {choices}." if choices else "")
        rows.append(f"| `{field.name}` | `{json.dumps(field.default)}` | {sentence} |")
    return "\n".join(rows) + "\n"


def field_sentences(settings: type[Any]) -> dict[str, str]:
    """The sentence below each field of a dataclass, in one line."""
    tree = ast.parse(inspect.getsource(settings)).body[0]
    assert isinstance(tree, ast.ClassDef)
    sentences: dict[str, str] = {}
    for field, below in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            assert isinstance(below, ast.Expr), field.target.id
            assert isinstance(below.value, ast.Constant), field.target.id
            sentences[field.target.id] = " ".join(str(below.value.value).split())
    return sentences


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
