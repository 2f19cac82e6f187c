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

from gpuprof.snapshots.columns import Array, is_constant
from gpuprof.snapshots.frames import STACK_NOT_TAKEN, UNMATCHED_LAUNCH, FrameKind
from gpuprof.snapshots.join import CLOCK_TOLERANCE_NS, LaunchTable, Matches
from gpuprof.snapshots.key_memo import KeyMemo
from gpuprof.snapshots.tables import Tables

DEFAULT_HOLD_NS = 2 * 10**9
DEFAULT_MAX_HELD = 1 << 16
NO_LAUNCH, LEFT_OUT = -1, -2  # in the stack column of Matches
_WHOLE_PART = 1 << 11  # a batch of more records, all of which wait, is not copied
_MEMO_BITS = 15


def valid(
    start_ns: ArrayLike, end_ns: ArrayLike, now_ns: int, *, tolerance_ns: int = CLOCK_TOLERANCE_NS
) -> Array:
    """Return a mask of the records (u64 columns, monotonic ns) that can be true at `now_ns`."""
    start, end = np.asarray(start_ns, np.uint64), np.asarray(end_ns, np.uint64)
    mask: Array = (start > 0) & (end >= start) & (end <= np.uint64(now_ns + tolerance_ns))
    return mask


def _all_valid(start: Array, end: Array, now_ns: int, tolerance_ns: int) -> bool:
    if not len(start):
        return True
    return int(start.min()) > 0 and int(end.max()) <= now_ns + tolerance_ns and bool((end >= start).all())


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
    wait per process (the oldest batches are settled first).
    """

    launches: LaunchTable
    hold_ns: int = DEFAULT_HOLD_NS
    max_held: int = DEFAULT_MAX_HELD
    tolerance_ns: int = CLOCK_TOLERANCE_NS
    counts: JoinCounts = field(default_factory=JoinCounts)
    _held: dict[tuple[Hashable, int], list[dict[str, Array]]] = field(default_factory=dict)

    @property
    def held(self) -> int:
        """Number of records that wait for their launch."""
        return sum(_count(part) for parts in self._held.values() for part in parts)

    def holds(self, process: Hashable, epoch: int) -> bool:
        """Whether records of a process in an attach epoch wait for their launch."""
        return (process, epoch) in self._held

    def take(self, process: Hashable, epoch: int, records: Mapping[str, ArrayLike], now_ns: int) -> Joined:
        """Return what is settled of the records that wait and of new ones, given as equal-length columns.

        The columns are `correlation` (u32), `start_ns`, `end_ns` (u64), and any others, the same in every
        call; those come back as they are. `left_out` (bool), where there is such a column, marks the records
        whose launch has no stack on purpose; `launch_ns` (u64) then tells when it was made (0: not known).
        """
        fresh = self.admit(records, now_ns)
        return _together(self.settle(process, epoch, fresh, now_ns), fresh)

    def admit(self, records: Mapping[str, ArrayLike], now_ns: int) -> dict[str, Array]:
        """Return those of new records that can be true, and count them and the others."""
        fresh = {name: np.asarray(column) for name, column in records.items()}
        start, end = (np.asarray(fresh[name], np.uint64) for name in ("start_ns", "end_ns"))
        if _all_valid(start, end, now_ns, self.tolerance_ns):
            self.counts.valid += len(start)
            return fresh
        good = valid(start, end, now_ns, tolerance_ns=self.tolerance_ns)
        count = int(np.count_nonzero(good))
        self.counts.valid += count
        self.counts.invalid += len(good) - count
        return {name: column[good] for name, column in fresh.items()}

    def settle(self, process: Hashable, epoch: int, fresh: dict[str, Array], now_ns: int) -> list[Joined]:
        """Return what is settled of the records that wait, and of those that `admit` returned."""
        parts = self._held.pop((process, epoch), [])
        if _count(fresh):
            parts = [*parts, fresh]
        return self._settled((process, epoch), parts, now_ns - self.hold_ns)

    def flush(self, process: Hashable, epoch: int) -> Joined | None:
        """Return the records of a process that still wait, as far as they match; None when there are none."""
        parts = self._held.pop((process, epoch), None)
        return _together(self._settled((process, epoch), parts, None), parts[0]) if parts else None

    def _settled(
        self, key: tuple[Hashable, int], parts: list[dict[str, Array]], waits_from_ns: int | None
    ) -> list[Joined]:
        """Return what is settled of some batches, and keep what waits; None: nothing does."""
        judged = [(part, *self._judge(key, part, waits_from_ns)) for part in parts]
        too_many = sum(len(waiting) for *_, waiting in judged) - self.max_held
        done: list[Joined] = []
        whole: list[dict[str, Array]] = []
        rest: list[dict[str, Array]] = []
        for columns, launch, unknown, might_wait in judged:
            waiting = might_wait[max(too_many, 0) :]  # the oldest are settled
            too_many -= len(might_wait)
            self.counts.unmatched += unknown - len(waiting)
            count = _count(columns)
            if not len(waiting):
                done.append(Joined(columns, launch))
            elif len(waiting) == count:
                (whole if count > _WHOLE_PART else rest).append(columns)
            else:
                rest.append({name: column[waiting] for name, column in columns.items()})
                settled = np.ones(count, np.bool_)
                settled[waiting] = False
                done.append(_chosen(columns, launch, settled))
        if rest or whole:
            held = [rest[0] if len(rest) == 1 else _concatenated(rest)] if rest else []
            self._held[key] = [*held, *whole]
        return done

    def _judge(
        self, key: tuple[Hashable, int], columns: dict[str, Array], waits_from_ns: int | None
    ) -> tuple[Matches, int, Array]:
        """Return the launches of a batch, how many rows have none, and the indices of those that may wait."""
        launch = self._match(key, columns)
        found, enter = launch.found, launch.enter_ns  # -1 where there is none
        if has_any(columns.get("left_out")):
            left_out = launch.stack == LEFT_OUT
            found = found | left_out
            self.counts.left_out += int(np.count_nonzero(left_out))
            if "launch_ns" in columns:
                enter = np.where(left_out, columns["launch_ns"].astype(np.int64), enter)
        start = np.asarray(columns["start_ns"], np.uint64).view(np.int64)
        self.counts.early += int(np.count_nonzero(start < enter))
        unknown = np.flatnonzero(~found)
        if waits_from_ns is None or not len(unknown):
            return launch, len(unknown), unknown[:0]
        ends = np.asarray(columns["end_ns"], np.uint64).view(np.int64)
        if len(unknown) < len(ends):
            ends = ends.take(unknown)
        return launch, len(unknown), unknown[ends >= waits_from_ns]

    def _match(self, key: tuple[Hashable, int], columns: dict[str, Array]) -> Matches:
        left_out = columns.get("left_out")
        if left_out is None or not has_any(left_out):
            return self.launches.match(*key, columns["correlation"], columns["start_ns"])
        rest = np.flatnonzero(~left_out)
        some = self.launches.match(*key, columns["correlation"][rest], columns["start_ns"][rest])
        count = len(left_out)
        nothing, none = np.full(count, -1, np.int32), np.zeros(count, np.float32)
        launch = Matches(nothing, np.full(count, LEFT_OUT, np.int32), nothing.astype(np.int64), none)
        for all_of, found in (
            (launch.thread, some.thread), (launch.stack, some.stack), (launch.enter_ns, some.enter_ns),
            (launch.weight, some.weight),
        ):  # fmt: skip
            all_of[rest] = found
        return launch


def _count(columns: Mapping[str, Array]) -> int:
    return len(columns["correlation"])


def _concatenated(parts: list[dict[str, Array]]) -> dict[str, Array]:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _chosen(columns: dict[str, Array], launch: Matches, mask: Array) -> Joined:
    parts = (launch.thread, launch.stack, launch.enter_ns, launch.weight)
    chosen = {name: column[mask] for name, column in columns.items()}
    return Joined(chosen, Matches(*(part[mask] for part in parts)))


def _together(parts: list[Joined], like: dict[str, Array]) -> Joined:
    """Return parts as one; with none, no rows of columns like these."""
    if len(parts) == 1:
        return parts[0]
    if not parts:
        nothing = np.zeros(0, np.int32)
        launch = Matches(nothing, nothing, nothing.astype(np.int64), nothing.astype(np.float32))
        return Joined({name: column[:0] for name, column in like.items()}, launch)
    launches = [part.launch for part in parts]
    names = ("thread", "stack", "enter_ns", "weight")
    columns = (np.concatenate([getattr(launch, name) for launch in launches]) for name in names)
    return Joined(_concatenated([part.columns for part in parts]), Matches(*columns))


def has_any(mask: Array | None) -> bool:
    """Whether a mask of some rows is true of any."""
    if mask is None or not len(mask):
        return False
    return bool(mask[0]) if is_constant(mask) else bool(mask.any())


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
        self._memo = KeyMemo(np.uint32, _MEMO_BITS)

    def of(self, stack: ArrayLike, leaf: ArrayLike) -> Array:
        """Return for each pair of a stack and a frame id the stack with that frame as its leaf (u32).

        NO_LAUNCH stands for `unmatched_stack`, LEFT_OUT for `left_out_stack`. IndexError for ids that are not
        defined.
        """
        below = np.asarray(stack)
        if len(below) and below.min() < 0:
            below = np.where(below == LEFT_OUT, left_out_stack(self.tables), below)
            below = np.where(below < 0, unmatched_stack(self.tables), below)
        keys = below.astype(np.uint64)
        keys <<= np.uint64(32)
        keys |= np.asarray(leaf, np.uint64)
        nodes, missing = self._memo.find(keys)
        if len(missing):
            pairs, inverse = np.unique(keys[missing], return_inverse=True)
            child = self.tables.stacks.child
            found = np.array([child(pair >> 32, pair & 0xFFFF_FFFF) for pair in pairs.tolist()], np.uint32)
            nodes[missing] = found[inverse.reshape(-1)]
            self._memo.put(pairs, found)
        return nodes
