"""When each device was busy, and whether that is the whole truth: readings over short windows.

`gpu_kernel_busy_percent` and `gpu_copy_busy_percent` are the share of a window in which at least one kernel
(copy) ran: the union of the intervals, not their sum. They are given for devices of which some process is
recording. `gpu_observed` is 1 where all processes that NVML lists on the device were recording and nothing
was lost: only then is the rest of the window idle time. The readings come about a second late, when the records of
a window are in; a record that comes later still is in the rows, and not in these readings.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuprof.sampler.gpu_worker import ReadingSink

WINDOW_NS = 200_000_000
LATE_NS = 1_000_000_000
OBSERVED_NS = 1_000_000_000
MAX_INTERVALS = 1 << 16  # of one device and kind that wait; more are merged
METRICS = ("gpu_kernel_busy_percent", "gpu_copy_busy_percent")
_TIME = np.int64


def union(start: NDArray[Any], end: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Disjoint intervals (start, end), sorted, that cover what these cover; empty ones are left out."""
    start, end = np.asarray(start, _TIME), np.asarray(end, _TIME)
    filled = end > start
    start, end = start[filled], end[filled]
    order = np.argsort(start, kind="stable")
    start, end = start[order], np.maximum.accumulate(end[order])
    if not len(start):
        return start, end
    first = np.append(True, start[1:] > end[:-1])
    last = np.append(first[1:], True)
    return start[first], end[last]


def busy_ns(start: NDArray[np.int64], end: NDArray[np.int64], edges: NDArray[np.int64]) -> NDArray[np.int64]:
    """How much of each window [edges[i], edges[i+1]) these disjoint, sorted intervals cover."""
    if not len(start):
        return np.zeros(max(len(edges) - 1, 0), _TIME)
    before = np.append(0, np.cumsum(end - start))
    at = np.searchsorted(start, edges, side="right")
    covered = before[at] - np.where(at > 0, np.maximum(end[at - 1] - edges, 0), 0)
    windows: NDArray[np.int64] = np.diff(covered)
    return windows


class Coverage:
    """Collects intervals by device (UUID) and writes the readings. Not thread-safe."""

    def __init__(self, history: ReadingSink, now_ns: int) -> None:
        self._history = history
        self._waiting: dict[tuple[str, int], tuple[NDArray[np.int64], NDArray[np.int64]]] = {}
        self._done_ns = now_ns // WINDOW_NS * WINDOW_NS
        self._series: dict[tuple[str, str, int | None], int] = {}
        self._seen_ns = now_ns

    def add(self, gpu: str, start: NDArray[Any], end: NDArray[Any], *, kernel: bool) -> None:
        """Add intervals (monotonic ns, valid) of kernels or copies."""
        key = (gpu, 0 if kernel else 1)
        begin, finish = np.maximum(np.asarray(start, _TIME), self._done_ns), np.asarray(end, _TIME)
        if key in self._waiting:
            waiting = self._waiting[key]
            begin, finish = np.concatenate([waiting[0], begin]), np.concatenate([waiting[1], finish])
        if len(begin) > MAX_INTERVALS:
            begin, finish = union(begin, finish)
            begin, finish = begin[-MAX_INTERVALS:], finish[-MAX_INTERVALS:]
        self._waiting[key] = begin, finish

    def write(self, now_ns: int, gpus: Collection[str]) -> None:
        """Write the windows that are over for `LATE_NS`, of these devices."""
        until_ns = (now_ns - LATE_NS) // WINDOW_NS * WINDOW_NS
        if until_ns <= self._done_ns:
            return
        first_ns = max(self._done_ns, until_ns - 600 * WINDOW_NS)  # after a long sleep of this machine
        edges = np.arange(first_ns, until_ns + 1, WINDOW_NS)
        self._done_ns = until_ns
        for gpu in gpus:
            for kind, metric in enumerate(METRICS):
                begin, finish = union(*self._waiting.pop((gpu, kind), (np.zeros(0), np.zeros(0))))
                percent = busy_ns(begin, finish, edges) * (100.0 / WINDOW_NS)
                series = np.full(len(percent), self._series_id(metric, gpu, None), np.uint32)
                self._history.add_readings(series, edges[:-1], edges[1:], percent)  # type: ignore[arg-type]
                later = finish > until_ns
                if later.any():
                    self._waiting[gpu, kind] = np.maximum(begin[later], until_ns), finish[later]
        self._waiting = {
            key: value for key, value in self._waiting.items() if key[0] in gpus and len(value[0])
        }

    def write_observed(
        self, now_ns: int, pids: Mapping[str, Collection[int]], recording: Collection[int]
    ) -> None:
        """Write since the last call which of the processes on each device were recording; call it once a second."""
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
