"""When each device was busy, and whether that is the whole truth: readings over short windows.

`gpu_kernel_busy_percent` and `gpu_copy_busy_percent` are the share of a window in which at least one kernel
(copy) ran: the union of the intervals, not their sum. `gpu_comm_busy_percent`, the same of communication
kernels, is there once a device has had one; they count as kernels too. All are given for devices of which
some process is recording. `gpu_observed` is 1 where all processes that NVML lists on the device were
recording and nothing was lost: only then is the rest of the window idle time. The readings come about a
second late, when the records of a window are in; a record that comes later still is in the rows, and not in
these readings.

Where a process pauses recording for the sake of its budget, busy time is the share of what was recorded of a
window; a window of which nothing was recorded has no reading.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from operator import itemgetter
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpuprof.snapshots.gaps import EMPTY, Spans, union

WINDOW_NS = 200_000_000
LATE_NS = 1_000_000_000
OBSERVED_NS = 1_000_000_000
MAX_WINDOWS = 600  # in one go, as after a sleep of the machine
MERGE_ABOVE = 1 << 16  # intervals of one device and kind that wait are merged when there are more
METRICS = ("gpu_kernel_busy_percent", "gpu_copy_busy_percent", "gpu_comm_busy_percent")
KERNEL, COPY, COMMUNICATION = 0, 1, 2
KEEP_PAUSES_NS = 5 * 10**9


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
        self._pauses: dict[str, Spans] = {}  # lately, by device
        self._communicates: set[str] = set()  # devices that have had a communication kernel

    def add(self, gpu: str, start: NDArray[Any], end: NDArray[Any], *, kind: int) -> None:
        """Add intervals (monotonic ns, valid) of kernels, copies or communication kernels."""
        key = (gpu, kind)
        if kind == COMMUNICATION:
            self._communicates.add(gpu)
        waiting = self._waiting.setdefault(key, [])
        waiting.append((start, end))
        if sum(len(part) for part, _ in waiting) > MERGE_ABOVE:
            self._merge(key)

    def _merge(self, key: tuple[str, int]) -> Spans:
        """All intervals of a device and kind as a set, without what is already written."""
        parts = self._waiting.pop(key, [])
        busy = self._busy.get(key, EMPTY)
        if parts:
            starts, ends = zip((busy.start, busy.end), *parts, strict=True)
            busy = union(
                np.concatenate(starts, dtype=np.int64, casting="unsafe"),
                np.concatenate(ends, dtype=np.int64, casting="unsafe"),
            )
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
            seen_ns = WINDOW_NS - self._pauses.get(gpu, EMPTY).in_windows(edges)
            some = seen_ns > 0
            for kind, metric in enumerate(METRICS):
                if kind == COMMUNICATION and gpu not in self._communicates:
                    continue
                busy_ns = self._merge((gpu, kind)).in_windows(edges)[some]
                percent = np.minimum(busy_ns / seen_ns[some], 1.0) * 100.0
                series = np.full(len(percent), self._series_id(metric, gpu, None), np.uint32)
                self._history.add_readings(series, edges[:-1][some], edges[1:][some], percent)
        self._done_ns = until_ns
        for key in [key for key in {*self._busy, *self._waiting} if key[0] not in gpus]:
            self._busy.pop(key, None)
            self._waiting.pop(key, None)

    def write_observed(
        self, now_ns: int, pids: Mapping[str, Collection[int]], recorded: Mapping[int, Spans]
    ) -> None:
        """Write which processes on each device were recording since the last call, a second ago.

        `pids`: by device, as NVML lists them; `recorded`: of the processes that record when they did, lately.
        """
        start_ns, self._seen_ns = max(self._seen_ns, now_ns - 3 * OBSERVED_NS), now_ns
        whole = union([start_ns], [now_ns])
        rows: list[tuple[int, int, int, float]] = []
        for gpu, listed in pids.items():
            observed, paused = whole, EMPTY
            for pid in listed:
                spans = recorded.get(pid, EMPTY).clipped(start_ns, now_ns)
                rows += _pieces(self._series_id("proc_recording", gpu, pid), spans, start_ns, now_ns)
                observed = observed.both(spans)
                if pid in recorded:
                    paused = paused.joined(spans.gaps(start_ns, now_ns))
            rows += _pieces(self._series_id("gpu_observed", gpu, None), observed, start_ns, now_ns)
            earlier = self._pauses.get(gpu, EMPTY).clipped(now_ns - KEEP_PAUSES_NS, start_ns)
            self._pauses[gpu] = earlier.joined(paused)
        if rows:
            self._history.add_readings(*zip(*rows, strict=True))

    def _series_id(self, metric: str, gpu: str, pid: int | None) -> int:
        key = (metric, gpu, pid)
        found = self._series.get(key)
        if found is None:
            if len(self._series) > 4096:
                self._series.clear()
            found = self._series[key] = self._history.series(metric, gpu=gpu, pid=pid)
        return found


def _pieces(series: int, true: Spans, start_ns: int, now_ns: int) -> list[tuple[int, int, int, float]]:
    """Readings (series, start, end, value) that are 1 in a set of time and 0 in the rest of the window."""
    pieces = [(series, start, end, 1.0) for start, end in true.pairs()]
    pieces += [(series, start, end, 0.0) for start, end in true.gaps(start_ns, now_ns).pairs()]
    return sorted(pieces, key=itemgetter(1))
