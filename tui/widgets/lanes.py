"""Strips: one row per subject (a core, a device), one state or level per column."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gpuprof.tui.series import F64Array, SeriesView
from gpuprof.tui.widgets.braille import Glyphs, U8Array
from gpuprof.tui.widgets.envelope import usual_gap_ns

# Below this share a core counts as idle: a timer tick and the sampler itself are not work.
IDLE_BELOW = 0.01


def busy_shares(counter: SeriesView, first: int, count: int, cell_ns: int, gap_ns: int) -> F64Array:
    """Share of each cell that a counter of busy ns grew by, 0..1; NaN: not observed.

    The counter is read between its readings by straight lines, so that a cell's share is exact where readings
    meet its edges.
    """
    shares = np.full(count, np.nan)
    counter = counter.since(first * cell_ns, before=2).until((first + count) * cell_ns)
    if len(counter) < 2 or count <= 0:
        return shares
    times = counter.end_ns.astype(np.int64)
    edges = np.arange(first, first + count + 1, dtype=np.int64) * cell_ns
    edges = np.clip(edges, times[0], times[-1])
    # Relative to the first reading: float64 would round absolute times of weeks to fractions of a
    # microsecond.
    totals = np.interp(edges - times[0], times - times[0], counter.value)
    length = np.diff(edges)
    middle = np.searchsorted(times, edges[:-1] + length // 2, "right")
    middle = np.clip(middle, 1, len(times) - 1)
    pause = times[middle] - times[middle - 1]
    grown = np.diff(totals)
    seen = (length > 0) & (pause <= gap_ns) & (grown >= 0)
    shares[seen] = np.minimum(grown[seen] / length[seen], 1.0)
    return shares


class ShareCache:
    """busy_shares of many counters as one array [subject, column], of which only new columns are computed."""

    __slots__ = ("_cell_ns", "_counters", "_first", "_gap_ns", "_known_ns", "_shares")

    def __init__(self) -> None:
        self._shares: F64Array = np.empty((0, 0))
        self._first = 0
        self._cell_ns = 0
        self._counters = 0
        self._known_ns = 0  # columns that end before this instant will not change any more
        self._gap_ns = 0

    def update(self, counters: Sequence[SeriesView], first: int, count: int, cell_ns: int) -> F64Array:
        """The shares of the columns [first, first + count); an array that the caller must not change."""
        kept = first - self._first
        known = 0
        if (
            cell_ns == self._cell_ns
            and len(counters) == self._counters
            and 0 <= kept < self._shares.shape[1]
            and self._gap_ns
        ):
            known = min(self._shares.shape[1] - kept, self._known_ns // cell_ns - first, count)
            known = max(known, 0)
        shares = np.empty((len(counters), count))
        if known:
            shares[:, :known] = self._shares[:, kept : kept + known]
        else:
            self._gap_ns = max((usual_gap_ns(view) for view in counters[:4]), default=0)
        for row, view in enumerate(counters):
            shares[row, known:] = busy_shares(view, first + known, count - known, cell_ns, self._gap_ns)
        self._shares, self._first, self._cell_ns, self._counters = shares, first, cell_ns, len(counters)
        self._known_ns = min((int(view.end_ns[-1]) for view in counters if len(view)), default=0)
        return shares


def group(shares: F64Array, rows: int) -> tuple[F64Array, F64Array, list[tuple[int, int]]]:
    """Subjects gathered into at most `rows` rows.

    (mean, highest, [(first, last subject)]); NaN where none was observed.
    """
    subjects, columns = shares.shape
    rows = min(rows, subjects)
    bounds = [subjects * row // rows for row in range(rows + 1)] if rows else [0]
    mean = np.full((rows, columns), np.nan)
    highest = np.full((rows, columns), np.nan)
    seen = ~np.isnan(shares)
    filled = np.where(seen, shares, 0.0)
    for row in range(rows):
        part = slice(bounds[row], bounds[row + 1])
        number = seen[part].sum(axis=0)
        any_seen = number > 0
        mean[row, any_seen] = filled[part].sum(axis=0)[any_seen] / number[any_seen]
        highest[row, any_seen] = filled[part].max(axis=0)[any_seen]
    return mean, highest, [(bounds[row], bounds[row + 1] - 1) for row in range(rows)]


def heat(mean: F64Array, highest: F64Array, glyphs: Glyphs, heats: int) -> tuple[NDArray[np.uint32], U8Array]:
    """Heat rows as (code points, level).

    The height of a block is the mean; its level is the highest of the group, 1..heats, or 0 when idle. What was
    not observed is blank.
    """
    observed = ~np.isnan(mean)
    top = len(glyphs.shades) - 1
    shade = 1 + np.minimum(np.where(observed, mean, 0.0) * top, top - 1).astype(np.int16)
    peak = np.where(observed, highest, 0.0)
    level = 1 + np.minimum(peak * heats, heats - 1).astype(np.int16)
    level[peak < IDLE_BELOW] = 0
    return states(np.where(observed, shade, 0), glyphs.shades), level.astype(np.uint8)


def states(state: NDArray[np.int16], characters: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Code points of states [rows, columns], each drawn as its character; state 0 should be a blank."""
    return characters[state]
