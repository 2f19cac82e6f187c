"""Other profilers and this one on the same workloads: what each costs, what its stacks are worth. As root.

usage: python tests/bench/peers_bench.py [--pairs 3] [--seconds 2] [--python PYTHON] [--only NAME]
                                         [--workload W1|W2]

W1 is plain Python (json, re, sort), W2 a training step: PyTorch on the CPU where PYTHON can import it, else
numpy. One worker runs on each core. *Loss* is what a workload loses in throughput, by windows with and
without the profiler that follow each other (in turn the one or the other first): the mean of the pairs with
its 95 % interval. *CPU* is that of the profiler's processes in the window, of one core; time that BPF
programs and perf take in the workload's context is in the loss. *After* is the CPU time that it takes to
write its stacks when it is stopped. *Complete*: samples that reach the root of their thread (py-spy: of their
Python part); *Python*: with Python names. A reliable figure needs a quiet machine and --pairs 20 or more; the
defaults show that it works.
"""

from __future__ import annotations

import argparse
import os
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import peers
import peers_work
from peers import Profiler, Stacks

HERE = Path(__file__).resolve().parent
PAUSE_S = 0.3  # after a profiler came or went
# Two-sided 95 % points of Student's t, by degrees of freedom; 2.08 stands for all above.
STUDENT = (
    12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13, 2.12, 2.11,
    2.10, 2.09, 2.09,
)  # fmt: skip


class Workload:
    """Workers on all cores, whose rounds can be read at any moment."""

    def __init__(self, name: str, python: str, folder: Path) -> None:
        self.name = name
        self._files = []
        self._workers = []
        for number in range(len(os.sched_getaffinity(0))):
            path = folder / f"{name}.{number}"
            path.write_bytes(bytes(8))
            command = [python, str(HERE / "peers_work.py"), name, str(path)]
            environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
            self._workers.append(subprocess.Popen(command, env=environment))
            self._files.append(path)
        deadline = time.monotonic() + 60
        while not all(self._rounds()):
            if time.monotonic() > deadline or any(worker.poll() is not None for worker in self._workers):
                self.close()
                sys.exit(f"peers_bench: workload {name} does not run")
            time.sleep(0.1)

    @property
    def pids(self) -> list[int]:
        return [worker.pid for worker in self._workers]

    def _rounds(self) -> list[int]:
        return [struct.unpack("<Q", path.read_bytes())[0] for path in self._files]

    def rate(self, seconds: float) -> float:
        """Rounds a second over a window."""
        before, began = sum(self._rounds()), time.monotonic()
        time.sleep(seconds)
        return (sum(self._rounds()) - before) / (time.monotonic() - began)

    def close(self) -> None:
        for worker in self._workers:
            worker.kill()
            worker.wait()


def descendants(pids: list[int]) -> list[int]:
    """These processes and all below them."""
    found = list(pids)
    for pid in found:
        with suppress(OSError):
            for task in os.listdir(f"/proc/{pid}/task"):
                text = Path(f"/proc/{pid}/task/{task}/children").read_text()
                found += [int(child) for child in text.split() if int(child) not in found]
    return found


def cpu_seconds(pids: list[int]) -> float:
    """CPU time of processes and of their children, living or waited for."""
    total = 0
    for pid in descendants(pids):
        with suppress(OSError, IndexError):
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
            total += sum(map(int, fields[11:15])) if pid in pids else sum(map(int, fields[11:13]))
    return total / os.sysconf("SC_CLK_TCK")


class MemoryWatch:
    """The largest resident memory of some processes together, sampled until it is stopped."""

    def __init__(self, profiler: Profiler) -> None:
        self.peak = 0
        self._profiler = profiler
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        page = os.sysconf("SC_PAGE_SIZE")
        while not self._stop.wait(0.05):
            resident = 0
            for pid in descendants(self._profiler.processes()):
                with suppress(OSError, IndexError):
                    resident += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * page
            self.peak = max(self.peak, resident)

    def stop(self) -> int:
        self._stop.set()
        self._thread.join()
        return self.peak


@dataclass
class Result:
    """Of one profiler on one workload; losses and CPU shares of each pair."""

    losses: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    after_s: list[float] = field(default_factory=list)
    peak_bytes: int = 0
    stacks: Stacks = field(default_factory=lambda: Stacks(0, 0, 0))
    problem: str | None = None


