"""The tree of off-CPU time of a range: who waited, in which code, for what, and who ended the wait.

The weight of a row is its overlap with the range, in ns, times the number of such waits that it stands for.
Inside a synchronizing call of CUDA (WaitKind.SYNC) the call is the wait: what the same thread's BLOCKED and
RUNNABLE rows cover of it is not counted again. A stack has the frames of the thread, a frame of kind WAIT
that names the wait, and, where the waker is known, a frame of kind WAIT named "woken by ..." with its stack.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gpuprof.snapshots import fold, gaps
from gpuprof.snapshots.columns import Array, Rows
from gpuprof.snapshots.estimates import sampled_noise
from gpuprof.snapshots.frames import Query, Tree, WaitKind
from gpuprof.snapshots.gpu_tree import SUMMARY_SEPARATOR
from gpuprof.snapshots.names import clean
from gpuprof.snapshots.people import People
from gpuprof.snapshots.table_view import TablesView, TaggedRows
from gpuprof.snapshots.timerange import duration_text
from gpuprof.snapshots.wait_slices import PersonRows, wait_nodes, with_wakers

_MAX_NAMED = 3  # processes, and waits of each, that a summary names
_LEAST_SHARE = 0.05  # of a wait that is named
_COLUMNS = ("start_ns", "end_ns", "thread", "stack", "waker", "weight", "kind")
WOKEN_BY = "woken by "

_Process = tuple[int, int]  # pid and start time


@dataclass(slots=True)
class WaitPart:
    """Waits of one generation of tables: their columns, who waited (People), and what of each lies in the
    range and in no synchronizing call around it, in ns (i64).
    """

    view: TablesView
    columns: dict[str, Array]
    person: Array
    inside_ns: Array

    def __len__(self) -> int:
        return len(self.person)


def wait_parts(
    waits: Sequence[TaggedRows], start_ns: int, end_ns: int, people: People, query: Query | None = None
) -> list[WaitPart]:
    """Return waits that touch [start_ns, end_ns) generation by generation, those of a query's pids and tids
    where one is given. Slices behind the range (wait_slices.later) may be among them, for their wakers.
    """
    rows = []
    for view, blocks in fold.by_tables(waits):
        columns = _columns(view, blocks, query)
        rows.append(PersonRows(view, columns, people.of(view, columns["thread"])))
    parts = []
    for told in with_wakers(rows):
        inside = gaps.lengths(told.columns["start_ns"], told.columns["end_ns"], start_ns, end_ns)
        parts.append(WaitPart(told.view, told.columns, told.person, inside))
    _take_out_calls(parts, start_ns, end_ns, len(people))
    return parts


def _columns(view: TablesView, blocks: Sequence[Rows], query: Query | None) -> dict[str, Array]:
    columns = {name: np.concatenate([rows.columns[name] for rows in blocks]) for name in _COLUMNS}
    threads = fold.thread_mask(query, view) if query is not None else None
    if threads is None:
        return columns
    keep = threads[columns["thread"]]
    return {name: column[keep] for name, column in columns.items()}


def _take_out_calls(parts: Sequence[WaitPart], start_ns: int, end_ns: int, people: int) -> None:
    """Take from the other rows of a thread what its synchronizing calls cover, of all threads at once: each
    thread has its own stretch of one long line of time.
    """
    calls = [part.columns["kind"] == WaitKind.SYNC for part in parts]
    if not any(mask.any() for mask in calls):
        return
    width = end_ns - start_ns
    if width <= 0 or people * width >= gaps.MAX_NS:
        return
    lines = []
    for part in parts:
        start, end = (
            np.clip(part.columns[name].astype(np.int64), start_ns, end_ns) - start_ns + part.person * width
            for name in ("start_ns", "end_ns")
        )
        lines.append((start, end))
    spans = gaps.union(
        np.concatenate([start[mask] for (start, _), mask in zip(lines, calls, strict=True)]),
        np.concatenate([end[mask] for (_, end), mask in zip(lines, calls, strict=True)]),
    )
    for part, (start, end), mask in zip(parts, lines, calls, strict=True):
        part.inside_ns = np.where(mask, part.inside_ns, part.inside_ns - spans.overlap(start, end))


def wait_tree(query: Query, waits: Sequence[TaggedRows]) -> Tree:
    """Return the answer to a query of off-CPU time. `waits`: as of wait_parts."""
    people = People()
    parts = wait_parts(waits, query.start_ns, query.end_ns, people, query)
    tree = fold.tree_of(query, map(_weighed, parts), name="offcpu", unit="ns")
    return replace(tree, summary=_summary(parts, people))


def _weighed(part: WaitPart) -> fold.Weighed:
    some = np.flatnonzero(part.inside_ns > 0)
    columns, inside = part.columns, part.inside_ns[some]
    weight = columns["weight"][some].astype(np.float64)
    variance = sampled_noise(weight, inside) if (weight > 1).any() else None
    return fold.Weighed(part.view, columns["thread"][some], columns["stack"][some], weight * inside, variance)


# ------------------------------------------------------------------------------------------------ wait frames


def node_names(view: TablesView, nodes: Array) -> list[str]:
    """Return the function names of the frames of stack nodes; "" for node 0."""
    names = view.name[view.frame_function[view.frame[nodes]]].tolist() if len(view.name) else [0] * len(nodes)
    some = (nodes > 0).tolist()
    return [view.strings[name] if is_some else "" for name, is_some in zip(names, some, strict=True)]


# --------------------------------------------------------------------------------------------------- in words


def _summary(parts: Sequence[WaitPart], people: People) -> str:
    """Return, for example: python3 (4711) waited 2.10 s of thread time: 61 % futex (woken by worker), …"""
    waited: dict[_Process, dict[str, float]] = {}
    woken: dict[tuple[_Process, str], dict[str, float]] = {}
    for part in parts:
        for who, kind, waker, ns in _sums(part, people):
            per = waited.setdefault(who, {})
            per[kind] = per.get(kind, 0.0) + ns
            if waker:
                by = woken.setdefault((who, kind), {})
                by[waker] = by.get(waker, 0.0) + ns
    names = {people.process_key(number): people.processes[number].name for number in range(len(people))}
    said = []
    for who, kinds_of in sorted(waited.items(), key=lambda item: (-sum(item[1].values()), item[0])):
        total = sum(kinds_of.values())
        if total <= 0:
            continue
        shares: list[str] = []
        for kind, ns in sorted(kinds_of.items(), key=lambda item: (-item[1], item[0]))[:_MAX_NAMED]:
            if ns < _LEAST_SHARE * total and shares:
                break
            by = woken.get((who, kind), {})
            waker = max(by, key=lambda name: (by[name], name), default="")
            most = f" ({clean(waker, 40)})" if waker and by[waker] >= ns / 2 else ""
            shares.append(f"{100 * ns / total:.0f} % {clean(kind, 40)}{most}")
        head = f"{clean(names[who], 40)} ({who[0]}) waited {duration_text(round(total))} of thread time"
        said.append(f"{head}: {', '.join(shares)}")
    if len(said) > _MAX_NAMED:
        said = [*said[:_MAX_NAMED], f"{len(said) - _MAX_NAMED} more processes"]
    return SUMMARY_SEPARATOR.join(said)


def _sums(part: WaitPart, people: People) -> Iterator[tuple[_Process, str, str, float]]:
    """Yield process, wait, waker ("": not known) and ns of what waits of one generation add up to."""
    keys = [people.process_key(number) for number in range(len(people))]
    processes = list(dict.fromkeys(keys))
    place = {key: number for number, key in enumerate(processes)}
    process = np.array([place[key] for key in keys], np.int64)[part.person]
    stacks, of_row = fold.compact(part.columns["stack"], len(part.view.parent))
    nodes = wait_nodes(part.view, stacks)
    waits, wait_of = np.unique(node_names(part.view, nodes.wait), return_inverse=True)
    wakers, waker_of = np.unique(node_names(part.view, nodes.woken), return_inverse=True)
    of_stack = wait_of.reshape(-1) * len(wakers) + waker_of.reshape(-1)
    pairs, pair_of = np.unique(of_stack, return_inverse=True)
    key = process * len(pairs) + pair_of.reshape(-1)[of_row]
    sums = np.bincount(key, part.inside_ns * part.columns["weight"].astype(np.float64))
    for number in np.flatnonzero(sums).tolist():
        who, pair = divmod(number, len(pairs))
        wait, waker = divmod(int(pairs[pair]), len(wakers))
        yield (
            processes[who],
            str(waits[wait]) or "not known for what",
            str(wakers[waker]),
            float(sums[number]),
        )
