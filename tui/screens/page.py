"""A page of text over the main screen, which scrolls: what the help and the notes are shown on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.screen import ModalScreen
from textual.scroll_view import ScrollView
from textual.strip import Strip

from gpuprof.tui.palette import Palette
from gpuprof.tui.widgets.styled import Line, ink, palette_for, wrap

# A title, and under it what (may be empty) and the text about it.
Section = tuple[str, Sequence[tuple[str, str]]]
ROOMY = 70


class PageText(ScrollView, can_focus=True):
    """The text, drawn by line."""

    ALLOW_SELECT = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "scroll_up", "up", show=False),
        Binding("down,j", "scroll_down", "down", show=False),
    ]

    def __init__(self, sections: Sequence[Section], *, key_cells: int = 24, id: str | None = None) -> None:
        """`key_cells`: width of the left column on a wide screen."""
        super().__init__(id=id)
        self._sections, self._key_cells = sections, key_cells
        self._lines: list[Line] = []

    def on_mount(self) -> None:
        self._build()

    def on_resize(self) -> None:
        self._build()

    @property
    def _cells(self) -> int:
        """The width of a line: less the scroll bar's place, which is always kept."""
        return self.scrollable_content_region.width

    def _build(self) -> None:
        width = max(20, self._cells)
        left = self._key_cells if width >= ROOMY else self._key_cells * 2 // 3
        palette = palette_for(self)
        self._lines = [line for section in self._sections for line in _drawn(section, palette, width, left)]
        self.virtual_size = Size(self._cells, len(self._lines))

    def render_line(self, y: int) -> Strip:
        row = y + round(self.scroll_y)
        line = self._lines[row] if row < len(self._lines) else Line()
        return line.strip(self._cells, self.rich_style)


class Page(ModalScreen[None]):
    """Shown over the main screen until one of its keys or Esc closes it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,question_mark,m", "dismiss", "close", show=False),
    ]

    def __init__(self, sections: Sequence[Section], *, key_cells: int = 24) -> None:
        super().__init__()
        self._sections, self._key_cells = sections, key_cells

    def compose(self) -> ComposeResult:
        yield PageText(self._sections, key_cells=self._key_cells, id="page-text")


def _drawn(section: Section, palette: Palette, width: int, left: int) -> list[Line]:
    title, entries = section
    lines = [Line().add(title, ink(palette.accent, bold=True))]
    for key, meaning in entries:
        head = Line().add(f"  {key}", ink(palette.lines[0]))
        if head.cells >= left:  # a long key in a narrow column has a line of its own
            lines.append(head)
            head = Line()
        for text in wrap(" ".join(meaning.split()), width - left):
            lines.append(head.pad_to(left).add(text, ink(palette.text)))
            head = Line()
    return [*lines, Line()]
