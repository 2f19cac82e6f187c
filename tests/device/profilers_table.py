"""One table: what a training step costs under this sampler and under torch.profiler, same workload, same run.

usage: python3 profilers_table.py [ROUNDS]      as root with a GPU and PyTorch, no sampler running

One process trains with the injection library loaded; in each round, in turn: nobody listens; the sampler with
its default budget; the sampler recording everything; torch.profiler with kernels and the host's operators;
torch.profiler with Python stacks too. The loss is paired with the undisturbed window of the same round.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time

from gpuprof.tui import run

WINDOW_S = 4.0
SETTLE_S = 8.0
STATES = {
    "nobody listens": None,
    "gpuprof, default budget": [],
    "gpuprof, --gpu-overhead off": ["--gpu-overhead", "off"],
    "torch.profiler": None,
    "torch.profiler, with_stack": None,
}


def worker() -> None:
    import torch
    from torch.profiler import ProfilerActivity, profile
    from train_slow_loader import build_model, train_step

    model = build_model().cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    images = torch.rand(16, 3, 96, 96, device="cuda")
    labels = torch.arange(16, device="cuda") % 10

    def window() -> float:
        torch.cuda.synchronize()
        began, steps = time.perf_counter(), 0
        while time.perf_counter() - began < WINDOW_S:
            for _ in range(5):
                train_step(model, optimizer, images, labels)
            torch.cuda.synchronize()
            steps += 5
        return (time.perf_counter() - began) / steps * 1e3

    for line in sys.stdin:
        if line.startswith("torch"):
            activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
            with profile(activities=activities, with_stack="stack" in line) as profiler:
                step_ms = window()
            kernels = sum(1 for event in profiler.events() if event.device_type.name == "CUDA")
            del profiler
            print(step_ms, kernels, flush=True)
        else:
            print(window(), 0, flush=True)


def main(rounds: int) -> None:
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        [sys.executable, __file__, "--worker"],
        stdin=pipe,
        stdout=pipe,
        text=True,
        env=run.environment(os.environ),
    )

    def window(how: str) -> tuple[float, int]:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(how + "\n")
        process.stdin.flush()
        step_ms, kernels = process.stdout.readline().split()
        return float(step_ms), int(kernels)

    window("go")
    found: dict[str, list[float]] = {name: [] for name in STATES}
    kernels: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(rounds):
            for name, options in STATES.items():
                sampler = None
                if options is not None:
                    command = [sys.executable, "-m", "gpuprof.sampler", "--socket", f"{folder}/sampler.sock"]
                    sampler = subprocess.Popen(command + options)
                    time.sleep(SETTLE_S)
                step_ms, kernels[name] = window(name)
                found[name].append(step_ms)
                if sampler is not None:
                    sampler.terminate()
                    sampler.wait()
                    window("go")  # the next launch finalizes CUPTI
    process.kill()
    base = found["nobody listens"]
    print(f"{'':30} {'ms a step':>10} {'loss':>18}  kernels seen by torch.profiler")
    for name, values in found.items():
        loss = [value / before - 1 for value, before in zip(values, base, strict=True)]
        error = 1.96 * statistics.stdev(loss) / len(loss) ** 0.5 if len(loss) > 1 else float("nan")
        seen = str(kernels[name]) if kernels[name] else ""
        step_ms, mean = statistics.median(values), statistics.fmean(loss)
        print(f"{name:30} {step_ms:10.2f} {mean:+8.1%} +- {error:5.1%}  {seen}")


if __name__ == "__main__":
    if "--worker" in sys.argv:
        worker()
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
