from __future__ import annotations

import errno
import gzip
import lzma
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lath.errors import UserError
from lath.files import (
    chunks,
    count_lines,
    disk_errors,
    read_blocks,
    read_lines,
    read_pairs,
    whole_directory,
    whole_file,
)

COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}


def write(path: Path, raw: bytes) -> Path:
    path.write_bytes(raw)
    return path


@pytest.mark.parametrize("suffix", COMPRESSORS)
@pytest.mark.parametrize(
    ("raw", "lines"),
    [
        (b"", []),
        (b"\n", [""]),
        (b"a\nb\n", ["a", "b"]),
        (b"a\nb", ["a", "b"]),
        (b"a\r\n\r\nb\r", ["a", "", "b"]),
        (b"a\r\r\n", ["a\r"]),
        (b"a\rb\n", ["a\rb"]),
        (b"\xef\xbb\xbfa\n\xef\xbb\xbfb\n", ["a", "\ufeffb"]),
        ("x\u2028y\x0bz\x85\x1c\n".encode(), ["x\u2028y\x0bz\x85\x1c"]),
    ],
)
def test_lines_end_at_newlines_only(tmp_path: Path, suffix: str, raw: bytes, lines: list[str]) -> None:
    path = write(tmp_path / f"text{suffix}", COMPRESSORS[suffix](raw))
    assert list(read_lines(path)) == lines
    assert count_lines(path) == len(lines)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.text(st.characters(exclude_characters="\n\0", exclude_categories=["Cs"]), max_size=6), max_size=6))
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, lines: list[str]) -> None:
    path = tmp_path_factory.mktemp("lines") / "text"
    path.write_bytes("".join(f"{line}\r\n" for line in ["first", *lines]).encode())
    assert list(read_lines(path)) == ["first", *lines]
    assert count_lines(path) == 1 + len(lines)


def test_several_compressed_streams_are_one_file(tmp_path: Path) -> None:
    path = write(tmp_path / "text.xz", lzma.compress(b"a\n") + lzma.compress(b"b\n"))
    assert list(read_lines(path)) == ["a", "b"]


def test_a_large_file_is_streamed(tmp_path: Path) -> None:
    path = write(tmp_path / "text", b"good\n" * 100_000 + b"\xff\n")
    lines = read_lines(path)
    assert next(lines) == "good"  # the broken last line is not reached yet


