"""The documentation is true: its commands and Python run, its links lead somewhere, its pages stay short.

The ```console and ```python blocks of `PAGES` run in order, for each page in a fresh working directory with the
project's recipes/ and demo/. In a console block, "$ " starts a command (a backslash continues it), and the lines below
are output that must occur literally; "..." stands for anything. A command must succeed, unless "lath: error:" is shown:
then it must exit with 2.

Some commands would take too long. A `make` command is only checked to be a target of the Makefile, but for `make demo`
and `make train` their main commands run. README.md, which trains with recipes/demo.toml, finds the settings of
recipes/tutorial.toml under that name, with two steps on a small sample. The ```sh blocks need downloads and hours on a
GPU: only their arguments are checked.
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

from lath.cli import build_parser, verb_parsers
from lath.config import Recipe, merge_overrides, to_tree

ROOT = Path(__file__).parent.parent
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "recipes/README.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
NAMING = [*PAGES, *sorted((ROOT / "docs/adr").glob("*.md"))]
"""Pages whose names of files, functions and settings must exist; docs/log.md describes those of its time."""
PROSE = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("recipes/*.md"), *ROOT.glob("demo/*.md")])
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE_ENDINGS = ("py", "toml", "json", "jsonl", "txt", "md", "model", "tokens", "offsets", "safetensors")
SAMPLE_LINES = 60
"""Lines of the demo text that README's commands work on."""
LARGEST_PAGE = 15
"""Kilobytes of a page; a reader should be able to finish it."""
LARGEST = {"README.md": 6, "CONTRIBUTING.md": 6, "docs/design.md": 12, "docs/results.md": 12, "docs/benchmarks.md": 10,
           "docs/formats.md": 32, "docs/log.md": 30}  # fmt: skip
"""Pages with another limit; nobody reads the formats from start to end, and the log only as far as it is new."""


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
    """A pattern for the shown output: consecutive whole lines; "..." is any text, or any lines if alone on a line."""
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
def test_shown_output_is_compared(shown: list[str], printed: str, fits: bool) -> None:
    assert bool(expected_pattern(shown).search(printed)) == fits


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """An environment in which `lath` is this checkout with this Python."""
    folder = tmp_path / "bin"
    folder.mkdir()
    shim = folder / "lath"
    shim.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m lath "$@"\n')
    shim.chmod(shim.stat().st_mode | stat.S_IXUSR)
    path = os.pathsep.join([str(folder), os.environ["PATH"]])
    return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


@pytest.fixture
def workplace(tmp_path: Path) -> Path:
    """A working directory with recipes/ and demo/ that commands may write to."""
    folder = tmp_path / "work"
    for name in ("recipes", "demo"):
        (folder / name).mkdir(parents=True)
        for path in (ROOT / name).iterdir():
            (folder / name / path.name).symlink_to(path)
    return folder


def shrink_demo(workplace: Path) -> None:
    """Replace recipes/demo.toml and its text by settings and a sample that take seconds."""
    tutorial = (ROOT / "recipes/tutorial.toml").read_text(encoding="utf-8")
    recipe = tutorial.replace("runs/tutorial/train.", "demo/tatoeba.").replace(
        "runs/tutorial/valid.", "demo/tatoeba.valid."
    )
    assert recipe.count("demo/tatoeba.") == 4, "recipes/tutorial.toml has other names for its text; adapt this function"
    recipe = re.sub(r"^steps = \d+", "steps = 2", recipe, flags=re.MULTILINE)
    recipe = re.sub(r"^size = \d+", "size = 400", recipe, flags=re.MULTILINE)
    place = workplace / "recipes/demo.toml"
    place.unlink()
    place.write_text(recipe, encoding="utf-8")
    for path in (workplace / "demo").glob("tatoeba.*"):
        head = path.read_text(encoding="utf-8").split("\n")[:SAMPLE_LINES]
        path.unlink()
        path.write_text("\n".join(head) + "\n", encoding="utf-8")


