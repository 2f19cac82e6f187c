"""A question over the main screen, answered by y or n."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen

from gpuprof.tui.widgets.styled import Line, Lines, ink, palette_for, wrap

WIDTH = 72
_MARGIN = 4


class ConfirmScreen(ModalScreen[bool]):
    """True when it was confirmed."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y,enter", "answer(True)", "yes", show=False),
        Binding("n,escape,q", "answer(False)", "no", show=False),
    ]

    def __init__(self, question: str, text: str) -> None:
        super().__init__()
        self._question, self._text = question, text

    def compose(self) -> ComposeResult:
        yield Lines(id="question")

    def on_mount(self) -> None:
        self._draw()

    def on_resize(self) -> None:
        self._draw()

    def _draw(self) -> None:
        palette, widget = palette_for(self), self.query_one(Lines)
        width = max(10, min(WIDTH, self.size.width - _MARGIN))
        lines = [Line().add(row, ink(palette.text, bold=True)) for row in wrap(self._question, width)]
        lines += [Line(), *(Line().add(row, ink(palette.text)) for row in wrap(self._text, width))]
        lines += [Line(), Line().add("y", ink(palette.accent, bold=True)).add(" yes    ", ink(palette.text))]
        lines[-1].add("n", ink(palette.accent, bold=True)).add(" no", ink(palette.text))
        widget.styles.width = width + _MARGIN
        widget.styles.height = len(lines) + 2
        widget.show(lines)

    def action_answer(self, yes: bool) -> None:
        self.dismiss(yes)