TEXT = "\n".join(str(number**5) for number in range(3000)).encode()
BROKEN = {
    "truncated gz": ("a.gz", gzip.compress(TEXT, mtime=0)[:-2000], "a.gz: truncated: .* copy or download it again"),
    "truncated xz": ("a.xz", lzma.compress(TEXT)[:-2000], "a.xz: truncated: .* copy or download it again"),
    "plain gz": ("a.gz", b"plain\n", "a.gz: not a valid .gz file .*remove the suffix .gz if it is plain text"),
    "plain xz": ("a.xz", b"plain\n", "a.xz: not a valid .xz file .*remove the suffix .xz if it is plain text"),
    "bad block": ("a.gz", gzip.compress(b"x", mtime=0)[:10] + b"\xff" * 40, "a.gz: not a valid .gz file"),
    "bad check": ("a.gz", gzip.compress(TEXT, mtime=0)[:-8] + bytes(8), "a.gz: not a valid .gz file"),
    "bad xz": ("a.xz", lzma.compress(TEXT)[:2000] + bytes(5000), "a.xz: not a valid .xz file"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_compressed_files(tmp_path: Path, case: str) -> None:
    name, raw, message = BROKEN[case]
    path = write(tmp_path / name, raw)
    with pytest.raises(UserError, match=message):
        list(read_lines(path))
    with pytest.raises(UserError, match=message):
        count_lines(path)


def test_blocks_are_the_lines_that_reading_all_gives(tmp_path: Path) -> None:
    lines = [f"{number}\u2028ß" for number in range(50)]
    for name in ("text", "text.gz", "text.xz"):
        pack = {".gz": gzip.compress, ".xz": lzma.compress}.get(Path(name).suffix, bytes)
        path = write(tmp_path / name, pack(("\ufeff" + "\r\n".join(lines)).encode()))
        assert list(read_blocks(path, [0, 5, 20, 48], 5)) == [lines[0:5], lines[5:10], lines[20:25], lines[48:]]
    broken = write(tmp_path / "broken", b"a\n\xff\nb\n\xff\n")
    assert list(read_blocks(broken, [0, 2], 1)) == [["a"], ["b"]]
    with pytest.raises(UserError, match="broken: line 4 is not valid UTF-8"):
        list(read_blocks(broken, [2], 2))


def test_wrong_text_is_reported_with_its_line(tmp_path: Path) -> None:
    latin = write(tmp_path / "latin", "gut\nschön\n".encode("latin-1"))
    with pytest.raises(UserError, match=r"latin: line 2 is not valid UTF-8 \(byte 4 .*convert it to UTF-8.*iconv"):
        list(read_lines(latin))
    nul = write(tmp_path / "nul", b"a\nb\0c\n")
    with pytest.raises(UserError, match=r"nul: line 2 contains a NUL byte.*iconv.*tr -d '\\000'"):
        list(read_lines(nul))


@pytest.mark.parametrize("text", ["a\n", "Grüße\nschön\n" * 20, "Čapek\nĊrna\n"])
@pytest.mark.parametrize("compressed", [False, True])
def test_utf16_is_recognised_before_its_lines_are_counted(tmp_path: Path, text: str, compressed: bool) -> None:
    encodings = {"utf-16": "UTF-16", "utf-16-le": "UTF-16LE", "utf-16-be": "UTF-16BE"}
    for codec, name in encodings.items():
        if codec != "utf-16" and "Č" in text:
            continue  # without a byte order mark only Western text is recognised
        raw = text.encode(codec)
        path = write(tmp_path / "u.gz", gzip.compress(raw)) if compressed else write(tmp_path / "u", raw)
        for read in (lambda path: list(read_lines(path)), count_lines):
            with pytest.raises(UserError, match=f"the text is {name}; .*iconv -f {name} -t UTF-8$"):
                read(path)
    big = write(tmp_path / "big", b"\xfe\xff" + text.encode("utf-16-be"))
    with pytest.raises(UserError, match="the text is UTF-16; "):
        count_lines(big)


@pytest.mark.parametrize("raw", [b"", b"a", b"ab\n", b"\xc3\xbf\n", "ÿþ\n".encode(), b"\n\n\n\n"])
def test_short_utf8_is_not_taken_for_utf16(tmp_path: Path, raw: bytes) -> None:
    path = write(tmp_path / "short", raw)
    assert list(read_lines(path)) == raw.decode().splitlines()


def test_missing_files_and_directories(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="none: no such file; check the path"):
        list(read_lines(tmp_path / "none"))
    with pytest.raises(UserError, match="none: no such file"):
        count_lines(tmp_path / "none")
    for name in ("folder", "folder.gz", "folder.xz"):
        (tmp_path / name).mkdir()
        with pytest.raises(UserError, match=f"{name}: is a directory; name a text file"):
            list(read_lines(tmp_path / name))
    with pytest.raises(UserError, match="cannot be read: Not a directory"):
        list(read_lines(write(tmp_path / "file", b"") / "below"))


def test_what_can_be_read_only_once_is_not_counted(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, Path("-")):  # a count would leave nothing to read, and an empty output
        with pytest.raises(UserError, match=f"{path}: a pipe or device can be read only once, .* write it to a file"):
            count_lines(path)


@pytest.mark.parametrize(("items", "expected"), [("", []), ("ab", ["ab"]), ("abcd", ["abc", "d"]), ("abc", ["abc"])])
def test_chunks_keep_order_and_lose_nothing(items: str, expected: list[str]) -> None:
    assert ["".join(chunk) for chunk in chunks(items, 3)] == expected


def test_a_chunk_is_read_only_when_it_is_needed() -> None:
    read: list[int] = []
    parts = chunks((read.append(number) or number for number in range(10)), 4)
    assert next(parts) == [0, 1, 2, 3]
    assert len(read) == 4


def test_pairs(tmp_path: Path) -> None:
    source, target = write(tmp_path / "s", b"a\nb\n"), write(tmp_path / "t.gz", gzip.compress(b"1\n2"))
    assert list(read_pairs(source, target)) == [("a", "1"), ("b", "2")]


@pytest.mark.parametrize(("source_count", "target_count"), [(3, 7), (7, 3), (0, 1), (1, 0)])
def test_pairs_of_different_length_name_both_counts(tmp_path: Path, source_count: int, target_count: int) -> None:
    source, target = write(tmp_path / "s", b"x\n" * source_count), write(tmp_path / "t", b"y\n" * target_count)
    pairs = read_pairs(source, target)
    for _ in range(min(source_count, target_count)):
        assert next(pairs) == ("x", "y")
    with pytest.raises(UserError, match=f"s has {source_count} lines but .*t has {target_count}: line n of one"):
        next(pairs)


def test_a_directory_appears_whole(tmp_path: Path) -> None:
    out = tmp_path / "new" / "out"
    with whole_directory(out) as partial:
        (partial / "a").write_text("1")
        assert not out.exists()
        assert partial.parent == out.parent
    assert (out / "a").read_text() == "1"
    assert os.listdir(out.parent) == ["out"]


@pytest.mark.parametrize("failure", [ValueError, KeyboardInterrupt])
def test_a_failed_directory_leaves_nothing(tmp_path: Path, failure: type[BaseException]) -> None:
    def fail() -> None:
        with whole_directory(tmp_path / "out") as partial:
            (partial / "deep").mkdir()
            raise failure

    with pytest.raises(failure):
        fail()
    assert os.listdir(tmp_path) == []


def test_an_existing_directory_is_refused_untouched(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(UserError, match="out: exists already; choose another name or remove it"):
        with whole_directory(tmp_path / "out"):
            pytest.fail("must not get here")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    with pytest.raises(UserError, match="dangling: exists already"):
        with whole_directory(tmp_path / "dangling"):
            pytest.fail("must not get here")


def test_a_directory_that_someone_else_made_meanwhile_is_kept(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(UserError, match="out: cannot be written: .*choose another path"):
        with whole_directory(out):
            out.mkdir()
            (out / "theirs").touch()
    assert os.listdir(tmp_path) == ["out"]
    assert os.listdir(out) == ["theirs"]


def test_a_place_below_a_file_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "file", b"")
    with pytest.raises(UserError, match="out: cannot be written: .*choose another path"):
        with whole_directory(tmp_path / "file" / "out"):
            pytest.fail("must not get here")
    with pytest.raises(UserError, match="out: cannot be written: .*choose another path"):
        with whole_file(tmp_path / "file" / "out"):
            pytest.fail("must not get here")


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "new" / "scores.json"
    for text in ("1", "2"):
        with whole_file(path) as partial:
            partial.write_text(text)
        assert path.read_text() == text

    def fail() -> None:
        with whole_file(path) as partial:
            partial.write_text("3")
            raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011 (our own, raised above)
        fail()
    assert path.read_text() == "2"
    assert os.listdir(path.parent) == ["scores.json"]
    with pytest.raises(UserError, match="new: is a directory; name a file"):
        with whole_file(path.parent):
            pytest.fail("must not get here")


FULL = [
    OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
    OSError(errno.EDQUOT, os.strerror(errno.EDQUOT)),
    RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)"),
]


@pytest.mark.parametrize("error", FULL)
def test_a_full_disk_is_a_user_error(tmp_path: Path, error: Exception) -> None:
    message = "disk full while writing .*out: free some space and run the same command again"
    for writing in (whole_directory, whole_file, disk_errors):
        with pytest.raises(UserError, match=message):
            with writing(tmp_path / "out"):
                raise error
    assert os.listdir(tmp_path) == []


def test_a_real_full_disk() -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("this system has no /dev/full")
    with pytest.raises(UserError, match="disk full while writing x"):
        with disk_errors("x"), full.open("w") as file:
            file.write("x")


def test_other_errors_pass_through() -> None:
    with pytest.raises(OSError, match="something else"), disk_errors("x"):
        raise OSError(errno.EIO, "something else")
