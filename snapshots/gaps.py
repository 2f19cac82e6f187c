"""Sets of time on one line, in whole nanoseconds: unions, gaps and overlaps of any number of intervals.

An interval is [start, end); one that is empty (start == end) takes no time and is in no set. The sum of
intervals counts overlaps as often as they occur, the union counts them once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from gpuprof.snapshots.columns import Array

MAX_NS = 1 << 62  # instants beyond it are taken as it, so that no difference overflows


@dataclass(frozen=True, slots=True, eq=False)
class Spans:
    """A set of time: intervals in order that neither overlap nor touch nor are empty, as i64 columns."""

    start: Array
    end: Array

    def __len__(self) -> int:
        return len(self.start)

    @property
    def total_ns(self) -> int:
        """Length of the set."""
        return int((self.end - self.start).sum())

    def pairs(self) -> list[tuple[int, int]]:
        """Return the intervals as pairs of integers."""
        return list(zip(self.start.tolist(), self.end.tolist(), strict=True))

    def clipped(self, low_ns: int, high_ns: int) -> Spans:
        """Return the part of the set in [low_ns, high_ns)."""
        low, high = _limits(low_ns, high_ns)
        if high <= low:
            return EMPTY
        first = int(np.searchsorted(self.end, low, "right"))
        last = max(int(np.searchsorted(self.start, high, "left")), first)
        return Spans(np.maximum(self.start[first:last], low), np.minimum(self.end[first:last], high))

    def gaps(self, low_ns: int, high_ns: int) -> Spans:
        """Return what of [low_ns, high_ns) is not in the set."""
        low, high = _limits(low_ns, high_ns)
        if high <= low:
            return EMPTY
        inside = self.clipped(low, high)
        start = np.concatenate([[low], inside.end])
        end = np.concatenate([inside.start, [high]])
        some = end > start
        return Spans(start[some], end[some])

    def both(self, other: Spans) -> Spans:
        """Return what is in this set and in `other`."""
        if not len(self) or not len(other):
            return EMPTY
        low = max(int(self.start[0]), int(other.start[0]))
        high = min(int(self.end[-1]), int(other.end[-1]))
        neither = self.gaps(low, high).joined(other.gaps(low, high))
        return neither.gaps(low, high)

    def minus(self, other: Spans) -> Spans:
        """Return what is in this set and not in `other`."""
        if not len(self):
            return EMPTY
        return self.both(other.gaps(int(self.start[0]), int(self.end[-1])))

    def joined(self, other: Spans) -> Spans:
        """Return what is in this set, in `other`, or in both."""
        return union(np.concatenate([self.start, other.start]), np.concatenate([self.end, other.end]))

    def before(self, times_ns: ArrayLike) -> Array:
        """Return for each instant how much of the set lies before it, in ns (i64)."""
        times = _i64(times_ns)
        if not len(self):
            return np.zeros(len(times), np.int64)
        lengths = self.end - self.start
        earlier = np.cumsum(lengths) - lengths
        at = np.searchsorted(self.start, times, "right") - 1
        known = np.maximum(at, 0)
        within = np.minimum(times, self.end[known]) - self.start[known]
        return np.where(at >= 0, earlier[known] + within, 0)

    def overlap(self, start_ns: ArrayLike, end_ns: ArrayLike) -> Array:
        """Return for each of any intervals how much of it lies in the set, in ns (i64)."""
        return self.before(end_ns) - self.before(start_ns)

    def in_windows(self, edges_ns: ArrayLike) -> Array:
        """Return how much of the set lies between each edge and the next, in ns (i64); edges in order."""
        return np.diff(self.before(edges_ns))

    def holds(self, times_ns: ArrayLike) -> Array:
        """Return a mask: which of the instants lie in the set."""
        times = _i64(times_ns)
        if not len(self):
            return np.zeros(len(times), np.bool_)
        at = np.searchsorted(self.start, times, "right") - 1
        inside: Array = (at >= 0) & (times < self.end[np.maximum(at, 0)])
        return inside


EMPTY = Spans(np.empty(0, np.int64), np.empty(0, np.int64))


def union(start_ns: ArrayLike, end_ns: ArrayLike) -> Spans:
    """Return the set that any intervals, in any order, make up together."""
    start, end = _i64(start_ns), _i64(end_ns)
    some = end > start
    if not some.all():
        start, end = start[some], end[some]
    if not len(start):
        return EMPTY
    if (start[1:] < start[:-1]).any():
        # Each by itself: before the nth start lies a gap where n - 1 ends do, whichever they are. A stable
        # sort is quick where the intervals are of a few streams, one after the other.
        start, reach = np.sort(start, kind="stable"), np.sort(end, kind="stable")
    else:
        reach = np.maximum.accumulate(end)
    ends = np.flatnonzero(start[1:] > reach[:-1])  # intervals that touch are one
    if len(ends) == len(start) - 1:
        return Spans(start, reach)
    first, last = np.zeros((2, len(ends) + 1), np.intp)
    first[1:], last[:-1], last[-1] = ends + 1, ends, len(start) - 1
    return Spans(start.take(first), reach.take(last))


def lengths(start_ns: ArrayLike, end_ns: ArrayLike, low_ns: int, high_ns: int) -> Array:
    """Return for each interval how much of it lies in [low_ns, high_ns), in ns (i64)."""
    low, high = _limits(low_ns, high_ns)
    inside: Array = np.minimum(_i64(end_ns), high) - np.maximum(_i64(start_ns), low)
    np.maximum(inside, 0, out=inside)
    return inside


@dataclass(frozen=True, slots=True)
class Shares:
    """How a device spent a range; the three add up to its length."""

    busy_ns: int
    idle_ns: int
    unobserved_ns: int


def shares(low_ns: int, high_ns: int, busy: Spans, observed: Spans) -> Shares:
    """Return how [low_ns, high_ns) divides into busy, idle and not observed.

    Busy is known wherever work was recorded; idle is claimed only where the device was observed.
    """
    low, high = _limits(low_ns, high_ns)
    free = busy.gaps(low, high)
    idle = free.both(observed).total_ns
    return Shares(busy.clipped(low, high).total_ns, idle, free.total_ns - idle)


def _i64(times_ns: ArrayLike) -> Array:
    times = np.asarray(times_ns)
    if times.dtype == np.uint64 and len(times) and int(times.max()) > MAX_NS:
        times = np.minimum(times, np.uint64(MAX_NS))
    return times.astype(np.int64, copy=False)


def _limits(low_ns: int, high_ns: int) -> tuple[int, int]:
    return max(low_ns, -MAX_NS), min(high_ns, MAX_NS)
