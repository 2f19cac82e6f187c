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
from itertools import pairwise
from operator import itemgetter
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpuprof.snapshots.gaps import EMPTY, MAX_NS, Spans, union

WINDOW_NS = 200_000_000
LATE_NS = 1_000_000_000
OBSERVED_NS = 1_000_000_000
MAX_WINDOWS = 600  # in one go, as after a sleep of the machine
MAX_SPANS = 1 << 19  # of one device and kind: over a second of 400,000 kernels a second
MAX_ALL_SPANS = 1 << 20  # of all together, 16 MB
FEW_EDGES = 8
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
        self._parts: dict[tuple[str, int], list[Spans]] = {}  # each batch a set; batches may overlap
        self._held = 0  # spans in all of them
        self.left_out = 0  # intervals that there was no room for: a process that lies
        self._done_ns = now_ns // WINDOW_NS * WINDOW_NS
        self._seen_ns = now_ns
        self._series: dict[tuple[str, str, int | None], int] = {}
        self._pauses: dict[str, Spans] = {}  # lately, by device
        self._communicates: set[str] = set()  # devices that have had a communication kernel

    def add(self, gpu: str, start: NDArray[Any], end: NDArray[Any], *, kind: int) -> None:
        """Add intervals (u64 or i64 monotonic ns, valid) of kernels, copies or communication kernels."""
        if kind == COMMUNICATION:
            self._communicates.add(gpu)
        spans = _set_of(start, end)
        if not len(spans) or int(spans.end[-1]) <= self._done_ns:
            return
        key = (gpu, kind)
        size = sum(map(len, self._parts.get(key, ())))
        room = min(MAX_SPANS - size, MAX_ALL_SPANS - self._held)
        if len(spans) > room:  # the newest cannot be kept all
            self.left_out += len(spans) - room
            spans = Spans(spans.start[:room], spans.end[:room])
        self._put(key, [spans])

    def _put(self, key: tuple[str, int], parts: list[Spans]) -> None:
        parts = [part for part in parts if len(part)]
        self._parts.setdefault(key, []).extend(parts)
        self._held += sum(map(len, parts))

    def _pop(self, key: tuple[str, int]) -> list[Spans]:
        parts = self._parts.pop(key, [])
        self._held -= sum(map(len, parts))
        return parts

    def _busy_ns(self, key: tuple[str, int], edges: NDArray[np.int64]) -> NDArray[np.int64]:
        """How long it was busy in each window; what lies before the last edge is not kept.

        Batches that begin later are left as they are, so that a span is looked at once, or twice at an edge.
        """
        busy_ns = np.zeros(len(edges) - 1, np.int64)
        last_ns = int(edges[-1])
        parts = self._pop(key)
        self._put(key, [part for part in parts if int(part.start[0]) >= last_ns])
        for part in _apart([part for part in parts if int(part.start[0]) < last_ns]):
            busy_ns += _in_windows(part, edges)
            self._put(key, [_ending_after(part, last_ns)])
        return busy_ns

    def write(self, now_ns: int, gpus: Collection[str]) -> None:
        """Write the windows that are over for `LATE_NS`, of these devices."""
        until_ns = (now_ns - LATE_NS) // WINDOW_NS * WINDOW_NS
        if until_ns <= self._done_ns:
            return
        first_ns = max(self._done_ns, until_ns - MAX_WINDOWS * WINDOW_NS)
        edges = np.arange(first_ns, until_ns + 1, WINDOW_NS, dtype=np.int64)
        readings: list[tuple[NDArray[Any], ...]] = []
        for gpu in sorted(gpus):
            seen_ns = WINDOW_NS - self._pauses.get(gpu, EMPTY).in_windows(edges)
            some = seen_ns > 0
            for kind, metric in enumerate(METRICS):
                if kind == COMMUNICATION and gpu not in self._communicates:
                    continue
                busy_ns = self._busy_ns((gpu, kind), edges)[some]
                percent = np.minimum(busy_ns / seen_ns[some], 1.0) * 100.0
                series = np.full(len(percent), self._series_id(metric, gpu, None), np.uint32)
                readings.append((series, edges[:-1][some], edges[1:][some], percent))
        if readings:
            self._history.add_readings(*map(np.concatenate, zip(*readings, strict=True)))
        self._done_ns = until_ns
        for key in [key for key in self._parts if key[0] not in gpus]:
            self._pop(key)

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


def _set_of(start: NDArray[Any], end: NDArray[Any]) -> Spans:
    """A batch of intervals as a set: as they are, where they are in order and apart, as on one stream."""
    begin, finish = start.view(np.int64), end.view(np.int64)
    if (finish > begin).all() and (begin[1:] > finish[:-1]).all():
        return Spans(begin, finish)
    return union(begin, finish)


def _ending_after(part: Spans, time_ns: int) -> Spans:
    """Those of its intervals that end later, whole: the next windows take of the first what is in them."""
    first = int(np.searchsorted(part.end, time_ns, "right"))
    return Spans(part.start[first:], part.end[first:])


def _in_windows(part: Spans, edges: NDArray[np.int64]) -> NDArray[np.int64]:
    """The same as its `in_windows`, of few windows: sums of stretches of the columns, without new columns."""
    if len(edges) > FEW_EDGES:
        return part.in_windows(edges)
    at = np.searchsorted(part.start, edges, "left").tolist()  # how many begin before each edge
    busy_ns = np.zeros(len(edges) - 1, np.int64)
    beyond_ns = [
        max(int(part.end[n - 1]) - edge, 0) if n else 0 for n, edge in zip(at, edges.tolist(), strict=True)
    ]
    for window, (low, high) in enumerate(pairwise(at)):
        inside = int(part.end[low:high].sum()) - int(part.start[low:high].sum())
        busy_ns[window] = inside + beyond_ns[window] - beyond_ns[window + 1]
    return busy_ns


def _apart(parts: list[Spans]) -> list[Spans]:
    """The same set of time as parts in order that do not overlap."""
    apart: list[Spans] = []
    together: list[Spans] = []
    reach_ns = -MAX_NS
    for part in sorted(parts, key=lambda part: int(part.start[0])):
        if together and int(part.start[0]) >= reach_ns:
            apart.append(_joined(together))
            together = []
        together.append(part)
        reach_ns = max(reach_ns, int(part.end[-1]))
    return [*apart, _joined(together)] if together else apart


def _joined(parts: list[Spans]) -> Spans:
    if len(parts) == 1:
        return parts[0]
    return union(np.concatenate([part.start for part in parts]), np.concatenate([part.end for part in parts]))


def _pieces(series: int, true: Spans, start_ns: int, now_ns: int) -> list[tuple[int, int, int, float]]:
    """Readings (series, start, end, value) that are 1 in a set of time and 0 in the rest of the window."""
    pieces = [(series, start, end, 1.0) for start, end in true.pairs()]
    pieces += [(series, start, end, 0.0) for start, end in true.gaps(start_ns, now_ns).pairs()]
    return sorted(pieces, key=itemgetter(1))
