"""The icicle: the same rows as the flame tree, drawn as boxes from left to right, callers above their
callees.

A box's width is its share of the weight. A node's own weight comes before its callees', so that the left
edge of node i is the sum of the own weights of all nodes before it in preorder, and a whole level is laid
out in a few numpy calls.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import numpy as np
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from gpuprof.snapshots.names import fit
from gpuprof.tui.palette import Palette, frame_color, tinted
from gpuprof.tui.widgets.flame_row import kind_of, name_of
from gpuprof.tui.widgets.flame_rows import FlameRows
from gpuprof.tui.widgets.flame_tree import FlameTree
from gpuprof.tui.widgets.styled import Drawn, Line, ink, palette_for

MAX_LEVELS = 2000


class Box(NamedTuple):
    """A node in cells [left, right) of its level."""

    node: int
    left: int
    right: int


def level_boxes(rows: FlameRows, level: int, width: int) -> list[Box]:
    """The boxes of a level below the zoom root that are at least one cell wide, from left to right."""
    first, last = rows.root, int(rows.end[rows.root])
    total = float(rows.tree.total_weight[rows.root])
    if total <= 0 or width <= 0:
        return []
    nodes = np.flatnonzero(rows.depth[first:last] == rows.depth[first] + level) + first
    before = rows.weight_before[nodes] - rows.weight_before[first]
    left = np.clip(np.rint(before * width / total), 0, width).astype(np.int64)
    right = np.clip(np.rint((before + rows.tree.total_weight[nodes]) * width / total), 0, width).astype(
        np.int64
    )
    seen = right > left
    columns = (nodes[seen].tolist(), left[seen].tolist(), right[seen].tolist())
    return [Box(*box) for box in zip(*columns, strict=True)]


class Icicle(Drawn, ScrollView, can_focus=True):
    """Another look at a FlameTree: cursor, zoom and search are the tree's own."""

    ALLOW_SELECT = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "caller", "caller", show=False),
        Binding("down,j", "callee", "largest callee", show=False),
        Binding("left,h", "beside(-1)", "to the left", show=False),
        Binding("right,l", "beside(1)", "to the right", show=False),
        Binding("enter", "zoom", "zoom in", show=False),
        Binding("escape", "unzoom", "zoom out", show=False),
        Binding("n", "match(1)", "next match", show=False),
        Binding("N", "match(-1)", "previous match", show=False),
    ]

    def __init__(self, flame: FlameTree, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._flame = flame
        self._for: tuple[FlameRows | None, int, int] | None = None

    def follow(self) -> None:
        """The tree, its zoom or its cursor may have changed."""
        rows = self._flame.rows
        key = (rows, rows.root if rows is not None else 0, self.size.width)
        if key != self._for:
            self._for = key
            levels = 1
            if rows is not None:
                below = rows.depth[rows.root : int(rows.end[rows.root])]
                levels = min(int(below.max()) - int(below[0]) + 1, MAX_LEVELS)
            self.virtual_size = Size(self.size.width, levels)
        node = self._flame.node
        if rows is not None and node is not None:
            level = int(rows.depth[node] - rows.depth[rows.root])
            if not self.scroll_y <= level < self.scroll_y + max(self.size.height, 1):
                self.scroll_to(y=max(0, level - self.size.height // 2), animate=False)
        self.refresh()

    def on_resize(self) -> None:
        self.follow()

    def on_focus(self) -> None:
        self.refresh()

    def on_blur(self) -> None:
        self.refresh()

    def render_line(self, y: int) -> Strip:
        width = self.size.width
        rows = self._flame.rows
        if rows is None:
            return Line().strip(width, self.base_style)
        palette = palette_for(self)
        line = Line()
        for box in level_boxes(rows, y + round(self.scroll_y), width):
            line.pad_to(box.left)
            self._draw(line, rows, box, palette)
        return line.strip(width, self.base_style)

    def _draw(self, line: Line, rows: FlameRows, box: Box, palette: Palette) -> None:
        node, cells = box.node, box.right - box.left
        color = frame_color(kind_of(rows, node), rows.tree.strings[rows.tree.binary[node]], palette)
        if color in (palette.text, palette.unknown):
            color = palette.dim
        if rows.matches is not None:
            color = palette.accent if rows.matches[node] else tinted(palette.background, color, 0.35)
        chosen = node == self._flame.node
        text = palette.background if palette.background != "default" else "black"
        bright = palette.text if palette.text.startswith("#") else "bright_white"
        style = ink(text, bright if chosen and self.has_focus else color, bold=chosen)
        if chosen and not self.has_focus:
            style = ink(text, color, bold=True, underline=True)
        label = fit(name_of(rows, node), cells - 1) if cells > 2 else ""
        line.add("▏", style).add(label, style).pad_to(box.right, style)

    # ---------------------------------------- moving

    def action_caller(self) -> None:
        rows, node = self._flame.rows, self._flame.node
        if rows is not None and node is not None and node != rows.root:
            self._flame.go_to(int(rows.parent[node]))

    def action_callee(self) -> None:
        rows, node = self._flame.rows, self._flame.node
        if rows is not None and node is not None and rows.has_children[node]:
            self._flame.go_to(node + 1)  # children come by falling weight

    def action_beside(self, step: int) -> None:
        rows, node = self._flame.rows, self._flame.node
        if rows is None or node is None:
            return
        boxes = level_boxes(rows, int(rows.depth[node] - rows.depth[rows.root]), self.size.width)
        nodes = [box.node for box in boxes]
        place = (nodes.index(node) + step) if node in nodes else 0
        if 0 <= place < len(nodes):
            self._flame.go_to(nodes[place])

    def action_zoom(self) -> None:
        self._flame.action_zoom()

    def action_unzoom(self) -> None:
        self._flame.action_unzoom()

    def action_match(self, step: int) -> None:
        self._flame.action_match(step)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Escape belongs to the screen unless there is a zoom to leave."""
        return self._flame.check_action(action, parameters)

    def on_click(self, event: events.Click) -> None:
        rows = self._flame.rows
        if rows is None:
            return
        for box in level_boxes(rows, event.y + round(self.scroll_y), self.size.width):
            if box.left <= event.x < box.right:
                self._flame.go_to(box.node)
                if event.chain == 2:
                    self._flame.action_zoom()
                return
