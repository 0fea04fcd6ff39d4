"""Reading text files, and writing files and directories atomically.

Text is UTF-8 with one sentence per line, plain or compressed (.gz, .xz), and always streamed. Output is written under a
temporary name in the same folder and renamed when it is complete, so it is either whole or absent.
"""

from __future__ import annotations

import codecs
import contextlib
import errno
import gzip
import io
import lzma
import os
import shutil
import sys
import zlib
from collections.abc import Iterable, Iterator
from itertools import islice, zip_longest
from pathlib import Path
from typing import TypeVar

from lath.errors import UserError

STANDARD_INPUT = Path("-")

Item = TypeVar("Item")


def read_lines(path: Path, *, keep_mark: bool = False) -> Iterator[str]:
    """Yield the lines of a text file, or of standard input ("-"), without line endings.

    Only "\\n" and "\\r\\n" end a line. Other separators such as U+2028 may occur inside a sentence, and splitting there
    would break the alignment of two files. A byte order mark at the start is dropped, unless `keep_mark`.
    """
    with _reading_errors(path), _open_text(path) as stream:
        for number, raw in enumerate(stream, start=1):
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
    if path == STANDARD_INPUT or path.is_fifo():
        raise UserError(
            f"{path}: a pipe can be read only once, but this command reads the text twice; write it to a file"
        )
    count, last = 0, b"\n"
    with _reading_errors(path), _open_text(path) as stream:
        while block := stream.read(1 << 20):
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


@contextlib.contextmanager
def whole_directory(path: Path) -> Iterator[Path]:
    """A temporary directory next to `path`, renamed to `path` on success and removed on failure.

    with whole_directory(Path("out")) as directory:
        (directory / "data.json").write_text("{}")
    """
    if os.path.lexists(path):
        raise UserError(f"{path}: exists already; choose another name or remove it")
    partial = _partial(path)
    with _creating_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(partial, ignore_errors=True)  # left by a killed process with the same process id
        partial.mkdir()
    try:
        with disk_errors(path):
            yield partial
        with _creating_errors(path):
            partial.rename(path)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A temporary file next to `path`; it replaces `path` on success and is removed on failure.

    with whole_file(Path("scores.json")) as partial:
        partial.write_text("{}")
    """
    if path.is_dir():
        raise UserError(f"{path}: is a directory; name a file")
    partial = _partial(path)
    with _creating_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.touch()
    try:
        with disk_errors(path):
            yield partial
        with _creating_errors(path):
            os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def _partial(path: Path) -> Path:
    return path.with_name(f".{path.name}.partial-{os.getpid()}")


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
