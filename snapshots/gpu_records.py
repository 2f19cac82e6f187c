"""GPU records on their way into the history: which of them can be true, which launch each belongs to, and
the counts of those that have none.

A record is invalid when its start is 0, it ends before it starts, or it lies in the future; invalid ones are
counted and left out. One that starts before its launch is kept and counted as early. One whose launch is not
there yet is held back for a while, then kept and counted as unmatched. One whose launch is known to have no
stack, since a random sample of launches gets one, waits for nothing and is counted as left out.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from gpuprof.snapshots.columns import Array
from gpuprof.snapshots.frames import STACK_NOT_TAKEN, UNMATCHED_LAUNCH, FrameKind
from gpuprof.snapshots.join import CLOCK_TOLERANCE_NS, LaunchTable, Matches
from gpuprof.snapshots.tables import Tables

DEFAULT_HOLD_NS = 2 * 10**9
DEFAULT_MAX_HELD = 1 << 16
NO_LAUNCH, LEFT_OUT = -1, -2  # in the stack column of Matches
_MEMO_BITS = 15
_NO_KEY = np.uint64((1 << 64) - 1)
_SPREAD = np.uint64(0x9E37_79B9_7F4A_7C15)  # 2^64 / golden ratio


def valid(
    start_ns: ArrayLike, end_ns: ArrayLike, now_ns: int, *, tolerance_ns: int = CLOCK_TOLERANCE_NS
) -> Array:
    """Return a mask of the records (u64 columns, monotonic ns) that can be true at `now_ns`."""
    start, end = np.asarray(start_ns, np.uint64), np.asarray(end_ns, np.uint64)
    mask: Array = (start > 0) & (end >= start) & (end <= np.uint64(now_ns + tolerance_ns))
    return mask


@dataclass(slots=True)
class JoinCounts:
    """What became of the records so far; early, unmatched and left-out ones are among the valid."""

    valid: int = 0
    invalid: int = 0
    early: int = 0
    unmatched: int = 0
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class Joined:
    """Records that are settled: their columns as they came, and for each its launch."""

    columns: dict[str, Array]
    launch: Matches

    def __len__(self) -> int:
        return len(self.columns["correlation"])


@dataclass(slots=True)
class RecordJoin:
    """Joins records with launches, batch by batch. Not thread-safe.

    To have few records wait, read the ring of records before that of launches, then call `launches.add`,
    then `take`. `hold_ns`: how long after its end a record may wait for its launch; `max_held`: how many may
    wait per process (the oldest are settled first).
    """

    launches: LaunchTable
    hold_ns: int = DEFAULT_HOLD_NS
    max_held: int = DEFAULT_MAX_HELD
    tolerance_ns: int = CLOCK_TOLERANCE_NS
    counts: JoinCounts = field(default_factory=JoinCounts)
    _held: dict[tuple[Hashable, int], dict[str, Array]] = field(default_factory=dict)

    @property
    def held(self) -> int:
        """Number of records that wait for their launch."""
        return sum(len(columns["correlation"]) for columns in self._held.values())

    def take(self, process: Hashable, epoch: int, records: Mapping[str, ArrayLike], now_ns: int) -> Joined:
        """Return what is settled of the records that wait and of new ones, given as equal-length columns.

        The columns are `correlation` (u32), `start_ns`, `end_ns` (u64), and any others, the same in every
        call; those come back as they are. `left_out` (bool), where there is such a column, marks the records
        whose launch has no stack on purpose; `launch_ns` (u64) then tells when it was made (0: not known).
        """
        fresh = {name: np.asarray(column) for name, column in records.items()}
        good = valid(fresh["start_ns"], fresh["end_ns"], now_ns, tolerance_ns=self.tolerance_ns)
        count = int(np.count_nonzero(good))
        self.counts.valid += count
        self.counts.invalid += len(good) - count
        if count < len(good):
            fresh = {name: column[good] for name, column in fresh.items()}
        held = self._held.pop((process, epoch), None)
        if held is not None:
            fresh = {name: np.concatenate([held[name], column]) for name, column in fresh.items()}
        return self._settled((process, epoch), fresh, now_ns - self.hold_ns)

    def flush(self, process: Hashable, epoch: int) -> Joined | None:
        """Return the records of a process that still wait, as far as they match; None when there are none."""
        held = self._held.pop((process, epoch), None)
        return None if held is None else self._settled((process, epoch), held, None)

    def _settled(
        self, key: tuple[Hashable, int], columns: dict[str, Array], waits_from_ns: int | None
    ) -> Joined:
        launch = self._match(key, columns)
        left_out = launch.stack == LEFT_OUT
        found = launch.found | left_out
        start = columns["start_ns"].astype(np.int64)
        enter = launch.enter_ns  # -1 where there is none
        if "launch_ns" in columns and left_out.any():
            enter = np.where(left_out, columns["launch_ns"].astype(np.int64), enter)
        self.counts.early += int(np.count_nonzero(start < enter))
        self.counts.left_out += int(np.count_nonzero(left_out))
        waits = np.zeros(len(found), np.bool_)
        if waits_from_ns is not None and not found.all():
            waits = ~found & (columns["end_ns"].astype(np.int64) >= waits_from_ns)
            waiting = np.flatnonzero(waits)
            waits[waiting[: max(len(waiting) - self.max_held, 0)]] = False
        self.counts.unmatched += int(np.count_nonzero(~found & ~waits))
        if not waits.any():
            return Joined(columns, launch)
        self._held[key] = {name: column[waits] for name, column in columns.items()}
        done = ~waits
        parts = (launch.thread, launch.stack, launch.enter_ns, launch.weight)
        return Joined(
            {name: column[done] for name, column in columns.items()}, Matches(*(part[done] for part in parts))
        )

    def _match(self, key: tuple[Hashable, int], columns: dict[str, Array]) -> Matches:
        left_out = columns.get("left_out")
        if left_out is None or not left_out.any():
            return self.launches.match(*key, columns["correlation"], columns["start_ns"])
        rest = np.flatnonzero(~left_out)
        some = self.launches.match(*key, columns["correlation"][rest], columns["start_ns"][rest])
        count = len(left_out)
        nothing = np.full(count, -1, np.int64)
        launch = Matches(nothing, np.full(count, LEFT_OUT, np.int64), nothing.copy(), np.zeros(count))
        for all_of, found in (
            (launch.thread, some.thread), (launch.stack, some.stack), (launch.enter_ns, some.enter_ns),
            (launch.weight, some.weight),
        ):  # fmt: skip
            all_of[rest] = found
        return launch


def left_out_stack(tables: Tables) -> int:
    """Return the stack below which the leaf frames of work hang whose launch has no stack on purpose."""
    return tables.stack([tables.frame(tables.function(STACK_NOT_TAKEN, "", "", FrameKind.UNKNOWN))])


def unmatched_stack(tables: Tables) -> int:
    """Return the stack below which the leaf frames of work without a launch hang."""
    return tables.stack([tables.frame(tables.function(UNMATCHED_LAUNCH, "", "", FrameKind.UNKNOWN))])


class LeafStacks:
    """Stacks with a kernel or copy as their leaf frame, in one generation of tables; pairs that were seen
    lately are remembered, since the same come again and again. The history's lock is held around `of`.
    """

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self._keys = np.full(1 << _MEMO_BITS, _NO_KEY, np.uint64)
        self._nodes = np.zeros(1 << _MEMO_BITS, np.uint32)

    def of(self, stack: ArrayLike, leaf: ArrayLike) -> Array:
        """Return for each pair of a stack and a frame id the stack with that frame as its leaf (u32).

        NO_LAUNCH stands for `unmatched_stack`, LEFT_OUT for `left_out_stack`. IndexError for ids that are not
        defined.
        """
        below = np.asarray(stack, np.int64)
        if len(below) and below.min() < 0:
            below = np.where(below == LEFT_OUT, left_out_stack(self.tables), below)
            below = np.where(below < 0, unmatched_stack(self.tables), below)
        keys = (below.astype(np.uint64) << np.uint64(32)) | np.asarray(leaf, np.uint64)
        place = (keys * _SPREAD) >> np.uint64(64 - _MEMO_BITS)
        nodes: Array = self._nodes[place]
        missing = np.flatnonzero(self._keys[place] != keys)
        if len(missing):
            pairs, inverse = np.unique(keys[missing], return_inverse=True)
            child = self.tables.child
            found = np.array([child(pair >> 32, pair & 0xFFFF_FFFF) for pair in pairs.tolist()], np.uint32)
            nodes[missing] = found[inverse.reshape(-1)]
            at = (pairs * _SPREAD) >> np.uint64(64 - _MEMO_BITS)
            _, first = np.unique(at, return_index=True)  # of several pairs that share a place, one is kept
            self._keys[at[first]], self._nodes[at[first]] = pairs[first], found[first]
        return nodes
