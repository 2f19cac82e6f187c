"""The tree that a summary of idle time is told from: of all rows of a range, whatever of them is shown.

It knows no processes and no threads: what many of them did at one place is one row. Of the rows that are too
small to be told of one by one, it stays known what threads did there: below the nearest row that is large
enough, their time is summed by the wait that it was spent in, and by who ended that.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gpuprof.snapshots import tree as trees
from gpuprof.snapshots.columns import Array
from gpuprof.snapshots.frames import NOT_SEEN, FrameKind, Tree
from gpuprof.snapshots.idle_tree import MEANWHILE
from gpuprof.snapshots.process_groups import merged
from gpuprof.snapshots.tree_nodes import Nodes
from gpuprof.snapshots.wait_tree import WOKEN_BY

LEAST = 0.002  # of the whole: smaller rows are summed
_PEOPLE = (FrameKind.PROCESS, FrameKind.THREAD)


def is_link(name: str) -> bool:
    """Tell whether a wait's row names who ended it, or what that one did meanwhile."""
    return name.startswith((WOKEN_BY, MEANWHILE))


def telling_tree(nodes: Nodes) -> Tree:
    """Return the tree of all rows of a fold, whose levels follow each other. Linear in rows."""
    nodes = _small_ones_summed(_without_people(nodes))
    return trees.build(
        nodes, query_id=0, name="idle", unit="ns", start_ns=0, end_ns=0, truncated=0, min_fraction=0.0,
        max_nodes=len(nodes.parent) + 2,
    )  # fmt: skip


def _without_people(nodes: Nodes) -> Nodes:
    """Return the rows with all processes, and all threads, as one."""
    kind = np.array([label[4] for label in nodes.labels], np.int64)[nodes.label]
    for people in _PEOPLE:
        rows = np.flatnonzero(kind == people)
        if len(rows) > 1:
            label = nodes.label.copy()
            label[rows] = label[rows[0]]
            nodes = merged(nodes, label)
            kind = np.array([label[4] for label in nodes.labels], np.int64)[nodes.label]
    return nodes


def _small_ones_summed(nodes: Nodes) -> Nodes:
    """Return the large rows, and below them what the others add up to by the state that they tell of."""
    count, none = len(nodes.parent), len(nodes.labels)
    keep = nodes.total_weight >= LEAST * nodes.total_weight[0]
    keep[0] = True
    waits = [label[4] == FrameKind.WAIT for label in nodes.labels]
    says = np.array([wait or label[0] == NOT_SEEN for wait, label in zip(waits, nodes.labels, strict=True)])
    links = np.array([wait and is_link(label[0]) for wait, label in zip(waits, nodes.labels, strict=True)])
    own_state, own_link = (np.where(mask[nodes.label], nodes.label, none) for mask in (says, links))
    above = np.arange(count)  # the nearest row that stays
    # Of small rows: the outermost wait in or below which they are, and who ended that one.
    state, link = np.full(count, none), np.full(count, none)
    bounds = np.searchsorted(nodes.depth, np.arange(int(nodes.depth[-1]) + 2))
    for low, high in zip(bounds[1:-1].tolist(), bounds[2:].tolist(), strict=True):
        small = low + np.flatnonzero(~keep[low:high])
        parent = nodes.parent[small]
        above[small] = above[parent]
        in_wait, linked = state[parent] < none, link[parent] < none  # neither is where the parent stays
        state[small] = np.where(in_wait, state[parent], own_state[small])
        link[small] = np.where(in_wait & ~linked, own_link[small], link[parent])
    small = np.flatnonzero(~keep & (nodes.self_weight > 0))
    kept, place = np.flatnonzero(keep), np.cumsum(keep) - 1
    states, state_of = np.unique(above[small] * (none + 1) + state[small], return_inverse=True)
    pairs, pair_of = np.unique(state_of.reshape(-1) * (none + 1) + link[small], return_inverse=True)
    at, state_label = np.divmod(states, none + 1)
    total = np.bincount(state_of.reshape(-1), nodes.self_weight[small], len(states))
    weight = np.bincount(pair_of.reshape(-1), nodes.self_weight[small], len(pairs))
    of_state, link_label = np.divmod(pairs, none + 1)
    linked = link_label < none
    own = total - np.bincount(of_state[linked], weight[linked], len(states))

    def column(of_kept: Array, of_states: Array, of_links: Array) -> Array:
        return np.concatenate([of_kept[kept], of_states, of_links[linked]])

    return replace(
        nodes,
        parent=column(place[nodes.parent], place[at], len(kept) + of_state),
        label=column(nodes.label, state_label, link_label),
        depth=column(nodes.depth, nodes.depth[at] + 1, nodes.depth[at][of_state] + 2),
        self_weight=column(nodes.self_weight, np.maximum(own, 0.0), weight),
        total_weight=column(nodes.total_weight, total, weight),
        labels=[*nodes.labels, ("other", "", "", 0, int(FrameKind.OTHER))],
        variance=None,
        estimated=None,
        bytes=None,
    )
