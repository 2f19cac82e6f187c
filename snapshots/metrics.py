"""The catalogue of everything that is read as a number over time: name with unit, subject, and how it is
drawn.

A gauge is a value that held over [start_ns, end_ns); a counter only grows, and its rate is derived by
whoever reads it from two readings. A metric that a device does not support has no readings at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Subject(str, Enum):
    """What a series describes."""

    GPU = "gpu"  # gpu (UUID) is set
    GPU_PROCESS = "gpu_process"  # gpu and pid are set
    PROCESS = "process"  # pid is set
    CORE = "core"  # core is set
    HOST = "host"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. `counter` values are totals; all others are gauges."""

    name: str
    subject: Subject
    unit: str
    title: str
    counter: bool = False


_ALL = (
    Metric("util_gpu_percent", Subject.GPU, "%", "GPU utilization"),
    Metric("util_mem_percent", Subject.GPU, "%", "memory utilization"),
    Metric("mem_used_bytes", Subject.GPU, "B", "memory used"),
    Metric("mem_reserved_bytes", Subject.GPU, "B", "memory reserved by the driver"),
    Metric("power_w", Subject.GPU, "W", "power (average)"),
    Metric("power_instant_w", Subject.GPU, "W", "power (instant)"),
    Metric("power_limit_w", Subject.GPU, "W", "enforced power limit"),
    Metric("energy_j", Subject.GPU, "J", "energy", counter=True),
    Metric("temp_c", Subject.GPU, "°C", "temperature"),
    Metric("clock_sm_mhz", Subject.GPU, "MHz", "SM clock"),
    Metric("clock_mem_mhz", Subject.GPU, "MHz", "memory clock"),
    Metric("clocks_event_reasons", Subject.GPU, "bits", "why clocks are held down"),
    Metric("pcie_tx_bytes_per_s", Subject.GPU, "B/s", "PCIe sent"),
    Metric("pcie_rx_bytes_per_s", Subject.GPU, "B/s", "PCIe received"),
    Metric("nvlink_tx_bytes_per_s", Subject.GPU, "B/s", "NVLink sent"),
    Metric("nvlink_rx_bytes_per_s", Subject.GPU, "B/s", "NVLink received"),
    Metric("sm_active_percent", Subject.GPU, "%", "SM activity"),
    Metric("sm_occupancy_percent", Subject.GPU, "%", "SM occupancy"),
    Metric("tensor_active_percent", Subject.GPU, "%", "tensor activity"),
    Metric("dram_active_percent", Subject.GPU, "%", "DRAM activity"),
    Metric("gpu_kernel_busy_percent", Subject.GPU, "%", "time in which a kernel ran"),
    Metric("gpu_copy_busy_percent", Subject.GPU, "%", "time in which a copy ran"),
    Metric("gpu_comm_busy_percent", Subject.GPU, "%", "time in which a communication kernel ran"),
    Metric("gpu_observed", Subject.GPU, "0/1", "every process on the device was recording"),
    Metric("proc_sm_percent", Subject.GPU_PROCESS, "%", "SM by process"),
    Metric("proc_mem_util_percent", Subject.GPU_PROCESS, "%", "memory utilization by process"),
    Metric("proc_gpu_mem_bytes", Subject.GPU_PROCESS, "B", "GPU memory by process"),
    Metric("proc_recording", Subject.GPU_PROCESS, "0/1", "GPU work of the process was recorded"),
    Metric("kernel_rate_hz", Subject.GPU, "/s", "kernels done"),
    Metric("work_rate_hz", Subject.HOST, "/s", "chosen work done"),
    Metric("launch_delay_ns", Subject.GPU_PROCESS, "ns", "from the launch of a kernel to its start"),
    Metric("proc_gpu_overhead_percent", Subject.PROCESS, "%", "cost of recording to launching threads"),
    Metric("proc_launch_stack_percent", Subject.PROCESS, "%", "launches whose stack was taken"),
    Metric("proc_cpu_ns", Subject.PROCESS, "ns", "host CPU time of a process", counter=True),
    Metric("proc_rss_bytes", Subject.PROCESS, "B", "resident memory of a process"),
    Metric("core_busy_ns", Subject.CORE, "ns", "busy time of a core", counter=True),
    Metric("mem_available_bytes", Subject.HOST, "B", "host memory available"),
)

METRICS: dict[str, Metric] = {metric.name: metric for metric in _ALL}
