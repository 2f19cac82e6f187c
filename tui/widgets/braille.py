"""The pure renderer: extents of lines, in dots, become characters and colours.

A cell of the terminal holds `dots_x` by `dots_y` dots. With braille that is 2 by 4 (U+2800 plus one bit per dot, in the
order of the Unicode block "Braille Patterns": dots 1, 2, 3, 7 down the left side, 4, 5, 6, 8 down the right). Where braille
cannot be shown a cell is 1 by 2, drawn with half blocks or with ASCII.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

U8Array = NDArray[np.uint8]
I32Array = NDArray[np.int32]
F64Array = NDArray[np.float64]

# One run of equal attributes within a row: text, colour number, background number.
Run = tuple[str, int, int]


@dataclass(frozen=True, slots=True)
class Glyphs:
    """A way of drawing dots. `table[bits]` is the code point of a cell; `side[x][n]` the bits of n dots from the top."""

    name: str
    dots_x: int
    dots_y: int
    table: NDArray[np.uint32]
    below: NDArray[np.uint8]  # [dots_x, dots_y + 1]: bits of the dots at or below row n of the cell
    shades: str  # levels of a heat strip, from nothing to full
    axis: str  # axis, axis with a tick
    dash: str


def _below(columns: Sequence[Sequence[int]]) -> NDArray[np.uint8]:
    rows = len(columns[0])
    return np.array([[sum(bits[row:]) for row in range(rows + 1)] for bits in columns], np.uint8)


def _table(characters: Sequence[str]) -> NDArray[np.uint32]:
    return np.array([ord(character) for character in characters], np.uint32)


BRAILLE = Glyphs(
    "braille", 2, 4, _table([" ", *(chr(0x2800 + bits) for bits in range(1, 256))]),
    _below(((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))), " ▁▂▃▄▅▆▇█", "│┤", "╌",
)  # fmt: skip
BLOCKS = Glyphs("blocks", 1, 2, _table(" ▀▄█"), _below(((1, 2),)), " ▁▂▃▄▅▆▇█", "│┤", "-")
ASCII = Glyphs("ascii", 1, 2, _table(" '.:"), _below(((1, 2),)), " .:-=+*%#", "|+", "-")

ALL_GLYPHS = {glyphs.name: glyphs for glyphs in (BRAILLE, BLOCKS, ASCII)}


def default_glyphs(environ: Mapping[str, str], encoding: str) -> Glyphs:
    """What a terminal can show: ASCII without UTF-8, blocks on the Linux console (its font has no braille), else braille.

    GPUPROF_GLYPHS=braille, blocks or ascii decides it by hand.
    """
    wanted = ALL_GLYPHS.get(environ.get("GPUPROF_GLYPHS", "").strip().lower())
    if wanted is not None:
        return wanted
    if encoding.lower().replace("-", "") not in ("utf8", "utf_8"):
        return ASCII
    return BLOCKS if environ.get("TERM") == "linux" else BRAILLE


class Raster:
    """Dots and colours of one chart of `rows` by `columns` cells. Dot row 0 is at the top."""

    __slots__ = ("bits", "color", "columns", "glyphs", "rows")

    def __init__(self, rows: int, columns: int, glyphs: Glyphs = BRAILLE) -> None:
        self.rows = rows
        self.columns = columns
        self.glyphs = glyphs
        self.bits: U8Array = np.zeros((rows, columns), np.uint8)
        self.color: U8Array = np.zeros((rows, columns), np.uint8)

    @property
    def dot_rows(self) -> int:
        return self.rows * self.glyphs.dots_y

    @property
    def dot_columns(self) -> int:
        return self.columns * self.glyphs.dots_x

    def draw(self, top: I32Array, bottom: I32Array, color: int) -> None:
        """Set, in each dot column, the dots of rows top..bottom (both included; none where top > bottom).

        They are added to the dots that are there, and the cells that get any take this colour.
        """
        if not self.rows or not self.columns:
            return
        height, below = self.glyphs.dots_y, self.glyphs.below
        cell_tops = np.arange(0, self.dot_rows, height, dtype=np.int32)[:, None]
        upper = np.clip(top[None, :] - cell_tops, 0, height)
        lower = np.clip(bottom[None, :] + 1 - cell_tops, 0, height)
        bits = np.zeros_like(self.bits)
        width = self.glyphs.dots_x
        for side in range(width):
            # At or below `top`, without what is below `bottom`.
            bits |= below[side][upper[:, side::width]] & ~below[side][lower[:, side::width]]
        self.bits |= bits
        self.color[bits != 0] = color

    def horizontal(self, dot_row: int, color: int, *, first: int = 0, dashed: bool = False) -> None:
        """A line across. Dashes lie on the grid of absolute cells (`first` is the leftmost), so that they scroll along."""
        upper = np.full(self.dot_columns, dot_row, np.int32)
        lower = upper.copy()
        if dashed:
            off = np.repeat((np.arange(self.columns) + first) % 2 == 1, self.glyphs.dots_x)
            upper[off] = 1
            lower[off] = 0
        self.draw(upper, lower, color)

    def covered(self, top: I32Array, bottom: I32Array) -> NDArray[np.bool_]:
        """[rows, columns]: the cells of which every dot lies within top..bottom of its dot column."""
        height, width = self.glyphs.dots_y, self.glyphs.dots_x
        first = top.reshape(-1, width).max(axis=1)
        last = bottom.reshape(-1, width).min(axis=1)
        cell_tops = np.arange(0, self.dot_rows, height, dtype=np.int32)[:, None]
        return (cell_tops >= first[None, :]) & (cell_tops + height - 1 <= last[None, :])

    def overlay(self, other: Raster, *, keep_dots: bool = False) -> None:
        """Lay another raster of the same size on top: its cells hide those below, so that a line over an area stays thin.

        With `keep_dots` the dots below stay, in the colour of the upper cell.
        """
        inked = other.bits != 0
        if keep_dots:
            self.bits |= other.bits
        else:
            self.bits[inked] = other.bits[inked]
        self.color[inked] = other.color[inked]

    def runs(self, background: U8Array) -> list[list[Run]]:
        """The rows as runs of equal colour and background; `background` is as in `to_runs`."""
        return to_runs(self.glyphs.table[self.bits], self.bits != 0, self.color, background)


def to_runs(
    codes: NDArray[np.uint32], inked: NDArray[np.bool_], color: U8Array, background: U8Array
) -> list[list[Run]]:
    """Rows of code points as runs of equal attributes; the arrays are [rows, columns].

    `background` numbers the background of each cell, or of each column when it has one dimension.
    Cells without ink take the colour on their left, so that they do not cut a run in two.
    """
    rows, columns = codes.shape
    if not rows or not columns:
        return [[] for _ in range(rows)]
    position = np.where(inked, np.arange(columns), 0)
    np.maximum.accumulate(position, axis=1, out=position)
    color = np.take_along_axis(color, position, axis=1)
    background = np.broadcast_to(background, (rows, columns))
    changes = (color[:, 1:] != color[:, :-1]) | (background[:, 1:] != background[:, :-1])
    row_of, cut = np.nonzero(changes)
    bounds = np.searchsorted(row_of, np.arange(rows + 1)).tolist()
    cuts = (cut + 1).tolist()
    text = codes.astype("<u4").tobytes().decode("utf-32-le")
    result = []
    for row in range(rows):
        starts = [0, *cuts[bounds[row] : bounds[row + 1]]]
        ends = [*starts[1:], columns]
        colors, grounds = color[row, starts].tolist(), background[row, starts].tolist()
        offset = row * columns
        result.append(
            [
                (text[offset + a : offset + b], ink, ground)
                for a, b, ink, ground in zip(starts, ends, colors, grounds, strict=True)
            ]
        )
    return result


def to_dot_rows(
    low: F64Array, high: F64Array, bottom: float, top: float, dot_rows: int
) -> tuple[I32Array, I32Array]:
    """Dot rows (upper, lower) of values, `top` at row 0 and `bottom` at the last; what lies outside is drawn at the edge.

    NaN gives an empty extent (upper > lower).
    """
    last = dot_rows - 1
    scale = last / (top - bottom) if top > bottom else 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        upper = np.rint(np.clip((top - high) * scale, 0, last))
        lower = np.rint(np.clip((top - low) * scale, 0, last))
    empty = np.isnan(upper) | np.isnan(lower)
    upper[empty] = 1
    lower[empty] = 0
    return upper.astype(np.int32), lower.astype(np.int32)


def to_dot_row(value: float, bottom: float, top: float, dot_rows: int) -> int:
    """The dot row of one value, cut to the chart."""
    share = (top - value) / (top - bottom) if top > bottom else 0.0
    return round(min(max(share, 0.0), 1.0) * (dot_rows - 1))
