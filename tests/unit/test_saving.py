"""What key w leaves behind where a snapshot cannot be written: nothing."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpuprof.snapshots import file
from gpuprof.snapshots.errors import GpuprofError
from gpuprof.snapshots.file import read_snapshot
from gpuprof.snapshots.frames import NO_THREAD, Frame, FrameKind, Hello, ProcessDef, Query, WaitKind
from gpuprof.snapshots.history import History
from gpuprof.tui import saving

SECOND = 10**9


async def frames(
    seconds: int, *, hello: bool = True, end: BaseException | None = None
) -> AsyncIterator[Frame]:
    first = Hello(1, "node", "boot", "6.1", 2, 10**12, 0, "0", 1, 99, 10, True)
    history = History(first)
    series = history.series("power_w", gpu="G")
    for second in range(seconds):
        at = 10**12 + second * SECOND + np.arange(100) * 10_000_000
        history.add_readings([series] * 100, at, at, np.random.default_rng(second).random(100))
    for frame in history.frames_between(0, 1 << 62):
        if hello or not isinstance(frame, Hello):
            yield frame
    if end is not None:
        raise end


def test_a_whole_one_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    fd, path = saving.create_here("a.gpuprof")
    saved = asyncio.run(saving.save_frames(frames(30), fd, path))
    assert (saved.path, saved.readings) == (str(tmp_path / "a.gpuprof"), 3000)
    assert read_snapshot(path).damage is None


def test_what_is_saved_of_a_recording_is_as_long_as_the_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = 10**12, 10**12 + 3 * SECOND - 10_000_000 + 1
    for recorded, span in ((None, rows), ((rows[0] - 7, rows[1] + 9), (rows[0] - 7, rows[1] + 9))):
        fd, path = saving.create_here("a.gpuprof")
        asyncio.run(saving.save_frames(frames(3), fd, path, recorded=recorded))
        assert read_snapshot(path).history.span == span


async def crossing(recorded: tuple[int, int]) -> AsyncIterator[Frame]:
    """A sample each 10 ms, and a wait and a kernel from 7 s before a range to 5 s after it."""
    start, end = recorded
    history = History(Hello(1, "node", "boot", "6.1", 2, 10**12, 0, "0", 1, 99, 10, True))
    tables = history.tables
    process = tables.process(ProcessDef(7, 1, "python", "python t.py", "me", 1000, 1))
    thread = tables.thread(process, 7, "main")
    stack = tables.stack([tables.frame(tables.function("f", "t.py", "", FrameKind.PYTHON), 1)])
    first, last = start - 7 * SECOND, end + 5 * SECOND
    times = np.arange(first, last, 10_000_000, np.uint64)
    zeros = np.zeros(len(times), np.uint32)
    history.add_samples(times, zeros, zeros + thread, zeros + stack)
    history.add_waits([first], [last], [thread], [stack], [NO_THREAD], 1.0, [int(WaitKind.BLOCKED)])
    history.add_gpu_work(start_ns=[first], end_ns=[last], gpu=[0], stream=[7], thread=[thread], stack=[stack])
    for frame in history.frames_between(start, end):
        yield frame


def test_a_saved_range_is_that_range_though_rows_cross_its_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    recorded = 10**12 + 20 * SECOND, 10**12 + 20 * SECOND + 9_350_000_000
    fd, path = saving.create_here("a.gpuprof")
    saved = asyncio.run(saving.save_frames(crossing(recorded), fd, path, recorded=recorded))
    assert (saved.samples, saved.gpu_work) == (935, 1)
    opened = read_snapshot(path)
    assert opened.damage is None
    history = opened.history
    assert history.span == recorded
    for log in (history.waits, history.gpu_work):
        assert log.span() == recorded
    waiting = history.query(Query(1, "offcpu", *history.span))
    assert waiting.total_weight[0] == 9_350_000_000
    # Saving the same once more, out of the file, changes nothing.
    again, name = saving.create_here("b.gpuprof")

    async def of_the_file() -> AsyncIterator[Frame]:
        for frame in history.frames_between(*history.span):
            yield frame

    asyncio.run(saving.save_frames(of_the_file(), again, name, recorded=history.span))
    assert read_snapshot(name).history.span == recorded


@pytest.mark.parametrize("room", [0, 10, 100, 9000])
def test_a_full_disk_leaves_nothing_and_the_message_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    monkeypatch.chdir(tmp_path)
    real_write = os.write
    left = room

    def write(fd: int, data: Any) -> int:
        nonlocal left
        if not left:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        done = real_write(fd, data[:left])
        left -= done
        return done

    monkeypatch.setattr(file.os, "write", write)
    fd, path = saving.create_here("a.gpuprof")
    with pytest.raises(GpuprofError) as error:
        asyncio.run(saving.save_frames(frames(30), fd, path))
    assert error.value.message == f"cannot write {path}: no space is left on the device"
    assert error.value.hint.startswith("Nothing is left of it")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(OSError):
        os.fstat(fd)


@pytest.mark.parametrize(
    "stream",
    [frames(0, hello=False), frames(1, hello=False), frames(9, end=GpuprofError("it ended"))],
)
def test_a_stream_that_breaks_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stream: AsyncIterator[Frame]
) -> None:
    monkeypatch.chdir(tmp_path)
    fd, path = saving.create_here("a.gpuprof")
    with pytest.raises(GpuprofError):
        asyncio.run(saving.save_frames(stream, fd, path))
    assert list(tmp_path.iterdir()) == []


def test_another_file_of_that_name_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "a"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT)
    path.rename(tmp_path / "mine")
    path.write_text("theirs")
    saving.remove(fd, str(path))
    os.close(fd)
    assert path.read_text() == "theirs"


def test_a_file_of_the_parent_is_removed_by_the_parent(tmp_path: Path) -> None:
    fd = os.open("/dev/full", os.O_WRONLY)
    asked = []

    def discard() -> None:
        os.fstat(fd)  # still open
        asked.append(1)

    with pytest.raises(GpuprofError, match=r"cannot write /x/a\.gpuprof: no space"):
        asyncio.run(saving.save_frames(frames(1), fd, "/x/a.gpuprof", discard))
    assert asked == [1]
