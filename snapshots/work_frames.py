"""The frames about completed work: NVTX ranges as rows, and the question how often something was done.

How often: a kernel that ended, a launch under a function that was its caller, or an NVTX range that ended is
one occurrence. CPU samples say that a function ran, not how often it was called, so they answer no such
question.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

from gpuprof.snapshots.frame_types import F32, F64, U8, U32, U64, Frame

MAX_RATES = 16  # in one question
MAX_NAME = 1024  # characters of what is asked for
MAX_WINDOWS = 4096  # of one answer


class WorkKind(str, Enum):
    """What is counted."""

    KERNELS = "kernels"  # all kernels; `name` is empty
    KERNEL = "kernel"  # kernels or copies of this name
    LAUNCH = "launch"  # launches with this function among their callers
    RANGE = "range"  # NVTX ranges of this name
    LOOP = "loop"  # the most regular of the outermost NVTX ranges; `name` is empty, the answer has it


@dataclass(frozen=True, slots=True, eq=False)
class Ranges(Frame):
    """NVTX ranges that are over: one row each, over [start_ns, end_ns).

    `stack`: the range and those that it was in, outermost first, as frames of kind NVTX. `weight`: how many
    ranges of this stack have ended since the row before it (>= 1): a range that ends very often has a row
    now and then.
    """

    KIND: ClassVar[str] = "ranges"
    generation: int
    start_ns: U64
    end_ns: U64
    thread: U32
    stack: U32
    weight: F32


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to count in [start_ns, end_ns), in windows of about `window_ns`.

    `kind`: a WorkKind; `file`: where the function is, to tell namesakes apart (empty: any); `gpu`: UUID, and
    `pid`: only there (None: anywhere).
    """

    kind: str
    name: str
    start_ns: int
    end_ns: int
    window_ns: int
    file: str = ""
    gpu: str | None = None
    pid: int | None = None


@dataclass(frozen=True, slots=True)
class Counted:
    """What was found: the name (of a loop, the range that was chosen), the number of occurrences in all, its
    standard error (0: exact), how much of the time was recorded, and why there is no answer, where there is
    none.
    """

    name: str
    total: float = 0.0
    error: float = 0.0
    recorded_ns: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class RateQuery(Frame):
    """How often did these occur? At most MAX_RATES of them."""

    KIND: ClassVar[str] = "rate_query"
    id: int
    wanted: list[Wanted]


@dataclass(frozen=True, slots=True, eq=False)
class Rates(Frame):
    """Answer to a rate query: `counted` is one for each that was wanted, the columns are windows of them.

    A window begins and ends with an occurrence: `count` of them, the last included, were done in it. Of its
    length `recorded_ns` was recorded; the rate is their quotient. `of` indexes `counted`; `error`: standard
    error of the count, where it is estimated, else 0. A window without an occurrence is one that has not
    come to its end.
    """

    KIND: ClassVar[str] = "rates"
    id: int
    counted: list[Counted]
    of: U8
    start_ns: U64
    end_ns: U64
    recorded_ns: U64
    count: F64
    error: F64
