"""The rows of what happened: CPU samples, GPU work, waits (NVTX ranges in work_frames.py)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gpuprof.snapshots.frame_types import F32, U8, U16, U32, U64, Frame, fill_later, later

UNMATCHED_LAUNCH = "[launch not seen]"  # name of the outermost frame, of kind UNKNOWN, of such GPU work
STACK_NOT_TAKEN = "[stack not taken]"  # the same, of work whose launch was seen and got no stack to save time
NO_THREAD = 0xFFFF_FFFF  # in columns of thread ids: which thread it was is not known


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
        fill_later(self, "start_ns")


@dataclass(frozen=True, slots=True, eq=False)
class Waits(Frame):
    """Intervals in which a thread did not run, or was inside a call that waits: one row each, over
    [start_ns, end_ns).

    `stack`: the host stack at the switch-out (or of the synchronizing call), then a leaf of kind WAIT that
    names the wait ("futex", "sleep", "cudaStreamSynchronize" ...), then, where the waker is known, a frame of
    kind WAIT named "woken by <comm>", then the waker's own frames, root first. `waker`: the thread that ended
    the wait, NO_THREAD where it is not known. `weight`: how many such intervals this row stands for (>= 1).
    `kind`: a WaitKind. A wait that lasts is sent in slices that meet in one nanosecond; only the last of them
    has the waker (wait_slices.py gives it to the others).
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
