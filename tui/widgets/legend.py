"""What stands beside a plot: title and axis on its left, the legend with values on its right."""

from __future__ import annotations

import math
from typing import NamedTuple

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style as RichStyle

from gpuprof.snapshots.names import fit
from gpuprof.tui.charts import Chart
from gpuprof.tui.units import tick
from gpuprof.tui.widgets.braille import to_dot_row
from gpuprof.tui.widgets.surface import Segments, Surface, ink, padded


class Entry(NamedTuple):
    """A line of a legend."""

    marker: str
    color: str
    label: str
    value: str


def axis_labels(bottom: float, top: float, rows: int, unit: str, *, signed: bool = False) -> dict[int, str]:
    """Row -> label: the ends of the axis, and round values between them where there is room."""
    if rows <= 1:
        return {}
    if signed:
        labels = {0: tick(top, unit), rows - 1: tick(-bottom, unit)}
        zero = _row_of(0.0, bottom, top, rows)
        if 0 < zero < rows - 1:
            labels[zero] = "0"
        return labels
    labels = {0: tick(top, unit)}
    if rows >= 3:
        labels[rows - 1] = tick(bottom, unit)
    parts = (rows - 1) // 2
    if parts >= 2:
        step = _nice_step((top - bottom) / min(parts, 4))
        value = (bottom // step + 1) * step
        for _ in range(8):
            row = _row_of(value, bottom, top, rows)
            if all(abs(row - used) >= 2 for used in labels):
                labels[row] = tick(value, unit)
            value += step
            if not value < top:
                break
    return labels


def _row_of(value: float, bottom: float, top: float, rows: int) -> int:
    return to_dot_row(value, bottom, top, rows * 4) // 4


def _nice_step(value: float) -> float:
    power = 10.0 ** math.floor(math.log10(max(value, 1e-12)))
    return next((step * power for step in (1, 2, 2.5, 5) if step * power >= value * 0.999), 10 * power)


def gutter_rows(chart: Chart, labels: dict[int, str], surface: Surface, rows: int) -> list[Segments]:
    """Title in the first row, labels at the right, and the axis."""
    palette, ground = surface.palette, surface.ground
    plain, ticked = surface.glyphs.axis[0], surface.glyphs.axis[1]
    width = surface.gutter - 1
    if width <= 0:
        return [[] for _ in range(rows)]
    title = chart.title if width >= 13 else chart.short_title
    result = []
    for row in range(rows):
        label = labels.get(row, "")
        room = max(width - cell_len(label) - 1, 0)
        heading = padded(f" {_with_unit(title, chart.unit, room - 1)}" if row == 0 else "", room)
        label = padded(label, width - room, right=True)
        result.append(
            [
                Segment(heading, ink(palette.text, ground, bold=True)),
                Segment(label, ink(palette.dim, ground)),
                Segment(ticked if labels.get(row) else plain, ink(palette.rule, ground)),
            ]
        )
    return result


def _with_unit(title: str, unit: str, room: int) -> str:
    full = f"{title} {unit}"
    return full if cell_len(full) <= room else title


def legend_rows(entries: list[Entry], surface: Surface, rows: int) -> list[Segments]:
    """The legend: one entry per row, what does not fit as "+n more"."""
    width = surface.legend
    if width <= 0:
        return [[] for _ in range(rows)]
    palette, ground = surface.palette, surface.ground
    value_ink = ink(palette.accent if surface.at_cursor else palette.text, ground)
    result: list[Segments] = []
    half = width // 2
    if len(entries) > rows and half >= 13 and all(_pairs(entry, half) for entry in entries):
        return _paired_rows(entries, surface, rows, value_ink)
    hidden = len(entries) - rows
    for row, entry in enumerate(entries[:rows]):
        more = f" +{hidden}" if hidden > 0 and row == rows - 1 > 0 else ""
        value = entry.value
        room = width - 2 - cell_len(value) - 1 - len(more)
        if room < 4 or not entry.marker:  # narrow: the value alone
            text = padded(fit(value or entry.label, width - 2), width - 2, right=True)
            result.append([Segment(f" {text} ", ink(entry.color, ground))])
            continue
        name, _, pid = entry.label.partition("\0")
        marker = f"{entry.marker} " if entry.marker else ""
        label = _label(name, pid, room - len(marker))
        result.append(
            [
                Segment(f" {marker}", ink(entry.color, ground)),
                Segment(padded(label, room - len(marker)), ink(palette.dim, ground)),
                Segment(padded(f" {value}", width - 2 - room - len(more), right=True), value_ink),
                Segment(f"{more} ", ink(palette.dim, ground)),
            ]
        )
    blank = [Segment(" " * width, ink(palette.dim, ground))]
    return result + [blank] * (rows - len(result))


def _label(name: str, pid: str, cells: int) -> str:
    """A name with its pid, of which the pid is never cut: where it gets tight the name goes."""
    if not pid:
        return fit(name, cells)
    left = cells - len(pid) - 1
    return f"{fit(name, left)} {pid}" if left >= 2 else fit(pid, cells)


def _pairs(entry: Entry, width: int) -> bool:
    """Whether an entry can share its row with another."""
    label = entry.label.removeprefix("GPU ")
    return "\0" not in label and 5 + cell_len(label) + cell_len(entry.value) <= width


def _paired_rows(entries: list[Entry], surface: Surface, rows: int, value_ink: RichStyle) -> list[Segments]:
    """Two entries to a row, for short labels such as those of devices."""
    palette, ground = surface.palette, surface.ground
    half = surface.legend // 2
    hidden = len(entries) - 2 * rows
    if hidden > 0:
        entries = [*entries[: 2 * rows - 1], Entry("", palette.dim, f"+{hidden + 1} more", "")]
    result: list[Segments] = []
    for row in range(rows):
        line: Segments = []
        for entry in entries[2 * row : 2 * row + 2]:
            room = half - 3 - cell_len(entry.value) - 1
            label = entry.label if cell_len(entry.label) < room else entry.label.removeprefix("GPU ")
            line += [
                Segment(f" {entry.marker or ' '} ", ink(entry.color, ground)),
                Segment(padded(fit(label, room), room), ink(palette.dim, ground)),
                Segment(f"{entry.value} ", value_ink),
            ]
        used = half * len(entries[2 * row : 2 * row + 2])
        line.append(Segment(" " * (surface.legend - used), ink(palette.dim, ground)))
        result.append(line)
    return result
