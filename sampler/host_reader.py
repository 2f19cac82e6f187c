"""The host source: busy time of cores, available memory, and CPU time and memory of processes that matter."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Protocol

from gpuprof.sampler.gpu_worker import ReadingSink
from gpuprof.sampler.host_processes import HostProcesses, ProcessTables
from gpuprof.sampler.proc_stat import core_busy_ns, mem_available_bytes
from gpuprof.snapshots.frames import SourceStatus

CORE_HZ = 5.0
MANY_CORES = 32  # beyond, /proc/stat takes long to make and is read less often, down to once a second
FORGET_SERIES_NS = 60 * 10**9  # the history may forget a series, so ids are asked for again now and then
STAT_LIMIT = 1 << 20
CHUNK = 1 << 16


class HostHistory(ReadingSink, ProcessTables, Protocol):
    """The part of History that the host source needs."""


class HostReader:
    """Reads /proc from start() to stop() on one thread. `gpu_pids` names those always followed."""

    def __init__(self, history: HostHistory, gpu_pids: Callable[[], set[int]] = set) -> None:
        self._history = history
        self._gpu_pids = gpu_pids
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._samples = 0
        self._error = ""
        self._ids: dict[tuple[str, int | None, int | None], int] = {}
        self._ids_since_ns = 0
        self._processes = HostProcesses(history)

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="host", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Return within a second."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(0.5)

    def status(self) -> SourceStatus:
        if self._error:
            return SourceStatus("processes", "degraded", self._error, samples=self._samples)
        return SourceStatus("processes", "ok" if self._samples else "starting", samples=self._samples)

    # ---------------------------------------------------------------------------------------- the thread

    def _run(self) -> None:
        cores = os.cpu_count() or 1
        core_period = 1.0 / max(1.0, CORE_HZ * min(1.0, MANY_CORES / cores))
        stat, meminfo = _SameFile("/proc/stat"), _SameFile("/proc/meminfo")
        next_second = due = time.monotonic()
        try:
            while not self._stop.wait(max(0.0, due - time.monotonic())):
                due = max(due + core_period, time.monotonic())
                whole = time.monotonic() >= next_second
                if whole:
                    next_second = max(next_second + 1.0, time.monotonic())
                try:
                    self._cycle(stat, meminfo if whole else None)
                    self._error = ""
                except Exception as error:  # noqa: BLE001 - the charts of cores must not stop without a word
                    self._error = f"reading /proc failed: {type(error).__name__}: {error}"
        finally:
            stat.close()
            meminfo.close()
            self._processes.close()

    def _cycle(self, stat: _SameFile, meminfo: _SameFile | None) -> None:
        now = time.monotonic_ns()
        text = stat.read()
        readings: list[tuple[int, int, float]] = []
        for core, busy_ns in core_busy_ns(text).items():
            readings.append((self._series("core_busy_ns", now, core=core), now, float(busy_ns)))
        if meminfo is not None:
            available = mem_available_bytes(meminfo.read())
            if available is not None:
                readings.append((self._series("mem_available_bytes", now), now, float(available)))
            for pid, at_ns, times in self._processes.read(self._gpu_pids()):
                readings.append((self._series("proc_cpu_ns", now, pid=pid), at_ns, float(times.cpu_ns)))
                readings.append((self._series("proc_rss_bytes", now, pid=pid), at_ns, float(times.rss_bytes)))
        if readings:
            at = [reading[1] for reading in readings]
            self._history.add_readings([reading[0] for reading in readings], at, at, [r[2] for r in readings])
            self._samples += len(readings)

    def _series(self, metric: str, now_ns: int, *, pid: int | None = None, core: int | None = None) -> int:
        if now_ns - self._ids_since_ns > FORGET_SERIES_NS:
            self._ids.clear()
            self._ids_since_ns = now_ns
        key = (metric, pid, core)
        found = self._ids.get(key)
        if found is None:
            found = self._ids[key] = self._history.series(metric, pid=pid, core=core)
        return found


class _SameFile:
    """A /proc file that is opened once and made anew by the kernel at every read."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._descriptor: int | None = None

    def read(self) -> bytes:
        """Its text now; empty when it cannot be read."""
        try:
            if self._descriptor is None:
                self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            chunks = []
            offset = 0
            while offset < STAT_LIMIT:
                chunk = os.pread(self._descriptor, CHUNK, offset)
                chunks.append(chunk)
                offset += len(chunk)
                if len(chunk) < CHUNK:
                    break
            return b"".join(chunks)
        except OSError:
            return b""

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
