"""The pure renderer: extents of lines, in dots, become characters and colours.

A cell of the terminal holds `dots_x` by `dots_y` dots. With braille that is 2 by 4 (U+2800 plus one bit per
dot, as the Unicode block "Braille Patterns" has them). Where braille cannot be shown a cell is 1 by 2, drawn
with half blocks or with ASCII. Here the bits of a cell are counted down the left column of dots, then down
the right one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

U8Array = NDArray[np.uint8]
I16Array = NDArray[np.int16]
F64Array = NDArray[np.float64]

# One run of equal attributes within a row: text, and the number of its attributes.
Run = tuple[str, int]


@dataclass(frozen=True, slots=True, eq=False)
class Glyphs:
    """A way of drawing. `table[bits]` is the code point of a cell."""

    name: str
    dots_x: int
    dots_y: int
    table: NDArray[np.uint32]
    shades: NDArray[np.uint32]  # code points of the levels of a heat strip, from nothing to full
    work: str  # of a device: nothing known, not observed, idle, copy, communication
    axis: str  # axis, axis with a tick
    line: str
    dash: str
    block: str


def _code_points(characters: Sequence[str]) -> NDArray[np.uint32]:
    return np.array([ord(character) for character in characters], np.uint32)


def _braille(bits: int) -> str:
    # Unicode numbers the dots 1, 2, 3, 7 down the left side and 4, 5, 6, 8 down the right; dot n is bit n -
    # 1.
    order = (0, 1, 2, 6, 3, 4, 5, 7)
    return chr(0x2800 + sum(1 << order[bit] for bit in range(8) if bits >> bit & 1)) if bits else " "


_EIGHTHS = _code_points(" ▁▂▃▄▅▆▇█")
BRAILLE = Glyphs(
    "braille", 2, 4, _code_points([_braille(n) for n in range(256)]), _EIGHTHS, " ╌·▒░", "│┤", "━", "╌", "█"
)
BLOCKS = Glyphs("blocks", 1, 2, _code_points(" ▀▄█"), _EIGHTHS, " ?·▒░", "│┤", "-", "-", "█")
ASCII = Glyphs("ascii", 1, 2, _code_points(" '.:"), _code_points(" .:-=+*%#"), " ?_cn", "|+", "-", "-", "#")

ALL_GLYPHS = {glyphs.name: glyphs for glyphs in (BRAILLE, BLOCKS, ASCII)}


def default_glyphs(environ: Mapping[str, str], encoding: str) -> Glyphs:
    """What a terminal can show: braille, but blocks on the Linux console, and ASCII without UTF-8.

    GPUPROF_GLYPHS=braille, blocks or ascii decides it by hand.
    """
    wanted = ALL_GLYPHS.get(environ.get("GPUPROF_GLYPHS", "").strip().lower())
    if wanted is not None:
        return wanted
    if encoding.lower().replace("-", "") not in ("utf8", "utf_8"):
        return ASCII
    return BLOCKS if environ.get("TERM") == "linux" else BRAILLE


# --------------------------------------------------------------------------------------------- values to dots


def to_dot_rows(
    low: F64Array, high: F64Array, bottom: float, top: float, dot_rows: int
) -> tuple[I16Array, I16Array]:
    """Dot rows (upper, lower) of values, `top` at row 0 and `bottom` at the last.

    What lies outside is drawn at the edge. NaN gives an empty extent (upper > lower).
    """
    last = dot_rows - 1
    scale = last / (top - bottom) if top > bottom else 0.0
    upper, lower = (top - high) * scale, (top - low) * scale
    empty = np.isnan(upper)
    empty |= np.isnan(lower)
    for rows in (upper, lower):
        np.rint(rows, out=rows)
        np.maximum(rows, 0, out=rows)
        np.minimum(rows, last, out=rows)
    upper[empty] = 1
    lower[empty] = 0
    return upper.astype(np.int16), lower.astype(np.int16)


def to_dot_row(value: float, bottom: float, top: float, dot_rows: int) -> int:
    """The dot row of one value, cut to the chart."""
    share = (top - value) / (top - bottom) if top > bottom else 0.0
    return round(min(max(share, 0.0), 1.0) * (dot_rows - 1))


def sparkline(low: F64Array, high: F64Array, bottom: float, top: float, glyphs: Glyphs) -> NDArray[np.uint32]:
    """One row of blocks [columns] for extents of dot columns: eight levels, where dots would give four.

    A block stands halfway between the lowest and the highest, so that dips are seen as well as spikes. The
    lowest block is a reading at the bottom; a blank is no reading.
    """
    cells = np.fmin.reduce(low.reshape(-1, glyphs.dots_x), axis=1)
    cells = (cells + np.fmax.reduce(high.reshape(-1, glyphs.dots_x), axis=1)) / 2
    seen = ~np.isnan(cells)
    levels = len(glyphs.shades) - 1
    scale = levels / (top - bottom) if top > bottom else 0.0
    level = np.clip((np.where(seen, cells, bottom) - bottom) * scale, 0, levels - 1)
    return glyphs.shades[np.where(seen, 1 + level.astype(np.int16), 0)]


# ---------------------------------------------------------------------------------------------- dots to cells


def to_bits(upper: I16Array, lower: I16Array, rows: int, glyphs: Glyphs) -> U8Array:
    """Bits of the cells [..., rows, columns]: dot rows upper..lower of each dot column [..., dot columns]."""
    height, width = glyphs.dots_y, glyphs.dots_x
    *lines, dots = upper.shape
    row = np.arange(rows * height, dtype=np.int16)[:, None]
    inside = row >= upper[..., None, :]
    inside &= row <= lower[..., None, :]
    cells = inside.reshape(*lines, rows, height, dots // width, width)
    axes = range(len(lines))
    order = (*axes, len(lines), len(lines) + 2, len(lines) + 3, len(lines) + 1)
    by_cell = cells.transpose(order).reshape(*lines, rows, dots // width, width * height)
    return np.packbits(by_cell, axis=-1, bitorder="little")[..., 0]


def covered(upper: I16Array, lower: I16Array, rows: int, glyphs: Glyphs) -> NDArray[np.bool_]:
    """[rows, columns]: the cells of which every dot lies within upper..lower of its dot column."""
    height, width = glyphs.dots_y, glyphs.dots_x
    first = upper.reshape(-1, width).max(axis=1)
    last = lower.reshape(-1, width).min(axis=1)
    cell_top = np.arange(0, rows * height, height, dtype=np.int16)[:, None]
    inside: NDArray[np.bool_] = cell_top >= first
    inside &= cell_top + (height - 1) <= last
    return inside


class Raster:
    """Dots, colours and areas of one chart of `rows` by `columns` cells. Row 0 is at the top."""

    __slots__ = ("area", "bits", "color", "columns", "glyphs", "rows")

    def __init__(self, rows: int, columns: int, glyphs: Glyphs = BRAILLE) -> None:
        self.rows = rows
        self.columns = columns
        self.glyphs = glyphs
        self.bits: U8Array = np.zeros((rows, columns), np.uint8)
        self.color: U8Array = np.zeros((rows, columns), np.uint8)
        self.area: U8Array = np.zeros((rows, columns), np.uint8)

    @property
    def dot_rows(self) -> int:
        return self.rows * self.glyphs.dots_y

    @property
    def dot_columns(self) -> int:
        return self.columns * self.glyphs.dots_x

    def horizontal(self, dot_row: int, color: int) -> None:
        """A line across the chart."""
        row, dot = divmod(dot_row, self.glyphs.dots_y)
        self.bits[row] = sum(1 << (side * self.glyphs.dots_y + dot) for side in range(self.glyphs.dots_x))
        self.color[row] = color

    def lines(self, bits: U8Array, colors: Sequence[int]) -> None:
        """Lay lines [line, rows, columns] over what is there, the last one on top.

        A cell of a line takes its colour and holds the dots of lines alone, so that a line stays thin where
        it crosses something else.
        """
        union = np.bitwise_or.reduce(bits, axis=0)
        np.copyto(self.bits, union, where=union != 0)
        for line, color in zip(bits, colors, strict=True):
            self.color[line != 0] = color


# ---------------------------------------------------------------------------------------------- cells to runs


def spread_color(color: U8Array, inked: NDArray[np.bool_]) -> U8Array:
    """Colours [rows, columns] in which a cell without ink has that of the next one on its left with ink.

    So it does not cut a run in two.
    """
    position = inked * np.arange(color.shape[1], dtype=np.int32)
    np.maximum.accumulate(position, axis=1, out=position)
    position += np.arange(0, color.size, color.shape[1], dtype=np.int32)[:, None]
    return color.ravel()[position]


def to_runs(codes: NDArray[np.uint32], attributes: NDArray[np.uint16]) -> list[list[Run]]:
    """Rows of code points and attribute numbers, both [rows, columns], as runs of equal attributes."""
    rows, columns = codes.shape
    if not rows or not columns:
        return [[] for _ in range(rows)]
    starts_run = np.ones((rows, columns), bool)
    np.not_equal(attributes[:, 1:], attributes[:, :-1], out=starts_run[:, 1:])
    starts = np.flatnonzero(starts_run)
    kinds = attributes.ravel()[starts].tolist()
    bounds = np.searchsorted(starts, np.arange(0, (rows + 1) * columns, columns)).tolist()
    cuts = [*starts.tolist(), rows * columns]
    text = codes.astype("<u4", copy=False).tobytes().decode("utf-32-le")
    return [
        [(text[cuts[i] : cuts[i + 1]], kinds[i]) for i in range(bounds[row], bounds[row + 1])]
        for row in range(rows)
    ]
