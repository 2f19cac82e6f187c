"""What all charts of one drawing share, and how cells and text become segments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style as RichStyle

from gpuprof.tui.palette import Palette
from gpuprof.tui.timescale import TimeScale
from gpuprof.tui.widgets.braille import Glyphs, U8Array

Segments = list[Segment]

# Backgrounds of a column of the plot.
PLAIN, SELECTED, CURSOR = 0, 1, 2
_GROUNDS = 3


@lru_cache(maxsize=2048)
def ink(color: str, background: str, bold: bool = False) -> RichStyle:
    """The Rich style of a colour on a background; both are names that Rich knows or "#rrggbb"."""
    return RichStyle(color=color, bgcolor=background, bold=bold or None)


class Inks:
    """The colours of plots by number, and the styles of a cell's attributes.

    Colours: the palette's lines from 0, then limit, rule, the heat from low to high, kernels, copies and
    communication of a GPU, and what is dim. Attributes of a cell: colour * 256 + area * 3 + column
    background, where area is 0 or 1 + the number of the line that the cell lies under.
    """

    def __init__(self, palette: Palette, ground: str) -> None:
        self.palette = palette
        self.colors = (*palette.lines, palette.limit, palette.rule, *palette.heat)
        self.colors += (palette.gpu_kernel, palette.gpu_copy, palette.gpu_comm, palette.dim)
        self.limit = len(palette.lines)
        self.rule = self.limit + 1
        self.heat = self.rule + 1
        self.gpu_kernel = self.heat + len(palette.heat)
        self.gpu_copy = self.gpu_kernel + 1
        self.gpu_comm = self.gpu_copy + 1
        self.dim = self.gpu_comm + 1
        self.styles = _Styles(self, (ground, palette.selection, palette.cursor))

    def line(self, number: int) -> int:
        """The colour of a chart's line that asks for `number`."""
        return number % len(self.palette.lines)


class _Styles(dict[int, RichStyle]):
    """The style of a cell's attributes, made when it is asked for first."""

    def __init__(self, inks: Inks, grounds: tuple[str, ...]) -> None:
        super().__init__()
        self._inks = inks
        self._grounds = grounds

    def __missing__(self, attributes: int) -> RichStyle:
        area, column = divmod(attributes & 0xFF, _GROUNDS)
        background = self._grounds[column]
        if area:
            background = self._inks.palette.tinted(background, area - 1)
        style = self[attributes] = ink(self._inks.colors[attributes >> 8], background)
        return style


@lru_cache(maxsize=8)
def inks_of(palette: Palette, ground: str) -> Inks:
    """The inks of a palette on a background."""
    return Inks(palette, ground)


@dataclass(frozen=True, slots=True, eq=False)
class Surface:
    """What all charts of one drawing share."""

    scale: TimeScale
    gutter: int  # cells left of the plot
    legend: int  # cells right of it; 0: none
    palette: Palette
    inks: Inks
    glyphs: Glyphs
    ground: str  # background
    now_ns: int  # legends show the values of this instant
    at_cursor: bool  # ... which the cursor stands on


@dataclass(frozen=True, slots=True, eq=False)
class Panel:
    """One drawn chart: cells of the plot, all [rows, columns], and what stands beside them, row by row."""

    codes: NDArray[np.uint32]
    color: U8Array
    area: U8Array
    gutter: list[Segments]
    legend: list[Segments]


def attributes_of(color: U8Array, area: U8Array, columns: U8Array) -> NDArray[np.uint16]:
    """Attribute numbers [rows, columns] of cells; `columns[column]` is the background of a column."""
    attributes = color.astype(np.uint16)
    attributes <<= 8
    attributes += area * np.uint16(_GROUNDS)
    attributes += columns
    return attributes


def to_segments(runs: Sequence[tuple[str, int]], inks: Inks) -> Segments:
    """A row's runs as segments."""
    styles = inks.styles
    return [Segment(text, styles[attributes]) for text, attributes in runs]


def padded(text: str, cells: int, *, right: bool = False) -> str:
    """Text cut or filled with spaces to exactly `cells` cells."""
    if cells <= 0:
        return ""
    missing = cells - cell_len(text)
    if missing < 0:
        return set_cell_size(text, cells)
    return " " * missing + text if right else text + " " * missing
