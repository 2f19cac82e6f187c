"""The lines of text on the main screen: the summary, what stands around the tree, and the keys."""

from __future__ import annotations

from typing import Any

from textual.containers import Vertical
from textual.screen import Screen

from gpuprof.snapshots.names import clean
from gpuprof.tui.screens.placing import LEAST_COLUMNS, LEAST_ROWS, TINY_ROWS, set_height
from gpuprof.tui.session import Session
from gpuprof.tui.widgets import status_bar
from gpuprof.tui.widgets.flame_tree import FlameTree
from gpuprof.tui.widgets.styled import Line, Lines, palette_for
from gpuprof.tui.widgets.summary import rows_for_summary, summary_lines


class Texts:
    """The widgets of text on a screen, by name, and what they show of a session."""

    def __init__(self, screen: Screen[None]) -> None:
        self._screen = screen
        # Held, since a query finds nothing any more while the screen is being taken down.
        self._widgets = {widget.id: widget for widget in screen.query(Lines)}
        self._summary_key: tuple[Any, ...] = ()
        self.summary_rows = 0  # that the summary takes

    def __getitem__(self, name: str) -> Lines:
        return self._widgets[name]

    def show_summary(self, session: Session) -> bool:
        """The main answer, in all the lines that it needs; tells whether it takes another number of rows."""
        shown, size, palette = self["summary"], self._screen.size, palette_for(self._screen)
        lines = summary_lines(session, palette, size.width, rows_for_summary(size.height))
        shown.display = bool(lines)
        # While the question stays the same it keeps its rows, so that a live screen does not jump.
        key = (session, session.feed.tree, session.feed.pinned, session.feed.gpu, size)
        rows = max(len(lines), self.summary_rows) if lines and key == self._summary_key else len(lines)
        is_new = rows != self.summary_rows
        self.summary_rows = rows
        self._summary_key = key if lines else ()
        set_height(shown, max(1, rows))
        shown.show(lines)
        return is_new

    def show_around_tree(self, session: Session, flame: FlameTree, *, focused: bool) -> None:
        """Title, details, legend and path. `focused`: whether the tree has the keys."""
        pane, height, palette = flame.parent, self._screen.size.height, palette_for(self._screen)
        width = pane.size.width if isinstance(pane, Vertical) else self._screen.size.width
        self._line("tree-title", status_bar.tree_title(session, palette, width, _match_text(flame), focused))
        details = flame.details_lines(width, 1 if height < 24 else 2 if height < 34 else 4)
        widget = self["details"]
        widget.display = height >= TINY_ROWS
        set_height(widget, len(details))
        widget.show(details)
        self._line("legend", flame.legend_line(width))
        crumb = flame.breadcrumb_line(width)
        self["breadcrumb"].display = crumb.cells > 0
        self._line("breadcrumb", crumb)

    def show_keys(self, session: Session, *, lies_over_another: bool) -> None:
        """The keys; `lies_over_another`: whether there is a session to go back to."""
        extra = ((1, "D", "live" if not session.model.live and lies_over_another else "demo"),)
        wanted = not session.model.gpus or lies_over_another
        palette = palette_for(self._screen)
        self._line(
            "footer", status_bar.footer_line(palette, self._screen.size.width, extra if wanted else ())
        )

    def show_too_small(self) -> None:
        """In place of fragments, in a window of no use: the size that would be of use."""
        width, height = self._screen.size
        least = f"{LEAST_COLUMNS}x{LEAST_ROWS}"
        self["too-small"].show(status_bar.too_small_lines(width, height, least, palette_for(self._screen)))

    def _line(self, name: str, line: Line) -> None:
        self[name].show([line])


def _match_text(flame: FlameTree) -> str:
    """The search and how much it finds; empty without one."""
    rows = flame.rows
    if not flame.needle or rows is None:
        return ""
    needle = clean(flame.needle, 40)
    if rows.matches is not None and not rows.matches.any():
        return f"/{needle}: not here"
    return f"/{needle}: {100 * rows.match_fraction:.1f} % of all"
