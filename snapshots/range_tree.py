"""The tree of GPU time by NVTX ranges first: the stack of a launch below the ranges that it was in."""

from __future__ import annotations

import numpy as np

from gpuprof.snapshots.columns import Array
from gpuprof.snapshots.grafts import Grafts
from gpuprof.snapshots.table_view import TablesView

MAX_PATHS = 1024  # of ranges that are told apart; what is launched in the rarest others is in their outermost


def below_ranges(view: TablesView, nvtx: Array, stack: Array) -> tuple[TablesView, Array]:
    """Return tables with more nodes, and for each row the stack of its ranges with its own stack below them.

    `nvtx`: the stacks of the ranges, 0 for rows that were in none, whose stack stays as it is.
    """
    paths, counts = np.unique(nvtx[nvtx > 0], return_counts=True)
    if not len(paths):
        return view, stack
    if len(paths) > MAX_PATHS:
        rare = paths[np.argsort(counts, kind="stable")[:-MAX_PATHS]]
        nvtx = np.where(np.isin(nvtx, rare), _outermost(view, nvtx), nvtx)
    grafts = Grafts(view)
    placed = stack.astype(np.int64)
    order = np.argsort(nvtx, kind="stable")
    edges = np.flatnonzero(np.diff(nvtx[order], prepend=-1))
    for rows in np.split(order, edges[1:]):
        node = int(nvtx[rows[0]])
        if node:
            placed[rows] = grafts.under(node, stack[rows])
    return grafts.view(), placed


def _outermost(view: TablesView, nodes: Array) -> Array:
    found = nodes.astype(np.int64)
    while len(inner := np.flatnonzero(view.parent[found])):
        found[inner] = view.parent[found[inner]]
    return found
