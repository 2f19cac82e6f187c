"""Reads what does not change about a GPU, once."""

from __future__ import annotations

import time
from typing import TypeVar

from gpuprof.sampler.nvml_device import Device
from gpuprof.sampler.nvml_values import Absent
from gpuprof.snapshots.frames import GpuFacts

T = TypeVar("T")

_UUID_ATTEMPTS = 3
UUID_PAUSE_S = 0.05


def read_facts(device: Device) -> GpuFacts:
    """GpuFacts of an opened device or MIG instance; what it does not support is None. Raises DeviceLost."""
    bus_id = _known((device.parent or device).pci_bus_id())
    memory = _known(device.memory())
    return GpuFacts(
        uuid=_uuid(device, bus_id),
        index=device.index,
        name=_known(device.name()) or "GPU",
        pci_bus_id=bus_id,
        parent_uuid=None if device.parent is None else _uuid(device.parent, bus_id),
        memory_total_bytes=memory.total if memory else None,
        temp_slowdown_c=_known(device.temperature_threshold_c("SLOWDOWN")),
        temp_shutdown_c=_known(device.temperature_threshold_c("SHUTDOWN")),
        temp_max_c=_known(device.temperature_threshold_c("GPU_MAX")),
        clock_sm_max_mhz=_known(device.max_clock_mhz("SM")),
        clock_mem_max_mhz=_known(device.max_clock_mhz("MEM")),
        power_limit_max_w=_known(device.power_limit_max_w()),
        pcie_gen_max=_known(device.pcie_gen_max()),
        pcie_width_max=_known(device.pcie_width_max()),
        has_gpm=device.gpm_supported(),
    )


def _known(value: T | Absent) -> T | None:
    return None if isinstance(value, Absent) else value


def _uuid(device: Device, bus_id: str | None) -> str:
    """The UUID, by which everything else names the device; a stand-in by place when NVML does not give it."""
    for attempt in range(_UUID_ATTEMPTS):
        uuid = device.uuid()
        if not isinstance(uuid, Absent):
            return uuid
        if uuid is not Absent.FAILED:
            break
        time.sleep(UUID_PAUSE_S * (attempt + 1))
    return f"GPU-without-uuid-{bus_id or device.index}"
