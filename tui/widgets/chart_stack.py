"""All charts above one time axis, in one widget.

Layout, selection of a range by mouse and keys, and what is repainted.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.filter import ANSIToTruecolor
from textual.geometry import Region
from textual.message import Message
from textual.strip import Strip
from textual.timer import Timer
from textual.widget import Widget

from gpuprof.snapshots.frames import GpuFacts
from gpuprof.tui import palette as colors
from gpuprof.tui.series import SeriesStore
from gpuprof.tui.widgets.braille import Glyphs, default_glyphs
from gpuprof.tui.widgets.stack_painter import Screen, StackPainter, changed_bands
from gpuprof.tui.widgets.surface import Segments
from gpuprof.tui.widgets.viewport import Viewport


class ChartStack(Widget, can_focus=True):
    """The charts of one node.

    The app hands it the store, devices and names, and calls `refresh_data` on new readings.
    """

    ALLOW_SELECT = False  # Textual's text selection would take the drag
    DEFAULT_CSS = "ChartStack { height: 1fr; min-height: 1; }"

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("v", "select", "Select"),
        Binding("enter", "pin", "Pin", show=False),
        Binding("escape", "clear", "Clear", show=False),
        Binding("o", "swap", "Other end", show=False),
        Binding("left", "move(-1)", "Earlier", show=False),
        Binding("right", "move(1)", "Later", show=False),
        Binding("shift+left", "move(-10)", "Much earlier", show=False),
        Binding("shift+right", "move(10)", "Much later", show=False),
        Binding("plus,equals_sign", "zoom(-1)", "Zoom in", show=False, key_display="+"),
        Binding("minus", "zoom(1)", "Zoom out", show=False, key_display="-"),
        Binding("F", "fit", "Whole time", show=False),
        Binding("end", "follow", "Live", show=False),
        Binding("home", "oldest", "Oldest", show=False),
        Binding("up", "scroll_charts(-1)", "Charts up", show=False),
        Binding("down", "scroll_charts(1)", "Charts down", show=False),
        Binding("g", "next_gpu(1)", "GPU"),
        Binding("G", "next_gpu(-1)", "GPU back", show=False),
    ]

    class RangeSelected(Message):
        """A range [start_ns, end_ns) was pinned."""

        def __init__(self, start_ns: int, end_ns: int) -> None:
            super().__init__()
            self.start_ns = start_ns
            self.end_ns = end_ns

    class RangeCleared(Message):
        """The pinned range was given up."""

    class CursorMoved(Message):
        """The cursor was placed on the column [start_ns, end_ns), or taken away (both None)."""

        def __init__(self, start_ns: int | None, end_ns: int | None) -> None:
            super().__init__()
            self.start_ns = start_ns
            self.end_ns = end_ns

        def can_replace(self, message: Message) -> bool:
            return isinstance(message, ChartStack.CursorMoved)

    class GpuChosen(Message):
        """Another device is shown; `uuid` None: all of them."""

        def __init__(self, uuid: str | None) -> None:
            super().__init__()
            self.uuid = uuid

    def __init__(
        self,
        *,
        glyphs: Glyphs | None = None,
        refresh_hz: float = 4.0,
        name: str | None = None,
        id: str | None = None,
        classes: str | None = None,
    ) -> None:
        super().__init__(name=name, id=id, classes=classes)
        self.view = Viewport()
        self.refresh_hz = refresh_hz
        self.glyphs = glyphs or default_glyphs(
            os.environ, getattr(sys.__stdout__, "encoding", None) or "ascii"
        )
        # Called as a range is pinned, before the next key: a message would come after it.
        self.on_pin: Callable[[], None] = lambda: None
        self._painter = StackPainter()
        self._now_ns: int | None = None
        self._lines: list[Segments] = []
        self._strips: list[Strip] = []
        self._ansi = False  # drawn in ANSI colours
        self._drawn_at = 0.0
        self._pending: Timer | None = None
        self._drag_from: int | None = None
        self._dragged = False

    # -------------------------------------------------------------------------------------------- for the app

    def set_store(self, store: SeriesStore) -> None:
        """Draw the series of `store` from now on."""
        self._painter.set_store(store)
        self._redraw()

    def set_gpus(self, gpus: Sequence[GpuFacts]) -> None:
        """The devices of the node.

        With one it is shown with its processes, with several all are, until one is chosen.
        """
        self._painter.gpus = list(gpus)
        if self._painter.gpu not in [gpu.uuid for gpu in gpus]:
            self._painter.gpu = None
        self._replan()

    def set_processes(self, names: dict[int, str]) -> None:
        """Names of processes by pid, for the legends; they may hold anything."""
        if names != self._painter.names:
            self._painter.names = dict(names)
            self._replan()

    def set_rates(self, labels: dict[int, str]) -> None:
        """Names of the work rates that are charted, by the number of their series."""
        if labels != self._painter.rates:
            self._painter.rates = dict(labels)
            self._replan()

    def set_clock(self, mono_ns: int, wall_ns: int) -> None:
        """The pair of clocks, of a Hello or Clock frame, that gives the axis wall-clock times."""
        self._painter.wall_offset_ns = wall_ns - mono_ns
        self._redraw()

    def refresh_data(self) -> None:
        """There are new readings: draw them, at most `refresh_hz` times a second."""
        if self._pending is not None or not self.is_mounted:
            return
        wait = self._drawn_at + 1 / max(self.refresh_hz, 0.1) - time.monotonic()
        if wait <= 0.002:
            self._redraw()
        else:
            self._pending = self.set_timer(wait, self._draw_pending)

    @property
    def now_ns(self) -> int:
        """The right end of what can be seen: the newest reading, unless the app has set it."""
        return self._painter.store.newest_ns if self._now_ns is None else self._now_ns

    @now_ns.setter
    def now_ns(self, value: int | None) -> None:
        self._now_ns = value
        self._redraw()

    @property
    def live(self) -> bool:
        """Whether the charts follow the newest reading."""
        return self.view.live

    @live.setter
    def live(self, value: bool) -> None:
        if value:
            self.view.follow()
        else:
            self.view.newest_ns = self.now_ns
            self.view.stand()
        self._redraw()

    @property
    def window_ns(self) -> int:
        """Length of time that the axis shows."""
        return self.view.window_ns

    @window_ns.setter
    def window_ns(self, value: int) -> None:
        self.view.window_ns = max(int(value), 1_000_000)
        self._redraw()

    @property
    def selected_gpu(self) -> str | None:
        """UUID of the device shown; None: all of them."""
        return self._painter.gpu

    @property
    def has_data(self) -> bool:
        """Whether any reading has come; before that there is no time to select."""
        return self._painter.store.newest_ns > 0

    @property
    def selected_range(self) -> tuple[int, int] | None:
        """The pinned range [start_ns, end_ns)."""
        return self.view.pinned

    def select_range(self, start_ns: int, end_ns: int, *, show: bool = False) -> None:
        """Pin a range from the program (posts RangeSelected).

        `show`: move the window so that it is in sight.
        """
        if end_ns <= start_ns:
            return
        self.view.drop()
        self.view.pinned = (start_ns, end_ns)
        if show and not self.view.scale.start_ns <= start_ns <= end_ns <= self.view.scale.end_ns:
            self.view.window_ns = max(self.view.window_ns, (end_ns - start_ns) * 5 // 4)
            self.view.stand(min(end_ns + self.view.window_ns // 8, max(self.now_ns, end_ns)))
        self.post_message(self.RangeSelected(start_ns, end_ns))
        self._redraw()

    def clear_range(self) -> None:
        """Give up the pinned range (posts RangeCleared when there was one)."""
        self.view.drop()
        if self.view.pinned is not None:
            self.view.pinned = None
            self.post_message(self.RangeCleared())
        self._redraw()

    def show_all(self) -> None:
        """Zoom so that everything from the oldest to the newest reading is in sight."""
        self.view.newest_ns = self.now_ns
        self.view.oldest_ns = self._painter.store.span[0]
        self.view.fit()
        self._redraw()

    # ------------------------------------------------------------------------------------------------ drawing

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

    def _replan(self) -> None:
        self._painter.replan()
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
        self.view.newest_ns = self.now_ns
        self._painter.plan(self.view)
        old, strips = self._lines, self._strips
        self._lines = self._painter.draw(self.view, self._screen(width, height))
        if len(old) != len(self._lines) or (strips and strips[0].cell_length != width):
            self._strips = [Strip(line, width) for line in self._lines]
            self.refresh()
            return
        bands = changed_bands(old, self._lines)
        for y, count in bands:
            strips[y : y + count] = [Strip(line, width) for line in self._lines[y : y + count]]
        if bands:
            self.refresh(*[Region(0, y, width, count) for y, count in bands])

    def _screen(self, width: int, height: int) -> Screen:
        dark = self.app.current_theme.dark
        palette = colors.choose(dark=dark, color_system=self.app.console.color_system)
        color = self.background_colors[1]
        self._ansi = palette is colors.ANSI16 or color.ansi is not None
        ground = "default" if self._ansi else color.rich_color.name
        return Screen(width, height, palette, self.glyphs, ground, self.has_focus)

    # ------------------------------------------------------------------------------------------------ mouse

    def _column_at(self, event: events.MouseEvent) -> int | None:
        """Column of the plot under the pointer; None beside it."""
        if self._painter.surface is None or not self.has_data:
            return None
        column = event.x - self.gutter.left - self._painter.surface.gutter
        return column if 0 <= column < self._painter.surface.scale.columns else None

    def on_mouse_down(self, event: events.MouseDown) -> None:
        column = self._column_at(event)
        if event.button != 1 or column is None:
            return
        self.capture_mouse()
        self._drag_from = column
        self._dragged = False
        pinned, scale = self.view.pinned, self.view.scale
        if pinned is not None:
            # Near an edge of the pinned range the drag moves that edge.
            left, right = scale.column(pinned[0]), scale.column(pinned[1] - 1)
            if right - left >= 3 and abs(column - left) <= 1:
                self._drag_from = right
            elif right - left >= 3 and abs(column - right) <= 1:
                self._drag_from = left
        event.stop()

    def on_mouse_move(self, event: events.MouseMove) -> None:
        if self._drag_from is None or self._painter.surface is None:
            return
        column = self.view.scale.clamp(event.x - self.gutter.left - self._painter.surface.gutter)
        if not self._dragged:
            if column == self._drag_from:
                return
            self._dragged = True
            self.view.cursor_ns = None
            self.view.begin(self._drag_from, column)
        else:
            before = self.view.range
            self.view.extend(column)
            if self.view.range == before:
                return
        self._redraw()
        event.stop()

    def on_mouse_up(self, event: events.MouseUp) -> None:
        if self._drag_from is None:
            return
        self.release_mouse()
        column, self._drag_from = self._drag_from, None
        if self._dragged:
            self.action_pin()
        elif self.view.selecting:
            self.view.extend(column)
            self.action_pin()
        else:
            same = self.view.cursor_column == column
            self._set_cursor(None if same else column)
        event.stop()

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        self._wheel(event, -1)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        self._wheel(event, 1)

    def _wheel(self, event: events.MouseEvent, direction: int) -> None:
        event.stop()
        if event.shift or event.ctrl:
            self._pan(direction * max(self.view.columns // 20, 1))
        else:
            self.view.zoom(direction, self._column_at(event))
            self._redraw()

    # ------------------------------------------------------------------------------------------------ keys

    def action_select(self) -> None:
        """Start a range at the cursor (in the middle, where there is none).

        When one is being made, pin it.
        """
        if self.view.selecting:
            self.action_pin()
            return
        if not self.has_data:
            return
        column = self.view.cursor_column
        if column is None or not 0 <= column < self.view.columns:
            column = self.view.columns // 2
        self.view.begin(column)
        self.view.put_cursor(column)
        self._redraw()

    def action_pin(self) -> None:
        """Pin the range that is being selected."""
        pinned = self.view.pin()
        if pinned is not None:
            self.view.cursor_ns = None
            self.post_message(self.RangeSelected(*pinned))
            self.on_pin()
        self._redraw()

    def action_clear(self) -> None:
        """Give up, one at a time.

        The range being made, the cursor, the pinned range; then go back to live.
        """
        if self.view.selecting:
            self.view.drop()
            self.view.cursor_ns = None
        elif self.view.cursor_ns is not None:
            self._set_cursor(None)
        elif self.view.pinned is not None:
            self.clear_range()
        elif not self.view.live:
            self.view.follow()
        self._redraw()

    def action_swap(self) -> None:
        """Move the other end of the range."""
        self.view.swap()
        self._redraw()

    def action_move(self, columns: int) -> None:
        """Move the cursor where there is one, else the window."""
        if self.view.selecting or self.view.cursor_ns is not None:
            self.view.move_cursor(columns)
            self._cursor_moved()
        else:
            self._pan(columns * max(self.view.columns // 20, 1))

    def action_zoom(self, steps: int) -> None:
        """A wider (positive) or narrower window, around the cursor where there is one."""
        self.view.zoom(steps, self.view.cursor_column)
        self._redraw()

    def action_fit(self) -> None:
        """Everything from the oldest to the newest reading."""
        self.show_all()

    def action_follow(self) -> None:
        """Back to the newest reading."""
        self.view.follow()
        self._redraw()

    def action_oldest(self) -> None:
        """The oldest readings."""
        view = self.view
        view.stand(view.oldest_ns + view.window_ns - view.scale.cell_ns)
        self._redraw()

    def action_scroll_charts(self, charts: int) -> None:
        """Bring charts into sight that do not fit."""
        self._painter.skip = max(self._painter.skip + charts, 0)
        self._redraw()

    def action_next_gpu(self, step: int) -> None:
        """Show all devices, then each alone."""
        painter = self._painter
        if len(painter.gpus) < 2:
            return
        choices = [None, *(gpu.uuid for gpu in painter.gpus)]
        painter.gpu = choices[(choices.index(painter.gpu) + step) % len(choices)]
        self.post_message(self.GpuChosen(painter.gpu))
        self._replan()

    def _pan(self, columns: int) -> None:
        self.view.pan(columns)
        self._redraw()

    def _set_cursor(self, column: int | None) -> None:
        if column is None:
            self.view.cursor_ns = None
        else:
            self.view.put_cursor(column)
        self._cursor_moved()

    def _cursor_moved(self) -> None:
        start = self.view.cursor_ns
        self.post_message(self.CursorMoved(start, None if start is None else start + self.view.scale.cell_ns))
        self._redraw()
