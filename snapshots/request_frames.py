"""What a client asks for, and the answers (about work rates in work_frames.py)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from gpuprof.snapshots.frame_types import F64, U8, U32, Frame, fill_later, later

NOT_SEEN = "[not seen on CPU or waiting]"  # in the tree of idle GPU time: of the thread nothing is known then


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
    `scaled`: what ran on a GPU in pauses of its recording is estimated (time_share.py). `by_range`: GPU
    time by the NVTX ranges of its launch first, whose frames stand above the host stack. `internals`: rows of
    internal_rows.py stay; otherwise they go, before small rows are summed. `bottom_up`: innermost frames
    first, and their callers below (bottom_up.py); of CPU samples and GPU time, where that is not scaled.
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
    internals: bool = True
    bottom_up: bool = False


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
class Watch(Frame):
    """Follow the waits of a process from now on until it ends, then `done` with the same id.

    `pid`: 0 is the process that has connected. `itself`, `children`: whether the process is meant, and those
    that descend from it, now and later.
    """

    KIND: ClassVar[str] = "watch"
    id: int
    pid: int = 0
    itself: bool = True
    children: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class Settle(Frame):
    """Send all that happened up to this request, the waits that go on included, then `done` with the same id.

    What a subscription has to send by then comes before the answer.
    """

    KIND: ClassVar[str] = "settle"
    id: int


@dataclass(frozen=True, slots=True, eq=False)
class Done(Frame):
    """What was asked for by a `watch` or a `settle` is done.

    `until_ns`: of a `settle` that took too long; what happened after that instant may not have been sent.
    """

    KIND: ClassVar[str] = "done"
    id: int
    until_ns: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Tree(Frame):
    """Answer to a query, in preorder, children by falling total. Node 0 is the root and its own parent.

    `name`, `file`, `binary` index `strings` (0: none); `line` 0: none. `unit`: "samples" or "ns". `estimated`
    is 1 where the weight is not exact, and `error` then the standard error of `total_weight`, NaN elsewhere.
    `bytes`: of the copies and memsets below, as far as they lie in the range. The `file` of a GPU kernel is
    its full name, where `name` is short for it. `hidden`: how many internal rows were taken out, None where
    none were to be, or by a sampler that does not know how. `bottom_up`: as in the query.
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
    hidden: int | None = None
    bottom_up: bool = False

    def __post_init__(self) -> None:
        fill_later(self, "parent")


@dataclass(frozen=True, slots=True, eq=False)
class Failure(Frame):
    """A request that could not be answered (id as in the request; 0: the stream as a whole)."""

    KIND: ClassVar[str] = "failure"
    id: int
    message: str
    hint: str = ""
