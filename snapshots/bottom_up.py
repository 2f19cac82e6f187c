"""A tree turned over: what the time was spent in itself comes first, and below it who called it.

Each stack is read from its innermost frame to its root, so that the first rows are the functions that ran
themselves, or the GPU kernels, whatever called them, and the last ones the processes. The total of a row is
what was spent in the first row of its path by way of the callers down to it; what is left of it to no row
below has no further caller.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.snapshots.columns import Array

if TYPE_CHECKING:
    from gpuprof.snapshots.tree_nodes import Nodes

TREES = ("cpu", "gpu")  # in the others a stack goes on into who ended the wait, which called nothing


def bottom_up(nodes: Nodes) -> Nodes:
    """Return the tree of the own weights of `nodes`, from the innermost frames to the roots.

    The first rows are exact where the whole is: all paths to one innermost frame share a total that is. Of
    the rows below the variances are summed, as if what shares a total did not vary against each other: their
    error is no larger than that. Only rows without callees may have one.
    """
    width = len(nodes.labels)
    rows = 1 + np.flatnonzero(nodes.self_weight[1:] != 0)
    at, under = rows, np.zeros(len(rows), np.int64)
    parents, labels, sizes = [np.zeros(1, np.int64)], [nodes.label[:1].astype(np.int64)], [1]
    columns = {
        name: [column[:1].astype(np.float64)]
        for name in ("total_weight", "variance", "estimated", "bytes")
        if (column := getattr(nodes, name)) is not None
    }
    own = [nodes.self_weight[:1]]
    exact = nodes.estimated is not None and not nodes.estimated[0]
    while len(rows):
        keys, place = np.unique(under * width + nodes.label[at], return_inverse=True)
        place, count, made = place.reshape(-1), len(keys), sum(sizes)
        for name, parts in columns.items():
            values = nodes.self_weight if name == "total_weight" else getattr(nodes, name)
            sums = np.bincount(place, values[rows].astype(np.float64), count)
            is_exact = exact and made == 1 and name in {"variance", "estimated"}
            parts.append(np.zeros(count) if is_exact else sums)
        parents.append(keys // width)
        labels.append(keys % width)
        sizes.append(count)
        above = nodes.parent[at]
        ends = above == 0
        own.append(np.bincount(place[ends], nodes.self_weight[rows[ends]], count))
        rows, at, under = rows[~ends], above[~ends], made + place[~ends]
    joined: dict[str, Array] = {name: np.concatenate(parts) for name, parts in columns.items()}
    estimated = joined.get("estimated")
    return replace(
        nodes,
        parent=np.concatenate(parents).astype(np.intp),
        label=np.concatenate(labels).astype(np.intp),
        depth=np.repeat(np.arange(len(sizes)), sizes),
        self_weight=np.concatenate(own),
        total_weight=joined["total_weight"],
        variance=joined.get("variance"),
        estimated=None if estimated is None else estimated > 0,
        bytes=joined.get("bytes"),
    )
