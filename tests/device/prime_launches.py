"""Launches for an oracle: three kernels, prime numbers of launches, two call paths, and CUDA events' time.

usage: python3 prime_launches.py OUT.json
under `gpuprof-tui record -o F -- ...`; then gpu_time_check.py F OUT.json compares.
"""

from __future__ import annotations

import json
import sys

import torch

COUNTS = {"path_one": {"sin": 1009, "cos": 503, "mul": 211}, "path_two": {"sin": 211, "cos": 101, "mul": 53}}


def spin(kind: str, x: torch.Tensor) -> None:
    if kind == "sin":
        x.sin_()
    elif kind == "cos":
        x.cos_()
    else:
        x.mul_(1.0001)


def path_one(kind: str, times: int, x: torch.Tensor) -> None:
    for _ in range(times):
        spin(kind, x)


def path_two(kind: str, times: int, x: torch.Tensor) -> None:
    for _ in range(times):
        spin(kind, x)


def main(out: str) -> None:
    x = torch.rand(1 << 29, device="cuda") * 0.5  # a kernel takes about a millisecond
    torch.cuda.synchronize()
    results: dict[str, dict[str, float]] = {}
    for name, kinds in COUNTS.items():
        for kind, times in kinds.items():
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            (path_one if name == "path_one" else path_two)(kind, times, x)
            end.record()
            end.synchronize()
            results.setdefault(kind, {})[name] = start.elapsed_time(end) / 1e3
    torch.cuda.synchronize()
    with open(out, "w") as file:
        json.dump({"counts": COUNTS, "event_s": results}, file)


if __name__ == "__main__":
    main(sys.argv[1])
