"""The frames: everything that crosses a socket, an ssh pipe or a file, defined once. They are imported from
here; this module puts together what is defined by kind in frame_types.py, node_frames.py,
definition_frames.py, row_frames.py, request_frames.py and work_frames.py.

A frame on the wire is a u32 little-endian length, then a msgpack map {"k": KIND, field: value, ...}. A
stream starts with the magic `GPUPROF1`, then a `hello` frame from the side that holds the data. Bulk rows
are columns: a field annotated with one of the column types is a numpy array in memory and little-endian bytes
on the wire; the columns of one frame have equal lengths. Times are CLOCK_MONOTONIC nanoseconds of the node.
What is not known is absent (None), never 0.

Definitions. Functions, binaries, frames, stacks, processes and threads are numbered within a *generation* of
intern tables (tables.py). A definition frame carries consecutive ids from `first`; it always precedes the
rows that refer to it. A new generation starts with empty tables.

A frame kind that the reader does not know is skipped, and so is a field that it does not know; a missing or
ill-typed field is a FrameError. A column that came with a later version is declared with `later(value)`: it
is left out where every row has that value, and where it is absent every row is given it.
"""

from __future__ import annotations

from gpuprof.snapshots.definition_frames import (
    FrameDefs,
    FunctionDefs,
    ProcessDef,
    ProcessDefs,
    StackDefs,
    StringDefs,
    ThreadDef,
    ThreadDefs,
)
from gpuprof.snapshots.frame_types import F32, F64, U8, U16, U32, U64, Frame, FrameKind, WaitKind, later
from gpuprof.snapshots.node_frames import (
    Clock,
    GpuFacts,
    Gpus,
    Hello,
    Readings,
    SeriesDef,
    SeriesDefs,
    SourceCounts,
    SourceStatus,
    Status,
)
from gpuprof.snapshots.request_frames import (
    NOT_SEEN,
    Done,
    Failure,
    Fetch,
    Fetched,
    Query,
    Settle,
    Subscribe,
    Tree,
    Watch,
)
from gpuprof.snapshots.row_frames import NO_THREAD, STACK_NOT_TAKEN, UNMATCHED_LAUNCH, GpuWork, Samples, Waits
from gpuprof.snapshots.work_frames import Counted, Ranges, RateQuery, Rates, Wanted, WorkKind

__all__ = [
    "ALL_FRAMES", "F32", "F64", "MAGIC", "MAX_FRAME_BYTES", "NOT_SEEN", "NO_THREAD", "PROTOCOL_VERSION",
    "STACK_NOT_TAKEN", "U8", "U16", "U32", "U64", "UNMATCHED_LAUNCH", "Clock", "Counted", "Done",
    "Failure", "Fetch", "Fetched", "Frame", "FrameDefs", "FrameKind", "FunctionDefs", "GpuFacts",
    "GpuWork", "Gpus", "Hello", "ProcessDef", "ProcessDefs", "Query", "Ranges", "RateQuery", "Rates",
    "Readings", "Samples", "SeriesDef", "SeriesDefs", "Settle", "SourceCounts", "SourceStatus",
    "StackDefs", "Status", "StringDefs", "Subscribe", "ThreadDef", "ThreadDefs", "Tree", "WaitKind",
    "Waits", "Wanted", "Watch", "WorkKind", "later",
]  # fmt: skip

MAGIC = b"GPUPROF1"
PROTOCOL_VERSION = 1
MAX_FRAME_BYTES = 32 << 20

ALL_FRAMES: tuple[type[Frame], ...] = (
    Hello, Clock, Gpus, Status, SourceCounts, SeriesDefs, Readings, ProcessDefs, ThreadDefs, StringDefs,
    FunctionDefs, FrameDefs, StackDefs, Samples, GpuWork, Waits, Ranges, Subscribe, Query, RateQuery,
    Fetch, Fetched, Watch, Settle, Done, Tree, Rates, Failure,
)  # fmt: skip
