"""Decides which processes have series of their own, reads them, and tells the history who they are."""

from __future__ import annotations

import time
from dataclasses import dataclass
from threading import RLock
from typing import Protocol

from gpuprof.sampler.proc_stat import NS_PER_TICK, ProcessTimes
from gpuprof.sampler.process_scan import ProcessScan
from gpuprof.sampler.processes import describe
from gpuprof.sampler.tracked_process import TrackedProcess
from gpuprof.snapshots.frames import ProcessDef
from gpuprof.snapshots.tables import Tables

MAX_BUSY = 40  # busiest processes, beside those on a GPU
MAX_ON_GPU = 512
MIN_CORES = 0.01  # what a process must use to be worth a line
KEEP_NS = 60 * 10**9  # how long a process stays after it was last among the busiest
SCAN_BUDGET_NS = 2_000_000  # CPU time per read() for the search of /proc: 0.2 % of a core at one a second
ROUND_NS = 2 * 10**9  # a small /proc is not searched more often than this
NEW_PER_SECOND = (
    1.0  # newcomers after the first MAX_BUSY: a build's swarm must not fill the history with series
)
MIN_AGE_NS = 2 * 10**9
DESCRIBE_AGAIN_NS = 30 * 10**9


class ProcessTables(Protocol):
    """The part of History that names processes."""

    @property
    def lock(self) -> RLock: ...

    @property
    def tables(self) -> Tables: ...

    def roll_generation(self) -> Tables: ...


@dataclass(slots=True)
class _Followed:
    process: TrackedProcess
    definition: ProcessDef
    described_ns: int
    wanted_ns: int
    on_gpu: bool


class HostProcesses:
    """The processes on a GPU, and the busiest of the machine; read() is made once a second, by one thread."""

    def __init__(self, history: ProcessTables) -> None:
        self._history = history
        self._scan = ProcessScan()
        self._followed: dict[int, _Followed] = {}
        self._generation: int | None = None
        self._round_ended_ns: int | None = None
        self._allowance = float(MAX_BUSY)
        self._read_ns: int | None = None

    def read(self, gpu_pids: set[int]) -> list[tuple[int, int, ProcessTimes]]:
        """(pid, CLOCK_MONOTONIC ns, times) of each followed process, known to the history by then."""
        now = time.monotonic_ns()
        if self._read_ns is not None:
            gained = (now - self._read_ns) / 1e9 * NEW_PER_SECOND
            self._allowance = min(float(MAX_BUSY), self._allowance + gained)
        self._read_ns = now
        self._want(gpu_pids, now)
        readings = self._read_all()
        self._drop_unwanted(now)
        self._define_again()
        return readings

    def close(self) -> None:
        """Let go of every process."""
        for followed in self._followed.values():
            followed.process.close()
        self._followed.clear()

    # -------------------------------------------------------------------------------- who

    def _want(self, gpu_pids: set[int], now: int) -> None:
        for followed in self._followed.values():
            followed.on_gpu = followed.process.pid in gpu_pids
        for pid in sorted(gpu_pids)[:MAX_ON_GPU]:
            self._follow(pid, now, on_gpu=True)
        if self._round_ended_ns is not None and now - self._round_ended_ns < ROUND_NS:
            return
        if self._scan.step(SCAN_BUDGET_NS):
            self._round_ended_ns = now
            for pid in self._scan.busiest(MAX_BUSY, MIN_CORES):
                self._follow(pid, now, on_gpu=False)

    def _follow(self, pid: int, now: int, *, on_gpu: bool) -> None:
        followed = self._followed.get(pid)
        if followed is not None:
            followed.wanted_ns = now
            return
        if not on_gpu and self._allowance < 1:
            return
        process = TrackedProcess.open(pid)
        if process is None:
            return
        age_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - process.start_ticks * NS_PER_TICK
        definition = describe(pid) if on_gpu or age_ns >= MIN_AGE_NS else None
        # The descriptor still reads, so describe() was not told about a later process of that pid.
        if definition is None or process.read() is None:
            process.close()
            return
        if not on_gpu:
            self._allowance -= 1
        self._followed[pid] = _Followed(process, definition, now, now, on_gpu)
        self._define(definition)

    def _drop_unwanted(self, now: int) -> None:
        busy = [followed for followed in self._followed.values() if not followed.on_gpu]
        busy.sort(key=lambda followed: followed.wanted_ns, reverse=True)
        for place, followed in enumerate(busy):
            if place >= MAX_BUSY or now - followed.wanted_ns > KEEP_NS:
                self._drop(followed)

    def _drop(self, followed: _Followed) -> None:
        followed.process.close()
        del self._followed[followed.process.pid]

    # -------------------------------------------------------------------------------- what

    def _read_all(self) -> list[tuple[int, int, ProcessTimes]]:
        readings = []
        for pid, followed in list(self._followed.items()):
            times = followed.process.read()
            now = time.monotonic_ns()
            if times is None:
                self._drop(followed)
                continue
            if times.comm != followed.process.comm or now - followed.described_ns > DESCRIBE_AGAIN_NS:
                self._describe_again(followed, times, now)
            readings.append((pid, now, times))
        return readings

    def _describe_again(self, followed: _Followed, times: ProcessTimes, now: int) -> None:
        """Its name or command line may have changed, as after exec."""
        followed.described_ns = now
        followed.process.comm = times.comm
        definition = describe(followed.process.pid)
        if definition is None or definition.start_ns != followed.definition.start_ns:
            return
        if definition != followed.definition:
            followed.definition = definition
            self._define(definition)

    def _define(self, definition: ProcessDef) -> None:
        with self._history.lock:
            if self._history.tables.full:
                self._history.roll_generation()
            self._history.tables.process(definition)

    def _define_again(self) -> None:
        """A new generation of tables knows nobody."""
        with self._history.lock:
            tables = self._history.tables
            if tables.generation == self._generation:
                return
            self._generation = tables.generation
            for followed in self._followed.values():
                tables.process(followed.definition)
