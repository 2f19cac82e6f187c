"""Trees without internal rows, where whoever answered has left them in: a sampler of an earlier version.

What was summed in "other (n)" rows before cannot be told apart any more, so that some rows lack a small part
of what they are worth; hiding.py does the same before that.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np

from gpuprof.snapshots import tree as trees
from gpuprof.snapshots.errors import FrameError
from gpuprof.snapshots.frames import FrameKind, Tree
from gpuprof.snapshots.hiding import Shown
from gpuprof.snapshots.hiding import without_internals as shown_nodes
from gpuprof.snapshots.preorder import Ints, depths, preorder_ends
from gpuprof.snapshots.tree_nodes import Label, Nodes

_OTHER_NAME = re.compile(r"other \((\d{1,9})\)")


@dataclass(frozen=True, slots=True)
class Simplified:
    """A tree without internal rows; `hidden` counts the rows that are gone."""

    tree: Tree
    hidden: int


def without_internals(tree: Tree) -> Simplified:
    """Return the tree without internal rows. Linear in rows, apart from sorting.

    A tree that holds none, or whose sampler has hidden them, is returned as it is. FrameError for columns
    that are no tree.
    """
    columns = (
        tree.name, tree.file, tree.binary, tree.line, tree.kind, tree.self_weight, tree.total_weight,
        tree.estimated, tree.error, tree.bytes,
    )  # fmt: skip
    if not tree.strings or any(len(column) != len(tree.parent) for column in columns):
        raise FrameError("a tree whose columns differ in length")
    trees.check(tree)
    parent = tree.parent.astype(np.int64)
    preorder_ends(parent)  # refuses what is not in preorder
    if tree.hidden is not None:
        return Simplified(tree, max(tree.hidden, 0))
    order = np.argsort(depths(parent), kind="stable")
    shown = shown_nodes(_nodes(tree, parent, order))
    if not shown.hidden:
        return Simplified(tree, 0)
    _name_others(tree, shown, order)
    built = trees.build(
        shown.nodes,
        query_id=tree.id,
        name=tree.tree,
        unit=tree.unit,
        start_ns=tree.start_ns,
        end_ns=tree.end_ns,
        truncated=tree.truncated,
        min_fraction=0.0,
        max_nodes=len(parent) + 2,
    )
    return Simplified(replace(built, summary=tree.summary), shown.hidden)


def _nodes(tree: Tree, parent: Ints, order: Ints) -> Nodes:
    """Return the rows in the order of their depths; equal labels are one, and all "other (n)" rows are alike.

    The error of an estimate that is not known stays unknown in every sum.
    """
    key, rows_of_key = _keys(tree)
    place = np.empty(len(parent), np.int64)
    place[order] = np.arange(len(parent))
    estimated = tree.estimated[order] > 0
    some = bool(estimated.any())
    return Nodes(
        parent=place[parent[order]],
        label=key[order],
        depth=depths(parent)[order],
        self_weight=tree.self_weight[order],
        total_weight=tree.total_weight[order],
        labels=[_label(tree, row) for row in rows_of_key],
        variance=np.where(estimated, tree.error[order] ** 2, 0.0) if some else None,
        estimated=estimated if some else None,
        bytes=tree.bytes[order] if tree.bytes.any() else None,
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


def _name_others(tree: Tree, shown: Shown, order: Ints) -> None:
    """Give each merged "other (n)" row the sum of the numbers of the rows that it is made of."""
    others = np.flatnonzero(tree.kind[order] == FrameKind.OTHER)
    if not len(others):
        return
    name = tree.name[order][others]
    numbers = {}
    for number in np.unique(name).tolist():
        match = _OTHER_NAME.fullmatch(tree.strings[number])
        numbers[number] = int(match[1]) if match else 1
    counts = np.array([numbers[number] for number in name.tolist()], np.int64)
    nodes, made = shown.nodes, shown.place[others]
    sums = np.bincount(made, counts, len(nodes.label)).astype(np.int64)
    by_sum: dict[int, int] = {}
    for node in np.unique(made).tolist():
        count = int(sums[node])
        if count not in by_sum:
            by_sum[count] = len(nodes.labels)
            nodes.labels.append((f"other ({count})", "", "", 0, int(FrameKind.OTHER)))
        nodes.label[node] = by_sum[count]
