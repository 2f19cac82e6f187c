"""Hides the rows of a tree that say nothing to whoever wrote the program (internal_rows.py).

A hidden row's own weight goes to its nearest shown caller, its callees are lifted there, and rows that then
have the same path are merged, so that totals stay exact. Everything else is kept.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.snapshots import tree as trees
from gpuprof.snapshots.errors import FrameError
from gpuprof.snapshots.fold import Nodes
from gpuprof.snapshots.frames import FrameKind, Tree
from gpuprof.snapshots.internal_rows import internal_rows
from gpuprof.snapshots.preorder import Bools, Ints, marked_above, preorder_ends

if TYPE_CHECKING:
    from gpuprof.snapshots.fold import Label

_OTHER_NAME = re.compile(r"other \((\d{1,9})\)")


@dataclass(frozen=True, slots=True)
class Simplified:
    """A tree without internal rows; `hidden` counts the rows of the original that are gone."""

    tree: Tree
    hidden: int


def without_internals(tree: Tree) -> Simplified:
    """Return the tree without internal rows. Linear in rows, apart from sorting.

    A tree that holds none is returned as it is. FrameError for columns that are no tree.
    """
    columns = (
        tree.name, tree.file, tree.binary, tree.line, tree.kind, tree.self_weight, tree.total_weight,
        tree.estimated, tree.error, tree.bytes,
    )  # fmt: skip
    if not tree.strings or any(len(column) != len(tree.parent) for column in columns):
        raise FrameError("a tree whose columns differ in length")
    trees.check(tree)
    parent = tree.parent.astype(np.int64)
    end = preorder_ends(parent)
    hidden = internal_rows(tree, parent, end)
    count = int(np.count_nonzero(hidden))
    if not count:
        return Simplified(tree, 0)
    nodes = _merged(tree, parent, hidden, marked_above(~hidden, end))
    built = trees.build(
        nodes,
        query_id=tree.id,
        name=tree.tree,
        unit=tree.unit,
        start_ns=tree.start_ns,
        end_ns=tree.end_ns,
        truncated=tree.truncated,
        min_fraction=0.0,
        max_nodes=len(parent) + 2,
    )
    return Simplified(replace(built, summary=tree.summary), count)


def _merged(tree: Tree, parent: Ints, hidden: Bools, depth: Ints) -> Nodes:
    """The shown rows below their nearest shown caller, those of equal paths as one; level by level.

    `depth` counts the shown rows above each row.
    """
    caller = np.where(hidden, parent, np.arange(len(parent)))  # of each row: itself, or its caller if hidden
    while not np.array_equal(further := caller[caller], caller):
        caller = further
    key, rows_of_key = _keys(tree)
    labels = [_label(tree, row) for row in rows_of_key]
    shown = np.flatnonzero(~hidden)
    shown = shown[np.argsort(depth[shown], kind="stable")]
    group = np.zeros(len(parent), np.int64)
    parents, keys, levels = [np.zeros(1, np.int64)], [key[:1]], [0]
    made = 1
    bounds = np.flatnonzero(np.diff(depth[shown])) + 1
    for rows in np.split(shown, bounds)[1:]:
        code = group[caller[parent[rows]]] * len(labels) + key[rows]
        unique, inverse = np.unique(code, return_inverse=True)
        group[rows] = made + inverse
        parents.append(unique // len(labels))
        keys.append(unique % len(labels))
        levels.append(len(unique))
        made += len(unique)
    label = np.concatenate(keys)
    levels[0] = 1
    total = np.bincount(group[shown], tree.total_weight[shown], made)
    own = np.bincount(group[caller], tree.self_weight, made)
    _name_others(tree, labels, label, group, shown)
    variance = estimated = None
    if tree.estimated.any():
        squares = np.nan_to_num(tree.error[shown]) ** 2
        variance = np.bincount(group[shown], squares, made)
        estimated = np.bincount(group[shown], tree.estimated[shown], made) > 0
    return Nodes(
        parent=np.concatenate(parents),
        label=label,
        depth=np.repeat(np.arange(len(levels)), levels),
        self_weight=own,
        total_weight=total,
        labels=labels,
        variance=variance,
        estimated=estimated,
        bytes=np.bincount(group[shown], tree.bytes[shown], made) if tree.bytes.any() else None,
    )


def _keys(tree: Tree) -> tuple[Ints, list[int]]:
    """A number for each row that is the same for rows of equal name, place and kind, and a row of each.

    All "other (n)" rows are alike, whatever their number.
    """
    key = np.zeros(len(tree.parent), np.int64)
    other = tree.kind == FrameKind.OTHER
    for column in (tree.name, tree.file, tree.binary, tree.line, tree.kind):
        values = column.astype(np.int64)
        if column is not tree.kind:
            values[other] = 0
        combined = key * (int(values.max(initial=0)) + 1) + values
        _, first, key = np.unique(combined, return_index=True, return_inverse=True)
    return key.astype(np.int64), first.tolist()


def _label(tree: Tree, row: int) -> Label:
    texts = tree.strings
    name, file, binary = texts[tree.name[row]], texts[tree.file[row]], texts[tree.binary[row]]
    return name, file, binary, int(tree.line[row]), int(tree.kind[row])


def _name_others(tree: Tree, labels: list[Label], label: Ints, group: Ints, shown: Ints) -> None:
    """Give each merged "other (n)" row the sum of the numbers of the rows that it is made of."""
    others = shown[tree.kind[shown] == FrameKind.OTHER]
    if not len(others):
        return
    numbers = {}
    for number in np.unique(tree.name[others]).tolist():
        match = _OTHER_NAME.fullmatch(tree.strings[number])
        numbers[number] = int(match[1]) if match else 1
    counts = np.array([numbers[number] for number in tree.name[others].tolist()], np.int64)
    sums = np.bincount(group[others], counts, len(label)).astype(np.int64)
    by_sum: dict[int, int] = {}
    for node in np.unique(group[others]).tolist():
        count = int(sums[node])
        if count not in by_sum:
            by_sum[count] = len(labels)
            labels.append((f"other ({count})", "", "", 0, int(FrameKind.OTHER)))
        label[node] = by_sum[count]
