"""Two processes that launch in turns, one without and one with the injection library, beside one that only
counts; and what their threads were seen to do meanwhile (window_trace.py).
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from array import array
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from launch_cost import ring_of
from mock_driver import Loop
from numpy.typing import NDArray
from pause_loss import LOADED, PLAIN, Steps
from tight_loop import COLUMNS
from windows import Worker

NOBODY, LISTENS = "nobody listens", "a sampler listens"
TURN_S = 0.15
SETTLE_S = 0.03  # of a turn: the GPU changes over to the other process
READING_S = 0.002
FIRST_WINDOW_S = 20.0  # the longest that a block waits for its first pause
COUNT = 20_000  # of the process that counts, in one step: about a millisecond


def count_for_ever(path: str) -> None:
    """Steps of pure counting, into the file, for as long as the parent lives."""
    parent = os.getppid()
    with open(path, "wb", buffering=0) as file:
        last, used = time.monotonic(), time.thread_time()
        while os.getppid() == parent:
            rows = array("d")
            for _ in range(100):
                for _ in range(COUNT):
                    pass
                at, cpu = time.monotonic(), time.thread_time()
                rows.extend((at, at - last, cpu - used))
                last, used = at, cpu
            file.write(rows.tobytes())


class _Counters:
    """What the kernel counts of a thread, and of the others of its process."""

    def __init__(self, pid: int) -> None:
        self.time = time.monotonic()
        self.waited = self.others = self.pushed_out = 0
        for name in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError):
                ran, waited, _ = map(int, Path(f"/proc/{pid}/task/{name}/schedstat").read_text().split())
                if int(name) == pid:
                    self.waited = waited
                else:
                    self.others += ran
        for line in Path(f"/proc/{pid}/task/{pid}/status").read_text().splitlines():
            if line.startswith("nonvoluntary_ctxt_switches"):
                self.pushed_out = int(line.split()[1])
        self.steal = _steal_ticks(max(os.sched_getaffinity(0)))


def _steal_ticks(cpu: int) -> int:
    for line in Path("/proc/stat").read_text().splitlines():
        fields = line.split()
        if fields[0] == f"cpu{cpu}":
            return int(fields[8])
    return 0


class Turns:
    """The three processes, from the first block to `end`."""

    def __init__(self, loop: Loop, folder: str) -> None:
        self.claimed_s = self.listening_s = 0.0
        self._rows, self._counted = f"{folder}/steps", f"{folder}/counted"
        without = {name: value for name, value in loop.environment.items() if "INJECTION64_PATH" not in name}
        self._work = {PLAIN: Worker(loop.command, without), LOADED: Worker(loop.command, loop.environment)}
        for work in self._work.values():
            work.ask("1")
        self._ring = ring_of(self._work[LOADED].process.pid, loop.rings)
        self._control = subprocess.Popen([sys.executable, __file__, self._counted])
        os.sched_setaffinity(self._control.pid, {min(os.sched_getaffinity(0))})
        self._parts: list[NDArray[np.float64]] = []
        self._blocks: list[tuple[float, float]] = []
        self._waited: dict[tuple[str, int], list[float]] = defaultdict(lambda: [0.0] * 5)
        self._readings: list[tuple[float, str]] = []
        self._stop = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()

    def _watch(self) -> None:
        while not self._stop.wait(READING_S):
            self._readings.append((time.monotonic(), self._ring.facts().state))

    def block(self, kind: str, seconds: float) -> int:
        """Turns for so long, with a sampler after the first window; the block's number."""
        number, began, cost_ns = len(self._blocks), time.monotonic(), self._ring.facts().cost_ns
        before = self._ring.facts().pauses
        while kind == LISTENS and time.monotonic() - began < FIRST_WINDOW_S:
            facts = self._ring.facts()
            if facts.state == "paused" and facts.pauses > before:
                break
            self._turn(LOADED, kind, number, -1)
        turn = 0
        while time.monotonic() - began < seconds:
            self._four(kind, number, number << 16 | turn, began + seconds)
            turn += 1
        self._blocks.append((began, time.monotonic()))
        if kind == LISTENS:
            self.listening_s += time.monotonic() - began
            self.claimed_s += (self._ring.facts().cost_ns - cost_ns) / 1e9
        return number

    def _four(self, kind: str, number: int, turn: int, end: float) -> None:
        """Four turns; where the library begins to record meanwhile they are none to compare, and it goes on
        until it has.
        """
        parts = []
        for process in (LOADED, PLAIN, PLAIN, LOADED):
            parts.append(self._turn(process, kind, number, turn))
            while kind == LISTENS and self._ring.facts().state != "paused" and time.monotonic() < end:
                parts.append(self._turn(LOADED, kind, number, -1))
                turn = -1
            if turn < 0:
                break
        if turn < 0:
            for part in parts:
                part[:, -1] = -1

    def _turn(self, process: int, kind: str, number: int, turn: int) -> NDArray[np.float64]:
        work, began = self._work[process], time.monotonic()
        before = _Counters(work.process.pid)
        work.ask(f"{TURN_S} {self._rows}")
        after = _Counters(work.process.pid)
        seen = (
            after.time - before.time,
            (after.waited - before.waited) / 1e9,
            after.pushed_out - before.pushed_out,
            (after.others - before.others) / 1e9,
            (after.steal - before.steal) / os.sysconf("SC_CLK_TCK"),
        )
        self._waited[kind, process] = [a + b for a, b in zip(self._waited[kind, process], seen, strict=True)]
        rows: NDArray[np.float64] = np.fromfile(self._rows, np.float64).reshape(-1, COLUMNS)
        rows = rows[rows[:, 0] > began + SETTLE_S]
        part = np.column_stack([rows, *(np.full(len(rows), float(one)) for one in (process, number, turn))])
        self._parts.append(part)
        return part

    def let_go(self) -> None:
        """After a sampler has ended: the next launch lets go of CUPTI."""
        self._work[LOADED].ask("0.3")

    def steps(self) -> Steps:
        """All steps of the two processes."""
        rows = np.concatenate(self._parts)
        return Steps(*rows[:, :3].T, *rows[:, 3:].T.astype(np.int64))

    def end(self) -> tuple[dict[str, NDArray[Any]], dict[str, tuple[float, ...]], Steps]:
        """End the processes. The readings of the ring; of each kind of turn what share of it the thread
        waited for its CPU, how often a second it was pushed out, what share of a CPU the process's other
        threads used, and what share the host took; and the steps of the process that counts, of blocks.
        """
        self._stop.set()
        self._watcher.join()
        self._control.kill()
        self._control.wait()
        for work in self._work.values():
            work.end()
        readings = {
            "time": np.array([at for at, _ in self._readings]),
            "state": np.array([state for _, state in self._readings]),
        }
        words = {PLAIN: "without the library", LOADED: "with the library"}
        waited = {
            f"{words[process]}, {kind}": tuple(value / total[0] for value in total[1:])
            for (kind, process), total in self._waited.items()
        }
        counted = np.fromfile(self._counted, np.float64)
        rows = counted[: len(counted) // COLUMNS * COLUMNS].reshape(-1, COLUMNS)
        block = np.full(len(rows), -1)
        for number, (began, ended) in enumerate(self._blocks):
            block[(rows[:, 0] - rows[:, 1] >= began) & (rows[:, 0] <= ended)] = number
        nothing = np.full(len(rows), -1)
        return readings, waited, Steps(*rows.T, nothing, block, nothing)


if __name__ == "__main__":
    count_for_ever(sys.argv[1])
