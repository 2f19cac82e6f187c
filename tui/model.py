"""What the screen knows: facts, status, processes and series, built from frames; no widgets and no sockets
here.

A new hello on the same boot of the same host is the same node seen through a new sampler: the store
matches series by what they describe, so charts go on where they were.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from enum import Flag, auto

from gpuprof.snapshots.frames import (
    Clock,
    Frame,
    GpuFacts,
    Gpus,
    Hello,
    ProcessDef,
    ProcessDefs,
    Readings,
    SeriesDefs,
    SourceStatus,
    Status,
)
from gpuprof.snapshots.recorded_hint import recorded_hint
from gpuprof.tui.series import SeriesStore

MAX_PROCESSES = 20_000
STATUS_LATE_NS = 3_500_000_000  # without a status for so long the sampler hangs


class Change(Flag):
    """What changed since the screen last looked."""

    NONE = 0
    NODE = auto()  # hello, clock, GPUs
    STATUS = auto()
    READINGS = auto()
    PROCESSES = auto()


class Model:
    """One node as far as it is known. Used from the event loop only."""

    def __init__(self, monotonic_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._monotonic_ns = monotonic_ns
        self.hello: Hello | None = None
        self.gpus: list[GpuFacts] = []
        self.driver_version: str | None = None
        self.lost_gpus: set[str] = set()
        self.status: Status | None = None
        self.previous_status: Status | None = None
        self.processes: dict[int, ProcessDef] = {}
        self.store = SeriesStore()
        self.live = True
        self.newest_ns = 0  # end of the newest reading or status
        self._clock = (0, 0)
        self._ahead_ns: int | None = None  # node's monotonic clock minus ours, less the smallest delay seen
        self._status_at_ns = 0
        self._changes = Change.NONE

    # ---------------------------------------- frames

    def apply(self, frame: Frame) -> None:
        """Take in one frame; kinds that are answers to requests are not for the model and are ignored."""
        if isinstance(frame, Readings):
            self._on_readings(frame)
        elif isinstance(frame, SeriesDefs):
            self.store.define(frame.series)
        elif isinstance(frame, Status):
            self._on_status(frame)
        elif isinstance(frame, ProcessDefs):
            self._on_processes(frame.processes)
        elif isinstance(frame, Hello):
            self._on_hello(frame)
        elif isinstance(frame, Clock):
            self._clock = (frame.mono_ns, frame.wall_ns)
            self._changes |= Change.NODE
        elif isinstance(frame, Gpus):
            self.gpus, self.lost_gpus = list(frame.gpus), set(frame.lost)
            self.driver_version = frame.driver_version
            self._changes |= Change.NODE

    def take_changes(self) -> Change:
        """What changed since the last call."""
        changes, self._changes = self._changes, Change.NONE
        return changes

    def _on_hello(self, hello: Hello) -> None:
        before = self.hello
        if before is not None and (before.host, before.boot_id) != (hello.host, hello.boot_id):
            self.store.clear()
            self.processes.clear()
            self.newest_ns = 0
        self.hello = hello
        self._clock = (hello.mono_ns, hello.wall_ns)
        self._ahead_ns = hello.mono_ns - self._monotonic_ns()
        self.status = self.previous_status = None
        self._changes |= Change.NODE | Change.STATUS

    def _on_readings(self, readings: Readings) -> None:
        if not len(readings.series):
            return
        self.store.add(readings)
        self._saw(int(readings.end_ns.max()))
        self._changes |= Change.READINGS

    def _on_status(self, status: Status) -> None:
        if not self.live and self.hello is not None:
            host = self.hello.host
            sources = [replace(source, hint=recorded_hint(source.hint, host)) for source in status.sources]
            status = replace(status, sources=sources)
        if self.status is None or status.time_ns > self.status.time_ns:
            self.previous_status, self.status = self.status, status
        self._status_at_ns = self._monotonic_ns()
        self._saw(status.time_ns)
        self._changes |= Change.STATUS

    def _on_processes(self, definitions: list[ProcessDef]) -> None:
        for definition in definitions:
            known = self.processes.get(definition.pid)
            if known is None or definition.start_ns >= known.start_ns:
                self.processes.pop(definition.pid, None)
                self.processes[definition.pid] = definition
        while len(self.processes) > MAX_PROCESSES:
            del self.processes[next(iter(self.processes))]
        self._changes |= Change.PROCESSES

    def _saw(self, time_ns: int) -> None:
        self.newest_ns = max(self.newest_ns, time_ns)
        if self.live:
            ahead = time_ns - self._monotonic_ns()
            if self._ahead_ns is None or ahead > self._ahead_ns:
                self._ahead_ns = ahead

    # ---------------------------------------- clocks

    @property
    def now_ns(self) -> int:
        """The node's CLOCK_MONOTONIC as of now; for a file, the end of it."""
        if not self.live or self._ahead_ns is None:
            return self.newest_ns
        return max(self._monotonic_ns() + self._ahead_ns, self.newest_ns)

    def wall_ns(self, mono_ns: int) -> int:
        """Wall-clock time of the node, in nanoseconds since the epoch, at a monotonic instant of it."""
        mono, wall = self._clock
        return wall + mono_ns - mono

    # ---------------------------------------- derived

    def source(self, name: str) -> SourceStatus | None:
        """The state of a source by name (nvml, cpu ...), or None when the node has no such source."""
        if self.status is None:
            return None
        return next((source for source in self.status.sources if source.name == name), None)

    @property
    def sampler_cpu_percent(self) -> float | None:
        """CPU time of the sampler between the last two statuses, in percent of one core."""
        before, now = self.previous_status, self.status
        if before is None or now is None or now.time_ns <= before.time_ns:
            return None
        return 100.0 * (now.sampler_cpu_ns - before.sampler_cpu_ns) / (now.time_ns - before.time_ns)

    @property
    def losses(self) -> dict[str, int]:
        """Counts of everything that was lost or could not be used, by what it is; only what is not zero."""
        if self.status is None:
            return {}
        counts = {
            "lost": sum(source.lost for source in self.status.sources),
            "invalid": sum(source.invalid for source in self.status.sources),
            "unmatched": sum(source.unmatched for source in self.status.sources),
            "early": sum(source.early for source in self.status.sources),
            "dropped": (
                self.status.dropped_readings
                + self.status.dropped_samples
                + self.status.dropped_gpu_work
                + self.status.dropped_waits
            ),
        }
        return {name: count for name, count in counts.items() if count}

    @property
    def late_s(self) -> float | None:
        """Seconds since the last status when it is overdue (the sampler hangs, or the link does), else
        None."""
        if not self.live or self.status is None:
            return None
        late_ns = self._monotonic_ns() - self._status_at_ns
        return late_ns / 1e9 if late_ns > STATUS_LATE_NS else None
