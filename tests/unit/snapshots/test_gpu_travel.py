"""GPU work on its way: streams, clients, files, and what a hostile sender makes of it."""

from __future__ import annotations

import itertools
import random
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard

from gpuprof.snapshots import chunk_windows, chunks, file, wire
from gpuprof.snapshots.errors import FrameError
from gpuprof.snapshots.file import SnapshotWriter, read_snapshot
from gpuprof.snapshots.frames import (
    MAGIC,
    Frame,
    FrameKind,
    GpuWork,
    Hello,
    Query,
    Samples,
    Status,
    StringDefs,
)
from gpuprof.snapshots.history import History

ALL = Query(1, "gpu", 0, 1 << 60, min_fraction=0.0, max_nodes=1 << 30, by_thread=True)
NAMES = ("start_ns", "end_ns", "gpu", "stream", "thread", "stack")


def ingested(frames: list[Frame], hello: Hello) -> History:
    history = History(hello, max_bytes=1 << 30, max_age_ns=None)
    for frame in wire.Decoder().feed(MAGIC + b"".join(map(wire.pack, frames))):
        history.ingest(frame)
    return history


def rows_of(history: History) -> list[tuple[Any, ...]]:
    """Return all rows with the texts that their numbers stand for."""
    found = []
    for view, rows in history.gpu_work_between(0, 1 << 60):
        for start, end, gpu, stream, thread, _ in zip(
            *(rows.columns[n].tolist() for n in NAMES), strict=True
        ):
            found.append((start, end, view.strings[gpu], stream, view.threads[thread].tid))
    return sorted(found)


def planted_rows(planted_work: Any) -> list[tuple[Any, ...]]:
    return sorted((w.start_ns, w.end_ns, w.gpu, w.stream, w.tid) for w in planted_work.work)


def fill(planted_work: Any, random_work: Any, random_rows: Any, seed: int, *, roll: bool) -> None:
    """Add samples, GPU work and readings in turns."""
    samples, work = random_rows(seed, 1200), random_work(seed, 1500)
    series = planted_work.history.series("gpu_observed", gpu="G1")
    for part in range(5):
        planted_work.add(*samples[part * 240 : (part + 1) * 240])
        planted_work.run(*work[part * 300 : (part + 1) * 300])
        at = 10**12 + part * 200_000
        planted_work.history.add_readings([series], [at], [at + 200_000], [1.0])
        if roll and part % 2:
            planted_work.history.roll_generation()


# ------------------------------------------------------------------------------------------- streams, clients


@pytest.mark.parametrize("seed", range(3))
def test_a_range_streamed_into_another_history_gives_the_same_answers(
    seed: int, request: pytest.FixtureRequest
) -> None:
    planted_work, random_work, random_rows, path_weights = (
        request.getfixturevalue(name)
        for name in ("planted_work", "random_work", "random_rows", "path_weights")
    )
    fill(planted_work, random_work, random_rows, seed, roll=bool(seed))
    history = planted_work.history
    copy = ingested(list(history.frames_between(0, 1 << 60)), history.hello)
    assert path_weights(copy.query(ALL)) == planted_work.brute(ALL)
    assert copy.query(ALL).summary == history.query(ALL).summary
    assert rows_of(copy) == planted_rows(planted_work)
    low, high = 10**12 + 300_000, 10**12 + 700_000
    part = ingested(list(history.frames_between(low, high)), history.hello)
    asked = replace(ALL, start_ns=low, end_ns=high)
    assert path_weights(part.query(asked)) == planted_work.brute(asked)
    cpu = replace(asked, tree="cpu")
    assert path_weights(part.query(cpu)) == path_weights(history.query(cpu))


def test_neighbouring_ranges_by_end_share_no_work(planted_work: Any, random_work: Any) -> None:
    planted_work.run(*random_work(5, 900))
    start, end = planted_work.history.span
    copy = History(planted_work.history.hello)
    edges = [start, start + 10_000, start + 10_001, start + 333_333, end]
    for low, high in itertools.pairwise(edges):
        for frame in planted_work.history.frames_between(low, high, by_end=True):
            copy.ingest(frame)
    assert rows_of(copy) == planted_rows(planted_work)


def test_a_range_carries_only_what_its_work_needs(planted_work: Any, work: Any) -> None:
    planted_work.run(work(1, 2, "main > gemm", gpu="G0", pid=1), work(5, 9, "other > add", gpu="G1", pid=2))
    frames = list(planted_work.history.frames_between(4, 6))
    strings = [text for frame in frames if isinstance(frame, StringDefs) for text in frame.strings]
    assert {"G1", "add", "other"} <= set(strings)
    assert not {"G0", "gemm", "main"} & set(strings)
    metrics = list(planted_work.history.frames_between(0, 99, level="metrics"))
    assert not any(isinstance(frame, GpuWork) for frame in metrics)


