"""Finds the processes that use the most CPU, a slice of /proc at a time, within a budget of CPU time."""

from __future__ import annotations

import heapq
import os
import time
from dataclasses import dataclass

from gpuprof.sampler.proc_stat import NS_PER_TICK, cpu_and_start, read_file

MAX_PROCESSES = 32_768  # visited per round
MAX_REST = 8  # rounds
STAT_BYTES = 1024
_CHECK_EVERY = 8  # visits between looks at the clock
_MIN_INTERVAL_NS = 500_000_000  # a rate over less is mostly the tick's own rounding


@dataclass(slots=True)
class _Seen:
    start_ticks: int
    cpu_ns: int
    at_ns: int
    cores: float  # CPU seconds per second between the last two visits
    idle_visits: int  # in a row
    due_round: int


class ProcessScan:
    """A round visits newcomers and processes that are due; step() goes on with it for a given CPU time.

    A process met for the first time gets its mean since its own start, so that a busy newcomer shows at once.
    One that was idle is due again after 2, 3, ... MAX_REST rounds, so that thousands of sleepers cost little.
    """

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc
        self._seen: dict[int, _Seen] = {}
        self._queue: list[str] = []
        self._round = 0

    def step(self, budget_ns: int) -> bool:
        """Visit processes for `budget_ns` of this thread's CPU time; True when a round has ended."""
        began = time.thread_time_ns()
        if not self._queue:
            self._begin_round()
        visited = 0
        while self._queue:
            self._visit(self._queue.pop())
            visited += 1
            if visited % _CHECK_EVERY == 0 and time.thread_time_ns() - began >= budget_ns:
                break
        return not self._queue

    def busiest(self, count: int, min_cores: float) -> list[int]:
        """Pids by falling CPU use, at most `count`, of those that use at least `min_cores` of a core."""
        busy = [(seen.cores, pid) for pid, seen in self._seen.items() if seen.cores >= min_cores]
        return [pid for _, pid in heapq.nlargest(count, busy)]

    def _begin_round(self) -> None:
        self._round += 1
        try:
            names = [name for name in os.listdir(self._proc) if name.isdigit() and len(name) <= 10]
        except OSError:
            names = []
        pids = {int(name): name for name in names[-MAX_PROCESSES:]}
        self._seen = {pid: seen for pid, seen in self._seen.items() if pid in pids}
        known = [pids[pid] for pid, seen in self._seen.items() if seen.due_round <= self._round]
        # Newcomers go first (pop takes from the end): they are what a person may be waiting to see.
        self._queue = known + [name for pid, name in pids.items() if pid not in self._seen]

    def _visit(self, name: str) -> None:
        pid = int(name)
        text = read_file(f"{self._proc}/{name}/stat", STAT_BYTES)
        times = cpu_and_start(text) if text else None
        if times is None:
            self._seen.pop(pid, None)
            return
        cpu_ns, start_ticks = times
        now = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        seen = self._seen.get(pid)
        if seen is None or seen.start_ticks != start_ticks:
            age_ns = now - start_ticks * NS_PER_TICK
            cores = cpu_ns / age_ns if age_ns >= _MIN_INTERVAL_NS else 0.0
            self._seen[pid] = _Seen(start_ticks, cpu_ns, now, cores, 0, self._round + 1)
            return
        if now - seen.at_ns >= _MIN_INTERVAL_NS:
            seen.cores = (cpu_ns - seen.cpu_ns) / (now - seen.at_ns)
            seen.idle_visits = 0 if cpu_ns > seen.cpu_ns else seen.idle_visits + 1
            seen.cpu_ns, seen.at_ns = cpu_ns, now
        seen.due_round = self._round + min(seen.idle_visits + 1, MAX_REST)
