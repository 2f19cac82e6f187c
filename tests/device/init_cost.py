"""How long cuInit takes: without the library, with it where nobody listens, and with it and a sampler.

usage: python3 init_cost.py [TIMES]     as root, with a GPU, no sampler running; 30 s

Each is a process of its own that does nothing else, TIMES (8) of each kind in turns; the first is left out.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time

from gpuprof.tui import run

CODE = (
    "import ctypes, time; driver = ctypes.CDLL('libcuda.so.1'); began = time.perf_counter(); "
    "assert driver.cuInit(0) == 0; print((time.perf_counter() - began) * 1e3)"
)
START_S = 8.0  # of a sampler


def cu_init_ms(environ: dict[str, str]) -> float:
    done = subprocess.run(
        [sys.executable, "-c", CODE], env=environ, check=True, capture_output=True, text=True, timeout=60
    )
    return float(done.stdout)


def turns(times: int, beside: str) -> None:
    plain = dict(os.environ)
    with_library = run.environment(os.environ)
    with_library.pop(run.EXPECT, None)  # what it hears counts
    found: dict[str, list[float]] = {"without the library": [], "with it": []}
    for _ in range(times + 1):
        for name, environ in zip(found, (plain, with_library), strict=True):
            found[name].append(cu_init_ms(environ))
    for name, values in found.items():
        taken = sorted(values[1:])
        print(
            f"{beside}, {name}: median {statistics.median(taken):.0f} ms, {taken[0]:.0f} to {taken[-1]:.0f}"
        )


def main(times: int, folder: str) -> None:
    turns(times, "no sampler")
    command = ["gpuprof-tui", "record", "-o", f"{folder}/init.gpuprof", "--for", "120s"]
    sampler = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        time.sleep(START_S)
        turns(times, "a sampler")
    finally:
        sampler.terminate()
        sampler.wait(30)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 8, scratch)
