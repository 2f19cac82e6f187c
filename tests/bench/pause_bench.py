"""What a launch costs while the library pauses: against the same loop without the library, in the same run.

usage: python tests/bench/pause_bench.py [--rounds 3] [--quartets 30], as root

A program launches on the mock driver as fast as it can, in one thread that keeps to one CPU; a launch is
about a microsecond of its own work. Two such processes take turns in slices of 60 ms of CPU time, in the
order ABBA: one without the library, one with it. In a block of the first kind no sampler runs; in one of
the second it runs, has recorded its window, and the library pauses, as it does with the default budget. The
difference of the two processes in the second kind, less that in the first (two processes are never quite
alike), is what a pause costs a launch; how much slower the process without the library is beside a sampler
is what the sampler costs all programs alike.

Times are CPU times of the thread, which the handlers of interrupts are part of; with 95 % intervals, of a
trimmed mean, since others use the machine too.
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "device"))

import numpy as np
from launch_cost import ring_of
from mock_driver import mock_loop
from numpy.typing import NDArray
from tight_loop import COLUMNS, KERNELS
from windows import Worker, sampler, trimmed_mean_and_width

SLICE_S = 0.06
SETTLE_STEPS = 5  # at the start of a slice, in which caches fill
NICE = -5  # of the two threads
PAUSE_S = 120.0  # until the library pauses; a sampler takes its time to start where much else runs


@dataclass
class Block:
    """ns of CPU time a launch, by quartet: of the process without the library, and how much more with
    it.
    """

    plain: list[float] = field(default_factory=list)
    more: list[float] = field(default_factory=list)
    switches: float = 0.0  # of the launching thread with the library, a second of its turns


class Pair:
    """The two processes."""

    def __init__(self, folder: str) -> None:
        loop = mock_loop(folder)
        self.rings = loop.rings
        self._rows = f"{folder}/rows"
        without = {name: value for name, value in loop.environment.items() if not name.startswith("CUDA_")}
        self.plain, self.loaded = Worker(loop.command, without), Worker(loop.command, loop.environment)
        for work in (self.plain, self.loaded):
            os.setpriority(os.PRIO_PROCESS, work.process.pid, NICE)
            work.ask("0.3")
        self.ring = ring_of(self.loaded.process.pid, loop.rings)

    def launch_ns(self, work: Worker) -> float:
        """CPU time of a launch, over a slice."""
        work.ask(f"{-SLICE_S} {self._rows}")
        steps: NDArray[np.float64] = np.fromfile(self._rows, np.float64).reshape(-1, COLUMNS)
        return float(steps[SETTLE_STEPS:, 2].mean()) / KERNELS * 1e9

    def quartet(self) -> tuple[float, float]:
        """CPU time of a launch without the library, and how much longer one takes with it."""
        order = (self.loaded, self.plain, self.plain, self.loaded)
        first, plain_first, plain_last, last = (self.launch_ns(work) for work in order)
        plain = (plain_first + plain_last) / 2
        return plain, (first + last) / 2 - plain

    def switches(self) -> int:
        """How often the thread with the library was switched out so far."""
        status = Path(f"/proc/{self.loaded.process.pid}/task/{self.loaded.process.pid}/status").read_text()
        lines = [line for line in status.splitlines() if "ctxt_switches" in line]
        return sum(int(line.split()[1]) for line in lines)

    def pauses(self) -> bool:
        return self.state == "paused"

    @property
    def state(self) -> str:
        return self.ring.facts().state

    def wait_for_pause(self) -> None:
        end = time.monotonic() + PAUSE_S
        while not self.pauses():
            if time.monotonic() > end:
                sys.exit(f"no pause came: {self.ring.facts()}")
            self.loaded.ask("0.05")

    def end(self) -> None:
        for work in (self.plain, self.loaded):
            work.end()


def measure(pair: Pair, quartets: int, *, paused: bool) -> Block:
    block = Block()
    with sampler(rings=pair.rings) if paused else nullcontext():
        if paused:
            pair.wait_for_pause()
            time.sleep(2)  # in which the sampler has read the programs' tables
        began, switches = time.monotonic(), pair.switches()
        while len(block.more) < quartets:
            if paused and not pair.pauses():
                pair.wait_for_pause()
            plain, more = pair.quartet()
            if pair.state == ("paused" if paused else "waiting"):
                block.plain.append(plain)
                block.more.append(more)
        block.switches = (pair.switches() - switches) * 2 / (time.monotonic() - began)
    pair.loaded.ask("0.2")  # whose first launch finalizes
    return block


def told(name: str, values: Sequence[float], base: float) -> tuple[float, float]:
    mean, width = trimmed_mean_and_width(values)
    show(name, mean, width, base)
    return mean, width


def show(name: str, mean: float, width: float, base: float) -> None:
    known = not math.isnan(width)
    within, of_base = (f" +- {width:.2f}", f" +- {width / base:.2%}") if known else ("", "")
    print(f"  {name}: {mean:+.2f}{within} ns a launch ({mean / base:+.2%}{of_base})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quartets", type=int, default=30, help="of each block")
    arguments = parser.parse_args()
    if shutil.which("gcc") is None or shutil.which("g++") is None:
        sys.exit("the mock driver and the program need gcc and g++")
    with tempfile.TemporaryDirectory() as folder:
        pair = Pair(folder)
        alone, paused = [measure(pair, arguments.quartets, paused=False)], []
        for _ in range(arguments.rounds):
            paused.append(measure(pair, arguments.quartets, paused=True))
            alone.append(measure(pair, arguments.quartets, paused=False))
        pair.end()
    base = statistics.median([value for block in alone for value in block.plain])
    print(
        f"a launch of {base:.0f} ns on the mock driver, {sum(len(b.more) for b in paused)} quartets in pauses"
    )
    before, width_before = told("with the library, no sampler", [v for b in alone for v in b.more], base)
    print(f"  its thread was switched out {statistics.fmean(b.switches for b in paused):.0f} times a second")
    during, width_during = told("with the library, in pauses", [v for b in paused for v in b.more], base)
    more, width = during - before, float(np.hypot(width_before, width_during))
    show("a pause costs, the second less the first", more, width, base)
    beside = [
        statistics.median(p.plain) - (statistics.median(b.plain) + statistics.median(a.plain)) / 2
        for b, p, a in zip(alone, paused, alone[1:], strict=False)
    ]
    told("without the library, beside a sampler that it does not know of", beside, base)


if __name__ == "__main__":
    main()
