"""Kernels that stamp themselves with the GPU's own clock (%globaltimer), against what was recorded of them.

usage: python3 globaltimer.py work TRUTH.json     under `gpuprof-tui record -o F --gpu-overhead off -- ...`
       python3 globaltimer.py check F TRUTH.json  PASS or FAIL: lengths, sums, places on the clock

Needs cuda-python (cuda.bindings) and a GPU. One thread of a kernel reads the clock, spins for a known time
and reads it again, so that its two readings lie within the kernel's start and end.
"""

from __future__ import annotations

import json
import sys
import time
from ctypes import c_ulonglong, c_void_p
from typing import Any

import numpy as np
from claims import claim

SOURCE = r"""
extern "C" __global__ void stamp(unsigned long long *out, unsigned long long ns)
{
    unsigned long long began, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(began));
    do
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    while (now - began < ns);
    out[0] = began;
    out[1] = now;
}
"""
LENGTHS_NS = (20_000, 100_000, 1_000_000, 3_000_000, 10_000_000)
ROUNDS = 400  # 2,000 kernels in about 8 s, with pauses
LONG_NS = 1_000_000  # from here on what lies around the stamps must be below 1 %
STEP_NS = 1_100  # of the clock: a microsecond on some GPUs
AROUND_NS = 10_000  # of a kernel before its first and after its last stamp, with the clock's steps
SPREAD_NS = 20_000  # of the places, once the drift of the two clocks is taken out


def work(out: str) -> None:
    from cuda.bindings import driver
    from nvrtc_kernels import Gpu, check

    gpu = Gpu(SOURCE, ("stamp",))
    (stamp,) = gpu.functions
    count = ROUNDS * len(LENGTHS_NS)
    stamps = check(driver.cuMemAlloc(16 * count))
    time.sleep(5)  # the sampler finds the process, and the library attaches
    for index in range(count):
        length = LENGTHS_NS[index % len(LENGTHS_NS)]
        gpu.launch(stamp, (1, 1), (1, 1), (int(stamps) + 16 * index, c_void_p), (length, c_ulonglong))
        if index % len(LENGTHS_NS) == 0:
            gpu.synchronize()
            time.sleep(0.005)
    gpu.synchronize()
    found = np.zeros(2 * count, np.uint64)
    check(driver.cuMemcpyDtoH(found.ctypes.data, stamps, found.nbytes))
    time.sleep(2)
    with open(out, "w") as file:
        json.dump(found.tolist(), file)


def compare(file: str, truth: str) -> int:
    from gpu_oracle_check import all_work

    from gpuprof.snapshots.file import read_snapshot

    start, end, _, paths, label = all_work(read_snapshot(file).history)
    ours = np.array([path[-1] == "stamp" for path in paths], bool)[label]
    order = np.argsort(start[ours])
    start, end = start[ours][order].astype(np.int64), end[ours][order].astype(np.int64)
    with open(truth) as source:
        stamps = np.array(json.load(source), np.int64).reshape(-1, 2)

    claim(len(start) == len(stamps), f"{len(start)} of {len(stamps)} kernels")
    if len(start) != len(stamps):
        return 1
    inside = stamps[:, 1] - stamps[:, 0]
    around = (end - start) - inside
    low, middle, high = np.percentile(around, (0, 50, 100))
    claim(
        low >= -STEP_NS and high <= AROUND_NS,
        f"a kernel is {middle:.0f} ns longer than its stamps (least {low:.0f}, most {high:.0f})",
    )
    for length in LENGTHS_NS:
        chosen = np.arange(len(stamps)) % len(LENGTHS_NS) == LENGTHS_NS.index(length)
        ratio = (end - start)[chosen].sum() / inside[chosen].sum()
        good = length < LONG_NS or abs(ratio - 1) < 0.01
        claim(good, f"sum of {chosen.sum()} kernels of {length / 1e3:.0f} us: {ratio:.5f} of their stamps")
    # The clocks differ by an offset and a drift: what is left is how well each kernel is placed.
    offset = (start - stamps[:, 0]).astype(np.float64)
    at = (stamps[:, 0] - stamps[0, 0]) / 1e9
    drift = np.polynomial.polynomial.Polynomial.fit(at, offset - offset[0], 1)
    left = offset - offset[0] - drift(at)
    spread = np.percentile(left, (0, 2.5, 97.5, 100))
    slope = drift.convert().coef[1] / 1e3
    claim(
        bool(np.abs(left).max() <= SPREAD_NS),
        f"places: drift {slope:+.2f} us/s; the rest {spread[0]:.0f} to {spread[3]:.0f} ns, 95 % within"
        f" {spread[1]:.0f} to {spread[2]:.0f} ns",
    )
    return claim.failed > 0


def main(arguments: list[str]) -> Any:
    if arguments[0] == "work":
        return work(arguments[1])
    return compare(*arguments[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
