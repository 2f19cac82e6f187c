"""The rows of a flame tree: which nodes of a Tree are visible, expanded, matched, and where each stands. No
drawing here.

A Tree is columns in preorder, so the subtree of node i is the run [i, end[i]) and every question about
visibility is interval arithmetic on numpy columns; a million nodes take milliseconds. What a person did
(expanded, cursor, zoom) is kept by *path*, a hash of the names from the root, so that it survives the next
answer to a live query.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuprof.snapshots.errors import FrameError
from gpuprof.snapshots.frames import FrameKind, Tree
from gpuprof.snapshots.preorder import Bools, Ints, depths, preorder_ends
from gpuprof.snapshots.process_groups import without_count

Hashes = NDArray[np.uint64]

HOT_FRACTION = 0.05  # a subtree at least this large is open at first
MAX_OPENED_ROWS = 400  # and so many rows at most
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


@dataclass(slots=True)
class Expansion:
    """What was opened and closed by hand, by path hash, and what was once opened because it was hot."""

    by_hand: dict[int, bool]
    hot: set[int]


class FlameRows:
    """One Tree with its view state: zoom root, expansion, search matches, and the visible rows."""

    def __init__(self, tree: Tree, expansion: Expansion | None = None) -> None:
        """Index `tree`; `expansion` comes from the previous answer. Raises FrameError for columns that are
        not a tree."""
        self.tree = tree
        self.parent = tree.parent.astype(np.int64)
        self.count = len(self.parent)
        columns = (
            tree.name,
            tree.file,
            tree.binary,
            tree.line,
            tree.kind,
            tree.self_weight,
            tree.total_weight,
            tree.estimated,
            tree.error,
            tree.bytes,
        )
        if any(len(column) != self.count for column in columns):
            raise FrameError("a tree whose columns differ in length")
        for column in (tree.name, tree.file, tree.binary):
            if self.count and int(column.max()) >= len(tree.strings):
                raise FrameError("a tree that refers to strings that it does not have")
        for weight in (tree.self_weight, tree.total_weight):
            if not bool((np.isfinite(weight) & (weight >= 0)).all()):
                raise FrameError("a tree with weights that are no weights")
        self.end = preorder_ends(self.parent)
        self.depth = depths(self.parent)
        self.path = self._path_hashes()
        index = np.arange(self.count)
        self.has_children: Bools = self.end > index + 1
        self.has_next: Bools = self.end < self.end[self.parent]
        children = np.bincount(self.parent[1:], minlength=self.count)
        self.branches: Bools = children > 1
        self.total = float(tree.total_weight[0])
        # Own weight of all nodes before, in preorder: the left edge in an icicle.
        self.weight_before = np.cumsum(tree.self_weight) - tree.self_weight
        self.root = 0
        self.expansion = expansion or Expansion({}, set())
        self.expanded: Bools = np.zeros(self.count, np.bool_)
        self.matches: Bools | None = None
        self.match_fraction = 0.0
        self.visible: Ints = np.zeros(0, np.int64)
        self.indent: Ints = np.zeros(self.count, np.int64)
        self._open_hot_path()
        self.update()

    # ---------------------------------------- identity

    def _path_hashes(self) -> Hashes:
        """A hash of the names from the root to each node: equal paths in two trees have equal hashes (one
        process run)."""
        tree = self.tree
        texts = map(without_count, tree.strings)
        words = np.fromiter((hash(text) & (2**64 - 1) for text in texts), np.uint64, len(tree.strings))
        with np.errstate(over="ignore"):
            key = words[tree.name]
            key = key * _MULTIPLIER + words[tree.file]
            key = key * _MULTIPLIER + words[tree.binary]
            key = (
                key * _MULTIPLIER + tree.line.astype(np.uint64) * np.uint64(257) + tree.kind.astype(np.uint64)
            )
            result = np.zeros(self.count, np.uint64)
            order = np.argsort(self.depth, kind="stable")
            bounds = np.flatnonzero(np.diff(self.depth[order])) + 1
            for nodes in np.split(order, bounds):
                above = result[self.parent[nodes]]
                mixed = (above ^ key[nodes]) * _MULTIPLIER
                result[nodes] = mixed ^ (mixed >> np.uint64(29))
        return result

    def find(self, path: int) -> int | None:
        """Node whose path hash is `path`, or None."""
        found = np.flatnonzero(self.path == np.uint64(path))
        return int(found[0]) if len(found) else None

    def ancestors(self, node: int) -> list[int]:
        """Nodes from the parent of `node` up to the root."""
        result = []
        while node != 0:
            node = int(self.parent[node])
            result.append(node)
        return result

    # ---------------------------------------- expansion

    def _open_hot_path(self) -> None:
        """Open what was opened by hand, what is hot, and every only child of something open."""
        weight = self.tree.total_weight
        span = max(float(weight[self.root]), 1e-300)
        open_now = self.has_children & (weight >= HOT_FRACTION * span)
        if self.tree.bottom_up:  # a list of what the time was spent in; who called it is asked for
            open_now[1:] = False
        if int(open_now.sum()) > MAX_OPENED_ROWS:
            hottest = np.sort(weight[open_now])[-MAX_OPENED_ROWS]
            open_now &= weight >= hottest
        if self.expansion.hot:
            known = np.fromiter(self.expansion.hot, np.uint64, len(self.expansion.hot))
            open_now |= self.has_children & np.isin(self.path, known)
        self.expansion.hot = set(self.path[open_now][: 4 * MAX_OPENED_ROWS].tolist())
        if self.expansion.by_hand:
            known = np.fromiter(self.expansion.by_hand, np.uint64, len(self.expansion.by_hand))
            for node in np.flatnonzero(np.isin(self.path, known)).tolist():
                open_now[node] = self.expansion.by_hand[int(self.path[node])]
        open_now[0] = True
        self.expanded = open_now & self.has_children

    def set_expanded(self, node: int, expanded: bool) -> None:
        """Open or close one node, remembered by path; opening also opens the chain of only children below
        it."""
        while self.has_children[node]:
            self.expanded[node] = expanded
            self.expansion.by_hand[int(self.path[node])] = expanded
            if not expanded or self.branches[node]:
                break
            node += 1
        self.update()

    def expand_all(self) -> None:
        """Open every node below the zoom root."""
        self.expanded[self.root : self.end[self.root]] = True
        self.expanded &= self.has_children
        self._remember(self.root)

    def collapse_all(self) -> None:
        """Close every node below the zoom root but the root itself."""
        self.expanded[self.root + 1 : self.end[self.root]] = False
        self._remember(self.root)

    def _remember(self, node: int) -> None:
        span = slice(node, min(int(self.end[node]), node + 20_000))
        parents = self.has_children[span]
        self.expansion.by_hand.update(
            zip(self.path[span][parents].tolist(), self.expanded[span][parents].tolist(), strict=True)
        )
        self.update()

    def reveal(self, node: int) -> None:
        """Open the ancestors of `node`, leaving the zoom if it lies outside."""
        if not self.root <= node < self.end[self.root]:
            self.root = 0
        for above in self.ancestors(node):
            self.expanded[above] = True
            self.expansion.by_hand[int(self.path[above])] = True
        self.update()

    def zoom(self, node: int) -> None:
        """Make `node` the root of what is shown (its weight becomes the full width)."""
        self.root = node
        if self.has_children[node]:
            self.expanded[node] = True
        self.update()

    # ---------------------------------------- layout

    def update(self) -> None:
        """Recompute the visible rows after a change of zoom or expansion."""
        first, last = self.root, int(self.end[self.root])
        closed = np.flatnonzero(self.has_children[first:last] & ~self.expanded[first:last]) + first
        change = np.zeros(last - first + 1, np.int64)
        np.add.at(change, closed + 1 - first, 1)
        np.add.at(change, self.end[closed] - first, -1)
        self.visible = np.flatnonzero(np.cumsum(change[:-1]) == 0) + first
        # Only a branching indents: a chain of only children stays in its column, so deep stacks fit.
        indent = self.indent
        visible = self.visible
        if len(visible) > 1:
            step = self.branches[self.parent[visible]].astype(np.int64)
            step[0] = 0
            position = np.zeros(self.count, np.int64)
            position[visible] = np.arange(len(visible))
            above = position[self.parent[visible]]
            above[0] = 0
            total = step.copy()
            jump = above.copy()
            while bool(jump.any()):
                total = total + total[jump]
                jump = jump[jump]
            indent[visible] = total
        elif len(visible):
            indent[visible] = 0

    def position(self, node: int) -> int | None:
        """Row number of `node`, or None when it is not visible."""
        row = int(np.searchsorted(self.visible, node))
        return row if row < len(self.visible) and self.visible[row] == node else None

    def visible_ancestor(self, node: int) -> int:
        """Row of `node` or of its nearest visible ancestor (0 when there is none)."""
        while True:
            row = self.position(node)
            if row is not None:
                return row
            if node == 0:
                return 0
            node = int(self.parent[node])

    # ---------------------------------------- search

    def search(self, needle: str) -> None:
        """Mark the nodes whose name, file or binary contains `needle` (case folded); an empty needle clears.

        `match_fraction` becomes the share of the weight below at least one match, of the whole tree.
        """
        if not needle:
            self.matches, self.match_fraction = None, 0.0
            return
        folded = needle.casefold()
        hit = np.fromiter(
            (folded in text.casefold() for text in self.tree.strings), np.bool_, len(self.tree.strings)
        )
        tree = self.tree
        matches = (
            hit[tree.name] | (hit[tree.file] & (tree.file != 0)) | (hit[tree.binary] & (tree.binary != 0))
        )
        matches[0] = False
        nodes = np.flatnonzero(matches)
        change = np.zeros(self.count + 1, np.int64)
        np.add.at(change, nodes + 1, 1)
        np.add.at(change, self.end[nodes], -1)
        outermost = nodes[np.cumsum(change[:-1])[nodes] == 0]
        self.matches = matches
        self.match_fraction = (
            float(tree.total_weight[outermost].sum()) / self.total if self.total > 0 else 0.0
        )

    def next_match(self, node: int, step: int) -> int | None:
        """The match after (step 1) or before (step -1) `node` in preorder, wrapping around; None without
        matches."""
        if self.matches is None:
            return None
        nodes = np.flatnonzero(self.matches)
        if not len(nodes):
            return None
        if step > 0:
            place = int(np.searchsorted(nodes, node, side="right"))
        else:
            place = int(np.searchsorted(nodes, node, side="left")) - 1
        return int(nodes[place % len(nodes)])

    # ---------------------------------------- totals

    def weight_by_kind(self, kind: FrameKind) -> float:
        """Own weight of the rows of a kind below the zoom root."""
        span = slice(self.root, int(self.end[self.root]))
        return float(self.tree.self_weight[span][self.tree.kind[span] == kind].sum())

    def weight_by_binary(self) -> list[tuple[str, float]]:
        """(binary, own weight) below the zoom root, largest first. Python frames without a binary count as
        "python". GPU work counts for what launched it."""
        span = slice(self.root, int(self.end[self.root]))
        if self.tree.tree == "gpu":
            return self._binaries(*self._launchers())
        own = self.tree.self_weight[span]
        binary = self.tree.binary[span].astype(np.int64)
        return self._binaries(own, binary, self.tree.kind[span])

    def _launchers(self) -> tuple[NDArray[np.float64], Ints, NDArray[np.uint8]]:
        """Weight, binary and kind of the callers of GPU work below the zoom root."""
        nodes = np.arange(self.root, int(self.end[self.root]))
        kind = self.tree.kind
        work = (FrameKind.GPU_KERNEL, FrameKind.GPU_COPY, FrameKind.GPU_COMM)
        leaves = nodes[np.isin(kind[nodes], work)]
        callers = self.parent[leaves]
        return self.tree.self_weight[leaves], self.tree.binary[callers].astype(np.int64), kind[callers]

    def _binaries(
        self, own: NDArray[np.float64], binary: Ints, kind: NDArray[np.uint8]
    ) -> list[tuple[str, float]]:
        unnamed_python = (binary == 0) & (kind == FrameKind.PYTHON)
        strings = len(self.tree.strings)
        slot = np.where(unnamed_python, strings, binary)
        frames = (kind >= FrameKind.PYTHON) & (kind <= FrameKind.GPU_COPY)
        weights = np.bincount(slot[frames], weights=own[frames], minlength=strings + 1)
        top = np.argsort(-weights)[:12].tolist()
        named = [
            ("python" if place == strings else self.tree.strings[place], float(weights[place]))
            for place in top
        ]
        return [(name, weight) for name, weight in named if weight > 0 and name]
