"""How many instructions a launch takes, counted one by one: without the library, with it and nobody
listening, in a pause of the default budget, and after the detach. What is the same instructions costs the
same, however much the machine drifts.

usage: python3 launch_steps.py [launch|graph]     as root with a GPU and nvcc, no sampler; half a minute
       python3 launch_steps.py mock               the same on the mock driver of tests/native, without a GPU

Prints for each the median and the range over 20 launches, and the median by library. What libcupti or the
injection library have of a launch in a pause is a fault, and the verdict says so.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress

from launch_cost import ring_of
from mock_driver import gpu_loop, mock_loop
from stepping import patched, placed, stepping
from windows import Worker, sampler

from gpuprof.sampler.gpu_ring import GpuRing

CALLS = 20
MOCK_CALLS, MOCK_WORK = 3, 4  # a step may take a millisecond where others use the machine
PAUSE_S = 60.0  # until the library has found its sampler, has recorded, and pauses
OURS = ("libgpuprof_inject", "libcupti", "[uprobes]")


def instructions(work: Worker, calls: int = CALLS) -> list[list[tuple[str, int]]]:
    """The instructions of each of `calls` launches, as file and offset. The loop then goes on without an
    end.
    """
    entry = int(work.ask("where")[0])
    work.begin("ever")  # the clock's page, read one instruction at a time, would be found changed each time
    time.sleep(0.2)
    with stepping(work.process.pid) as stepper:
        found = stepper.calls(entry, calls)
    return [placed(work.process.pid, one) for one in found]


def told(name: str, lengths: list[int], files: Counter[str]) -> None:
    parts = ", ".join(f"{file} {count}" for file, count in files.most_common(6))
    print(
        f"{name:30} {statistics.median(lengths):8.0f} instructions a launch"
        f" ({min(lengths)} to {max(lengths)}): {parts}",
        flush=True,
    )


def wait_for_pause(work: Worker, ring: GpuRing) -> bool:
    """Launch until the library has recorded and pauses; whether it does in time."""
    end, before = time.monotonic() + PAUSE_S, ring.facts().pauses
    while time.monotonic() < end:
        work.ask("0.1")
        facts = ring.facts()
        if facts.state == "paused" and facts.pauses > before:
            return True
    return False


def main(kind: str, folder: str) -> int:
    mock = kind == "mock"
    loop = mock_loop(folder, work=MOCK_WORK) if mock else gpu_loop(folder, graph=kind == "graph")

    def fresh(environ: dict[str, str]) -> Worker:
        work = Worker(loop.command, environ)
        work.ask("0.5")
        return work

    def counted(name: str, work: Worker) -> tuple[float, Counter[str]]:
        found = sorted(instructions(work, MOCK_CALLS if mock else CALLS), key=len)
        changed[name] = sorted({file for file, _ in patched(work.process.pid)})
        work.end()
        lengths, files = [len(one) for one in found], Counter(name for name, _ in found[len(found) // 2])
        told(name, lengths, files)
        return statistics.median(lengths), files

    changed: dict[str, list[str]] = {}
    base, _ = counted("without the library", fresh(dict(os.environ)))
    counted("with it, nobody listens", fresh(loop.environment))
    loaded, left = fresh(loop.environment), fresh(loop.environment)
    with sampler(rings=loop.rings if mock else ""):
        if not wait_for_pause(loaded, ring_of(loaded.process.pid, loop.rings)):
            print("FAIL: no pause came")
            return 1
        paused, files = counted("in a pause", loaded)
        left.ask("3")
        counted("without the library, sampler", fresh(dict(os.environ)))
    left.ask("1")
    counted("after the detach", left)
    for name, files_changed in changed.items():
        print(f"{name:30} code that is not as in its file: {', '.join(files_changed) or 'none'}")
    foreign = {name: count for name, count in files.items() if name.startswith(OURS)}
    good = not foreign and paused <= base * 1.01
    print(
        f"{'PASS' if good else 'FAIL'} {kind}: a launch in a pause takes {paused - base:+.0f} instructions"
        f" of {base:.0f}, {sum(foreign.values())} of them in CUPTI or the injection library"
    )
    return not good


if __name__ == "__main__":
    with suppress(BrokenPipeError), tempfile.TemporaryDirectory() as scratch:
        sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "launch", scratch))
