"""Sequence-level distillation: a teacher rewrites the target side of a corpus.

Section 4.1 of the paper trains every non-autoregressive model on such text. Line n of the source becomes line n of
the output; a line that comes again, as where a corpus repeats what it holds dear, is translated once.
Work is kept in shards beside the output, each whole or absent, so a killed run goes on where it was.
The teacher may be an exported model (exported.py), which is faster on a CPU.
Several ranks (distributed.py) take the shards in turn; the first joins them.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from lath.config import to_tree
from lath.engine.ctranslate2 import deciding_files
from lath.errors import UserError
from lath.files import count_lines, read_lines, whole_directory, whole_file
from lath.model.directory import CONFIG, WEIGHTS, is_exported
from lath.progress import Bar
from lath.text.vocab import vocab_files
from lath.training.ranks import ALONE, World, gather, lead
from lath.translator import READ_AHEAD, Translator

SHARD_LINES = 10_000
"""Lines of a shard, unless large batches of like length need more to choose from."""
JOB = "job.json"
"""In the folder of the shards: what decides their text."""


def distill(
    translator: Translator,
    model: Path,
    source: Path,
    out: Path,
    shard_lines: int | None = None,
    world: World = ALONE,
    **settings: Any,
) -> int:
    """Translate `source` into `out`, shard by shard; returns the line count. The same call goes on after a kill."""
    shards = out.with_name(out.name + ".shards")
    again: dict[bytes, bool] = {}

    def begin() -> tuple[int, int]:
        decoding = _check(translator, out, settings)
        # The text does not depend on it, and a smaller one may let a run go on.
        batch: int = decoding.pop("batch_sentences")
        lines = count_lines(source)
        size = shard_lines or _begun_size(shards) or max(SHARD_LINES, READ_AHEAD * batch)
        job = {"model": _fingerprint(model), "precision": translator.precision, "settings": decoding}
        _claim(shards, {**job, "shard size": size})
        return lines, size

    def join() -> None:
        translations = itertools.chain.from_iterable(map(read_lines, finished))
        with whole_file(out) as partial, partial.open("w", encoding="utf-8", newline="\n") as joined:
            joined.writelines(text + "\n" for text in _repeated(read_lines(source), translations, again, source))
        shutil.rmtree(shards)

    lines, size = lead(world, begin)
    with Bar("distilling", lines, "lines", shown=world.first) as bar:
        chunks = enumerate(_chunks(_without_repeats(read_lines(source), again, bar), size))
        finished = gather(world, lambda: _write_shards(translator, shards, chunks, bar, world, settings))[0]
    lead(world, join)
    return lines


def _check(translator: Translator, out: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """The settings as they will be used; an output that could not be written, or was, is refused."""
    if out.exists():
        raise UserError(f"{out}: exists already; choose another name or remove it")
    if out.suffix in (".gz", ".xz"):
        raise UserError(f"{out}: the text is written unpacked; choose a name without {out.suffix}")
    return to_tree(translator.settings(**settings))


def _begun_size(shards: Path) -> int | None:
    """The shard size of an unfinished run, which its continuation keeps."""
    path = shards / JOB
    if not path.exists():
        return None
    size: int | None = json.loads(path.read_text(encoding="utf-8")).get("shard size")
    return size


def _write_shards(
    translator: Translator,
    shards: Path,
    chunks: Iterator[tuple[int, list[str]]],
    bar: Bar,
    world: World,
    settings: dict[str, Any],
) -> list[Path]:
    """Translate this rank's shards, where they are not there yet; returns the names of all ranks'."""
    named: list[Path] = []
    for number, chunk in chunks:
        shard = shards / _shard_name(number, chunk)
        if number % world.size == world.rank and not shard.exists():
            with whole_file(shard) as partial, partial.open("w", encoding="utf-8", newline="\n") as stream:
                for hypothesis in translator.hypotheses(chunk, **settings):
                    stream.write(hypothesis.text + "\n")
                    bar.advance()
        else:
            bar.advance(len(chunk))
        named.append(shard)
    return named


def _claim(shards: Path, job: dict[str, Any]) -> None:
    """Create the shard folder, or make sure that the one found is of the same job."""
    path = shards / JOB
    if not path.exists():
        with whole_directory(shards) as partial:
            (partial / path.name).write_text(json.dumps(job) + "\n", encoding="utf-8")
        return
    before = json.loads(path.read_text(encoding="utf-8"))
    changed = [key for key, value in job.items() if before.get(key) != value]
    if changed:
        raise UserError(
            f"{shards}: holds an unfinished run that differs from this one in {', '.join(changed)}; "
            f"repeat that command to finish it, or remove the folder to start over"
        )


def _fingerprint(model: Path) -> str:
    """Tells one model from another by everything that decides its translations."""
    digest = hashlib.sha256()
    own = (model / CONFIG, model / WEIGHTS)
    for path in deciding_files(model) if is_exported(model) else [*own, *vocab_files(model)]:
        with path.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()


def _shard_name(number: int, lines: list[str]) -> str:
    """Tells whose translation a shard is: where the source was edited meanwhile, it is not taken for the new one's."""
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    return f"{number:06d}-{digest[:16]}.txt"


def _without_repeats(lines: Iterable[str], again: dict[bytes, bool], bar: Bar) -> Iterator[str]:
    """Each line where it first occurs; `again` learns of every line, by its digest, whether it comes again."""
    for line in lines:
        key = _digest(line)
        if key in again:
            again[key] = True
            bar.advance()
        else:
            again[key] = False
            yield line


def _repeated(
    lines: Iterable[str], translations: Iterator[str], again: dict[bytes, bool], source: Path
) -> Iterator[str]:
    """What `_without_repeats` left of the lines, translated, becomes the translation of all of them."""
    kept: dict[bytes, str] = {}
    for line in lines:
        key = _digest(line)
        if key not in kept:
            text = next(translations, None)
            if text is None or key not in again:
                raise UserError(f"{source}: was changed while it was translated; run the same command again")
            if not again[key]:
                yield text
                continue
            kept[key] = text
        yield kept[key]


def _digest(line: str) -> bytes:
    return hashlib.blake2b(line.encode(), digest_size=16).digest()


def _chunks(lines: Iterator[str], size: int) -> Iterator[list[str]]:
    while chunk := list(itertools.islice(lines, size)):
        yield chunk
