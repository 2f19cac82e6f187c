"""The frames about a node: who speaks, its devices, how its sources are, and readings over time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from gpuprof.snapshots.frame_types import F64, U32, U64, Frame


@dataclass(frozen=True, slots=True, eq=False)
class Hello(Frame):
    """First frame of a stream or file: who speaks, and the clock pair taken at one instant."""

    KIND: ClassVar[str] = "hello"
    version: int
    host: str
    boot_id: str
    kernel: str
    cpu_count: int
    mono_ns: int
    wall_ns: int
    sampler_version: str
    sampler_pid: int
    cpu_hz: int  # CPU stack samples per second and core; 0 when there are none
    nvml_hz: int  # fast NVML readings per second; 0 when there is no NVML
    privileged: bool
    sudo_line: str | None = None  # the exact command that would give CPU stacks, where this sampler has none


@dataclass(frozen=True, slots=True, eq=False)
class Clock(Frame):
    """The pair again, sent when the wall clock steps."""

    KIND: ClassVar[str] = "clock"
    mono_ns: int
    wall_ns: int


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """Static facts of one device (or MIG instance), read once. None: not supported there."""

    uuid: str
    index: int
    name: str
    pci_bus_id: str | None = None
    parent_uuid: str | None = None
    memory_total_bytes: int | None = None
    temp_slowdown_c: float | None = None
    temp_shutdown_c: float | None = None
    temp_max_c: float | None = None
    clock_sm_max_mhz: float | None = None
    clock_mem_max_mhz: float | None = None
    power_limit_max_w: float | None = None
    pcie_gen_max: int | None = None
    pcie_width_max: int | None = None
    has_gpm: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Gpus(Frame):
    """All devices of the node; re-sent whole when one is lost (`lost` holds UUIDs) or found."""

    KIND: ClassVar[str] = "gpus"
    driver_version: str | None
    nvml_version: str | None
    gpus: list[GpuFacts]
    lost: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """State of one source. `state`: ok, starting, degraded, off or failed. Counts are totals since start."""

    name: str  # nvml, cpu, processes, gpu
    state: str
    reason: str = ""
    hint: str = ""
    lost: int = 0
    invalid: int = 0
    early: int = 0
    unmatched: int = 0
    truncated: int = 0
    samples: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Status(Frame):
    """Every second: sources, losses, and what the sampler itself costs."""

    KIND: ClassVar[str] = "status"
    time_ns: int
    sources: list[SourceStatus]
    sampler_cpu_ns: int  # CPU time of the sampler process so far
    sampler_rss_bytes: int  # resident, its history included; without the BPF maps and rings that it maps
    history_start_ns: int  # oldest instant that a query can still reach
    history_bytes: int
    bpf_run_ns: int | None = None  # time inside the BPF programs, where the kernel counts it (bpf_stats)
    dropped_readings: int = 0  # to this client, because it was slow
    dropped_samples: int = 0
    dropped_gpu_work: int = 0
    dropped_waits: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class SourceCounts(Frame):
    """How the counts of the sources' statuses were over time; only in files and in answers to a fetch.

    A row: source `names[source]` had these totals from start_ns to end_ns, both included.
    """

    KIND: ClassVar[str] = "counts"
    names: list[str]
    source: U32
    start_ns: U64
    end_ns: U64
    lost: U64
    invalid: U64
    early: U64
    unmatched: U64
    truncated: U64


@dataclass(frozen=True, slots=True)
class SeriesDef:
    """One series: a metric (metrics.py) of one subject. Ids are never reused within a stream."""

    id: int
    metric: str
    gpu: str | None = None  # UUID
    pid: int | None = None
    core: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class SeriesDefs(Frame):
    KIND: ClassVar[str] = "series"
    series: list[SeriesDef]


@dataclass(frozen=True, slots=True, eq=False)
class Readings(Frame):
    """Raw readings. The value held over [start_ns, end_ns); an instantaneous reading has start_ns ==
    end_ns.
    """

    KIND: ClassVar[str] = "readings"
    series: U32
    start_ns: U64
    end_ns: U64
    value: F64
