"""CUPTI's clock to CLOCK_MONOTONIC, by the pairs that the injection library takes about once a second.

CUPTI's clock is CLOCK_REALTIME: the two clocks run at the same rate (the kernel disciplines both alike), so
that between steps of the wall clock their difference is constant, and a pair gives it to within its width.
When the wall clock was stepped, times from before need the pairs from before: a time is converted by the
newest difference that had begun by then and does not put it into the future.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

STEP_NS = 100_000  # a difference that changed by more was a step, not the width of the pair
MAX_SEGMENTS = 8
MAX_PAIRS = 8  # of one batch that are looked at
MAX_WIDTH_NS = 1_000_000_000
MAX_AGE_NS = 3600 * 10**9
LIMIT = 1 << 62  # larger times are no times
TOLERANCE_NS = 1_000_000


class GpuClock:
    """The differences of one process. Not thread-safe."""

    def __init__(self) -> None:
        self.width_ns: int | None = None  # of the newest pair: how far off a converted time may be
        self._segments: list[
            tuple[int, int]
        ] = []  # (CUPTI's time of the first pair, difference), oldest first

    def add(self, pairs: NDArray[Any], now_ns: int) -> int:
        """Take pairs (rows with cupti_ns, mono_ns, width_ns) in their order; how many cannot be true."""
        invalid = max(len(pairs) - MAX_PAIRS, 0)
        for cupti_ns, mono_ns, width_ns in pairs[["cupti_ns", "mono_ns", "width_ns"]][-MAX_PAIRS:].tolist():
            true = 0 < cupti_ns < LIMIT and now_ns - MAX_AGE_NS < mono_ns <= now_ns + TOLERANCE_NS
            if not true or width_ns > MAX_WIDTH_NS:
                invalid += 1
                continue
            self.width_ns = width_ns
            difference = mono_ns - cupti_ns
            if self._segments and abs(self._segments[-1][1] - difference) <= max(STEP_NS, width_ns):
                self._segments[-1] = (self._segments[-1][0], difference)
            else:
                self._segments = [*self._segments[-MAX_SEGMENTS + 1 :], (cupti_ns, difference)]
        return invalid

    def convert(
        self, start: NDArray[np.uint64], end: NDArray[np.uint64], now_ns: int
    ) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """(start, end) as monotonic ns; 0, 0 for what cannot be true, such as a start of 0."""
        if not self._segments or not len(start):
            return np.zeros(len(start), np.uint64), np.zeros(len(start), np.uint64)
        lowest, latest = int(start.min()), int(end.max())
        first_ns, offset = self._segments[-1]
        in_time = lowest >= first_ns and latest <= now_ns + TOLERANCE_NS - offset and lowest + offset > 0
        if lowest > 0 and latest < LIMIT and in_time and (end >= start).all():
            step = np.uint64(
                offset % (1 << 64)
            )  # as nearly always: all can be true, and is of after the last step
            return start + step, end + step
        sound = (start > 0) & (end >= start) & (end < LIMIT)
        begin, finish = (np.where(sound, column, 0).astype(np.int64) for column in (start, end))
        difference = np.zeros(len(begin), np.int64)
        open_ = sound.copy()
        for first_ns, offset in reversed(self._segments):
            fits = open_ & (finish >= first_ns) & (finish + offset <= now_ns + TOLERANCE_NS)
            difference[fits] = offset
            open_ &= ~fits
            if not open_.any():
                break
        difference[open_] = self._segments[0][1]  # a step has hidden where it belongs, or it lies
        begin += difference
        finish += difference
        sound &= begin > 0
        return np.where(sound, begin, 0).astype(np.uint64), np.where(sound, finish, 0).astype(np.uint64)
