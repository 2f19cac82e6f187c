"""Parts of a tree, one of each generation of tables, by level; and how they become one tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpuprof.snapshots.columns import Array
from gpuprof.snapshots.row_labels import Labels
from gpuprof.snapshots.tree_nodes import Nodes


@dataclass(slots=True)
class Level:
    """The rows of one depth. `parent` indexes the level above."""

    parent: Array
    label: Array
    self_weight: Array
    total_weight: Array
    variance: Array | None = None
    estimated: Array | None = None
    bytes: Array | None = None


Part = list[Level]  # level 0: processes; then threads, where asked for; then frames


def joined(parts: list[Part], labels: Labels, *, merge: bool = False) -> Nodes:
    """Merge parts from the top down: rows with the same label under the same parent are one. Adds the
    root.
    """
    root = np.zeros(1, np.intp)
    weight = sum((float(part[0].total_weight.sum()) for part in parts), 0.0)
    columns: list[tuple[Array, Array, int, Array, Array]] = [(root, root, 0, np.zeros(1), np.full(1, weight))]
    exact = all(level.variance is None for part in parts for level in part)
    spread = sum((float(part[0].variance.sum()) for part in parts if part[0].variance is not None), 0.0)
    variances, marks = [np.full(1, spread)], [np.full(1, spread != 0)]
    moved = [np.full(1, sum(float(part[0].bytes.sum()) for part in parts if part[0].bytes is not None))]
    positions: list[Array] = [root] * len(parts)  # for each part, where the rows of its last level went
    first = 0  # number of the first row of the last level
    for depth in range(max(map(len, parts), default=0)):
        here = [(index, part[depth]) for index, part in enumerate(parts) if depth < len(part)]
        parents = np.concatenate([positions[index][level.parent] for index, level in here])
        own = np.concatenate([level.self_weight for _, level in here])
        total = np.concatenate([level.total_weight for _, level in here])
        label = np.concatenate([level.label for _, level in here])
        variance, marked = _estimated([level for _, level in here])
        bytes_moved = np.concatenate(
            [np.zeros(len(level.label)) if level.bytes is None else level.bytes for _, level in here]
        )
        if len(parts) == 1 and not merge:
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
            variance = np.bincount(inverse, variance, len(merged))
            marked = np.bincount(inverse, marked, len(merged)) > 0
            bytes_moved = np.bincount(inverse, bytes_moved, len(merged))
        moved.append(bytes_moved)
        variances.append(variance)
        marks.append(marked)
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
        None if exact else np.concatenate(variances),
        None if exact else np.concatenate(marks),
        np.concatenate(moved) if moved[0][0] > 0 else None,
    )


def _estimated(levels: Sequence[Level]) -> tuple[Array, Array]:
    """Return the variances and the marks of the rows of several levels, one after the other."""
    variances = [np.zeros(len(level.label)) if level.variance is None else level.variance for level in levels]
    marks = [
        np.zeros(len(level.label), np.bool_) if level.estimated is None else level.estimated
        for level in levels
    ]
    return np.concatenate(variances), np.concatenate(marks)
