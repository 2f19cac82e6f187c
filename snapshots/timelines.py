"""What single threads did, instant by instant: their CPU samples and their waits in a range, over all
generations of tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpuprof.snapshots import fold, gaps
from gpuprof.snapshots.columns import Array
from gpuprof.snapshots.frames import NO_THREAD, WaitKind
from gpuprof.snapshots.gaps import Spans
from gpuprof.snapshots.people import People
from gpuprof.snapshots.table_view import TablesView, TaggedRows
from gpuprof.snapshots.wait_slices import wait_nodes
from gpuprof.snapshots.wait_tree import WaitPart, node_names, wait_parts

NOBODY = -1
_SAME_WAIT_NS = 1_000_000  # a wait that begins so soon after the last goes on with it
GIL_FRAMES = frozenset(
    {"take_gil", "PyEval_RestoreThread", "PyEval_AcquireThread", "_PyEval_AcquireLock", "PyGILState_Ensure"}
)
GIL_REACH = 32  # frames above the wait that are looked at: those of the kernel and of libc are among them


@dataclass(frozen=True, slots=True)
class Samples:
    """CPU samples of one thread in one generation of tables, in the order of the rows."""

    view: TablesView
    time_ns: Array  # i64
    stack: Array


@dataclass(frozen=True, slots=True)
class ThreadWaits:
    """Waits of one thread in one generation of tables, by start."""

    view: TablesView
    start_ns: Array  # i64
    end_ns: Array
    stack: Array
    weight: Array  # f64
    kind: Array
    waker: Array  # i64, number of a thread in People, or NOBODY
    under: Array  # i64, node below which the waker's stack hangs (or would): the woken-by frame, or the wait
    call: Array  # mask of the synchronizing calls
    exact: Array  # mask of the other waits that stand for themselves only
    calls: Spans  # the time that the former cover
    exactly: Spans  # the same of the latter


class Timelines:
    """Samples and waits of a range by thread; a thread is looked up when it is asked for."""

    def __init__(
        self,
        people: People,
        samples: Sequence[TaggedRows],
        waits: Sequence[TaggedRows],
        low_ns: int,
        high_ns: int,
    ) -> None:
        self.people = people
        self._samples: list[tuple[TablesView, Array, Array, Array]] = []
        for view, blocks in fold.by_tables(samples):
            time, thread, stack = (
                np.concatenate([rows.columns[name] for rows in blocks])
                for name in ("time_ns", "thread", "stack")
            )
            self._samples.append((view, time.astype(np.int64), people.of(view, thread), stack))
        self._waits = wait_parts(waits, low_ns, high_ns, people)
        self._wakers = [_wakers(part, people) for part in self._waits]
        self._sample_cache: dict[int, list[Samples]] = {}
        self._wait_cache: dict[int, list[ThreadWaits]] = {}
        self._node_cache: dict[int, tuple[Array, Array]] = {}  # by generation

    def samples(self, person: int) -> list[Samples]:
        """Return the CPU samples of a thread."""
        found = self._sample_cache.get(person)
        if found is None:
            found = self._sample_cache[person] = []
            for view, time, who, stack in self._samples:
                rows = np.flatnonzero(who == person)
                if len(rows):
                    found.append(Samples(view, time[rows], stack[rows]))
        return found

    def others(self, person: int) -> list[Samples]:
        """Return the CPU samples of the other threads of a thread's process."""
        key = self.people.process_key(person)
        mates = [n for n in range(len(self.people)) if n != person and self.people.process_key(n) == key]
        return [samples for mate in mates for samples in self.samples(mate)]

    def waits(self, person: int) -> list[ThreadWaits]:
        """Return the waits of a thread."""
        found = self._wait_cache.get(person)
        if found is None:
            found = self._wait_cache[person] = []
            for part, wakers in zip(self._waits, self._wakers, strict=True):
                rows = np.flatnonzero(part.person == person)
                if len(rows):
                    rows = rows[np.argsort(part.columns["start_ns"][rows], kind="stable")]
                    found.append(_thread_waits(part, rows, wakers[rows], self._nodes_of(part)))
        return found

    def _nodes_of(self, part: WaitPart) -> tuple[Array, Array]:
        """Return for each stack of the waits of a generation the nodes of wait_nodes: of the wait, and of who
        ended it.
        """
        found = self._node_cache.get(part.view.generation)
        if found is None:
            size = len(part.view.parent)
            stacks, _ = fold.compact(part.columns["stack"], size)
            nodes = wait_nodes(part.view, stacks)
            found = np.zeros(size, nodes.wait.dtype), np.zeros(size, nodes.woken.dtype)
            found[0][stacks], found[1][stacks] = nodes.wait, nodes.woken
            self._node_cache[part.view.generation] = found
        return found


def _wakers(part: WaitPart, people: People) -> Array:
    wakers = np.full(len(part), NOBODY, np.int64)
    known = np.flatnonzero(part.columns["waker"] != NO_THREAD)
    if len(known):
        wakers[known] = people.of(part.view, part.columns["waker"][known])
    return wakers


def _thread_waits(part: WaitPart, rows: Array, waker: Array, nodes: tuple[Array, Array]) -> ThreadWaits:
    columns = {name: column[rows] for name, column in part.columns.items()}
    wait, woken = (of_stack[columns["stack"]] for of_stack in nodes)
    start, end = columns["start_ns"].astype(np.int64), columns["end_ns"].astype(np.int64)
    waker, woken = _goes_on(start, end, wait, waker, woken)
    under = np.where(woken > 0, woken, np.where(wait > 0, wait, columns["stack"]))
    weight = columns["weight"].astype(np.float64)
    call = columns["kind"] == WaitKind.SYNC
    exact = ~call & (weight <= 1)
    return ThreadWaits(
        part.view, start, end, columns["stack"], weight, columns["kind"], waker, under, call, exact,
        gaps.union(start[call], end[call]), gaps.union(start[exact], end[exact]),
    )  # fmt: skip


def _goes_on(start: Array, end: Array, wait: Array, waker: Array, woken: Array) -> tuple[Array, Array]:
    """Give a wait that timed out the waker of the wait that it went on with: who waits for a lock with a
    timeout (as for the GIL) waits for one thread, over several waits.
    """
    count = len(start)
    known = waker != NOBODY
    if known.all() or not known.any():
        return waker, woken
    index = np.arange(count)
    joined = np.zeros(count, np.bool_)
    joined[:-1] = (wait[1:] == wait[:-1]) & (wait[1:] > 0) & (start[1:] - end[:-1] <= _SAME_WAIT_NS)
    next_known = np.minimum.accumulate(np.where(known, index, count)[::-1])[::-1]
    last_of_run = np.minimum.accumulate(np.where(joined, count, index)[::-1])[::-1]
    from_row = np.where(known | (next_known > last_of_run), index, np.minimum(next_known, count - 1))
    return waker[from_row], woken[from_row]


def waits_for_gil(view: TablesView, nodes: Array) -> Array:
    """Return a mask of the nodes that have a function that takes the GIL shortly above them."""
    found = np.zeros(len(nodes), np.bool_)
    node = nodes.astype(np.int64)
    for _ in range(GIL_REACH):
        named = np.array([name in GIL_FRAMES for name in node_names(view, node)], np.bool_)
        found |= named
        node = view.parent[node].astype(np.int64)
    return found
