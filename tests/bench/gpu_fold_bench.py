"""Print how long a query of GPU time over 1 M kernels takes, how much of it is the busy union, what joining
records with their launches costs, and how large a file of a minute is.
"""

from __future__ import annotations

import os
import tempfile
import time

import numpy as np
from cpu_time import median_ms

from gpuprof.snapshots import gaps
from gpuprof.snapshots.file import SnapshotWriter
from gpuprof.snapshots.frames import FrameKind, Hello, ProcessDef, Query
from gpuprof.snapshots.gpu_records import RecordJoin
from gpuprof.snapshots.history import History
from gpuprof.snapshots.join import LaunchTable

ROWS = 1_000_000
STACKS = 4_000
KERNELS = 300
FUNCTIONS = 3_000
DEVICES = 2
STEP = 2_000  # kernels of one training step, which then repeats
EVERYTHING = 1 << 62


def filled_history(rows: int = ROWS, gap_ns: float = 60_000) -> History:
    """Return a history of `rows` kernels on DEVICES devices, launched from stacks of 45 frames in repeated
    steps; durations are multiples of 32 ns, as devices measure them.
    """
    rng = np.random.default_rng(1)
    hello = Hello(1, "bench", "boot", "6.1", 16, 0, 10**18, "0", 1, 99, 0, True)
    history = History(hello, max_bytes=1 << 30, max_age_ns=None)
    tables = history.tables
    process = tables.process(ProcessDef(100, 1, "python3", "python3 train.py", "user", 1000, 1))
    threads = np.array([tables.thread(process, 100 + number, "python3") for number in range(2)], np.uint32)
    host = [
        tables.frame(tables.function(f"function_{n}", "", f"lib{n % 9}.so", FrameKind.NATIVE))
        for n in range(FUNCTIONS)
    ]
    kernels = [
        tables.frame(tables.function(f"kernel_{n}<float, {n}>", "", "", FrameKind.GPU_KERNEL))
        for n in range(KERNELS)
    ]
    trunks = [rng.integers(0, FUNCTIONS, 30).tolist() for _ in range(60)]
    stacks = [
        tables.stack(
            [host[n] for n in trunks[int(rng.integers(60))] + rng.integers(0, FUNCTIONS, 14).tolist()]
            + [kernels[int(rng.integers(KERNELS))]]
        )
        for _ in range(STACKS)
    ]
    devices = [tables.string(f"GPU-{number:08d}-1111-2222-3333-444444444444") for number in range(DEVICES)]
    step = rng.integers(0, STACKS, STEP)
    which = np.resize(step, rows)
    typical_ns = rng.lognormal(np.log(6_000), 1.2, STACKS)[which]
    duration = (np.maximum(typical_ns * rng.normal(1, 0.03, rows), 1_000) / 32).astype(np.int64) * 32
    gap = rng.exponential(gap_ns, rows).astype(np.int64)
    start = np.cumsum(gap + np.concatenate([[0], duration[:-1]])) + 10**12
    at = np.arange(rows)
    history.add_gpu_work(
        start_ns=start,
        end_ns=start + duration * np.where(at % 50, 1, 20),  # some run on beside those that come after
        gpu=np.array(devices, np.uint32)[at // 10 % DEVICES],
        stream=np.where(at % 50, 7, 21),
        thread=threads[which % 3 // 2],
        stack=np.array(stacks, np.uint32)[which],
    )
    series = [history.series("gpu_observed", gpu=tables_text) for tables_text in _uuids(history, devices)]
    for edge in range(10**12, int(start[-1]), 10**9):
        history.add_readings(series, [edge] * DEVICES, [edge + 10**9] * DEVICES, [1.0] * DEVICES)
    return history


def _uuids(history: History, ids: list[int]) -> list[str]:
    strings = history.tables.view().strings
    return [strings[number] for number in ids]


def join_percent(batches: int = 50, per_batch: int = 10_000) -> float:
    """Return the share of a core, in percent, that adding and matching 100 k launches and records a second
    takes.
    """
    rng = np.random.default_rng(2)
    join = RecordJoin(LaunchTable())
    number = np.arange(per_batch)
    spent = 0.0
    for batch in range(batches):
        correlation = ((number + batch * per_batch) * 3 + 4_294_900_000).astype(np.uint32)
        enter = (number + batch * per_batch) * 10_000 + 10**12
        ids = rng.integers(0, 5_000, per_batch, dtype=np.uint32)
        records = {
            "correlation": correlation,
            "start_ns": (enter + 5_000).astype(np.uint64),
            "end_ns": (enter + 9_000).astype(np.uint64),
        }
        start = time.thread_time()
        join.launches.add(1, 0, correlation=correlation, enter_ns=enter, thread=ids, stack=ids)
        joined = join.take(1, 0, records, EVERYTHING)
        spent += time.thread_time() - start
        assert joined.launch.found.all()
    return 100 * spent / (batches * per_batch / 100_000)


def file_bytes(history: History) -> int:
    """Return the size of a file with all of a history."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "x.gpuprof")
        with SnapshotWriter(path, history.hello) as writer:
            writer.write(history.frames_between(*history.span))
        return writer.bytes_written


def main() -> None:
    """Print the figures, one a line."""
    history = filled_history()
    query = Query(1, "gpu", 0, EVERYTHING)
    start, end = history.span
    tenth = Query(1, "gpu", start + (end - start) // 2, start + (end - start) * 6 // 10)
    blocks = [rows.columns for _, rows in history.gpu_work_between(0, EVERYTHING)]
    starts, ends = (np.concatenate([block[name] for block in blocks]) for name in ("start_ns", "end_ns"))
    answer = history.query(query)
    print(f"gpu_fold: {ROWS} rows, {STACKS} stacks, {len(answer.parent)} rows shown; {answer.summary}")
    print(f"gpu_fold.ms {median_ms(lambda: history.query(query)):.1f} (target 200)")
    print(f"gpu_fold.tenth_of_range.ms {median_ms(lambda: history.query(tenth)):.1f}")
    print(f"gpu_fold.baseline_sum.ms {median_ms((ends - starts).sum):.1f}")
    print(f"gaps.union.ms {median_ms(lambda: gaps.union(starts, ends)):.1f}")
    shuffled = np.random.default_rng(3).permutation(ROWS)
    mixed = starts[shuffled], ends[shuffled]
    print(f"gaps.union_of_unordered.ms {median_ms(lambda: gaps.union(*mixed)):.1f}")
    busy = gaps.union(starts, ends)
    print(f"gaps.overlap_of_1M.ms {median_ms(lambda: busy.overlap(starts, ends)):.1f}")
    print(f"join.percent_of_a_core_at_100k_per_s {join_percent():.2f} (target 2)")
    minute = filled_history(600_000, 85_000)
    size = file_bytes(minute)
    print(f"file.600k_rows.bytes {size} ({8 * size / 600_000:.1f} bits a row, with exponential gaps)")


if __name__ == "__main__":
    main()
