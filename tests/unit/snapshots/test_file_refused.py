"""What is no snapshot file, and what is not written to: a reason and a next step."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from gpuprof.snapshots import chunks, new_file
from gpuprof.snapshots.errors import FileError
from gpuprof.snapshots.file import SnapshotWriter, read_snapshot
from gpuprof.snapshots.frames import Hello


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"\x89GPU", "was cut"),
        (chunks.FILE_MAGIC, "was cut"),
        (chunks.file_header(), "nothing in"),
        (b"\x89GPUPROF\n\x1a\n\n" + b"x" * 50, "damaged in a transfer"),
        (chunks.FILE_MAGIC + b"\2\0\0\0", "newer"),
        (b'{"traceEvents": []}', "not a gpuprof snapshot"),
        (b"\x1f\x8b" + b"x" * 50, "not a gpuprof snapshot"),
        (b"SQLite format 3\0", "not a gpuprof snapshot"),
        (b"\0" * 100, "not a gpuprof snapshot"),
    ],
)
def test_what_is_no_snapshot_says_so_with_a_next_step(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "x\x1b[2J.gpuprof"
    path.write_bytes(content)
    with pytest.raises(FileError) as error:
        read_snapshot(path)
    assert words in error.value.message
    assert error.value.hint
    assert "\x1b" not in str(error.value)


def test_what_cannot_be_opened_says_so(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path, words in [
        (tmp_path, "is a folder"),
        (tmp_path / "missing", "no file"),
        (tmp_path / "fifo", "not a regular file"),
        (Path("/dev/null"), "not a regular file"),
        (tmp_path / ("x" * 5000), "cannot open"),
    ]:
        with pytest.raises(FileError) as error:
            read_snapshot(path)
        assert words in error.value.message
    with pytest.raises(FileError):
        read_snapshot("a\0b")


def test_a_file_that_exists_is_not_overwritten_unless_told_to(hello: Hello, tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"mine")
    with pytest.raises(FileError, match="exists already"):
        SnapshotWriter(path, hello)
    assert path.read_bytes() == b"mine"
    with SnapshotWriter(path, hello, force=True):
        pass
    assert path.stat().st_mode & 0o777 == 0o600
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileError):
        SnapshotWriter(link, hello, force=True)
    assert not (tmp_path / "elsewhere").exists()
    for bad in (tmp_path / "no" / "folder", tmp_path, "a\0b"):
        with pytest.raises(FileError):
            SnapshotWriter(bad, hello, force=True)


@pytest.mark.parametrize("overwrite", [False, True])
def test_what_is_no_regular_file_is_not_written_to(tmp_path: Path, overwrite: bool) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("elsewhere")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(tmp_path / "socket"))
    for path, what in [
        ("/dev/full", "a device"),
        ("/dev/null", "a device"),
        (str(tmp_path), "a folder"),
        (str(tmp_path / "fifo"), "a pipe"),
        (str(tmp_path / "socket"), "a socket"),
        (str(tmp_path / "link"), "a symbolic link"),
    ]:
        with pytest.raises(FileError) as error:
            new_file.create(path, overwrite=overwrite, instead="--force")
        assert f"is {what}" in error.value.message
        assert "regular file" in error.value.hint
        assert "--force" not in str(error.value)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["fifo", "link", "socket"]


def test_a_descriptor_is_called_by_the_name_that_it_has(hello: Hello) -> None:
    fd = os.open("/dev/full", os.O_WRONLY)
    with pytest.raises(FileError, match=r"cannot write run\.gpuprof: no space"):
        SnapshotWriter(fd, hello, name="run.gpuprof")
    os.close(fd)


def test_a_device_that_is_full_from_the_start(hello: Hello) -> None:
    fd = os.open("/dev/full", os.O_WRONLY)
    with pytest.raises(FileError, match="no space is left"):
        SnapshotWriter(fd, hello)
    os.close(fd)
