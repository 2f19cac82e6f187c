"""Arithmetic on trees whose nodes are in preorder: depths and ends of subtrees, in passes over numpy columns.

The subtree of node i is the run [i, end[i]), so that questions such as "is there a Python frame below" are
sums over a run.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpuprof.snapshots.errors import FrameError

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


def preorder_ends(parent: Ints) -> Ints:
    """End of each node's subtree, for parents in preorder (node 0 is the root and its own parent).

    Raises FrameError when the columns are not a preorder tree, which a hostile or broken server could send.
    """
    count = len(parent)
    index = np.arange(count)
    if count == 0 or parent[0] != 0 or bool((parent[1:] >= index[1:]).any()) or bool((parent < 0).any()):
        raise FrameError("a tree whose nodes do not follow their parents")
    size = np.ones(count, np.int64)
    level = depths(parent)
    order = np.argsort(-level, kind="stable")
    bounds = np.flatnonzero(np.diff(level[order])) + 1
    for nodes in np.split(order, bounds):
        if level[nodes[0]] > 0:
            np.add.at(size, parent[nodes], size[nodes])
    end = index + size
    # Subtrees that all end inside their parent's run fill it exactly, which is what preorder means.
    if bool((end > end[parent]).any()):
        raise FrameError("a tree whose nodes are not in preorder")
    result: Ints = end
    return result


def depths(parent: Ints) -> Ints:
    """Distance of each node from the root, by pointer doubling (no recursion, log2(depth) passes)."""
    jump = parent.copy()
    depth: Ints = (np.arange(len(parent)) != parent).astype(np.int64)
    while bool(jump.any()):
        depth = depth + depth[jump]
        jump = jump[jump]
    return depth


def marked_above(marked: Bools, end: Ints) -> Ints:
    """How many proper ancestors of each node are marked."""
    nodes = np.flatnonzero(marked)
    change = np.zeros(len(end) + 1, np.int64)
    np.add.at(change, nodes + 1, 1)
    np.add.at(change, end[nodes], -1)
    result: Ints = np.cumsum(change[:-1])
    return result


def marked_below(marked: Bools, end: Ints) -> Ints:
    """How many proper descendants of each node are marked."""
    before = np.concatenate([[0], np.cumsum(marked)]).astype(np.int64)
    result: Ints = before[end] - before[1:]
    return result
