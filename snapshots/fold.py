"""Rows folded into a tree: weights by stack, summed up the prefix tree of stacks, level by level and without
recursion.

Tree: root -> process -> [thread] -> frames. The fold is in three steps: weights by (group, stack), where a
group is a process or a thread; sums for all callers, from the deepest level up; and, where rows come from
several generations of tables, a merge by names from the top down. tree.py then cuts and orders the result.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from gpuprof.snapshots import tree
from gpuprof.snapshots.columns import Array, Rows
from gpuprof.snapshots.frames import UNMATCHED_LAUNCH, FrameKind, Query, Tree
from gpuprof.snapshots.table_view import TablesView, TaggedRows, frame_label

Label = tuple[str, str, str, int, int]  # name, file, binary, line, kind
_DENSE_KEYS = 1 << 22


@dataclass(slots=True)
class Nodes:
    """A tree as columns, parents before children: node 0 is the root and its own parent; `label` indexes
    `labels`.
    """

    parent: Array
    label: Array
    depth: Array
    self_weight: Array
    total_weight: Array
    labels: list[Label]


@dataclass(frozen=True, slots=True)
class Weighed:
    """Rows to be folded, of one generation of tables: thread and stack of each, and its weight (None: 1)."""

    view: TablesView
    thread: Array
    stack: Array
    weight: Array | None = None


def tree_of(query: Query, parts: Iterable[Weighed], *, name: str, unit: str) -> Tree:
    """Return rows folded into the tree that a query asks for; several generations of tables become one."""
    labels = _Labels()
    levels = [
        _fold(rows.view, rows.thread, rows.stack, rows.weight, by_thread=query.by_thread, labels=labels)
        for rows in parts
        if len(rows.thread)
    ]
    nodes = _joined(levels, labels)
    return tree.build(
        nodes,
        query_id=query.id,
        name=name,
        unit=unit,
        start_ns=query.start_ns,
        end_ns=query.end_ns,
        truncated=_truncated(nodes, 2 if query.by_thread else 1),
        min_fraction=query.min_fraction,
        max_nodes=query.max_nodes,
    )


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


@dataclass(slots=True)
class _Labels:
    """Labels of tree rows, each once; the same across generations."""

    items: list[Label] = field(default_factory=lambda: [("all", "", "", 0, int(FrameKind.ROOT))])
    ids: dict[object, int] = field(default_factory=dict)

    def of(self, label: Label, key: object = None) -> int:
        key = label if key is None else key
        found = self.ids.get(key)
        if found is None:
            found = self.ids[key] = len(self.items)
            self.items.append(label)
        return found


@dataclass(slots=True)
class _Level:
    """The rows of one depth. `parent` indexes the level above."""

    parent: Array
    label: Array
    self_weight: Array
    total_weight: Array


_Part = list[_Level]  # level 0: processes; then threads, where asked for; then frames


def _fold(
    view: TablesView, thread: Array, stack: Array, weight: Array | None, *, by_thread: bool, labels: _Labels
) -> _Part:
    """Return the levels of the tree of these rows, from the processes down."""
    used_threads, group_of_row = compact(thread, len(view.thread_process))
    groups = used_threads
    if not by_thread:
        groups, of_thread = np.unique(view.thread_process[used_threads], return_inverse=True)
        group_of_row = of_thread.astype(np.intp)[group_of_row]
    group, node, total = _weights(view, groups, group_of_row, stack, weight)
    levels = _levels(view, group, node, total)
    frame_labels = _frame_labels(view, levels, labels)
    part: _Part = []
    for depth, level in enumerate(levels):
        label = frame_labels[view.frame[level.node]] if depth else level.group  # level 0 is relabelled below
        part.append(_Level(level.parent, label, level.self_weight, level.total_weight))
    if by_thread:
        owners, of_group = np.unique(view.thread_process[groups], return_inverse=True)
        part[0].parent = of_group.astype(np.intp)[levels[0].group]
        part[0].label = np.array(
            [_thread_label(view, int(groups[g]), labels) for g in levels[0].group], np.intp
        )
        sums = np.bincount(part[0].parent, part[0].total_weight, len(owners))
        processes = _Level(np.zeros(len(owners), np.intp), owners, np.zeros(len(owners)), sums)
        part.insert(0, processes)
        ids = owners
    else:
        ids = groups[levels[0].group]
    part[0].label = np.array([_process_label(view, int(index), labels) for index in ids], np.intp)
    part[0].parent = np.zeros(len(ids), np.intp)
    return part


def compact(column: Array, length: int) -> tuple[Array, Array]:
    """Return the distinct values of a column of ids below `length`, sorted, and for each row the index of
    its value.
    """
    present = np.zeros(length, np.bool_)
    present[column] = True
    values = np.flatnonzero(present)
    index = np.zeros(length, np.intp)
    index[values] = np.arange(len(values))
    return values, index[column]


def _weights(
    view: TablesView, groups: Array, group_of_row: Array, stack: Array, weight: Array | None
) -> tuple[Array, Array, Array]:
    """Return group index, stack and summed weight of every pair that occurs."""
    stacks, stack_of_row = compact(stack, len(view.parent))
    keys = group_of_row * len(stacks) + stack_of_row
    if len(groups) * len(stacks) <= _DENSE_KEYS:
        sums = np.bincount(keys, weight, len(groups) * len(stacks))
        pairs = np.flatnonzero(sums if weight is None else np.bincount(keys, None, len(sums)))
        total = sums[pairs].astype(np.float64)
    else:
        pairs, inverse = np.unique(keys, return_inverse=True)
        total = np.bincount(inverse, weight, len(pairs)).astype(np.float64)
    group, index = np.divmod(pairs, len(stacks))
    return group, stacks[index], total


@dataclass(slots=True)
class _Pairs:
    """All (group, node) of one depth, sorted; `parent` indexes the depth above."""

    group: Array
    node: Array
    parent: Array
    self_weight: Array
    total_weight: Array


def _levels(view: TablesView, group: Array, node: Array, weight: Array) -> list[_Pairs]:
    """Sum the weights of stacks up to the empty stack; return the pairs by depth, level 0 being the
    groups.
    """
    size = len(view.parent)
    keys = group.astype(np.int64) * size + node
    depth = view.depth[node]
    order = np.argsort(depth, kind="stable")
    keys, weight, depth = keys[order], weight[order], depth[order]
    deepest = int(depth[-1])
    bounds = np.searchsorted(depth, np.arange(deepest + 2))
    levels: list[_Pairs] = []
    above_keys = np.empty(0, np.int64)  # parents of the level below, one per pair of it
    above_totals: Array = np.empty(0)
    for level in range(deepest, -1, -1):
        leaf = slice(bounds[level], bounds[level + 1])
        leaf_keys, leaf_weights = keys[leaf], weight[leaf]
        merged, inverse = np.unique(np.concatenate([leaf_keys, above_keys]), return_inverse=True)
        inverse = inverse.reshape(-1)
        own = np.bincount(inverse[: len(leaf_keys)], leaf_weights, len(merged))
        total = own + np.bincount(inverse[len(leaf_keys) :], above_totals, len(merged))
        if levels:
            levels[-1].parent = inverse[len(leaf_keys) :]
        group_at, node_at = np.divmod(merged, size)
        levels.append(_Pairs(group_at, node_at, np.zeros(len(merged), np.intp), own, total))
        above_keys = group_at * size + view.parent[node_at]
        above_totals = total
    levels.reverse()
    return levels


def _frame_labels(view: TablesView, levels: list[_Pairs], labels: _Labels) -> Array:
    """Return the label of every frame that the levels use, by frame id."""
    used = np.zeros(len(view.frame_line), np.bool_)
    for level in levels[1:]:
        used[view.frame[level.node]] = True
    found = np.zeros(len(used), np.intp)
    for frame in np.flatnonzero(used).tolist():
        found[frame] = labels.of(frame_label(view, frame))
    return found


def _process_label(view: TablesView, index: int, labels: _Labels) -> int:
    process = view.processes[index]
    label = (f"{process.name} ({process.pid})", "", "", 0, int(FrameKind.PROCESS))
    return labels.of(label, ("process", process.pid, process.start_ns))


def _thread_label(view: TablesView, index: int, labels: _Labels) -> int:
    thread = view.threads[index]
    return labels.of((f"{thread.name} ({thread.tid})", "", "", 0, int(FrameKind.THREAD)))


# ------------------------------------------------------------------------------------------------------- join


def _joined(parts: list[_Part], labels: _Labels) -> Nodes:
    """Merge parts from the top down: rows with the same label under the same parent are one. Adds the
    root.
    """
    root = np.zeros(1, np.intp)
    weight = sum((float(part[0].total_weight.sum()) for part in parts), 0.0)
    columns: list[tuple[Array, Array, int, Array, Array]] = [(root, root, 0, np.zeros(1), np.full(1, weight))]
    positions: list[Array] = [root] * len(parts)  # for each part, where the rows of its last level went
    first = 0  # number of the first row of the last level
    for depth in range(max(map(len, parts), default=0)):
        here = [(index, part[depth]) for index, part in enumerate(parts) if depth < len(part)]
        parents = np.concatenate([positions[index][level.parent] for index, level in here])
        own = np.concatenate([level.self_weight for _, level in here])
        total = np.concatenate([level.total_weight for _, level in here])
        label = np.concatenate([level.label for _, level in here])
        if len(parts) == 1:
            inverse = np.arange(len(label))
            merged_parent, merged_label = parents, label
        else:
            keys = (parents - first).astype(np.int64) * len(labels.items) + label
            merged, inverse = np.unique(keys, return_inverse=True)
            inverse = inverse.reshape(-1)
            merged_parent, merged_label = np.divmod(merged, len(labels.items))
            merged_parent = merged_parent + first
            own = np.bincount(inverse, own, len(merged))
            total = np.bincount(inverse, total, len(merged))
        first += len(columns[-1][0])
        columns.append((merged_parent, merged_label, depth + 1, own, total))
        at = 0
        for index, level in here:
            positions[index] = first + inverse[at : at + len(level.label)]
            at += len(level.label)
    return Nodes(
        np.concatenate([column[0] for column in columns]),
        np.concatenate([column[1] for column in columns]),
        np.concatenate([np.full(len(column[0]), column[2], np.intp) for column in columns]),
        np.concatenate([column[3] for column in columns]),
        np.concatenate([column[4] for column in columns]),
        labels.items,
    )


def _truncated(nodes: Nodes, people: int) -> int:
    """Return the weight of stacks whose outermost frame says that the walk did not reach the root."""
    unknown = np.array(
        [label[4] == FrameKind.UNKNOWN and label[0] != UNMATCHED_LAUNCH for label in nodes.labels], np.bool_
    )
    return int(nodes.total_weight[(nodes.depth == people + 1) & unknown[nodes.label]].sum())
