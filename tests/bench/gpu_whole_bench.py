"""All that 100,000 kernel records a second with their launches cost the sampler: the sum, and its parts.

usage: python tests/bench/gpu_whole_bench.py [--seconds 6] [--runs 3]

The source of GPU work runs in its own thread, at its own pace: it reads a real ring, converts clocks, joins
with the launches, keeps the rows, and writes busy windows, delays and costs. Beside it a thread does what
the stack reader does for launches, at that one's pace: it reads a ring of the kind that BPF fills, and names
the stack of every launch (200 are distinct). This thread writes both rings ten times a second. The figure is
the CPU time of the two threads, of one core, and how many times that is of copying the same bytes out of
both rings, which is the least that any reader does. After two seconds, in which tables grow, it begins.
"""

from __future__ import annotations

import argparse
import mmap
import os
import threading
import time
from typing import Any

import numpy as np
from gpu_ring_bench import PER_TICK, PID, RATE, Bench, Reader, launch_words

from gpuprof.bpf.programs import GraphCalls
from gpuprof.bpf.records import launch_batches
from gpuprof.bpf.ring import RingReader
from gpuprof.sampler import cpu_stacks
from gpuprof.sampler.gpu_work import GpuWork
from gpuprof.sampler.launch_stacks import Launches, LaunchQueue, LaunchStacks
from gpuprof.sampler.memory import give_memory_back
from gpuprof.sampler.thread_ids import ThreadIds
from gpuprof.snapshots.errors import GpuprofError

LAUNCH_RING_BYTES = 4 << 20
DISTINCT = 200
WARM_S, TICK_S = 2.0, 0.1
WAITS_PER_TICK = PER_TICK // 100


class LaunchRing:
    """The kernel's side of a ring of BPF, in a memfd; only its data are not mapped twice, but written so."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("bpf-ring", os.MFD_CLOEXEC)
        os.ftruncate(self.fd, 2 * mmap.PAGESIZE + 2 * LAUNCH_RING_BYTES)
        self._words = np.frombuffer(mmap.mmap(self.fd, 0), np.uint64)
        self._data = self._words[2 * mmap.PAGESIZE // 8 :]

    def put(self, words: Any, starts: Any) -> None:
        """Append records, each with the word of its length before it."""
        lengths = np.diff(starts, append=len(words))
        records = np.insert(words, starts, (lengths * 8).astype(np.uint64))
        head, size = int(self._words[mmap.PAGESIZE // 8]), LAUNCH_RING_BYTES // 8
        while (head - int(self._words[0])) // 8 + len(records) > size:  # others use the machine too
            time.sleep(0.001)
        at = (head // 8 + np.arange(len(records))) % size
        self._data[at] = self._data[at + size] = records
        self._words[mmap.PAGESIZE // 8] = head + 8 * len(records)


class StackReader(Reader):
    """The part of CpuStacks that handles launches, in a thread at its pace; a LaunchSource."""

    def __init__(self, bench: Bench, ring: LaunchRing) -> None:
        super().__init__()
        self._history = bench.history
        self._ring = RingReader(ring.fd, LAUNCH_RING_BYTES)
        self._stacks = LaunchStacks(self, self, self)  # type: ignore[arg-type]
        self._threads = ThreadIds(self)  # type: ignore[arg-type]
        self._queue = LaunchQueue()
        self._stop = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        while not self._stop.wait(cpu_stacks.TICK_S):
            for batch in launch_batches(self._ring):
                with self._history.lock:
                    found = self._stacks.consume(batch, self._history.tables, self.ids, self._threads)
                self._queue.put(found)
            self._queue.announce()

    def stop(self) -> None:
        self._stop.set()
        self.thread.join()

    def wait_for_launches(self, seconds: float) -> None:
        self._queue.wait(seconds)

    def take_launches(self) -> list[Launches]:
        return self._queue.take()

    def launch_losses(self) -> tuple[int, int]:
        return self._queue.lost + self._stacks.invalid, self._stacks.truncated + self._stacks.unknown

    def follow(self, pid: int) -> None: ...

    def follows(self, pid: int) -> bool:
        return pid == PID

    def injected_pids(self) -> set[int]:
        return {PID}

    def open_launch_probe(self, pid: int, path: str, offset: int) -> int:
        raise GpuprofError(f"no probe at {path}:{offset} of {pid}")

    def open_graph_probe(self, pid: int, path: str, offset: int, program: str) -> int:
        raise GpuprofError(f"no {program} at {path}:{offset} of {pid}")

    def graph_calls(self, pid: int) -> GraphCalls:
        return GraphCalls(0, 0, 0, pid - PID)

    def forget_graph_calls(self, pid: int) -> None: ...


class Writer:
    """Writes a tick's launches and records into their rings, and copies the same bytes."""

    def __init__(self, bench: Bench, launches: LaunchRing) -> None:
        self._bench, self._launches = bench, launches
        self._put, self._rows = bench.writer.put, list[Any]()
        bench.writer.put = self._rows.append
        self._hashes = np.random.default_rng(1).integers(1, 1 << 63, DISTINCT, dtype=np.uint64)
        self._whole = DISTINCT
        self.ticks, self.copied_s = 0, 0.0
        self._room = np.empty_like(bench.writer.slots[:PER_TICK])
        self._more_room = np.empty(24 * PER_TICK, np.uint64)

    def tick(self, mixed: bool) -> None:
        launches = self._bench.write(1, mixed)
        which = launches.stack.astype(np.int64) * 25 + launches.correlation.astype(np.int64) % 25
        which %= DISTINCT
        if self._whole:  # once the frames of each stack, then its hash alone
            which[: self._whole] = np.arange(self._whole)
        words, starts = launch_words(
            self._hashes[which], which, self._whole, launches.correlation, launches.enter_ns
        )
        self._whole = 0
        self._launches.put(words, starts)
        for rows in self._rows:
            self._put(rows)
        self._rows.clear()
        began = time.thread_time()
        np.copyto(self._room[:PER_TICK], self._bench.writer.slots[:PER_TICK])
        np.copyto(self._more_room[: len(words)], words)
        self.copied_s += time.thread_time() - began
        self.ticks += 1

    def run(self, seconds: float, mixed: bool) -> None:
        for _ in range(round(seconds / TICK_S)):
            due = time.monotonic() + TICK_S
            self.tick(mixed)
            time.sleep(max(0.0, due - time.monotonic()))


