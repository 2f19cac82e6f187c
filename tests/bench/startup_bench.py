"""How soon the sampler names the first stack, and what it holds in memory with large tables, as root.

usage: python tests/bench/startup_bench.py [--runs 3] [--python PATH] [--seconds 8]

Start-up: a sampler is started beside a busy Python process and asked for that process's tree until a
function of it is named: first with an empty cache of compiled programs (LLVM compiles them), then with
the cache that this left. The baseline is a Python process that only imports numpy. Memory: a process
trains with PyTorch (`--python`: an interpreter that has it; else one that works inside libLLVM) and is
sampled; the sampler's resident memory without BPF maps, as its status says and as /proc/PID/smaps says,
against a Python process that only imports numpy.
"""

from __future__ import annotations

import argparse
import glob
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from gpuprof.snapshots.frames import MAGIC, Frame, Query, Status, Subscribe, Tree
from gpuprof.snapshots.wire import Decoder, pack

NAME = "startup_bench_work"
BUSY = f"def {NAME}():\n    while True: sum(range(1000))\n{NAME}()"
TORCH = f"""
import torch
def {NAME}():
    model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
    step = torch.optim.Adam(model.parameters())
    x, y = torch.randn(64, 256), torch.randint(0, 10, (64,))
    while True:
        step.zero_grad(); torch.nn.functional.cross_entropy(model(x), y).backward(); step.step()
{NAME}()
"""
LARGE = f"""
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
create = library.LLVMContextCreate
create.restype = ctypes.c_void_p
dispose = library.LLVMContextDispose
dispose.argtypes = [ctypes.c_void_p]
def {NAME}():
    while True:
        for _ in range(1000): dispose(create())
{NAME}()
"""
NUMPY = "import numpy, time\nprint(flush=True)\ntime.sleep(600)"


