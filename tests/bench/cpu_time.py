"""How long something takes, in CPU time, which what else runs on the machine disturbs least."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable


def median_ms(action: Callable[[], object], times: int = 7) -> float:
    """Return the median CPU time of `action` in ms."""
    taken = []
    for _ in range(times):
        start = time.process_time()
        action()
        taken.append((time.process_time() - start) * 1e3)
    return statistics.median(taken)
