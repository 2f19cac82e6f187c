"""What 100,000 kernel records a second cost the sampler: `python tests/bench/gpu_ring_bench.py`.

Records are written into a real ring in pieces of a tenth of a second and go through the real reader, clock
conversion, join with their launches, history and busy windows, in a thread of its own with the sampler's
settings of malloc. After two seconds, in which tables grow, the CPU time per second of records is printed,
beside that of copying the same slots out of the ring, which is the least that any reader does. Last, what
naming the stack of each launch costs in the stack reader, from records as the BPF programs write them.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import threading
import time
import tracemalloc
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from gpuprof.bpf.records import FAMILY_LAUNCH, HEADER, batch_of
from gpuprof.sampler import gpu_ring
from gpuprof.sampler.frame_ids import FrameIds
from gpuprof.sampler.gpu_coverage import Coverage
from gpuprof.sampler.gpu_discovery import FoundRing
from gpuprof.sampler.gpu_join import WorkJoin
from gpuprof.sampler.gpu_session import GpuSession
from gpuprof.sampler.launch_stacks import Launches, LaunchStacks
from gpuprof.sampler.memory import give_memory_back
from gpuprof.sampler.processes import describe, start_time_ns
from gpuprof.sampler.thread_ids import ThreadIds
from gpuprof.snapshots.frames import FrameKind, Hello
from gpuprof.snapshots.history import History

RATE, WARM_TICKS, TICKS, KERNEL_NS = 100_000, 20, 40, 5_000
PER_TICK = RATE // 10
PID, TID = os.getpid(), 7


def ring_writer() -> ModuleType:
    path = Path(__file__).resolve().parents[1] / "unit" / "gpu_work" / "conftest.py"
    spec = importlib.util.spec_from_file_location("ring_writer", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def new_history() -> History:
    return History(
        Hello(1, "node", "boot", "6.1", 2, time.monotonic_ns(), time.time_ns(), "0", 1, 99, 10, True)
    )


@dataclass
class Costs:
    """CPU seconds of the measured ticks, by part."""

    ticks: int = 0
    parts: dict[str, float] = field(default_factory=dict)

    def add(self, part: str, began: float) -> None:
        if self.ticks > WARM_TICKS:
            self.parts[part] = self.parts.get(part, 0.0) + time.thread_time() - began

    def share(self, part: str) -> float:
        return self.parts[part] / ((self.ticks - WARM_TICKS) / 10)


class Bench:
    """A ring of this process, and the sampler's side of it."""

    def __init__(self) -> None:
        self.writer = ring_writer().Writer()
        process = describe(PID)
        assert process is not None
        fd = os.open(f"/proc/self/fd/{self.writer.fd}", os.O_RDWR)
        info = os.fstat(fd)
        found = FoundRing(process, os.pidfd_open(PID), fd, self.writer.fd, (info.st_dev, info.st_ino))
        self.session = GpuSession(found)
        if not self.session.lock():
            sys.exit("the ring is locked")
        self.history = new_history()
        tables = self.history.tables
        frames = [
            tables.frame(tables.function(f"f{i}", "train.py", "python", FrameKind.PYTHON), i)
            for i in range(40)
        ]
        self.stacks = np.array([tables.stack(frames[: 30 + i]) for i in range(8)], np.uint32)
        self.thread = tables.thread(tables.process(process), PID, "python")
        self.join, self.coverage = WorkJoin(self.history), Coverage(self.history, time.monotonic_ns())
        self.writer.clock()
        for number in range(1, 9):
            self.writer.name(number, b"kernel_%d" % number)
        self.random = np.random.default_rng(0)
        self.correlation = 0
        self.later: Launches | None = None

    def write(self, every: int, mixed: bool) -> Launches:
        """Put a tick's records into the ring, and return the launches that have a stack."""
        numbers = np.arange(self.correlation, self.correlation + PER_TICK, dtype=np.uint32)
        self.correlation += PER_TICK
        start = time.monotonic_ns() - 100_000_000 + np.arange(PER_TICK, dtype=np.uint64) * np.uint64(9_000)
        enter = start - np.uint64(20_000)
        names = self.random.integers(1, 9, PER_TICK).astype(np.uint32)
        taken = numbers % every == 0
        kinds: dict[str, Any] = {}
        if mixed:  # two streams, of which the records come one after the other; copies; graphs; waits
            order = np.concatenate([np.arange(at, PER_TICK, 2) for at in (0, 1)])
            start, enter, numbers, taken = start[order], enter[order], numbers[order], taken[order]
            copy = self.random.random(PER_TICK) < 0.05
            kinds = {
                "stream": 7 + np.arange(PER_TICK) // (PER_TICK // 2),
                "kind": np.where(copy, gpu_ring.MEMCPY, gpu_ring.KERNEL),
                "flags": copy,
                "bytes": np.where(copy, 4096, 0),
                "graph": ~copy & (names == 8),
            }
            waits = np.zeros(PER_TICK // 100, gpu_ring.WAITS)
            waits["kind"], waits["epoch"], waits["weight"] = gpu_ring.WAIT, 1, 1
            waits["start_ns"], waits["end_ns"] = start[::100], start[::100] + np.uint64(500_000)
            waits["correlation"] = numbers[::100]
            self.writer.put(waits)
        end = start + np.uint64(KERNEL_NS)
        self.writer.work(numbers, start, end, name=names, no_stack=~taken, enter=enter, **kinds)
        ids, tables = self.stacks[names[taken] - 1], self.history.tables
        thread, weight = np.full(len(ids), self.thread, np.uint32), np.full(len(ids), every, np.float32)
        began_ns = start_time_ns(PID) or 0
        return Launches(tables, PID, began_ns, 1, numbers[taken], enter[taken], thread, ids, weight)

    def add_records(self) -> None:
        now_ns = time.monotonic_ns()
        work = self.session.read(now_ns)
        for gpu, low, high, kind in self.join.add_work(self.session, work, time.monotonic_ns()):
            self.coverage.add(gpu, low, high, kind=kind)
        self.coverage.write(now_ns, self.join.active_gpus())

    def tick(self, every: int, mixed: bool, late: bool, costs: Costs) -> None:
        costs.ticks += 1
        tick_ns = time.monotonic_ns()
        if costs.ticks % 10 == 0:
            self.session.look(tick_ns)  # unmaps what was read
        launches: Launches | None = self.write(every, mixed)
        if late:
            launches, self.later = self.later, launches
        began = time.thread_time()
        self.writer.slots[:PER_TICK].copy()
        costs.add("copy", began)
        began = time.thread_time()
        self.join.add_launches([launches] if launches is not None else [])
        costs.add("launches", began)
        began = time.thread_time()
        self.add_records()
        costs.add("records", began)
        time.sleep(max(0.0, 0.1 - (time.monotonic_ns() - tick_ns) / 1e9))

    def close(self) -> None:
        self.session.close()
        self.writer.close()


def measure(every: int, words: str, *, mixed: bool = False, late: bool = False) -> None:
    bench, costs = Bench(), Costs()
    for _ in range(WARM_TICKS + TICKS):
        bench.tick(every, mixed, late, costs)
    launches = bench.write(every, mixed)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    bench.join.add_launches([launches])
    bench.add_records()
    peak = tracemalloc.get_traced_memory()[1] - before
    tracemalloc.stop()
    records, more, copies = costs.share("records"), costs.share("launches"), costs.share("copy")
    both = records + more
    print(words)
    print(f"  records at {RATE:,} a second {bench.join.counts}")
    print(f"  read, convert, join, keep    {records:.2%} of a core")
    print(f"  add the launches             {more:.2%} of a core")
    print(f"  together                     {both:.2%} of a core (ratio {both / copies:.1f})")
    print(f"  copy of the slots alone      {copies:.2%} of a core")
    print(f"  memory of a tick at its peak {peak / 1e6:.1f} MB, rows included")
    bench.close()


class Reader:
    """What LaunchStacks needs of the stack reader: one process, and stacks that are a few frames."""

    def __init__(self) -> None:
        self.process = SimpleNamespace(
            pid=PID,
            start_ns=0,
            definition=describe(PID),
            table_threads={},
            last_seen_ns=0,
            since_ns=0,
            gone_ns=None,
        )
        self.ids = FrameIds()

    def all(self) -> list[Any]:
        return [self.process]

    def get(self, *_: Any, **__: Any) -> Any:
        return self.process

    def resend_stack(self, pid: int, stack_hash: int) -> None:
        raise AssertionError(f"{stack_hash} of {pid} was not kept")

    def resolve(self, part: Any) -> Any:
        frames = [
            tuple(
                self.ids.get(f"f{n}", "train.py", "python", FrameKind.PYTHON, line=int(part.words[at]))
                for n in range(30)
            )
            for at in part.first.tolist()
        ]
        stacks = [SimpleNamespace(frames=stack, complete=True) for stack in frames]
        return SimpleNamespace(processes=[self.process] * len(stacks), stacks=stacks)


def measure_stacks(distinct: int) -> None:
    """The part of the stack reader: records as they come out of the BPF ring, to columns of launches."""
    reader, history, costs = Reader(), new_history(), Costs()
    stacks = LaunchStacks(reader, reader, reader)  # type: ignore[arg-type]
    threads = ThreadIds(reader)  # type: ignore[arg-type]
    random = np.random.default_rng(0)
    hashes = random.integers(1, 1 << 63, distinct, dtype=np.uint64)
    for number in range(WARM_TICKS + TICKS):
        costs.ticks += 1
        # Once the frames of a stack, then its hash alone.
        whole = distinct if number == 0 else 0
        which = np.concatenate([np.arange(whole), random.integers(0, distinct, PER_TICK)])
        times = 1 + number * PER_TICK + np.arange(len(which), dtype=np.uint64)
        words, starts = launch_words(hashes[which], which, whole, times, times)
        began = time.thread_time()
        words.copy()
        costs.add("copy", began)
        began = time.thread_time()
        batch = batch_of(words, starts)
        costs.add("columns", began)
        began = time.thread_time()
        with history.lock:
            found = stacks.consume(batch, history.tables, reader.ids, threads)
        costs.add("stacks", began)
        assert sum(map(len, found)) == len(which)
        time.sleep(0.05)
    print(f"naming the stacks of {RATE:,} launches a second, {distinct} of them distinct")
    print(f"  records to columns           {costs.share('columns'):.2%} of a core")
    print(f"  columns to launches          {costs.share('stacks'):.2%} of a core")
    print(f"  copy of the records alone    {costs.share('copy'):.2%} of a core")


def launch_words(hashes: Any, which: Any, whole: int, correlation: Any, enter_ns: Any) -> tuple[Any, Any]:
    """Launch records of one thread as BPF writes them: the first `whole` with a word of stack each."""
    header_words, count = HEADER.itemsize // 8, len(hashes)
    headers = np.zeros(count, HEADER)
    headers["pid"], headers["tid"], headers["comm"] = PID, TID, b"python"
    headers["start_ns"] = start_time_ns(PID) or 0
    headers["family"], headers["header_words"] = FAMILY_LAUNCH, header_words
    headers["time_ns"] = enter_ns
    headers["extra"] = np.uint64(1 << 32) | (correlation.astype(np.uint64) & np.uint64(0xFFFF_FFFF))
    headers["n_user"][:whole] = 1
    sizes = header_words + 2 + headers["n_user"].astype(np.int64)
    starts = np.cumsum(sizes) - sizes
    words = np.zeros(int(sizes.sum()), np.uint64)
    words[starts[:, None] + np.arange(header_words)] = headers.view(np.uint64).reshape(count, header_words)
    ends = starts + sizes
    words[starts[:whole] + header_words] = which[:whole]
    words[ends - 2], words[ends - 1] = hashes, 1
    return words, starts


def main() -> None:
    give_memory_back()

    def work() -> None:
        measure(1, "every launch with its stack")
        measure(32, "one launch of 32 with its stack, as under a budget")
        measure(1, "two streams, copies, graphs and waits; every launch with its stack", mixed=True)
        measure(1, "every launch with its stack, a tenth of a second after its record", late=True)
        measure_stacks(200)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


if __name__ == "__main__":
    main()