def one_window(kind: type[Profiler], workload: Workload, seconds: float, result: Result) -> float:
    """The workload's rate with the profiler running; what it cost and found goes into `result`."""
    with tempfile.TemporaryDirectory() as folder:
        profiler = kind(Path(folder))
        watch = MemoryWatch(profiler)
        try:
            profiler.start(workload.pids)
            time.sleep(PAUSE_S)
            before = cpu_seconds(profiler.processes())
            rate = workload.rate(seconds)
            result.cpu.append((cpu_seconds(profiler.processes()) - before) / seconds)
            used = os.times()
            in_window = cpu_seconds(profiler.processes())
            profiler.interrupt()
            for worker in profiler.workers:
                peers.wait_for(worker, profiler.stop_s)
            now = os.times()
            total = now.children_user + now.children_system - used.children_user - used.children_system
            result.after_s.append(max(total - in_window, 0.0))
            profiler.finish()
            result.stacks += profiler.stacks(workload.pids)
        finally:
            profiler.kill()
            result.peak_bytes = max(result.peak_bytes, watch.stop())
    return rate


def measure(kind: type[Profiler], workload: Workload, pairs: int, seconds: float) -> Result:
    """Windows with and without the profiler, one after the other."""
    result = Result()
    result.problem = kind(Path()).missing()
    if result.problem is not None:
        return result
    try:
        for number in range(pairs):
            without = workload.rate(seconds) if number % 2 == 0 else 0.0
            with_it = one_window(kind, workload, seconds, result)
            time.sleep(PAUSE_S)
            without = without or workload.rate(seconds)
            result.losses.append(1 - with_it / without)
    except (RuntimeError, OSError) as error:
        result.problem = str(error)
    return result


def interval(values: list[float]) -> tuple[float, float]:
    """(mean, half of its 95 % interval)."""
    if len(values) < 2:
        return values[0] if values else float("nan"), float("nan")
    point = STUDENT[len(values) - 2] if len(values) - 2 < len(STUDENT) else 2.08
    return statistics.mean(values), point * statistics.stdev(values) / len(values) ** 0.5


def row(name: str, workload: str, result: Result) -> str:
    """A line of the table."""
    if result.problem is not None:
        return f"{name:16} {workload:8} skipped: {result.problem}"
    loss, half = interval(result.losses)
    found = result.stacks
    complete, named = (100 * part / max(found.samples, 1) for part in (found.complete, found.named))
    cells = [
        f"{name:16} {workload:8} {100 * loss:6.1f} ± {100 * half:5.1f}",
        f"{100 * statistics.mean(result.cpu):7.2f}",
        f"{statistics.mean(result.after_s):8.2f} {result.peak_bytes / 1e6:8.0f} {found.samples:8}",
        f"{complete:10.1f} {named:8.1f}",
    ]
    return " ".join(cells)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--python", default=sys.executable, help="the interpreter of the workloads")
    parser.add_argument("--only", action="append", help="a profiler, by name; may be given more than once")
    parser.add_argument("--workload", action="append", choices=["W1", "W2"])
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        print("peers_bench: skipped, it needs root")
        return 0
    second = "torch" if peers_work.has_torch(arguments.python) else "numpy"
    workloads = {"W1": "python", "W2": second}
    print(
        f"W1 is Python with json, re, sort; W2 is {second}; {arguments.pairs} pairs of {arguments.seconds} s"
    )
    names = ("loss %", "CPU %", "after s", "RSS MB", "samples", "complete %", "Python %")
    widths = (14, 7, 8, 8, 8, 10, 8)
    columns = (f"{column:>{width}}" for column, width in zip(names, widths, strict=True))
    print(f"{'profiler':16} {'workload':8}", *columns)
    with tempfile.TemporaryDirectory() as folder:
        for label in arguments.workload or workloads:
            workload = Workload(workloads[label], arguments.python, Path(folder))
            try:
                for kind in peers.ALL:
                    if arguments.only and kind.name not in arguments.only:
                        continue
                    result = measure(kind, workload, arguments.pairs, arguments.seconds)
                    print(row(kind.name, label, result), flush=True)
            finally:
                workload.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
