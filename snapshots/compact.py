"""A self-contained stream from a part of a history: only the definitions that its rows need, numbered afresh.

Each generation that has rows in the range becomes one compact generation, 0, 1, … in the order of the rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuprof.snapshots.columns import Array, Rows
from gpuprof.snapshots.frames import (
    Frame,
    FrameDefs,
    FunctionDefs,
    ProcessDef,
    ProcessDefs,
    Readings,
    Samples,
    SeriesDef,
    SeriesDefs,
    StackDefs,
    StringDefs,
    ThreadDef,
    ThreadDefs,
)
from gpuprof.snapshots.table_view import TablesView

_ROWS_PER_FRAME = 1 << 16
_DEFS_PER_FRAME = 1 << 12


def frames(
    facts: list[Frame],
    defs: dict[int, SeriesDef],
    readings: dict[str, Array],
    samples: list[tuple[TablesView, Rows]],
    current: TablesView,
) -> Iterator[Frame]:
    """Yield `facts`, then the readings with their series, then generation by generation the samples with
    theirs.

    `current` are the tables in which the processes of the readings are looked up where no sample refers to
    them.
    """
    yield from facts
    used = [defs[number] for number in np.unique(readings["series"]).tolist() if number in defs]
    for at in range(0, len(used), _DEFS_PER_FRAME):
        yield SeriesDefs(used[at : at + _DEFS_PER_FRAME])
    if len(used) < len(defs):
        known = np.isin(readings["series"], np.array([series.id for series in used], np.uint32))
        readings = {name: column[known] for name, column in readings.items()}
    for part in _pieces(readings):
        yield Readings(**part)
    pids = {series.pid for series in used if series.pid is not None}
    groups: dict[int, tuple[TablesView, list[Rows]]] = {}
    for view, rows in samples:
        groups.setdefault(view.generation, (view, []))[1].append(rows)
    if pids and current.generation not in groups:
        groups[current.generation] = (current, [])
    for number, (view, parts) in enumerate(groups.values()):
        yield from _generation(number, view, parts, pids)


def _pieces(columns: dict[str, Array]) -> Iterator[dict[str, Array]]:
    length = len(next(iter(columns.values())))
    for at in range(0, length, _ROWS_PER_FRAME):
        yield {name: column[at : at + _ROWS_PER_FRAME] for name, column in columns.items()}


def _generation(number: int, view: TablesView, parts: list[Rows], pids: set[int]) -> Iterator[Frame]:
    stacks = _unique(rows.columns["stack"] for rows in parts)
    threads = _unique(rows.columns["thread"] for rows in parts)
    with_readings = [index for index, process in enumerate(list(view.processes)) if process.pid in pids]
    processes = np.union1d(view.thread_process[threads], np.array(with_readings, np.uint32)).astype(np.uint32)
    yield from _people(number, view, processes, threads)
    trie = _Trie(view, stacks)
    yield from trie.definitions(number)
    for rows in parts:
        for part in _pieces(rows.columns):
            part["thread"] = np.searchsorted(threads, part["thread"]).astype(np.uint32)
            part["stack"] = trie.new_id[part["stack"]]
            yield Samples(number, **part)


def _people(number: int, view: TablesView, processes: Array, threads: Array) -> Iterator[Frame]:
    """Yield the processes and threads with these (sorted) ids, numbered from 0."""
    kept: list[ProcessDef] = [view.processes[index] for index in processes.tolist()]
    for at in range(0, len(kept), _DEFS_PER_FRAME):
        yield ProcessDefs(number, at, kept[at : at + _DEFS_PER_FRAME])
    owners = np.searchsorted(processes, view.thread_process[threads]).tolist()
    named = [
        ThreadDef(owner, thread.tid, thread.name)
        for owner, thread in zip(owners, (view.threads[index] for index in threads.tolist()), strict=True)
    ]
    for at in range(0, len(named), _DEFS_PER_FRAME):
        yield ThreadDefs(number, at, named[at : at + _DEFS_PER_FRAME])


@dataclass(slots=True, init=False)
class _Trie:
    """The part of a prefix tree that leads to some stacks, renumbered in the same order (parents stay
    smaller).
    """

    view: TablesView
    nodes: Array  # old ids, node 0 among them
    new_id: Array  # u32 by old id

    def __init__(self, view: TablesView, stacks: Array) -> None:
        self.view = view
        mask = ancestors(view.parent, stacks)
        self.nodes = np.flatnonzero(mask)
        self.new_id = (np.cumsum(mask) - 1).astype(np.uint32)

    def definitions(self, number: int) -> Iterator[Frame]:
        """Yield strings, functions, frames and stacks, each numbered from 0."""
        view, nodes = self.view, self.nodes[1:]
        frame_ids = np.unique(view.frame[nodes])
        function_ids = np.unique(view.frame_function[frame_ids])
        names, files, binaries = (col[function_ids] for col in (view.name, view.file, view.binary))
        string_ids = np.union1d(np.concatenate([names, files, binaries]), [0])
        texts = [view.strings[index] for index in string_ids.tolist()]
        for at in range(1, len(texts), _DEFS_PER_FRAME):
            yield StringDefs(number, at, texts[at : at + _DEFS_PER_FRAME])

        def text(column: Array) -> Array:
            return np.searchsorted(string_ids, column).astype(np.uint32)

        columns = {
            "name": text(names),
            "file": text(files),
            "binary": text(binaries),
            "kind": view.kind[function_ids],
        }
        for first, part in _numbered(columns, 0):
            yield FunctionDefs(number, first, **part)
        function = np.searchsorted(function_ids, view.frame_function[frame_ids]).astype(np.uint32)
        for first, part in _numbered({"function": function, "line": view.frame_line[frame_ids]}, 0):
            yield FrameDefs(number, first, **part)
        parent = self.new_id[view.parent[nodes]]
        frame = np.searchsorted(frame_ids, view.frame[nodes]).astype(np.uint32)
        for first, part in _numbered({"parent": parent, "frame": frame}, 1):
            yield StackDefs(number, first, **part)


def _numbered(columns: dict[str, Array], first: int) -> Iterator[tuple[int, dict[str, Array]]]:
    for part in _pieces(columns):
        yield first, part
        first += len(next(iter(part.values())))


def ancestors(parent: Array, stacks: Array) -> Array:
    """Return a mask over all nodes: the given ones, everything on their way to the root, and the root."""
    mask = np.zeros(len(parent), np.bool_)
    mask[0] = True
    current: Any = stacks[~mask[stacks]]
    while len(current):
        mask[current] = True
        current = parent[current]
        current = np.unique(current[~mask[current]])
    return mask


def _unique(columns: Iterable[Array]) -> Array:
    parts = [np.unique(column) for column in columns]
    return np.unique(np.concatenate(parts)) if parts else np.empty(0, np.uint32)
