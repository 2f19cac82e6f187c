"""Weights of stacks summed for all of their callers, from the deepest level up and without recursion."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuprof.snapshots.columns import Array
from gpuprof.snapshots.table_view import TablesView

_DENSE_KEYS = 1 << 22


@dataclass(slots=True)
class Pairs:
    """All (group, node) of one depth, sorted; `parent` indexes the depth above. `more`: the totals of the
    second weight, where there is one.
    """

    group: Array
    node: Array
    parent: Array
    self_weight: Array
    total_weight: Array
    more: Array | None = None


def compact(column: Array, length: int) -> tuple[Array, Array]:
    """Return the distinct values of a column of ids below `length`, sorted, and for each row the index of
    its value.
    """
    present = np.zeros(length, np.bool_)
    present[column] = True
    values = np.flatnonzero(present)
    index = np.zeros(length, np.intp)
    index[values] = np.arange(len(values))
    return values, index[column]


def summed(
    view: TablesView,
    groups: int,
    group_of_row: Array,
    stack: Array,
    weight: Array | None,
    *,
    more: Array | None = None,
) -> list[Pairs]:
    """Return the sums of rows by group and stack, and up to the empty stack, by depth; level 0 is the groups.

    `group_of_row`: below `groups`; `weight`: of each row (None: 1); `more`: a second weight of each.
    """
    stacks, stack_of_row = compact(stack, len(view.parent))
    keys = group_of_row * len(stacks) + stack_of_row
    size = groups * len(stacks)
    if size <= _DENSE_KEYS:
        sums = np.bincount(keys, weight, size)
        pairs = np.flatnonzero(sums if weight is None else np.bincount(keys, None, size))
        total = sums[pairs].astype(np.float64)
        second = None if more is None else np.bincount(keys, more, size)[pairs]
    else:
        pairs, inverse = np.unique(keys, return_inverse=True)
        total = np.bincount(inverse, weight, len(pairs)).astype(np.float64)
        second = None if more is None else np.bincount(inverse, more, len(pairs))
    group, index = np.divmod(pairs, len(stacks))
    return _up(view, group, stacks[index], total, second)


def _up(view: TablesView, group: Array, node: Array, weight: Array, more: Array | None) -> list[Pairs]:
    size = len(view.parent)
    keys = group.astype(np.int64) * size + node
    depth = view.depth[node]
    order = np.argsort(depth, kind="stable")
    keys, weight, depth = keys[order], weight[order], depth[order]
    more = None if more is None else more[order]
    deepest = int(depth[-1])
    bounds = np.searchsorted(depth, np.arange(deepest + 2))
    levels: list[Pairs] = []
    above_keys = np.empty(0, np.int64)  # parents of the level below, one per pair of it
    above: Pairs | None = None
    for level in range(deepest, -1, -1):
        leaf = slice(bounds[level], bounds[level + 1])
        leaf_keys = keys[leaf]
        merged, inverse = np.unique(np.concatenate([leaf_keys, above_keys]), return_inverse=True)
        inverse = inverse.reshape(-1)
        count = len(merged)
        here, from_above = inverse[: len(leaf_keys)], inverse[len(leaf_keys) :]
        own = np.bincount(here, weight[leaf], count)
        total = own if above is None else own + np.bincount(from_above, above.total_weight, count)
        second = None
        if more is not None:
            second = np.bincount(here, more[leaf], count)
            if above is not None:
                second = second + np.bincount(from_above, above.more, count)
        if above is not None:
            above.parent = from_above
        group_at, node_at = np.divmod(merged, size)
        above = Pairs(group_at, node_at, np.zeros(count, np.intp), own, total, second)
        levels.append(above)
        above_keys = group_at * size + view.parent[node_at]
    levels.reverse()
    return levels
