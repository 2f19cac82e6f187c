"""Rows folded into a tree: weights by stack, summed up the prefix tree of stacks, level by level and without
recursion.

Tree: root -> process -> [thread] -> frames. The fold is in three steps: weights by (group, stack), where a
group is a process or a thread; sums for all callers, from the deepest level up; and, where rows come from
several generations of tables, a merge by names from the top down (tree_parts.py). hiding.py then takes
internal rows out, process_groups.py merges small processes of one name, and tree.py cuts and orders the
result.
Where weights are estimates, their variances are summed along with them (estimates.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gpuprof.snapshots import bottom_up, hiding, process_groups, time_share, tree
from gpuprof.snapshots.columns import Array, Rows
from gpuprof.snapshots.estimates import Groups, Sampled
from gpuprof.snapshots.frames import NOT_SEEN, STACK_NOT_TAKEN, UNMATCHED_LAUNCH, FrameKind, Query, Tree
from gpuprof.snapshots.levels import Pairs, compact, summed
from gpuprof.snapshots.row_labels import Labels
from gpuprof.snapshots.table_view import TablesView, TaggedRows
from gpuprof.snapshots.time_share import Clustered
from gpuprof.snapshots.tree_nodes import Nodes
from gpuprof.snapshots.tree_parts import Level, Part, joined

__all__ = [
    "Folded",
    "Weighed",
    "by_tables",
    "compact",
    "cpu_tree",
    "cut",
    "folded",
    "is_cut_short",
    "thread_mask",
    "tree_of",
]

_NOT_CUT_SHORT = {UNMATCHED_LAUNCH, STACK_NOT_TAKEN, NOT_SEEN}  # outermost frames that say something else


@dataclass(frozen=True, slots=True)
class Weighed:
    """Rows to be folded, of one generation of tables: thread and stack of each, and its weight (None: 1).

    `variance`: of each row's weight, where that is an estimate of its own; `sampled`: more rows, which share
    totals that are exact; `clustered`: the windows that rows, then sampled ones, were recorded in; `bytes`:
    what rows, then sampled ones, have moved.
    """

    view: TablesView
    thread: Array
    stack: Array
    weight: Array | None = None
    variance: Array | None = None
    sampled: Sampled | None = None
    clustered: Clustered | None = None
    bytes: Array | None = None

    def __len__(self) -> int:
        return len(self.thread) + (len(self.sampled) if self.sampled is not None else 0)


@dataclass(frozen=True, slots=True)
class Folded:
    """All rows of a tree, before any is cut: `people` names the processes and threads, by label; `truncated`
    is the weight below stacks that were cut short.
    """

    nodes: Nodes
    people: dict[int, str]
    truncated: int


def folded(parts: Iterable[Weighed], *, by_thread: bool, merge: bool = False) -> Folded:
    """Return rows folded; several generations of tables become one.

    `merge`: equal paths may have different stack ids (grafts.py), and are to be one row.
    """
    labels = Labels()
    levels = [_fold(rows, by_thread=by_thread, labels=labels) for rows in parts if len(rows)]
    nodes = joined(levels, labels, merge=merge)
    return Folded(nodes, labels.people, _truncated(nodes, 2 if by_thread else 1))


def cut(query: Query, all_rows: Folded, *, name: str, unit: str) -> Tree:
    """Return the tree that a query asks for. Internal rows go first, small ones last (hiding.py)."""
    shown = None if query.internals else hiding.without_internals(all_rows.nodes)
    nodes = process_groups.grouped(
        all_rows.nodes if shown is None else shown.nodes,
        all_rows.people,
        min_fraction=query.min_fraction,
        max_nodes=query.max_nodes,
    )
    built = tree.build(
        bottom_up.bottom_up(nodes) if query.bottom_up else nodes,
        query_id=query.id,
        name=name,
        unit=unit,
        start_ns=query.start_ns,
        end_ns=query.end_ns,
        truncated=all_rows.truncated,
        min_fraction=query.min_fraction,
        max_nodes=query.max_nodes,
    )
    return replace(built, hidden=None if shown is None else shown.hidden, bottom_up=query.bottom_up)


def tree_of(query: Query, parts: Iterable[Weighed], *, name: str, unit: str) -> Tree:
    """Return rows folded into the tree that a query asks for."""
    return cut(query, folded(parts, by_thread=query.by_thread), name=name, unit=unit)


def cpu_tree(query: Query, samples: Sequence[TaggedRows]) -> Tree:
    """Return the answer to a query of CPU samples: every row weighs 1. `samples`: rows of the query's
    range.
    """
    parts = [Weighed(view, *_filtered(query, view, blocks)) for view, blocks in by_tables(samples)]
    return tree_of(query, parts, name="cpu", unit="samples")


def by_tables(rows: Iterable[TaggedRows]) -> Iterable[tuple[TablesView, list[Rows]]]:
    """Return the blocks of each generation of tables together."""
    found: dict[int, tuple[TablesView, list[Rows]]] = {}
    for view, block in rows:
        found.setdefault(view.generation, (view, []))[1].append(block)
    return found.values()


# ---------------------------------------------------------------------------------------------------- filters


def thread_mask(query: Query, view: TablesView) -> Array | None:
    """Return a mask over thread ids of those that pass the pid and tid filters, None when there are none."""
    threads: Array | None = None
    if query.pids:
        pids = set(query.pids)
        wanted = np.array([process.pid in pids for process in list(view.processes)], np.bool_)
        threads = wanted[view.thread_process]
    if query.tids:
        tids = np.isin(view.thread_tid, _u32(query.tids))
        threads = tids if threads is None else threads & tids
    return threads


def _filtered(query: Query, view: TablesView, blocks: Iterable[Rows]) -> tuple[Array, Array]:
    """Return the thread and stack columns of the rows that pass the filters."""
    threads = thread_mask(query, view)
    cpus = np.zeros(1 << 16, np.bool_) if query.cpus else None
    if cpus is not None:
        cpus[[cpu for cpu in query.cpus if 0 <= cpu < len(cpus)]] = True
    thread_parts: list[Array] = []
    stack_parts: list[Array] = []
    for rows in blocks:
        thread, stack = rows.columns["thread"], rows.columns["stack"]
        keep = None if threads is None else threads[thread]
        if cpus is not None:
            on_cpu = cpus[rows.columns["cpu"]]
            keep = on_cpu if keep is None else keep & on_cpu
        thread_parts.append(thread if keep is None else thread[keep])
        stack_parts.append(stack if keep is None else stack[keep])
    return np.concatenate(thread_parts), np.concatenate(stack_parts)


def _u32(numbers: list[int]) -> Array:
    return np.array([number for number in numbers if 0 <= number <= 0xFFFF_FFFF], np.uint32)


# ------------------------------------------------------------------------------------------------------- fold


def _fold(rows: Weighed, *, by_thread: bool, labels: Labels) -> Part:
    """Return the levels of the tree of these rows, from the processes down."""
    view, thread, stack, weight = rows.view, rows.thread, rows.stack, rows.weight
    sampled = rows.sampled if rows.sampled is not None and len(rows.sampled) else None
    if sampled is not None:
        own = np.ones(len(thread)) if weight is None else weight
        thread, stack, weight = (
            np.concatenate(pair)
            for pair in ((thread, sampled.thread), (stack, sampled.stack), (own, sampled.part))
        )
    used_threads, group_of_row = compact(thread, len(view.thread_process))
    groups = used_threads
    if not by_thread:
        groups, of_thread = np.unique(view.thread_process[used_threads], return_inverse=True)
        group_of_row = of_thread.astype(np.intp)[group_of_row]
    own_variance: Array | None = None
    if rows.variance is not None and (rows.variance > 0).any():
        own_variance = np.zeros(len(stack))
        own_variance[: len(rows.thread)] = rows.variance
    levels = summed(view, len(groups), group_of_row, stack, weight, more=own_variance)
    frame_labels = labels.of_frames(view, levels)
    part: Part = []
    for depth, level in enumerate(levels):
        label = frame_labels[view.frame[level.node]] if depth else level.group  # level 0 is relabelled below
        varies = None if level.more is None else level.more > 0
        part.append(Level(level.parent, label, level.self_weight, level.total_weight, level.more, varies))
    if rows.bytes is not None and rows.bytes.any():
        _add_bytes(view, levels, part, group_of_row, stack, moved=rows.bytes)
    process_variance = part[0].variance
    if sampled is not None:
        _sampled_variance(view, levels, part, sampled, group_of_row[len(rows.thread) :])
    if rows.clustered is not None and weight is not None:
        found = time_share.add_variance(
            view, levels, group_of_row, stack, weight=weight, clustered=rows.clustered
        )
        for made, more in zip(part, found, strict=True):
            _add_variance(made, more, ~(more == 0))
        process_variance = part[0].variance
    if by_thread:
        owners, of_group = np.unique(view.thread_process[groups], return_inverse=True)
        part[0].parent = of_group.astype(np.intp)[levels[0].group]
        part[0].label = np.array([labels.of_thread(view, int(groups[g])) for g in levels[0].group], np.intp)
        sums = np.bincount(part[0].parent, part[0].total_weight, len(owners))
        processes = Level(np.zeros(len(owners), np.intp), owners, np.zeros(len(owners)), sums)
        if process_variance is not None:
            processes.variance = np.bincount(part[0].parent, process_variance, len(owners))
            processes.estimated = ~(processes.variance == 0)
        if part[0].bytes is not None:
            processes.bytes = np.bincount(part[0].parent, part[0].bytes, len(owners))
        part.insert(0, processes)
        ids = owners
    else:
        ids = groups[levels[0].group]
    part[0].label = np.array([labels.of_process(view, int(index)) for index in ids], np.intp)
    part[0].parent = np.zeros(len(ids), np.intp)
    return part


def _sampled_variance(
    view: TablesView, levels: list[Pairs], part: Part, sampled: Sampled, people: Array
) -> None:
    """Add to the levels the variance of what was divided by samples. `people`: the process or thread of each
    sampled row, as the index that the levels have.
    """
    groups = Groups.of(sampled)
    wide = int(people.max()) + 1
    pairs, of_row = np.unique(sampled.group.astype(np.int64) * wide + people, return_inverse=True)
    group_of, person_of = np.divmod(pairs, wide)
    of_row = of_row.reshape(-1)
    size = len(view.parent)
    for depth, found in enumerate(
        summed(view, len(pairs), of_row, sampled.stack, sampled.part, more=sampled.noise)
    ):
        assert found.more is not None
        level, at = part[depth], levels[depth]
        variance = groups.variance(group_of[found.group], found.total_weight, found.more, inside=bool(depth))
        place = np.searchsorted(at.group * size + at.node, person_of[found.group] * size + found.node)
        count = len(at.node)
        together = np.bincount(place, variance, count)
        marked = np.bincount(place, variance > 0 if not depth else None, count) > 0
        _add_variance(level, together, marked)


def _add_bytes(
    view: TablesView, levels: list[Pairs], part: Part, people: Array, stack: Array, *, moved: Array
) -> None:
    """Give the levels the bytes that rows have moved. `people`: the group of each row, as of the levels."""
    copies = np.flatnonzero(moved)
    size = len(view.parent)
    found = summed(view, int(people.max()) + 1, people[copies], stack[copies], moved[copies])
    for made, at, below in zip(part, levels, found, strict=False):
        place = np.searchsorted(at.group * size + at.node, below.group * size + below.node)
        made.bytes = np.bincount(place, below.total_weight, len(at.node))


def _add_variance(level: Level, variance: Array, marked: Array) -> None:
    level.variance = variance if level.variance is None else level.variance + variance
    level.estimated = marked if level.estimated is None else level.estimated | marked


def is_cut_short(view: TablesView, function: int) -> bool:
    """Tell whether a function, as the outermost of a stack, says that the walk did not reach the root."""
    name = view.strings[int(view.name[function])]
    return int(view.kind[function]) == FrameKind.UNKNOWN and name not in _NOT_CUT_SHORT


def _truncated(nodes: Nodes, people: int) -> int:
    """Return the weight of stacks whose outermost frame says that the walk did not reach the root."""
    unknown = np.array(
        [label[4] == FrameKind.UNKNOWN and label[0] not in _NOT_CUT_SHORT for label in nodes.labels], np.bool_
    )
    return int(nodes.total_weight[(nodes.depth == people + 1) & unknown[nodes.label]].sum())