@pytest.mark.parametrize("max_bytes", [1, 5000, 1 << 20])
def test_a_client_gets_everything_once_and_definitions_first(
    max_bytes: int, request: pytest.FixtureRequest
) -> None:
    planted_work, random_work, random_rows, path_weights = (
        request.getfixturevalue(name)
        for name in ("planted_work", "random_work", "random_rows", "path_weights")
    )
    history = planted_work.history
    cursor = history.cursor("rows", 0)
    metrics = history.cursor("metrics", 0)
    frames: list[Frame] = [history.hello]
    samples, work = random_rows(3, 600), random_work(3, 600)
    for part in range(6):
        planted_work.run(*work[part * 100 : (part + 1) * 100])
        planted_work.add(*samples[part * 100 : (part + 1) * 100])
        if part % 3 == 1:
            history.roll_generation()
        if part % 2:  # so that both logs have rows of two generations at times
            frames += history.since(cursor, max_bytes)
    while some := history.since(cursor, max_bytes):
        frames += some
    copy = ingested(frames, history.hello)  # FrameError should a row come before its definitions
    assert path_weights(copy.query(ALL)) == planted_work.brute(ALL)
    assert copy.query(replace(ALL, tree="cpu")).total_weight[0] == 600
    assert not any(isinstance(frame, GpuWork | Samples) for frame in history.since(metrics))


def test_a_slow_client_loses_work_and_is_told_how_much(hello: Hello, planted: Any, work: Any) -> None:
    history = History(hello, max_bytes=2 << 20, max_age_ns=None)
    thread = history.tables.thread(history.tables.process(planted.process(1)), 1, "t")
    cursor = history.cursor("rows", max_lag_ns=None)
    for batch in range(200):
        times = np.arange(1000) + batch * 1000
        same = np.zeros(1000, int)
        history.add_gpu_work(
            start_ns=times, end_ns=times, gpu=same, stream=same, thread=same + thread, stack=same
        )
    got = 0
    while some := history.since(cursor):
        got += sum(len(frame.start_ns) for frame in some if isinstance(frame, GpuWork))
    assert got + cursor.dropped_gpu_work == 200_000
    assert cursor.dropped_gpu_work > 100_000
    history.set_status(Status(1, [], 2, 3, 4, 5))
    (status,) = history.since(cursor)
    assert isinstance(status, Status)
    assert status.dropped_gpu_work == cursor.dropped_gpu_work


def test_much_gpu_work_does_not_push_out_the_readings(hello: Hello, planted: Any) -> None:
    history = History(hello, max_bytes=4 << 20, max_age_ns=None)
    thread = history.tables.thread(history.tables.process(planted.process(1)), 1, "t")
    series = history.series("power_w", gpu="G0")
    same = np.zeros(20_000, int)
    for second in range(60):
        times = np.arange(20_000) * 50_000 + second * 10**9
        history.add_readings(same[:300] + series, times[:300], times[:300], same[:300] * 1.0)
        history.add_gpu_work(
            start_ns=times, end_ns=times + 9, gpu=same, stream=same, thread=same + thread, stack=same
        )
    assert history.bytes_used <= 4 << 20
    assert len(history.readings) == 60 * 300
    oldest = history.gpu_work.span()
    assert oldest is not None
    assert oldest[0] > 50 * 10**9


def test_a_generation_lives_as_long_as_its_work(planted_work: Any, work: Any) -> None:
    planted_work.run(work(1, 2, "main > gemm"))
    planted_work.history.roll_generation()
    planted_work.run(work(3, 4, "main > gemm"))
    history = planted_work.history
    bounds = history._bounds
    assert bounds.frozen_bytes > 0
    history.gpu_work.drop_oldest()
    bounds.count_frozen(history.tables)
    assert bounds.frozen_bytes == 0


# ---------------------------------------------------------------------------------------------------- hostile


def u32(*numbers: int) -> Any:
    return np.array(numbers, np.uint32)


def u64(*numbers: int) -> Any:
    return np.array(numbers, np.uint64)


