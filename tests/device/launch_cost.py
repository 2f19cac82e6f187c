"""What launching a tiny kernel costs without and with the library: paired windows, 95 % intervals.

usage: python3 launch_cost.py [PAIRS]          as root, with no sampler running

Two processes launch in turn, window by window: one without the injection library, one with it. First nobody
listens; then a reader holds the ring's lock (CUPTI and the library alone, no launch stack is taken); then the
whole sampler.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from pathlib import Path

from windows import Worker, mean_and_width, sampler, timed

from gpuprof.sampler import gpu_ring
from gpuprof.tui import run

WINDOW_S = 0.4
LAUNCHES = 500  # between two synchronizes


def worker() -> None:
    import torch

    x = torch.zeros(4096, device="cuda")

    def launch() -> None:
        for _ in range(LAUNCHES):
            x.add_(1)

    for _ in sys.stdin:
        print(timed(launch, torch.cuda.synchronize, WINDOW_S) / LAUNCHES * 1e6, flush=True)


def compare(name: str, plain: Worker, loaded: Worker, pairs: int) -> None:
    base, extra = [], []
    for _ in range(pairs):
        before, cost = plain.ask("go")[0], loaded.ask("go")[0]
        base.append(before)
        extra.append(cost - before)
    mean, error = mean_and_width(extra)
    median = statistics.median(base)
    print(
        f"{name:34} {median:6.2f} us a launch without, {mean:+6.2f} +- {error:.2f} us ({mean / median:+.1%})"
    )


def ring_of(pid: int, name: str = gpu_ring.NAME) -> gpu_ring.GpuRing:
    for link in Path(f"/proc/{pid}/fd").iterdir():
        if os.readlink(link).startswith(name):
            return gpu_ring.GpuRing(os.open(link, os.O_RDWR | os.O_CLOEXEC))
    sys.exit("the library made no ring")


def main(pairs: int) -> None:
    command = [sys.executable, __file__, "--worker"]
    plain, loaded = (Worker(command, e) for e in (dict(os.environ), run.environment(os.environ)))
    plain.ask("go")
    compare("nobody listens", plain, loaded, pairs)

    ring = ring_of(loaded.process.pid)
    ring.lock()
    time.sleep(1)
    loaded.ask("go")
    compare("CUPTI and the library alone", plain, loaded, pairs)
    print(f"    {ring.facts()}")
    ring.close()
    time.sleep(1)
    loaded.ask("go")
    compare("nobody listens again", plain, loaded, pairs)

    with sampler():
        time.sleep(10)
        loaded.ask("go")
        compare("the whole sampler", plain, loaded, pairs)
    time.sleep(1)
    loaded.ask("go")
    compare("after it", plain, loaded, pairs)
    plain.end()
    loaded.end()


if __name__ == "__main__":
    if "--worker" in sys.argv:
        worker()
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
