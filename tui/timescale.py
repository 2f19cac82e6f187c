"""The shared time axis: which column of the screen shows which instant, and how times are written.

Columns lie on a grid of absolute time (column n of the grid covers [n * cell_ns, (n + 1) * cell_ns)), so that
what was drawn for a column stays right while the axis scrolls.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

SECOND = 10**9

# Windows that + and - step through.
WINDOWS_NS = tuple(
    seconds * SECOND
    for seconds in (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 21600, 86400)
)

_TICKS_NS = tuple(
    int(seconds * SECOND)
    for seconds in (
        0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900,
        1800, 3600, 7200, 10800, 21600, 43200, 86400,
    )
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class TimeScale:
    """`columns` cells of `cell_ns` each; the leftmost is number `first` of the absolute grid."""

    first: int
    cell_ns: int
    columns: int

    @classmethod
    def ending_at(cls, end_ns: int, window_ns: int, columns: int) -> TimeScale:
        """The scale of about `window_ns` whose last column holds the instant before `end_ns`."""
        columns = max(columns, 1)
        cell_ns = max(window_ns // columns, 1000) & ~1  # even: a cell has two columns of dots
        last = max(end_ns - 1, 0) // cell_ns
        return cls(last - columns + 1, cell_ns, columns)

    @property
    def start_ns(self) -> int:
        """Left edge of the leftmost column."""
        return self.first * self.cell_ns

    @property
    def end_ns(self) -> int:
        """Right edge of the rightmost column."""
        return (self.first + self.columns) * self.cell_ns

    def column(self, time_ns: int) -> int:
        """Column that shows an instant; below 0 or at least `columns` when it is out of sight."""
        return time_ns // self.cell_ns - self.first

    def time(self, column: int) -> int:
        """Left edge of a column; the inverse of `column`."""
        return (self.first + column) * self.cell_ns

    def columns_of(self, start_ns: int, end_ns: int) -> tuple[int, int]:
        """Columns [a, b) that a range touches, cut to what is in sight; a == b when none is."""
        left = min(max(self.column(start_ns), 0), self.columns)
        right = min(max(self.column(end_ns - 1) + 1, 0), self.columns)
        return left, max(left, right)

    def clamp(self, column: int) -> int:
        """The nearest column in sight."""
        return min(max(column, 0), self.columns - 1)

    def ticks(self, wall_offset_ns: int, spacing: int = 14) -> list[tuple[int, str]]:
        """(column, label) of round wall-clock times, at least `spacing` columns apart.

        `wall_offset_ns` is wall clock minus the axis' clock.
        """
        step = next((tick for tick in _TICKS_NS if tick >= spacing * self.cell_ns), _TICKS_NS[-1])
        wall = self.start_ns + wall_offset_ns
        # Ticks are round in local time: past a minute that differs from round in UTC by the zone's offset.
        zone = utc_offset_ns(wall) if step >= 60 * SECOND else 0
        tick = -(-(wall + zone) // step) * step - zone
        result: list[tuple[int, str]] = []
        while (column := self.column(tick - wall_offset_ns)) < self.columns and len(result) <= self.columns:
            result.append((column, wall_text(tick, step)))
            tick += step
        return result


def utc_offset_ns(wall_ns: int) -> int:
    """Local time minus UTC at an instant of the wall clock."""
    try:
        return time.localtime(wall_ns // SECOND).tm_gmtoff * SECOND
    except (OverflowError, ValueError, OSError):
        return 0


def wall_text(wall_ns: int, resolution_ns: int = SECOND) -> str:
    """A wall-clock time in the local zone, as precise as `resolution_ns` asks for: "14:02:11.2"."""
    seconds, rest = divmod(wall_ns, SECOND)
    try:
        text = time.strftime("%H:%M:%S", time.localtime(seconds))
    except (OverflowError, ValueError, OSError):
        text = f"{seconds} s"
    return text + _decimals(rest, resolution_ns)


def _decimals(rest_ns: int, resolution_ns: int) -> str:
    for digits, unit in ((0, SECOND), (1, SECOND // 10), (2, SECOND // 100)):
        if resolution_ns >= unit:
            return f".{rest_ns // unit:0{digits}d}" if digits else ""
    return f".{rest_ns // 1_000_000:03d}"


def duration_text(length_ns: int) -> str:
    """A length of time for people: "3.7 s", "250 ms", "2 min 5 s", "1 h 3 min"."""
    seconds = length_ns / SECOND
    if seconds < 1:
        return f"{length_ns / 1e6:.0f} ms" if length_ns >= 10_000_000 else f"{length_ns / 1e6:.2g} ms"
    if seconds < 10:
        return f"{seconds:.2f}".rstrip("0").rstrip(".") + " s"
    if seconds < 60:
        return f"{seconds:.1f} s".replace(".0 s", " s")
    minutes, left = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {left} s" if left else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"


def zoomed(window_ns: int, steps: int) -> int:
    """The window `steps` notches wider (or narrower, when negative) than `window_ns`."""
    if steps > 0:
        wider = [window for window in WINDOWS_NS if window > window_ns]
        return wider[min(steps, len(wider)) - 1] if wider else window_ns
    if steps < 0:
        narrower = [window for window in WINDOWS_NS if window < window_ns]
        return narrower[max(steps, -len(narrower))] if narrower else window_ns
    return window_ns
