"""Waits that were written while they lasted, in slices: only the last slice of a wait has its waker, which
the others are given here, with the stack that goes on into the waker's.

The slices of one wait are BLOCKED rows of one thread with the same name of the wait, and each begins in the
very nanosecond in which the one before ends. A wait that still goes on has no waker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from gpuprof.snapshots.columns import Array, Rows
from gpuprof.snapshots.fold import by_tables
from gpuprof.snapshots.frames import NO_THREAD, FrameKind, WaitKind
from gpuprof.snapshots.levels import compact
from gpuprof.snapshots.people import People
from gpuprof.snapshots.table_view import TablesView, TaggedRows, frame_label

_TAKEN = ("thread", "stack", "waker")  # columns that a slice gets from the last one of its wait


@dataclass(frozen=True, slots=True)
class WaitNodes:
    """Of some stacks the node of the frame that names the wait, and of the one that names the waker; 0 where
    there is none.
    """

    wait: Array
    woken: Array


def wait_nodes(view: TablesView, stacks: Array) -> WaitNodes:
    """Return the nodes of the WAIT frames of stacks: the outermost one, and the next below it."""
    waits = view.kind[view.frame_function[view.frame]] == FrameKind.WAIT if len(view.frame_line) else None
    wait, woken = np.zeros((2, len(stacks)), np.int64)
    node = stacks.astype(np.int64)
    rows = np.flatnonzero(node)
    while waits is not None and len(rows):
        at = rows[waits[node[rows]]]
        woken[at], wait[at] = wait[at], node[at]
        node[rows] = view.parent[node[rows]]
        rows = rows[node[rows] > 0]
    return WaitNodes(wait, woken)


@dataclass(slots=True)
class PersonRows:
    """Waits of one generation of tables: their columns, and who waited (numbers in People)."""

    view: TablesView
    columns: dict[str, Array]
    person: Array

    def __len__(self) -> int:
        return len(self.person)


@dataclass(slots=True)
class _Slices:
    """Some rows of all generations, as equal-length columns: which they are, and what slices are told by."""

    part: Array
    row: Array
    person: Array
    start_ns: Array  # i64
    end_ns: Array
    wait: Array  # node of the frame that names the wait, in the tables of the row
    woken: Array  # whether the waker is known


# --------------------------------------------------------------------------------------- slices after a range


def later(
    waits: Sequence[TaggedRows], end_ns: int, rest: Callable[[], Iterable[TaggedRows]]
) -> list[TaggedRows]:
    """Return the slices behind a range of the waits that go on beyond its end.

    `waits`: rows that touch the range, which ends at `end_ns`; `rest` gives the rows after it, in the order
    in which they came, and is asked only where there may be some.
    """
    people = People()
    until: dict[int, int] = {}  # thread: up to where its wait is known
    for view, rows in waits:
        columns = rows.columns
        on = np.flatnonzero((columns["end_ns"] >= max(end_ns, 0)) & (columns["kind"] == WaitKind.BLOCKED))
        if len(on):
            who = people.of(view, columns["thread"][on]).tolist()
            for person, end in zip(who, columns["end_ns"][on].tolist(), strict=True):
                until[person] = max(until.get(person, 0), end)
    found: list[TaggedRows] = []
    if not until:
        return found
    threads: dict[int, Array] = {}
    for view, rows in rest():
        if view.generation not in threads:
            tids = np.array([people.tids[person] for person in until], np.int64)
            threads[view.generation] = np.isin(view.thread_tid, tids)
        columns = rows.columns
        mine = np.flatnonzero(
            threads[view.generation][columns["thread"]]
            & (columns["kind"] == WaitKind.BLOCKED)
            & (columns["start_ns"] >= max(end_ns, 0))
        )
        if len(mine) and len(chosen := mine[_going_on(people, view, columns, mine, until)]):
            cut = {name: column[chosen] for name, column in columns.items()}
            found.append((view, Rows(rows.first, rows.tag, cut)))
        if not until:
            break
    return found


def _going_on(
    people: People, view: TablesView, columns: dict[str, Array], mine: Array, until: dict[int, int]
) -> Array:
    """Return which of the rows `mine` go on with the waits `until`, which is brought up to date: threads that
    have begun another wait leave it.
    """
    person = people.of(view, columns["thread"][mine])
    start, end = (columns[name][mine].astype(np.int64) for name in ("start_ns", "end_ns"))
    order = np.lexsort((end, start, person))
    person, start, end = person[order], start[order], end[order]
    joins = np.zeros(len(order), np.bool_)
    joins[1:] = (person[1:] == person[:-1]) & (start[1:] == end[:-1]) & (end[:-1] > start[:-1])
    run = np.cumsum(~joins) - 1
    heads = np.flatnonzero(~joins)
    tails = np.append(heads[1:], len(order)) - 1
    wanted = np.zeros(len(heads), np.bool_)
    for number, (who, first) in enumerate(zip(person[heads].tolist(), start[heads].tolist(), strict=True)):
        if until.get(who) == first:
            wanted[number] = True
            until[who] = int(end[tails[number]])
        elif who in until and first > until[who]:
            del until[who]
    chosen: Array = np.sort(order[wanted[run]])
    return chosen


# ----------------------------------------------------------------------------------------- who ended the wait


def told(waits: list[TaggedRows], behind: list[TaggedRows], end_ns: int) -> list[TaggedRows]:
    """Return the rows of a range that ends at `end_ns` with the wakers that only the slices `behind` it have
    (`later`), for a file that ends there.
    """
    if not behind:
        return waits
    people = People()
    parts = []
    for view, blocks in by_tables([*waits, *behind]):
        columns = {
            name: np.concatenate([rows.columns[name] for rows in blocks]) for name in blocks[0].columns
        }
        parts.append(PersonRows(view, columns, people.of(view, columns["thread"])))
    found = []
    for part in with_wakers(parts):
        inside = part.columns["start_ns"] < max(end_ns, 0)
        if inside.any():
            columns = {name: column[inside] for name, column in part.columns.items()}
            found.append((part.view, Rows(0, None, columns)))
    return found


def with_wakers(parts: list[PersonRows]) -> list[PersonRows]:
    """Return waits of all generations where each slice has the waker, and the stack, of the last one of its
    wait. A slice whose last one refers to other tables is then among the rows of those.
    """
    slices = _open_slices(parts)
    if slices is None:
        return parts
    last = _last_of(parts, slices)
    told = np.flatnonzero((last != np.arange(len(last))) & slices.woken[last])
    if not len(told):
        return parts
    told = told[~slices.woken[told]]
    gone: list[Array] = [np.zeros(0, np.int64) for _ in parts]
    came: list[list[dict[str, Array]]] = [[] for _ in parts]
    who: list[list[Array]] = [[] for _ in parts]
    sources, targets = slices.part[told], slices.part[last[told]]
    for source, target in {*zip(sources.tolist(), targets.tolist(), strict=True)}:
        some = told[(sources == source) & (targets == target)]
        rows, final = slices.row[some], slices.row[last[some]]
        columns = {
            name: parts[target].columns[name][final] if name in _TAKEN else column[rows]
            for name, column in parts[source].columns.items()
        }
        gone[source] = np.concatenate([gone[source], rows])
        came[target].append(columns)
        who[target].append(slices.person[some])
    return [
        _changed(part, rows, more, people)
        for part, rows, more, people in zip(parts, gone, came, who, strict=True)
    ]


def _changed(
    part: PersonRows, gone: Array, came: Sequence[dict[str, Array]], who: Sequence[Array]
) -> PersonRows:
    if not len(gone) and not came:
        return part
    keep = np.ones(len(part), np.bool_)
    keep[gone] = False
    columns = {
        name: np.concatenate([column[keep], *(more[name] for more in came)])
        for name, column in part.columns.items()
    }
    return PersonRows(part.view, columns, np.concatenate([part.person[keep], *who]))


def _open_slices(parts: Sequence[PersonRows]) -> _Slices | None:
    """Return the waits that nobody is known to have ended, with all that begin where one of them ends; None
    where no such wait goes on.
    """
    candidates, ends = [], []
    for part in parts:
        columns = part.columns
        rows = np.flatnonzero((columns["waker"] == NO_THREAD) & (columns["kind"] == WaitKind.BLOCKED))
        # A timer or a disk is no thread, but a waker, which the stack names.
        stacks, of_row = compact(columns["stack"][rows], len(part.view.parent))
        rows = rows[wait_nodes(part.view, stacks).woken[of_row] == 0]
        candidates.append(rows)
        ends.append(columns["end_ns"][rows])
    edges = np.unique(np.concatenate(ends)) if ends else np.zeros(0, np.uint64)
    if not len(edges):
        return None
    found = []
    for number, (part, rows) in enumerate(zip(parts, candidates, strict=True)):
        begins = part.columns["start_ns"]
        place = np.minimum(np.searchsorted(edges, begins), len(edges) - 1)
        follows = np.flatnonzero((edges[place] == begins) & (part.columns["kind"] == WaitKind.BLOCKED))
        found.append((number, part, rows, follows))
    starts = np.unique(np.concatenate([part.columns["start_ns"][follows] for _, part, _, follows in found]))
    if not len(starts):
        return None
    pieces = []
    for number, part, rows, follows in found:
        end = part.columns["end_ns"][rows]
        place = np.minimum(np.searchsorted(starts, end), len(starts) - 1)
        pieces.append(_described(number, part, np.union1d(rows[starts[place] == end], follows)))
    return _Slices(*(np.concatenate(column) for column in zip(*pieces, strict=True)))


def _described(number: int, part: PersonRows, rows: Array) -> tuple[Array, ...]:
    columns = part.columns
    stacks, of_row = compact(columns["stack"][rows], len(part.view.parent))
    nodes = wait_nodes(part.view, stacks)
    return (
        np.full(len(rows), number, np.int64), rows, part.person[rows],
        columns["start_ns"][rows].astype(np.int64), columns["end_ns"][rows].astype(np.int64),
        nodes.wait[of_row], (nodes.woken[of_row] > 0) | (columns["waker"][rows] != NO_THREAD),
    )  # fmt: skip


def _last_of(parts: Sequence[PersonRows], slices: _Slices) -> Array:
    """Return for each slice the last one of its wait, which is itself where it has no next one."""
    count = len(slices.row)
    edges, edge_of = np.unique(np.concatenate([slices.start_ns, slices.end_ns]), return_inverse=True)
    edge_of = edge_of.reshape(-1)
    begins = slices.person * len(edges) + edge_of[:count]
    ends = slices.person * len(edges) + edge_of[count:]
    lasts = slices.end_ns > slices.start_ns
    able = np.flatnonzero(lasts)
    order = able[np.argsort(begins[able], kind="stable")]
    following = np.arange(count)
    if len(order):
        place = np.minimum(np.searchsorted(begins[order], ends), len(order) - 1)
        candidate = order[place]
        some = np.flatnonzero(lasts & ~slices.woken & (begins[candidate] == ends))
        some = some[_same_wait(parts, slices, some, candidate[some])]
        following[some] = candidate[some]
    while True:
        further = following[following]
        if np.array_equal(further, following):
            return following
        following = further


def _same_wait(parts: Sequence[PersonRows], slices: _Slices, one: Array, other: Array) -> Array:
    """Return a mask of the pairs of slices that wait for the same thing. Their frames may differ: those of a
    stack that was not known yet, or not as well, when the first of them was written.
    """
    known: dict[tuple[int, int], str] = {}

    def name_of(at: int) -> str:
        key = int(slices.part[at]), int(slices.wait[at])
        if key not in known:
            view = parts[key[0]].view
            known[key] = frame_label(view, int(view.frame[key[1]]))[0] if key[1] else ""
        return known[key]

    same: Array = (slices.wait[one] == slices.wait[other]) & (slices.part[one] == slices.part[other])
    same &= slices.wait[one] > 0
    for at in np.flatnonzero(~same).tolist():
        name = name_of(int(one[at]))
        same[at] = bool(name) and name == name_of(int(other[at]))
    return same
