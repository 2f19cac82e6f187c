"""The one-line prompt at the bottom, for the search (as you type) and the filter (on Enter)."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import Input

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

    class Done(Message):
        """Enter (accepted) or Esc (not accepted)."""

        def __init__(self, mode: str, text: str, accepted: bool) -> None:
            super().__init__()
            self.mode, self.text, self.accepted = mode, text, accepted

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id, max_length=200, select_on_focus=False, compact=True)
        self.mode = SEARCH

    def ask(self, mode: str, text: str) -> None:
        """Open for `mode` with `text` to begin with."""
        self.mode = mode
        self.placeholder = _PLACEHOLDERS[mode]
        self.value = text
        self.cursor_position = len(text)
        self.display = True
        self.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        if self.display:
            self.post_message(self.Typed(self.mode, event.value))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self._finish(True)

    def action_cancel(self) -> None:
        self._finish(False)

    def _finish(self, accepted: bool) -> None:
        self.display = False
        self.post_message(self.Done(self.mode, self.value, accepted))
