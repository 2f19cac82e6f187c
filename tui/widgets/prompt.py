"""The one-line prompt at the bottom, for the search (as you type) and the filter (on Enter)."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.message import Message
from textual.strip import Strip
from textual.widgets import Input

from gpuprof.snapshots.names import clean, fit
from gpuprof.tui.widgets.styled import Line, ink, palette_for

SEARCH = "search"
FILTER = "filter"
_PLACEHOLDERS = {
    SEARCH: "search names, files and binaries; Enter keeps, then n and N; Esc clears",
    FILTER: "pid 4711 · tid 12 · cpu 0-3 · part of a process name; empty shows all; Esc leaves it as it was",
}


class Prompt(Input):
    """An input that knows what it asks for."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "cancel", "cancel", show=False)]

    class Typed(Message):
        """The text changed."""

        def __init__(self, mode: str, text: str) -> None:
            super().__init__()
            self.mode, self.text = mode, text

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id, max_length=200, select_on_focus=False, compact=True)
        self.mode = SEARCH
        self.error = ""
        # Called as the prompt closes, not posted: the next key may be there already. What it returns is what
        # is wrong with an accepted text, which is then asked for again.
        self.on_done: Callable[[str, str, bool], str] = lambda _mode, _text, _accepted: ""

    def ask(self, mode: str, text: str) -> None:
        """Open for `mode` with `text` to begin with."""
        self.mode = mode
        self.placeholder = _PLACEHOLDERS[mode]
        self.value = text
        self.cursor_position = len(text)
        self.error = ""
        self.display = True
        self.screen.set_focus(self, scroll_visible=False)

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        if self.display and event.value == self.value:
            self.post_message(self.Typed(self.mode, event.value))

    async def action_submit(self) -> None:
        self._finish(True)

    def action_cancel(self) -> None:
        self._finish(False)

    def _finish(self, accepted: bool) -> None:
        self.display = False
        wrong = self.on_done(self.mode, self.value, accepted)
        self.error = clean(wrong, 200) if wrong else ""
        if self.error:
            self.display = True
            self.screen.set_focus(self, scroll_visible=False)
            self.refresh()

    def watch_value(self, _value: str) -> None:
        """What was wrong is about to be put right."""
        self.error = ""

    def render_line(self, y: int) -> Strip:
        strip = super().render_line(y)
        if not self.error or y:
            return strip
        width = min(strip.cell_length, self.content_size.width)  # it has a cell for the cursor behind it
        said = Line().add(" " + fit(self.error, max(width - 12, 4)), ink(palette_for(self).error, bold=True))
        left = max(width - said.cells, 0)
        return Strip.join([strip.crop(0, left), said.strip(width - left, self.rich_style)])
