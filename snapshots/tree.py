"""Trees as frames: cut to what can be seen, ordered, and read back row by row.

Rows are in preorder, children by falling total (ties by name). Siblings below the threshold are summed in
one row of kind OTHER named "other (n)", the last of its siblings, so that a row's total is always its own
weight and its children's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.snapshots.columns import Array
from gpuprof.snapshots.errors import FrameError
from gpuprof.snapshots.frames import FrameKind, Tree

if TYPE_CHECKING:
    from gpuprof.snapshots.tree_nodes import Label, Nodes

_OTHER = int(FrameKind.OTHER)


def build(
    nodes: Nodes,
    *,
    query_id: int,
    name: str,
    unit: str,
    start_ns: int,
    end_ns: int,
    truncated: int,
    min_fraction: float,
    max_nodes: int,
) -> Tree:
    """Return `nodes` as a Tree without the rows below `min_fraction` of the root, and of at most `max_nodes`
    rows.
    """
    rows, labels = _cut(nodes, min_fraction, max_nodes)
    order, parent = _preorder(rows.parent, rows.label, rows.depth, rows.total, labels)
    label, own, total = rows.label[order], rows.own[order], rows.total[order]
    texts = [""]
    ids = {"": 0}

    def text(value: str) -> int:
        found = ids.get(value)
        if found is None:
            found = ids[value] = len(texts)
            texts.append(value)
        return found

    used = np.unique(label)
    index = np.zeros(len(labels), np.intp)
    index[used] = np.arange(len(used))
    index = index[label]
    named = [labels[number] for number in used.tolist()]
    columns = [np.array([text(row[at]) for row in named], np.uint32) for at in range(3)]
    lines = np.array([row[3] for row in named], np.uint32)
    kinds = np.array([row[4] for row in named], np.uint8)
    built = Tree(
        query_id,
        name,
        unit,
        start_ns,
        end_ns,
        texts,
        parent.astype(np.uint32),
        columns[0][index],
        columns[1][index],
        columns[2][index],
        lines[index],
        kinds[index],
        own,
        total,
        truncated=truncated,
    )
    if rows.bytes is not None:
        built = replace(built, bytes=rows.bytes[order])
    if rows.variance is None or rows.estimated is None:
        return built
    estimated = rows.estimated[order]
    error = np.where(estimated, np.sqrt(rows.variance[order]), np.nan)
    return replace(built, estimated=estimated.astype(np.uint8), error=error)


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows that stay, as columns; the two of estimates are None where all is exact, `bytes` where nothing
    was copied.
    """

    parent: Array
    label: Array
    depth: Array
    own: Array
    total: Array
    variance: Array | None
    estimated: Array | None
    bytes: Array | None


def rows_kept(nodes: Nodes, min_fraction: float, max_nodes: int) -> tuple[Array, float]:
    """Return a mask of the rows that are large enough to stay, and the least total of such a row.

    `min_fraction` of the root, or more where there would be more than `max_nodes` rows.
    """
    total = nodes.total_weight
    limit = float(total[0]) * min(max(min_fraction, 0.0), 1.0)
    max_nodes = max(max_nodes, 2)
    keep = total >= limit
    keep[0] = True
    while (rows := _row_count(nodes.parent, keep)) > max_nodes:
        # a larger threshold cuts whole ranks of equals, so that what is shown does not depend on the order
        # of rows
        ranked = np.sort(total[keep])[::-1]
        aim = max(1, int(len(ranked) * max_nodes / rows) - 1)
        largest_gone = ranked[min(aim, len(ranked) - 1)]
        keep = total > largest_gone
        keep[0] = True
        limit = float(np.nextafter(largest_gone, np.inf))
    return keep, limit


def _cut(nodes: Nodes, min_fraction: float, max_nodes: int) -> tuple[_Rows, list[Label]]:
    """Return the rows that stay with the "other (n)" rows, and the labels."""
    total = nodes.total_weight
    keep, _ = rows_kept(nodes, min_fraction, max_nodes)
    gone_top = np.flatnonzero(~keep & keep[nodes.parent])  # the highest of what goes
    at = nodes.parent[gone_top]
    counts = np.bincount(at, minlength=len(total))
    sums = np.bincount(at, total[gone_top], len(total))
    with_other = np.flatnonzero(counts)
    labels = list(nodes.labels)
    by_count: dict[int, int] = {}
    for count in counts[with_other].tolist():
        if count not in by_count:
            by_count[count] = len(labels)
            labels.append((f"other ({count})", "", "", 0, _OTHER))
    other_label = np.array([by_count[count] for count in counts[with_other].tolist()], np.intp)
    kept = np.flatnonzero(keep)
    place = np.cumsum(keep) - 1
    parent = np.concatenate([place[nodes.parent[kept]], place[with_other]])
    label = np.concatenate([nodes.label[kept], other_label])
    depth = np.concatenate([nodes.depth[kept], nodes.depth[with_other] + 1])
    own = np.concatenate([nodes.self_weight[kept], sums[with_other]])
    variance = estimated = None
    if nodes.variance is not None and nodes.estimated is not None:
        # siblings that share a total vary against each other, so that their sum varies less than this says
        spread = np.bincount(at, nodes.variance[gone_top], len(total))
        marked = np.bincount(at, nodes.estimated[gone_top], len(total)) > 0
        variance = np.concatenate([nodes.variance[kept], spread[with_other]])
        estimated = np.concatenate([nodes.estimated[kept], marked[with_other]])
    moved = None
    if nodes.bytes is not None:
        cut = np.bincount(at, nodes.bytes[gone_top], len(total))
        moved = np.concatenate([nodes.bytes[kept], cut[with_other]])
    total = np.concatenate([total[kept], sums[with_other]])
    return _Rows(parent, label, depth, own, total, variance, estimated, moved), labels


