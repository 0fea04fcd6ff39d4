"""The documentation is true: its commands run, its Python runs, its links lead somewhere.

The ```console and ```python blocks of README.md and of every docs/*.md are run in order, for each file in a fresh
working directory that has the project's recipes/ and demo/. In a console block "$ " starts a command (a backslash
continues it) and the lines below are output that must occur as they stand; "..." stands for anything. A command must
succeed, unless "lath: error:" is shown: then it must exit with 2.

Two things are not run as they stand, for they take minutes. A `make` command is only checked to be a target of the
Makefile; `make demo` and `make train` are replaced by the commands at their heart. And README.md, which trains with
recipes/demo.toml, finds under that name the settings of recipes/tutorial.toml, for two steps on a sliver of the sample.
"""

from __future__ import annotations

import importlib
import operator
import os
import re
import runpy
import shlex
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from lath.config import MergeRules, Recipe, to_tree

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PROSE = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("recipes/*.md"), *ROOT.glob("demo/*.md")])
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE_ENDINGS = ("py", "toml", "json", "jsonl", "model", "tokens", "offsets", "safetensors")
SLIVER = 60
"""Lines of the sample that README's commands work on."""


class Command(NamedTuple):
    """One command of a console block and what it is shown to print."""

    line: str
    output: list[str]


def blocks(page: Path) -> list[tuple[str, str]]:
    """Language and content of each fenced block."""
    return FENCE.findall(page.read_text(encoding="utf-8"))


def commands(block: str) -> list[Command]:
    """The commands of a console block."""
    found: list[Command] = []
    for line in block.replace("\\\n", " ").splitlines():
        if line.startswith("$ "):
            found.append(Command(line.removeprefix("$ "), []))
        else:
            assert found, f"a console block starts with a command, not with {line!r}"
            found[-1].output.append(line)
    return found


def expected_pattern(output: list[str]) -> re.Pattern[str]:
    """A pattern for the shown output: whole lines one after the other; "..." is anything, alone on a line any lines."""
    lines = [re.escape(line.rstrip()).replace(re.escape("..."), ".*") for line in output]
    return re.compile("".join(r"(?:.*\n)*?" if line == ".*" else rf"^{line}\n" for line in lines), re.MULTILINE)


@pytest.mark.parametrize(
    ("shown", "printed", "fits"),
    [
        (["a", "b"], "a\nb\n", True),
        (["a", "b"], "b\na\n", False),
        (["a", "b"], "a\nc\nb\n", False),
        (["a"], "ab\n", False),
        (["a", "...", "c"], "a\nb\nb\nc\n", True),
        (["a ... c"], "a b c\n", True),
        (["a ... c"], "a b\n c\n", False),
        (["step (1)"], "step 1\n", False),
    ],
)
def test_shown_output_is_told_from_other_output(shown: list[str], printed: str, fits: bool) -> None:
    assert bool(expected_pattern(shown).search(printed)) == fits


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """An environment whose `lath` is this very checkout under this very Python."""
    folder = tmp_path / "bin"
    folder.mkdir()
    shim = folder / "lath"
    shim.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m lath "$@"\n')
    shim.chmod(shim.stat().st_mode | stat.S_IXUSR)
    path = os.pathsep.join([str(folder), os.environ["PATH"]])
    return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


@pytest.fixture
def workplace(tmp_path: Path) -> Path:
    """A working directory with recipes/ and demo/ that may be written to without harm."""
    folder = tmp_path / "work"
    for name in ("recipes", "demo"):
        (folder / name).mkdir(parents=True)
        for path in (ROOT / name).iterdir():
            (folder / name / path.name).symlink_to(path)
    return folder


def shrink_demo(workplace: Path) -> None:
    """Put a sliver of the sample and settings for seconds in the place of recipes/demo.toml and its text."""
    tutorial = (ROOT / "recipes/tutorial.toml").read_text(encoding="utf-8")
    recipe = tutorial.replace("runs/tutorial/train.", "demo/tatoeba.").replace(
        "runs/tutorial/valid.", "demo/tatoeba.valid."
    )
    assert recipe.count("demo/tatoeba.") == 4, "recipes/tutorial.toml names its text otherwise than it did"
    recipe = re.sub(r"^steps = \d+", "steps = 2", recipe, flags=re.MULTILINE)
    recipe = re.sub(r"^size = \d+", "size = 400", recipe, flags=re.MULTILINE)
    place = workplace / "recipes/demo.toml"
    place.unlink()
    place.write_text(recipe, encoding="utf-8")
    for path in (workplace / "demo").glob("tatoeba.*"):
        head = path.read_text(encoding="utf-8").split("\n")[:SLIVER]
        path.unlink()
        path.write_text("\n".join(head) + "\n", encoding="utf-8")


