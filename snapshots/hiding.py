"""Takes the rows out of a folded tree that say nothing to whoever wrote the program (internal_rows.py).

A hidden row's own weight goes to its nearest shown caller, its callees are lifted there, and rows that then
have the same path are merged, so that totals stay exact. Small rows are summed after that, never before: a
row is worth the same however much of what is small is shown.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.snapshots.columns import Array
from gpuprof.snapshots.internal_rows import internal_rows
from gpuprof.snapshots.preorder import Bools, Ints

if TYPE_CHECKING:
    from gpuprof.snapshots.tree_nodes import Nodes


@dataclass(frozen=True, slots=True)
class Shown:
    """Nodes without their internal rows: `hidden` counts those, `place` is where each row of the original
    went (a hidden one: its nearest shown caller).
    """

    nodes: Nodes
    hidden: int
    place: Ints


def without_internals(nodes: Nodes) -> Shown:
    """Return nodes, whose levels follow each other, without internal rows. Linear in rows, apart from
    sorting.
    """
    hidden = internal_rows(nodes)
    count = int(np.count_nonzero(hidden))
    if not count:
        return Shown(nodes, 0, np.arange(len(hidden)))
    caller, depth = _lifted(nodes, hidden)
    width = len(nodes.labels)
    shown = np.flatnonzero(~hidden)
    shown = shown[np.argsort(depth[shown], kind="stable")]
    place = np.zeros(len(hidden), np.int64)
    parents, labels, lengths = [np.zeros(1, np.int64)], [nodes.label[:1].astype(np.int64)], [1]
    made = 1
    bounds = np.flatnonzero(np.diff(depth[shown])) + 1
    for rows in np.split(shown, bounds)[1:]:
        keys = place[caller[nodes.parent[rows]]] * width + nodes.label[rows]
        unique, inverse = np.unique(keys, return_inverse=True)
        place[rows] = made + inverse.reshape(-1)
        parents.append(unique // width)
        labels.append(unique % width)
        lengths.append(len(unique))
        made += len(unique)
    place = place[caller]

    def summed(column: Array) -> Array:
        return np.bincount(place[shown], column[shown], made)

    return Shown(
        replace(
            nodes,
            parent=np.concatenate(parents).astype(np.intp),
            label=np.concatenate(labels).astype(np.intp),
            depth=np.repeat(np.arange(len(lengths)), lengths),
            self_weight=np.bincount(place, nodes.self_weight, made),
            total_weight=summed(nodes.total_weight),
            variance=None if nodes.variance is None else summed(nodes.variance),
            estimated=None if nodes.estimated is None else summed(nodes.estimated) > 0,
            bytes=None if nodes.bytes is None else summed(nodes.bytes),
        ),
        count,
        place,
    )


def _lifted(nodes: Nodes, hidden: Bools) -> tuple[Ints, Ints]:
    """Return of each row the nearest shown one, itself included, and how many shown rows are above it."""
    caller = np.arange(len(hidden))
    depth = np.zeros(len(hidden), np.int64)
    bounds = np.searchsorted(nodes.depth, np.arange(int(nodes.depth[-1]) + 2)).tolist()
    for low, high in pairwise(bounds[1:]):
        above = nodes.parent[low:high]
        caller[low:high] = np.where(hidden[low:high], caller[above], caller[low:high])
        depth[low:high] = depth[above] + ~hidden[above]
    return caller, depth
