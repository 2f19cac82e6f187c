"""CPU time of naming, merging and interning a sample, at the rate of a machine of 128 CPUs at 99 Hz.

usage: python tests/bench/resolve_bench.py [--record 4] [--seconds 6]     (as root: it records stacks live)

Real stacks are recorded from CPython workloads; then these are stopped where they are, and records are made
from theirs so that 90 % differ from all others by address: the innermost addresses of the kernel and of the
program move by as few bytes as that takes (16 to 512), those of the two innermost Python frames to others
that these functions were seen at. They go through the ring's reader and CpuStacks.consume in batches of a
tick. "cold" is the first second, in which every function is new; "steady" are the last seconds. The baseline
reads every word of the same records once, in Python.
"""

from __future__ import annotations

import argparse
import mmap
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from sampler_bench import WORKLOAD

from gpuprof.bpf.programs import StackPrograms
from gpuprof.bpf.records import HEADER, Batch, batch_of
from gpuprof.bpf.ring import RingReader
from gpuprof.sampler import cpu_stacks
from gpuprof.sampler.cpu_stacks import TICK_S, CpuStacks
from gpuprof.snapshots.frames import Hello
from gpuprof.snapshots.history import History

CPUS, HZ = 128, 99
RECORD_HZ = 499
MIN_RECORDS = 100
MOVED = 0.97  # records whose addresses are moved
DISTINCT = 0.9
WIDTHS = (16, 32, 64, 128, 256, 512)  # bytes, powers of two
HEADER_WORDS = HEADER.itemsize // 8
THREADED = """
import threading
def layer(n): return next(map(layer, [n - 1])) if n else main()
for n in range(3): threading.Thread(target=layer, args=(n + 2,), daemon=True).start()
layer(4)
"""


def history() -> History:
    hello = Hello(
        version=1, host="bench", boot_id="", kernel="", cpu_count=CPUS, mono_ns=0, wall_ns=0,
        sampler_version="", sampler_pid=0, cpu_hz=HZ, nvml_hz=0, privileged=True,
    )  # fmt: skip
    return History(hello)


class Recorder(CpuStacks):
    """Keeps the batches that it consumed."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.batches: list[Batch] = []

    def consume(self, batch: Batch) -> None:
        self.batches.append(batch)
        super().consume(batch)


class NoTables:
    """In the place of UnwindTables: the stacks are unwound already."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


class FakeRing:
    """A ring of one batch at a time, in a memfd laid out as the kernel's."""

    def __init__(self, size: int = 1 << 24) -> None:
        self._fd = os.memfd_create("ring")
        os.ftruncate(self._fd, 2 * mmap.PAGESIZE + 2 * size)
        self.reader = RingReader(self._fd, size)

    def fill(self, records: list[bytes]) -> None:
        """Have these records be what the ring holds."""
        data = b"".join([len(record).to_bytes(8, "little") + record for record in records])
        os.pwrite(self._fd, data, 2 * mmap.PAGESIZE)
        os.pwrite(self._fd, bytes(8), 0)
        os.pwrite(self._fd, len(data).to_bytes(8, "little"), mmap.PAGESIZE)


def record_live(seconds: float) -> tuple[list[bytes], list[subprocess.Popen[bytes]]]:
    """Records of the workloads, which are stopped then, and the workloads."""
    workloads = [
        subprocess.Popen([sys.executable, "-c", WORKLOAD.replace("\nmain()\n", code + "\nmain()\n")])
        for code in ("", THREADED, THREADED)
    ]
    recorder = Recorder(history(), StackPrograms.load(RECORD_HZ), RECORD_HZ)
    recorder.start()
    time.sleep(2 + seconds)
    recorder.stop()
    for workload in workloads:
        workload.send_signal(signal.SIGSTOP)
    pids = [workload.pid for workload in workloads]
    records = []
    for batch in recorder.batches:
        ends = batch.first + batch.n_kernel + batch.n_user + 2 * batch.n_python.astype(np.int64)
        for at in np.flatnonzero(np.isin(batch.pid, pids) & (batch.n_user > 2)).tolist():
            records.append(batch.words[int(batch.first[at]) - HEADER_WORDS : int(ends[at])].tobytes())
    return records, workloads


