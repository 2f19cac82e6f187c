"""A sampler that comes and goes while processes make CUDA graphs: none may die, and those that make them now
and then are recorded.

usage: python3 watch_races.py [SECONDS]    as root, with a GPU and nvcc, no sampler running; SECONDS (60) of
       each kind of process of attach_races.py: bursts, graphs, modules

First it prints what the watched functions of libcuda begin with, since what a probe on one costs goes by
that, and what a call costs with and without (`graphs`, in turns of 2 s).
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from attach_races import AT_ONCE, SOURCE
from claims import Claims

from gpuprof.bpf.programs import StackPrograms
from gpuprof.sampler.cpu_stacks import CpuStacks
from gpuprof.sampler.gpu_work import GpuWork
from gpuprof.sampler.graph_watch import FUNCTIONS, GraphWatch, _sites
from gpuprof.snapshots.frames import Hello
from gpuprof.snapshots.history import History
from gpuprof.tui import run

LISTENS_S = 5.0  # a sampler; then a new one comes
TURNS = 4


def new_history() -> History:
    now = time.monotonic_ns()
    return History(Hello(1, "t", "", "", 2, now, time.time_ns(), "", os.getpid(), 99, 0, True))


@contextmanager
def processes(program: str, kind: str, number: int, seconds: float) -> Iterator[list[subprocess.Popen[str]]]:
    environ = dict(run.environment(os.environ), CUDA_CACHE_DISABLE="1")
    command = [program, kind, f"{seconds}"]
    started = [
        subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) for _ in range(number)
    ]
    try:
        yield started
    finally:
        for process in started:
            process.kill()
            process.wait()


def cost(program: str, stacks: CpuStacks, claims: Claims) -> None:
    """Turns of processes of `graphs` with the probes and without, by the turns that they count themselves."""
    counts: dict[bool, list[int]] = {True: [], False: []}
    for turn in range(2 * TURNS):
        with processes(program, "graphs", 1, 4.0) as (process,):
            time.sleep(2.0)
            if turn == 0:
                sites = _sites(process.pid)
                for path, offset, name in sites:
                    with open(path, "rb") as file:
                        file.seek(offset)
                        print(f"{name:22} at {offset:#x} begins with {file.read(8).hex(' ')}")
                claims(len(sites) == len(FUNCTIONS), f"{len(sites)} of {len(FUNCTIONS)} functions found")
            watch = GraphWatch(process.pid, stacks) if turn % 2 else None
            words = process.communicate()[0]
            if watch:
                seen = stacks.graph_calls(process.pid)
                claims(seen.number > 0, f"{seen.number} calls seen of {words.strip()}")
                watch.close()
            counts[watch is not None].append(int(words.split()[0]))
    with_probes, without = statistics.median(counts[True]), statistics.median(counts[False])
    print(f"turns with probes for half of the time {with_probes:.0f}, without {without:.0f}: {counts}")


def come_and_go(program: str, kind: str, stacks: CpuStacks, seconds: float, claims: Claims) -> None:
    with processes(program, kind, AT_ONCE, seconds) as started:
        pids = {process.pid for process in started}
        end, listens, recorded, reasons = time.monotonic() + seconds - 1, 0, 0, set()
        while time.monotonic() < end and all(process.poll() is None for process in started):
            work = GpuWork(new_history(), lambda: {"GPU-0": pids}, lambda: stacks, budget_ppm=10_000)
            work.start()
            time.sleep(LISTENS_S)
            recorded += sum(session.had_cupti for session in work._sessions)
            reasons.add(work.status().reason[:100])
            work.stop()
            listens += 1
            time.sleep(0.3)
        ends = []
        for process in started:
            words = process.communicate(timeout=60)[0].strip()
            ends.append(f"{process.returncode} {words}" if process.returncode else "0")
    claims(set(ends) == {"0"}, f"{kind}: {listens} samplers, {recorded} times recorded, ends {ends}")
    print("   ", *sorted(reasons), sep="\n    ")
    if kind != "graphs":
        claims(recorded > 0, f"{kind}: {recorded} times recorded")


def main(seconds: float) -> int:
    claims = Claims()
    stacks = CpuStacks(new_history(), StackPrograms.load(99), 99)
    stacks.start()
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder) / "races.cu", f"{folder}/races"
        source.write_text(SOURCE)
        nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
        subprocess.run([nvcc, "-O1", "-o", program, str(source), "-lcuda", "-lpthread"], check=True)
        cost(program, stacks, claims)
        for kind in ("bursts", "graphs", "modules"):
            come_and_go(program, kind, stacks, seconds, claims)
    stacks.stop()
    return int(claims.failed)


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]) if len(sys.argv) > 1 else 60.0))
