"""What the sampler costs and how complete its stacks are, at 99 Hz with every core busy, as root.

usage: python tests/bench/sampler_bench.py [--seconds 10] [--hz 99]

With --hz 792 two cores give as many samples as sixteen do at 99 Hz.

Each core runs a CPython workload. Over the window, by the sampler's own status frames: time inside the BPF
programs (the kernel's bpf_stats) per CPU, the sampler's CPU and memory; by a query: the share of samples that
reach the root of their thread. The baseline is a Python process that only wakes up ten times a second.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from gpuprof.snapshots.frames import MAGIC, Frame, FrameKind, Query, Status, Subscribe, Tree
from gpuprof.snapshots.wire import Decoder, pack

WORKLOAD = """
import json, re
def fib(n): return n if n < 2 else fib(n - 1) + fib(n - 2)
def parse(): return json.loads(json.dumps({str(i): [i] * 5 for i in range(500)}))
def sub(): return re.sub('a+', lambda m: m.group(0) * 2, 'aab' * 300)
def main():
    while True:
        fib(15); parse(); sub(); sorted(range(3000), key=lambda i: -i)
main()
"""
IDLE = "import time\nwhile True: time.sleep(0.1)"


class Client:
    """A connection to the sampler: frames in the order in which they come."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        deadline = time.monotonic() + 60
        while True:
            try:
                self._socket.connect(path)
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
        self._decoder = Decoder()
        self._waiting: list[Frame] = []
        self._socket.sendall(MAGIC + pack(Subscribe("metrics")))

    def send(self, frame: Frame) -> None:
        self._socket.sendall(pack(frame))

    def next(self) -> Frame:
        while not self._waiting:
            self._waiting = self._decoder.feed(self._socket.recv(1 << 16))
        return self._waiting.pop(0)

    def status(self) -> Status:
        while True:
            frame = self.next()
            if isinstance(frame, Status):
                return frame

    def tree(self, query: Query) -> Tree:
        self.send(query)
        while True:
            frame = self.next()
            if isinstance(frame, Tree):
                return frame


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(seconds: float, hz: int) -> None:
    cores = len(os.sched_getaffinity(0))
    workers = [subprocess.Popen([sys.executable, "-c", WORKLOAD]) for _ in range(cores)]
    idle = subprocess.Popen([sys.executable, "-c", IDLE])
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/sampler.sock"
        began = time.monotonic()
        sampler = subprocess.Popen(
            [sys.executable, "-m", "gpuprof.sampler", "--socket", path, "--hz", str(hz)]
        )
        try:
            client = Client(path)
            while not any(s.name == "cpu" and s.state == "ok" for s in client.status().sources):
                if time.monotonic() - began > 60:
                    sys.exit("the CPU source did not start")
            started_s = time.monotonic() - began
            time.sleep(3)
            first = client.status()
            while first.time_ns < time.monotonic_ns() - 1_500_000_000:
                first = client.status()
            idle_before, idle_began = cpu_seconds(idle.pid), time.monotonic()
            while (last := client.status()).time_ns < first.time_ns + seconds * 1e9:
                pass
            window_ns = last.time_ns - first.time_ns
            idle_share = (cpu_seconds(idle.pid) - idle_before) / (time.monotonic() - idle_began)
            tree = client.tree(
                Query(1, "cpu", first.time_ns, last.time_ns, pids=[worker.pid for worker in workers])
            )
        finally:
            for process in [*workers, idle, sampler]:
                process.kill()
                process.wait()
    total = float(tree.total_weight[0])
    python = float(tree.self_weight[tree.kind == FrameKind.PYTHON].sum())
    share = (last.sampler_cpu_ns - first.sampler_cpu_ns) / window_ns
    samples = [next(one.samples for one in status.sources if one.name == "cpu") for status in (first, last)]
    per_sample = (last.sampler_cpu_ns - first.sampler_cpu_ns) / 1e3 / max(samples[1] - samples[0], 1)
    print(
        f"cores busy                     {cores}, {(samples[1] - samples[0]) * 1e9 / window_ns:.0f} samples/s"
    )
    print(f"first CPU stacks after         {started_s:.1f} s (the loader compiles)")
    if last.bpf_run_ns is not None and first.bpf_run_ns is not None:
        inside = (last.bpf_run_ns - first.bpf_run_ns) / window_ns / cores
        print(f"inside the BPF programs        {inside:.3%} of each CPU")
    print(f"sampler's CPU                  {share:.2%} of a core, {per_sample:.0f} us a sample")
    print(f"a process that wakes at 10 Hz  {idle_share:.2%} of a core")
    print(f"sampler's memory               {last.sampler_rss_bytes / 1e6:.0f} MB resident")
    print(f"samples of the workload        {total:.0f}, complete {1 - tree.truncated / max(total, 1):.2%}")
    print(f"samples whose leaf is Python   {python / max(total, 1):.1%}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--hz", type=int, default=99)
    options = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("sampler_bench: eBPF needs root")
    measure(options.seconds, options.hz)
