"""What the default budget leaves of a workload's speed: tiny kernels, graph replay, or a training step.

usage: python3 budget_cost.py tiny|graph|train [SECONDS]    as root with a GPU and PyTorch, no sampler running

One process with the library loaded works without end. In turn nobody listens, the sampler runs with its
default budget, with --gpu-overhead off, and nobody listens again. Each state is measured as a whole, since
under a budget recording comes in windows; the intervals are from the means of one-second parts, in blocks of
five. About 2 minutes with the default of 25 s a state.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time

from gpuprof.tui import run

PART_S = 1.0
START_S = 9.0  # of the sampler
MOST = {"tiny": 5.0, "graph": 5.0, "train": 1.0}  # percent


def worker(kind: str) -> None:
    import torch

    x = torch.zeros(4096, device="cuda")
    if kind == "tiny":

        def step() -> None:
            for _ in range(500):
                x.add_(1)

    elif kind == "graph":
        graph = torch.cuda.CUDAGraph()
        x.add_(1)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            for _ in range(20):
                x.add_(1)

        def step() -> None:
            for _ in range(50):
                graph.replay()

    else:
        from train_slow_loader import build_model, train_step

        model = build_model().cuda()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        images = torch.rand(16, 3, 96, 96, device="cuda")
        labels = torch.arange(16, device="cuda") % 10

        def step() -> None:
            for _ in range(5):
                train_step(model, optimizer, images, labels)

    for line in sys.stdin:
        for _ in range(int(line)):
            torch.cuda.synchronize()
            began, steps = time.perf_counter(), 0
            while time.perf_counter() - began < PART_S:
                step()
                torch.cuda.synchronize()
                steps += 1
            print((time.perf_counter() - began) / steps * 1e6, flush=True)


class Worker:
    def __init__(self, kind: str) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--worker", kind],
            stdin=pipe, stdout=pipe, text=True, env=run.environment(os.environ),
        )  # fmt: skip
        self.parts(3)

    def parts(self, count: int) -> list[float]:
        """Microseconds a step, of each second."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{count}\n")
        self.process.stdin.flush()
        return [float(self.process.stdout.readline()) for _ in range(count)]


def mean_and_error(parts: list[float], block: int = 5) -> tuple[float, float]:
    """Of the mean time a step; half the width of its 95 % interval, from the means of blocks."""
    blocks = [statistics.fmean(parts[at : at + block]) for at in range(0, len(parts) - block + 1, block)]
    return statistics.fmean(parts), 2.2 * statistics.stdev(blocks) / len(blocks) ** 0.5


def main(kind: str, seconds: int) -> int:
    loaded = Worker(kind)
    found = {"nobody listens": loaded.parts(seconds)}
    with tempfile.TemporaryDirectory() as folder:
        for name, options in (("default budget", []), ("--gpu-overhead off", ["--gpu-overhead", "off"])):
            sampler = subprocess.Popen(
                [sys.executable, "-m", "gpuprof.sampler", "--socket", f"{folder}/sampler.sock", *options]
            )
            loaded.parts(int(START_S))
            found[name] = loaded.parts(seconds)
            sampler.terminate()
            sampler.wait()
            loaded.parts(2)
    found["nobody listens again"] = loaded.parts(seconds)
    loaded.process.kill()
    base = found["nobody listens"] + found["nobody listens again"]
    mean, error = mean_and_error(base)
    for name, parts in found.items():
        own, own_error = mean_and_error(parts)
        extra = (own / mean - 1) * 100
        width = (own_error**2 + error**2) ** 0.5 / mean * 100
        print(f"{kind:5} {name:22} {own:9.1f} us a step, {extra:+.2f} +- {width:.2f} %")
        if name == "default budget":
            good = extra - width <= MOST[kind]
            print(
                f"{'PASS' if good else 'FAIL'} {kind}: the default costs {extra:+.2f} % (most {MOST[kind]})"
            )
            bad = not good
    return bad


if __name__ == "__main__":
    if sys.argv[1] == "--worker":
        worker(sys.argv[2])
    else:
        sys.exit(main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 25))