MAIN_COMMANDS = {
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
        for line in MAIN_COMMANDS.get(command.line, []):
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


def page_name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", [page for page in PAGES if runnable(page)], ids=page_name)
def test_console_and_python_blocks_run(page: Path, workplace: Path, environment: dict[str, str]) -> None:
    if page == ROOT / "README.md":
        shrink_demo(workplace)
    for language, block in blocks(page):
        if language == "console":
            for command in commands(block):
                check_command(command, workplace, environment)
        elif language == "python":
            check_command(Command(f"{shlex.quote(sys.executable)} -c {shlex.quote(block)}", []), workplace, environment)


def lath_commands(block: str) -> list[list[str]]:
    """The arguments of each `lath` command of a shell block, also under torchrun; comments and redirections are cut."""
    found: list[list[str]] = []
    for line in block.replace("\\\n", " ").splitlines():
        command = re.match(r"(?:lath|torchrun .* -m lath) ([^>|#;]*)", line.strip())
        if command:
            found.append(shlex.split(command[1]))
    return found


def test_lath_commands_are_found_in_shell_blocks() -> None:
    block = "# lath train\nlath prepare a \\\n  b  # why\ncd lath\ntorchrun --nnodes 2 -m lath translate m x > y\n"
    assert lath_commands(block) == [["prepare", "a", "b"], ["translate", "m", "x"]]


@pytest.mark.parametrize("page", PROSE, ids=page_name)
def test_arguments_of_commands_that_do_not_run_are_valid(page: Path) -> None:
    parsers = verb_parsers(build_parser())
    for _, block in [found for found in blocks(page) if found[0] == "sh"]:
        for verb, *arguments in lath_commands(block):
            assert verb in parsers, f"{page_name(page)}: lath {verb} is not a verb"
            parsed = parsers[verb].parse_intermixed_args(arguments)
            merge_overrides(getattr(parsed, "overrides", []))
        for name in re.findall(r"(?<![\w/])recipes/[\w./-]+", block):
            assert (ROOT / name).exists(), f"{page_name(page)}: {name} does not exist"


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_pages_are_short(page: Path) -> None:
    limit = LARGEST.get(page_name(page), LARGEST_PAGE)
    size = page.stat().st_size / 1024
    assert size <= limit, f"{page_name(page)} has {size:.1f} KB; shorten it to {limit} KB"


@pytest.mark.parametrize("page", PROSE, ids=page_name)
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
    sections = runpy.run_path(str(ROOT / "docs/generate.py"))["SECTIONS"]
    assert set(re.findall(r"<!-- settings: (\S+) -->", text)) == set(sections) >= set(to_tree(Recipe()))


@pytest.mark.parametrize("page", NAMING, ids=page_name)
def test_files_that_are_named_exist(page: Path) -> None:
    """`tests/test_merge.py`, `decoding/merge.py`, `merge.py`: a path from the root, from lath/, or a name alone."""
    if page.name == "log.md":
        return  # it describes the files of its time
    folders = ("lath", "tests", "benchmarks", "recipes", "demo", "docs")
    known = [str(path) for folder in folders for path in (ROOT / folder).rglob("*.py")]
    for name in re.findall(r"(?<!no )`([\w/]+\.py)`", FENCE.sub("", page.read_text(encoding="utf-8"))):
        assert any(path.endswith(f"/{name}") for path in known), f"{page_name(page)}: no file {name}"


def test_the_design_page_knows_where_things_are() -> None:
    """Its table of questions: each function is defined in the file that is linked behind it."""
    design = ROOT / "docs/design.md"
    table = design.read_text(encoding="utf-8").split("## Where is")[1].split("\n## ")[0]
    answers = re.findall(r"((?:`[\w.]+`(?:, )?)+) in \[[^\]]+\]\(([^)]+)\)", table)
    assert len(answers) >= 8
    for names, path in answers:
        code = (design.parent / path).read_text(encoding="utf-8")
        for name in re.findall(r"`([\w.]+)`", names):
            for part in name.split("."):
                assert re.search(rf"^ *(?:def|class) {part}\b", code, re.MULTILINE), f"{name} is not in {path}"


@pytest.mark.parametrize("page", NAMING, ids=page_name)
def test_functions_and_settings_that_are_named_exist(page: Path) -> None:
    """`module.name` and `section.setting`; a class may be followed by a member."""
    if page.name == "log.md":
        return
    modules: dict[str, list[str]] = {}
    for path in (ROOT / "lath").rglob("*.py"):
        modules.setdefault(path.stem, []).append(".".join(path.relative_to(ROOT).with_suffix("").parts))
    settings = to_tree(Recipe())
    prose = FENCE.sub("", page.read_text(encoding="utf-8"))
    for first, rest in re.findall(r"`([a-z_0-9]+)\.(\w+(?:\.\w+)*)(?:`| = |=)", prose):
        names = rest.split(".")
        if (first in modules or first in settings) and names[-1] not in FILE_ENDINGS:
            known = first in settings and is_setting(settings[first], names)
            known = known or any(is_member(module, names) for module in modules.get(first, []))
            assert known, f"{page_name(page)}: {first}.{rest} does not exist"


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