AT_HEART = {
    "make demo": [f"{shlex.quote(sys.executable)} demo/translate.py"],
    "make train": [
        "lath prepare recipes/demo.toml runs/demo-data",
        "lath train recipes/demo.toml runs/demo-data runs/demo",
    ],
}


def check_command(command: Command, workplace: Path, environment: dict[str, str]) -> None:
    """Run one command; exit code and output must be as shown."""
    if command.line.startswith("make"):
        for target in command.line.split()[1:]:
            assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE), f"no target {target}"
        for line in AT_HEART.get(command.line, []):
            check_command(Command(line, []), workplace, environment)
        return
    done = subprocess.run(
        ["bash", "-c", command.line], cwd=workplace, env=environment, text=True, capture_output=True, timeout=120
    )
    printed = done.stdout + done.stderr
    refused = any(line.startswith("lath: error:") for line in command.output)
    assert done.returncode == (2 if refused else 0), f"{command.line}\n{printed}"
    assert expected_pattern(command.output).search(printed), (
        f"{command.line}\nshown:\n{command.output}\ngot:\n{printed}"
    )


def runnable(page: Path) -> bool:
    return any(language in ("console", "python") for language, _ in blocks(page))


@pytest.mark.parametrize("page", [page for page in PAGES if runnable(page)], ids=lambda page: page.name)
def test_console_and_python_blocks_run(page: Path, workplace: Path, environment: dict[str, str]) -> None:
    if page.name == "README.md":
        shrink_demo(workplace)
    for language, block in blocks(page):
        if language == "console":
            for command in commands(block):
                check_command(command, workplace, environment)
        elif language == "python":
            check_command(Command(f"{shlex.quote(sys.executable)} -c {shlex.quote(block)}", []), workplace, environment)


def test_the_readme_starts_with_the_two_commands() -> None:
    first = next(block for language, block in blocks(ROOT / "README.md") if language == "console")
    assert [command.line for command in commands(first)] == ["make demo", "make test"]


@pytest.mark.parametrize("page", PROSE, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    prose = FENCE.sub("", page.read_text(encoding="utf-8"))
    for target in re.findall(r"\]\(([^)\s]+)\)", prose):
        if not re.match(r"https?://", target):
            path, _, anchor = target.partition("#")
            aim = (page.parent / path) if path else page
            assert aim.exists(), f"{page.relative_to(ROOT)}: {target} leads nowhere"
            if anchor:
                assert anchor in anchors(aim), f"{page.relative_to(ROOT)}: {target} has no such heading"


def anchors(page: Path) -> set[str]:
    """The names under which the headings of a page can be linked to."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_generated_pages_are_what_the_program_says() -> None:
    for page, text in runpy.run_path(str(ROOT / "docs/generate.py"))["pages"]().items():
        assert page.read_text(encoding="utf-8") == text, f"{page.name} lags behind the program; run make docs"


def test_every_setting_is_in_the_formats_page() -> None:
    text = (ROOT / "docs/formats.md").read_text(encoding="utf-8")
    assert set(re.findall(r"<!-- settings: (\S+) -->", text)) == {*to_tree(Recipe()), "decode.merge"}


def test_every_module_is_in_the_tree_of_the_readme() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    modules = {path.name for path in (ROOT / "lath").glob("**/*.py") if not path.name.startswith("__")}
    assert {name for name in modules if not re.search(rf"^ +{name} ", text, re.MULTILINE)} == set()


def test_functions_and_settings_that_are_named_exist() -> None:
    """`module.name` and `section.setting`, the way the pages name them; a class may have a member behind it."""
    modules = {path.stem for path in (ROOT / "lath").glob("*.py")}
    settings = to_tree(Recipe())
    settings["decode"]["merge"] = to_tree(MergeRules())
    for page in PAGES:
        prose = FENCE.sub("", page.read_text(encoding="utf-8"))
        for first, rest in re.findall(r"`([a-z]+)\.(\w+(?:\.\w+)*)(?:`| = |=)", prose):
            names = rest.split(".")
            if (first in modules or first in settings) and names[-1] not in FILE_ENDINGS:
                known = first in settings and is_setting(settings[first], names)
                assert known or is_member(f"lath.{first}", names), f"{page.name}: {first}.{rest} is not there"


def is_setting(section: Any, names: list[str]) -> bool:
    for name in names:
        if not isinstance(section, dict) or name not in section:
            return False
        section = section[name]
    return True


def is_member(module: str, names: list[str]) -> bool:
    try:
        return operator.attrgetter(".".join(names))(importlib.import_module(module)) is not None
    except (ImportError, AttributeError):
        return False


def test_tests_that_are_named_exist() -> None:
    named = {name for page in PAGES for name in re.findall(r"\btest_\w+\.py\b", page.read_text(encoding="utf-8"))}
    assert named - {path.name for path in (ROOT / "tests").rglob("test_*.py")} == set()
