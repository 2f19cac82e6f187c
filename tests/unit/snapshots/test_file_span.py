"""The length of a recording: what its recorder says, kept in the file, and believed as far as rows bear it
out.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from gpuprof.snapshots import chunks, file
from gpuprof.snapshots.errors import FileError
from gpuprof.snapshots.file import SnapshotWriter, read_snapshot
from gpuprof.snapshots.frames import Hello, Query
from gpuprof.snapshots.history import History
from gpuprof.snapshots.recorded_span import BEYOND_NS, span_of
from gpuprof.snapshots.report import json_report, text_report

SECOND = 10**9
FIRST = 10**12  # when the first row of `files.small` starts
MAX_U64 = (1 << 64) - 1


def span_of_file(path: Path) -> tuple[int, int]:
    opened = read_snapshot(path)
    assert opened.damage is None
    return opened.history.span


@pytest.mark.parametrize("chunk_ns", [10 * SECOND, SECOND])
@pytest.mark.parametrize("streamed", [True, False])
def test_a_quiet_recording_is_as_long_as_it_was(
    files: Any, planted: Any, row: Any, request: pytest.FixtureRequest, *, streamed: bool, chunk_ns: int
) -> None:
    """A row a second, the first 0.15 s after the beginning and the last 0.17 s before the end."""
    request.getfixturevalue("monkeypatch").setattr(file, "CHUNK_NS", chunk_ns)
    path = request.getfixturevalue("tmp_path") / "x"
    history = files.small(planted, row, 4)
    span = FIRST - 150_000_000, FIRST + 4 * SECOND + 170_000_000
    with SnapshotWriter(path, history.hello) as writer:
        if streamed:
            for second in range(5):
                writer.recorded(span[0])
                writer.write(history.frames_between(FIRST + second * SECOND, FIRST + (second + 1) * SECOND))
            writer.recorded(*span)
        else:
            writer.recorded(*span)
            writer.write(history.frames_between(*history.span))
    assert span_of_file(path) == span
    assert writer.span_ns == span[1] - span[0]
    whole = read_snapshot(path).history
    assert files.samples(whole) >= 4
    query = Query(1, "cpu", *whole.span)
    assert "(4.3 s)" in text_report(whole, query).split("\n")[1]
    assert json_report(whole, query)["range_ns"] == list(span)


def test_the_end_is_kept_where_all_rows_were_written_before(
    files: Any, planted: Any, row: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file, "CHUNK_BYTES", 1)  # every frame is written at once
    history = files.small(planted, row, 2)
    with SnapshotWriter(tmp_path / "x", history.hello) as writer:
        writer.write(history.frames_between(*history.span))
        writer.recorded(FIRST, FIRST + 3 * SECOND)
    assert span_of_file(tmp_path / "x") == (FIRST, FIRST + 3 * SECOND)
    assert writer.rows_written == (2, 2)


def test_without_a_word_of_the_recorder_a_file_goes_from_row_to_row(snapshot: Path) -> None:
    """As older files do."""
    assert span_of_file(snapshot) == (FIRST, FIRST + 5 * SECOND + 1)


def test_rows_beyond_what_was_said_are_shown(files: Any, planted: Any, row: Any, tmp_path: Path) -> None:
    history = files.small(planted, row, 5)
    with SnapshotWriter(tmp_path / "x", history.hello) as writer:
        writer.recorded(FIRST + 2 * SECOND, FIRST + 3 * SECOND)
        writer.write(history.frames_between(*history.span))
    assert span_of_file(tmp_path / "x") == history.span
    assert writer.span_ns == history.span[1] - history.span[0]


def test_what_a_killed_recorder_leaves_begins_with_the_recording_and_ends_with_a_row(
    files: Any, planted: Any, row: Any, tmp_path: Path
) -> None:
    history = files.small(planted, row, 3)
    writer = SnapshotWriter(tmp_path / "x", history.hello)
    writer.recorded(FIRST - SECOND // 10)
    writer.write(history.frames_between(*history.span))
    left = tmp_path / "left"
    left.write_bytes((tmp_path / "x").read_bytes())
    writer.close()
    opened = read_snapshot(left)
    assert opened.history.span == (FIRST - SECOND // 10, FIRST + 3 * SECOND + 1)
    assert opened.damage is not None
    assert "was not closed: the first 3.1 s are kept" in opened.damage


def test_of_a_file_that_was_cut_the_rest_is_missing_to_the_end_that_was_said(
    files: Any, planted: Any, row: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file, "CHUNK_NS", SECOND)
    history = files.small(planted, row, 5)
    path = tmp_path / "x"
    with SnapshotWriter(path, history.hello) as writer:
        writer.recorded(FIRST, FIRST + 9 * SECOND)
        writer.write(history.frames_between(*history.span))
    data, starts = path.read_bytes(), files.offsets(path)
    path.write_bytes(data[: starts[-1] + 10])  # within the index
    opened = read_snapshot(path)
    assert opened.damage == "its end mark is missing, and nothing else"
    assert opened.history.span == (FIRST, FIRST + 9 * SECOND)
    path.write_bytes(data[: starts[4] + 10])
    opened = read_snapshot(path)
    assert opened.damage is not None
    assert "the 5.0 s after them" in opened.damage
    assert "are missing, of 9.0 s in all" in opened.damage
    assert opened.history.span == (FIRST, FIRST + 4 * SECOND)


def test_a_file_of_a_pipe_says_it_too(files: Any, planted: Any, row: Any, tmp_path: Path) -> None:
    """There the beginning of the file cannot be written over."""
    history = files.small(planted, row, 2)
    reads, writes = os.pipe()
    with SnapshotWriter(writes, history.hello, name="pipe") as writer:
        writer.recorded(FIRST, FIRST + 3 * SECOND)
        writer.write(history.frames_between(*history.span))
    os.close(writes)
    with os.fdopen(reads, "rb") as stream:
        (tmp_path / "x").write_bytes(stream.read())
    assert span_of_file(tmp_path / "x") == (FIRST, FIRST + 3 * SECOND)


def test_a_recording_without_rows_is_as_long_as_it_was(hello: Hello, tmp_path: Path) -> None:
    with SnapshotWriter(tmp_path / "x", hello) as writer:
        writer.recorded(FIRST, FIRST + 3 * SECOND)
    assert span_of_file(tmp_path / "x") == (FIRST, FIRST + 3 * SECOND)
    assert writer.span_ns == 3 * SECOND


@pytest.mark.parametrize(
    ("said", "believed"),
    [
        ((0, 0), (0, 0)),
        ((0, 1), (-BEYOND_NS, 0)),
        ((0, MAX_U64), (-BEYOND_NS, BEYOND_NS)),
        ((MAX_U64 - 1, MAX_U64), (0, BEYOND_NS)),
        ((MAX_U64, 0), (0, 0)),  # reversed
        ((FIRST + 10 * SECOND, FIRST - 10 * SECOND), (0, 0)),
        ((FIRST - BEYOND_NS, FIRST + BEYOND_NS), (-BEYOND_NS, BEYOND_NS - 3 * SECOND - 1)),
        ((FIRST + SECOND, FIRST + 2 * SECOND), (0, 0)),  # within the rows
        ((1 << 62, 1 << 63), (0, BEYOND_NS)),
    ],
)
def test_what_cannot_be_is_not_believed(
    files: Any, planted: Any, row: Any, request: pytest.FixtureRequest, *, said: Any, believed: Any
) -> None:
    """Chunks and the span chunk say anything; `believed` is what is added to the range of the rows."""
    path = request.getfixturevalue("tmp_path") / "x"
    history = files.small(planted, row, 3)
    body = chunks.pack_frames(history.frames_between(*history.span))
    path.write_bytes(
        chunks.file_header() + chunks.span_chunk(*said) + chunks.pack_chunk(chunks.DATA, body, *said)
    )
    os.utime(path, (1, 1))
    opened = read_snapshot(path)
    low, high = history.span
    assert opened.history.span == (low + believed[0], high + believed[1])
    assert files.samples(opened.history) == 3
    assert text_report(opened.history, Query(1, "cpu", *opened.history.span))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(FileError):  # says what is missing, whatever was said
        read_snapshot(path)


def test_without_rows_little_is_believed() -> None:
    assert span_of(None, None) is None
    assert span_of(None, (FIRST, FIRST + SECOND)) == (FIRST, FIRST + SECOND)
    assert span_of(None, (FIRST, MAX_U64)) == (FIRST, FIRST + BEYOND_NS)
    for nonsense in ((MAX_U64 - 1, MAX_U64), (5, 5), (5, 4), (-5, 5)):
        assert span_of(None, nonsense) is None


def test_gpu_time_after_the_last_reading_is_neither_idle_nor_made_up(stories: Any) -> None:
    """A device is observed to 3.0 s of a recording of 3.2 s: what it did after that nobody knows."""
    story = stories.Story()
    story.observed(0, 3000)
    story.gpu(7, "main %gemm", 0, 1000)
    story.history.recorded = (stories.ORIGIN, stories.ORIGIN + 3200 * stories.MS)
    tree = story.ask("gpu", 0, 3200)
    assert tree.summary.startswith("GPU 0: busy 1.00 s, idle 2.00 s, not observed 200 ms of 3.20 s")
    story.history.recorded = None
    assert story.ask("gpu", 0, 3200).summary.startswith("GPU 0: busy 1.00 s, idle 2.00 s of 3.00 s")


def test_a_live_history_goes_from_row_to_row(hello: Hello) -> None:
    history = History(hello)
    assert history.span == (hello.mono_ns, hello.mono_ns)
    history.add_readings([history.series("power_w", gpu="G")], [FIRST], [FIRST + 5], [1.0])
    assert history.span == (FIRST, FIRST + 6)