def cpu_s(thread: threading.Thread) -> float:
    assert thread.ident is not None
    return time.clock_gettime(time.pthread_getcpuclockid(thread.ident))


def measure(words: str, seconds: float, *, mixed: bool) -> None:
    bench, ring = Bench(), LaunchRing()
    reader = StackReader(bench, ring)
    gpu = bench.session.uuids[0] or ""
    work = GpuWork(bench.history, lambda: {gpu: {PID}}, lambda: reader)  # type: ignore[arg-type, return-value]
    work._sessions.append(bench.session)  # a sampler looks for no ring in its own process
    work.start()
    threads = [work._thread, reader.thread]
    writer = Writer(bench, ring)
    writer.run(WARM_S, mixed)
    before, writer.copied_s = [cpu_s(thread) for thread in threads if thread], 0.0
    unmatched = work._join.counts.unmatched  # at the start of a busy machine records wait too long
    began = time.monotonic()
    writer.run(seconds, mixed)
    took_s = time.monotonic() - began
    spent = [(cpu_s(thread) - b) / took_s for thread, b in zip(threads, before, strict=True) if thread]
    copied = writer.copied_s / took_s
    time.sleep(1.0)
    counts = work._join.counts
    wanted = (writer.ticks - 1) * PER_TICK  # those of the first tick are of before we listened, in part
    wrong = counts.valid < wanted or counts.unmatched > unmatched or counts.invalid or counts.early
    print(f"  {words}: {sum(spent):.2%} of a core (ratio {sum(spent) / copied:.1f});", end=" ")
    print(f"GPU work {spent[0]:.2%}, launch stacks {spent[1]:.2%}, copy alone {copied:.2%}")
    if wrong:
        print(f"  WRONG: {counts} of {wanted} records")
    work.stop()
    reader.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--runs", type=int, default=1)
    arguments = parser.parse_args()
    give_memory_back()
    print(f"the whole of {RATE:,} records a second with the stack of every launch")
    for _ in range(arguments.runs):
        measure("kernels", arguments.seconds, mixed=False)
        measure("two streams, copies, graphs, waits", arguments.seconds, mixed=True)


if __name__ == "__main__":
    main()
