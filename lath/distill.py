"""Sequence-level distillation: a teacher rewrites the target side of a corpus.

Section 4.1 of the paper trains every non-autoregressive model on such text. Line n of the source becomes line n of
the output. Work is kept in shards beside the output, each whole or absent, so a killed run goes on where it was.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tqdm import tqdm

from lath.errors import UserError
from lath.files import count_lines, read_lines, whole_file
from lath.translator import Translator

SHARD_LINES = 10_000


def distill(
    translator: Translator, model: Path, source: Path, out: Path, shard_lines: int = SHARD_LINES, **settings: Any
) -> int:
    """Translate `source` into `out`, shard by shard; returns the line count. The same call goes on after a kill."""
    if out.exists():
        raise UserError(f"{out}: exists already; choose another name or remove it")
    lines = count_lines(source)
    shards = out.with_name(out.name + ".shards")
    _claim(shards, {"model": _fingerprint(model), "source": str(source), "lines": lines,
                    "shard_lines": shard_lines, "settings": settings})  # fmt: skip
    count = -(-lines // shard_lines)
    with tqdm(total=lines, unit="line", disable=None) as bar:
        for number, chunk in enumerate(_chunks(read_lines(source), shard_lines)):
            shard = _shard(shards, number)
            if not shard.exists():
                with whole_file(shard) as partial, partial.open("w", encoding="utf-8", newline="\n") as stream:
                    for hypothesis in translator.hypotheses(chunk, **settings):
                        stream.write(hypothesis.text + "\n")
                        bar.update()
            else:
                bar.update(len(chunk))
    with whole_file(out) as partial, partial.open("wb") as joined:
        for number in range(count):
            with _shard(shards, number).open("rb") as part:
                shutil.copyfileobj(part, joined)
    shutil.rmtree(shards)
    return lines


def _claim(shards: Path, job: dict[str, Any]) -> None:
    """Create the shard folder, or make sure that the one found is of the same job."""
    path = shards / "job.json"
    if not path.exists():
        shards.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as partial:
            partial.write_text(json.dumps(job) + "\n", encoding="utf-8")
        return
    before = json.loads(path.read_text(encoding="utf-8"))
    changed = [key for key, value in job.items() if before.get(key) != value]
    if changed:
        raise UserError(
            f"{shards}: holds an unfinished run with another {', '.join(changed)}; "
            f"repeat that command to finish it, or remove the folder to start over"
        )


def _fingerprint(model: Path) -> str:
    """Tells one model from another by the head of its weights and its settings."""
    digest = hashlib.sha256((model / "config.json").read_bytes())
    with (model / "model.safetensors").open("rb") as stream:
        digest.update(stream.read(1 << 22))
    return digest.hexdigest()[:16]


def _shard(shards: Path, number: int) -> Path:
    return shards / f"{number:06d}.txt"


def _chunks(lines: Iterator[str], size: int) -> Iterator[list[str]]:
    while chunk := list(itertools.islice(lines, size)):
        yield chunk
