"""Models from strangers: a damaged or hostile model directory is refused on one line, or it translates as before.

Every case is a copy of a small model in one of the storage formats with one seeded change. With digests nothing may
translate differently. Without them (as a stranger could write them) a change of a weight cannot be known from a
weight; then nothing but a `UserError` may be raised, and nothing may hang.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import CPU
from safetensors.torch import load_file, save_file
from toy import ambiguous_pairs, toy_recipe, write_talkative

from lath.config import DecodeOptions, DecodeSettings
from lath.engine.export import export
from lath.engine.shortlist import add_shortlist
from lath.errors import UserError
from lath.model.compress import compress
from lath.model.directory import CONFIG, SHORTLIST, WEIGHTS, load_model
from lath.model.pair import VERIFIER, make_pair
from lath.model.storage import CODED, FULL, SCALE, SMALLER
from lath.preparation import prepare
from lath.text.vocab import load_vocabs
from lath.translator import load

VOCAB = "vocab.model"
LINES = ["ba ko mi", "tu re"]
SLOWEST = 10.0
"""Seconds after which a case counts as hanging."""
FEWEST = 20
"""Cases of a test at least; all tests together have some 1,500."""

Change = Callable[[Path, random.Random], object]
Case = tuple[str, Change]
Written = list[tuple[str, float]]


# ---- models --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def models(toy_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model that has something to say, in every storage format, with a shortlist; a folder for each."""
    folder = tmp_path_factory.mktemp("models")
    vocab = load_vocabs(toy_folder / "data")[0]
    for kind, name in (("LAT", FULL), ("AT", "AT")):
        write_talkative(folder / name, kind, vocab)
        add_shortlist(toy_folder / "data", folder / name, near=5, frequent=20)
    for storage in SMALLER:
        compress(folder / FULL, folder / storage, storage)
    make_pair(folder / FULL, folder / "AT", folder / "pair", {})
    return folder


def translated(directory: Path, shortlist: bool = False) -> Written:
    """What a model directory translates with the usual settings, whatever its own are."""
    options = DecodeOptions(**dataclasses.asdict(DecodeSettings(iterations=2, beam=2, shortlist=shortlist)))
    translator = load(directory, "cpu", **({} if (directory / "lath").is_dir() else {"precision": "fp32"}))
    if translator.verifier is not None:
        options["verify"] = "exact"
    return [(hypothesis.text, hypothesis.score) for hypothesis in translator.hypotheses(LINES, **options)]


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
    def late(*_: object) -> None:
        raise AssertionError("hangs")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def outcome(directory: Path, shortlist: bool) -> Written | str:
    """The translations, or the refusal."""
    with limited(SLOWEST):
        try:
            return translated(directory, shortlist)
        except UserError as error:
            message = str(error)
    assert "\n" not in message
    return message


def wrong(model: Path, cases: Sequence[Case], copy: Path, digests: bool, shortlist: bool = False) -> list[str]:
    """The cases that are neither refused nor, with digests, translated as before."""
    assert len({name for name, _ in cases}) == len(cases) >= FEWEST
    shutil.copytree(model, copy)
    if not digests:
        without_digests(copy)
    files = {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()}
    before, found = translated(copy, shortlist), []
    assert len({text for text, _ in before}) == len(LINES), "it has something to say"
    for name, change in cases:
        change(copy, random.Random(name))
        try:
            after = outcome(copy, shortlist)
            if digests and not isinstance(after, str) and after != before:
                found.append(f"{name}: translates differently")
        except Exception as error:
            found.append(f"{name}: {type(error).__name__}: {error}"[:300])
        put_back(copy, files)
    return found


def put_back(copy: Path, files: dict[Path, bytes]) -> None:
    """Undo a change; much faster than another copy."""
    for path in [path for path in copy.rglob("*") if path not in files and path.name not in ("lath", VERIFIER)]:
        path.unlink()
    for path, raw in files.items():
        path.parent.mkdir(exist_ok=True)
        if path.is_symlink() or not path.is_file():
            if path.is_dir() and not path.is_symlink():
                path.rmdir()
            path.unlink(missing_ok=True)
        if not path.exists() or path.read_bytes() != raw:
            path.write_bytes(raw)


def without_digests(directory: Path) -> None:
    for path in (directory / CONFIG, directory / "lath" / CONFIG, directory / VERIFIER / CONFIG):
        if path.is_file():
            tree = json.loads(path.read_text(encoding="utf-8"))
            tree.pop("sha256", None)
            path.write_text(json.dumps(tree), encoding="utf-8")


