"""What is asked of one GPU or MIG instance, in the units of metrics.py, each value or a typed absence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from types import ModuleType
from typing import Any

from gpuprof.sampler.nvml_handle import SUCCESS, Handle
from gpuprof.sampler.nvml_values import Absent, field, milli, number, percent, string, tagged, whole

MAX_MIG_DEVICES = 16
MAX_PROCESSES = 4096
MAX_SAMPLES = 4096


@dataclass(frozen=True, slots=True)
class Memory:
    """Framebuffer memory in bytes; `used` leaves the driver's reserve out where that is known."""

    total: int
    used: int | Absent
    reserved: int | Absent


@dataclass(frozen=True, slots=True)
class Power:
    """Watts. `average` is over the last second where `average_window` is true, else of no known window."""

    average: float | Absent
    average_window: bool
    instant: float | Absent


@dataclass(frozen=True, slots=True)
class ProcessSample:
    """Raw process utilization: stamp in µs of an unknown clock (sample_clock.py), percentages unchecked."""

    pid: int
    stamp_us: int
    sm_percent: int
    mem_percent: int


class SampleKind(Enum):
    """Stamped samples that the driver buffers (nvmlSamplingType_t)."""

    GPU_UTILIZATION = 1
    MEMORY_UTILIZATION = 2


