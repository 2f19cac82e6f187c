"""A self-contained stream from a part of a history: only the definitions that its rows need, numbered afresh.

Each generation that has rows in the range becomes one compact generation, 0, 1, … in the order of the rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.snapshots.columns import Array, Rows
from gpuprof.snapshots.frames import (
    NO_THREAD,
    Frame,
    FrameDefs,
    FunctionDefs,
    GpuWork,
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
    Waits,
)
from gpuprof.snapshots.gaps import MAX_NS
from gpuprof.snapshots.rows import ending
from gpuprof.snapshots.table_view import TablesView, TaggedRows, ancestors
from gpuprof.snapshots.wait_slices import later, told
from gpuprof.snapshots.work_frames import Ranges

if TYPE_CHECKING:
    from gpuprof.snapshots.history import History

_Kind = tuple[type[Frame], dict[str, Array]]  # some rows, by the class of their frame
_ROWS_PER_FRAME = 1 << 16
_DEFS_PER_FRAME = 1 << 12


def between(
    history: History, start_ns: int, end_ns: int, *, with_rows: bool, by_end: bool
) -> Iterator[Frame]:
    """Return the frames of [start_ns, end_ns): facts and readings, and with `with_rows` the other rows, too.
    `by_end`: see History.frames_between. The history is read at the call, not while iterating.
    """
    first_ns = start_ns - 1 if by_end else start_ns
    with history.lock:
        hello, clocks, gpus, status = history.hello, list(history.clocks), history.gpus, history.status
        defs, readings = history.readings_between(first_ns, end_ns)
        samples = history.samples_between(start_ns, end_ns) if with_rows else []
        windows = history.gpu_work_between(first_ns, end_ns) if with_rows else []
        waits = history.waits_between(first_ns, end_ns) if with_rows else []
        behind: list[TaggedRows] = []  # where neighbouring ranges follow, they have the wakers
        if not by_end:
            behind = later(waits, end_ns, lambda: history.waits_between(end_ns, MAX_NS))
        ranges = history.ranges_between(first_ns, end_ns) if with_rows else []
        current, counts = history.tables.view(), history.losses.frame(start_ns, end_ns)
    waits = told(waits, behind, end_ns)
    if by_end:
        readings = ending(readings, start_ns, end_ns)
        windows, waits, ranges = (
            [(view, Rows(part.first, part.tag, ending(part.columns, start_ns, end_ns))) for view, part in log]
            for log in (windows, waits, ranges)
        )
    facts: list[Frame] = [hello, *clocks, *(fact for fact in (gpus, status, counts) if fact is not None)]
    tagged = {Samples: samples, GpuWork: windows, Waits: waits, Ranges: ranges}
    return _frames(facts, (defs, readings), tagged, current=current)


def _frames(
    facts: list[Frame],
    metrics: tuple[dict[int, SeriesDef], dict[str, Array]],
    tagged: Mapping[type[Frame], list[TaggedRows]],
    *,
    current: TablesView,
) -> Iterator[Frame]:
    """Yield `facts`, then the readings with their series, then generation by generation the rows with their
    definitions.

    `metrics`: the definitions of series by id, and readings as columns; `tagged`: rows by the class of their
    frame; `current`: the tables in which the processes of the readings are looked up where no row refers to
    them.
    """
    yield from facts
    defs, readings = metrics
    used = [defs[number] for number in np.unique(readings["series"]).tolist() if number in defs]
    for at in range(0, len(used), _DEFS_PER_FRAME):
        yield SeriesDefs(used[at : at + _DEFS_PER_FRAME])
    if len(used) < len(defs):
        known = np.isin(readings["series"], np.array([series.id for series in used], np.uint32))
        readings = {name: column[known] for name, column in readings.items()}
    for part in _pieces(readings):
        yield Readings(**part)
    pids = {series.pid for series in used if series.pid is not None}
    groups: dict[int, tuple[TablesView, list[_Kind]]] = {}
    for kind, blocks in tagged.items():
        for view, rows in blocks:
            groups.setdefault(view.generation, (view, []))[1].append((kind, rows.columns))
    if pids and current.generation not in groups:
        groups[current.generation] = (current, [])
    for number, generation in enumerate(sorted(groups)):
        yield from _generation(number, *groups[generation], pids)


def _pieces(columns: dict[str, Array]) -> Iterator[dict[str, Array]]:
    length = len(next(iter(columns.values())))
    for at in range(0, length, _ROWS_PER_FRAME):
        yield {name: column[at : at + _ROWS_PER_FRAME] for name, column in columns.items()}


def _generation(number: int, view: TablesView, kinds: list[_Kind], pids: set[int]) -> Iterator[Frame]:
    every = [columns for _, columns in kinds]
    below = [columns["nvtx"] for columns in every if "nvtx" in columns]
    stacks = _unique([*(columns["stack"] for columns in every), *below])
    wakers = _unique(columns["waker"] for columns in every if "waker" in columns)
    threads = np.union1d(_unique(columns["thread"] for columns in every), wakers[wakers != NO_THREAD])
    with_readings = [index for index, process in enumerate(list(view.processes)) if process.pid in pids]
    processes = np.union1d(view.thread_process[threads], np.array(with_readings, np.uint32)).astype(np.uint32)
    yield from _people(number, view, processes, threads)
    trie = _Trie(view, stacks, _unique(columns["gpu"] for columns in every if "gpu" in columns))
    yield from trie.definitions(number)
    for kind, columns in kinds:
        for part in _pieces(columns):
            part["thread"] = np.searchsorted(threads, part["thread"]).astype(np.uint32)
            part["stack"] = trie.new_id[part["stack"]]
            if "nvtx" in part:
                part["nvtx"] = trie.new_id[part["nvtx"]]
            if "gpu" in part:
                part["gpu"] = trie.text(part["gpu"])
            if "waker" in part:
                ours = np.searchsorted(threads, part["waker"]).astype(np.uint32)
                part["waker"] = np.where(part["waker"] == NO_THREAD, np.uint32(NO_THREAD), ours)
            yield kind(number, **part)  # type: ignore[call-arg]


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
    smaller), with the strings that it and `more_strings` need.
    """

    view: TablesView
    nodes: Array  # old ids, node 0 among them
    new_id: Array  # u32 by old id
    frame_ids: Array
    function_ids: Array
    string_ids: Array  # old ids, sorted, 0 among them

    def __init__(self, view: TablesView, stacks: Array, more_strings: Array) -> None:
        self.view = view
        mask = ancestors(view.parent, stacks)
        self.nodes = np.flatnonzero(mask)
        self.new_id = (np.cumsum(mask) - 1).astype(np.uint32)
        self.frame_ids = np.unique(view.frame[self.nodes[1:]])
        self.function_ids = np.unique(view.frame_function[self.frame_ids])
        columns = [column[self.function_ids] for column in (view.name, view.file, view.binary)]
        self.string_ids = np.unique(np.concatenate([*columns, more_strings, [0]]))

    def text(self, column: Array) -> Array:
        """Return the new ids of old string ids."""
        return np.searchsorted(self.string_ids, column).astype(np.uint32)

    def definitions(self, number: int) -> Iterator[Frame]:
        """Yield strings, functions, frames and stacks, each numbered from 0."""
        view, nodes = self.view, self.nodes[1:]
        frame_ids, function_ids, text = self.frame_ids, self.function_ids, self.text
        texts = [view.strings[index] for index in self.string_ids.tolist()]
        for at in range(1, len(texts), _DEFS_PER_FRAME):
            yield StringDefs(number, at, texts[at : at + _DEFS_PER_FRAME])

        columns = {
            "name": text(view.name[function_ids]),
            "file": text(view.file[function_ids]),
            "binary": text(view.binary[function_ids]),
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


def _unique(columns: Iterable[Array]) -> Array:
    parts = [np.unique(column) for column in columns]
    return np.unique(np.concatenate(parts)) if parts else np.empty(0, np.uint32)
