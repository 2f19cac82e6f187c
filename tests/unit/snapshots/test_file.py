"""Snapshot files: what is read back is what was written, as it comes or at once."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpuprof.snapshots import chunks, file, file_reader, new_file
from gpuprof.snapshots.errors import FileError, FrameError
from gpuprof.snapshots.file import SnapshotWriter, read_snapshot
from gpuprof.snapshots.frames import Hello, Readings, Status
from gpuprof.snapshots.history import History


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("chunk_ns", [10**12, 300_000])
def test_a_file_gives_the_answers_of_the_history_that_it_was_written_from(
    seed: int, chunk_ns: int, files: Any, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted, random_rows, path_weights, folder = (
        request.getfixturevalue(name) for name in ("planted", "random_rows", "path_weights", "tmp_path")
    )
    monkeypatch.setattr(file, "CHUNK_NS", chunk_ns)
    planted.add(*random_rows(seed, 1500))
    series = [planted.history.series("power_w", gpu=gpu) for gpu in "AB"]
    for number in range(100):
        at = 10**12 + number * 15_000
        planted.history.add_readings(series, [at, at], [at + 40_000, at], [number / 7, float("nan")])
    path = folder / "x.gpuprof"
    with SnapshotWriter(path, planted.history.hello) as writer:
        writer.write(planted.history.frames_between(0, 1 << 60))
    opened = read_snapshot(path)
    assert opened.damage is None
    assert opened.history.damage is None
    assert opened.history.hello.host == "node17"
    assert path_weights(opened.history.query(files.ALL)) == planted.brute(files.ALL)
    assert repr(files.readings_of(opened.history)) == repr(files.readings_of(planted.history))
    assert opened.history.span == planted.history.span


def test_a_recording_written_as_it_comes(
    files: Any, planted: Any, row: Any, tmp_path: Path, *, path_weights: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file, "CHUNK_NS", 2 * 10**9)
    history = planted.history
    cursor = history.cursor("rows", 0)
    path = tmp_path / "x.gpuprof"
    writer = SnapshotWriter(path, history.hello)
    writer.write([history.hello])
    sizes = []
    for second in range(9):
        planted.add(row(10**12 + second * 10**9, f"main work{second}", pid=second % 2 + 1))
        history.set_status(Status(second, [], 1, 2, 3, 4))
        writer.write(history.since(cursor))
        sizes.append(writer.bytes_written)
        if second == 4:
            history.roll_generation()
    assert len(set(sizes)) > 3  # chunks are written while it goes on
    growing = read_snapshot(path)
    assert growing.damage is None  # the writer holds its lock
    assert growing.growing == growing.history.growing == "it is still being recorded: 7.0 s so far"
    assert files.samples(growing.history) >= 6
    torn = tmp_path / "torn"  # what is left when the recorder dies now
    torn.write_bytes(path.read_bytes())
    opened = read_snapshot(torn)
    assert opened.growing is None
    assert opened.damage is not None
    assert re.fullmatch(
        r"it was not closed: the first 7\.0 s are kept \(\S+ to \S+\); what came after them is missing "
        r"\(a recorder that is killed loses 10 s at most\)",
        opened.damage,
    )
    assert files.samples(opened.history) == files.samples(growing.history)
    writer.close()
    writer.close()
    opened = read_snapshot(path)
    assert (opened.damage, opened.growing) == (None, None)
    assert writer.span_ns == opened.history.span[1] - opened.history.span[0]
    assert path_weights(opened.history.query(files.ALL)) == planted.brute(files.ALL)
    assert opened.history.status is not None
    assert opened.history.status.time_ns == 8


def test_a_file_through_a_descriptor_that_the_caller_closes(
    files: Any, planted: Any, row: Any, tmp_path: Path
) -> None:
    history = files.small(planted, row)
    fd = os.open(tmp_path / "x", os.O_RDWR | os.O_CREAT, 0o600)
    with SnapshotWriter(fd, history.hello) as writer:
        writer.write(history.frames_between(0, 1 << 60))
    os.close(fd)
    assert files.samples(read_snapshot(tmp_path / "x").history) == 5


def test_a_recording_of_nothing_is_a_file_that_says_whose_it_is(
    files: Any, hello: Hello, tmp_path: Path
) -> None:
    with SnapshotWriter(tmp_path / "x", hello):
        pass
    opened = read_snapshot(tmp_path / "x")
    assert opened.damage is None
    assert opened.history.hello.host == "node17"
    assert files.samples(opened.history) == 0


def test_a_minute_of_16_cpus_is_well_under_two_megabytes(hello: Hello, planted: Any, tmp_path: Path) -> None:
    """Random stacks of 30 frames: worse than any real program."""
    rng = np.random.default_rng(1)
    tables = planted.history.tables
    process = tables.process(planted.process(1))
    threads = [tables.thread(process, tid, "t") for tid in range(16)]
    frames = [tables.frame(tables.function(f"function_{n}", "a.py", "b", 3), n) for n in range(1000)]
    stacks = np.array([tables.stack([frames[n] for n in rng.integers(0, 1000, 30)]) for _ in range(1000)])
    count = 16 * 99 * 60
    times = 10**12 + np.sort(rng.integers(0, 60 * 10**9, count))
    planted.history.add_samples(
        times, rng.integers(0, 16, count), rng.choice(threads, count), rng.choice(stacks, count)
    )
    with SnapshotWriter(tmp_path / "x", hello) as writer:
        writer.write(planted.history.frames_between(*planted.history.span))
    assert writer.bytes_written < 1_400_000


def test_a_file_in_which_nothing_is_yet(hello: Hello, tmp_path: Path) -> None:
    path = tmp_path / "x"
    fd = new_file.create(str(path), overwrite=False)
    try:
        for _ in range(2):
            with pytest.raises(FileError) as error:
                read_snapshot(path)
            assert "is still being recorded" in error.value.message
            assert "again then" in error.value.hint
            writer = SnapshotWriter(fd, hello, name="x")
        writer.close()
    finally:
        os.close(fd)
    assert read_snapshot(path).growing is None


def test_where_files_have_no_locks_the_age_of_the_file_tells(
    files: Any, planted: Any, row: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = files.small(planted, row)
    path = tmp_path / "x"
    writer = SnapshotWriter(path, history.hello)
    writer.write(history.frames_between(*history.span))
    monkeypatch.setattr(file_reader, "is_written", lambda _fd: None)
    assert read_snapshot(path).growing == "it is still being recorded: 5.0 s so far"
    os.utime(path, (1, 1))
    opened = read_snapshot(path)
    assert opened.growing is None
    assert opened.damage is not None
    assert "was not closed" in opened.damage
    writer.close()
    assert read_snapshot(path).growing is None


def test_kinds_of_chunks_of_a_later_version_are_skipped(files: Any, snapshot: Path) -> None:
    data = snapshot.read_bytes()
    at = files.offsets(snapshot)[1]
    later = chunks.pack_chunk(ord("Z"), b"something", 1, 2)
    snapshot.write_bytes(data[:at] + later + data[at:])
    opened = read_snapshot(snapshot)
    assert opened.damage is None
    assert files.samples(opened.history) == 5


def test_a_stream_that_contradicts_itself_is_not_written(hello: Hello, tmp_path: Path) -> None:
    u64 = np.array([1], np.uint64)
    writer = SnapshotWriter(tmp_path / "x", hello)
    with pytest.raises(FrameError):
        writer.write([hello, Readings(u64.astype("u4"), u64, u64, u64.astype(float))])
    writer.close()
    assert read_snapshot(tmp_path / "x").damage is None


def test_rows_far_apart_do_not_make_a_chunk_for_each_ten_seconds_between(
    files: Any, hello: Hello, tmp_path: Path
) -> None:
    history = History(hello, max_age_ns=None)
    series = history.series("temp_c", gpu="G")
    history.add_readings([series] * 3, [0, 5, 1 << 61], [7, 5, 1 << 61], [1.0, 2.0, 3.0])
    with SnapshotWriter(tmp_path / "x", hello) as writer:
        writer.write(history.frames_between(0, 1 << 62))
    opened = read_snapshot(tmp_path / "x")
    assert opened.damage is None
    assert files.readings_of(opened.history) == files.readings_of(history)
    assert writer.bytes_written < 2000
