"""The readings of one GPU or MIG instance: what is asked at which pace, and over which window it holds."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from gpuprof.sampler.gpm import GpmPair
from gpuprof.sampler.gpu_processes import use_by_process
from gpuprof.sampler.nvml_device import Device, SampleKind
from gpuprof.sampler.nvml_values import Absent
from gpuprof.sampler.sample_clock import MAX_WINDOW_NS, ClockInstant, SampleWindows

# On an H200 (driver 580) one call for stamped samples takes 1.9 ms of CPU, one for energy 3.8 ms, the other
# fast readings 20 to 40 us. Samples keep their own windows (200 ms), so that asking less often loses none.
_SAMPLES_PACE_NS = {"util_gpu_percent": 500_000_000, "util_mem_percent": 1_000_000_000}
_ENERGY_PACE_NS = 5_000_000_000
QUIET_NS = 2_000_000_000  # stamped samples that stay away longer give way to the plain utilization
_AVERAGE_POWER_NS = 1_000_000_000  # nvml.h, NVML_FI_DEV_POWER_AVERAGE: "averaged over 1 sec interval"


@dataclass(frozen=True, slots=True)
class Reading:
    """One reading in a metric's unit over [start_ns, end_ns); an instant has start_ns == end_ns."""

    metric: str
    start_ns: int
    end_ns: int
    value: float
    pid: int | None = None


class Utilization:
    """GPU and memory utilization: the driver's stamped samples where there are any, else its plain rate."""

    def __init__(self, device: Device, began_ns: int) -> None:
        self._device = device
        self._kinds = {
            "util_gpu_percent": (SampleKind.GPU_UTILIZATION, SampleWindows(began_ns)),
            "util_mem_percent": (SampleKind.MEMORY_UTILIZATION, SampleWindows(began_ns)),
        }
        self._fresh_ns = dict.fromkeys(self._kinds, began_ns)
        self._due_ns = dict.fromkeys(self._kinds, 0)

    @property
    def invalid(self) -> int:
        return sum(windows.invalid for _, windows in self._kinds.values())

    def read(self, at: ClockInstant) -> list[Reading]:
        readings = []
        quiet: dict[str, SampleWindows] = {}
        for metric, (kind, windows) in self._kinds.items():
            if at.mono_ns < self._due_ns[metric]:
                continue
            samples = self._device.samples(kind, windows.last_seen_us)
            fresh = [] if isinstance(samples, Absent) else windows.advance(samples, at)
            if fresh:
                readings += [Reading(metric, *window) for window in fresh]
                self._fresh_ns[metric] = at.mono_ns
                self._due_ns[metric] = at.mono_ns + _SAMPLES_PACE_NS[metric]
                continue
            unsupported = samples is Absent.NOT_SUPPORTED or samples is Absent.NO_PERMISSION
            if unsupported or at.mono_ns - self._fresh_ns[metric] > QUIET_NS:
                quiet[metric] = windows
                if not unsupported:
                    windows.restart()
        if quiet:
            rates = self._device.utilization_percent()
            if not isinstance(rates, Absent):
                for metric, value in zip(self._kinds, rates, strict=True):
                    windows_of = quiet.get(metric)
                    if windows_of is None or isinstance(value, Absent) or at.mono_ns <= windows_of.end_ns:
                        continue
                    start_ns = max(windows_of.end_ns, at.mono_ns - MAX_WINDOW_NS)
                    readings.append(Reading(metric, start_ns, at.mono_ns, value))
                    windows_of.end_ns = at.mono_ns
        return readings


class FastReadings:
    """What costs microseconds: utilization, memory, power, temperature, clocks."""

    def __init__(self, device: Device, began_ns: int) -> None:
        self._device = device
        self._utilization = Utilization(device, began_ns)

    @property
    def invalid(self) -> int:
        return self._utilization.invalid

    def read(self) -> list[Reading]:
        """One cycle. Raises DeviceLost."""
        device = self._device
        readings = self._utilization.read(ClockInstant.now())
        now = time.monotonic_ns()
        instants: list[tuple[str, float | Absent]] = []
        memory = device.memory()
        if not isinstance(memory, Absent):
            instants.append(("mem_used_bytes", memory.used))
            instants.append(("mem_reserved_bytes", memory.reserved))
        power = device.power()
        if power.average_window and not isinstance(power.average, Absent):
            readings.append(Reading("power_w", now - _AVERAGE_POWER_NS, now, power.average))
        else:
            instants.append(("power_w", power.average))
        instants.append(("power_instant_w", power.instant))
        instants.append(("temp_c", device.temperature_c()))
        instants.append(("clock_sm_mhz", device.clock_mhz("SM")))
        instants.append(("clock_mem_mhz", device.clock_mhz("MEM")))
        instants.append(("clocks_event_reasons", device.clocks_event_reasons()))
        for metric, value in instants:
            if not isinstance(value, Absent):
                readings.append(Reading(metric, now, now, float(value)))
        return readings


