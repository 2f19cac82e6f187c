"""One chart as rows of segments: gutter with title and axis, plot, legend with values.

A ChartPainter keeps what was computed for columns that are still in sight. It is no widget: the stack of all
charts is one (chart_stack.py), since drawing one large widget costs less than drawing many.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpuprof.tui.charts import WORK_METRICS, Chart, Limit, Line, Style
from gpuprof.tui.series import F64Array, Key, SeriesStore, SeriesView, rate
from gpuprof.tui.units import nice_ceiling, with_unit
from gpuprof.tui.widgets import lanes, work
from gpuprof.tui.widgets.braille import (
    I16Array,
    Raster,
    U8Array,
    covered,
    sparkline,
    spread_color,
    to_bits,
    to_dot_row,
    to_dot_rows,
)
from gpuprof.tui.widgets.envelope import ColumnCache, Extent, usual_gap_ns
from gpuprof.tui.widgets.legend import Entry, axis_labels, gutter_rows, legend_rows
from gpuprof.tui.widgets.surface import Panel, Segments, Surface

# A signed chart gives its quieter side at least this share of the height of the louder one.
_QUIET_SIDE = 1 / 4
# An automatic scale shrinks only when the data needs less than this share of it, so that it does not flicker.
_SHRINK_BELOW = 0.45
_FRESH_NS = 5 * 10**9  # the load of the cores holds for so long


# Code points, colours and areas of a chart's cells, all [rows, columns].
Cells = tuple[NDArray[np.uint32], U8Array, U8Array]


class ChartPainter:
    """Draws one chart; `chart` may be replaced by a newer plan of the same chart at any time."""

    def __init__(self, chart: Chart) -> None:
        self.chart = chart
        self._columns: dict[Key, ColumnCache] = {}
        self._shares = lanes.ShareCache()
        self._high = 0.0
        self._low = 0.0
        self._gutter: tuple[object, list[Segments]] = (None, [])
        self._legends: tuple[object, list[Segments]] = (None, [])

    def update(self, chart: Chart) -> None:
        """Take a newer plan: lines that are gone are forgotten."""
        if chart.lines != self.chart.lines:
            kept = {line.key for line in chart.lines} | {limit.key for limit in chart.limits}
            self._columns = {key: cache for key, cache in self._columns.items() if key in kept}
        self.chart = chart

    def paint(self, store: SeriesStore, surface: Surface, rows: int) -> Panel:
        """The chart in `rows` rows."""
        if self.chart.style is Style.STRIP:
            return self._paint_strip(store, surface, rows)
        if self.chart.style is Style.WORK:
            return self._paint_work(store, surface, rows)
        return self._paint_lines(store, surface, rows)

    # ------------------------------------------------------------------------------------------------ lines

    def _paint_lines(self, store: SeriesStore, surface: Surface, rows: int) -> Panel:
        chart, scale, glyphs = self.chart, surface.scale, surface.glyphs
        dot_ns, dots = scale.cell_ns // glyphs.dots_x, scale.columns * glyphs.dots_x
        views = [store.view(line.key) for line in chart.lines]
        extents = []
        first = scale.first * glyphs.dots_x
        for line, view in zip(chart.lines, views, strict=True):
            low, high = self._cache(line.key, line.counter).update(view, first, dots, dot_ns)
            factor = line.scale * line.plot_scale * line.sign
            extents.append((low * factor, high * factor) if factor >= 0 else (high * factor, low * factor))
        limits: list[tuple[Limit, float, Extent]] = []
        for limit in chart.limits:
            if limit.key is None and limit.value is not None:
                level = np.full(dots, limit.value)
                limits.append((limit, limit.value, (level, level)))
            elif limit.key is not None and len(view := store.view(limit.key)):
                extent = self._cache(limit.key, False).update(view, first, dots, dot_ns)
                limits.append((limit, float(view.value[-1]), extent))
        bottom, top = self._range(extents)
        if rows == 1 and chart.style is Style.LINES:
            cells = _spark_cells(chart.lines[0], extents[0], (bottom, top), surface)
        else:
            cells = self._cells(extents, [extent for _, _, extent in limits], (bottom, top), surface, rows)

        entries = []
        for line, view in zip(chart.lines, views, strict=True):
            gap_ns = self._columns[line.key].gap_ns
            value = value_at(view, surface.now_ns, gap_ns, counter=line.counter)
            color = surface.inks.colors[surface.inks.line(line.color)]
            label = line.label if line.pid is None else f"{line.label}\0{line.pid}"
            entries.append(Entry(glyphs.line, color, label, with_unit(_scaled(value, line.scale), line.unit)))
        marks = [
            Entry(glyphs.dash, surface.palette.limit, limit.label, with_unit(value, limit.unit))
            for limit, value, _ in limits
        ]
        labels = axis_labels(bottom, top, rows, chart.unit, signed=chart.style is Style.SIGNED)
        return self._panel(
            cells,
            labels,
            self._legend(entries, marks, rows),
            surface,
        )

    def _panel(
        self,
        cells: Cells,
        labels: dict[int, str],
        entries: list[Entry],
        surface: Surface,
    ) -> Panel:
        """The panel; gutter and legend are made anew only when they say something else."""
        codes, color, area = cells
        rows = len(codes)
        inks = surface.inks
        gutter_key = (self.chart.title, self.chart.unit, labels, surface.gutter, rows, inks)
        if gutter_key != self._gutter[0]:
            self._gutter = (gutter_key, gutter_rows(self.chart, labels, surface, rows))
        legend_key = (entries, surface.legend, surface.at_cursor, rows, inks)
        if legend_key != self._legends[0]:
            self._legends = (legend_key, legend_rows(entries, surface, rows))
        return Panel(codes, color, area, self._gutter[1], self._legends[1])

    def _cache(self, key: Key, counter: bool) -> ColumnCache:
        cache = self._columns.get(key)
        if cache is None:
            cache = self._columns[key] = ColumnCache(counter=counter)
        return cache

    def _legend(self, entries: list[Entry], marks: list[Entry], rows: int) -> list[Entry]:
        """The order of the legend: a limit is worth more than the last of many processes."""
        if rows == 1 and self.chart.style is Style.SIGNED and len(entries) == 2:
            sent, received = (entry.value.replace("B/s", "").replace(" ", "") for entry in entries)
            return [Entry("", entries[0].color, f"↑{sent} ↓{received}", "")]
        ahead = max(rows - len(marks) - 1, 1) if len(entries) + len(marks) > rows > 1 else len(entries)
        return entries[:ahead] + marks + entries[ahead:]

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

    def _cells(
        self,
        extents: list[Extent],
        limits: list[Extent],
        axis: tuple[float, float],
        surface: Surface,
        rows: int,
    ) -> Cells:
        """Areas, then limits, then lines."""
        bottom, top = axis
        inks, glyphs, lines = surface.inks, surface.glyphs, self.chart.lines
        raster = Raster(rows, surface.scale.columns, glyphs)
        upper, lower = _dot_rows(extents, axis, raster)
        base_row = to_dot_row(min(max(0.0, bottom), top), bottom, top, raster.dot_rows)
        for number, line in enumerate(lines):
            if line.fill and surface.palette.tint:
                there = upper[number] <= lower[number]
                start = np.where(there, np.minimum(upper[number], base_row), 1).astype(np.int16)
                end = np.where(there, np.maximum(lower[number], base_row), 0).astype(np.int16)
                raster.area[covered(start, end, rows, glyphs)] = 1 + inks.line(line.color)
        if self.chart.style is Style.SIGNED:
            raster.horizontal(base_row, inks.rule)
        if limits:
            upper_limits, lower_limits = _dot_rows(limits, axis, raster)
            # Dashes lie on the grid of absolute cells, so that they scroll along.
            off = (np.arange(raster.dot_columns) // glyphs.dots_x + surface.scale.first) % 2 == 1
            upper_limits[:, off], lower_limits[:, off] = 1, 0
            dashes = to_bits(upper_limits, lower_limits, rows, glyphs)
            raster.lines(dashes, [inks.limit] * len(limits))
        # The first line is the one that the chart is about: it is drawn last, on top of the others.
        bits = to_bits(upper[::-1], lower[::-1], rows, glyphs)
        raster.lines(bits, [inks.line(line.color) for line in reversed(lines)])
        return glyphs.table[raster.bits], spread_color(raster.color, raster.bits != 0), raster.area

    # ------------------------------------------------------------------------------------------------ strips

    def _paint_strip(self, store: SeriesStore, surface: Surface, rows: int) -> Panel:
        chart, scale, palette = self.chart, surface.scale, surface.palette
        views = [store.view(line.key) for line in chart.lines]
        shares = self._shares.update(views, scale.first, scale.columns, scale.cell_ns)
        mean, highest, groups = lanes.group(shares, rows)
        codes = np.full((rows, scale.columns), ord(" "), np.uint32)
        color = np.zeros(codes.shape, np.uint8)
        codes[: len(groups)], level = lanes.heat(mean, highest, surface.glyphs, len(palette.heat))
        color[: len(groups)] = np.where(level > 0, level + (surface.inks.heat - 1), surface.inks.rule)
        numbers = [line.key[3] for line in chart.lines]
        labels = {
            row: f"{numbers[first]}" if first == last else f"{numbers[first]}-{numbers[last]}"
            for row, (first, last) in enumerate(groups)
            if rows > 1
        }
        return self._panel(
            (codes, spread_color(color, codes != ord(" ")), np.zeros(codes.shape, np.uint8)),
            labels,
            self._strip_entries(shares, surface, max(map(usual_gap_ns, views[:1]), default=0)),
            surface,
        )

    # -------------------------------------------------------------------------------------------------- work

    def _paint_work(self, store: SeriesStore, surface: Surface, rows: int) -> Panel:
        """Per device, equally many rows, and its shares of the time in sight in the legend."""
        devices = list(dict.fromkeys(line.key[1] for line in self.chart.lines))
        names = {line.key[1]: line.label for line in self.chart.lines}
        height = max(rows // len(devices), 1)
        codes = np.full((rows, surface.scale.columns), ord(" "), np.uint32)
        color = np.zeros(codes.shape, np.uint8)
        labels: dict[int, str] = {}
        entries: list[Entry] = []
        for place, uuid in enumerate(devices[: rows // height]):
            views = [store.get(metric, gpu=uuid) for metric in WORK_METRICS]
            part = slice(place * height, (place + 1) * height)
            time = work.shares(views, surface.scale)
            codes[part], color[part] = work.cells(time, height, surface.glyphs, surface.inks)
            labels[place * height] = names[uuid].removeprefix("GPU ") if len(devices) > 1 else ""
            entries += work.entries(time, surface, "" if len(devices) == 1 else names[uuid])
        color = spread_color(color, codes != ord(" "))
        return self._panel((codes, color, np.zeros(codes.shape, np.uint8)), labels, entries, surface)

    def _strip_entries(self, shares: F64Array, surface: Surface, gap_ns: int) -> list[Entry]:
        """The mean of all, and the busiest, in the cursor's column or else the newest that was observed."""
        column = surface.scale.clamp(surface.scale.column(surface.now_ns))
        observed = np.flatnonzero((~np.isnan(shares[:, : column + 1])).any(axis=0))
        if not len(observed) or (surface.at_cursor and observed[-1] != column):
            return []
        if surface.now_ns - surface.scale.time(int(observed[-1]) + 1) > max(gap_ns, _FRESH_NS):
            return []  # the sampler is silent: what was, is not what is
        now = shares[:, observed[-1]]
        mean, busiest = float(np.nanmean(now)), int(np.nanargmax(now))
        return [
            _heat_entry(surface, "all cores", mean),
            _heat_entry(surface, self.chart.lines[busiest].label, float(now[busiest])),
        ]


