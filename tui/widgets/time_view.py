"""A widget above a time axis: which window of time is in sight, and how keys and the wheel move it."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType

from gpuprof.tui.widgets.painted import Painted
from gpuprof.tui.widgets.viewport import Viewport


class TimeView(Painted):
    """Draws what `view` looks at."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("plus,equals_sign", "zoom(-1)", "Zoom in", show=False, key_display="+"),
        Binding("minus", "zoom(1)", "Zoom out", show=False, key_display="-"),
        Binding("F", "fit", "Whole time", show=False),
        Binding("end", "follow", "Live", show=False),
        Binding("home", "oldest", "Oldest", show=False),
    ]

    def __init__(self, *, refresh_hz: float, name: str | None, id: str | None, classes: str | None) -> None:
        super().__init__(refresh_hz=refresh_hz, name=name, id=id, classes=classes)
        self.view = Viewport()
        self._now_ns: int | None = None

    @property
    @abstractmethod
    def oldest_ns(self) -> int:
        """The oldest instant that there is anything of."""

    @property
    @abstractmethod
    def newest_ns(self) -> int:
        """The newest instant that there is anything of."""

    @abstractmethod
    def _column_at(self, event: events.MouseEvent) -> int | None:
        """The column of the axis under the pointer; None beside it."""

    @property
    def now_ns(self) -> int:
        """The right end of what can be seen: the newest reading, unless the app has set it."""
        return self.newest_ns if self._now_ns is None else self._now_ns

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

    def show_all(self) -> None:
        """Zoom so that everything from the oldest to the newest reading is in sight."""
        self.view.newest_ns = self.now_ns
        self.view.oldest_ns = self.oldest_ns
        self.view.fit()
        self._redraw()

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

    def _pan(self, columns: int) -> None:
        self.view.pan(columns)
        self._redraw()