def _row_count(parent: Array, keep: Array) -> int:
    """Return how many rows there are with the "other" rows: one for each kept parent of something that
    goes.
    """
    gone = ~keep & keep[parent]
    return int(np.count_nonzero(keep)) + len(np.unique(parent[gone]))


def _preorder(
    parent: Array, label: Array, depth: Array, total: Array, labels: list[Label]
) -> tuple[Array, Array]:
    """Return the rows in preorder, and the parent of each in that order."""
    count = len(parent)
    names = np.unique(label).tolist()
    rank = np.zeros(len(labels), np.intp)
    for place, number in enumerate(sorted(names, key=lambda number: labels[number])):
        rank[number] = place
    last = np.array([kind == _OTHER for *_, kind in labels], np.bool_)[label]
    by_depth = np.argsort(depth, kind="stable")
    bounds = np.searchsorted(depth[by_depth], np.arange(int(depth.max()) + 2))
    size = np.ones(count, np.intp)
    for level in range(len(bounds) - 2, 0, -1):
        rows = by_depth[bounds[level] : bounds[level + 1]]
        np.add.at(size, parent[rows], size[rows])
    position = np.zeros(count, np.intp)
    for level in range(1, len(bounds) - 1):
        rows = by_depth[bounds[level] : bounds[level + 1]]
        rows = rows[np.lexsort((rank[label[rows]], -total[rows], last[rows], parent[rows]))]
        sizes = size[rows]
        before = np.cumsum(sizes) - sizes
        owner = parent[rows]
        begins = np.flatnonzero(np.concatenate([[True], owner[1:] != owner[:-1]]))
        offset = np.repeat(before[begins], np.diff(np.append(begins, len(rows))))
        position[rows] = position[owner] + 1 + before - offset
    order = np.empty(count, np.intp)
    order[position] = np.arange(count)
    return order, position[parent[order]]


@dataclass(frozen=True, slots=True)
class TreeRow:
    """One row of a tree. `depth` 0 is the root; `children` counts the direct ones; `error` is the standard
    error of an estimated total, None where it is not known; `bytes` were moved by copies and memsets.
    """

    index: int
    depth: int
    name: str
    file: str
    binary: str
    line: int
    kind: FrameKind
    self_weight: float
    total_weight: float
    children: int
    estimated: bool = False
    error: float | None = None
    bytes: float = 0.0

    @property
    def is_kernel(self) -> bool:
        """Whether `file` is the kernel's full name."""
        return self.kind in {FrameKind.GPU_KERNEL, FrameKind.GPU_COMM}


def depths(tree: Tree) -> Array:
    """Return the depth of every row (root 0), in one pass over the preorder. FrameError for a parent that is
    not before it.
    """
    check(tree)
    found = [0] * len(tree.parent)
    for row, parent in enumerate(tree.parent.tolist()):
        found[row] = found[parent] + 1 if row else 0
    return np.array(found, np.intp)


def check(tree: Tree) -> None:
    """Raise FrameError when a tree of another process is not what it has to be: parents first, texts in
    range.
    """
    count = len(tree.parent)
    if not count or int(tree.parent[0]) != 0 or (tree.parent[1:] >= np.arange(1, count)).any():
        raise FrameError("a tree whose rows are not below their parents")
    for column in (tree.name, tree.file, tree.binary):
        if int(column.max()) >= max(len(tree.strings), 1):
            raise FrameError("a tree that names a text it does not hold")
    if int(tree.kind.max()) > _MAX_KIND:
        raise FrameError("a tree with a kind of row that is not known")


_MAX_KIND = max(int(kind) for kind in FrameKind)


def rows(tree: Tree) -> Iterator[TreeRow]:
    """Yield the rows of a tree from the top."""
    depth = depths(tree).tolist()
    children = np.bincount(tree.parent[1:], minlength=len(depth)).tolist()
    strings = tree.strings or [""]
    columns = zip(
        tree.name.tolist(),
        tree.file.tolist(),
        tree.binary.tolist(),
        tree.line.tolist(),
        tree.kind.tolist(),
        tree.self_weight.tolist(),
        tree.total_weight.tolist(),
        tree.estimated.tolist(),
        tree.error.tolist(),
        tree.bytes.tolist(),
        strict=True,
    )
    for index, (name, file, binary, line, kind, own, total, estimated, error, moved) in enumerate(columns):
        yield TreeRow(
            index,
            depth[index],
            strings[name],
            strings[file],
            strings[binary],
            line,
            FrameKind(kind),
            own,
            total,
            children[index],
            bool(estimated),
            error if estimated and math.isfinite(error) else None,
            moved if math.isfinite(moved) and moved > 0 else 0.0,
        )
