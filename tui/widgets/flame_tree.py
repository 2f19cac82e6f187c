"""The flame tree on the screen: a scroll view that draws only the rows in sight, with its keys, mouse, zoom
and search."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from gpuprof.snapshots.errors import FrameError
from gpuprof.snapshots.frames import Tree
from gpuprof.snapshots.names import clean
from gpuprof.tui.widgets.flame_row import RowPainter, breadcrumb, details, legend
from gpuprof.tui.widgets.flame_rows import Expansion, FlameRows
from gpuprof.tui.widgets.styled import Drawn, Line, Paragraph, band, ink, palette_for, wrap


@dataclass(slots=True)
class _View:
    """How one kind of tree was last looked at."""

    expansion: Expansion
    rows: FlameRows | None = None
    node: int | None = None  # under the cursor
    offset: int = 0  # its line on the screen


class FlameTree(Drawn, ScrollView, can_focus=True):
    """Rows of a Tree. Cursor, expansion and zoom survive the next tree of the same kind, by path."""

    ALLOW_SELECT = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "up", show=False),
        Binding("down,j", "move(1)", "down", show=False),
        Binding("pageup,ctrl+b", "page(-1)", "page up", show=False),
        Binding("pagedown,ctrl+f", "page(1)", "page down", show=False),
        Binding("home,g", "edge(0)", "first", show=False),
        Binding("end,G", "edge(1)", "last", show=False),
        Binding("left,h", "shut", "close, or go to the caller", show=False),
        Binding("right,l", "unfold", "open, or go to the first callee", show=False),
        Binding("enter", "zoom", "zoom in", show=False),
        Binding("escape", "unzoom", "zoom out", show=False),
        Binding("e", "expand_all", "open all", show=False),
        Binding("c", "collapse_all", "close all", show=False),
        Binding("n", "match(1)", "next match", show=False),
        Binding("N", "match(-1)", "previous match", show=False),
    ]

    class Moved(Message):
        """The cursor, zoom, search or tree changed: whoever shows details of the row should look again."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.rows: FlameRows | None = None
        self.cursor = 0  # row number
        self.needle = ""
        self._message: list[Paragraph] = []
        self._message_lines: list[Line] = []
        self._kind = ""
        self._views: dict[str, _View] = {}
        self._view = _View(Expansion({}, set()))  # of this kind, as of the last tree of it

    # ---------------------------------------- content

    def set_tree(self, tree: Tree) -> None:
        """Show an answer; a tree whose columns make no sense is reported instead of drawn."""
        self._note_view()
        try:
            rows = FlameRows(tree, self._view.expansion)
        except FrameError as error:
            self.set_message([(f"The answer cannot be drawn: {error.message}.", ink())])
            return
        top = self._carry_over(self._view.rows, rows) if self._view.rows is not None else None
        if self.needle:
            rows.search(self.needle)
        self.rows = rows
        self._message = []
        self._layout_rows()
        if top is not None:
            self.scroll_to(y=top, animate=False)
        self.post_message(self.Moved())

    def show_kind(self, kind: str) -> None:
        """Trees of this kind come from now on; how the last kind was looked at is kept until it is back."""
        if kind == self._kind:
            return
        self._note_view()
        self._views[self._kind] = self._view
        self._kind = kind
        self._view = self._views.pop(kind, _View(Expansion({}, set())))
        self.rows, self.cursor = None, 0

    def _note_view(self) -> None:
        """Remember cursor and zoom, which a message in place of the tree would lose."""
        if self.rows is not None:
            view = self._view
            view.rows, view.node, view.offset = self.rows, self.node, self.cursor - round(self.scroll_y)

    def _carry_over(self, before: FlameRows, rows: FlameRows) -> int | None:
        """Put zoom and cursor where they were, by path. The line to scroll to, so that the row under the
        cursor stays on its line of the screen; from the top only where it would leave the screen."""
        node, offset = self._view.node, self._view.offset
        for place in (before.root, *before.ancestors(before.root)):
            found = rows.find(int(before.path[place]))
            if found is not None:
                if found:
                    rows.zoom(found)
                break
        if node is None:
            return None
        for place in (node, *before.ancestors(node)):
            found = rows.find(int(before.path[place]))
            if found is not None:
                self.cursor = rows.visible_ancestor(found)
                break
        at_top = self.rows is not None and not round(self.scroll_y)
        leaves = offset < self.size.height <= self.cursor
        return max(0, self.cursor - offset) if leaves or not at_top else None

    def set_message(self, paragraphs: list[Paragraph]) -> None:
        """Show text instead of a tree."""
        if self.rows is None and self._message == paragraphs:
            return
        self._note_view()
        self.rows, self._message = None, paragraphs
        self._layout_rows()
        self.post_message(self.Moved())

    @property
    def node(self) -> int | None:
        """Node under the cursor, or None without a tree."""
        rows = self.rows
        return (
            int(rows.visible[self.cursor]) if rows is not None and self.cursor < len(rows.visible) else None
        )

    def reset_view(self) -> None:
        """Forget expansion, zoom and cursor, as for a question that has nothing to do with the last one."""
        self._views.clear()
        self._view = _View(Expansion({}, set()))
        self.rows, self.cursor = None, 0

    def search(self, needle: str) -> None:
        """Mark what contains `needle` and move to the first match at or below the cursor."""
        self.needle = needle
        rows, node = self.rows, self.node
        if rows is None:
            return
        rows.search(needle)
        if rows.matches is not None and node is not None and not rows.matches[node]:
            found = rows.next_match(node, 1)
            if found is not None:
                self.go_to(found)
        self.refresh()
        self.post_message(self.Moved())

    # ---------------------------------------- drawing

    def _layout_rows(self) -> None:
        if self.rows is None:
            self._message_lines = _wrapped(self._message, self.size.width)
        count = len(self.rows.visible) if self.rows is not None else len(self._message_lines)
        self.cursor = min(self.cursor, max(count - 1, 0))
        size = Size(self.size.width, count)
        if size != self.virtual_size:
            self.virtual_size = size
        self.refresh()

    def on_resize(self) -> None:
        self._layout_rows()

    def render_line(self, y: int) -> Strip:
        width = self.size.width
        row = y + round(self.scroll_y)
        rows = self.rows
        if rows is None:
            line = self._message_lines[row] if row < len(self._message_lines) else Line()
            return line.strip(width, self.base_style)
        if row >= len(rows.visible):
            return Line().strip(width, self.base_style)
        palette = palette_for(self)
        node = int(rows.visible[row])
        line = RowPainter(rows, palette, width, self.needle).line(node)
        background = self.base_style
        if row == self.cursor:
            background = ink(palette.text, palette.selection if self.has_focus else band(palette))
        return line.strip(width, background)

    def on_focus(self) -> None:
        self._refresh_row(self.cursor)

    def on_blur(self) -> None:
        self._refresh_row(self.cursor)

    def _refresh_row(self, row: int) -> None:
        y = row - round(self.scroll_y)
        if 0 <= y < self.size.height:
            self.refresh(Region(0, y, self.size.width, 1))

    def details_lines(self, width: int, max_lines: int) -> list[Line]:
        """Everything about the row under the cursor."""
        rows, node = self.rows, self.node
        if rows is None or node is None:
            return [Line()]
        return details(rows, node, palette_for(self), width, max_lines)

    def legend_line(self, width: int) -> Line:
        """Colours of the binaries with most own weight."""
        return legend(self.rows, palette_for(self), width) if self.rows is not None else Line()

    def breadcrumb_line(self, width: int) -> Line:
        """The path to the zoom root; empty when not zoomed."""
        rows = self.rows
        return breadcrumb(rows, palette_for(self), width) if rows is not None and rows.root else Line()

    # ---------------------------------------- moving

    def go_to(self, node: int) -> None:
        """Put the cursor on a node, opening what hides it."""
        rows = self.rows
        assert rows is not None
        if rows.position(node) is None:
            rows.reveal(node)
            self._layout_rows()
        self._set_cursor(rows.visible_ancestor(node))

    def _set_cursor(self, row: int) -> None:
        rows = self.rows
        if rows is None:
            return
        row = min(max(row, 0), len(rows.visible) - 1)
        old, self.cursor = self.cursor, row
        top, height = round(self.scroll_y), max(self.size.height, 1)
        if row < top:
            self.scroll_to(y=row, animate=False)
        elif row >= top + height:
            self.scroll_to(y=row - height + 1, animate=False)
        if old != row:
            self._refresh_row(old)
            self._refresh_row(row)
            self.post_message(self.Moved())

    def action_move(self, step: int) -> None:
        if self.rows is None:
            self.scroll_relative(y=step, animate=False)
        self._set_cursor(self.cursor + step)

    def action_page(self, step: int) -> None:
        self._set_cursor(self.cursor + step * max(1, self.size.height - 1))

    def action_edge(self, last: int) -> None:
        self._set_cursor(len(self.rows.visible) - 1 if last and self.rows is not None else 0)

    def action_match(self, step: int) -> None:
        rows, node = self.rows, self.node
        if rows is None or node is None:
            return
        found = rows.next_match(node, step)
        if found is not None:
            self.go_to(found)
            self.post_message(self.Moved())

    # ---------------------------------------- expansion

    def _after_change(self, node: int) -> None:
        assert self.rows is not None
        self._layout_rows()
        self._set_cursor(self.rows.visible_ancestor(node))
        self.post_message(self.Moved())

    def action_shut(self) -> None:
        rows, node = self.rows, self.node
        if rows is None or node is None:
            return
        if rows.expanded[node]:
            rows.set_expanded(node, False)
            self._after_change(node)
        elif node != rows.root:
            self._set_cursor(rows.visible_ancestor(int(rows.parent[node])))

    def action_unfold(self) -> None:
        rows, node = self.rows, self.node
        if rows is None or node is None or not rows.has_children[node]:
            return
        if rows.expanded[node]:
            self._set_cursor(self.cursor + 1)
        else:
            rows.set_expanded(node, True)
            self._after_change(node)

    def action_open_or_shut(self) -> None:
        rows, node = self.rows, self.node
        if rows is not None and node is not None and rows.has_children[node]:
            rows.set_expanded(node, not rows.expanded[node])
            self._after_change(node)

    def action_expand_all(self) -> None:
        if self.rows is not None and self.node is not None:
            node = self.node
            self.rows.expand_all()
            self._after_change(node)

    def action_collapse_all(self) -> None:
        if self.rows is not None and self.node is not None:
            node = self.node
            self.rows.collapse_all()
            self._after_change(node)

    def action_zoom(self) -> None:
        rows, node = self.rows, self.node
        if rows is None or node is None or node == rows.root or not rows.has_children[node]:
            return
        rows.zoom(node)
        self._after_change(node)

    def action_unzoom(self) -> None:
        rows = self.rows
        if rows is not None and rows.root:
            node = self.node or rows.root
            parent = int(rows.parent[rows.root])
            while (
                parent and not rows.branches[parent]
            ):  # a chain of only children looks the same from any of them
                parent = int(rows.parent[parent])
            rows.zoom(parent)
            self._after_change(node)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Escape belongs to the screen unless there is a zoom to leave."""
        if action == "unzoom":
            return self.rows is not None and self.rows.root != 0
        return True

    def on_click(self, event: events.Click) -> None:
        row = event.y + round(self.scroll_y)
        rows = self.rows
        if rows is None or not 0 <= row < len(rows.visible):
            return
        self._set_cursor(row)
        if event.chain == 2:
            self.action_zoom()
            return
        node = int(rows.visible[row])
        start, end = RowPainter(rows, palette_for(self), self.size.width, "").expander_cells(node)
        if start <= event.x <= end:
            self.action_open_or_shut()


def _wrapped(paragraphs: list[Paragraph], width: int) -> list[Line]:
    """Text with a margin, after an empty line."""
    lines = [Line()]
    for text, style in paragraphs:
        if text:
            lines += [
                Line().add("  ").add(part, style) for part in wrap(clean(text, 600), max(10, width - 4))
            ]
    return lines
