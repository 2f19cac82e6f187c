"""Memory of the sampler on a machine that starts ten processes a second, as root.

usage: python tests/bench/churn_bench.py [--minutes 1.5] [--per-second 10] [--history-mib 64]
An hour shows that it stays flat; with 40 a second and 16 MiB a few minutes do.

The processes are short Python scripts, shells and copies of a program under a name of its own. By the
sampler's own status frames: resident memory without BPF maps, once the first third is over against the end,
and what the history holds of it (which fills up to its bound). The baseline is its memory at the start.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from sampler_bench import Client

NEW_FILE_EVERY = 10  # processes
KEPT_FILES = 10
SCRIPTS = (
    [sys.executable, "-Sc", "import json\nfor _ in range(300): json.dumps(list(range(99)))"],
    [sys.executable, "-Sc", "sum(i * i for i in range(60_000))"],
    ["/bin/sh", "-c", "i=0; while [ $i -lt 3000 ]; do i=$((i+1)); done"],
)


def churn(folder: str, per_second: float, stop: threading.Event) -> None:
    """Start processes until told to stop; every tenth runs a file that is new."""
    running: list[subprocess.Popen[bytes]] = []
    started = 0
    due = time.monotonic()
    while not stop.wait(max(0.0, due - time.monotonic())):
        due += 1 / per_second
        started += 1
        command = SCRIPTS[started % len(SCRIPTS)]
        own = ""
        if not started % NEW_FILE_EVERY:
            own = shutil.copy("/bin/sh", f"{folder}/program{started}")
            command = [own, "-c", SCRIPTS[2][2]]
        running.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))
        running = [process for process in running if process.poll() is None]
        Path(f"{folder}/program{started - NEW_FILE_EVERY * KEPT_FILES}").unlink(missing_ok=True)
    for process in running:
        process.kill()
        process.wait()


def measure(minutes: float, per_second: float, history_mib: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/sampler.sock"
        sampler = subprocess.Popen(
            [sys.executable, "-m", "gpuprof.sampler", "--socket", path, "--history-mib", str(history_mib)]
        )
        stop = threading.Event()
        churner = threading.Thread(target=churn, args=(folder, per_second, stop))
        try:
            client = Client(path)
            while not any(
                source.name == "cpu" and source.state == "ok" for source in client.status().sources
            ):
                pass
            first = client.status()
            churner.start()
            end = time.monotonic() + 60 * minutes
            seen = [first]
            while time.monotonic() < end:
                seen.append(client.status())
        finally:
            stop.set()
            if churner.is_alive():
                churner.join()
            sampler.kill()
            sampler.wait()
    rss = np.array([status.sampler_rss_bytes for status in seen]) / 1e6
    held = np.array([status.history_bytes for status in seen]) / 1e6
    third, tenth = len(seen) // 3, max(len(seen) // 10, 1)
    last = seen[-1]
    share = (last.sampler_cpu_ns - first.sampler_cpu_ns) / (last.time_ns - first.time_ns)
    samples = next(source.samples for source in last.sources if source.name == "cpu")
    begin, after = np.median(rss[third : third + tenth]), np.median(rss[-tenth:])
    hours = (last.time_ns - seen[third].time_ns) / 3.6e12
    started = 60 * minutes * per_second
    print(f"over                    {minutes:g} min, {started:.0f} processes, {samples} samples")
    print(f"memory at the start     {rss[0]:.1f} MB, of which the history {held[0]:.1f}")
    print(f"after a third           {begin:.1f} MB, of which the history {held[third]:.1f}")
    print(
        f"at the end              {after:.1f} MB, of which the history {held[-1]:.1f}; most {rss.max():.1f}"
    )
    beside = rss - held
    parts = beside[:1], beside[third : third + tenth], beside[-tenth:]
    print(f"beside the history      {' MB, then '.join(f'{np.median(part):.1f}' for part in parts)} MB")
    print(f"growth since the third  ratio {after / begin:.3f}; {(after - begin) / hours:.1f} MB an hour")
    print(f"sampler's CPU           {share:.2%} of a core")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.5)
    parser.add_argument("--per-second", type=float, default=10)
    parser.add_argument("--history-mib", type=int, default=64)
    options = parser.parse_args()
    if os.geteuid() != 0:
        print("churn_bench: skipped, eBPF needs root")
        sys.exit(0)
    measure(options.minutes, options.per_second, options.history_mib)
