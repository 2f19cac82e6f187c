"""One table: what a workload loses to this sampler, and to torch.profiler; the same process, the same run.

usage: python3 cost_table.py train|tiny|tight|graph [ROUNDS]    as root with a GPU and PyTorch, and no sampler

One process works with the injection library loaded. In each round, in turn: the sampler with its default
budget; the sampler recording everything; and, of the training step, torch.profiler with kernels and the
operators of the host, and with Python stacks too. Before and after each of these nobody listens: the loss is
against the mean of the two. A window of the default budget is longer, since under a budget recording comes in
windows. A round of train takes 100 s or more (torch.profiler reads its events in), of the others 40 s. `tiny`
launches from Python, `tight` from a loop of CUDA C++ that does nothing else (compiled by nvcc).
"""

from __future__ import annotations

import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext

from tight_loop import tight_loop
from windows import Worker, mean_and_width, sampler, timed

from gpuprof.tui import run

BASE_S, DEFAULT_S, OFF_S, TORCH_S = 4.0, 12.0, 4.0, 1.0
SETTLE_S = 5.0  # of the sampler: it finds the process, the library attaches, the budget is learnt
MOST = {"train": 1.0, "tiny": 5.0, "tight": 5.0, "graph": 5.0}  # percent
BASE, DEFAULT, OFF = "nobody listens", "gpuprof, default budget", "gpuprof, --gpu-overhead off"
TORCH, TORCH_STACK = "torch.profiler", "torch.profiler, with_stack"
LAUNCHES = {"tiny": 500, "graph": 1000}  # kernels of a step


def step_of(kind: str) -> Callable[[], None]:
    import torch

    x = torch.zeros(4096, device="cuda")
    if kind == "tiny":

        def tiny() -> None:
            for _ in range(LAUNCHES["tiny"]):
                x.add_(1)

        return tiny
    if kind == "graph":
        graph = torch.cuda.CUDAGraph()
        x.add_(1)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            for _ in range(20):
                x.add_(1)

        def replay() -> None:
            for _ in range(LAUNCHES["graph"] // 20):
                graph.replay()

        return replay
    from train_slow_loader import build_model, train_step

    model = build_model().cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    images = torch.rand(16, 3, 96, 96, device="cuda")
    labels = torch.arange(16, device="cuda") % 10
    return lambda: train_step(model, optimizer, images, labels)


def worker(kind: str) -> None:
    """Answers "SECONDS", or "SECONDS torch", or "SECONDS stack", with µs a step and the kernels seen."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    step = step_of(kind)
    for line in sys.stdin:
        seconds, _, how = line.strip().partition(" ")
        activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
        with profile(activities=activities, with_stack=how == "stack") if how else nullcontext() as profiler:
            step_s = timed(step, torch.cuda.synchronize, float(seconds))
        kernels = sum(e.device_type.name == "CUDA" for e in profiler.events()) if profiler else 0
        del profiler
        print(step_s * 1e6, kernels, flush=True)


def main(kind: str, rounds: int, folder: str) -> int:
    command = tight_loop(folder) if kind == "tight" else [sys.executable, __file__, "--worker", kind]
    work = Worker(command, run.environment(os.environ))
    seconds = {BASE: f"{BASE_S}", DEFAULT: f"{DEFAULT_S}", OFF: f"{OFF_S}"}
    seconds |= {TORCH: f"{TORCH_S} torch", TORCH_STACK: f"{TORCH_S} stack"} if kind == "train" else {}
    options = {DEFAULT: [], OFF: ["--gpu-overhead", "off"]}
    step_us: dict[str, list[float]] = {name: [] for name in seconds}
    loss: dict[str, list[float]] = {name: [] for name in seconds}
    kernels: dict[str, float] = {}
    for _ in range(3):
        work.ask("1")
    before = work.ask(seconds[BASE])[0]
    for _ in range(rounds):
        for name in list(seconds)[1:]:
            with sampler(*options[name]) if name in options else nullcontext():
                if name in options:
                    work.ask(f"{SETTLE_S}")
                found, kernels[name] = work.ask(seconds[name])
            work.ask("1")  # the next launch finalizes CUPTI
            after = work.ask(seconds[BASE])[0]
            step_us[name].append(found)
            step_us[BASE].append(after)
            loss[name].append((found / ((before + after) / 2) - 1) * 100)
            loss[BASE].append((after / before - 1) * 100)
            print(f"    {name:30} {found:9.1f} us a step, {loss[name][-1]:+.2f} %", flush=True)
            before = after
    work.end()
    print(f"{kind}, {rounds} rounds{'':14} {'µs a step':>10} {'loss, %':>18}")
    for name, values in step_us.items():
        mean, width = mean_and_width(loss[name])
        each = " ".join(f"{one:+.1f}" for one in loss[name])
        seen = f"   ({each})"
        seen += f"   {kernels[name]:,.0f} kernels in {TORCH_S:.0f} s" if kernels.get(name) else ""
        print(f"{name:30} {statistics.median(values):10.1f} {mean:+9.2f} +- {width:5.2f}{seen}")
    mean, width = mean_and_width(loss[DEFAULT])
    good = mean - (0 if math.isnan(width) else width) <= MOST[kind]
    verdict = "PASS" if good else "FAIL"
    print(f"{verdict} {kind}: the default costs {mean:+.2f} +- {width:.2f} % (most {MOST[kind]})")
    return not good


if __name__ == "__main__":
    if sys.argv[1] == "--worker":
        worker(sys.argv[2])
    else:
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as scratch:
            bad = main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 5, scratch)
        print(f"{time.monotonic() - began:.0f} s")
        sys.exit(bad)
