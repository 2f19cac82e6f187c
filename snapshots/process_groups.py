"""Many small processes of one name as one row: python3 (302 processes), over their merged trees.

A process that lives for a moment is below any threshold, and its functions would vanish in an "other (n)"
row, however much all of its kind have done together. The same goes for the threads of a process, where there
is a row for each. Names that are still too small together stay apart, so that "other (n)" counts processes.
Where a tree keeps small rows, as the screen's do, very many small processes of one name are one row, too,
since nobody adds up hundreds of them; a tree that is not cut at all (min_fraction 0) keeps each.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.snapshots import tree
from gpuprof.snapshots.columns import Array
from gpuprof.snapshots.frames import FrameKind

if TYPE_CHECKING:
    from gpuprof.snapshots.tree_nodes import Nodes

_COUNTED = re.compile(r"(.*) \(\d+ (processes|threads)\)", re.DOTALL)
_MANY = 20  # processes of one name, each below the next, that are one row even where each could be shown
_SMALL = 0.005  # of the whole
_PLURAL = {FrameKind.PROCESS: "processes", FrameKind.THREAD: "threads"}


def grouped(nodes: Nodes, names: Mapping[int, str], *, min_fraction: float, max_nodes: int) -> Nodes:
    """Return `nodes` with the processes, then the threads, of one name and parent merged that would all be
    cut, where together they would not, or that are very many. `names`: of the labels of both.

    Levels follow each other in `nodes`. Totals stay what they are.
    """
    for depth, kind in enumerate(_PLURAL, 1):
        label = _relabelled(nodes, names, depth, kind, min_fraction=min_fraction, max_nodes=max_nodes)
        if label is not None:
            nodes = merged(nodes, label)
    return nodes


def without_count(name: str) -> str:
    """Return the name of a row as it stays while processes come and go: python3 (processes)."""
    match = _COUNTED.fullmatch(name)
    return f"{match[1]} ({match[2]})" if match is not None else name


def _relabelled(
    nodes: Nodes,
    names: Mapping[int, str],
    depth: int,
    kind: FrameKind,
    *,
    min_fraction: float,
    max_nodes: int,
) -> Array | None:
    """Return the labels with those of groups, which are added to the list; None where there is no group."""
    low, high = np.searchsorted(nodes.depth, [depth, depth + 1])
    if high - low < 2 or nodes.labels[int(nodes.label[low])][4] != kind:
        return None
    keep, limit = tree.rows_kept(nodes, min_fraction, max_nodes)
    small = ~keep[low:high]
    if min_fraction > 0:
        small |= nodes.total_weight[low:high] < _SMALL * nodes.total_weight[0]
    found: dict[tuple[int, str], list[int]] = {}
    for row in (low + np.flatnonzero(small)).tolist():
        name = names.get(int(nodes.label[row]))
        if name is not None:
            found.setdefault((int(nodes.parent[row]), name), []).append(row)
    label = None
    for (_, name), every in found.items():
        rows = every if len(every) > _MANY else [row for row in every if not keep[row]]
        if len(rows) > 1 and float(nodes.total_weight[rows].sum()) >= limit:
            label = nodes.label.copy() if label is None else label
            label[rows] = len(nodes.labels)
            nodes.labels.append((f"{name} ({len(rows)} {_PLURAL[kind]})", "", "", 0, int(kind)))
    return label


def merged(nodes: Nodes, label: Array) -> Nodes:
    """Return `nodes` with new labels, rows of equal label and parent as one, from the top down."""
    width = len(nodes.labels)
    bounds = np.searchsorted(nodes.depth, np.arange(int(nodes.depth[-1]) + 2))
    place = np.zeros(len(label), np.int64)
    parents, labels, lengths = [np.zeros(1, np.int64)], [label[:1].astype(np.int64)], [1]
    made = 1
    for low, high in zip(bounds[1:-1].tolist(), bounds[2:].tolist(), strict=True):
        keys = place[nodes.parent[low:high]] * width + label[low:high]
        unique, inverse = np.unique(keys, return_inverse=True)
        place[low:high] = made + inverse.reshape(-1)
        parents.append(unique // width)
        labels.append(unique % width)
        lengths.append(len(unique))
        made += len(unique)

    def summed(column: Array) -> Array:
        return np.bincount(place, column, made)

    return replace(
        nodes,
        parent=np.concatenate(parents).astype(np.intp),
        label=np.concatenate(labels).astype(np.intp),
        depth=np.repeat(np.arange(len(lengths)), lengths),
        self_weight=summed(nodes.self_weight),
        total_weight=summed(nodes.total_weight),
        variance=None if nodes.variance is None else summed(nodes.variance),
        estimated=None if nodes.estimated is None else summed(nodes.estimated) > 0,
        bytes=None if nodes.bytes is None else summed(nodes.bytes),
    )
