"""The client's copy of the readings.

One bounded, growing array per series, filled in bulk from Readings frames.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuprof.snapshots.frames import Readings, SeriesDef
from gpuprof.snapshots.metrics import METRICS

U64Array = NDArray[np.uint64]
F64Array = NDArray[np.float64]

# An hour at 10 Hz per series, and 48 MB in all; past that the oldest readings of every series go.
MAX_POINTS_PER_SERIES = 36_000
MAX_POINTS = 2_000_000
MAX_AGE_NS = 3600 * 10**9
# A stream may define series without end; past this many those that are silent are forgotten.
MAX_SERIES = 20_000

# Far past any uptime; keeps arithmetic in signed 64-bit numbers safe from hostile stamps.
_END_OF_TIME_NS = np.uint64(1 << 62)

# Larger values are "not available" in the disguise of a number (2^64 - 1), or nonsense, as is NaN.
_NO_READING = 1e18

_EMPTY_U64: U64Array = np.empty(0, np.uint64)
_EMPTY_F64: F64Array = np.empty(0, np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class SeriesView:
    """Readings of one series in time order, without copying: value[i] held over [start_ns[i], end_ns[i]).

    `appended` is how many readings the series has ever got, and `epoch` changes when older ones were
    rewritten, so that whoever derived something from an earlier view knows what is new.
    """

    start_ns: U64Array
    end_ns: U64Array
    value: F64Array
    appended: int = 0
    epoch: int = 0

    def __len__(self) -> int:
        return len(self.value)

    def since(self, time_ns: int, *, before: int = 1) -> SeriesView:
        """The readings that end at or after `time_ns`, and `before` more in front of them."""
        first = int(np.searchsorted(self.end_ns, np.uint64(max(time_ns, 0)), "left"))
        first = max(first - before, 0)
        return SeriesView(
            self.start_ns[first:], self.end_ns[first:], self.value[first:], self.appended, self.epoch
        )

    def until(self, time_ns: int, *, after: int = 1) -> SeriesView:
        """The readings that start before `time_ns`, and `after` more behind them."""
        last = int(np.searchsorted(self.start_ns, np.uint64(max(time_ns, 0)), "left")) + after
        return SeriesView(
            self.start_ns[:last], self.end_ns[:last], self.value[:last], self.appended, self.epoch
        )


EMPTY_VIEW = SeriesView(_EMPTY_U64, _EMPTY_U64, _EMPTY_F64)


def rate(view: SeriesView) -> SeriesView:
    """Growth per second of a counter between neighbouring readings.

    Where it went backwards there is nothing.
    """
    if len(view) < 2:
        return SeriesView(_EMPTY_U64, _EMPTY_U64, _EMPTY_F64, view.appended, view.epoch)
    times = view.end_ns
    elapsed = (times[1:] - times[:-1]).astype(np.float64)
    grown = np.diff(view.value)
    valid = (times[1:] > times[:-1]) & (grown >= 0)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        value = grown * 1e9 / elapsed
    start, end = times[:-1], times[1:]
    valid &= np.isfinite(value)
    if not valid.all():
        start, end, value = start[valid], end[valid], value[valid]
    return SeriesView(start, end, value, view.appended, view.epoch)


class _Buffer:
    """Columns of one series. They grow by doubling; once at the limit the newest half slides to the front.

    One row is written once and moved at most once per `limit` rows, so an append costs O(1) amortised.
    """

    __slots__ = ("appended", "end_ns", "epoch", "first", "last", "start_ns", "value")

    def __init__(self) -> None:
        self.start_ns: U64Array = np.empty(64, np.uint64)
        self.end_ns: U64Array = np.empty(64, np.uint64)
        self.value: F64Array = np.empty(64, np.float64)
        self.first = 0
        self.last = 0
        self.appended = 0
        self.epoch = 0

    def __len__(self) -> int:
        return self.last - self.first

    def view(self) -> SeriesView:
        rows = slice(self.first, self.last)
        return SeriesView(self.start_ns[rows], self.end_ns[rows], self.value[rows], self.appended, self.epoch)

    def extend(self, start_ns: U64Array, end_ns: U64Array, value: F64Array, limit: int) -> None:
        count = len(value)
        if count > limit:
            start_ns, end_ns, value = start_ns[-limit:], end_ns[-limit:], value[-limit:]
            count = limit
        if self.last + count > len(self.value):
            self._make_room(count, limit)
        rows = slice(self.last, self.last + count)
        self.start_ns[rows] = start_ns
        self.end_ns[rows] = end_ns
        self.value[rows] = value
        late = self.last > self.first and bool(end_ns[0] < self.end_ns[self.last - 1])
        self.last += count
        self.appended += count
        if late:
            self._sort()
        self.first = max(self.first, self.last - limit)

    def drop_before(self, time_ns: int) -> None:
        """Forget readings that ended before `time_ns`."""
        ends = self.end_ns[self.first : self.last]
        self.first += int(np.searchsorted(ends, np.uint64(max(time_ns, 0)), "left"))

    def _make_room(self, count: int, limit: int) -> None:
        kept = slice(max(self.first, self.last - limit), self.last)
        size = kept.stop - kept.start
        capacity = min(max(2 * (size + count), 64), 2 * limit + count)
        for name in ("start_ns", "end_ns", "value"):
            old = getattr(self, name)
            new = np.empty(capacity, old.dtype)
            new[:size] = old[kept]
            setattr(self, name, new)
        self.first, self.last = 0, size

    def _sort(self) -> None:
        rows = slice(self.first, self.last)
        order = np.argsort(self.end_ns[rows], kind="stable")
        for column in (self.start_ns, self.end_ns, self.value):
            column[rows] = column[rows][order]
        self.epoch += 1


Key = tuple[str, str | None, int | None, int | None]


class SeriesStore:
    """All series of one node. Used from the screen's thread only."""

    def __init__(
        self,
        *,
        max_points_per_series: int = MAX_POINTS_PER_SERIES,
        max_points: int = MAX_POINTS,
        max_age_ns: int | None = MAX_AGE_NS,
    ) -> None:
        self.revision = 0  # grows when a series gets its first reading: time to lay out the charts again
        self.changes = 0  # grows with every frame of readings
        self._max_points_per_series = max_points_per_series
        self._max_points = max_points
        self._max_age_ns = max_age_ns
        self._keys: dict[int, Key] = {}
        self._buffers: dict[Key, _Buffer] = {}
        self._subjects: dict[str, list[Key]] = {}
        self._points = 0
        self._oldest_ns = 0
        self._newest_ns = 0

    @property
    def span(self) -> tuple[int, int]:
        """Earliest start and latest end of any reading; (0, 0) while there is none."""
        if not self._buffers:
            return 0, 0
        starts = [int(buffer.start_ns[buffer.first]) for buffer in self._buffers.values() if len(buffer)]
        return (min(starts), self._newest_ns) if starts else (0, 0)

    @property
    def newest_ns(self) -> int:
        """End of the newest reading of any series, 0 while there is none."""
        return self._newest_ns

    @property
    def points(self) -> int:
        """How many readings are held."""
        return self._points

    def define(self, series: SeriesDef | Iterable[SeriesDef]) -> None:
        """Learn what a series id means; a metric that this version does not know is passed over."""
        for item in (series,) if isinstance(series, SeriesDef) else series:
            if item.metric in METRICS:
                if len(self._keys) >= MAX_SERIES:
                    self._forget_silent_series()
                self._keys[item.id] = (item.metric, item.gpu, item.pid, item.core)

    def add(self, readings: Readings) -> None:
        """Append the rows of a frame.

        Rows of undefined series and values that cannot be readings are passed over.
        """
        value = readings.value
        ids, start_ns, end_ns = readings.series, readings.start_ns, readings.end_ns
        valid = (np.abs(value) < _NO_READING) & (end_ns >= start_ns) & (end_ns < _END_OF_TIME_NS)
        if not valid.all():
            ids, start_ns, end_ns, value = ids[valid], start_ns[valid], end_ns[valid], value[valid]
        if not len(value):
            return
        self.changes += 1
        # Sorted by series, then by time: each series is then one slice of the frame.
        order = np.lexsort((end_ns, ids))
        ids, start_ns, end_ns, value = ids[order], start_ns[order], end_ns[order], value[order]
        edges = np.flatnonzero(ids[1:] != ids[:-1]) + 1
        firsts = [0, *edges.tolist()]
        lasts = [*edges.tolist(), len(ids)]
        for first, last, series_id in zip(firsts, lasts, ids[firsts].tolist(), strict=True):
            key = self._keys.get(series_id)
            if key is not None:
                self._extend(key, start_ns[first:last], end_ns[first:last], value[first:last])
        self._forget()

    def get(
        self, metric: str, gpu: str | None = None, pid: int | None = None, core: int | None = None
    ) -> SeriesView:
        """The readings of one series; an empty view where there are none."""
        buffer = self._buffers.get((metric, gpu, pid, core))
        return EMPTY_VIEW if buffer is None else buffer.view()

    def view(self, key: Key) -> SeriesView:
        """The same by key, as `subjects` gives it."""
        buffer = self._buffers.get(key)
        return EMPTY_VIEW if buffer is None else buffer.view()

    def subjects(self, metric: str) -> list[Key]:
        """Keys (metric, gpu, pid, core) of the series of a metric that have readings, by first appearance."""
        return [key for key in self._subjects.get(metric, ()) if len(self._buffers[key])]

    def has(self, metric: str, gpu: str | None = None) -> bool:
        """Whether any series of a metric (of one GPU) has readings."""
        return any(gpu is None or key[1] == gpu for key in self.subjects(metric))

    rate = staticmethod(rate)

    def forget(self, key: Key) -> None:
        """Forget the readings of one series."""
        buffer = self._buffers.pop(key, None)
        if buffer is not None:
            self._subjects[key[0]].remove(key)
            self._points -= len(buffer)
            self.revision += 1
            self.changes += 1

    def clear(self) -> None:
        """Forget everything, as after a reconnection to another sampler."""
        self._keys.clear()
        self._buffers.clear()
        self._subjects.clear()
        self._points = self._newest_ns = self._oldest_ns = 0
        self.revision += 1
        self.changes += 1

    def _forget_silent_series(self) -> None:
        """Make room among the definitions: the oldest ones without readings go, as of ended processes."""
        silent = [number for number, key in self._keys.items() if key not in self._buffers]
        for number in (silent or list(self._keys))[: MAX_SERIES // 4]:
            del self._keys[number]

    def _extend(self, key: Key, start_ns: U64Array, end_ns: U64Array, value: F64Array) -> None:
        buffer = self._buffers.get(key)
        if buffer is None:
            buffer = self._buffers[key] = _Buffer()
            self._subjects.setdefault(key[0], []).append(key)
            self.revision += 1
        before = len(buffer)
        buffer.extend(start_ns, end_ns, value, self._max_points_per_series)
        self._points += len(buffer) - before
        self._newest_ns = max(self._newest_ns, int(end_ns[-1]))

    def _forget(self) -> None:
        """Keep to the bounds of age and number, in steps, so that most calls do nothing."""
        if self._points > self._max_points:
            oldest, newest = self.span
            self._drop_before(oldest + max((newest - oldest) // 4, 1))
        elif self._max_age_ns is not None and self._newest_ns - self._oldest_ns > self._max_age_ns * 21 // 20:
            self._drop_before(self._newest_ns - self._max_age_ns)

    def _drop_before(self, time_ns: int) -> None:
        for key in list(self._buffers):
            buffer = self._buffers[key]
            buffer.drop_before(time_ns)
            if not len(buffer):
                del self._buffers[key]
                self._subjects[key[0]].remove(key)
                self.revision += 1
        self._points = sum(map(len, self._buffers.values()))
        self._oldest_ns = time_ns