class Sampler:
    """A sampler of its own with a connection to it."""

    def __init__(self, folder: str) -> None:
        path = f"{folder}/sampler.sock"
        environ = {**os.environ, "CACHE_DIRECTORY": f"{folder}/cache"}
        self.began = time.monotonic()
        self.began_ns = time.monotonic_ns()
        command = [sys.executable, "-m", "gpuprof.sampler", "--socket", path]
        self.process = subprocess.Popen(command, env=environ)
        self._waiting: list[Frame] = []
        self._decoder = Decoder()
        self._query = 0
        self._socket = socket.socket(socket.AF_UNIX)
        while True:
            try:
                self._socket.connect(path)
                break
            except OSError:
                if time.monotonic() > self.began + 30 or self.process.poll() is not None:
                    raise
                time.sleep(0.01)
        self._socket.sendall(MAGIC + pack(Subscribe("metrics")))

    def next(self) -> Frame:
        while not self._waiting:
            self._waiting = self._decoder.feed(self._socket.recv(1 << 16))
        return self._waiting.pop(0)

    def tree(self, pid: int, since_ns: int) -> Tree:
        self._query += 1
        now = time.monotonic_ns()
        self._socket.sendall(pack(Query(self._query, "cpu", since_ns, now, pids=[pid])))
        while True:
            frame = self.next()
            if isinstance(frame, Tree):
                return frame

    def status(self) -> Status:
        newest = time.monotonic_ns() - 500_000_000
        while True:
            frame = self.next()
            if isinstance(frame, Status) and frame.time_ns > newest:
                return frame

    def first_named(self, pid: int) -> float:
        """Seconds from the start until a sample of the process names its function."""
        while time.monotonic() < self.began + 30:
            if any(NAME in name for name in names_of(self.tree(pid, self.began_ns))):
                return time.monotonic() - self.began
            time.sleep(0.02)
        sys.exit("no stack was named within 30 s")

    def cpu_seconds(self) -> float:
        """CPU time of the sampler so far, with that of the compiler."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")

    def end(self) -> None:
        self._socket.close()
        self.process.terminate()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()


def names_of(tree: Tree) -> list[str]:
    return [tree.strings[index] for index in tree.name.tolist()]


def bpf_free_bytes(pid: int) -> int:
    """Resident bytes of a process but for mapped BPF maps, from smaps."""
    total, inside = 0, False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if line[:1] in "0123456789abcdef":
            inside = "anon_inode:" in line and "bpf" in line
        elif line.startswith("Rss:") and not inside:
            total += int(line.split()[1]) * 1024
    return total


def start_up(runs: int) -> None:
    with subprocess.Popen([sys.executable, "-c", BUSY]) as busy:
        began = time.monotonic()
        subprocess.run([sys.executable, "-c", "import numpy"], check=True)
        numpy_s = time.monotonic() - began
        cold: list[tuple[float, float]] = []  # (wall, CPU)
        warm: list[tuple[float, float]] = []
        try:
            for _ in range(runs):
                with tempfile.TemporaryDirectory() as folder:
                    for times in (cold, warm, warm):
                        sampler = Sampler(folder)
                        try:
                            times.append((sampler.first_named(busy.pid), sampler.cpu_seconds()))
                        finally:
                            sampler.end()
                        time.sleep(0.3)
        finally:
            busy.kill()
    print(f"Python that imports numpy      {numpy_s:.2f} s")
    print(f"first named stack, LLVM        {spread(cold)}")
    print(f"first named stack, from cache  {spread(warm)}")


def spread(times: list[tuple[float, float]]) -> str:
    walls, cpus = zip(*times, strict=True)
    middle, cpu = statistics.median(walls), statistics.median(cpus)
    return f"{middle:.2f} s ({min(walls):.2f} to {max(walls):.2f} in {len(walls)}), {cpu:.2f} s of CPU"


def memory(python: str | None, seconds: float) -> None:
    libraries = sorted(glob.glob("/usr/lib/x86_64-linux-gnu/libLLVM*.so*"))
    if python:
        command, words = [python, "-c", TORCH], "PyTorch"
    elif libraries:
        command, words = [sys.executable, "-c", LARGE, libraries[-1]], Path(libraries[-1]).name
    else:
        print("no large library here: memory is not measured")
        return
    idle = subprocess.Popen([sys.executable, "-c", NUMPY], stdout=subprocess.PIPE)
    work = subprocess.Popen(command)
    with tempfile.TemporaryDirectory() as folder:
        sampler = Sampler(folder)
        try:
            assert idle.stdout is not None
            idle.stdout.readline()
            deadline = time.monotonic() + 60
            while not any(NAME in name for name in names_of(sampler.tree(work.pid, sampler.began_ns))):
                if time.monotonic() > deadline or work.poll() is not None:
                    sys.exit(f"no stack of {words} was named")
                time.sleep(0.2)
            time.sleep(seconds)
            tree = sampler.tree(work.pid, sampler.began_ns)
            status = sampler.status()
            history = f"{status.history_bytes / 1e6:.1f} MB"
            ours, base = bpf_free_bytes(sampler.process.pid), bpf_free_bytes(idle.pid)
            peak = Path(f"/proc/{sampler.process.pid}/status").read_text().split("VmHWM:")[1].split()[0]
        finally:
            sampler.end()
            for process in (idle, work):
                process.kill()
                process.wait()
    print(f"memory while {words} is sampled, {float(tree.total_weight[0]):.0f} samples:")
    words = f"{ours / base:.1f} x a Python with numpy ({base / 1e6:.0f} MB)"
    print(f"  without BPF maps             {ours / 1e6:.0f} MB, {words}")
    print(f"  as the status says           {status.sampler_rss_bytes / 1e6:.0f} MB, {history} of it history")
    print(f"  peak, with mapped BPF maps   {int(peak) / 1e3:.0f} MB")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--python")
    parser.add_argument("--seconds", type=float, default=8.0)
    if os.geteuid() != 0:
        sys.exit("startup_bench: eBPF needs root")
    options = parser.parse_args()
    start_up(options.runs)
    memory(options.python, options.seconds)
