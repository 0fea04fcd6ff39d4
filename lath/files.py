"""Reading text files, and writing files and directories atomically.

Text is UTF-8 with one sentence per line, plain or compressed (.gz, .xz), and always streamed. Output is written under a
temporary name in the same folder and renamed when it is complete and on the disk, so it is either whole or absent, even
after a power cut. Whoever writes holds a lock, which the system releases when the process ends, however it ends.
"""

from __future__ import annotations

import codecs
import contextlib
import errno
import fcntl
import gzip
import hashlib
import io
import json
import lzma
import math
import os
import re
import secrets
import shutil
import sys
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any, TypeVar

from lath.errors import UserError

STANDARD_INPUT = Path("-")
MAX_LINE = 1 << 20
"""Bytes of a line with its ending. A megabyte is a novel on one line: the file is no text with a sentence per line, and
memory must not grow with it."""
_BREAKS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
PARTIAL = re.compile(r"\..+\.partial-[0-9a-f]{16}")
"""Names of what is being written, or was when its process was killed."""

Item = TypeVar("Item")


def one_line(text: str) -> str:
    """The text with a space for each control character and line separator, so that no reader sees a second line.

    >>> one_line("one\\r\\ntwo")
    'one  two'
    """
    return _BREAKS.sub(" ", text)


def json_line(value: Any) -> str:
    """The value as JSON on one line. JSON has no nan and no infinity: they become null.

    >>> json_line({"score": float("-inf"), "steps": [1, 0.5]})
    '{"score": null, "steps": [1, 0.5]}'
    """
    return json.dumps(_finite(value), allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_lines(path: Path, *, keep_mark: bool = False) -> Iterator[str]:
    """Yield the lines of a text file, or of standard input ("-"), without line endings.

    Only "\\n" and "\\r\\n" end a line. Other separators such as U+2028 may occur inside a sentence, and splitting there
    would break the alignment of two files. A byte order mark at the start is dropped, unless `keep_mark`.
    """
    with _reading_errors(path), _open_text(path) as stream:
        for number, raw in enumerate(iter(lambda: stream.readline(MAX_LINE + 1), b""), start=1):
            if len(raw) > MAX_LINE:
                raise _too_long(path, f"line {number}")
            yield _decoded(raw, path, number, keep_mark or number > 1)


def read_blocks(path: Path, starts: Iterable[int], size: int) -> Iterator[list[str]]:
    """Yield `size` lines from each of the ascending `starts`, which are counted from 0; the others are not decoded."""
    read = 0
    with _reading_errors(path), _open_text(path) as stream:
        for start in starts:
            for _ in islice(stream, start - read):
                pass
            yield [_decoded(raw, path, line, line > 1) for line, raw in enumerate(islice(stream, size), start + 1)]
            read = start + size


def _too_long(path: Path, which: str) -> UserError:
    return UserError(
        f"{path}: {which} is longer than {MAX_LINE} bytes; give a text file with one sentence or paragraph per line"
    )


def _decoded(raw: bytes, path: Path, number: int, keep_mark: bool) -> str:
    try:
        # Only the first line can hold a byte order mark, and utf-8-sig takes twice as long as utf-8.
        line = raw.decode("utf-8" if keep_mark else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path}: line {number} is not valid UTF-8 (byte {error.start + 1} of the line); "
            f"convert it to UTF-8, for example with iconv -f LATIN1 -t UTF-8"
        ) from None
    if "\0" in line:
        raise UserError(
            f"{path}: line {number} contains a NUL byte, so this is not plain text; convert it to UTF-8, for example "
            f"with iconv -f UTF-16 -t UTF-8, or remove the NUL bytes with tr -d '\\000'"
        )
    line = line.removesuffix("\n")
    return line.removesuffix("\r")


def _open_text(path: Path) -> io.BufferedReader | gzip.GzipFile | lzma.LZMAFile:
    """A file whose lines are bytes; UTF-16 is refused, because its line ends are not those of UTF-8."""
    stream = _open_binary(path)
    if encoding := _utf16(stream.peek(64)[:64]):
        stream.close()
        raise UserError(f"{path}: the text is {encoding}; convert it to UTF-8 with iconv -f {encoding} -t UTF-8")
    return stream


def _utf16(start: bytes) -> str:
    """The encoding of a text that begins as UTF-16 does: with a byte order mark, or with a NUL in every other byte."""
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "UTF-16"
    if len(start) >= 4 and not any(start[1::2]) and all(start[::2]):
        return "UTF-16LE"
    if len(start) >= 4 and not any(start[::2]) and all(start[1::2]):
        return "UTF-16BE"
    return ""


