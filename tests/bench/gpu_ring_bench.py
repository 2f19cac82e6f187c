"""What 100,000 kernel records a second cost the sampler: `python tests/bench/gpu_ring_bench.py`.

Records are written into a real ring in pieces of a tenth of a second and go through the real reader, clock
conversion, join with their launches, history and busy windows. Printed is the CPU time per second of records,
beside copying the same slots out of the ring, which is the least that any reader does.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from pathlib import Path
from types import ModuleType

import numpy as np

from gpuprof.sampler.gpu_coverage import Coverage
from gpuprof.sampler.gpu_discovery import FoundRing
from gpuprof.sampler.gpu_join import WorkJoin
from gpuprof.sampler.gpu_session import GpuSession
from gpuprof.sampler.launch_stacks import Launches
from gpuprof.sampler.processes import describe, start_time_ns
from gpuprof.snapshots.frames import FrameKind, Hello
from gpuprof.snapshots.history import History

RATE, TICKS, KERNEL_NS = 100_000, 50, 5_000
PER_TICK = RATE // 10


def ring_writer() -> ModuleType:
    path = Path(__file__).resolve().parents[1] / "unit" / "gpu_work" / "conftest.py"
    spec = importlib.util.spec_from_file_location("ring_writer", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> None:
    measure(1, "every launch with its stack")
    measure(32, "one launch of 32 with its stack, as under a budget")


def measure(every: int, words: str) -> None:
    writer = ring_writer().Writer()
    process = describe(os.getpid())
    assert process is not None
    fd = os.open(f"/proc/self/fd/{writer.fd}", os.O_RDWR)
    info = os.fstat(fd)
    found = FoundRing(process, os.pidfd_open(os.getpid()), fd, writer.fd, (info.st_dev, info.st_ino))
    session = GpuSession(found)
    if not session.lock():
        sys.exit("the ring is locked")
    hello = Hello(1, "node", "boot", "6.1", 2, time.monotonic_ns(), time.time_ns(), "0", 1, 99, 10, True)
    history = History(hello)
    tables = history.tables
    frames = [
        tables.frame(tables.function(f"f{i}", "train.py", "python", FrameKind.PYTHON), i) for i in range(40)
    ]
    stacks = [tables.stack(frames[: 30 + i]) for i in range(8)]
    thread = tables.thread(tables.process(process), os.getpid(), "python")
    join, coverage = WorkJoin(history), Coverage(history, time.monotonic_ns())
    writer.clock()
    for number in range(1, 9):
        writer.name(number, b"kernel_%d" % number)

    random = np.random.default_rng(0)
    records = launches = copies = 0.0
    correlation = 0
    for _ in range(TICKS):
        numbers = np.arange(correlation, correlation + PER_TICK, dtype=np.uint32)
        correlation += PER_TICK
        start = time.monotonic_ns() - 100_000_000 + np.arange(PER_TICK, dtype=np.uint64) * np.uint64(9_000)
        enter = start - np.uint64(20_000)
        names = random.integers(1, 9, PER_TICK).astype(np.uint32)
        taken = numbers % every == 0
        writer.work(numbers, start, start + np.uint64(KERNEL_NS), name=names, no_stack=~taken, enter=enter)
        began = time.thread_time()
        writer.slots[:PER_TICK].copy()
        copies += time.thread_time() - began

        began = time.thread_time()
        ids = np.asarray(stacks, np.uint32)[names[taken] - 1]
        column = np.full(len(ids), thread, np.uint32)
        weight = np.full(len(ids), every, np.float32)
        join.add_launches(
            [
                Launches(
                    tables,
                    os.getpid(),
                    start_time_ns(os.getpid()) or 0,
                    1,
                    numbers[taken],
                    enter[taken],
                    column,
                    ids,
                    weight,
                )
            ]
        )
        launches += time.thread_time() - began

        began = time.thread_time()
        now_ns = time.monotonic_ns()
        for gpu, low, high, kind in join.add_work(session, session.read(now_ns), time.monotonic_ns()):
            coverage.add(gpu, low, high, kind=kind)
        coverage.write(now_ns, join.active_gpus())
        records += time.thread_time() - began
        time.sleep(max(0.0, 0.1 - (time.monotonic_ns() - now_ns) / 1e9))
    seconds = TICKS / 10
    counts = join.counts
    print(words)
    print(f"records                        {TICKS * PER_TICK:,} at {RATE:,} a second, {counts}")
    print(f"read, convert, join, keep      {records / seconds:.2%} of a core")
    print(f"add the launches               {launches / seconds:.2%} of a core")
    print(f"copy of the slots alone        {copies / seconds:.2%} of a core (ratio {records / copies:.0f})")
    session.close()
    writer.close()


if __name__ == "__main__":
    main()
