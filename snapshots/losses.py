"""What sources have lost over time: the counts of their status, which are totals of a sampler's life, kept so
that those of a range are a difference.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right

import numpy as np

from gpuprof.snapshots.columns import Array
from gpuprof.snapshots.frames import SourceCounts, SourceStatus, Status

COUNTS = ("lost", "invalid", "early", "unmatched", "truncated")
_MAX_ENTRIES = 2048  # of a source; then the older half is thinned
_MAX_SOURCES = 64
_MAX_U64 = (1 << 64) - 1
_WIDTH = 2 + len(COUNTS)  # first and last time at which the counts were so, and the counts


class LossLog:
    """The counts of each source by time: an entry where they have changed. Not thread-safe."""

    def __init__(self) -> None:
        self._sources: dict[str, array[int]] = {}
        self._complete = False

    def add(self, status: Status) -> None:
        """Take the counts of a status; statuses may come again, and out of order."""
        for source in status.sources:
            self._put(source.name, status.time_ns, status.time_ns, _counts(source))

    def add_counts(self, frame: SourceCounts) -> None:
        """Take what a file or another history has kept. ValueError for a source that has no name there."""
        if len(frame.source) and int(frame.source.max()) >= len(frame.names):
            raise ValueError("counts of a source that is not named")
        columns = [frame.source, frame.start_ns, frame.end_ns, *(getattr(frame, name) for name in COUNTS)]
        for source, start, end, *counts in zip(*(column.tolist() for column in columns), strict=True):
            self._put(frame.names[source], start, max(start, end), tuple(counts))
        self._complete = True

    def frame(self, start_ns: int, end_ns: int) -> SourceCounts | None:
        """Return what is needed for the counts of [start_ns, end_ns); None when no status was seen."""
        names: list[str] = []
        found: list[Array] = []
        for name, kept in self._sources.items():
            rows = np.array(kept, np.uint64).reshape(-1, _WIDTH)
            low, high = (np.uint64(min(max(time, 0), _MAX_U64)) for time in (start_ns, end_ns))
            first = max(int(np.searchsorted(rows[:, 0], low, "right")) - 1, 0)
            last = int(np.searchsorted(rows[:, 1], high, "left")) + 1
            part = rows[first : max(last, first + 1)]
            found.append(np.column_stack([np.full(len(part), len(names), np.uint64), part]))
            names.append(name)
        if not names:
            return None
        columns = np.concatenate(found).T
        return SourceCounts(names, columns[0].astype(np.uint32), *(column.copy() for column in columns[1:]))

    def between(self, source: SourceStatus, start_ns: int, end_ns: int) -> dict[str, int]:
        """Return the counts of a source in [start_ns, end_ns), to the second in which a status came.

        Where it is not known what was counted before (an older file), they are the totals of its status.
        """
        kept = self._sources.get(source.name)
        if not self._complete or not kept:
            return dict(zip(COUNTS, _counts(source), strict=True))
        times = kept[0::_WIDTH]
        first = max(bisect_right(times, start_ns) - 1, 0)
        last = first
        while last + 1 < len(times) and kept[last * _WIDTH + 1] < end_ns:
            last += 1
        before, after = (kept[row * _WIDTH + 2 : (row + 1) * _WIDTH] for row in (first, last))
        return {name: max(b - a, 0) for name, a, b in zip(COUNTS, before, after, strict=True)}

    def _put(self, name: str, start_ns: int, end_ns: int, counts: tuple[int, ...]) -> None:
        kept = self._sources.get(name)
        if kept is None:
            if len(self._sources) >= _MAX_SOURCES:
                return
            kept = self._sources[name] = array("Q")
        start, end = (min(max(time, 0), _MAX_U64) for time in (start_ns, end_ns))
        place = (
            bisect_right(kept[0::_WIDTH], start) if kept and kept[-_WIDTH] > start else len(kept) // _WIDTH
        )
        at = place * _WIDTH
        if place and tuple(kept[at - _WIDTH + 2 : at]) == counts:  # as it was
            kept[at - _WIDTH + 1] = max(kept[at - _WIDTH + 1], end)
            return
        kept[at:at] = array("Q", (start, end, *counts))
        if len(kept) > _MAX_ENTRIES * _WIDTH:
            self._sources[name] = _thinned(kept)


def _thinned(kept: array[int]) -> array[int]:
    """Return entries without every second one of the older half; the first one stays."""
    rows = np.array(kept, np.uint64).reshape(-1, _WIDTH)
    half = len(rows) // 2
    some = np.concatenate([rows[:half:2], rows[half:]])
    return array("Q", some.tobytes())


def _counts(source: SourceStatus) -> tuple[int, ...]:
    return tuple(min(max(getattr(source, name), 0), _MAX_U64) for name in COUNTS)