def _open_binary(path: Path) -> io.BufferedReader | gzip.GzipFile | lzma.LZMAFile:
    if path == STANDARD_INPUT:
        if sys.stdin is None or not sys.stdin.readable():
            raise UserError("standard input is closed; give a text file, or pipe text into the command")
        return open(sys.stdin.fileno(), "rb", closefd=False)
    if path.is_dir():  # gzip and lzma raise other errors for a directory
        raise IsADirectoryError(errno.EISDIR, "is a directory", str(path))
    if path.suffix == ".gz":
        return gzip.open(path, "rb")
    if path.suffix == ".xz":
        return lzma.open(path, "rb")
    return open(path, "rb")


@contextlib.contextmanager
def _reading_errors(path: Path) -> Iterator[None]:
    """Turn errors while reading a file into a `UserError`."""
    try:
        yield
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; check the path (it is relative to the current directory)") from None
    except IsADirectoryError:
        raise UserError(f"{path}: is a directory; name a text file (plain, .gz or .xz)") from None
    except EOFError:
        raise UserError(f"{path}: truncated: the compressed data ends too early; copy or download it again") from None
    except (gzip.BadGzipFile, zlib.error, lzma.LZMAError) as error:
        raise UserError(
            f"{path}: not a valid {path.suffix} file ({error}); copy or download it again, "
            f"or remove the suffix {path.suffix} if it is plain text"
        ) from None
    except OSError as error:
        raise UserError(
            f"{path}: cannot be read: {error.strerror or error}; check the file and its permissions"
        ) from None


def count_lines(path: Path) -> int:
    """Count the lines that `read_lines` would yield, without decoding them.

    Callers read the text again afterwards, so a stream that can be read only once is refused.
    """
    if path == STANDARD_INPUT or path.is_fifo() or path.is_char_device():
        raise UserError(
            f"{path}: a pipe or device can be read only once, but this command reads the text twice; write it to a file"
        )
    count, last = 0, b"\n"
    with _reading_errors(path), _open_text(path) as stream:
        while block := stream.read(MAX_LINE + 1):
            if len(block) > MAX_LINE and b"\n" not in block:
                raise _too_long(path, f"line {count + 1}")
            count += block.count(b"\n")
            last = block[-1:]
    return count + (last != b"\n")


def read_pairs(source: Path, target: Path) -> Iterator[tuple[str, str]]:
    """Yield the line pairs of two aligned files; different line counts are an error when the shorter file ends."""
    sources, targets = read_lines(source), read_lines(target)
    for count, (source_line, target_line) in enumerate(zip_longest(sources, targets)):
        if source_line is None or target_line is None:
            rest = 1 + sum(1 for _ in (targets if source_line is None else sources))
            counts = (count, count + rest) if source_line is None else (count + rest, count)
            raise misaligned(source, counts[0], target, counts[1])
        yield source_line, target_line


def misaligned(source: Path, source_count: int, target: Path, target_count: int) -> UserError:
    """The error for two files with different numbers of lines."""
    return UserError(
        f"{source} has {source_count} lines but {target} has {target_count}: "
        f"line n of one must be the translation of line n of the other; fix or re-export the files"
    )