class SlowReadings:
    """What costs milliseconds: the enforced limit, energy, GPM, processes and their utilization."""

    def __init__(
        self, device: Device, *, processes: bool, alive: Callable[[int], bool] | None = None
    ) -> None:
        self._device = device
        self._processes = processes
        self._alive = alive or _alive
        self._gpm: GpmPair | None = GpmPair(device) if device.gpm_supported() else None
        self._last_seen_us = 0
        self._asked_ns: int | None = None
        self._energy_due_ns = 0
        self._invalid = 0
        self.pids: frozenset[int] = frozenset()
        self.pids_known = False  # False: the driver does not say, which is not the same as none
        self.gpm_works = self._gpm is not None

    @property
    def invalid(self) -> int:
        return self._invalid + (self._gpm.invalid if self._gpm else 0)

    def read(self) -> list[Reading]:
        """One cycle. Raises DeviceLost."""
        readings: list[Reading] = []
        now = time.monotonic_ns()
        slow: list[tuple[str, float | Absent]] = [("power_limit_w", self._device.power_limit_w())]
        if now >= self._energy_due_ns:
            self._energy_due_ns = now + _ENERGY_PACE_NS
            slow.append(("energy_j", self._device.energy_j()))
        for metric, value in slow:
            if not isinstance(value, Absent):
                readings.append(Reading(metric, now, now, value))
        if self._gpm is not None:
            activity = self._gpm.read()
            # The counters may be reserved to root, in which case the plain PCIe counter is read instead.
            self.gpm_works = activity is not Absent.NOT_SUPPORTED and activity is not Absent.NO_PERMISSION
            if not isinstance(activity, Absent):
                readings += [Reading(*reading) for reading in activity]
        if self._processes:
            readings += self._read_processes()
        return readings

    def _read_processes(self) -> list[Reading]:
        now = time.monotonic_ns()
        memory = self._device.processes()
        self.pids_known = not isinstance(memory, Absent)
        if isinstance(memory, Absent):
            self.pids = frozenset()
            memory = {}
        else:
            self.pids = frozenset(memory)
        readings = [
            Reading("proc_gpu_mem_bytes", now, now, float(value), pid)
            for pid, value in memory.items()
            if not isinstance(value, Absent)
        ]
        samples = self._device.process_utilization(self._last_seen_us)
        at = ClockInstant.now()
        since_ns, self._asked_ns = self._asked_ns, at.mono_ns
        if isinstance(samples, Absent):
            if samples is not Absent.NOT_FOUND:
                self._asked_ns = None  # the next window must not claim the time that was not answered for
                return readings
            samples = []
        listed = [pid for pid in memory if self._alive(pid)]
        window = use_by_process(
            samples, self._last_seen_us, since_ns or at.mono_ns, at, alive=self._alive, listed=listed
        )
        self._invalid += window.invalid
        # A last_seen in the future, left by a step of the wall clock, would silence the device.
        ahead_us = window.last_seen_us - at.clock_of(window.last_seen_us)
        self._last_seen_us = window.last_seen_us if ahead_us <= 0 else 0
        if since_ns is None:
            return (
                readings  # the first answer covers the whole buffer of the driver, a window of unknown length
            )
        for use in window.uses.values():
            for metric, value in (
                ("proc_sm_percent", use.sm_percent),
                ("proc_mem_util_percent", use.mem_percent),
            ):
                if value is not None:
                    readings.append(Reading(metric, use.start_ns, use.end_ns, value, use.pid))
        return readings

    def close(self) -> None:
        if self._gpm is not None:
            self._gpm.close()


class PcieReadings:
    """PCIe throughput of chips without GPM: each direction blocks for the 20 ms that it measures."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def read(self) -> list[Reading]:
        """One cycle. Raises DeviceLost."""
        readings = []
        for metric, direction in (("pcie_tx_bytes_per_s", "TX"), ("pcie_rx_bytes_per_s", "RX")):
            start_ns = time.monotonic_ns()
            value = self._device.pcie_bytes_per_s(direction)
            if not isinstance(value, Absent):
                readings.append(Reading(metric, start_ns, time.monotonic_ns(), value))
        return readings


def _alive(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")