def _heat_entry(surface: Surface, label: str, share: float) -> Entry:
    heat = surface.palette.heat
    return Entry(
        surface.glyphs.block,
        heat[min(int(share * len(heat)), len(heat) - 1)],
        label,
        with_unit(share * 100, "%"),
    )


def value_at(view: SeriesView, time_ns: int, gap_ns: int, *, counter: bool = False) -> float | None:
    """The reading that held at an instant, or the last one before it, at most `gap_ns` ago.

    None: there was none.
    """
    last = int(np.searchsorted(view.start_ns, np.uint64(max(time_ns, 0)), "right"))
    if last < (2 if counter else 1) or time_ns - int(view.end_ns[last - 1]) > gap_ns:
        return None
    if not counter:
        return float(view.value[last - 1])
    pair = slice(last - 2, last)
    growth = rate(SeriesView(view.start_ns[pair], view.end_ns[pair], view.value[pair])).value
    return float(growth[0]) if len(growth) else None


def _spark_cells(line: Line, extent: Extent, axis: tuple[float, float], surface: Surface) -> Cells:
    """A chart of one row: its first line, as blocks."""
    codes = sparkline(*extent, *axis, surface.glyphs)[None, :]
    color = np.full(codes.shape, surface.inks.line(line.color), np.uint8)
    return codes, color, np.zeros(codes.shape, np.uint8)


def _dot_rows(extents: list[Extent], axis: tuple[float, float], raster: Raster) -> tuple[I16Array, I16Array]:
    """Dot rows (upper, lower), both [line, dot column]."""
    low, high = (np.stack([extent[side] for extent in extents]) for side in (0, 1))
    return to_dot_rows(low, high, axis[0], axis[1], raster.dot_rows)


def _scaled(value: float | None, scale: float) -> float | None:
    return None if value is None else value * scale


def _finite_max(values: F64Array) -> float:
    values = values[np.isfinite(values)]
    return float(values.max()) if len(values) else 0.0


def _calm(current: float, need: float) -> float:
    """The top of a scale: grows at once, shrinks only when much less is needed."""
    return need if need > current or need < current * _SHRINK_BELOW else current