def move(
    rng: np.random.Generator, record: bytes, cpu: int, offsets: dict[int, list[int]], width: int
) -> bytes:
    """A record like this one whose innermost addresses lie a little elsewhere."""
    words = np.frombuffer(record, np.uint64).copy()
    header = words[:HEADER_WORDS].view(HEADER)[0]
    header["cpu"] = cpu
    if rng.random() < MOVED:
        n_kernel, n_user, n_python = (int(header[name]) for name in ("n_kernel", "n_user", "n_python"))
        user = HEADER_WORDS + n_kernel
        if n_kernel:
            words[HEADER_WORDS] ^= np.uint64(rng.integers(0, width))
        words[user] ^= np.uint64(rng.integers(0, width))
        for frame in range(min(n_python, 2)):
            python = user + n_user + 2 * frame
            known = offsets[int(words[python])]
            words[python + 1] = np.uint64(known[int(rng.integers(len(known)))])
    return words.tobytes()


def instruction_offsets(records: list[bytes]) -> dict[int, list[int]]:
    """Of each code object (and owner), the second words that it was seen with."""
    found: dict[int, set[int]] = {}
    for record in records:
        words = np.frombuffer(record, np.uint64)
        header = words[:HEADER_WORDS].view(HEADER)[0]
        python = HEADER_WORDS + int(header["n_kernel"]) + int(header["n_user"])
        for code, detail in words[python:].reshape(-1, 2).tolist():
            found.setdefault(code, set()).add(detail)
    return {code: sorted(seen) for code, seen in found.items()}


def make_ticks(records: list[bytes], tick: int, count: int) -> tuple[list[list[bytes]], int, float]:
    """(`count` batches of `tick` records, how far addresses move, share that is distinct by address)."""
    rng = np.random.default_rng(1)
    offsets = instruction_offsets(records)
    for width in WIDTHS:
        ticks = [
            [
                move(rng, records[int(n)], at % CPUS, offsets, width)
                for at, n in enumerate(rng.integers(0, len(records), tick))
            ]
            for _ in range(count)
        ]
        distinct = len({one[HEADER.itemsize :] for batch in ticks for one in batch}) / (tick * count)
        if distinct > DISTINCT:
            break
    return ticks, width, distinct


def measure(record_s: float, seconds: int) -> None:
    records, workloads = record_live(record_s)
    try:
        if len(records) < MIN_RECORDS:
            sys.exit("resolve_bench: too few stacks were recorded")
        tick, per_second = round(CPUS * HZ * TICK_S), round(1 / TICK_S)
        ticks, width, distinct = make_ticks(records, tick, seconds * per_second)
        made = [record for batch in ticks for record in batch]
        words = float(np.mean([len(record) - HEADER.itemsize for record in made])) / 8
        cpu_stacks.UnwindTables = lambda programs: NoTables()  # type: ignore[assignment,misc]
        kept = history()
        stacks = CpuStacks(kept, SimpleNamespace(waits=None, maps={}))  # type: ignore[arg-type]
        ring = FakeRing()
        spent, read, bare = [], [], []
        for batch in ticks:
            ring.fill(batch)
            began = time.process_time()
            found = batch_of(*ring.reader.read())
            read.append(time.process_time() - began)
            stacks.consume(found)
            spent.append(time.process_time() - began)
            began = time.process_time()
            sum(found.words.tolist())
            bare.append(time.process_time() - began)
    finally:
        for workload in workloads:
            workload.kill()
            workload.wait()
    steady = slice(len(ticks) // 2, None)

    def each(values: list[float], part: slice = steady) -> float:
        return 1e6 * float(np.mean(values[part])) / tick

    cost, base = each(spent), each(bare)
    print(f"stacks recorded            {len(records)}, {words:.0f} words each, moved by up to {width} bytes")
    print(f"distinct by address        {distinct:.0%} of {len(made)} samples, {tick} a tick")
    print(f"cold (the first second)    {each(spent, slice(per_second)):.1f} us a sample")
    print(f"steady                     {cost:.2f} us a sample, {each(read):.2f} of it reading the ring")
    print(f"baseline (words read once) {base:.2f} us a sample; ratio {cost / base:.1f}")
    print(f"at {CPUS} CPUs x {HZ} Hz        {cost * CPUS * HZ / 1e4:.1f} % of a core")
    megabytes = kept.bytes_used / 1e6
    print(f"tables                     {kept.tables.node_count} stacks; {megabytes:.1f} MB with all rows")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", type=float, default=4.0)
    parser.add_argument("--seconds", type=int, default=6)
    options = parser.parse_args()
    if os.geteuid() != 0:
        print("resolve_bench: skipped, eBPF needs root")
        sys.exit(0)
    sys.path.insert(0, str(Path(__file__).parent))
    measure(options.record, options.seconds)
