"""The frames: everything that crosses a socket, an ssh pipe or a file, defined once (the frames about
completed work in work_frames.py).

A frame on the wire is a u32 little-endian length, then a msgpack map {"k": KIND, field: value, ...}. A
stream starts with the magic `GPUPROF1`, then a `hello` frame from the side that holds the data. Bulk rows
are columns: a field annotated with one of the column types below is a numpy array in memory and
little-endian bytes on the wire; the columns of one frame have equal lengths. Times are CLOCK_MONOTONIC
nanoseconds of the node. What is not known is absent (None), never 0.

Definitions. Functions, binaries, frames, stacks, processes and threads are numbered within a *generation* of
intern tables (tables.py). A definition frame carries consecutive ids from `first`; it always precedes the
rows that refer to it. A new generation starts with empty tables.

A frame kind that the reader does not know is skipped, and so is a field that it does not know; a missing or
ill-typed field is a FrameError. A column that came with a later version is declared with `later(value)`: it
is left out where every row has that value, and where it is absent every row is given it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import IntEnum
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

MAGIC = b"GPUPROF1"
PROTOCOL_VERSION = 1
MAX_FRAME_BYTES = 32 << 20
UNMATCHED_LAUNCH = "[launch not seen]"  # name of the outermost frame, of kind UNKNOWN, of such GPU work
STACK_NOT_TAKEN = "[stack not taken]"  # the same, of work whose launch was seen and got no stack to save time
NOT_SEEN = "[not seen on CPU or waiting]"  # in the tree of idle GPU time: of the thread nothing is known then
NO_THREAD = 0xFFFF_FFFF  # in columns of thread ids: which thread it was is not known

U8 = Annotated[NDArray[np.uint8], "<u1"]
U16 = Annotated[NDArray[np.uint16], "<u2"]
U32 = Annotated[NDArray[np.uint32], "<u4"]
U64 = Annotated[NDArray[np.uint64], "<u8"]
I32 = Annotated[NDArray[np.int32], "<i4"]
F32 = Annotated[NDArray[np.float32], "<f4"]
F64 = Annotated[NDArray[np.float64], "<f8"]


class FrameKind(IntEnum):
    """What a row of a tree or a frame of a stack is. The names, lower case and with dashes, are those of
    `report --json`.
    """

    ROOT = 0
    PROCESS = 1
    THREAD = 2
    PYTHON = 3
    NATIVE = 4
    JIT = 5
    KERNEL_SPACE = 6
    GPU_KERNEL = 7
    GPU_COPY = 8
    WAIT = 9
    OTHER = 10
    UNKNOWN = 11
    GPU_COMM = 12  # kernels that wait for other devices, such as NCCL's
    NVTX = 13  # a range that the program has named

    @property
    def label(self) -> str:
        return self.name.lower().replace("_", "-")


class WaitKind(IntEnum):
    """Why a thread did not run."""

    BLOCKED = 0  # off-CPU, waiting for something
    RUNNABLE = 1  # off-CPU, ready but not scheduled
    SYNC = 2  # inside a synchronizing call of CUDA: may spin on the CPU, and hold BLOCKED rows of its thread


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """Base of all frames; KIND is the `k` on the wire."""

    KIND: ClassVar[str] = ""


def later(value: float, dtype: str) -> Any:
    """Declare a column that came with a later version of a frame: absent, every row of it is `value`."""
    return field(default=None, metadata={"later": np.array(value, dtype)})


def _fill(frame: Frame, like: str) -> None:
    """Give the columns of `later` that are absent their value, as often as column `like` has rows."""
    for item in fields(frame):
        value = item.metadata.get("later")
        if value is not None and getattr(frame, item.name) is None:
            object.__setattr__(frame, item.name, np.full(len(getattr(frame, like)), value))


# ----------------------------------------------------------------------------------- facts (server to client)


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


# ----------------------------------------------------------------------------------------- readings over time


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


# --------------------------------------------------------------------------------------- definitions and rows


@dataclass(frozen=True, slots=True)
class ProcessDef:
    """One process (pid and start time); `gone_ns` is not known while it lives."""

    pid: int
    start_ns: int  # CLOCK_BOOTTIME start time of the process, as /proc/PID/stat gives it
    name: str  # comm
    cmdline: str
    user: str
    uid: int
    ppid: int
    container_pid: int | None = None  # pid in its own namespace, where it differs


@dataclass(frozen=True, slots=True)
class ThreadDef:
    process: int  # process id in this generation
    tid: int
    name: str


@dataclass(frozen=True, slots=True, eq=False)
class ProcessDefs(Frame):
    KIND: ClassVar[str] = "processes"
    generation: int
    first: int
    processes: list[ProcessDef]


@dataclass(frozen=True, slots=True, eq=False)
class ThreadDefs(Frame):
    KIND: ClassVar[str] = "threads"
    generation: int
    first: int
    threads: list[ThreadDef]


@dataclass(frozen=True, slots=True, eq=False)
class StringDefs(Frame):
    """Strings that functions refer to; id 0 is the empty string and is always defined."""

    KIND: ClassVar[str] = "strings"
    generation: int
    first: int
    strings: list[str]


@dataclass(frozen=True, slots=True, eq=False)
class FunctionDefs(Frame):
    """Functions: string ids of name, source file and binary, and a FrameKind. The file of a GPU kernel is its
    full name, where its name is short for it.
    """

    KIND: ClassVar[str] = "functions"
    generation: int
    first: int
    name: U32
    file: U32
    binary: U32
    kind: U8


@dataclass(frozen=True, slots=True, eq=False)
class FrameDefs(Frame):
    """Frames: a function and a line in it (0: no line)."""

    KIND: ClassVar[str] = "frames"
    generation: int
    first: int
    function: U32
    line: U32


@dataclass(frozen=True, slots=True, eq=False)
class StackDefs(Frame):
    """Stacks as a prefix tree: stack id = node; its parent is the stack of its caller (parent < id; 0 is the
    empty stack).
    """

    KIND: ClassVar[str] = "stacks"
    generation: int
    first: int
    parent: U32
    frame: U32


@dataclass(frozen=True, slots=True, eq=False)
class Samples(Frame):
    """CPU stack samples: one row each."""

    KIND: ClassVar[str] = "samples"
    generation: int
    time_ns: U64
    cpu: U16
    thread: U32
    stack: U32


@dataclass(frozen=True, slots=True, eq=False)
class GpuWork(Frame):
    """Kernels, copies and memsets that a device ran: one row each, over [start_ns, end_ns).

    `gpu`: string id of the device's UUID (0: not known). `stack`: the host stack at the launch, with the
    kernel or copy as its leaf frame (kind GPU_KERNEL or GPU_COPY); where no launch was found, the leaf
    hangs below one frame of kind UNKNOWN named UNMATCHED_LAUNCH. `thread`: the thread that launched it, or
    one with tid 0 of the process where that is not known.

    `weight`: 1 where the stack of its own launch is known; w > 1 where the launch was one of a random sample
    and stands for w launches; 0 where the launch was seen but its stack was not taken: then the leaf hangs
    below one frame of kind UNKNOWN named STACK_NOT_TAKEN. `nvtx`: the stack of the NVTX ranges that its
    launch was in, outermost first (0: none). `again`: 1 where an earlier row is of the same launch, as of a
    graph. `bytes`: what a copy or memset moved (0: not known, or a kernel).
    """

    KIND: ClassVar[str] = "gpu_work"
    generation: int
    start_ns: U64
    end_ns: U64
    gpu: U32
    stream: U32
    thread: U32
    stack: U32
    weight: F32 = later(1.0, "<f4")  # noqa: RUF009
    nvtx: U32 = later(0, "<u4")  # noqa: RUF009
    again: U8 = later(0, "<u1")  # noqa: RUF009
    bytes: U64 = later(0, "<u8")  # noqa: RUF009

    def __post_init__(self) -> None:
        _fill(self, "start_ns")


@dataclass(frozen=True, slots=True, eq=False)
class Waits(Frame):
    """Intervals in which a thread did not run, or was inside a call that waits: one row each, over
    [start_ns, end_ns).

    `stack`: the host stack at the switch-out (or of the synchronizing call), then a leaf of kind WAIT that
    names the wait ("futex", "sleep", "cudaStreamSynchronize" ...), then, where the waker is known, a frame of
    kind WAIT named "woken by <comm>", then the waker's own frames, root first. `waker`: the thread that ended
    the wait, NO_THREAD where it is not known. `weight`: how many such intervals this row stands for (>= 1).
    `kind`: a WaitKind.
    """

    KIND: ClassVar[str] = "waits"
    generation: int
    start_ns: U64
    end_ns: U64
    thread: U32
    stack: U32
    waker: U32
    weight: F32
    kind: U8


# -------------------------------------------------------------------------------- requests (client to server)


@dataclass(frozen=True, slots=True, eq=False)
class Subscribe(Frame):
    """`level`: "metrics" (facts, status, readings, processes) or "rows" (all of it: definitions, samples and
    GPU work too).

    With `since_ns` what the history still holds from then on is sent first.
    """

    KIND: ClassVar[str] = "subscribe"
    level: str
    since_ns: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Query(Frame):
    """A folded tree of [start_ns, end_ns). Empty filter lists mean no filter; filters are combined by and.

    `cpus` is for samples only and `gpus` (UUIDs) for GPU work only: with another tree they are an error.
    `scaled`: GPU time that was recorded for a part of the range only is scaled to all of it. `by_range`: GPU
    time by the NVTX ranges of its launch first, whose frames stand above the host stack.
    """

    KIND: ClassVar[str] = "query"
    id: int
    tree: str  # cpu, gpu, idle, offcpu
    start_ns: int
    end_ns: int
    pids: list[int] = field(default_factory=list)
    tids: list[int] = field(default_factory=list)
    cpus: list[int] = field(default_factory=list)
    by_thread: bool = False  # a row per thread between the process and its frames
    min_fraction: float = 0.0005  # smaller siblings are summed in an "other (n)" row
    max_nodes: int = 20_000
    gpus: list[str] = field(default_factory=list)
    scaled: bool = False
    by_range: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Fetch(Frame):
    """Stream the frames of [start_ns, end_ns), self-contained, then `fetched` with the same id."""

    KIND: ClassVar[str] = "fetch"
    id: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True, eq=False)
class Fetched(Frame):
    KIND: ClassVar[str] = "fetched"
    id: int


@dataclass(frozen=True, slots=True, eq=False)
class Tree(Frame):
    """Answer to a query, in preorder, children by falling total. Node 0 is the root and its own parent.

    `name`, `file`, `binary` index `strings` (0: none); `line` 0: none. `unit`: "samples" or "ns". `estimated`
    is 1 where the weight is not exact, and `error` then the standard error of `total_weight`, NaN elsewhere.
    `bytes`: of the copies and memsets below, as far as they lie in the range. The `file` of a GPU kernel is
    its full name, where `name` is short for it.
    """

    KIND: ClassVar[str] = "tree"
    id: int
    tree: str
    unit: str
    start_ns: int
    end_ns: int
    strings: list[str]
    parent: U32
    name: U32
    file: U32
    binary: U32
    line: U32
    kind: U8
    self_weight: F64
    total_weight: F64
    summary: str = ""
    truncated: int = 0  # weight of the stacks that did not reach the root of their thread, in `unit`
    estimated: U8 = later(0, "<u1")  # noqa: RUF009
    error: F64 = later(np.nan, "<f8")  # noqa: RUF009
    bytes: F64 = later(0.0, "<f8")  # noqa: RUF009

    def __post_init__(self) -> None:
        _fill(self, "parent")


@dataclass(frozen=True, slots=True, eq=False)
class Failure(Frame):
    """A request that could not be answered (id as in the request; 0: the stream as a whole)."""

    KIND: ClassVar[str] = "failure"
    id: int
    message: str
    hint: str = ""


ALL_FRAMES: tuple[type[Frame], ...] = (
    Hello, Clock, Gpus, Status, SeriesDefs, Readings, ProcessDefs, ThreadDefs, StringDefs, FunctionDefs,
    FrameDefs, StackDefs, Samples, GpuWork, Waits, Subscribe, Query, Fetch, Fetched, Tree, Failure,
)  # fmt: skip

Wire = dict[str, Any]
