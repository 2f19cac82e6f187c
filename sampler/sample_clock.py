"""Puts NVML's sample stamps on CLOCK_MONOTONIC and turns stamped samples into consecutive windows.

NVML does not say which clock its microsecond stamps are of: it is time since the epoch on some platforms and
time since boot on others. The two are decades apart, so the nearer one is meant.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

MAX_AGE_US = (
    600 * 1_000_000
)  # the driver's buffers hold seconds; what is further away is of no clock that we know
MAX_AHEAD_US = 1_000_000
READINGS, AT_ONCE_NS = 5, 20_000
MAX_WINDOW_NS = 1_000_000_000  # the longest sample period of nvml.h; a longer gap was not measured

Window = tuple[int, int, float]  # start_ns, end_ns, value


@dataclass(frozen=True, slots=True)
class ClockInstant:
    """The three clocks of the node, read together."""

    epoch_us: int
    boot_us: int
    mono_ns: int

    @classmethod
    def now(cls) -> ClockInstant:
        """Of a few readings that which took least: on a busy machine the thread may be off the CPU in one."""
        best, best_ns = cls(0, 0, 0), 1 << 62
        for _ in range(READINGS):
            before_ns = time.monotonic_ns()
            epoch_ns = time.clock_gettime_ns(time.CLOCK_REALTIME)
            boot_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
            took_ns = time.monotonic_ns() - before_ns
            if took_ns < best_ns:
                best = cls(epoch_ns // 1000, boot_ns // 1000, before_ns + took_ns // 2)
                best_ns = took_ns
            if took_ns < AT_ONCE_NS:
                break
        return best

    def clock_of(self, stamp_us: int) -> int:
        """This instant in µs on the clock that `stamp_us` is of."""
        return min((self.epoch_us, self.boot_us), key=lambda clock: abs(clock - stamp_us))

    def mono_ns_of(self, stamp_us: int) -> int | None:
        """CLOCK_MONOTONIC ns of a stamp taken shortly before this instant; None when near neither clock."""
        age_us = self.clock_of(stamp_us) - stamp_us
        if not -MAX_AHEAD_US <= age_us <= MAX_AGE_US:
            return None
        return self.mono_ns - age_us * 1000


class SampleWindows:
    """The samples of one device and kind as windows that follow each other and never overlap.

    A sample describes the time since the sample before it. `last_seen_us` goes back to NVML at the next call.
    """

    def __init__(self, began_ns: int, limit: float = 100.0) -> None:
        self.last_seen_us = 0
        self.end_ns = began_ns  # of the last window handed out; nothing earlier is reported
        self.invalid = 0
        self._limit = limit
        self._previous_ns: int | None = None

    def advance(self, samples: Iterable[tuple[int, float]], at: ClockInstant) -> list[Window]:
        """Windows of the samples not seen before, oldest first; one outside 0..limit counts in `invalid`."""
        windows: list[Window] = []
        for stamp_us, value in sorted(samples):
            if stamp_us <= self.last_seen_us:
                continue
            end_ns = at.mono_ns_of(stamp_us)
            if end_ns is None:
                self.invalid += 1
                continue
            self.last_seen_us = stamp_us
            previous, self._previous_ns = self._previous_ns, end_ns
            if end_ns <= self.end_ns or previous is None:
                continue
            if not 0 <= value <= self._limit:
                self.invalid += 1
                continue
            windows.append((max(previous, end_ns - MAX_WINDOW_NS, self.end_ns), end_ns, value))
            self.end_ns = end_ns
        return windows

    def restart(self) -> None:
        """Forget the stamps, as after a step of the wall clock that left `last_seen_us` in the future."""
        self.last_seen_us = 0
        self._previous_ns = None
