"""Snapshot files that end too early: what is kept of them, and what is said of the rest."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from gpuprof.snapshots import chunks, file
from gpuprof.snapshots.errors import EXIT_BAD_FILE, FileError
from gpuprof.snapshots.file import SnapshotWriter, read_snapshot

PARTS = 6  # of what would take minutes in one test on a busy machine


def test_a_file_cut_in_its_last_chunk_says_how_much_is_missing(files: Any, snapshot: Path) -> None:
    data = snapshot.read_bytes()
    snapshot.write_bytes(data[: files.offsets(snapshot)[4] + 70])
    opened = read_snapshot(snapshot)
    assert opened.damage == (
        f"the file was cut: the first 4.0 s are kept ({files.clock(opened, 0)} to {files.clock(opened, 4)}); "
        f"the 1.0 s after them, to {files.clock(opened, 5)}, are missing, of 5.0 s in all"
    )
    assert files.samples(opened.history) == 4


def test_a_file_of_a_minute_cut_to_a_tenth_says_that_most_is_missing(
    files: Any, planted: Any, row: Any, tmp_path: Path
) -> None:
    """Kept is the first chunk, of ten seconds; missing is all the rest, not the length of the chunk that was
    cut.
    """
    history = files.small(planted, row, 60)
    path = tmp_path / "x"
    with SnapshotWriter(path, history.hello) as writer:
        writer.write(history.frames_between(*history.span))
    path.write_bytes(path.read_bytes()[: files.offsets(path)[1] + 100])
    opened = read_snapshot(path)
    assert opened.damage is not None
    assert "the first 10.0 s are kept" in opened.damage
    assert "the 50.0 s after them" in opened.damage
    assert opened.damage.endswith("are missing, of 60.0 s in all")


def test_an_older_file_that_was_cut_says_how_much_is_missing_at_least(files: Any, snapshot: Path) -> None:
    """Without a span chunk, which is known from the header of the chunk that was cut."""
    data = snapshot.read_bytes()
    starts = files.offsets(snapshot)
    snapshot.write_bytes(data[: chunks.FILE_HEADER.size] + data[starts[0] : starts[4] + 70])
    os.utime(snapshot, (1, 1))
    opened = read_snapshot(snapshot)
    assert opened.damage == (
        f"the file was cut within chunk 5: the first 4.0 s are kept ({files.clock(opened, 0)} to "
        f"{files.clock(opened, 4)}); what came after them is missing, 1.0 s or more"
    )


@pytest.mark.parametrize("where", ["end", "within the last chunk", "within the index"])
def test_a_file_that_lost_its_end_only(files: Any, snapshot: Path, where: str) -> None:
    data = snapshot.read_bytes()
    starts = files.offsets(snapshot)
    cut = {"end": -1, "within the last chunk": starts[5] - 1, "within the index": starts[5] + 60}[where]
    snapshot.write_bytes(data[:cut])
    opened = read_snapshot(snapshot)
    assert opened.damage is not None
    assert files.samples(opened.history) == (4 if where == "within the last chunk" else 5)
    if where == "within the index":
        assert opened.damage == "its end mark is missing, and nothing else"


def test_a_short_recording_loses_a_part_of_itself_only(
    files: Any, planted: Any, row: Any, tmp_path: Path
) -> None:
    """Eight seconds, as they come, and at once: a damaged byte or a cut costs at most half of them."""
    history = files.small(planted, row, 8)
    for streamed in (True, False):
        path = tmp_path / f"x{streamed}"
        with SnapshotWriter(path, history.hello) as writer:
            if streamed:
                for second in range(8):
                    at = 10**12 + second * 10**9
                    writer.write(history.frames_between(at, at + 10**9))
            else:
                writer.write(history.frames_between(*history.span))
        data = path.read_bytes()
        starts = files.offsets(path)
        assert len(starts) - 1 >= 3
        for at in range(starts[0] + 60, starts[-1], 97):
            path.write_bytes(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
            assert 4 <= files.samples(read_snapshot(path).history) < 8
        path.write_bytes(data[: starts[-2] + 10])
        assert 4 <= files.samples(read_snapshot(path).history) < 8


def test_a_recorder_that_is_killed_early_leaves_what_it_had_written(
    files: Any, planted: Any, row: Any, tmp_path: Path
) -> None:
    """After N seconds at least half of them are in the file, less a second, and all but ten later on."""
    path = tmp_path / "x"
    writer = SnapshotWriter(path, planted.history.hello)
    for second in range(40):
        at = 10**12 + second * 10**9
        planted.add(*(row(at + part * 10**8, "main") for part in range(10)))
        writer.write(planted.history.frames_between(at, at + 10**9))
        if second < 2:
            continue
        left = tmp_path / "left"
        left.write_bytes(path.read_bytes())
        kept = files.samples(read_snapshot(left).history) / 10
        assert kept >= max((second + 1) / 2 - 1, second + 1 - 11), second
    writer.close()


@pytest.mark.parametrize("part", range(PARTS))
def test_a_file_cut_at_every_byte_opens_or_says_why_not(files: Any, snapshot: Path, part: int) -> None:
    data = snapshot.read_bytes()
    starts = files.offsets(snapshot)
    ends = [*starts[1:6]]  # of the five data chunks
    for length in range(part, len(data), PARTS):
        snapshot.write_bytes(data[:length])
        whole = sum(length >= end for end in ends)
        if not whole:
            with pytest.raises(FileError) as error:
                read_snapshot(snapshot)
            assert error.value.hint
            assert error.value.exit_code == EXIT_BAD_FILE
            continue
        opened = read_snapshot(snapshot)
        assert files.samples(opened.history) == whole
        assert opened.damage


def test_a_full_disk_keeps_what_was_written(
    files: Any, planted: Any, row: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file, "CHUNK_NS", 10**9)
    history = files.small(planted, row)
    path = tmp_path / "x"
    writer = SnapshotWriter(path, history.hello)
    room = 1200  # bytes: two chunks and a part of the third
    real_write = os.write

    def write(fd: int, data: Any) -> int:
        nonlocal room
        if not room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        done = real_write(fd, data[: min(room, 100)])
        room -= done
        return done

    monkeypatch.setattr(file.os, "write", write)
    with pytest.raises(FileError) as error:
        writer.write(history.frames_between(*history.span))
    monkeypatch.undo()
    assert "no space is left" in error.value.message
    kept = files.samples(read_snapshot(path).history)
    assert kept >= 1
    assert error.value.hint.startswith(f"The first {kept:.1f} s are in the file")
    writer.close()  # does not raise again
    with pytest.raises(FileError):
        writer.write([])
