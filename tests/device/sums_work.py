"""The same deterministic work for two profilers: sums of kernel time by name.

usage: python3 sums_work.py torch OUT.json       under torch.profiler
       python3 sums_work.py plain OUT.json       under `gpuprof-tui record -o F --gpu-overhead off -- ...`
       python3 sums_work.py compare F OUT.json   PASS or FAIL: each kernel's sum within 1 %, its count exact
"""

from __future__ import annotations

import json
import sys
import time
from collections import defaultdict

ROUNDS = 40
LEAST_NS = 5_000_000  # of a kernel's sum: below, a percent is less than the clock's steps


def work() -> None:
    import torch

    a = torch.rand(4096, 4096, device="cuda")
    b = torch.rand(4096, 4096, device="cuda")
    c = torch.empty_like(a)
    for _ in range(ROUNDS):
        torch.mm(a, b, out=c)
        torch.sin(c, out=c)
        torch.softmax(c, -1)
        c.sum()
        torch.sort(a[:512].contiguous(), -1)
    torch.cuda.synchronize()


def main(how: str, out: str) -> None:
    import torch

    work()  # warm
    time.sleep(4)
    if how == "plain":
        work()
        time.sleep(2)
        return
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        work()
    sums: dict[str, list[float]] = defaultdict(lambda: [0, 0.0])
    for event in profiler.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            sums[event.name][0] += 1
            sums[event.name][1] += event.device_time * 1e3
    with open(out, "w") as file:
        json.dump(sums, file)


def compare(recording: str, truth_path: str) -> int:
    from gpuprof.sampler.kernel_label import kernel_label
    from gpuprof.snapshots.file import read_snapshot

    with open(truth_path) as file:
        truth = json.load(file)
    wanted: dict[str, list[float]] = defaultdict(lambda: [0, 0.0])
    for name, (count, ns) in truth.items():
        label = kernel_label(name.encode())
        wanted[label][0] += count
        wanted[label][1] += ns
    found: dict[str, list[float]] = defaultdict(lambda: [0, 0.0])
    history = read_snapshot(recording).history
    for view, rows in history.gpu_work_between(0, 1 << 62):
        for start, end, stack in zip(
            *(rows.columns[n].tolist() for n in ("start_ns", "end_ns", "stack")), strict=True
        ):
            name = view.strings[int(view.name[int(view.frame_function[int(view.frame[stack])])])]
            found[name][0] += 1
            found[name][1] += end - start
    bad = 0
    for name, (count, ns) in sorted(wanted.items(), key=lambda item: -item[1][1]):
        if ns < LEAST_NS or name.startswith(("memcpy", "Memcpy", "Memset")):
            continue
        # The warm-up is recorded when the library was attached in time: the same work twice.
        times = max(1, round(found[name][0] / count))
        ratio = found[name][1] / times / ns
        good = found[name][0] == times * count and abs(ratio - 1) <= 0.01
        bad += not good
        verdict, seen = "PASS" if good else "FAIL", found[name][0]
        print(f"{verdict} {name[:70]}: {seen:.0f} of {count} x {times}, ratio {ratio:.4f}")
    return bad > 0


if __name__ == "__main__":
    if sys.argv[1] == "compare":
        sys.exit(compare(*sys.argv[2:4]))
    main(*sys.argv[1:3])
