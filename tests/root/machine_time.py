"""Time as a machine that is not busy would have it: what is waited for a CPU does not count."""

from __future__ import annotations

import re
import time
from contextlib import suppress
from pathlib import Path

PRESSURE = Path("/proc/pressure/cpu")  # Documentation/accounting/psi.rst
PATIENCE_S = 60.0  # for what happens at once where the machine has time for it


def _waited_s() -> float:
    """Seconds since the boot in which some task was ready and had no CPU; 0 where the kernel does not say."""
    with suppress(OSError):
        found = re.search(r"^some .*total=(\d+)$", PRESSURE.read_text(), re.MULTILINE)
        return int(found[1]) / 1e6 if found is not None else 0.0
    return 0.0


class Stopwatch:
    """Runs from when it is made."""

    def __init__(self) -> None:
        self._began = time.monotonic() - _waited_s()

    @property
    def seconds(self) -> float:
        """What has passed, without what others took."""
        return time.monotonic() - _waited_s() - self._began
