"""What scripts that measure cost share: a child process that works for a window when asked, the sampler for
a while, and the 95 % interval of paired differences.
"""

from __future__ import annotations

import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

# Two-sided 95 % quantiles of Student's t for 1, 2, … degrees of freedom.
STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13)
NORMAL = 1.96


def keep_to_one_cpu(pid: int) -> None:
    """The main thread of a process has a CPU for itself: it does not move, and the process's other threads,
    among them CUPTI's and the library's, run on the others.
    """
    cpus = sorted(os.sched_getaffinity(os.getpid()))
    for name in os.listdir(f"/proc/{pid}/task"):
        with suppress(ProcessLookupError):
            os.sched_setaffinity(int(name), cpus[-1:] if int(name) == pid else cpus[:-1])


class Worker:
    """A child process that answers a line of text with a line of numbers, its main thread on one CPU."""

    def __init__(self, command: Sequence[str], environ: dict[str, str]) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environ)

    def ask(self, request: str) -> list[float]:
        self.begin(request)
        return self.answer()

    def begin(self, request: str) -> None:
        """Have it begin; `answer` waits until it is done."""
        assert self.process.stdin is not None
        if len(os.sched_getaffinity(os.getpid())) > 1:
            keep_to_one_cpu(self.process.pid)
        self.process.stdin.write(request + "\n")
        self.process.stdin.flush()

    def answer(self) -> list[float]:
        assert self.process.stdout is not None
        answer = self.process.stdout.readline()
        if not answer:
            sys.exit(f"the workload ended with {self.process.wait()}")
        return [float(word) for word in answer.split()]

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


def timed(step: Callable[[], None], synchronize: Callable[[], None], seconds: float) -> float:
    """Seconds a step takes, over a window of about `seconds`."""
    synchronize()
    began, steps = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        step()
        synchronize()
        steps += 1
    return (time.perf_counter() - began) / steps


WITH_RINGS = """
import runpy, sys
from gpuprof.sampler import gpu_discovery
gpu_discovery.NAME = sys.argv.pop(1)
runpy.run_module("gpuprof.sampler", run_name="__main__")
"""


@contextmanager
def sampler(*options: str, rings: str = "") -> Iterator[None]:
    """The sampler, for as long as the block lasts. `rings`: what the links to its rings begin with, if they
    have another name than those of all processes.
    """
    with tempfile.TemporaryDirectory() as folder:
        begin = ["-c", WITH_RINGS, rings] if rings else ["-m", "gpuprof.sampler"]
        command = [sys.executable, *begin, "--socket", f"{folder}/sampler.sock", *options]
        process = subprocess.Popen(command)
        try:
            yield
        finally:
            process.terminate()
            process.wait()


def mean_and_width(values: Sequence[float]) -> tuple[float, float]:
    """The mean, and half the width of its 95 % interval; nan where one value tells nothing."""
    if len(values) < 2:
        return statistics.fmean(values), math.nan
    freedom = len(values) - 1
    quantile = STUDENT[freedom - 1] if freedom <= len(STUDENT) else NORMAL
    return statistics.fmean(values), quantile * statistics.stdev(values) / math.sqrt(len(values))


def trimmed_mean_and_width(values: Sequence[float], share: float = 0.1) -> tuple[float, float]:
    """The same of the mean without so many of the largest and of the smallest, whose interval is that of
    Tukey and McLaughlin: from the standard deviation of the values with those drawn in.
    """
    ordered, cut = sorted(values), int(len(values) * share)
    if cut == 0:
        return mean_and_width(values)
    kept = ordered[cut : len(ordered) - cut]
    drawn_in = [kept[0]] * cut + kept + [kept[-1]] * cut
    _, width = mean_and_width(drawn_in)
    return statistics.fmean(kept), width / (1 - 2 * share)
