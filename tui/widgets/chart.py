"""One chart as rows of segments: gutter with title and axis, plot, legend with values.

A ChartPainter keeps what was computed for columns that are still in sight. It is no widget: the stack of all charts is one
(chart_stack.py), since drawing one large widget costs less than drawing many.
"""

from __future__ import annotations

import numpy as np

from gpuprof.tui.charts_layout import Chart, Style
from gpuprof.tui.series import F64Array, Key, SeriesStore, SeriesView, rate
from gpuprof.tui.units import nice_ceiling, with_unit
from gpuprof.tui.widgets import lanes
from gpuprof.tui.widgets.braille import Raster, U8Array, to_dot_row, to_dot_rows
from gpuprof.tui.widgets.envelope import ColumnCache, Extent, usual_gap_ns
from gpuprof.tui.widgets.legend import Entry, axis_labels, gutter_rows, legend_rows
from gpuprof.tui.widgets.surface import Segments, Surface, assemble, plot_segments

# A signed chart gives its quieter side at least this share of the height of the louder one.
_QUIET_SIDE = 1 / 4
# An automatic scale shrinks only when the data needs less than this share of it, so that it does not flicker.
_SHRINK_BELOW = 0.45


class ChartPainter:
    """Draws one chart; `chart` may be replaced by a newer plan of the same chart at any time."""

    def __init__(self, chart: Chart) -> None:
        self.chart = chart
        self._columns: dict[Key, ColumnCache] = {}
        self._shares = lanes.ShareCache()
        self._high = 0.0
        self._low = 0.0

    def update(self, chart: Chart) -> None:
        """Take a newer plan: lines that are gone are forgotten."""
        if chart.lines != self.chart.lines:
            kept = {line.key for line in chart.lines}
            self._columns = {key: cache for key, cache in self._columns.items() if key in kept}
        self.chart = chart

    def paint(self, store: SeriesStore, surface: Surface, rows: int) -> list[Segments]:
        """`rows` rows of the chart, each `gutter + columns + legend` cells wide."""
        if self.chart.style is Style.STRIP:
            return self._paint_strip(store, surface, rows)
        return self._paint_lines(store, surface, rows)

    # ------------------------------------------------------------------------------------------------ lines

    def _paint_lines(self, store: SeriesStore, surface: Surface, rows: int) -> list[Segments]:
        chart, scale, glyphs = self.chart, surface.scale, surface.glyphs
        dot_ns, dots = scale.cell_ns // glyphs.dots_x, scale.columns * glyphs.dots_x
        views = [store.view(line.key) for line in chart.lines]
        extents = []
        for line, view in zip(chart.lines, views, strict=True):
            cache = self._columns.get(line.key)
            if cache is None:
                cache = self._columns[line.key] = ColumnCache(counter=line.counter)
            low, high = cache.update(view, scale.first * glyphs.dots_x, dots, dot_ns)
            factor = line.scale * line.plot_scale * line.sign
            extents.append((low * factor, high * factor) if factor >= 0 else (high * factor, low * factor))
        limits = [
            (limit, _latest(store.view(limit.key)) if limit.key else limit.value) for limit in chart.limits
        ]
        bottom, top = self._range(extents)
        raster = Raster(rows, scale.columns, glyphs)
        colors, areas = self._draw(raster, extents, [value for _, value in limits], (bottom, top), surface)
        body = raster.runs(surface.columns + areas * np.uint8(len(surface.grounds)))

        mark = "-" if glyphs.name == "ascii" else "━"
        entries = []
        for line, view in zip(chart.lines, views, strict=True):
            color = surface.palette.lines[line.color % len(surface.palette.lines)]
            value = value_at(view, surface.now_ns, counter=line.counter)
            label = line.label if line.pid is None else f"{line.label}\0{line.pid}"
            entries.append(Entry(mark, color, label, with_unit(_scaled(value, line.scale), line.unit)))
        marks = [
            Entry(glyphs.dash, surface.palette.limit, limit.label, with_unit(value, limit.unit))
            for limit, value in limits
            if value is not None
        ]
        labels = axis_labels(bottom, top, rows, chart.unit, signed=chart.style is Style.SIGNED)
        return assemble(
            surface, rows,
            gutter_rows(chart, labels, surface, rows),
            [plot_segments(runs, colors, surface, [line.color for line in chart.lines]) for runs in body],
            self._legend(entries, marks, surface, rows),
        )  # fmt: skip

    def _shown(self, rows: int) -> int:
        """How many lines are drawn: in a single row they would hide each other, so there it is the first."""
        if rows > 1:
            return len(self.chart.lines)
        return 2 if self.chart.style is Style.SIGNED else 1

    def _legend(
        self, entries: list[Entry], marks: list[Entry], surface: Surface, rows: int
    ) -> list[Segments]:
        if rows == 1 and self.chart.style is Style.SIGNED and len(entries) == 2:
            sent, received = (entry.value.replace("B/s", "").replace(" ", "") for entry in entries)
            return legend_rows(
                [Entry(entries[0].marker, entries[0].color, f"↑{sent} ↓{received}", "")], surface, 1
            )
        if len(entries) + len(marks) > rows > 1 and marks:
            # A limit is worth more than the last of many processes.
            entries = (
                entries[: max(rows - len(marks) - 1, 1)] + marks + entries[max(rows - len(marks) - 1, 1) :]
            )
        else:
            entries = entries + marks
        return legend_rows(entries, surface, rows)

    def _range(self, extents: list[Extent]) -> tuple[float, float]:
        """(bottom, top) of the axis: what the chart says, or round numbers around what is in sight."""
        chart = self.chart
        if chart.low is not None and chart.high is not None and chart.high > chart.low:
            return chart.low, chart.high
        highest = max((_finite_max(high) for _, high in extents), default=0.0)
        need = chart.high if chart.high is not None else nice_ceiling(max(highest, chart.least_high, 1e-9))
        if chart.style is Style.SIGNED:
            deepest = nice_ceiling(max((_finite_max(-low) for low, _ in extents), default=0.0) or 1e-9)
            need = nice_ceiling(max(highest, 1e-9))
            loud = max(need, deepest, chart.least_high)
            self._high = _calm(self._high, max(need, nice_ceiling(loud * _QUIET_SIDE)))
            self._low = -_calm(-self._low, max(deepest, nice_ceiling(loud * _QUIET_SIDE)))
            return self._low, self._high
        self._high = _calm(self._high, need)
        low = chart.low if chart.low is not None else 0.0
        return low, max(self._high, low + 1e-9)

    def _draw(
        self,
        raster: Raster,
        extents: list[Extent],
        limits: list[float | None],
        axis: tuple[float, float],
        surface: Surface,
    ) -> tuple[list[str], U8Array]:
        """Areas, then limits, then lines from the first to the last.

        Gives the colours that the raster's numbers mean, and for each cell the line (from 1) whose area it lies in.
        """
        bottom, top = axis
        palette, lines = surface.palette, self.chart.lines
        colors = [palette.lines[line.color % len(palette.lines)] for line in lines]
        colors += [palette.limit, palette.rule]
        areas = np.zeros((raster.rows, raster.columns), np.uint8)
        base_row = to_dot_row(min(max(0.0, bottom), top), bottom, top, raster.dot_rows)
        dot_extents = [to_dot_rows(low, high, bottom, top, raster.dot_rows) for low, high in extents]
        # An area is a tint of the background. In a chart of one or two rows cells are too coarse for that: there it is
        # made of dots, and so it is where the terminal has no shades.
        tinted = raster.rows > 2 and palette.tint > 0
        shown = self._shown(raster.rows)
        for number, (line, (upper, lower)) in enumerate(zip(lines, dot_extents, strict=True)):
            if number < shown and (line.fill or raster.rows == 1):
                there = upper <= lower
                start = np.where(there, np.minimum(upper, base_row), 1).astype(np.int32)
                end = np.where(there, np.maximum(lower, base_row), 0).astype(np.int32)
                if tinted:
                    areas[raster.covered(start, end)] = number + 1
                elif raster.rows == 1 or len(lines) == 1:
                    raster.draw(start, end, number)
        frame = Raster(raster.rows, raster.columns, raster.glyphs)
        if self.chart.style is Style.SIGNED and raster.rows > 1:
            frame.horizontal(base_row, len(colors) - 1)
        for value in limits:
            if value is not None and bottom <= value <= top and raster.rows > 1:
                row = to_dot_row(value, bottom, top, raster.dot_rows)
                frame.horizontal(row, len(colors) - 2, first=surface.scale.first, dashed=True)
        raster.overlay(frame)
        drawn = Raster(raster.rows, raster.columns, raster.glyphs)
        for number, (upper, lower) in enumerate(dot_extents[:shown]):
            drawn.draw(upper, lower, number)
        raster.overlay(drawn, keep_dots=raster.rows <= 2)
        return colors, areas

    # ------------------------------------------------------------------------------------------------ strips

    def _paint_strip(self, store: SeriesStore, surface: Surface, rows: int) -> list[Segments]:
        chart, scale, palette = self.chart, surface.scale, surface.palette
        views = [store.view(line.key) for line in chart.lines]
        shares = self._shares.update(views, scale.first, scale.columns, scale.cell_ns)
        mean, highest, groups = lanes.group(shares, rows)
        colors = [palette.rule, *palette.heat]
        body = lanes.heat_runs(mean, highest, surface.glyphs, len(palette.heat), surface.columns)
        body += [[(" " * scale.columns, 0, 0)]] * (rows - len(body))
        numbers = [line.key[3] for line in chart.lines]
        labels = {
            row: f"{numbers[first]}" if first == last else f"{numbers[first]}-{numbers[last]}"
            for row, (first, last) in enumerate(groups)
        }
        return assemble(
            surface, rows,
            gutter_rows(chart, labels, surface, rows),
            [plot_segments(runs, colors, surface) for runs in body],
            legend_rows(self._strip_entries(shares, surface), surface, rows),
        )  # fmt: skip

    def _strip_entries(self, shares: F64Array, surface: Surface) -> list[Entry]:
        """The mean of all, and the busiest, in the column of the cursor or else the newest that was observed."""
        column = surface.scale.clamp(surface.scale.column(surface.now_ns))
        observed = np.flatnonzero(~np.isnan(shares[:, : column + 1]).all(axis=0)) if len(shares) else []
        if not len(observed) or (surface.at_cursor and observed[-1] != column):
            return []
        now = shares[:, observed[-1]]
        mean, busiest = float(np.nanmean(now)), int(np.nanargmax(now))
        return [
            _heat_entry(surface, "all cores", mean),
            _heat_entry(surface, self.chart.lines[busiest].label, float(now[busiest])),
        ]