class Device(Handle):
    """One GPU, or one MIG instance of `parent`. Every method may raise DeviceLost."""

    def __init__(
        self, pynvml: ModuleType, index: int, parent: Device | None = None, handle: Any = None
    ) -> None:
        super().__init__(pynvml, index, parent, handle)
        self.parent = parent

    def open(self) -> Absent | None:
        """Take the handle; Absent when the device cannot be opened, DeviceLost when it is lost already."""
        handle = self._raw("nvmlDeviceGetHandleByIndex", self.index)
        if isinstance(handle, Absent):
            return handle
        self._handle = handle
        return None

    def mig_devices(self) -> list[Device]:
        """The MIG instances, opened; empty when MIG is off or not supported."""
        mode = self._call("nvmlDeviceGetMigMode")
        if isinstance(mode, Absent) or not mode or mode[0] != 1:
            return []
        count = number(self._call("nvmlDeviceGetMaxMigDeviceCount"))
        if isinstance(count, Absent):
            return []
        children = []
        for slot in range(min(count, MAX_MIG_DEVICES)):
            handle = self._raw("nvmlDeviceGetMigDeviceHandleByIndex", self._handle, slot)
            if not isinstance(handle, Absent):
                children.append(Device(self._pynvml, self.index, self, handle))
        return children

    # -------------------------------------------------------------------------------- static facts

    def uuid(self) -> str | Absent:
        return string(self._call("nvmlDeviceGetUUID"))

    def name(self) -> str | Absent:
        return string(self._call("nvmlDeviceGetName"))

    def pci_bus_id(self) -> str | Absent:
        info = self._call("nvmlDeviceGetPciInfo")
        return info if isinstance(info, Absent) else string(field(info, "busId"))

    def temperature_threshold_c(self, name: str) -> float | Absent:
        """`name`: SLOWDOWN, SHUTDOWN or GPU_MAX."""
        kind = getattr(self._pynvml, f"NVML_TEMPERATURE_THRESHOLD_{name}")
        value = number(self._call("nvmlDeviceGetTemperatureThreshold", kind))
        return value if isinstance(value, Absent) else float(value) if 0 < value < 300 else Absent.FAILED

    def max_clock_mhz(self, name: str) -> float | Absent:
        """`name`: SM or MEM. Slow (1.3 ms)."""
        return whole(self._call("nvmlDeviceGetMaxClockInfo", getattr(self._pynvml, f"NVML_CLOCK_{name}")))

    def power_limit_max_w(self) -> float | Absent:
        limits = self._call("nvmlDeviceGetPowerManagementLimitConstraints")
        return milli(limits if isinstance(limits, Absent) else limits[1])

    def pcie_gen_max(self) -> int | Absent:
        return number(self._call("nvmlDeviceGetMaxPcieLinkGeneration"))

    def pcie_width_max(self) -> int | Absent:
        return number(self._call("nvmlDeviceGetMaxPcieLinkWidth"))

    # -------------------------------------------------------------------------------- fast readings

    def memory(self) -> Memory | Absent:
        """Version 2, which does not count the reserve as used; version 1 where the driver lacks 2."""
        info = self._call("nvmlDeviceGetMemoryInfo", self._pynvml.nvmlMemory_v2)
        if info is Absent.NOT_SUPPORTED:
            info = self._call("nvmlDeviceGetMemoryInfo")
        if isinstance(info, Absent):
            return info
        total, used = number(field(info, "total")), number(field(info, "used"))
        if isinstance(total, Absent) or total == 0:
            return Absent.NOT_SUPPORTED
        if not isinstance(used, Absent) and used > total:
            used = Absent.FAILED
        return Memory(total, used, number(field(info, "reserved")))

    def utilization_percent(self) -> tuple[float, float | Absent] | Absent:
        """GPU and memory utilization over the driver's last sample period (1/6 s to 1 s)."""
        rates = self._call("nvmlDeviceGetUtilizationRates")
        if isinstance(rates, Absent):
            return rates
        gpu, memory = percent(field(rates, "gpu")), percent(field(rates, "memory"))
        return gpu if isinstance(gpu, Absent) else (gpu, memory)

    def samples(self, kind: SampleKind, last_seen_us: int) -> list[tuple[int, float]] | Absent:
        """(stamp in µs of an unknown clock, value) newer than `last_seen_us`; NOT_FOUND for none."""
        result = self._call("nvmlDeviceGetSamples", kind.value, last_seen_us)
        if isinstance(result, Absent):
            return result
        return [(int(s.timeStamp), float(tagged(s.sampleValue, result[0]))) for s in result[1][:MAX_SAMPLES]]

    def power(self) -> Power:
        """Fields 185 (mean of the last second) and 186 (instant); the plain reading where 185 is missing.

        nvmlDeviceGetPowerUsage is a mean on some chips and an instant on others, so it carries no window.
        """
        average: float | Absent = Absent.NOT_SUPPORTED
        instant: float | Absent = Absent.NOT_SUPPORTED
        fields = self._call("nvmlDeviceGetFieldValues", [185, 186])
        if not isinstance(fields, Absent):
            average, instant = (milli(self._field_value(entry)) for entry in fields)
        if not isinstance(average, Absent):
            return Power(average, True, instant)
        return Power(milli(self._call("nvmlDeviceGetPowerUsage")), False, instant)

    def power_limit_w(self) -> float | Absent:
        return milli(self._call("nvmlDeviceGetEnforcedPowerLimit"))

    def temperature_c(self) -> float | Absent:
        value = self._call("nvmlDeviceGetTemperatureV", 0)
        if value is Absent.NOT_SUPPORTED:
            value = self._call("nvmlDeviceGetTemperature", 0)
        value = number(value)
        return value if isinstance(value, Absent) else float(value) if -100 < value < 300 else Absent.FAILED

    def clock_mhz(self, name: str) -> float | Absent:
        """`name`: SM or MEM."""
        return whole(self._call("nvmlDeviceGetClockInfo", getattr(self._pynvml, f"NVML_CLOCK_{name}")))

    def clocks_event_reasons(self) -> int | Absent:
        """Bit mask nvmlClocksEventReason*; 0 when nothing holds the clocks down."""
        value = self._call("nvmlDeviceGetCurrentClocksEventReasons")
        if value is Absent.NOT_SUPPORTED:  # drivers before 535 have only the old name
            value = self._call("nvmlDeviceGetCurrentClocksThrottleReasons")
        return number(value)

    # -------------------------------------------------------------------------------- slow readings

    def energy_j(self) -> float | Absent:
        """Joules since the driver was loaded (3.5 ms)."""
        return milli(self._call("nvmlDeviceGetTotalEnergyConsumption"))

    def pcie_bytes_per_s(self, direction: str) -> float | Absent:
        """`direction`: TX or RX; blocks for the 20 ms that it measures. NVML counts in kB."""
        counter = getattr(self._pynvml, f"NVML_PCIE_UTIL_{direction}_BYTES")
        value = number(self._call("nvmlDeviceGetPcieThroughput", counter))
        return value if isinstance(value, Absent) else value * 1000.0

    def processes(self) -> dict[int, int | Absent] | Absent:
        """GPU memory in bytes of every process on the device (compute, graphics, MPS clients), by pid.

        Absent only when none of the lists could be read.
        """
        found: dict[int, int | Absent] = {}
        reason, readable = Absent.FAILED, False
        for kind in ("Compute", "Graphics", "MPSCompute"):
            listing = self._call(f"nvmlDeviceGet{kind}RunningProcesses")
            if listing is Absent.NOT_SUPPORTED and kind != "MPSCompute":
                listing = self._call(f"nvmlDeviceGet{kind}RunningProcesses_v2")
            if listing is Absent.NOT_FOUND:
                listing = []
            if isinstance(listing, Absent):
                reason = listing
                continue
            readable = True
            for entry in listing[:MAX_PROCESSES]:
                memory = Absent.NOT_SUPPORTED if entry.usedGpuMemory is None else number(entry.usedGpuMemory)
                before = found.get(entry.pid)
                if before is None or isinstance(before, Absent):
                    found[entry.pid] = memory
                elif not isinstance(memory, Absent):
                    found[entry.pid] = max(before, memory)
        return found if readable else reason

    def process_utilization(self, last_seen_us: int) -> list[ProcessSample] | Absent:
        """Samples since `last_seen_us`, garbage included; NOT_FOUND when nothing ran (1.4–2.7 ms)."""
        samples = self._call("nvmlDeviceGetProcessUtilization", last_seen_us)
        if isinstance(samples, Absent):
            return samples
        return [
            ProcessSample(int(s.pid), int(s.timeStamp), int(s.smUtil), int(s.memUtil))
            for s in samples[:MAX_SAMPLES]
        ]

    # -------------------------------------------------------------------------------- GPM (Hopper on)

    def gpm_supported(self) -> bool:
        support = (self.parent or self)._call("nvmlGpmQueryDeviceSupport")
        return not isinstance(support, Absent) and int(field(support, "isSupportedDevice")) == 1

    def gpm_alloc(self) -> Any | Absent:
        """A buffer for one GPM sample (opaque), to be returned with gpm_free."""
        return self._raw("nvmlGpmSampleAlloc")

    def gpm_free(self, sample: Any) -> None:
        if not self.lost:
            self._raw("nvmlGpmSampleFree", sample)

    def gpm_take(self, sample: Any) -> Absent | None:
        """Fill a sample with the counters as they are now (0.25 ms)."""
        if self.parent is None:
            taken = self._call("nvmlGpmSampleGet", sample)
        else:
            instance = number(self._call("nvmlDeviceGetGpuInstanceId"))
            if isinstance(instance, Absent):
                return instance
            taken = self.parent._call("nvmlGpmMigSampleGet", instance, sample)
        return taken if isinstance(taken, Absent) else None

    def gpm_metrics(self, earlier: Any, later: Any, ids: Sequence[int]) -> dict[int, float] | Absent:
        """Values between two samples by NVML_GPM_METRIC id, in GPM's units (%, MiB/s), where supported."""
        request = self._pynvml.c_nvmlGpmMetricsGet_t()
        request.version = self._pynvml.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = len(ids)
        request.sample1, request.sample2 = earlier, later
        for slot, metric in enumerate(ids):
            request.metrics[slot].metricId = metric
        answer = self._raw("nvmlGpmMetricsGet", request)
        if isinstance(answer, Absent):
            return answer
        entries = (request.metrics[slot] for slot in range(len(ids)))
        return {int(entry.metricId): float(entry.value) for entry in entries if entry.nvmlReturn == SUCCESS}

    def _field_value(self, entry: Any) -> Any:
        """The value of one nvmlFieldValue_t; a field that says GPU_IS_LOST means the device, too."""
        code = int(entry.nvmlReturn)
        if code != SUCCESS:
            return self._absence(code)
        return tagged(entry.value, int(entry.valueType))