@pytest.mark.parametrize(
    "change",
    [
        {"stack": u32(99)}, {"thread": u32(1)}, {"gpu": u32(99)}, {"generation": 1}, {"generation": -1},
        {"end_ns": u64(1)}, {"end_ns": u64(1 << 62)}, {"end_ns": u64((1 << 64) - 1)},
        {"start_ns": u64((1 << 64) - 1)},
    ],
)  # fmt: skip
def test_work_that_cannot_be_true_is_a_frame_error(
    planted_work: Any, work: Any, change: dict[str, Any]
) -> None:
    planted_work.run(work(5, 9, "main > gemm"))
    frames = list(planted_work.history.frames_between(0, 99))
    assert ingested(frames, planted_work.history.hello).query(ALL).total_weight[0] == 4
    bad = [replace(frame, **change) if isinstance(frame, GpuWork) else frame for frame in frames]
    with pytest.raises(FrameError):
        ingested(bad, planted_work.history.hello)


def test_columns_of_different_lengths_are_a_frame_error(planted_work: Any, work: Any) -> None:
    planted_work.run(work(5, 9, "main > gemm"))
    for name in NAMES:
        frames = [
            replace(frame, **{name: np.repeat(getattr(frame, name), 2)})
            if isinstance(frame, GpuWork)
            else frame
            for frame in planted_work.history.frames_between(0, 99)
        ]
        with pytest.raises(FrameError):
            ingested(frames, planted_work.history.hello)


def test_random_streams_never_raise_anything_but_frame_errors(planted_work: Any, random_work: Any) -> None:
    planted_work.run(*random_work(4, 100))
    stream = MAGIC + b"".join(map(wire.pack, planted_work.history.frames_between(0, 1 << 60)))
    rng = random.Random(17)
    for _ in range(300):
        damaged = bytearray(stream)
        for _ in range(rng.randrange(1, 5)):
            damaged[rng.randrange(len(MAGIC), len(damaged))] = rng.choice([0, 1, 255, rng.randrange(256)])
        history = History(planted_work.history.hello)
        try:
            for frame in wire.Decoder().feed(damaged):
                history.ingest(frame)
        except FrameError:
            pass
        if history.gpu_work.next:
            history.query(ALL)


# ------------------------------------------------------------------------------------------------------ files


def frame_of(rng: np.random.Generator, count: int, high: int) -> GpuWork:
    columns = {name: rng.integers(0, high, count, dtype=np.uint64) for name in ("start_ns", "end_ns")}
    small = {
        name: rng.integers(0, 5, count).astype(np.uint32) for name in ("gpu", "stream", "thread", "stack")
    }
    return GpuWork(3, **columns, **small)


@pytest.mark.parametrize("count", [0, 1, 2, 1000])
@pytest.mark.parametrize("high", [50, 1 << 62, (1 << 64) - 1])
def test_any_columns_come_back_from_a_file(count: int, high: int) -> None:
    """Whatever they hold: rows that end before they start too, modulo 2^64."""
    frame = frame_of(np.random.default_rng(count), count, high)
    (back,) = chunks.unpack_frames(chunks.pack_frames([frame]))
    assert isinstance(back, GpuWork)
    assert back.generation == 3
    rows = [sorted(zip(*(getattr(f, name).tolist() for name in NAMES), strict=True)) for f in (frame, back)]
    assert rows[0] == rows[1]
    assert (np.diff(back.end_ns.astype(float)) >= 0).all()


def test_neighbours_of_one_generation_are_joined_in_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk_windows, "MAX_ROWS", 25)
    rng = np.random.default_rng(1)
    frames: list[Frame] = [frame_of(rng, 10, 99) for _ in range(5)]
    frames[3:3] = [StringDefs(3, 1, ["x"])]
    frames.append(replace(frames[-1], generation=4))
    joined = list(chunk_windows.merged(frames))
    assert [len(f.start_ns) if isinstance(f, GpuWork) else f.KIND for f in joined] == [
        20,
        10,
        "strings",
        20,
        10,
    ]


