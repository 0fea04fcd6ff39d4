"""Sequence-level distillation: a teacher translates the source side of a corpus.

Section 4.1 of the paper trains every non-autoregressive model on such text. Line n of the output is the translation of
line n of the source; a repeated line is translated once. Finished work is kept in shards next to the output, so a
stopped or killed run continues where it was. The teacher may also be an exported model (engine/ctranslate2.py), which
is faster on a CPU. Under torchrun the ranks translate the shards in turn, and the first joins them.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Unpack

from lath.config import DecodeOptions, to_tree
from lath.devices import BATCH_INVARIANT
from lath.engine.ctranslate2 import deciding_files
from lath.errors import UserError
from lath.files import chunks, count_lines, locked, read_lines, sha256, whole_directory, whole_file
from lath.model.bundled import find_model
from lath.model.directory import CONFIG, WEIGHTS, is_exported
from lath.model.pair import find_verifier
from lath.progress import Bar
from lath.text.vocab import vocab_files
from lath.training.ranks import ALONE, World, gather, join_world, lead
from lath.translator import READ_AHEAD, Translator, load, preferred_device

SHARD_LINES = 10_000
"""Lines per shard, unless large batches need more lines to find sentences of similar length."""
JOB = "job.json"
"""In the shard folder: everything that the translations depend on."""


def distill(
    model: str | Path,
    source: str | Path,
    out: str | Path,
    *,
    device: str = "auto",
    precision: str = "auto",
    engine: str = "auto",
    **options: Unpack[DecodeOptions],
) -> int:
    """Translate the text file `source` into the new file `out`; returns the number of lines.

    `model` is a bundled model or a model directory. The same call continues a run that was stopped. Under torchrun
    every rank makes the same call.
    """
    teacher = find_model(model)
    with join_world(preferred_device(teacher, device)) as (world, own_device):
        translator = load(teacher, str(own_device), precision, engine)
        return distill_with(translator, teacher, Path(source), Path(out), options, world=world)


def distill_with(
    translator: Translator,
    model: Path,
    source: Path,
    out: Path,
    options: DecodeOptions,
    shard_lines: int | None = None,
    world: World = ALONE,
) -> int:
    """`distill` with a translator loaded from the directory `model`, in shards of `shard_lines`."""
    shards = out.parent / f"{out.name}.shards"
    repeats: dict[bytes, bool] = {}
    held = contextlib.ExitStack()

    def begin() -> tuple[int, int]:
        _check(out)
        batch = translator.settings(**options).batch_sentences
        lines = count_lines(source)
        size = shard_lines or _begun_size(shards) or max(SHARD_LINES, READ_AHEAD * batch)
        job = {**identity(translator, model, options), "shard size": size}
        _create(shards, job, out)
        held.enter_context(locked(shards / JOB, f"{out}: the unfinished run in {shards}"))
        _check_job(shards, job)
        return lines, size

    def join() -> None:
        translations = itertools.chain.from_iterable(map(read_lines, finished))
        with whole_file(out) as partial, partial.open("w", encoding="utf-8", newline="\n") as joined:
            joined.writelines(text + "\n" for text in _repeated(read_lines(source), translations, repeats, source))
        held.close()  # NFS keeps the directory of an open file
        shutil.rmtree(shards)

    with held:
        lines, size = lead(world, begin)
        with Bar("distilling", lines, "lines", shown=world.first) as bar:
            numbered = enumerate(chunks(_without_repeats(read_lines(source), repeats, bar), size))
            finished = gather(world, lambda: _write_shards(translator, shards, numbered, bar, world, options))[0]
        lead(world, join)
    return lines


def identity(translator: Translator, model: Path, options: DecodeOptions) -> dict[str, Any]:
    """What the translations of a text depend on; `model` is the directory of the translator."""
    settings = to_tree(translator.settings(**options))
    # Then the translations do not depend on it, and a run that ran out of memory can continue with a smaller one.
    if translator.precision in BATCH_INVARIANT:
        del settings["batch_sentences"]
    return {"model": fingerprint(model), "precision": translator.precision, "settings": settings}


def _check(out: Path) -> None:
    """An output name that cannot be written is a `UserError`."""
    if out.exists():
        raise UserError(f"{out}: exists already; choose another name or remove it")
    if out.suffix in (".gz", ".xz"):
        raise UserError(f"{out}: the output is written uncompressed; choose a name without {out.suffix}")


def _begun_size(shards: Path) -> int | None:
    """The shard size of an unfinished run, which has to be kept."""
    path = shards / JOB
    if not path.exists():
        return None
    size: int | None = json.loads(path.read_text(encoding="utf-8")).get("shard size")
    return size


def _write_shards(
    translator: Translator,
    shards: Path,
    numbered: Iterator[tuple[int, list[str]]],
    bar: Bar,
    world: World,
    options: DecodeOptions,
) -> list[Path]:
    """Translate the missing shards of this rank; returns the paths of all shards, of all ranks."""
    paths: list[Path] = []
    for number, chunk in numbered:
        shard = shards / _shard_name(number, chunk)
        if number % world.size == world.rank and not shard.exists():
            with whole_file(shard) as partial, partial.open("w", encoding="utf-8", newline="\n") as stream:
                for hypothesis in translator.hypotheses(chunk, split=False, **options):
                    stream.write(hypothesis.text + "\n")
                    bar.advance()
        else:
            bar.advance(len(chunk))
        paths.append(shard)
    return paths


def _create(shards: Path, job: dict[str, Any], out: Path) -> None:
    """Create the shard folder, unless there is one."""
    path = shards / JOB
    if path.exists():
        return
    try:
        with whole_directory(shards) as partial:
            (partial / path.name).write_text(json.dumps(job) + "\n", encoding="utf-8")
    except UserError:
        if not path.exists():  # otherwise another process was faster, and its lock decides
            _check(out)  # it may have finished since
            raise


def _check_job(shards: Path, job: dict[str, Any]) -> None:
    """A `UserError` if the shard folder belongs to another job."""
    before = json.loads((shards / JOB).read_text(encoding="utf-8"))
    changed = [key for key, value in job.items() if before.get(key) != value]
    if changed:
        raise UserError(
            f"{shards}: has an unfinished run that differs in {', '.join(changed)}; "
            f"repeat the command of that run to finish it, or remove the folder to start over"
        )


def fingerprint(model: Path) -> str:
    """A digest of all files that the translations of a model depend on."""
    digest = hashlib.sha256()
    for part in filter(None, (model, find_verifier(model))):
        own = (part / CONFIG, part / WEIGHTS)
        for path in deciding_files(part) if is_exported(part) else [*own, *vocab_files(part)]:
            digest.update(bytes.fromhex(sha256(path)))
    return digest.hexdigest()


def _shard_name(number: int, lines: list[str]) -> str:
    """The name contains a digest of the source lines: if the source is edited, its shards are translated again."""
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    return f"{number:06d}-{digest[:16]}.txt"


def _without_repeats(lines: Iterable[str], repeats: dict[bytes, bool], bar: Bar) -> Iterator[str]:
    """The first occurrence of each line; records in `repeats`, by the digest of the line, whether it occurs again."""
    for line in lines:
        key = _digest(line)
        if key in repeats:
            repeats[key] = True
            bar.advance()
        else:
            repeats[key] = False
            yield line


def _repeated(
    lines: Iterable[str], translations: Iterator[str], repeats: dict[bytes, bool], source: Path
) -> Iterator[str]:
    """The translation of every line, from those of the lines that `_without_repeats` kept."""
    kept: dict[bytes, str] = {}
    for line in lines:
        key = _digest(line)
        if key not in kept:
            text = next(translations, None)
            if text is None or key not in repeats:
                raise UserError(f"{source}: changed during translation; run the same command again")
            if not repeats[key]:
                yield text
                continue
            kept[key] = text
        yield kept[key]


def _digest(line: str) -> bytes:
    return hashlib.blake2b(line.encode(), digest_size=16).digest()