def _heat_entry(surface: Surface, label: str, share: float) -> Entry:
    heat = surface.palette.heat
    mark = surface.glyphs.shades[-1]
    return Entry(mark, heat[min(int(share * len(heat)), len(heat) - 1)], label, with_unit(share * 100, "%"))


def value_at(view: SeriesView, time_ns: int, *, counter: bool = False) -> float | None:
    """The reading that held at an instant, or the last one before it that is recent enough; None: there was none."""
    last = int(np.searchsorted(view.start_ns, np.uint64(max(time_ns, 0)), "right"))
    if last == 0:
        return None
    tail = slice(max(last - 64, 0), last)
    view = SeriesView(view.start_ns[tail], view.end_ns[tail], view.value[tail])
    gap_ns = usual_gap_ns(view)
    if counter:
        view = rate(view)
        if not len(view):
            return None
    if time_ns - int(view.end_ns[-1]) > gap_ns:
        return None
    return float(view.value[-1])


def _latest(view: SeriesView) -> float | None:
    return float(view.value[-1]) if len(view) else None


def _scaled(value: float | None, scale: float) -> float | None:
    return None if value is None else value * scale


def _finite_max(values: F64Array) -> float:
    values = values[np.isfinite(values)]
    return float(values.max()) if len(values) else 0.0


def _calm(current: float, need: float) -> float:
    """The top of a scale: grows at once, shrinks only when much less is needed."""
    return need if need > current or need < current * _SHRINK_BELOW else current
