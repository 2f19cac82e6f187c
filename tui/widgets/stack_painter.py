"""The stack of charts as lines of segments: which charts, where, on which background, with the axis below."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from rich.segment import Segment

from gpuprof.snapshots.frames import GpuFacts
from gpuprof.tui.charts_layout import Chart, Placed, place, plan_charts
from gpuprof.tui.palette import Palette
from gpuprof.tui.series import SeriesStore
from gpuprof.tui.timescale import duration_text
from gpuprof.tui.widgets.axis import axis_row, selection_row
from gpuprof.tui.widgets.braille import Glyphs
from gpuprof.tui.widgets.chart import ChartPainter
from gpuprof.tui.widgets.surface import Segments, Surface, ink, padded
from gpuprof.tui.widgets.viewport import Viewport

# The charts are planned anew this often even when no series came or went: the ranking of processes moves.
_PLAN_EVERY_S = 2.0


@dataclass(frozen=True, slots=True)
class Screen:
    """What the terminal gives: size in cells, colours, characters, and the background of the widget."""

    width: int
    height: int
    palette: Palette
    glyphs: Glyphs
    ground: str
    focused: bool = False


class StackPainter:
    """All charts of one node, drawn for a Viewport. Knows no events and no Textual."""

    def __init__(self) -> None:
        self.store = SeriesStore()
        self.gpus: list[GpuFacts] = []
        self.names: Mapping[int, str] = {}
        self.gpu: str | None = None  # UUID of the device shown; None: all of them
        self.wall_offset_ns = 0
        self.skip = 0  # charts scrolled away at the top
        self.placed: list[Placed] = []
        self.surface: Surface | None = None
        self.charts: list[Chart] = []
        self._painters: dict[str, ChartPainter] = {}
        self._planned: tuple[int, float] | None = None

    def set_store(self, store: SeriesStore) -> None:
        """Draw the series of `store` from now on."""
        self.store = store
        self._painters.clear()
        self._planned = None

    def replan(self) -> None:
        """Work out at the next drawing which charts there are: devices, names or the choice changed."""
        self._planned = None

    def plan(self, view: Viewport) -> None:
        """Which charts there are, when series came or went, or some time has passed."""
        planned, now = self._planned, time.monotonic()
        if planned is not None and planned[0] == self.store.revision and now - planned[1] < _PLAN_EVERY_S:
            return
        self._planned = (self.store.revision, now)
        view.oldest_ns = self.store.span[0]
        self.charts = plan_charts(
            self.store,
            self.gpus,
            selected=self.gpu,
            names=self.names,
            since_ns=max(view.end_ns - view.window_ns, 0),
        )
        painters = {}
        for chart in self.charts:
            painter = self._painters.get(chart.id) or ChartPainter(chart)
            painter.update(chart)
            painters[chart.id] = painter
        self._painters = painters

    def draw(self, view: Viewport, screen: Screen) -> list[Segments]:
        """The lines of the whole widget, top to bottom."""
        width, height = screen.width, screen.height
        surface = self.surface = self._make_surface(view, screen)
        selecting_something = view.range is not None or view.cursor_ns is not None
        foot = 2 if height >= 12 else 1 if height >= 3 else 0
        room = height - foot
        self.skip = min(self.skip, max(len(self.charts) - room, 0))
        self.placed = place(self.charts, room, self.skip)
        lines: list[Segments] = []
        with np.errstate(over="ignore", invalid="ignore"):  # readings may hold anything that is finite
            for placed in self.placed:
                lines += self._painters[placed.chart.id].paint(self.store, surface, placed.height)
        if not self.charts:
            lines.append(
                [Segment(padded(" waiting for readings …", width), ink(screen.palette.dim, screen.ground))]
            )
        blank = [Segment(" " * width, ink(screen.palette.text, screen.ground))]
        lines += [blank] * (room - len(lines))
        if foot == 2 or (foot and not selecting_something):
            window = duration_text(view.window_ns)
            state = f"● live · {window}" if view.live else f"‖ stopped · {window}"
            lines.append(axis_row(surface, self.wall_offset_ns, self._gpu_text(), state, follows=view.live))
        if foot == 2 or (foot and selecting_something):
            lines.append(
                selection_row(
                    surface,
                    view.range,
                    pinned=not view.selecting,
                    cursor_ns=view.cursor_ns,
                    wall_offset_ns=self.wall_offset_ns,
                    hint=self._hint(view, screen),
                )
            )
        return lines[:height]

    def _make_surface(self, view: Viewport, screen: Screen) -> Surface:
        palette = screen.palette
        gutter, legend = margins(screen.width)
        view.columns = max(screen.width - gutter - legend, 1)
        scale = view.scale
        columns = np.zeros(scale.columns, np.uint8)
        if (selected := view.range) is not None:
            left, right = scale.columns_of(*selected)
            columns[left:right] = 1
        if (cursor := view.cursor_column) is not None and 0 <= cursor < scale.columns:
            columns[cursor] = 2
        instant = view.cursor_instant
        return Surface(
            scale=scale,
            gutter=gutter,
            legend=legend,
            palette=palette,
            glyphs=screen.glyphs,
            ground=screen.ground,
            grounds=(screen.ground, palette.selection, palette.cursor),
            columns=columns,
            now_ns=view.end_ns if instant is None else instant,
            at_cursor=instant is not None,
        )

    def _hint(self, view: Viewport, screen: Screen) -> str:
        hidden = len(self.charts) - len(self.placed)
        if hidden > 0:
            return f"{hidden} more charts: up and down"
        if view.selecting:
            return ""
        return "drag over the charts, or v and arrows, to select a range" if screen.focused else ""

    def _gpu_text(self) -> str:
        if len(self.gpus) < 2:
            return ""
        chosen = next((gpu for gpu in self.gpus if gpu.uuid == self.gpu), None)
        return "g: all GPUs" if chosen is None else f"g: GPU {chosen.index}"


def margins(width: int) -> tuple[int, int]:
    """Cells of the gutter and of the legend for a width."""
    if width >= 170:
        return 18, 34
    if width >= 130:
        return 18, 28
    if width >= 100:
        return 16, 26
    if width >= 60:
        return 11, 20
    return 7, 9 if width >= 30 else 0


def changed_bands(old: Sequence[Segments], new: Sequence[Segments]) -> list[tuple[int, int]]:
    """(first line, number of lines) of the stretches in which two drawings of equal height differ."""
    bands: list[tuple[int, int]] = []
    for y, line in enumerate(new):
        if line != old[y]:
            if bands and sum(bands[-1]) == y:
                bands[-1] = (bands[-1][0], bands[-1][1] + 1)
            else:
                bands.append((y, 1))
    return bands
