"""All charts above one time axis, in one widget.

What the app hands it, and what mouse and keys do.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message

from gpuprof.snapshots.frames import GpuFacts
from gpuprof.tui import palette as colors
from gpuprof.tui.series import SeriesStore
from gpuprof.tui.widgets.braille import Glyphs, default_glyphs
from gpuprof.tui.widgets.drag import Drag
from gpuprof.tui.widgets.stack_painter import Screen, StackPainter
from gpuprof.tui.widgets.surface import Segments
from gpuprof.tui.widgets.time_view import TimeView


class ChartStack(TimeView, can_focus=True):
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
        super().__init__(refresh_hz=refresh_hz, name=name, id=id, classes=classes)
        self.glyphs = glyphs or default_glyphs(
            os.environ, getattr(sys.__stdout__, "encoding", None) or "ascii"
        )
        # Called as a range is pinned, before the next key: a message would come after it.
        self.on_pin: Callable[[], None] = lambda: None
        self._painter = StackPainter()
        self._drag = Drag(self.view)

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

    @property
    def oldest_ns(self) -> int:
        return self._painter.store.span[0]

    @property
    def newest_ns(self) -> int:
        return self._painter.store.newest_ns

    @property
    def selected_gpu(self) -> str | None:
        """UUID of the device shown; None: all of them."""
        return self._painter.gpu

    @property
    def has_data(self) -> bool:
        """Whether any reading has come; before that there is no time to select."""
        return self.newest_ns > 0

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

    def show_range(self, pinned: tuple[int, int] | None) -> None:
        """Mark what is pinned already, or nothing, and post no message: another source has its own range."""
        self.view.drop()
        self.view.pinned = pinned
        self._redraw()

    # ------------------------------------------------------------------------------------------------ drawing

    def _replan(self) -> None:
        self._painter.replan()
        self._redraw()

    def draw(self, width: int, height: int) -> list[Segments]:
        self.view.newest_ns = self.now_ns
        self._painter.plan(self.view)
        return self._painter.draw(self.view, self._screen(width, height))

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
        self._drag.press(column)
        event.stop()

    def on_mouse_move(self, event: events.MouseMove) -> None:
        if not self._drag.is_held or self._painter.surface is None:
            return
        column = self.view.scale.clamp(event.x - self.gutter.left - self._painter.surface.gutter)
        if self._drag.move(column):
            self._redraw()
            event.stop()

    def on_mouse_up(self, event: events.MouseUp) -> None:
        if not self._drag.is_held:
            return
        self.release_mouse()
        column = self._drag.release()
        if column is None:
            self.action_pin()
        else:
            self._set_cursor(None if column == self.view.cursor_column else column)
        event.stop()

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
