"""Batches of records and of launches in every order, against one record at a time and known sums."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import numpy as np
import pytest

from gpuprof.sampler import gpu_ring, gpu_session
from gpuprof.sampler.gpu_clock import GpuClock
from gpuprof.sampler.gpu_join import HOLD_NS, WorkJoin
from gpuprof.sampler.gpu_session import GpuSession
from gpuprof.sampler.launch_stacks import Launches
from gpuprof.snapshots.columns import RowLog, constant, is_constant
from gpuprof.snapshots.frames import STACK_NOT_TAKEN, UNMATCHED_LAUNCH, FrameKind
from gpuprof.snapshots.history import History
from gpuprof.snapshots.rows import GPU_WORK_COLUMNS, columns_of, weights

SECOND = 10**9
FUNCTIONS = 5


def launches(
    history: History, session: GpuSession, correlation: Any, enter: Any, which: Any, *, epoch: int = 1
) -> Launches:
    """Launches from function `which` each, by a thread of that number."""
    with history.lock:
        tables = history.tables
        process = tables.process(session.process)
        threads = [tables.thread(process, 100 + n, f"t{n}") for n in range(FUNCTIONS)]
        frames = [
            tables.frame(tables.function(f"f{n}", "", "app", FrameKind.NATIVE)) for n in range(FUNCTIONS)
        ]
        stacks = [tables.stack([frame]) for frame in frames]
        return Launches(
            tables, session.pid, session.process.start_ns, epoch,
            np.asarray(correlation, np.uint32), np.asarray(enter, np.uint64),
            np.array(threads, np.uint32)[which], np.array(stacks, np.uint32)[which],
            np.ones(len(which), np.float32),
        )  # fmt: skip


def rows_of(history: History) -> list[tuple[Any, ...]]:
    """(stream, duration, thread id, path, weight, bytes) of each row, sorted."""
    found = []
    for view, part in history.gpu_work_between(0, 1 << 62):
        columns = {name: column.tolist() for name, column in part.columns.items()}
        for n in range(len(part)):
            stack, path = columns["stack"][n], []
            while stack:
                path.append(view.strings[view.name[view.frame_function[view.frame[stack]]]])
                stack = int(view.parent[stack])
            duration = columns["end_ns"][n] - columns["start_ns"][n]
            tid = view.threads[columns["thread"][n]].tid
            found.append(
                (
                    columns["stream"][n],
                    duration,
                    tid,
                    tuple(path[::-1]),
                    columns["weight"][n],
                    columns["bytes"][n],
                )
            )
    return sorted(found)


@pytest.mark.parametrize("seed", range(12))
def test_random_batches(seed: int, writer: Any, session: GpuSession, history: History) -> None:
    """Kernels and copies of two devices, in and out of order; launches before, with, after, or never."""
    random = np.random.default_rng(seed)
    join, count = WorkJoin(history), 600
    writer.clock()
    for number in range(1, 4):
        writer.name(number, b"k%d" % number)
    now = time.monotonic_ns()
    session.began_ns = now - SECOND
    ids = random.permutation(count).astype(np.uint32) + 1 if seed % 2 else np.arange(1, count + 1)
    start = np.uint64(now - 10**8) + np.arange(count, dtype=np.uint64) * np.uint64(100)
    if seed % 3 == 0:
        start = random.permutation(start)
    length = random.integers(0, 90, count).astype(np.uint64)
    name = random.integers(1, 4, count)
    copy = random.random(count) < (0 if seed % 4 == 0 else 0.2)
    late, never = random.random(count) < 0.2, random.random(count) < 0.1
    left_out = (random.random(count) < 0.3) & (seed % 5 == 0)
    device = np.zeros(count, np.int64) if seed % 2 else random.integers(0, 2, count)
    which = random.integers(0, FUNCTIONS, count)
    enter = start - np.uint64(50)
    expected = []
    for n in range(count):
        leaf = "memcpy HtoD" if copy[n] else f"k{name[n]}"
        if left_out[n]:
            path, tid, weight = (STACK_NOT_TAKEN, leaf), 0, 0.0
        elif never[n]:
            path, tid, weight = (UNMATCHED_LAUNCH, leaf), 0, 1.0
        else:
            path, tid, weight = (f"f{which[n]}", leaf), 100 + int(which[n]), 1.0
        expected.append((int(ids[n] % 7), int(length[n]), tid, path, weight, 4096 if copy[n] else 0))
    for at in range(0, count, 150):
        part = slice(at, at + 150)
        seen = ~(late | never | left_out)[part]
        join.add_launches([launches(history, session, ids[part][seen], enter[part][seen], which[part][seen])])
        writer.work(
            ids[part], start[part], start[part] + length[part], name=name[part], device=device[part],
            kind=np.where(copy[part], gpu_ring.MEMCPY, gpu_ring.KERNEL), flags=1, bytes=4096,
            stream=ids[part] % 7, no_stack=left_out[part], enter=enter[part],
        )  # fmt: skip
        if at == 150:
            writer.clock()  # a slot that is no work, in between
        join.add_work(session, session.read(now), time.monotonic_ns())
    assert join._join.held == int(np.count_nonzero((late | never) & ~left_out))
    some = late & ~never & ~left_out
    join.add_launches([launches(history, session, ids[some], enter[some], which[some])])
    join.add_work(session, [], time.monotonic_ns())
    join.add_work(session, [], now + HOLD_NS + SECOND)
    assert rows_of(history) == sorted(expected)
    counts = join.counts
    assert (counts.valid, counts.invalid, counts.early) == (count, 0, 0)
    assert counts.unmatched == int(np.count_nonzero(never & ~left_out))
    assert counts.left_out == int(np.count_nonzero(left_out))


def test_a_batch_without_launches(writer: Any, session: GpuSession, history: History) -> None:
    join = WorkJoin(history)
    writer.clock()
    writer.name(1, b"gemm")
    now = time.monotonic_ns()
    writer.work(np.arange(100), now, now + 10, name=1)
    join.add_work(session, session.read(now), now + 100)
    assert join._join.held == 100
    join.add_work(session, [], now + HOLD_NS + SECOND)
    assert Counter(path for *_, path, _, _ in rows_of(history)) == {(UNMATCHED_LAUNCH, "gemm"): 100}
    assert join.counts.unmatched == 100


def test_the_same_ids_in_two_epochs_of_one_batch(writer: Any, session: GpuSession, history: History) -> None:
    """A process that was let go of and attached to again within a tick: CUPTI counts from 1 again."""
    join = WorkJoin(history)
    writer.clock()
    writer.name(1, b"gemm")
    now = time.monotonic_ns()
    ids = np.arange(1, 51)
    for epoch, which, length in ((1, 0, 10), (2, 1, 20), (3, 2, 30)):
        added = launches(history, session, ids, np.full(50, now - 5), np.full(50, which), epoch=epoch)
        join.add_launches([added])
        writer.work(ids, now, now + length, name=1, epoch=epoch)
    work = session.read(now)
    assert sorted(epoch for epoch, _ in work) == [1, 2, 3]
    join.add_work(session, work, now + 100)
    found = Counter((length, path) for _, length, _, path, _, _ in rows_of(history))
    assert found == {(10 * n + 10, (f"f{n}", "gemm")): 50 for n in range(3)}


def test_a_ring_that_wraps(writer: Any, session: GpuSession, history: History) -> None:
    """A batch that ends at the start of the ring: none is lost, read twice, or mixed with another."""
    writer.set_head(gpu_ring.SLOTS - 700)
    session._ring._tail = gpu_ring.SLOTS - 700
    join = WorkJoin(history)
    writer.clock()
    now = time.monotonic_ns()
    for number in range(1, 6):
        ids = np.arange(300 * number, 300 * number + 300)
        which = ids % FUNCTIONS
        join.add_launches([launches(history, session, ids, np.full(300, now - 5), which)])
        writer.work(ids, now, now + ids, stream=ids)
        if number % 2:
            join.add_work(session, session.read(now), now + 10_000)
    assert writer.head > gpu_ring.SLOTS
    expected = [
        (n, n, 100 + n % FUNCTIONS, (f"f{n % FUNCTIONS}", "[kernel without a name]"), 1.0, 0)
        for n in range(300, 1800)
    ]
    assert rows_of(history) == expected


def test_words_are_the_slots(writer: Any, session: GpuSession) -> None:
    """Every field of every slot, across the end of the ring, against the rows that were written."""
    random = np.random.default_rng(3)
    rows = np.frombuffer(random.bytes(64 * 1000), gpu_ring.WORK).copy()
    writer.set_head(gpu_ring.SLOTS - 333)
    session._ring._tail = gpu_ring.SLOTS - 333
    writer.put(rows)
    words = session._ring.words()
    for name in gpu_ring.WORK.names or ():
        word = words[gpu_ring.WORK.fields[name][1] // 8]  # type: ignore[index]
        assert gpu_ring.field(word, name).tobytes() == np.ascontiguousarray(rows[name]).tobytes()
    assert gpu_ring.rows(words).tobytes() == rows.tobytes()
    assert session._ring.words().shape == (8, 0)


def test_columns_do_not_change_when_more_is_read(writer: Any, session: GpuSession) -> None:
    """What is read next is copied to the same room: no column may refer to it."""
    writer.clock()
    now = time.monotonic_ns()
    session.read(now)
    for fields in ({}, {"kind": gpu_ring.MEMCPY}, {"graph": 3, "path": 2, "no_stack": 1, "device": 5}):
        writer.work(np.arange(50), now, now + 5, enter=now - 9, name=4, bytes=77, **fields)
        ((_, columns),) = session.read(now)
        before = {name: column.tobytes() for name, column in columns.items()}
        writer.work(np.arange(50, 120), now + 60, now + 70, stream=99, name=1)
        session.read(now)
        assert {name: column.tobytes() for name, column in columns.items()} == before


def test_many_records_are_read_in_several_goes(writer: Any, session: GpuSession) -> None:
    """Each of bounded size; none is lost, and they come in their order."""
    writer.clock()
    now = time.monotonic_ns()
    writer.work(np.arange(100_000), now, now + 5)
    found = [[columns["correlation"] for _, columns in session.read(now)] for _ in range(3)]
    assert np.concatenate([part for parts in found for part in parts]).tolist() == list(range(100_000))
    assert max(len(part) for parts in found for part in parts) <= gpu_session.SLOTS_AT_ONCE
    most = gpu_session.MAX_SLOTS_READ + gpu_session.SLOTS_AT_ONCE
    assert max(sum(map(len, parts)) for parts in found) < most


def test_conversion_of_one_record_and_of_many_is_the_same() -> None:
    random, now = np.random.default_rng(1), 1000 * SECOND
    clock = GpuClock()
    pair = np.zeros(1, gpu_ring.CLOCKS)
    pair["cupti_ns"], pair["mono_ns"], pair["width_ns"] = 5000 * SECOND, 900 * SECOND, 70
    clock.add(pair, now)
    for low, high in ((5000, 5100), (4990, 5110), (0, 1), (5000, 5200)):
        start = random.integers(low * SECOND, high * SECOND, 200).astype(np.uint64)
        end = start + random.integers(0, SECOND, 200).astype(np.uint64)
        whole = clock.convert(start, end, now)
        single = [clock.convert(start[n : n + 1], end[n : n + 1], now) for n in range(200)]
        for at in (0, 1):
            assert whole[at].tolist() == [int(one[at][0]) for one in single]


def test_constant_columns() -> None:
    """They go into the history like others, and cannot be written to."""
    column = constant(7, np.uint32, 5000)
    assert is_constant(column)
    assert column.tolist() == [7] * 5000
    assert not is_constant(np.zeros(3))
    with pytest.raises(ValueError):
        column[3] = 1
    with pytest.raises(ValueError):
        columns_of(GPU_WORK_COLUMNS, [np.zeros(4)] * 9 + [constant(0, "<u8", 5)])
    log = RowLog({"a": "<u8", "b": "<u4"}, start="a", end="a")
    log.add({"a": np.arange(5000, dtype=np.uint64), "b": column})
    assert sum(int(part.columns["b"].sum()) for part in log.between(0, 1 << 60)) == 35_000
    for wrong in (-1.0, np.nan, np.inf, 2e9, [1.0, np.nan], [1.0, -1.0]):
        with pytest.raises(ValueError):
            weights(wrong, 2)
