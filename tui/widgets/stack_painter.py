"""The stack of charts as lines of segments: which charts, where, on which background, with the axis below."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from rich.cells import cell_len
from rich.segment import Segment

from gpuprof.snapshots.frames import GpuFacts
from gpuprof.tui.chart_plan import plan_charts
from gpuprof.tui.charts import Chart
from gpuprof.tui.charts_layout import Placed, place
from gpuprof.tui.palette import Palette
from gpuprof.tui.series import SeriesStore
from gpuprof.tui.timescale import duration_text
from gpuprof.tui.widgets.axis import axis_row, selection_row
from gpuprof.tui.widgets.braille import Glyphs, U8Array, to_runs
from gpuprof.tui.widgets.chart import ChartPainter
from gpuprof.tui.widgets.surface import (
    CURSOR,
    PLAIN,
    SELECTED,
    Panel,
    Segments,
    Surface,
    attributes_of,
    ink,
    inks_of,
    padded,
    to_segments,
)
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


@dataclass(frozen=True, slots=True, eq=False)
class _Drawn:
    """The last drawing, from which rows are taken over."""

    surface: Surface
    codes: NDArray[np.uint32]
    attributes: NDArray[np.uint16]
    gutter: list[Segments]
    legend: list[Segments]
    plots: list[Segments]
    lines: list[Segments]


class StackPainter:
    """All charts of one node, drawn for a Viewport. Knows no events and no Textual."""

    def __init__(self) -> None:
        self.store = SeriesStore()
        self.gpus: list[GpuFacts] = []
        self.names: Mapping[int, str] = {}
        self.rates: Mapping[int, str] = {}
        self.gpu: str | None = None  # UUID of the device shown; None: all of them
        self.wall_offset_ns = 0
        self.skip = 0  # charts scrolled away at the top
        self.placed: list[Placed] = []
        self.surface: Surface | None = None
        self.charts: list[Chart] = []
        self._painters: dict[str, ChartPainter] = {}
        self._planned: tuple[int, float] | None = None
        self._drawn: _Drawn | None = None
        self._painted: tuple[object, list[Panel]] = (None, [])
        self._placement: tuple[list[Chart], int, int] | None = None

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
            rates=self.rates,
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
        foot = 2 if height >= 9 else 1 if height >= 3 else 0
        room = height - foot
        self.skip = min(self.skip, max(len(self.charts) - room, 0))
        placement = (self.charts, room, self.skip)
        if placement != self._placement:
            self._placement, self.placed = placement, place(*placement)
        lines = self._chart_lines(surface, self._backgrounds(view))
        if not self.charts and room:
            waiting = padded(" waiting for readings …", width)
            lines.append([Segment(waiting, ink(screen.palette.dim, screen.ground))])
        blank = [Segment(" " * width, ink(screen.palette.text, screen.ground))]
        lines += [blank] * (room - len(lines))
        if not self.store.newest_ns:  # no time is known yet that an axis could show
            return (lines + [blank] * foot)[:height]
        if foot == 2 or (foot and not selecting_something):
            window = duration_text(view.window_ns)
            sign, word = "●‖"[not view.live], "live" if view.live else "stopped"
            state = f"{sign} {word} · {window}"
            if cell_len(state) >= surface.legend:  # the length of what is shown says more than the word
                state = f"{sign} {window}"
            lines.append(axis_row(surface, self.wall_offset_ns, self._gpu_text(), state, follows=view.live))
        if foot == 2 or (foot and selecting_something):
            lines.append(
                selection_row(
                    surface,
                    view.range,
                    pinned=not view.selecting,
                    cursor_ns=view.cursor_ns,
                    wall_offset_ns=self.wall_offset_ns,
                    hint=self._hint(view),
                )
            )
        return lines[:height]

    def _make_surface(self, view: Viewport, screen: Screen) -> Surface:
        gutter, legend = margins(screen.width)
        view.columns = max(screen.width - gutter - legend, 1)
        instant = view.cursor_instant
        return Surface(
            scale=view.scale,
            gutter=gutter,
            legend=legend,
            palette=screen.palette,
            inks=inks_of(screen.palette, screen.ground),
            glyphs=screen.glyphs,
            ground=screen.ground,
            now_ns=view.end_ns if instant is None else instant,
            at_cursor=instant is not None,
        )

    def _backgrounds(self, view: Viewport) -> U8Array:
        """Background of each column of the plot."""
        scale = view.scale
        columns = np.full(scale.columns, PLAIN, np.uint8)
        if (selected := view.range) is not None:
            left, right = scale.columns_of(*selected)
            columns[left:right] = SELECTED
        if (cursor := view.cursor_column) is not None and 0 <= cursor < scale.columns:
            columns[cursor] = CURSOR
        return columns

    def _panels(self, surface: Surface) -> list[Panel]:
        """The charts, painted anew unless nothing but backgrounds of columns changed since the last time."""
        key = (
            self.store.changes,
            self._planned,
            self._placement,
            surface.scale,
            (surface.gutter, surface.legend, surface.inks, surface.glyphs),
            (surface.now_ns, surface.at_cursor),
        )
        if key != self._painted[0]:
            with np.errstate(all="ignore"):  # readings may be anything that is finite
                panels = [
                    self._painters[placed.chart.id].paint(self.store, surface, placed.height)
                    for placed in self.placed
                ]
            self._painted = (key, panels)
        return self._painted[1]

    def _chart_lines(self, surface: Surface, columns: U8Array) -> list[Segments]:
        """All charts, row by row. Rows that are as they were are the very lists of the last drawing."""
        panels = self._panels(surface)
        if not panels:
            self._drawn = None
            return []
        codes = np.concatenate([panel.codes for panel in panels])
        color, area = (
            np.concatenate([getattr(panel, name) for panel in panels]) for name in ("color", "area")
        )
        attributes = attributes_of(color, area, columns)
        gutter = [row for panel in panels for row in panel.gutter]
        legend = [row for panel in panels for row in panel.legend]
        before = self._drawn
        if before is None or before.codes.shape != codes.shape or before.surface.inks is not surface.inks:
            changed = np.ones(len(codes), bool)
        else:
            changed = (before.codes != codes).any(axis=1) | (before.attributes != attributes).any(axis=1)
        rows = np.flatnonzero(changed)
        plot = dict(zip(rows.tolist(), to_runs(codes[rows], attributes[rows]), strict=True))
        lines: list[Segments] = []
        plots: list[Segments] = []
        for row in range(len(codes)):
            runs = plot.get(row)
            if runs is not None:
                plots.append(to_segments(runs, surface.inks))
            else:
                assert before is not None
                plots.append(before.plots[row])
                if gutter[row] is before.gutter[row] and legend[row] is before.legend[row]:
                    lines.append(before.lines[row])
                    continue
            lines.append(gutter[row] + plots[row] + legend[row])
        self._drawn = _Drawn(surface, codes, attributes, gutter, legend, plots, lines)
        return lines

    def _hint(self, view: Viewport) -> str:
        """What stands below the axis while nothing is selected: how to select, and what is out of sight."""
        hidden = len(self.charts) - len(self.placed)
        more = f"{hidden} more chart{'s' * (hidden > 1)}: up and down" if hidden > 0 else ""
        if view.selecting:
            return more
        return "drag or v: select a range" + (f" · {more}" if more else "")

    def _gpu_text(self) -> str:
        if len(self.gpus) < 2:
            return ""
        chosen = next((gpu for gpu in self.gpus if gpu.uuid == self.gpu), None)
        return "all GPUs" if chosen is None else f"GPU {chosen.index} of {len(self.gpus)}"


def margins(width: int) -> tuple[int, int]:
    """Cells of the gutter and of the legend for a width."""
    if width >= 170:
        return 18, 34
    if width >= 130:
        return 18, 28
    if width >= 100:
        return 17, 26
    if width >= 60:
        return 12, 20
    if width >= 30:
        return 8, 10
    return (8, 0) if width >= 14 else (0, 0)


def changed_bands(old: Sequence[Segments], new: Sequence[Segments]) -> list[tuple[int, int]]:
    """(first line, number of lines) of the stretches in which two drawings of equal height differ."""
    bands: list[tuple[int, int]] = []
    for y, line in enumerate(new):
        if line is not old[y] and line != old[y]:
            if bands and sum(bands[-1]) == y:
                bands[-1] = (bands[-1][0], bands[-1][1] + 1)
            else:
                bands.append((y, 1))
    return bands