@pytest.mark.parametrize("chunk_ns", [10**12, 200_000])
@pytest.mark.parametrize("roll", [False, True])
def test_a_file_gives_the_answers_of_the_history_that_it_was_written_from(
    chunk_ns: int, roll: bool, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted_work, random_work, random_rows, path_weights, folder = (
        request.getfixturevalue(name)
        for name in ("planted_work", "random_work", "random_rows", "path_weights", "tmp_path")
    )
    monkeypatch.setattr(file, "CHUNK_NS", chunk_ns)
    fill(planted_work, random_work, random_rows, 8, roll=roll)
    history = planted_work.history
    with SnapshotWriter(folder / "x", history.hello) as writer:
        writer.write(history.frames_between(0, 1 << 60))
    assert writer.rows_written == (1200, 5)
    assert writer.gpu_rows_written == 1500
    opened = read_snapshot(folder / "x")
    assert opened.damage is None
    assert path_weights(opened.history.query(ALL)) == planted_work.brute(ALL)
    assert rows_of(opened.history) == planted_rows(planted_work)
    assert opened.history.span == history.span
    assert opened.history.query(ALL).summary == history.query(ALL).summary


def test_a_file_of_gpu_work_alone_that_is_written_as_it_comes(
    planted_work: Any, work: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file, "CHUNK_NS", 10**9)
    cursor = planted_work.history.cursor("rows", 0)
    with SnapshotWriter(tmp_path / "x", planted_work.history.hello) as writer:
        for second in range(6):
            at = 10**12 + second * 10**9
            planted_work.run(work(at, at + 3 * 10**9, f"main > k{second}"))  # longer than a chunk
            writer.write(planted_work.history.since(cursor))
    opened = read_snapshot(tmp_path / "x")
    assert opened.damage is None
    assert rows_of(opened.history) == planted_rows(planted_work)


def test_a_chunk_with_damaged_gpu_columns_is_left_out_and_named(
    planted_work: Any, work: Any, tmp_path: Path
) -> None:
    planted_work.run(work(5, 9, "main > gemm"))
    frames = list(planted_work.history.frames_between(0, 99))
    for change in ({"end_ns": u64((1 << 64) - 1)}, {"stack": u32(50)}):
        bad = [replace(frame, **change) if isinstance(frame, GpuWork) else frame for frame in frames]
        parts = [chunks.pack_chunk(chunks.DATA, chunks.pack_frames(part), 1, 2) for part in (frames, bad)]
        (tmp_path / "x").write_bytes(chunks.file_header() + b"".join(parts))
        opened = read_snapshot(tmp_path / "x")
        assert opened.damage is not None
        assert opened.history.query(ALL).total_weight[0] == 4


def test_a_minute_of_ten_thousand_kernels_a_second_fits_two_megabytes(
    hello: Hello, planted: Any, tmp_path: Path
) -> None:
    """A training step of 2,000 kernels, repeated; durations vary by 3 % on the 32 ns grid of the device, and
    gaps by 20 % around what is usual at that place of the step.
    """
    rng = np.random.default_rng(1)
    count, stacks = 600_000, 1000
    history = History(hello, max_bytes=1 << 30, max_age_ns=None)
    tables = history.tables
    thread = tables.thread(tables.process(planted.process(1)), 1, "t")
    frames = [tables.frame(tables.function(f"function_{n}", "", "lib", FrameKind.NATIVE)) for n in range(900)]
    kernel = tables.frame(tables.function("gemm", "", "", FrameKind.GPU_KERNEL))
    ids = np.array(
        [tables.stack([frames[n] for n in rng.integers(0, 900, 30)] + [kernel]) for _ in range(stacks)]
    )
    which = np.resize(rng.integers(0, stacks, 2000), count)
    lengths, gaps = rng.lognormal(9.5, 1, stacks)[which], rng.lognormal(9.5, 1, stacks)[which]
    duration = (lengths * rng.normal(1, 0.03, count).clip(0.5) / 32).astype(np.int64) * 32
    gap = (gaps * rng.normal(1, 0.2, count).clip(0.1)).astype(np.int64)
    start = np.cumsum(gap + np.concatenate([[0], duration[:-1]])) + 10**12
    same = np.zeros(count, int)
    history.add_gpu_work(
        start_ns=start, end_ns=start + duration, gpu=same + tables.string("GPU-1"), stream=same + 7,
        thread=same + thread, stack=ids[which],
    )  # fmt: skip
    with SnapshotWriter(tmp_path / "x", hello) as writer:
        writer.write(history.frames_between(*history.span))
    assert writer.bytes_written < 2_000_000
    assert writer.gpu_rows_written == count


def test_a_body_that_was_compressed_in_one_go_is_still_read() -> None:
    raw = chunks.pack_frames([frame_of(np.random.default_rng(1), 5000, 99)])
    header = chunks.parse_header(chunks.pack_chunk(chunks.DATA, raw, 1, 2)[: chunks.HEADER_BYTES])
    assert header is not None
    body = zstandard.ZstdCompressor(level=12).compress(raw)
    changed = replace(header, stored_bytes=len(body), crc=zlib.crc32(body))
    assert chunks.unpack_body(changed, body) == raw
