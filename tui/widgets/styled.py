"""Lines of styled text for line-API widgets: cached styles, a builder that cannot be tricked by names, and a
widget of a few lines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from gpuprof.snapshots.names import bound, fit, unbound, visible
from gpuprof.tui.palette import Palette, choose, tinted

Paragraph = tuple[str, Style]
ABSENT = "–"  # a value that is not known; never 0
_EIGHTHS = " ▏▎▍▌▋▊▉█"


@lru_cache(maxsize=2048)
def ink(
    color: str = "", background: str = "", bold: bool = False, underline: bool = False, italic: bool = False
) -> Style:
    """A Rich style; one object per combination, so that Rich's own caches hit."""
    return Style(
        color=color or None,
        bgcolor=background or None,
        bold=bold or None,
        underline=underline or None,
        italic=italic or None,
    )


def palette_for(widget: Widget) -> Palette:
    """The palette of the terminal that `widget` is drawn on."""
    return choose(color_system=widget.app.console.color_system)


def band(palette: Palette) -> str:
    """Background of titles and other lines that set parts of the screen apart."""
    return tinted(palette.background, palette.text, 0.055)


class Line:
    """Builds one line of segments of a known width. Control and bidirectional characters cannot get in."""

    __slots__ = ("_segments", "cells")

    def __init__(self) -> None:
        self._segments: list[Segment] = []
        self.cells = 0

    def add(self, text: str, style: Style | None = None, *, at_most: int | None = None) -> Line:
        """Append `text`, cut with an ellipsis to `at_most` cells."""
        if not text.isprintable():
            text = visible(text)
        if at_most is not None:
            text = fit(text, at_most)
        if text:
            self._segments.append(Segment(text, style))
            self.cells += cell_len(text)
        return self

    def pad_to(self, cells: int, style: Style | None = None) -> Line:
        """Append blanks up to a column."""
        if cells > self.cells:
            self._segments.append(Segment(" " * (cells - self.cells), style))
            self.cells = cells
        return self

    def extend(self, other: Line) -> Line:
        """Append another line's segments."""
        self._segments += other._segments
        self.cells += other.cells
        return self

    @property
    def text(self) -> str:
        """Without its styles."""
        return "".join(segment.text for segment in self._segments)

    def strip(self, width: int, background: Style | None = None) -> Strip:
        """The line as a strip of exactly `width` cells."""
        strip = Strip(self._segments, self.cells)
        if self.cells != width:
            strip = strip.adjust_cell_length(width, background)
        return strip.apply_style(background) if background is not None else strip

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Line) and self._segments == other._segments

    __hash__ = None  # type: ignore[assignment]


def bar(fraction: float, cells: int) -> str:
    """A horizontal bar of `cells` cells filled to `fraction` in eighths of a cell; blanks after it."""
    eighths = round(min(max(fraction, 0.0), 1.0) * cells * 8)
    full, rest = divmod(eighths, 8)
    text = "█" * full + (_EIGHTHS[rest] if rest else "")
    return text.ljust(cells)


def percent(fraction: float, width: int = 7) -> str:
    """`fraction` as a percentage right-aligned in `width` cells: " 62.1 %"."""
    return f"{100 * fraction:.1f} %".rjust(width)


def wrap(text: str, cells: int) -> list[str]:
    """`text` in lines of at most `cells` cells, broken between words where that is possible."""
    return [unbound(line) for line in _wrapped(bound(text), cells)]


def _wrapped(text: str, cells: int) -> list[str]:
    lines: list[str] = []
    current = ""
    for whole in text.split(" "):
        word = whole
        if current and cell_len(current) + 1 + cell_len(word) <= cells:
            current += " " + word
            continue
        if current:
            lines.append(current)
        while cell_len(word) > cells > 1:
            head = fit(word, cells)[:-1] or word[:1]
            lines.append(head)
            word = word[len(head) :]
        current = word
    return [*lines, current] if current or not lines else lines


def pack_by_priority(items: Sequence[tuple[int, Line]], width: int, gap: int = 2) -> list[Line]:
    """The items, in their order, that fit in `width` with gaps between them; the highest numbers are left out
    first."""
    kept = list(items)
    while kept and sum(line.cells for _, line in kept) + gap * (len(kept) - 1) > width:
        worst = max(range(len(kept)), key=lambda place: (kept[place][0], place))
        del kept[worst]
    return [line for _, line in kept]


def join(lines: Iterable[Line], gap: int = 2) -> Line:
    """Lines side by side with blanks between."""
    result = Line()
    for line in lines:
        if result.cells:
            result.add(" " * gap)
        result.extend(line)
    return result


class Drawn(Widget):
    """A line-API widget that keeps its base style, which Textual would work out anew for every line."""

    _base: Style | None = None

    @property
    def base_style(self) -> Style:
        """Text on the widget's own background."""
        if self._base is None:
            self._base = self.rich_style
        return self._base

    def notify_style_update(self) -> None:
        self._base = None
        super().notify_style_update()


class Lines(Drawn):
    """A widget that shows a few lines, and redraws only those that changed."""

    ALLOW_SELECT = False
    can_focus = False

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._lines: list[Line] = []

    def show(self, lines: list[Line]) -> None:
        """Replace the lines; only those that differ are drawn again."""
        before, self._lines = self._lines, lines
        width = self.size.width
        if not width:
            return
        for y in range(max(len(before), len(lines))):
            old = before[y] if y < len(before) else None
            new = lines[y] if y < len(lines) else None
            if old != new:
                self.refresh(Region(0, y, width, 1))

    def render_line(self, y: int) -> Strip:
        width = self.size.width
        line = self._lines[y] if y < len(self._lines) else Line()
        return line.strip(width, self.base_style)
