"""The tree on the main screen: as rows or as boxes, or what stands in its place."""

from __future__ import annotations

from gpuprof.tui.palette import Palette
from gpuprof.tui.session import Session
from gpuprof.tui.widgets import status_bar
from gpuprof.tui.widgets.flame_tree import FlameTree
from gpuprof.tui.widgets.icicle import Icicle


class TreeView:
    """Both widgets that show a tree, of which one is displayed."""

    def __init__(self, flame: FlameTree, icicle: Icicle) -> None:
        self._flame = flame
        self._icicle = icicle
        self._as_boxes = False

    @property
    def widget(self) -> FlameTree | Icicle:
        """The widget that shows the tree now."""
        return self._icicle if self._icicle.display else self._flame

    def begin(self, session: Session) -> None:
        """Start with another session."""
        self._flame.reset_view()
        self._flame.show_kind(session.feed.tree)
        session.tree_changed = session.link_changed = True

    def show(self, session: Session, palette: Palette) -> None:
        """Show the session's tree where it is another one, or why there is none."""
        message = status_bar.tree_message(session, palette)
        if message:
            self._flame.set_message(message)
        elif session.tree is not None and (session.tree_changed or self._flame.rows is None):
            self._flame.set_tree(session.tree)
        session.tree_changed = session.link_changed = False
        if self._as_boxes:
            self.display()

    def turn(self) -> None:
        """Boxes instead of rows, and back."""
        self._as_boxes = not self._as_boxes

    def display(self) -> None:
        """Display the widget that was chosen; a message needs that of the rows."""
        boxes = self._as_boxes and self._flame.rows is not None
        self._icicle.display, self._flame.display = boxes, not boxes
        if boxes:
            self._icicle.follow()

    def moved(self) -> None:
        """The cursor of the rows has moved: the boxes have the same."""
        if self._icicle.display:
            self._icicle.follow()
