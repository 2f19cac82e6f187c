"""Which rows are the work that a rate is wanted of, by kind, name and process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gpuprof.snapshots import fold
from gpuprof.snapshots.columns import Array, Rows
from gpuprof.snapshots.frames import FrameKind
from gpuprof.snapshots.rate_windows import Occurrences
from gpuprof.snapshots.table_view import TablesView
from gpuprof.snapshots.work_frames import Wanted, WorkKind

KERNEL_KINDS = (FrameKind.GPU_KERNEL, FrameKind.GPU_COMM)
WORK_KINDS = (*KERNEL_KINDS, FrameKind.GPU_COPY)
CODE_KINDS = (FrameKind.PYTHON, FrameKind.NATIVE, FrameKind.JIT, FrameKind.KERNEL_SPACE)


def kind_of(frame: int) -> WorkKind | None:
    """Return what is counted of a row of a tree with this FrameKind; None: it has no work rate."""
    if frame in WORK_KINDS:
        return WorkKind.KERNEL
    if frame in CODE_KINDS:
        return WorkKind.LAUNCH
    if frame == FrameKind.NVTX:
        return WorkKind.RANGE
    return WorkKind.KERNELS if frame in {FrameKind.PROCESS, FrameKind.ROOT} else None


def occurrences(
    view: TablesView, blocks: Sequence[Rows], wanted: Wanted, low_ns: int, end_ns: int
) -> Occurrences:
    """Return the rows of one generation that are what is wanted and end in [low_ns, end_ns)."""
    in_ranges = wanted.kind == WorkKind.RANGE
    names = ["end_ns", "thread", "stack", "weight", *(() if in_ranges else ("gpu", "again"))]
    columns = {name: np.concatenate([rows.columns[name] for rows in blocks]) for name in names}
    end = columns["end_ns"].astype(np.int64)
    keep = (end >= low_ns) & (end < end_ns) & _right_stack(view, columns["stack"], wanted)
    if wanted.gpu is not None and not in_ranges:
        keep &= columns["gpu"] == _string_id(view, wanted.gpu)
    process = view.thread_process[columns["thread"]]
    pids = np.array([found.pid for found in list(view.processes)], np.int64)
    if wanted.pid is not None:
        keep &= pids[process] == wanted.pid
    if wanted.kind == WorkKind.LAUNCH:
        keep &= (columns["again"] == 0) & (columns["weight"] >= 1)
    weighs = in_ranges or wanted.kind == WorkKind.LAUNCH
    weight = columns["weight"][keep].astype(np.float64) if weighs else np.ones(np.count_nonzero(keep))
    return Occurrences(end[keep], weight, frozenset(pids[np.unique(process[keep])].tolist()))


def _string_id(view: TablesView, text: str) -> int:
    """Return the id of a string, 0 (which no name has) where the tables do not have it."""
    try:
        return view.strings.index(text) if text else 0
    except ValueError:
        return 0


def _right_stack(view: TablesView, stack: Array, wanted: Wanted) -> Array:
    """Return a mask of the rows whose leaf, or one of whose callers, is what is wanted."""
    stacks, of_row = fold.compact(stack, len(view.parent))
    right = np.zeros(len(stacks), np.bool_)
    frames = _right_frames(view, wanted)
    if frames.any():
        current = stacks.copy()
        while True:
            right |= (current > 0) & frames[view.frame[current]]
            current = view.parent[current]
            if wanted.kind != WorkKind.LAUNCH or not current.any():
                break
    return right[of_row]


def _right_frames(view: TablesView, wanted: Wanted) -> Array:
    """Return a mask over all frames of those that are what is wanted."""
    kinds: Mapping[str, tuple[FrameKind, ...]] = {
        WorkKind.KERNELS: KERNEL_KINDS,
        WorkKind.KERNEL: WORK_KINDS,
        WorkKind.LAUNCH: CODE_KINDS,
        WorkKind.RANGE: (FrameKind.NVTX,),
    }
    right = np.isin(view.kind, np.array([int(kind) for kind in kinds[wanted.kind]], np.uint8))
    if wanted.kind != WorkKind.KERNELS:
        number = _string_id(view, wanted.name)
        right &= (view.name == number) & (number > 0)
        if wanted.file and wanted.kind == WorkKind.LAUNCH:
            right &= view.file == _string_id(view, wanted.file)
    mask: Array = right[view.frame_function]
    return mask
