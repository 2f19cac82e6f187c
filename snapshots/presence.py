"""Who was there: idle time is shared, instant by instant, by the threads that lived then.

At an instant at which n of the threads lived each has 1/n of it. That rate changes only where a thread comes
or goes, so that its integral is a broken line, and a thread's share of an interval is a difference of two of
its values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from gpuprof.snapshots import gaps
from gpuprof.snapshots.columns import Array
from gpuprof.snapshots.gaps import MAX_NS, Spans
from gpuprof.snapshots.timelines import Samples, ThreadWaits

UNTOLD_NS = 2_500_000_000  # a wait that lasts is told in pieces, the first of which may come so late
MAX_UNTOLD_NS = 7 * 10**9  # and a further one; later the longer the wait has lasted
FOREVER = (0, MAX_NS)


def life(samples: Sequence[Samples], waits: Sequence[ThreadWaits], known_until_ns: int) -> tuple[int, int]:
    """When a thread lived, as far as its rows of a range say: it ran, or it waited. Where no wait of it was
    recorded nothing says when it did not live: FOREVER. Who was there shortly before `known_until_ns`, the
    end of all that is recorded, is taken to be there still: it may wait, of which the next piece is to come.
    """
    if not waits:
        return FOREVER
    first = min(int(one.start_ns.min()) for one in waits)
    last, length = max(
        (int(one.end_ns[at]), int(one.end_ns[at] - one.start_ns[at]))
        for one in waits
        for at in (int(one.end_ns.argmax()),)
    )
    if samples:
        first = min(first, *(int(one.time_ns.min()) for one in samples))
        ran = max(int(one.time_ns.max()) for one in samples)
        last, length = (ran, 0) if ran > last else (last, length)
    # A piece is as long as a fifth of the wait so far: the next one is longer by as much, and a look late.
    untold = max(UNTOLD_NS, min(length * 5 // 4 + 1_500_000_000, MAX_UNTOLD_NS))
    return first, last if last + untold < known_until_ns else MAX_NS


@dataclass(frozen=True, slots=True, eq=False)
class Presence:
    """Some threads between two instants, at each of which one of them lives at least.

    `lives`: of those that live in between, cut to it; `edges`: the instants at which one comes or goes (i64,
    the first and the last are the limits); `rate`: 1 / how many live from each edge to the next.
    """

    lives: Mapping[int, tuple[int, int]]
    edges: Array
    rate: Array

    @classmethod
    def of(cls, lives: Mapping[int, tuple[int, int]], low_ns: int, high_ns: int) -> Presence:
        """Return who lives in [low_ns, high_ns), which is not empty, of one thread or more. O(n log n).

        Time in which nobody lived is given to who came next, or else to who was there last.
        """
        born, died = (np.array([one[side] for one in lives.values()], np.int64) for side in (0, 1))
        start, end = _filled(born, died, low_ns, high_ns)
        there = end > start
        edges, place = np.unique(
            np.concatenate([[low_ns, high_ns], start[there], end[there]]), return_inverse=True
        )
        comes, goes = np.split(place.reshape(-1)[2:], 2)
        change = np.bincount(comes, minlength=len(edges)) - np.bincount(goes, minlength=len(edges))
        rate = 1.0 / np.cumsum(change)[:-1]
        if (rate == rate[0]).all():  # as many all the time, which is the usual case
            edges, rate = edges[[0, -1]], rate[:1]
        cut = zip(lives, start.tolist(), end.tolist(), strict=True)
        return cls({who: (first, last) for who, first, last in cut if last > first}, edges, rate)

    def share_ns(self, spans: Spans) -> float:
        """Return the share that a thread which lives all the while has of a set of time."""
        return float((spans.in_windows(self.edges) * self.rate).sum())

    def shares_ns(self, spans: Spans, start_ns: ArrayLike, end_ns: ArrayLike) -> Array:
        """Return the same for each of any intervals, as far as it lies in the set."""
        if len(self.rate) == 1:
            inside = spans.overlap(start_ns, end_ns)
            return inside if self.rate[0] == 1 else inside * self.rate[0]
        # Of the time of the set alone, the share is a broken line too.
        knots = spans.before(self.edges)
        share = np.concatenate([[0.0], np.cumsum(self.rate * np.diff(knots))])
        end, start = (np.interp(spans.before(times), knots, share) for times in (end_ns, start_ns))
        found: Array = end - start
        return found

    def rates(self, times_ns: Array) -> Array:
        """Return what a thread that lives has of each instant (f64)."""
        at = np.searchsorted(self.edges, times_ns, "right") - 1
        found: Array = self.rate[np.clip(at, 0, len(self.rate) - 1)]
        return found


def _filled(born: Array, died: Array, low_ns: int, high_ns: int) -> tuple[Array, Array]:
    """Return lives cut to [low_ns, high_ns), with some of them longer where nobody lived."""
    start, end = np.clip(born, low_ns, high_ns), np.clip(died, low_ns, high_ns)
    empty = gaps.union(start, end).gaps(low_ns, high_ns)
    if not len(empty):
        return start, end
    at = np.minimum(np.searchsorted(empty.end, start), len(empty) - 1)
    next_there = (empty.end[at] == start) & (end > start)
    start = np.where(next_there, empty.start[at], start)
    if empty.end[-1] == high_ns:  # nobody came any more
        later = born >= high_ns
        heirs = later & (born == born[later].min()) if later.any() else died == died.max()
        start = np.where(heirs, np.minimum(start, empty.start[-1]), start)
        end = np.where(heirs, high_ns, end)
    return start, end
