"""How long kernels wait between their launch and their start: a reading a second by device and process.

The delay of a kernel is from the enter of the API call that launched it to its start on the device: some
microseconds where the device waits for the host, more where the host is ahead. The library tells the time of
the enter with each record. Kernels of a graph are left out: most of their delay is the graph itself.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpuprof.sampler.gpu_coverage import ReadingSink
from gpuprof.snapshots.columns import is_constant

METRIC = "launch_delay_ns"
MAX_KEYS = 1024
LONGEST_NS = 600 * 10**9


class LaunchDelay:
    """Sums since the last reading. Not thread-safe."""

    def __init__(self, history: ReadingSink) -> None:
        self._history = history
        self._sums: dict[tuple[str, int], tuple[int, int]] = {}  # delays, kernels
        self._since_ns: int | None = None

    def add(self, gpu: str, pid: int, delay_ns: NDArray[np.int64], which: NDArray[np.bool_]) -> None:
        """Take some delays: those of the kernels of a process on a device (UUID)."""
        if len(self._sums) >= MAX_KEYS and (gpu, pid) not in self._sums:
            return
        total, count = self._sums.get((gpu, pid), (0, 0))
        if is_constant(which):
            more, kernels = (int(delay_ns.sum()), len(which)) if which[0] else (0, 0)
        else:
            more, kernels = int((delay_ns * which).sum()), int(np.count_nonzero(which))
        self._sums[gpu, pid] = total + more, count + kernels

    def write(self, now_ns: int) -> None:
        """Write the means of the time since the last call."""
        start_ns, self._since_ns = self._since_ns, now_ns
        sums, self._sums = self._sums, {}
        sums = {key: entry for key, entry in sums.items() if entry[1]}
        if start_ns is None or not sums:
            return
        ids = [self._history.series(METRIC, gpu=gpu, pid=pid) for gpu, pid in sums]
        values = [total / count for total, count in sums.values()]
        self._history.add_readings(ids, [start_ns] * len(ids), [now_ns] * len(ids), values)


def delays(start_ns: NDArray[np.uint64], launch_ns: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Delay of each kernel in ns; 0 where it seems to start before its launch, or cannot be true."""
    wrapped = start_ns - launch_ns  # to a large number where the launch is later
    delay = wrapped.view(np.int64)
    if len(delay) and int(wrapped.max()) < LONGEST_NS:
        return delay
    return np.where((delay > 0) & (delay < LONGEST_NS), delay, 0)
