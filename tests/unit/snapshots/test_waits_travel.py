"""Waits and weights travel: added, bounded, streamed, stored in a file and read back as they were."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpuprof.snapshots import chunk_windows, chunks, file
from gpuprof.snapshots.errors import FrameError
from gpuprof.snapshots.frames import (
    NO_THREAD,
    Frame,
    FrameKind,
    GpuWork,
    Hello,
    ProcessDef,
    Samples,
    Status,
    Waits,
)
from gpuprof.snapshots.history import History
from gpuprof.snapshots.table_view import frame_label

Fact = tuple[Any, ...]


def fill(history: History, seed: int, count: int) -> list[Fact]:
    """Add random waits, and return them as facts that do not depend on ids."""
    rng = random.Random(seed)
    rows: list[tuple[float, ...]] = []
    facts: list[Fact] = []
    with history.lock:
        tables = history.tables
        for number in range(count):
            pid = rng.randrange(1, 4)
            process = tables.process(ProcessDef(pid, pid * 10, f"proc{pid}", "", "ada", 1000, 1))
            thread = tables.thread(process, pid * 100 + rng.randrange(3), "t")
            waker = thread if rng.random() < 0.5 else NO_THREAD
            names = [f"f{rng.randrange(4)}" for _ in range(rng.randrange(1, 5))]
            ids = [tables.frame(tables.function(name, "a.py", "", FrameKind.PYTHON), 3) for name in names]
            ids.append(tables.frame(tables.function("futex", "", "", FrameKind.WAIT)))
            start = 10**12 + number * 1000 + rng.randrange(3000)
            end = start + rng.choice([0, rng.randrange(5000), 90_000])
            weight, kind = float(rng.choice([1, 1, 3.5])), rng.randrange(3)
            rows.append((start, end, thread, tables.stack(ids), waker, weight, kind))
            tid = tables.view().thread_tid[thread]
            wakes = None if waker == NO_THREAD else int(tid)
            facts.append((start, end, int(tid), (*names, "futex"), wakes, weight, kind))
        history.add_waits(*zip(*rows, strict=True))
    return sorted(facts, key=str)


def facts_of(history: History, low: int = 0, high: int = 1 << 60) -> list[Fact]:
    found: list[Fact] = []
    for view, rows in history.waits_between(low, high):
        columns = (rows.columns[name].tolist() for name in rows.columns)
        for start, end, thread, stack, waker, weight, kind in zip(*columns, strict=True):
            names = []
            node = stack
            while node:
                names.append(frame_label(view, int(view.frame[node]))[0])
                node = int(view.parent[node])
            wakes = None if waker == NO_THREAD else int(view.thread_tid[waker])
            tid = int(view.thread_tid[thread])
            found.append((start, end, tid, tuple(reversed(names)), wakes, weight, kind))
    return sorted(found, key=str)


def ingested(frames: list[Frame], hello: Hello) -> History:
    history = History(hello)
    for frame in frames:
        history.ingest(frame)
    return history


def test_waits_come_back_from_a_stream_in_any_range(hello: Hello) -> None:
    history = History(hello)
    facts = fill(history, 1, 500)
    assert facts_of(history) == facts
    assert facts_of(ingested(list(history.frames_between(0, 1 << 60)), hello)) == facts
    low, high = 10**12 + 100_000, 10**12 + 200_000
    inside = [fact for fact in facts if fact[0] < high and (fact[1] > low or low == fact[0] == fact[1])]
    assert facts_of(ingested(list(history.frames_between(low, high)), hello), low, high) == inside
    assert not any(isinstance(f, Waits) for f in history.frames_between(0, 1 << 60, level="metrics"))


def test_neighbouring_ranges_share_no_wait_by_end(hello: Hello) -> None:
    history = History(hello)
    facts = fill(history, 2, 300)
    edges = [0, 10**12 + 50_000, 10**12 + 120_000, 1 << 60]
    found = 0
    for low, high in itertools.pairwise(edges):
        for frame in history.frames_between(low, high, by_end=True):
            found += len(frame.start_ns) if isinstance(frame, Waits) else 0
    assert found == len(facts)


def test_a_cursor_sends_waits_after_what_they_refer_to_and_counts_the_lost(hello: Hello) -> None:
    history = History(hello)
    cursor, metrics = history.cursor("rows", 0), history.cursor("metrics", 0)
    facts = fill(history, 3, 400)
    history.roll_generation()
    facts = sorted(facts + fill(history, 4, 100), key=str)
    frames: list[Frame] = [hello]
    while some := history.since(cursor, 2000):
        frames += some
    assert facts_of(ingested(frames, hello)) == facts
    assert not any(isinstance(frame, Waits) for frame in history.since(metrics))

    small = History(hello, max_bytes=1 << 20)
    late = small.cursor("rows", 0, max_lag_ns=None)
    for seed in range(40):
        fill(small, seed, 2000)
    small.set_status(Status(1, [], 0, 0, 0, 0))
    got = list(small.since(late, 1 << 30))
    rows = sum(len(frame.start_ns) for frame in got if isinstance(frame, Waits))
    assert rows + late.dropped_waits == 80_000
    assert late.dropped_waits > 10_000
    small.set_status(Status(2, [], 0, 0, 0, 0))
    status = next(frame for frame in small.since(late) if isinstance(frame, Status))
    assert status.dropped_waits == late.dropped_waits


def test_a_file_keeps_waits_and_weights(
    hello: Hello, tmp_path: Path, random_work: Callable[[int, int], list[Any]], planted_work: Any
) -> None:
    history = planted_work.history
    facts = fill(history, 5, 700)
    planted_work.run(*random_work(1, 50))
    with history.lock:
        part = history.gpu_work_between(0, 1 << 60)[0][1].columns
        rng = np.random.default_rng(1)
        weight = rng.choice([0, 1, 2.5], len(part["stack"]))
        history.add_gpu_work(**(part | {"weight": weight}))
    path = tmp_path / "x.gpuprof"
    with file.SnapshotWriter(path, hello) as writer:
        writer.write(history.frames_between(0, 1 << 60))
    assert writer.wait_rows_written == 700
    opened = file.read_snapshot(path)
    assert opened.damage is None
    assert facts_of(opened.history) == facts
    wrote, read = (weights_of(h) for h in (history, opened.history))
    assert wrote == read


def weights_of(history: History) -> list[tuple[int, int, float]]:
    found: list[tuple[int, int, float]] = []
    for _, rows in history.gpu_work_between(0, 1 << 60):
        columns = (rows.columns[name].tolist() for name in ("start_ns", "end_ns", "weight"))
        found += zip(*columns, strict=True)
    return sorted(found)


def waits_frame(history: History) -> Iterator[tuple[list[Frame], Waits]]:
    frames = list(history.frames_between(0, 1 << 60))
    yield frames, next(frame for frame in frames if isinstance(frame, Waits))


@pytest.mark.parametrize(
    "change",
    [
        {"thread": np.array([9, 9], np.uint32)}, {"stack": np.array([99, 0], np.uint32)},
        {"waker": np.array([9, NO_THREAD], np.uint32)}, {"weight": np.array([np.nan, 1], np.float32)},
        {"weight": np.array([-1, 1], np.float32)}, {"weight": np.array([np.inf, 1], np.float32)},
        {"end_ns": np.array([0, 0], np.uint64)}, {"end_ns": np.array([1 << 63, 1 << 63], np.uint64)},
        {"generation": 7},
    ],
)  # fmt: skip
def test_waits_that_cannot_be_true_are_refused(hello: Hello, change: dict[str, Any]) -> None:
    history = History(hello)
    fill(history, 6, 2)
    for frames, waits in waits_frame(history):
        bad = [replace(waits, **change) if frame is waits else frame for frame in frames]
        with pytest.raises(FrameError):
            ingested(bad, hello)


def test_a_wait_of_a_later_kind_is_a_blocked_one(hello: Hello) -> None:
    history = History(hello)
    fill(history, 6, 2)
    for frames, waits in waits_frame(history):
        odd = replace(waits, kind=np.array([77, 1], np.uint8))
        back = ingested([odd if frame is waits else frame for frame in frames], hello)
        assert sorted(fact[-1] for fact in facts_of(back)) == [0, 1]


def test_windows_of_different_kinds_or_generations_are_not_joined() -> None:
    u32 = np.array([1, 2], np.uint32)
    times = np.array([5, 9], np.uint64)
    wait = Waits(0, times, times, u32, u32, u32, u32.astype(np.float32), u32.astype(np.uint8))
    work = GpuWork(0, times, times, u32, u32, u32, u32)
    joined = list(chunk_windows.merged([wait, wait, work, work, replace(work, generation=1)]))
    assert [(frame.KIND, len(frame.start_ns)) for frame in joined if isinstance(frame, Waits | GpuWork)] == [
        ("waits", 4), ("gpu_work", 4), ("gpu_work", 2),
    ]  # fmt: skip
    back = next(iter(chunks.unpack_frames(chunks.pack_frames([wait, wait]))))
    assert isinstance(back, Waits)
    assert back.end_ns.tolist() == [5, 5, 9, 9]


def test_work_of_an_older_version_weighs_one(hello: Hello, planted_work: Any, random_work: Any) -> None:
    planted_work.run(*random_work(2, 30))
    frames = list(planted_work.history.frames_between(0, 1 << 60))
    back = ingested(frames, hello)
    assert {weight for *_, weight in weights_of(back)} == {1.0}
    assert any(isinstance(frame, GpuWork) for frame in frames)
    assert not any(isinstance(frame, Samples) for frame in frames)
