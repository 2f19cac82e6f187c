"""What all charts of one drawing share, and how text becomes segments."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style as RichStyle

from gpuprof.tui.palette import Palette
from gpuprof.tui.timescale import TimeScale
from gpuprof.tui.widgets.braille import Glyphs, Run, U8Array

Segments = list[Segment]


@lru_cache(maxsize=2048)
def ink(color: str, background: str, bold: bool = False) -> RichStyle:
    """The Rich style of a colour on a background; both are names that Rich knows or "#rrggbb"."""
    return RichStyle(color=color, bgcolor=background, bold=bold or None)


@dataclass(frozen=True, slots=True)
class Surface:
    """What all charts of one drawing share."""

    scale: TimeScale
    gutter: int  # cells left of the plot
    legend: int  # cells right of it; 0: none
    palette: Palette
    glyphs: Glyphs
    ground: str  # background of what is no plot
    grounds: tuple[str, ...]  # backgrounds that `columns` counts in; 0 is the plain one
    columns: U8Array  # background of each column of the plot
    now_ns: int  # legends show the values of this instant
    at_cursor: bool  # ... which the cursor stands on


def assemble(
    surface: Surface, rows: int, gutter: list[Segments], plot: list[Segments], legend: list[Segments]
) -> list[Segments]:
    """The three parts of each row, one after the other."""
    blank = (
        [Segment(" " * surface.legend, ink(surface.palette.text, surface.ground))] if surface.legend else []
    )
    legend = legend + [blank] * (rows - len(legend))
    return [left + middle + right for left, middle, right in zip(gutter, plot, legend, strict=True)]


def plot_segments(
    runs: Iterable[Run], colors: list[str], surface: Surface, areas: Sequence[int] = ()
) -> Segments:
    """Runs of a renderer as segments. Backgrounds past those of `surface.grounds` are tinted by the line of an area."""
    grounds = surface.grounds
    segments = []
    for text, color, ground in runs:
        area, plain = divmod(ground, len(grounds))
        background = grounds[plain]
        if area:
            background = surface.palette.tinted(background, areas[area - 1])
        segments.append(Segment(text, ink(colors[color], background)))
    return segments


def padded(text: str, cells: int, *, right: bool = False) -> str:
    """Text cut or filled with spaces to exactly `cells` cells."""
    if cells <= 0:
        return ""
    missing = cells - cell_len(text)
    if missing < 0:
        return set_cell_size(text, cells)
    return " " * missing + text if right else text + " " * missing
