"""How the rows that cover a window of time, GPU work, waits and NVTX ranges, are stored in a file, and back.

Of a frame in a chunk, GPU work is ordered by device, stream and start, the others by thread and start. The
columns of ids, weights and kinds are stored in that order. `start_ns` then holds the gap of each row to the
end of the row before it (of the first row: to 0), zigzag-coded, and `end_ns` its duration, both modulo 2^64,
and both ordered once more by stack (stable), since work that was launched from one place has nearly equal
gaps and durations. The two are stored as running sums, because every column of a chunk is stored as
differences of neighbours.

Measured on real PyTorch traces of a V100 and an A100, resampled to a minute of 10,000 rows a second: 16 and
24 bits a row of GPU work in all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields, replace
from typing import Any

import numpy as np

from gpuprof.snapshots.columns import Array
from gpuprof.snapshots.frames import Frame, GpuWork, Waits
from gpuprof.snapshots.work_frames import Ranges

MAX_ROWS = 1 << 18  # of one frame in a file: longer columns share a code, but all of it is unpacked at once
_ONE = np.uint64(1)
Windows = GpuWork | Waits | Ranges


def merged(frames: Iterable[Frame]) -> Iterator[Frame]:
    """Yield frames with neighbouring frames of windows of one kind and generation joined, up to MAX_ROWS
    rows.
    """
    waiting: list[Windows] = []
    for frame in frames:
        if isinstance(frame, Windows):
            rows = sum(len(part.start_ns) for part in waiting) + len(frame.start_ns)
            if waiting and (
                type(waiting[0]) is not type(frame)
                or waiting[0].generation != frame.generation
                or rows > MAX_ROWS
            ):
                yield _joined(waiting)
                waiting = []
            waiting.append(frame)
            continue
        if waiting:
            yield _joined(waiting)
            waiting = []
        yield frame
    if waiting:
        yield _joined(waiting)


def packed(frame: Windows) -> Windows:
    """Return a frame with the columns as they are stored."""
    if isinstance(frame, GpuWork):
        order = np.lexsort((frame.start_ns, frame.stream, frame.gpu))
    else:
        order = np.lexsort((frame.start_ns, frame.thread))
    frame = taken(frame, order)
    gap = frame.start_ns.astype(np.uint64)
    gap[1:] -= frame.end_ns[:-1]
    by_stack = np.argsort(frame.stack, kind="stable")
    duration = frame.end_ns.astype(np.uint64) - frame.start_ns
    return replace(
        frame,
        start_ns=np.cumsum(_zigzag(gap[by_stack]), dtype=np.uint64),
        end_ns=np.cumsum(duration[by_stack], dtype=np.uint64),
    )


def unpacked(frame: Windows) -> Windows:
    """Return the frame of which `packed` made this one, its rows in the order of their ends. Never raises."""
    by_stack = np.argsort(frame.stack, kind="stable")
    gap, duration = np.empty((2, len(by_stack)), np.uint64)
    gap[by_stack] = _unzigzag(np.diff(frame.start_ns, prepend=np.uint64(0)))
    duration[by_stack] = np.diff(frame.end_ns, prepend=np.uint64(0))
    end = np.cumsum(gap + duration, dtype=np.uint64)
    frame = replace(frame, start_ns=end - duration, end_ns=end)
    return taken(frame, np.argsort(end, kind="stable"))


def taken(frame: Windows, order: Array) -> Windows:
    """Return a frame with its rows in another order."""
    return replace(frame, **{name: getattr(frame, name)[order] for name in _column_names(frame)})


def _joined(frames: list[Windows]) -> Windows:
    if len(frames) == 1:
        return frames[0]
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(frame, name) for frame in frames]) for name in _column_names(frames[0])
    }
    return replace(frames[0], **columns)


def _column_names(frame: Windows) -> list[str]:
    return [item.name for item in fields(frame) if item.name != "generation"]


def _zigzag(values: Array) -> Array:
    """Return differences modulo 2^64 so that small ones of either sign are small numbers."""
    signed = values.view(np.int64)
    coded: Array = ((signed << 1) ^ (signed >> 63)).view(np.uint64)
    return coded


def _unzigzag(values: Array) -> Array:
    plain: Array = (values >> _ONE) ^ (np.uint64(0) - (values & _ONE))
    return plain
