"""Stacks that were never captured, such as what a waker did below the wait that it ended: tables of one
generation with more nodes, made for one query.
"""

from __future__ import annotations

import bisect
from dataclasses import replace

import numpy as np

from gpuprof.snapshots.columns import Array
from gpuprof.snapshots.frames import FrameKind
from gpuprof.snapshots.table_view import TablesView


class Grafts:
    """The tables of `base` with nodes added. Equal paths may get several nodes: fold them with `merge`."""

    def __init__(self, base: TablesView) -> None:
        self.base = base
        self._strings: list[str] = []
        self._kinds: list[int] = []
        self._frames: dict[tuple[str, int], int] = {}
        self._children: dict[tuple[int, int], int] = {}
        self._count = len(base.parent)
        self._parent: list[Array] = []
        self._frame: list[Array] = []
        self._depth: list[Array] = []
        self._first: list[int] = []  # number of the first node of each of the arrays above

    def child(self, node: int, name: str, kind: FrameKind) -> int:
        """Return the node of a frame without place below a node."""
        frame = self._frame_of(name, int(kind))
        found = self._children.get((node, frame))
        if found is None:
            found = self._children[node, frame] = self._count
            self._add(np.array([node]), np.array([frame]), np.array([self._depth_at(node) + 1]))
        return found

    def under(self, node: int, stacks: Array) -> Array:
        """Return for each stack of the base the node of the same frames below `node` (i64)."""
        leaves, of_row = np.unique(stacks, return_inverse=True)
        mask = np.zeros(len(self.base.parent), np.bool_)
        mask[0] = True
        current = leaves
        while len(current := current[~mask[current]]):
            mask[current] = True
            current = self.base.parent[current]
        nodes = np.flatnonzero(mask)
        inner = nodes[1:]
        number = np.concatenate([[node], self._count + np.arange(len(inner))])
        depth = self.base.depth[inner].astype(np.int64) + self._depth_at(node)
        parent = number[np.searchsorted(nodes, self.base.parent[inner])]
        self._add(parent, self.base.frame[inner].astype(np.int64), depth)
        found: Array = number[np.searchsorted(nodes, leaves)][of_row.reshape(-1)]
        return found

    def view(self) -> TablesView:
        """Return the tables with what was added so far."""
        base = self.base
        names = len(base.strings)
        functions = len(base.name)
        new = np.arange(len(self._strings))
        zeros = np.zeros(len(new), np.int64)
        return replace(
            base,
            parent=np.concatenate([base.parent, *self._parent]).astype(np.int64),
            frame=np.concatenate([base.frame, *self._frame]).astype(np.int64),
            depth=np.concatenate([base.depth, *self._depth]).astype(np.int64),
            frame_function=np.concatenate([base.frame_function, functions + new]).astype(np.int64),
            frame_line=np.concatenate([base.frame_line, zeros]),
            name=np.concatenate([base.name, names + new]).astype(np.int64),
            file=np.concatenate([base.file, zeros]).astype(np.int64),
            binary=np.concatenate([base.binary, zeros]).astype(np.int64),
            kind=np.concatenate([base.kind, np.array(self._kinds, np.uint8)]),
            strings=[*base.strings[:names], *self._strings],
        )

    def _frame_of(self, name: str, kind: int) -> int:
        found = self._frames.get((name, kind))
        if found is None:
            found = self._frames[name, kind] = len(self.base.frame_line) + len(self._strings)
            self._strings.append(name)
            self._kinds.append(kind)
        return found

    def _depth_at(self, node: int) -> int:
        if node < len(self.base.parent):
            return int(self.base.depth[node])
        place = bisect.bisect_right(self._first, node) - 1
        return int(self._depth[place][node - self._first[place]])

    def _add(self, parent: Array, frame: Array, depth: Array) -> None:
        self._first.append(self._count)
        self._parent.append(parent)
        self._frame.append(frame)
        self._depth.append(depth)
        self._count += len(parent)