# ---- changes of bytes ----------------------------------------------------------------------------------------------


def flip(name: str, low: float = 0.0, high: float = 1.0, bits: int = 1) -> Change:
    def change(directory: Path, random_: random.Random) -> None:
        raw = bytearray((directory / name).read_bytes())
        for _ in range(bits):
            raw[random_.randrange(int(low * len(raw)), max(1, int(high * len(raw))))] ^= 1 << random_.randrange(8)
        (directory / name).write_bytes(raw)

    return change


def cut(name: str) -> Change:
    def change(directory: Path, random_: random.Random) -> None:
        raw = (directory / name).read_bytes()
        (directory / name).write_bytes(raw[: random_.randrange(len(raw))])

    return change


def put(name: str, raw: bytes) -> Change:
    return lambda directory, _: (directory / name).write_bytes(raw)


def damage(name: str, flips: int) -> list[Case]:
    """Flipped bits anywhere, some at the start where headers are, and truncated files."""
    return [
        *((f"flip {name} {number}", flip(name, bits=1 + number % 3)) for number in range(flips)),
        *((f"flip the start of {name} {number}", flip(name, high=0.02)) for number in range(flips // 2)),
        *((f"cut {name} {number}", cut(name)) for number in range(5)),
        (f"empty {name}", put(name, b"")),
        (f"zeros {name}", put(name, bytes(1000))),
        (f"text {name}", put(name, b"hello\n" * 100)),
        (f"longer {name}", lambda directory, _: (directory / name).open("ab").write(b"\0more")),
    ]


def other_kinds_of_file(name: str) -> list[Case]:
    """Something that is no file where a file should be."""

    def replaced(make: Callable[[Path], object]) -> Change:
        def change(directory: Path, random_: random.Random) -> None:
            (directory / name).unlink()
            make(directory / name)

        return change

    makes: dict[str, Callable[[Path], object]] = {
        "missing": lambda path: None,
        "directory": lambda path: path.mkdir(),
        "pipe": os.mkfifo,
        "link to nothing": lambda path: path.symlink_to("nowhere"),
        "link to itself": lambda path: path.symlink_to(path.name),
        "link to zeros": lambda path: path.symlink_to("/dev/zero"),
        "link to its folder": lambda path: path.symlink_to("."),
    }
    return [(f"{name}: {kind}", replaced(make)) for kind, make in makes.items()]


# ---- changes of config.json ----------------------------------------------------------------------------------------

VALUES: list[Any] = [
    None,
    "",
    "x" * 10_000,
    [],
    {},
    [[[]]],
    True,
    False,
    -1,
    0,
    1,
    2,
    3.5,
    10**9,
    2**63,
    10**4000,
    -0.0,
    1e308,
    float("inf"),
    float("nan"),
    "LAT",
    "fp16",
    "\ud800",
    "a\nb",
]


def settings(tree: dict[str, Any]) -> list[tuple[str, ...]]:
    """The path of every setting and section."""
    sections = [name for name, value in tree.items() if isinstance(value, dict)]
    return [(name,) for name in tree] + [(section, name) for section in sections for name in tree[section]]


def edit(change_tree: Callable[[dict[str, Any]], object]) -> Change:
    def change(directory: Path, random_: random.Random) -> None:
        tree = json.loads((directory / CONFIG).read_text(encoding="utf-8"))
        change_tree(tree)
        (directory / CONFIG).write_text(json.dumps(tree), encoding="utf-8")

    return change


def config_cases(model: Path) -> list[Case]:
    """Wrong types and values in every setting, settings left out, and JSON that is none."""
    text = (model / CONFIG).read_text(encoding="utf-8")
    cases: list[Case] = []
    for number, path in enumerate(settings(json.loads(text))):
        spelled = ".".join(path)

        def parent(tree: dict[str, Any], path: tuple[str, ...] = path) -> dict[str, Any]:
            return tree if len(path) == 1 else tree.get(path[0], {})

        for value in random.Random(number).sample(VALUES, 4):
            put_value = edit(lambda tree, parent=parent, key=path[-1], value=value: parent(tree).update({key: value}))
            cases.append((f"{spelled} = {value!r}"[:60], put_value))
        cases.append((f"no {spelled}", edit(lambda tree, parent=parent, key=path[-1]: parent(tree).pop(key, None))))
    deep: dict[str, str] = {}
    for depth in (900, 2000, 100_000):
        deep[f"lists {depth} deep"] = "[" * depth + "]" * depth
        deep[f"tables {depth} deep"] = '{"a":' * depth + "1" + "}" * depth
        deep[f"{depth} deep without an end"] = "[" * depth
    texts = {
        "many digits": text.replace('"steps": 20', '"steps": ' + "9" * 5000),
        "layers": text.replace('"encoder_layers": 1', '"encoder_layers": 1000000000'),
        "twice": text.replace('"width": 64', '"width": 64, "width": 128'),
        "sections twice": text.replace('"decode": {', '"decode": {"beam": 7}, "decode": {'),
        "comment": text.replace('"width"', '// "width"'),
        "mark": "\ufeff" + text,
        "deep in a setting": text.replace('"width": 64', '"width": ' + "[" * 800 + "]" * 800),
        "long": text + " " * (1 << 20),
        "list": "[]",
        "number": "1",
        "null": "null",
        **deep,
    }
    cases += [(f"text: {name}", put(CONFIG, changed.encode("utf-8"))) for name, changed in texts.items()]
    cases += [(f"text in {code}", put(CONFIG, text.encode(code))) for code in ("utf-16", "utf-32", "cp500")]
    return cases


# ---- changes of weights --------------------------------------------------------------------------------------------


def retensor(change_tensors: Callable[[dict[str, torch.Tensor]], object], name: str = WEIGHTS) -> Change:
    def change(directory: Path, random_: random.Random) -> None:
        metadata = {"format": "1"} if name == SHORTLIST else None
        tensors = {key: tensor.clone() for key, tensor in load_file(directory / name).items()}
        change_tensors(tensors)
        save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, directory / name, metadata)

    return change


def reheader(change_header: Callable[[dict[str, Any]], object], name: str = WEIGHTS) -> Change:
    """Another header for the same numbers."""

    def change(directory: Path, random_: random.Random) -> None:
        raw = (directory / name).read_bytes()
        (length,) = struct.unpack("<Q", raw[:8])
        header = json.loads(raw[8 : 8 + length])
        change_header(header)
        written = json.dumps(header).encode()
        (directory / name).write_bytes(struct.pack("<Q", len(written)) + written + raw[8 + length :])

    return change


def weight_cases(model: Path) -> list[Case]:
    """Tensors that are missing, too many, of other types, shapes and values; `model` says how they are stored."""
    stored = load_file(model / WEIGHTS)
    bias = "length.table.weight" if model.name == "fp16" else "body.encoder.layers.0.attention.output.bias"
    matrix = next(name for name in stored if "output.weight" in name and not name.endswith(SCALE))
    plain = matrix.removesuffix(CODED)
    picks = {"bias": bias if bias in stored else matrix, "matrix": matrix}
    if plain + SCALE in stored:
        picks["scale"] = plain + SCALE
    cases: list[Case] = []
    for what, key in picks.items():
        tensor = stored[key]
        others = [torch.float64, torch.int64, torch.bool, torch.uint8, torch.int8, torch.complex64, torch.float8_e4m3fn]
        for type_ in others:
            if type_ != tensor.dtype:
                as_type = tensor.to(type_)
                cases.append((f"{what} {type_}", retensor(lambda t, key=key, new=as_type: t.update({key: new}))))
        shapes = {
            "longer": torch.cat([tensor, tensor[:1]]),
            "shorter": tensor[:-1],
            "flat": tensor.flatten()[:, None],
            "deep": tensor[None],
            "none": tensor[:0],
            "one": tensor.flatten()[0],
            "row": tensor[None, :1],
        }
        for shape, new in shapes.items():
            cases.append((f"{what} {shape}", retensor(lambda t, key=key, new=new: t.update({key: new}))))
        cases.append((f"no {what}", retensor(lambda t, key=key: t.pop(key))))
        if tensor.is_floating_point():
            for value in (float("nan"), float("inf"), float("-inf"), 60000.0, 1e36, -1.0, 0.0):
                new = tensor.clone()
                new.flatten()[-1] = value
                cases.append((f"{what} {value}", retensor(lambda t, key=key, new=new: t.update({key: new}))))
    flipped = stored[bias if bias in stored else matrix].clone()
    whole = flipped.view({4: torch.int32, 2: torch.int16, 1: torch.int8}[flipped.element_size()])
    whole.flatten()[3] ^= 1 << (8 * flipped.element_size() - 2)
    cases += [
        ("flipped exponent", retensor(lambda t: t.update({bias: flipped}))),
        ("another tensor", retensor(lambda t: t.update({"aaa": torch.zeros(3)}))),
        ("scale of a bias", retensor(lambda t: t.update({bias + SCALE: torch.ones(len(t[bias]))}))),
        (
            "plain and coded",
            retensor(lambda t: t.update({plain: torch.zeros(64, 64), plain + CODED: torch.ones(9000).byte()})),
        ),
        ("no tensors", retensor(dict.clear)),
        ("names with slashes", retensor(lambda t: t.update({"/" + matrix: t.pop(matrix)}))),
        ("huge tensor", reheader(lambda h: h[matrix].update(shape=[10**12, 10**3]))),
        ("overflowing shape", reheader(lambda h: h[matrix].update(shape=[2**62, 2**62]))),
        ("negative shape", reheader(lambda h: h[matrix].update(shape=[-1, -4096]))),
        ("many dimensions", reheader(lambda h: h[matrix].update(shape=[*h[matrix]["shape"], *[1] * 3000]))),
        ("far offsets", reheader(lambda h: h[matrix].update(data_offsets=[2**62, 2**63]))),
        ("swapped offsets", reheader(lambda h: h[matrix]["data_offsets"].reverse())),
        ("overlap", reheader(lambda h: h[matrix].update(data_offsets=h[bias]["data_offsets"]))),
        (
            "empty and endless",
            reheader(lambda h: h.update(x={"dtype": "F32", "shape": [0, 2**63], "data_offsets": [0, 0]})),
        ),
        ("no type", reheader(lambda h: h[matrix].pop("dtype"))),
        ("strange type", reheader(lambda h: h[matrix].update(dtype="F6_E2M3"))),
        ("metadata", reheader(lambda h: h.update(__metadata__={"a": 3}))),
        ("long header", put(WEIGHTS, struct.pack("<Q", 2**40) + b"{}")),
        ("endless header", put(WEIGHTS, struct.pack("<Q", 2**64 - 1) + b"{}")),
        ("deep header", put(WEIGHTS, struct.pack("<Q", 60000) + b'{"a":' * 12000)),
    ]
    cases += [
        (f"stored as {storage}", edit(lambda t, s=storage: t.update(storage=s))) for storage in (FULL, *SMALLER, "int4")
    ]
    if plain + CODED in stored:
        numbers = zlib.decompress(stored[matrix].numpy().tobytes())
        codes = {
            "short": zlib.compress(numbers[:-1]),
            "long": zlib.compress(numbers + b"\0"),
            "raw": numbers,
            "followed": zlib.compress(numbers) + b"more",
            "cut": zlib.compress(numbers)[:-5],
            "bomb": zlib.compress(bytes(1 << 22)),
            "stored": zlib.compress(numbers, 0),
        }
        for name, code in codes.items():
            new = torch.frombuffer(bytearray(code), dtype=torch.uint8)
            cases.append((f"{name} code", retensor(lambda t, new=new: t.update({matrix: new}))))
    return cases


# ---- other files ---------------------------------------------------------------------------------------------------


def vocab_cases(foreign: Path, size: int) -> list[Case]:
    """Another vocabulary, of the same size too, and vocabularies of the other kind."""

    def units(tree: dict[str, Any] | str) -> Change:
        def change(directory: Path, random_: random.Random) -> None:
            (directory / VOCAB).unlink()
            text = tree if isinstance(tree, str) else json.dumps(tree)
            (directory / "vocab.json").write_text(text, encoding="utf-8")

        return change

    words = [f"word{number}" for number in range(size - 6)]
    whole: dict[str, Any] = {"format": 1, "merges": ["a b"], "words": words}
    trees = {
        "words": whole,
        "surrogate": {**whole, "words": [*words[1:], "\ud800"]},
        "breaks": {**whole, "words": ["\n"] * (size - 6)},
        "no merges": {"format": 1, "words": words},
        "merges of three": {**whole, "merges": ["a b c"]},
        "merges of one": {**whole, "merges": ["a"]},
        "text as words": {**whole, "words": "x" * (size - 6)},
        "words by number": {**whole, "words": {str(id): id for id in range(size - 6)}},
        "numbers": {**whole, "words": [1] * (size - 6)},
        "format": {**whole, "format": [1]},
        "digits": '{"format": ' + "9" * 5000 + "}",
        "deep": "[" * 3000,
        "list": "[]",
        "twice": '{"format": 1, "format": 1, "merges": [], "words": []}',
    }
    return [
        ("foreign", put(VOCAB, foreign.read_bytes())),
        ("target side", lambda directory, _: (directory / VOCAB).rename(directory / "vocab.target.model")),
        *((f"units: {name}", units(tree)) for name, tree in trees.items()),
    ]


def shortlist_cases(size: int) -> list[Case]:
    """Ids that do not exist, and tensors of other types and shapes."""
    changes: dict[str, Callable[[dict[str, torch.Tensor]], object]] = {
        "far": lambda t: t.update(near=t["near"].int() + size),
        "negative": lambda t: t.update(near=t["near"].int() - 7),
        "floats": lambda t: t.update(near=t["near"].float()),
        "flat": lambda t: t.update(near=t["near"].flatten()),
        "fewer": lambda t: t.update(near=t["near"][1:], always=t["always"][1:]),
        "none": lambda t: t.update(near=t["near"][:, :0]),
        "never": lambda t: t.update(always=torch.zeros(size, dtype=torch.bool)),
        "bytes": lambda t: t.update(always=t["always"].byte()),
        "no near": lambda t: t.pop("near"),
        "no always": lambda t: t.pop("always"),
    }
    return [(f"shortlist: {name}", retensor(change, SHORTLIST)) for name, change in changes.items()]


# ---- the tests -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("digests", [True, False], ids=["digests", "none"])
def test_every_setting_of_config_json(models: Path, tmp_path: Path, digests: bool) -> None:
    cases = [*config_cases(models / FULL), *damage(CONFIG, 20), *other_kinds_of_file(CONFIG)]
    assert wrong(models / FULL, cases, tmp_path / "copy", digests) == []


@pytest.mark.parametrize("storage", [FULL, *SMALLER])
def test_damaged_weights(models: Path, tmp_path: Path, storage: str) -> None:
    stored_as = [(f"{name}", edit(lambda t, s=name: t.update(storage=s))) for name in (FULL, *SMALLER, "int4")]
    cases = [*stored_as, *damage(WEIGHTS, 6)]
    assert wrong(models / storage, cases, tmp_path / "copy", digests=True) == []


@pytest.mark.parametrize("storage", [FULL, *SMALLER])
def test_hostile_weights(models: Path, tmp_path: Path, storage: str) -> None:
    cases = [*weight_cases(models / storage), *damage(WEIGHTS, 6), *other_kinds_of_file(WEIGHTS)]
    assert wrong(models / storage, cases, tmp_path / "copy", digests=False) == []


@pytest.mark.parametrize("digests", [True, False], ids=["digests", "none"])
def test_vocabularies_and_shortlists(models: Path, foreign: Path, tmp_path: Path, digests: bool) -> None:
    size = load_model(models / FULL, CPU).info.source_size
    cases = [*vocab_cases(foreign, size), *damage(VOCAB, 20), *other_kinds_of_file(VOCAB)]
    assert wrong(models / FULL, cases, tmp_path / "vocab", digests) == []
    cases = [*shortlist_cases(size), *damage(SHORTLIST, 6), *other_kinds_of_file(SHORTLIST)]
    assert wrong(models / FULL, cases, tmp_path / "shortlist", digests, shortlist=True) == []


@pytest.fixture(scope="module")
def foreign(models: Path, toy_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The vocabulary of another text, with as many entries."""
    folder = tmp_path_factory.mktemp("foreign")
    recipe = toy_recipe(folder, "LAT", ambiguous_pairs)
    vocab = dataclasses.replace(recipe.vocab, size=load_vocabs(toy_folder / "data")[0].size)
    return prepare(dataclasses.replace(recipe, vocab=vocab), folder / "data").directory / VOCAB


@pytest.mark.parametrize("digests", [True, False], ids=["digests", "none"])
def test_pairs(models: Path, tmp_path: Path, digests: bool) -> None:
    """A pair whose verifier is damaged, missing, or of another model."""
    names = (CONFIG, f"{VERIFIER}/{CONFIG}", f"{VERIFIER}/{WEIGHTS}", f"{VERIFIER}/{VOCAB}")
    cases = [case for name in names for case in (*damage(name, 4), *other_kinds_of_file(name))]
    cases += [
        (f"{name} as {VERIFIER}", lambda d, _, name=name: shutil.copyfile(d / name, d / VERIFIER / name))
        for name in (CONFIG, WEIGHTS)
    ]
    cases.append(("no verifier", lambda directory, _: shutil.rmtree(directory / VERIFIER)))
    if not digests:
        cases.pop()  # without digests nothing says that there was one
    assert wrong(models / "pair", cases, tmp_path / "copy", digests) == []


def test_exported_models(models: Path, tmp_path: Path) -> None:
    """CTranslate2 can crash on a damaged file, so it gets none that has not the digest it was exported with."""
    pytest.importorskip("ctranslate2")
    export(models / "AT", tmp_path / "exported")
    names = ("config.json", "shared_vocabulary.json", "vmap.txt", "model.bin", "lath/vocab.model", "lath/config.json")
    cases = [case for name in names for case in (*damage(name, 4), *other_kinds_of_file(name))]
    assert wrong(tmp_path / "exported", cases, tmp_path / "copy", digests=True, shortlist=True) == []
    without_digests(tmp_path / "exported")
    with pytest.raises(UserError, match="exported by an earlier version, without SHA-256; export the model again"):
        load(tmp_path / "exported")


BIG = 1 << 33
MEASURE = """
import json, sys, time
from pathlib import Path
import torch
from lath.errors import UserError
from lath.translator import load

def memory(field):
    status = Path("/proc/self/status").read_text()
    return int(status.split(field)[1].split()[0]) >> 10

for directory in sys.argv[1:]:
    Path("/proc/self/clear_refs").write_text("5")
    before, start = memory("VmRSS:"), time.process_time()
    try:
        load(directory, "cpu")
        message = ""
    except UserError as error:
        message = str(error)
    print(json.dumps([message, time.process_time() - start, memory("VmHWM:") - before]), flush=True)
"""


def zeros(count: int) -> bytes:
    """A zlib stream of `count` zeros, a multiple of a megabyte, without the work of compressing them."""
    coder = zlib.compressobj(9, zlib.DEFLATED, -15)
    block = coder.compress(bytes(1 << 20)) + coder.flush(zlib.Z_FULL_FLUSH)
    sum_ = (count % 65521) << 16 | 1
    return b"\x78\xda" + block * (count >> 20) + b"\x03\x00" + sum_.to_bytes(4, "big")


def enlarged(name: str) -> Change:
    """Eight gigabytes of nothing behind what is there."""
    return lambda directory, _: os.truncate(directory / name, BIG)


def bomb(width: int) -> Change:
    """Eight gigabytes in eight megabytes, in a model that is `width` wide by its config.json."""

    def change(directory: Path, random_: random.Random) -> None:
        coded = torch.frombuffer(bytearray(zeros(BIG)), dtype=torch.uint8)
        retensor(lambda t: t.update({f"body.tables.0.weight{CODED}": coded}))(directory, random_)
        edit(lambda t: t["network"].update(width=width))(directory, random_)

    return change


def test_nothing_of_declared_size_is_allocated(models: Path, tmp_path: Path) -> None:
    """Each within 2 seconds and 500 MB, although 8 GB, or a billion layers, are declared."""
    hostile: dict[str, Change] = {
        "bomb": bomb(64),
        "declared bomb": bomb(1 << 16),
        "layers": edit(lambda t: t["network"].update(encoder_layers=10**9)),
        "hundred layers": edit(lambda t: t["network"].update(encoder_layers=100, decoder_layers=100)),
        "positions": edit(lambda t: t["network"].update(max_positions=10**9)),
        "header": reheader(lambda h: h[f"body.tables.0.weight{CODED}"].update(shape=[BIG], data_offsets=[0, BIG])),
        "long header": lambda d, _: (d / WEIGHTS).write_bytes(struct.pack("<Q", 90_000_000) + b" " * 90_000_000),
        **{name: enlarged(name) for name in (CONFIG, VOCAB, WEIGHTS, SHORTLIST)},
        "lists": lambda d, _: (d / CONFIG).write_text('{"format": [' + "[]," * 300_000 + "1]}"),
        "units": lambda d, _: (d / VOCAB).rename(d / "vocab.json").write_text("[" + "[]," * 2_700_000 + "1]"),
    }
    for name, change in hostile.items():
        shutil.copytree(models / "coded", tmp_path / name)
        if name not in (VOCAB, WEIGHTS):  # their digests must not be computed
            without_digests(tmp_path / name)
        change(tmp_path / name, random.Random(name))
    command = [sys.executable, "-c", MEASURE, *(str(tmp_path / name) for name in hostile)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.splitlines()
    figures = dict(zip(hostile, map(json.loads, lines), strict=True))
    print(figures)
    assert [name for name, (message, _, _) in figures.items() if not message] == []
    assert [name for name, (_, seconds, _) in figures.items() if seconds > 2] == []
    assert [name for name, (_, _, megabytes) in figures.items() if megabytes > 500] == []
