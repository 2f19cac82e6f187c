"""Readings to columns: the lowest and highest value that a line has within each column of dots.

A reading holds over [start, end) and is drawn over it; neighbours that lie close enough are joined by a
straight line; a longer pause is a gap. Every reading counts in its column, so that a spike is seen at any
zoom.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpuprof.tui.series import F64Array, SeriesView, rate

# Readings further apart than this many of their usual intervals are not joined: something was not read in
# between.
GAP_INTERVALS = 3.5
_MIN_GAP_NS = 200_000_000
_INTERVAL_SAMPLE = 64

Extent = tuple[F64Array, F64Array]


def usual_gap_ns(view: SeriesView) -> int:
    """The longest pause between readings that is no gap yet, from the median interval of the latest ones."""
    ends = view.end_ns[-_INTERVAL_SAMPLE:]
    if len(ends) < 3:
        return 4_000_000_000
    interval = float(np.median(np.diff(ends)))
    return int(max(interval * GAP_INTERVALS, _MIN_GAP_NS))


def envelope(view: SeriesView, first: int, count: int, column_ns: int, gap_ns: int) -> Extent:
    """(lowest, highest) of `count` columns from number `first` of the grid of `column_ns`.

    NaN where there is nothing.
    """
    low = np.full(max(count, 0), np.nan)
    high = low.copy()
    view = view.since(first * column_ns - gap_ns).until((first + count) * column_ns + gap_ns)
    if not len(view) or count <= 0:
        return low, high
    # The polyline: both ends of each reading. Where windows overlap the later one begins when the earlier has
    # ended; the far end of a window still belongs to the column before it.
    start, end = view.start_ns.astype(np.int64), view.end_ns.astype(np.int64)
    np.maximum(start[1:], end[:-1], out=start[1:])
    times = np.empty(2 * len(view), np.int64)
    times[0::2] = start
    np.maximum(end - 1, start, out=times[1::2])
    values = np.repeat(view.value, 2)
    joined = np.ones(len(times), bool)  # joined[i]: point i connects to point i + 1
    joined[1:-1:2] = start[1:] - end[:-1] <= gap_ns
    joined[-1] = False

    edges = np.arange(first, first + count + 1, dtype=np.int64) * column_ns
    # Where each column's points begin among all points.
    bounds = np.searchsorted(times, edges, "left")
    at_edges = _values_at_edges(times, values, joined, edges, bounds)
    np.fmin(at_edges[:-1], at_edges[1:], out=low)
    np.fmax(at_edges[:-1], at_edges[1:], out=high)
    filled = np.flatnonzero(bounds[1:] > bounds[:-1])
    if len(filled):
        values = values[bounds[0] : bounds[-1]]
        starts = bounds[filled] - bounds[0]
        low[filled] = np.fmin(low[filled], np.minimum.reduceat(values, starts))
        high[filled] = np.fmax(high[filled], np.maximum.reduceat(values, starts))
    return low, high


def _values_at_edges(
    times: NDArray[np.int64],
    values: F64Array,
    joined: NDArray[np.bool_],
    edges: NDArray[np.int64],
    following: NDArray[np.int64],
) -> F64Array:
    """Value of the polyline at the edges of the columns, coming from the left; NaN where no segment does.

    `following` numbers the first point at or after each edge.
    """
    left = np.maximum(following - 1, 0)
    right = np.minimum(following, len(times) - 1)
    reached = (following > 0) & (following < len(times)) & joined[left]
    span = np.maximum(times[right] - times[left], 1)
    share = (edges - times[left]) / span
    with np.errstate(over="ignore", invalid="ignore"):
        at_edge: F64Array = values[left] * (1.0 - share) + values[right] * share
    at_edge[~reached] = np.nan
    return at_edge


class ColumnCache:
    """The envelope of one series for the columns in sight; only those with new readings are computed."""

    __slots__ = (
        "_column_ns",
        "_counter",
        "_epoch",
        "_first",
        "_gap_at",
        "_high",
        "_low",
        "_seen",
        "_tail_ns",
        "gap_ns",
    )

    def __init__(self, *, counter: bool = False) -> None:
        self.gap_ns = 0
        self._counter = counter
        self._column_ns = 0
        self._first = 0
        self._seen = -1
        self._epoch = -1
        self._tail_ns = 0
        self._gap_at = 0
        self._low: F64Array = np.empty(0)
        self._high: F64Array = np.empty(0)

    def update(self, view: SeriesView, first: int, count: int, column_ns: int) -> Extent:
        """(lowest, highest) of the columns [first, first + count); arrays that the caller must not change."""
        kept_from = first - self._first
        fresh = (
            column_ns != self._column_ns
            or view.epoch != self._epoch
            or kept_from < 0
            or kept_from >= len(self._low)
            or view.appended < self._seen
        )
        if view.appended - self._gap_at >= _INTERVAL_SAMPLE // 2 or self._seen < 0 or self._gap_at < 8:
            gap_ns = usual_gap_ns(view)
            self._gap_at = view.appended
            if not 0.6 <= gap_ns / max(self.gap_ns, 1) <= 1.6:
                self.gap_ns = gap_ns
                fresh = True
        if fresh:
            self._low, self._high = self._compute(view, first, count, column_ns)
        elif kept_from or count != len(self._low) or view.appended != self._seen:
            # What follows the last reading that was known may have been joined to a new one since.
            known = len(self._low) - kept_from
            if view.appended != self._seen:
                known = min(known, self._tail_ns // column_ns - first)
            known = min(max(known, 0), count)
            low, high = np.empty(count), np.empty(count)
            low[:known] = self._low[kept_from : kept_from + known]
            high[:known] = self._high[kept_from : kept_from + known]
            low[known:], high[known:] = self._compute(view, first + known, count - known, column_ns)
            self._low, self._high = low, high
        self._column_ns, self._first = column_ns, first
        self._seen, self._epoch = view.appended, view.epoch
        self._tail_ns = int(view.end_ns[-1]) - 1 if len(view) else 0
        return self._low, self._high

    def _compute(self, view: SeriesView, first: int, count: int, column_ns: int) -> Extent:
        if self._counter:
            # One more reading in front, since a rate needs two.
            view = rate(view.since(first * column_ns - self.gap_ns, before=2))
            view = _without_pauses(view, self.gap_ns)
        return envelope(view, first, count, column_ns, self.gap_ns)


def _without_pauses(view: SeriesView, gap_ns: int) -> SeriesView:
    """Rates taken over a pause are left out: nothing was read there."""
    near = (view.end_ns - view.start_ns) <= gap_ns
    if near.all():
        return view
    return SeriesView(view.start_ns[near], view.end_ns[near], view.value[near], view.appended, view.epoch)
