"""Activity of SMs, tensor cores, DRAM and links from pairs of GPM samples (chips from Hopper on)."""

from __future__ import annotations

import math
import time
from typing import Any

from gpuprof.sampler.nvml_device import Device
from gpuprof.sampler.nvml_values import Absent

_MIB = 1024.0 * 1024.0

# NVML_GPM_METRIC id -> (metric, factor from GPM's unit to ours, largest plausible value in our unit)
_METRICS = {
    2: ("sm_active_percent", 1.0, 100.0),
    3: ("sm_occupancy_percent", 1.0, 100.0),
    5: ("tensor_active_percent", 1.0, 100.0),
    10: ("dram_active_percent", 1.0, 100.0),
    20: ("pcie_tx_bytes_per_s", _MIB, 1e13),
    21: ("pcie_rx_bytes_per_s", _MIB, 1e13),
    60: ("nvlink_rx_bytes_per_s", _MIB, 1e13),
    61: ("nvlink_tx_bytes_per_s", _MIB, 1e13),
}
_ROUNDING = 1.01  # a quotient of two counters read one after the other may be a little over 100 %


class GpmPair:
    """Two GPM samples of one device that take turns; a read() describes the time since the one before."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._samples: list[Any] = []
        self._taken_ns: int | None = None  # when samples[0] was filled
        self.invalid = 0

    def read(self) -> list[tuple[str, int, int, float]] | Absent:
        """(metric, start_ns, end_ns, value) since the last read, empty the first time; raises DeviceLost."""
        while len(self._samples) < 2:
            sample = self._device.gpm_alloc()
            if isinstance(sample, Absent):
                return sample
            self._samples.append(sample)
        earlier, later = self._samples
        before_ns = time.monotonic_ns()
        missing = self._device.gpm_take(later)
        if missing is not None:
            return missing
        taken_ns = (before_ns + time.monotonic_ns()) // 2
        start_ns, self._taken_ns = self._taken_ns, taken_ns
        self._samples = [later, earlier]
        if start_ns is None:
            return []
        values = self._device.gpm_metrics(earlier, later, list(_METRICS))
        if isinstance(values, Absent):
            return values
        readings = []
        for number, value in values.items():
            metric, factor, limit = _METRICS[number]
            ours = value * factor
            if not math.isfinite(ours) or not 0 <= ours <= limit * _ROUNDING:
                self.invalid += 1
                continue
            readings.append((metric, start_ns, taken_ns, min(ours, limit)))
        return readings

    def close(self) -> None:
        """Give the buffers back; not to be called while another thread is in read()."""
        for sample in self._samples:
            self._device.gpm_free(sample)
        self._samples = []
