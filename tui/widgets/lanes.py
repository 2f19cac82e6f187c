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


def busy_shares(
    times: NDArray[np.int64], totals: F64Array, edges: NDArray[np.int64], gap_ns: int
) -> F64Array:
    """Shares [subject, cell] of the cells between `edges` that counters of busy ns grew by; NaN: not seen.

    `totals` [subject, reading] are read at the same `times`. Between readings they are followed by straight
    lines, so that a cell's share is exact where readings meet its edges.
    """
    shares = np.full((len(totals), len(edges) - 1), np.nan)
    if len(times) < 2 or len(edges) < 2:
        return shares
    edges = np.clip(edges, times[0], times[-1])
    right = np.clip(np.searchsorted(times, edges, "right"), 1, len(times) - 1)
    left = right - 1
    share = (edges - times[left]) / np.maximum(times[right] - times[left], 1)
    at_edges = totals[:, left] * (1 - share) + totals[:, right] * share
    length = np.diff(edges)
    middle = np.searchsorted(times, edges[:-1] + length // 2, "right")
    middle = np.clip(middle, 1, len(times) - 1)
    pause = times[middle] - times[middle - 1]
    seen = (length > 0) & (pause <= gap_ns)
    grown = np.diff(at_edges, axis=1)
    np.divide(grown, length, out=shares, where=seen & (grown >= 0))
    np.minimum(shares, 1.0, out=shares)
    return shares


def _shares_of(counters: Sequence[SeriesView], edges: NDArray[np.int64], gap_ns: int) -> F64Array:
    """busy_shares of counters; those that are read together, as cores are, are computed together."""
    tails = [view.since(int(edges[0]), before=2).until(int(edges[-1])) for view in counters[:1]]
    count = len(tails[0]) if tails else 0
    skipped = len(counters[0]) - count if tails else 0
    alike = count > 0 and all(
        len(view) >= count
        and view.end_ns[-1] == counters[0].end_ns[-1]
        and view.end_ns[skipped - len(counters[0])] == tails[0].end_ns[0]
        for view in counters
    )
    if alike and len(tails[0].end_ns) and tails[0].end_ns[-1] == counters[0].end_ns[-1]:
        totals = np.array([view.value[-count:] for view in counters])
        return busy_shares(tails[0].end_ns.astype(np.int64), totals, edges, gap_ns)
    rows = []
    for counter in counters:
        view = counter.since(int(edges[0]), before=2).until(int(edges[-1]))
        rows.append(busy_shares(view.end_ns.astype(np.int64), view.value[None, :], edges, gap_ns))
    return np.concatenate(rows) if rows else np.empty((0, len(edges) - 1))


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
        edges = np.arange(first + known, first + count + 1, dtype=np.int64) * cell_ns
        shares[:, known:] = _shares_of(counters, edges, self._gap_ns)
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

    The height of a block is the mean; its level is the highest of the group, 1..heats, or 0 when idle.
    What was not observed is blank.
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
