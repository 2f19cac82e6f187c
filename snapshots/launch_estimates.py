"""GPU time whose launches got no stack, spread over the paths of the launches of the same kernel that did.

A group is a kernel (by name) of a process on a device. The time Z of its rows below STACK_NOT_TAKEN is known;
each sampled row (weight w > 1) stands for w - 1 such launches, so that it takes the share (w - 1) d / sum of
(w - 1) d of Z, d being its own duration; where the kernel has only rows of weight 1 with a stack, they take
shares by their duration. Totals of kernels stay exact. A kernel without any stack stays below
STACK_NOT_TAKEN. The standard error is that of estimates.py with w' = 1 + part / d, the weight that makes the
sample add up to the known total.
"""

from __future__ import annotations

import numpy as np

from gpuprof.snapshots import fold
from gpuprof.snapshots.columns import Array
from gpuprof.snapshots.estimates import Sampled
from gpuprof.snapshots.table_view import TablesView

_DENSE_KEYS = 1 << 22


def spread(
    view: TablesView,
    columns: dict[str, Array],
    duration_ns: Array,
    *,
    without: Array,
    usable: Array,
    moved: Array | None = None,
    by_range: bool = False,
) -> tuple[Array, Array, Sampled | None]:
    """Return a mask of the rows that stay as they are, and which rows stand for the others, by number and as
    a sample (None: all stay).

    `columns`: gpu, thread, stack and weight of rows of GPU work; `without`: mask of those whose stack was not
    taken; `usable`: of those that have the stack of their own launch; `moved`: bytes of each row (None:
    none), which are shared as the time is; `by_range`: kernels in different NVTX ranges are different ones.
    """
    stays = np.ones(len(without), np.bool_)
    if not without.any() or not usable.any():
        return stays, np.zeros(0, np.int64), None
    group, count = _groups(view, columns)
    if by_range:
        group, count = _apart(group, columns["nvtx"])
    duration = duration_ns.astype(np.float64)
    missing = np.bincount(group[without], duration[without], count)
    weight = columns["weight"].astype(np.float64)
    say = np.where(usable, np.maximum(weight - 1, 0) * duration, 0.0)
    said = np.bincount(group, say, count)
    plain = (said <= 0)[group] & usable  # the kernel's launches were not sampled with weights
    say[plain] = duration[plain]
    said = np.bincount(group, say, count)
    factor = np.divide(missing, said, out=np.zeros(count), where=said > 0)
    stays = ~(without & (said > 0)[group])
    rows = np.flatnonzero((say > 0) & (factor > 0)[group])
    if not len(rows):
        return stays, rows, None
    part = say[rows] * factor[group[rows]]
    noise = part * (part + duration[rows])  # w' (w' - 1) d^2
    _, numbers = np.unique(group[rows], return_inverse=True)
    thread, stack = columns["thread"][rows], columns["stack"][rows]
    shared = None
    if moved is not None:
        lacking = np.bincount(group[without], moved[without], count)
        shared = part * np.divide(lacking, missing, out=np.zeros(count), where=missing > 0)[group[rows]]
    return stays, rows, Sampled(thread, stack, numbers.reshape(-1), part, noise, shared)


def _apart(group: Array, also: Array) -> tuple[Array, int]:
    """Return the numbers of the pairs of two columns, and how many there are."""
    _, second = np.unique(also, return_inverse=True)
    pairs, number = np.unique(group * (int(second.max()) + 1) + second.reshape(-1), return_inverse=True)
    return number.reshape(-1), len(pairs)


def _groups(view: TablesView, columns: dict[str, Array]) -> tuple[Array, int]:
    """Return for each row the number of its (process, device, kernel name), and how many there are."""
    threads, of_row = fold.compact(columns["thread"], len(view.thread_process))
    processes, of_thread = np.unique(view.thread_process[threads], return_inverse=True)
    stacks, stack_of_row = fold.compact(columns["stack"], len(view.parent))
    kernel_of_stack = view.name[view.frame_function[view.frame[stacks]]]
    kernels, of_stack = np.unique(kernel_of_stack, return_inverse=True)
    devices, device_of_row = fold.compact(columns["gpu"], int(columns["gpu"].max()) + 1)
    key = of_thread.reshape(-1)[of_row] * len(devices) + device_of_row
    key = key * len(kernels) + of_stack.reshape(-1)[stack_of_row]
    size = len(processes) * len(devices) * len(kernels)
    if size <= _DENSE_KEYS:
        return key, size
    found, inverse = np.unique(key, return_inverse=True)
    return inverse.reshape(-1), len(found)
