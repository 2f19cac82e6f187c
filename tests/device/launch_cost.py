"""What launching a tiny kernel costs without and with the library: paired windows, 95 % intervals.

usage: python3 launch_cost.py [PAIRS]          as root, with no sampler running

Two processes launch in turn, window by window: one without the injection library, one with it. First nobody
listens; then a reader holds the ring's lock (CUPTI and the library alone, no launch stack is taken); then the
whole sampler.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from gpuprof.sampler import gpu_ring
from gpuprof.tui import run

WINDOW_S = 0.4


def worker() -> None:
    import torch

    x = torch.zeros(4096, device="cuda")
    for _ in sys.stdin:
        torch.cuda.synchronize()
        began, launches = time.perf_counter(), 0
        while time.perf_counter() - began < WINDOW_S:
            for _ in range(500):
                x.add_(1)
            torch.cuda.synchronize()
            launches += 500
        print((time.perf_counter() - began) / launches * 1e6, flush=True)


class Worker:
    def __init__(self, environ: dict[str, str]) -> None:
        command = [sys.executable, __file__, "--worker"]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environ)
        self.window()

    def window(self) -> float:
        """Microseconds a launch in one window."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())


def compare(name: str, plain: Worker, loaded: Worker, pairs: int) -> None:
    base, extra = [], []
    for _ in range(pairs):
        before, cost = plain.window(), loaded.window()
        base.append(before)
        extra.append(cost - before)
    mean, error = statistics.fmean(extra), 1.96 * statistics.stdev(extra) / len(extra) ** 0.5
    median = statistics.median(base)
    print(
        f"{name:34} {median:6.2f} us a launch without, {mean:+6.2f} +- {error:.2f} us ({mean / median:+.1%})"
    )


def ring_of(pid: int) -> gpu_ring.GpuRing:
    for link in Path(f"/proc/{pid}/fd").iterdir():
        if os.readlink(link).startswith(gpu_ring.NAME):
            return gpu_ring.GpuRing(os.open(link, os.O_RDWR | os.O_CLOEXEC))
    sys.exit("the library made no ring")


def main(pairs: int) -> None:
    plain, loaded = Worker(dict(os.environ)), Worker(run.environment(os.environ))
    compare("nobody listens", plain, loaded, pairs)

    ring = ring_of(loaded.process.pid)
    ring.lock()
    time.sleep(1)
    loaded.window()
    compare("CUPTI and the library alone", plain, loaded, pairs)
    print(f"    {ring.facts()}")
    ring.close()
    time.sleep(1)
    loaded.window()
    compare("nobody listens again", plain, loaded, pairs)

    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "gpuprof.sampler", "--socket", f"{folder}/sampler.sock"]
        sampler = subprocess.Popen(command)
        time.sleep(10)
        loaded.window()
        compare("the whole sampler", plain, loaded, pairs)
        sampler.terminate()
        sampler.wait()
    time.sleep(1)
    loaded.window()
    compare("after it", plain, loaded, pairs)
    for process in (plain.process, loaded.process):
        process.kill()


if __name__ == "__main__":
    if "--worker" in sys.argv:
        worker()
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