def chunks(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Yield the items in lists of `size`; the last list may be shorter.

    >>> list(chunks("abcde", 2))
    [['a', 'b'], ['c', 'd'], ['e']]
    """
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk


def read_json(path: Path, largest: int) -> Any:
    """A JSON file of up to `largest` bytes that a stranger may have written; a `ValueError` says what is wrong."""
    if path.stat().st_size > largest:
        raise ValueError(f"over {largest} bytes")
    try:
        return json.loads(path.read_bytes().decode("utf-8"), object_pairs_hook=_unique)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    tree = dict(pairs)
    if len(tree) != len(pairs):
        raise ValueError("a name occurs twice")
    return tree


@contextlib.contextmanager
def damage_errors(path: Path, remedy: str) -> Iterator[None]:
    """Turn whatever goes wrong with the contents of a file that lath should have written into a `UserError`."""
    try:
        yield
    except (ValueError, TypeError, KeyError, AttributeError, RuntimeError) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else str(error).partition("\n")[0]
        raise UserError(
            f"{path}: damaged or not written by lath ({reason or type(error).__name__}); {remedy}"
        ) from None


def require_format(path: Path, number: object, known: Collection[int], remedy: str = "update lath") -> None:
    """Refuse a file of another version."""
    if number not in known:
        formats = f"format{'s' if len(known) > 1 else ''} {' and '.join(map(str, known))}"
        raise UserError(f"{path}: format {number!r}, but this version of lath reads {formats}; {remedy}")


def sha256(path: Path) -> str:
    """The digest of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@contextlib.contextmanager
def whole_directory(path: Path) -> Iterator[Path]:
    """A temporary directory next to `path`, renamed to `path` on success and removed on failure.

    with whole_directory(Path("out")) as directory:
        (directory / "data.json").write_text("{}")
    """
    if os.path.lexists(path):
        raise UserError(f"{path}: exists already; choose another name or remove it")
    with _partial(path, Path.mkdir) as partial:
        yield partial


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A temporary file next to `path`; it replaces `path` on success and is removed on failure.

    with whole_file(Path("scores.json")) as partial:
        partial.write_text("{}")
    """
    if path.is_dir():
        raise UserError(f"{path}: is a directory; name a file")
    with _partial(path, Path.touch) as partial:
        yield partial


def write_xz(path: Path, lines: Iterable[str]) -> None:
    """Write lines as a compressed text, whole or not at all."""
    with whole_file(path) as partial:
        partial.write_bytes(lzma.compress("".join(f"{line}\n" for line in lines).encode(), preset=9))


@contextlib.contextmanager
def _partial(path: Path, make: Callable[[Path], None]) -> Iterator[Path]:
    partial: Path | None = None
    with contextlib.ExitStack() as held:
        try:
            with _creating_errors(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                _remove_abandoned(path.parent)
                while partial is None or not _hold(partial, held):  # again if taken for abandoned before it was locked
                    partial = path.with_name(f".{path.name}.partial-{secrets.token_hex(8)}")
                    make(partial)
            with disk_errors(path):
                yield partial
            with _creating_errors(path):
                _sync(partial)
                os.replace(partial, path)
                _sync_one(path.parent)
        except BaseException:
            if partial is not None:
                _remove(partial)
            raise


def _remove_abandoned(folder: Path) -> None:
    """Remove what killed processes have left in a folder; what a process still writes is locked."""
    for partial in [path for path in folder.iterdir() if PARTIAL.fullmatch(path.name)]:
        with contextlib.suppress(OSError):
            descriptor = _take_lock(partial)
            try:
                _remove(partial)
            finally:
                os.close(descriptor)


def _remove(partial: Path) -> None:
    if partial.is_dir():
        shutil.rmtree(partial, ignore_errors=True)
    else:
        partial.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    """Wait until a file, or a directory with all that is in it, is on the disk."""
    for folder, _, names in os.walk(path, topdown=False):
        for name in names:
            _sync_one(Path(folder, name))
        _sync_one(Path(folder))
    if path.is_file():
        _sync_one(path)


def _sync_one(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some network file systems cannot do it for a directory
            raise
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def locked(path: Path, what: str) -> Iterator[None]:
    """Lock an existing file until the end of the block or of the process; if another process has it, a `UserError`."""
    with contextlib.ExitStack() as held:
        if not _hold(path, held):
            raise UserError(f"{what} is in use by another process; wait for it to end, or stop it first")
        yield


def _hold(path: Path, held: contextlib.ExitStack) -> bool:
    """Lock a file or directory until `held` ends; False if another has it. A file system without locks has none."""
    try:
        held.callback(os.close, _take_lock(path))
    except (BlockingIOError, FileNotFoundError):
        return False
    except OSError:
        return True
    return True


def _take_lock(path: Path) -> int:
    """An open file that holds the lock; the error is a `BlockingIOError` if another process holds it."""
    # Over NFS only what is open for writing can be locked, which a directory cannot be.
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(descriptor), path.stat()):
            raise BlockingIOError  # its owner has just replaced it
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


@contextlib.contextmanager
def _creating_errors(path: Path) -> Iterator[None]:
    """Turn the error for a path that cannot be created into a `UserError`."""
    try:
        with disk_errors(path):
            yield
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror or error}; choose another path") from None


@contextlib.contextmanager
def disk_errors(path: Path | str) -> Iterator[None]:
    """Turn a full disk into a `UserError` that names the file being written."""
    try:
        yield
    except Exception as error:
        if not _disk_full(error):
            raise
        raise UserError(f"disk full while writing {path}: free some space and run the same command again") from None


def _disk_full(error: Exception) -> bool:
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    # Libraries with their own writing code (safetensors) keep the system's message but not its error number.
    return os.strerror(errno.ENOSPC) in str(error)
