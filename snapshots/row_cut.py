"""Cuts rows to the time of a recording: what lies outside is left out, what goes over an edge ends there."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import numpy as np

from gpuprof.snapshots.columns import Array
from gpuprof.snapshots.frames import Frame, GpuWork, Ranges, Readings, Samples, Waits

_COLUMNS = {
    Samples: ("time_ns", "cpu", "thread", "stack"),
    GpuWork: ("start_ns", "end_ns", "gpu", "stream", "thread", "stack", "weight", "nvtx", "again", "bytes"),
    Waits: ("start_ns", "end_ns", "thread", "stack", "waker", "weight", "kind"),
    Ranges: ("start_ns", "end_ns", "thread", "stack", "weight"),
    Readings: ("series", "start_ns", "end_ns", "value"),
}
_FrameT = TypeVar("_FrameT", bound=Frame)


def cut(frame: _FrameT, start_ns: int, end_ns: int | None) -> _FrameT | None:
    """Return the rows of a frame that touch [start_ns, end_ns), cut to it; None where there are none.

    `end_ns`: None for no end. A frame of another kind is returned as it is.
    """
    names = _COLUMNS.get(type(frame))
    if names is None:
        return frame
    columns: dict[str, Array] = {name: getattr(frame, name) for name in names}
    first = columns["time_ns" if isinstance(frame, Samples) else "start_ns"]
    last = columns["time_ns" if isinstance(frame, Samples) else "end_ns"]
    low = np.uint64(max(start_ns, 0))
    keep = (last > low) | ((last == low) & (first == last))
    if end_ns is not None:
        keep &= first < np.uint64(max(end_ns, 0))
    if not keep.all():
        if not keep.any():
            return None
        columns = {name: column[keep] for name, column in columns.items()}
    if not isinstance(frame, Samples):
        columns["start_ns"] = np.maximum(columns["start_ns"], low)
        if end_ns is not None:
            columns["end_ns"] = np.minimum(columns["end_ns"], np.uint64(max(end_ns, 0)))
    return replace(frame, **columns)
