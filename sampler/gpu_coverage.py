"""When each device was busy, and whether that is the whole truth: readings over short windows.

`gpu_kernel_busy_percent` and `gpu_copy_busy_percent` are the share of a window in which at least one kernel
(copy) ran: the union of the intervals, not their sum. They are given for devices of which some process is
recording. `gpu_observed` is 1 where all processes that NVML lists on the device were recording and nothing
was lost: only then is the rest of the window idle time. The readings come about a second late, when the
records of a window are in; a record that comes later still is in the rows, and not in these readings.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpuprof.snapshots.gaps import EMPTY, Spans, union

WINDOW_NS = 200_000_000
LATE_NS = 1_000_000_000
OBSERVED_NS = 1_000_000_000
MAX_WINDOWS = 600  # in one go, as after a sleep of the machine
MERGE_ABOVE = 1 << 16  # intervals of one device and kind that wait are merged when there are more
METRICS = ("gpu_kernel_busy_percent", "gpu_copy_busy_percent")


class ReadingSink(Protocol):
    """The part of History that this needs."""

    def series(
        self, metric: str, *, gpu: str | None = None, pid: int | None = None, core: int | None = None
    ) -> int: ...

    def add_readings(
        self, series: ArrayLike, start_ns: ArrayLike, end_ns: ArrayLike, value: ArrayLike
    ) -> None: ...


class Coverage:
    """Collects intervals by device (UUID) and writes the readings. Not thread-safe."""

    def __init__(self, history: ReadingSink, now_ns: int) -> None:
        self._history = history
        self._busy: dict[tuple[str, int], Spans] = {}
        self._waiting: dict[tuple[str, int], list[tuple[NDArray[Any], NDArray[Any]]]] = {}
        self._done_ns = now_ns // WINDOW_NS * WINDOW_NS
        self._seen_ns = now_ns
        self._series: dict[tuple[str, str, int | None], int] = {}

    def add(self, gpu: str, start: NDArray[Any], end: NDArray[Any], *, kernel: bool) -> None:
        """Add intervals (monotonic ns, valid) of kernels or copies."""
        key = (gpu, 0 if kernel else 1)
        waiting = self._waiting.setdefault(key, [])
        waiting.append((start, end))
        if sum(len(part) for part, _ in waiting) > MERGE_ABOVE:
            self._merge(key)

    def _merge(self, key: tuple[str, int]) -> Spans:
        """All intervals of a device and kind as a set, without what is already written."""
        parts = self._waiting.pop(key, [])
        busy = self._busy.get(key, EMPTY)
        if parts:
            starts, ends = zip(*parts, strict=True)
            busy = busy.joined(union(np.concatenate(starts), np.concatenate(ends)))
        busy = busy.clipped(self._done_ns, 1 << 62)
        if len(busy) > MERGE_ABOVE:  # the newest cannot be kept all: a process that lies
            busy = Spans(busy.start[:MERGE_ABOVE], busy.end[:MERGE_ABOVE])
        self._busy[key] = busy
        return busy

    def write(self, now_ns: int, gpus: Collection[str]) -> None:
        """Write the windows that are over for `LATE_NS`, of these devices."""
        until_ns = (now_ns - LATE_NS) // WINDOW_NS * WINDOW_NS
        if until_ns <= self._done_ns:
            return
        first_ns = max(self._done_ns, until_ns - MAX_WINDOWS * WINDOW_NS)
        edges = np.arange(first_ns, until_ns + 1, WINDOW_NS, dtype=np.int64)
        for gpu in sorted(gpus):
            for kind, metric in enumerate(METRICS):
                percent = self._merge((gpu, kind)).in_windows(edges) * (100.0 / WINDOW_NS)
                series = np.full(len(percent), self._series_id(metric, gpu, None), np.uint32)
                self._history.add_readings(series, edges[:-1], edges[1:], percent)
        self._done_ns = until_ns
        for key in [key for key in {*self._busy, *self._waiting} if key[0] not in gpus]:
            self._busy.pop(key, None)
            self._waiting.pop(key, None)

    def write_observed(
        self, now_ns: int, pids: Mapping[str, Collection[int]], recording: Collection[int]
    ) -> None:
        """Write which processes on each device were recording since the last call, a second ago."""
        start_ns, self._seen_ns = max(self._seen_ns, now_ns - 3 * OBSERVED_NS), now_ns
        ids, values = [], []
        for gpu, listed in pids.items():
            for pid in listed:
                ids.append(self._series_id("proc_recording", gpu, pid))
                values.append(float(pid in recording))
            ids.append(self._series_id("gpu_observed", gpu, None))
            values.append(float(all(pid in recording for pid in listed)))
        if ids:
            self._history.add_readings(ids, [start_ns] * len(ids), [now_ns] * len(ids), values)

    def _series_id(self, metric: str, gpu: str, pid: int | None) -> int:
        key = (metric, gpu, pid)
        found = self._series.get(key)
        if found is None:
            if len(self._series) > 4096:
                self._series.clear()
            found = self._series[key] = self._history.series(metric, gpu=gpu, pid=pid)
        return found
