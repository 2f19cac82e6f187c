"""A widget that is drawn as a whole, at a limited pace, and repainted only where its lines changed."""

from __future__ import annotations

import time
from abc import abstractmethod

from textual.filter import ANSIToTruecolor
from textual.geometry import Region
from textual.strip import Strip
from textual.timer import Timer
from textual.widget import Widget

from gpuprof.tui.widgets.stack_painter import changed_bands
from gpuprof.tui.widgets.surface import Segments


class Painted(Widget):
    """Draws by `draw`, of which each line is as wide as the widget and in its final colours."""

    def __init__(self, *, refresh_hz: float, name: str | None, id: str | None, classes: str | None) -> None:
        super().__init__(name=name, id=id, classes=classes)
        self.refresh_hz = refresh_hz
        self._lines: list[Segments] = []
        self._strips: list[Strip] = []
        self._ansi = False  # drawn in ANSI colours
        self._drawn_at = 0.0
        self._pending: Timer | None = None

    @abstractmethod
    def draw(self, width: int, height: int) -> list[Segments]:
        """All lines, as they are now; sets `_ansi`."""

    def refresh_data(self) -> None:
        """There is something new: draw it, at most `refresh_hz` times a second."""
        if self._pending is not None or not self.is_mounted:
            return
        wait = self._drawn_at + 1 / max(self.refresh_hz, 0.1) - time.monotonic()
        if wait <= 0.002:
            self._redraw()
        else:
            self._pending = self.set_timer(wait, self._draw_pending)

    def render_line(self, y: int) -> Strip:
        width = self.size.width
        return self._strips[y] if y < len(self._strips) else Strip.blank(width, self.rich_style)

    def render_lines(self, crop: Region) -> list[Strip]:
        # Strips are whole lines in their final colours, so Textual's cache of styled lines would only copy
        # them. It is passed by unless the app's style sheet or a filter (such as NO_COLOR's) has something to
        # add.
        if self.gutter != (0, 0, 0, 0) or self.opacity != 1.0 or self.styles.tint.a or self._filtered():
            return super().render_lines(crop)
        strips = [self.render_line(y) for y in crop.line_range]
        if crop.column_span != (0, self.size.width):
            strips = [strip.crop(*crop.column_span) for strip in strips]
        return strips

    def _filtered(self) -> bool:
        """Whether lines are filtered by more than the translation of ANSI colours, which do not occur."""
        return self._ansi or any(
            not isinstance(line_filter, ANSIToTruecolor) for line_filter in self.get_line_filters()
        )

    def on_mount(self) -> None:
        self._redraw()

    def on_resize(self) -> None:
        self._redraw()

    def notify_style_update(self) -> None:
        super().notify_style_update()
        if self.is_mounted:
            self._redraw()

    def _draw_pending(self) -> None:
        self._pending = None
        self._redraw()

    def _redraw(self) -> None:
        """Compute all lines, and have those repainted that changed."""
        width, height = self.size
        if not self.is_mounted or width <= 0 or height <= 0:
            return
        self._drawn_at = time.monotonic()
        old, strips = self._lines, self._strips
        self._lines = self.draw(width, height)
        if len(old) != len(self._lines) or (strips and strips[0].cell_length != width):
            self._strips = [Strip(line, width) for line in self._lines]
            self.refresh()
            return
        bands = changed_bands(old, self._lines)
        for y, count in bands:
            strips[y : y + count] = [Strip(line, width) for line in self._lines[y : y + count]]
        if bands:
            self.refresh(*[Region(0, y, width, count) for y, count in bands])
