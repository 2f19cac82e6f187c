"""The two lines below the charts: the time axis, and what is selected on it."""

from __future__ import annotations

from rich.cells import cell_len
from rich.segment import Segment

from gpuprof.tui.timescale import TimeScale, duration_text, wall_text
from gpuprof.tui.widgets.surface import Segments, Surface, ink, padded


def axis_row(surface: Surface, wall_offset_ns: int, left: str, right: str, *, follows: bool) -> Segments:
    """Round times under their columns, `left` in the gutter and `right` below the legends."""
    palette, ground = surface.palette, surface.ground
    ascii_only = surface.glyphs.name == "ascii"
    tick, line = ("+", "-") if ascii_only else ("┴", "─")
    cells = [line] * surface.scale.columns
    labels: list[tuple[int, str]] = []
    for column, label in surface.scale.ticks(wall_offset_ns):
        cells[column] = tick
        start = column + 1
        if start + len(label) < len(cells):
            labels.append((start, label))
    segments = []
    if surface.gutter:
        segments.append(Segment(padded(f" {left}", surface.gutter - 1), ink(palette.dim, ground)))
        segments.append(Segment("+" if ascii_only else "└", ink(palette.rule, ground)))
    position = 0
    for start, label in labels:
        segments.append(Segment("".join(cells[position:start]), ink(palette.rule, ground)))
        segments.append(Segment(label, ink(palette.dim, ground)))
        position = start + len(label)
    segments.append(Segment("".join(cells[position:]), ink(palette.rule, ground)))
    if surface.legend:
        color = palette.good if follows else palette.accent
        segments.append(Segment(padded(f" {right}", surface.legend), ink(color, ground)))
    return segments


def range_text(start_ns: int, end_ns: int, wall_offset_ns: int, cell_ns: int) -> str:
    """ "14:02:11.2 … 14:02:14.9 (3.7 s)", as precise as the columns are."""
    resolution = min(cell_ns, 10**8)
    start = wall_text(start_ns + wall_offset_ns, resolution)
    end = wall_text(end_ns + wall_offset_ns, resolution)
    return f"{start} … {end} ({duration_text(end_ns - start_ns)})"


def selection_row(
    surface: Surface,
    selected: tuple[int, int] | None,
    *,
    pinned: bool,
    cursor_ns: int | None,
    wall_offset_ns: int,
    hint: str,
) -> Segments:
    """The selected range as a bracket under its columns, with its times.

    Else the cursor's time; else a hint.
    """
    palette, ground, scale = surface.palette, surface.ground, surface.scale
    ascii_only = surface.glyphs.name == "ascii"
    cells: list[str] = [" "] * scale.columns
    text, place, color = hint, 1, palette.dim
    if selected is not None:
        times = range_text(*selected, wall_offset_ns, scale.cell_ns)
        texts = (f"{'selected' if pinned else 'selecting'} {times}", times)
        _bracket(cells, scale, selected, ascii_only=ascii_only)
        text, place = _beside(scale, selected, texts, scale.columns + surface.legend)
        color = palette.accent
    elif cursor_ns is not None:
        column = scale.column(cursor_ns)
        text = wall_text(cursor_ns + scale.cell_ns // 2 + wall_offset_ns, min(scale.cell_ns, 10**8))
        color = palette.accent
        if 0 <= column < scale.columns:
            cells[column] = "^" if ascii_only else "▲"
            place = column + 2 if column + 2 + len(text) <= scale.columns else column - 1 - len(text)
        else:
            text = f"{_arrow(column < 0, ascii_only)} {text}"
            place = 0 if column < 0 else scale.columns - len(text)
    width = scale.columns + surface.legend
    row = "".join(cells) + " " * surface.legend
    place = min(max(place, 0), max(width - cell_len(text), 0))
    blank = ink(palette.dim, ground)
    segments = [Segment(" " * surface.gutter, blank)]
    mark = ink(palette.accent, ground)
    return [
        *segments,
        Segment(row[:place], mark),
        Segment(padded(text, min(cell_len(text), width)), ink(color, ground)),
        Segment(row[place + cell_len(text) :][: max(width - place - cell_len(text), 0)], mark),
    ]


def _bracket(cells: list[str], scale: TimeScale, selected: tuple[int, int], *, ascii_only: bool) -> None:
    """Draw the bracket of a range, or an arrow towards it when it is out of sight."""
    left, right = scale.columns_of(*selected)
    if left == right:
        early = selected[1] <= scale.start_ns
        cells[0 if early else -1] = _arrow(early, ascii_only)
        return
    cells[left:right] = ("-" if ascii_only else "─") * (right - left)
    starts_here, ends_here = selected[0] >= scale.start_ns, selected[1] <= scale.end_ns
    if right - left == 1 and starts_here and ends_here:
        cells[left] = "|" if ascii_only else "│"
        return
    if right - left > 1 or not starts_here:
        cells[left] = ("|" if ascii_only else "├") if starts_here else _arrow(True, ascii_only)
    if right - left > 1 or starts_here:
        cells[right - 1] = ("|" if ascii_only else "┤") if ends_here else _arrow(False, ascii_only)


def _beside(
    scale: TimeScale, selected: tuple[int, int], texts: tuple[str, ...], width: int
) -> tuple[str, int]:
    """The longest text that has room beside the bracket or within it, and its place; else the shortest."""
    left, right = scale.columns_of(*selected)
    if left == right:
        return texts[0], 2 if selected[1] <= scale.start_ns else scale.columns - len(texts[0]) - 2
    for text in texts:
        if right + 1 + len(text) <= width:
            return text, right + 1
        if left - 1 - len(text) >= 0:
            return text, left - 1 - len(text)
        if right - left >= len(text) + 6:
            return text, (left + right - len(text)) // 2
    return texts[-1], max((left + right - len(texts[-1])) // 2, 0)


def _arrow(left: bool, ascii_only: bool) -> str:
    if ascii_only:
        return "<" if left else ">"
    return "◂" if left else "▸"
