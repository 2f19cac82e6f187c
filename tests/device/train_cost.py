"""What a training step costs with the sampler, with CUPTI alone, and with nobody listening, on a real GPU.

usage: python3 train_cost.py [ROUNDS]          as root, with no sampler running

One process trains (the model of train_slow_loader.py, on data that is on the device) with the injection
library loaded. In turn nobody listens, a reader holds the ring's lock, and the whole sampler runs; each state
is measured for a few seconds in each round.
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

WINDOW_S = 4.0


def worker() -> None:
    import torch
    from train_slow_loader import build_model, train_step

    model = build_model().cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    images = torch.rand(16, 3, 96, 96, device="cuda")
    labels = torch.arange(16, device="cuda") % 10
    for _ in sys.stdin:
        torch.cuda.synchronize()
        began, steps = time.perf_counter(), 0
        while time.perf_counter() - began < WINDOW_S:
            for _ in range(5):
                train_step(model, optimizer, images, labels)
            torch.cuda.synchronize()
            steps += 5
        print((time.perf_counter() - began) / steps * 1e3, flush=True)


def main(rounds: int) -> None:
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        [sys.executable, __file__, "--worker"],
        stdin=pipe,
        stdout=pipe,
        text=True,
        env=run.environment(os.environ),
    )
    assert process.stdin is not None
    assert process.stdout is not None

    def window() -> float:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("go\n")
        process.stdin.flush()
        return float(process.stdout.readline())

    window()
    found: dict[str, list[float]] = {
        "nobody listens": [],
        "CUPTI and the library alone": [],
        "the whole sampler": [],
    }
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(rounds):
            found["nobody listens"].append(window())
            link = next(
                link
                for link in Path(f"/proc/{process.pid}/fd").iterdir()
                if os.readlink(link).startswith(gpu_ring.NAME)
            )
            ring = gpu_ring.GpuRing(os.open(link, os.O_RDWR | os.O_CLOEXEC))
            ring.lock()
            time.sleep(0.5)
            found["CUPTI and the library alone"].append(window())
            ring.close()
            sampler = subprocess.Popen(
                [sys.executable, "-m", "gpuprof.sampler", "--socket", f"{folder}/sampler.sock"]
            )
            time.sleep(9)
            found["the whole sampler"].append(window())
            sampler.terminate()
            sampler.wait()
            time.sleep(0.5)
    process.kill()
    base = found["nobody listens"]
    for name, values in found.items():
        extra = [value / before - 1 for value, before in zip(values, base, strict=True)]
        error = 1.96 * statistics.stdev(extra) / len(extra) ** 0.5
        step_ms, share = statistics.median(values), statistics.fmean(extra)
        print(f"{name:30} {step_ms:7.2f} ms a step, {share:+.1%} +- {error:.1%}")


if __name__ == "__main__":
    if "--worker" in sys.argv:
        worker()
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
