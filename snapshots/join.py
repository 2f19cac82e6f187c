"""Launches by correlation id, kept in bounded memory, so that GPU records can be matched with them as they
arrive.

CUPTI's correlation ids are 32 bits, count up within a process, and wrap. A record belongs to the newest
launch of its id that is not later than its start by more than the clock tolerance; all kernels of a graph
share the id of its launch, so a launch is not used up.

Each (process, attach epoch) has a ring of launches with a hash index: `heads` has for each bucket the number
of the newest launch in it, `chain` for each launch the number of the one before it in its bucket. Numbers
only grow; one that is more than a ring behind is of a launch that was overwritten, and ends its chain.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from gpuprof.snapshots.carry_over import carry_over
from gpuprof.snapshots.columns import Array
from gpuprof.snapshots.table_view import TablesView
from gpuprof.snapshots.tables import Tables

CLOCK_TOLERANCE_NS = 1_000_000  # conversion errors are far smaller, reuse of an id is hours away
DEFAULT_MAX_LAUNCHES = 1 << 17
DEFAULT_MAX_AGE_NS = 600 * 10**9
_FIRST_RING = 1 << 10
_MAX_CHAIN = 64  # hostile ids that all meet in one bucket must not cost more
_LAUNCH_BYTES = 49  # of one place in a ring, with its two heads
_SPREAD = np.uint32(2_654_435_769)  # 2^32 / golden ratio: spreads blocks of ids at any regular distance
_BLOCK_BITS = np.uint32(6)  # neighbouring ids are in neighbouring buckets, in few lines of the cache
_LONG_AGO = -(1 << 62)


@dataclass(frozen=True, slots=True)
class Matches:
    """For each record what is known of its launch; -1 in the signed columns where there is none."""

    thread: Array  # i32
    stack: Array  # i32
    enter_ns: Array  # i64
    weight: Array  # f32, how many launches this one stands for; 0 without one

    @property
    def found(self) -> Array:
        """Return a mask of the records that have a launch."""
        mask: Array = self.stack >= 0
        return mask


class _Launches(NamedTuple):
    """Columns of launches, of equal length."""

    correlation: Array  # u32
    enter: Array  # i64, ns
    thread: Array  # i32
    stack: Array  # i32
    weight: Array  # f32
    used: Array  # bool: a record of it has come


class _Ring:
    """The newest launches of one process and epoch; `size` is a power of two."""

    __slots__ = ("chain", "heads", "launches", "newest_ns", "next", "shift", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.next = 0  # number of the next launch
        self.newest_ns = _LONG_AGO
        self.shift = np.uint32(32 - size.bit_length())  # 2 * size buckets
        self.heads = np.full(2 * size, -1, np.int64)
        self.chain = np.full(size, -1, np.int64)
        self.launches = _Launches(
            np.zeros(size, np.uint32),
            np.zeros(size, np.int64),
            np.zeros(size, np.int32),
            np.zeros(size, np.int32),
            np.zeros(size, np.float32),
            np.ones(size, np.bool_),
        )

    def bucket_of(self, correlation: Array) -> Array:
        """Return the bucket of each id (as an index)."""
        bucket = correlation >> _BLOCK_BITS
        bucket *= _SPREAD
        bucket >>= self.shift
        bucket += correlation
        bucket &= np.uint32(2 * self.size - 1)
        return bucket.astype(np.intp)

    def live(self) -> Array:
        """Return the places of the launches held, oldest first."""
        places: Array = np.arange(max(self.next - self.size, 0), self.next) & (self.size - 1)
        return places

    @property
    def pending(self) -> int:
        """Number of launches held of which no record has come."""
        return int(np.count_nonzero(~self.launches.used))

    def put(self, new: _Launches) -> int:
        """Add launches (at most `size`), and return how many were overwritten before a record came."""
        count = len(new.enter)
        numbers = np.arange(self.next, self.next + count)
        bucket = self.bucket_of(new.correlation)
        earlier = self.heads.take(bucket)
        self.heads[bucket] = numbers  # of several in one bucket the last
        self._chain_neighbours(bucket, numbers, earlier)
        evicted = 0
        for at, part in self._stretches(count):
            evicted += int(np.count_nonzero(~self.launches.used[at]))
            self.chain[at] = earlier[part]
            for column, values in zip(self.launches, new, strict=True):
                column[at] = values[part]
        self.next += count
        self.newest_ns = max(self.newest_ns, int(new.enter.max()))
        return evicted

    def _stretches(self, count: int) -> list[tuple[slice, slice]]:
        """Return where the next launches go: places in the ring, and which of the launches go there."""
        low = self.next & (self.size - 1)
        straight = min(count, self.size - low)
        stretches = [(slice(low, low + straight), slice(straight))]
        if straight < count:
            stretches.append((slice(count - straight), slice(straight, count)))
        return stretches

    def _chain_neighbours(self, bucket: Array, numbers: Array, earlier: Array) -> None:
        """Let each launch that met others of its own call in a bucket follow the one before it there."""
        winner = self.heads.take(bucket)
        lost = np.flatnonzero(winner != numbers)
        if not len(lost):
            return
        met = np.union1d(lost, winner[lost] - numbers[0])  # all of these buckets, in their order
        order = met[np.argsort(bucket[met], kind="stable")]
        same = bucket[order[1:]] == bucket[order[:-1]]
        earlier[order[1:][same]] = numbers[order[:-1][same]]
        last = order[np.append(~same, True)]
        self.heads[bucket[last]] = numbers[last]

    def find(self, correlation: Array, start: Array, tolerance_ns: int, max_age_ns: int) -> Array:
        """Return for each id and start (i64, ns) the place of its newest launch, -1 without one.

        A launch may be later than the start by the tolerance, and earlier by the age.
        """
        oldest, wrap = max(self.next - self.size, 0), self.size - 1
        earliest, span = np.int64(tolerance_ns), np.uint64(max_age_ns + tolerance_ns)
        known, ids, since = self.launches, correlation, start + earliest
        number = self.heads.take(self.bucket_of(ids))
        place = number & wrap
        alive = number >= oldest
        enter = known.enter.take(place)
        hit = known.correlation.take(place) == ids
        hit &= alive
        hit &= (since - enter).view(np.uint64) <= span  # what is below 0 is a large number
        best = place.copy() if hit.all() else np.where(hit, place, -1)
        best_enter = np.empty(0, np.int64)
        rows: Array | None = None
        for _ in range(_MAX_CHAIN - 1):
            number = self.chain.take(place)
            alive &= number >= oldest
            left = np.flatnonzero(alive)
            if not len(left):
                break
            if rows is None:
                rows, best_enter = left, np.where(hit, enter, _LONG_AGO)
            else:
                rows = rows[left]
            ids, since, place = ids[left], since[left], number[left] & wrap
            alive = np.ones(len(left), np.bool_)
            enter = known.enter.take(place)
            hit = known.correlation.take(place) == ids
            hit &= (since - enter).view(np.uint64) <= span
            hit &= enter > best_enter[rows]
            better = rows[hit]
            best[better], best_enter[better] = place[hit], enter[hit]
        return best

    def resized(self, size: int) -> _Ring:
        """Return a ring of another size with the newest of these launches."""
        keep = self.live()[-size:]
        ring = _Ring(size)
        if len(keep):
            ring.put(_Launches(*(column[keep] for column in self.launches)))
        return ring


class LaunchTable:
    """Launches of all processes, at most about `max_launches` of them, each for at most `max_age_ns`.

    The processes share the room: when it is used up, the largest ring gives half of its own to a smaller one
    that needs to grow; a ring that may not grow overwrites its oldest launches, and where there are too many
    processes the one that has been silent longest is dropped. Not thread-safe.
    """

    def __init__(
        self,
        *,
        max_launches: int = DEFAULT_MAX_LAUNCHES,
        max_age_ns: int = DEFAULT_MAX_AGE_NS,
        tolerance_ns: int = CLOCK_TOLERANCE_NS,
    ) -> None:
        self._max_launches = max(max_launches, _FIRST_RING)
        self._max_age_ns = max_age_ns
        self._tolerance_ns = tolerance_ns
        self._rings: dict[tuple[Hashable, int], _Ring] = {}
        self.evicted = 0  # launches that were overwritten before a record of theirs came

    def add(
        self,
        process: Hashable,
        epoch: int,
        *,
        correlation: ArrayLike,
        enter_ns: ArrayLike,
        thread: ArrayLike,
        stack: ArrayLike,
        weight: ArrayLike = 1.0,
    ) -> None:
        """Add launches of a process in one attach epoch: columns of equal length, ids of one generation.

        ValueError for columns of different lengths.
        """
        corr = np.asarray(correlation, np.uint32)
        enter = _signed(enter_ns)
        threads, stacks = np.asarray(thread).astype(np.int32), np.asarray(stack).astype(np.int32)
        weights = np.broadcast_to(np.asarray(weight, np.float32), corr.shape)
        if not len(corr) == len(enter) == len(threads) == len(stacks):
            raise ValueError("columns of different lengths")
        if not len(corr):
            return
        ring = self._room(process, epoch, len(corr))
        for at in range(0, len(corr), ring.size):
            part = slice(at, at + ring.size)
            columns = (corr[part], enter[part], threads[part], stacks[part], weights[part])
            self.evicted += ring.put(_Launches(*columns, np.zeros(len(columns[0]), np.bool_)))

    def match(self, process: Hashable, epoch: int, correlation: ArrayLike, start_ns: ArrayLike) -> Matches:
        """Return the launch of each record of a process, given its correlation id and its start in ns."""
        corr = np.asarray(correlation, np.uint32)
        ring = self._rings.get((process, epoch))
        if ring is None or not len(corr):
            nothing = np.full(len(corr), -1, np.int32)
            return Matches(nothing, nothing, nothing.astype(np.int64), np.zeros(len(corr), np.float32))
        place = ring.find(corr, _signed(start_ns), self._tolerance_ns, self._max_age_ns)
        known = ring.launches
        none = np.flatnonzero(place < 0)
        if len(none):
            known.used[place[place >= 0]] = True
            place[none] = 0
        else:
            known.used[place] = True
        columns = (known.thread, known.stack, known.enter, known.weight)
        matches = Matches(*(column.take(place) for column in columns))
        if len(none):
            for column in (matches.thread, matches.stack, matches.enter_ns):
                column[none] = -1
            matches.weight[none] = 0.0
        return matches

    @property
    def pending(self) -> int:
        """Number of launches held of which no record has come yet."""
        return sum(ring.pending for ring in self._rings.values())

    @property
    def nbytes(self) -> int:
        """About how much memory the table takes."""
        return sum(ring.size for ring in self._rings.values()) * _LAUNCH_BYTES

    def forget(self, process: Hashable, epoch: int | None = None) -> None:
        """Drop the launches of a process that is gone (of one attach epoch, where given)."""
        for key in [key for key in self._rings if key[0] == process and epoch in {None, key[1]}]:
            del self._rings[key]

    def expire(self, now_ns: int) -> None:
        """Drop the processes whose newest launch is older than the age bound."""
        for key, ring in list(self._rings.items()):
            if ring.newest_ns < now_ns - self._max_age_ns:
                del self._rings[key]

    def carry_over(self, old: TablesView, new: Tables) -> None:
        """Translate the thread and stack ids of all launches from one generation of tables to the next.

        To be called when the history begins a new generation, under its lock, with a view of the old tables.
        """
        live = [(ring.launches, ring.live()) for ring in self._rings.values()]
        if not live:
            return
        threads = np.unique(np.concatenate([launches.thread[at] for launches, at in live]))
        stacks = np.unique(np.concatenate([launches.stack[at] for launches, at in live]))
        thread_map, stack_map = carry_over(old, new, threads, stacks)
        for launches, at in live:
            launches.thread[at] = thread_map[launches.thread[at]]
            launches.stack[at] = stack_map[launches.stack[at]]

    def _room(self, process: Hashable, epoch: int, wanted: int) -> _Ring:
        """Return the ring of a process, grown for so many more launches as far as the bound allows."""
        key = (process, epoch)
        ring = self._rings.get(key)
        if ring is None:
            while not self._make_room(_FIRST_RING, _FIRST_RING // 2):
                oldest = min(self._rings, key=lambda item: self._rings[item].newest_ns)
                self.evicted += self._rings.pop(oldest).pending
            ring = self._rings[key] = _Ring(_FIRST_RING)
        size = ring.size
        while min(ring.next, ring.size) + wanted > size and self._make_room(2 * size - ring.size, size):
            size *= 2
        if size > ring.size:
            ring = self._rings[key] = ring.resized(size)
        return ring

    def _make_room(self, more: int, size: int) -> bool:
        """Make room for `more` launches for a ring of `size`; False when no other is more than twice that."""
        while sum(ring.size for ring in self._rings.values()) + more > self._max_launches:
            key, largest = max(self._rings.items(), key=lambda item: item[1].size)
            if largest.size <= 2 * size:
                return False
            self._rings[key] = largest.resized(largest.size // 2)
            self.evicted += largest.pending - self._rings[key].pending
        return True


def _signed(times_ns: ArrayLike) -> Array:
    """Times as i64, without a copy where they are 64 bits wide already."""
    times = np.asarray(times_ns)
    return times.view(np.int64) if times.dtype == np.uint64 else times.astype(np.int64, copy=False)
