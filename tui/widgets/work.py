"""The strip of a device's work: how much of each column kernels, communication and copies took, where the
device was idle, and where nobody can tell.

A column is filled to the share of its time in which kernels ran, the upper part of that with the kernels that
communicate with other devices, above that to the share of copies. What is left is idle only where the device
was observed (metrics.py, gpu_observed).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuprof.tui.series import F64Array, SeriesView
from gpuprof.tui.timescale import TimeScale
from gpuprof.tui.units import with_unit
from gpuprof.tui.widgets.braille import Glyphs, U8Array
from gpuprof.tui.widgets.envelope import usual_gap_ns
from gpuprof.tui.widgets.lanes import busy_shares, states
from gpuprof.tui.widgets.legend import Entry
from gpuprof.tui.widgets.surface import Inks, Surface

_IDLE_BELOW = 0.002  # a share of a column that is drawn as nothing
# Work is known about a second after it ran, since the sampler waits for the records: so young a column is
# not idle.
_LATE_NS = 1_600_000_000
_OBSERVED_FROM = 0.98  # a column's share of observed time from which it counts as observed
NOTHING, NOT_OBSERVED, IDLE, COPY, COMM, KERNEL = range(
    6
)  # KERNEL and above: height in the shades of the glyphs


@dataclass(frozen=True, slots=True, eq=False)
class WorkTime:
    """Shares 0..1 of each column; NaN where there is no reading. `comm` is a part of `kernel`."""

    kernel: F64Array
    copy: F64Array
    observed: F64Array
    comm: F64Array


def gauge_shares(view: SeriesView, edges: NDArray[np.int64], full: float) -> F64Array:
    """The mean of a gauge between each two edges, as a share of `full`; NaN where it was not read."""
    gap_ns = usual_gap_ns(view)
    view = view.since(int(edges[0]) - gap_ns).until(int(edges[-1]))
    if not len(view):
        return np.full(len(edges) - 1, np.nan)
    start, end = view.start_ns.astype(np.int64), view.end_ns.astype(np.int64)
    np.maximum(start[1:], end[:-1], out=start[1:])
    np.minimum(start, end, out=start)
    share = np.clip(view.value / full, 0.0, 1.0)
    # Both ends of each window, and the integral so far: between windows nothing is known to be added.
    times = np.stack([start, end], axis=1).ravel()
    grown = np.zeros(len(times))
    grown[1::2] = share * (end - start)
    totals = np.cumsum(grown)
    result: F64Array = busy_shares(times, totals[None, :], edges, gap_ns)[0]
    return result


def shares(views: Sequence[SeriesView], scale: TimeScale) -> WorkTime:
    """Of the views of WORK_METRICS of one device, over the columns of a scale."""
    edges = np.arange(scale.first, scale.first + scale.columns + 1, dtype=np.int64) * scale.cell_ns
    full = (100.0, 100.0, 1.0, 100.0)
    kernel, copy, observed, comm = (
        gauge_shares(view, edges, most) for view, most in zip(views, full, strict=True)
    )
    newest = max((int(view.end_ns[-1]) for view in views if len(view)), default=0)
    observed[np.isnan(kernel) & (edges[1:] > newest - _LATE_NS)] = np.nan
    return WorkTime(kernel, copy, observed, comm)


def cells(time: WorkTime, rows: int, glyphs: Glyphs, inks: Inks) -> tuple[NDArray[np.uint32], U8Array]:
    """Code points and colours [rows, columns] of one device."""
    levels = len(glyphs.shades) - 1
    kernel, copy = np.nan_to_num(time.kernel), np.nan_to_num(time.copy)
    comm = np.minimum(np.nan_to_num(time.comm), kernel)
    known = ~(np.isnan(time.kernel) & np.isnan(time.copy) & np.isnan(time.observed))
    rest = np.where(
        known, np.where(np.nan_to_num(time.observed) >= _OBSERVED_FROM, IDLE, NOT_OBSERVED), NOTHING
    )
    state = np.repeat(rest[None, :], rows, axis=0).astype(np.int16)
    filled = np.ceil(kernel * rows * levels - 1e-6).astype(np.int64)
    filled[kernel < _IDLE_BELOW] = 0
    copied = np.rint(np.minimum(kernel + copy, 1) * rows).astype(np.int64)
    copied = np.where(copy < _IDLE_BELOW, 0, np.maximum(copied, kernel < _IDLE_BELOW))
    for row in range(rows):
        below = rows - 1 - row  # rows of this device under this one
        height = np.clip(filled - below * levels, 0, levels)
        state[row, copied > below] = COPY
        state[row, height > 0] = KERNEL - 1 + height[height > 0]
        top = np.minimum(kernel * rows, below + 1)  # of what is filled of this row
        talked = np.maximum(top - np.maximum((kernel - comm) * rows, below), 0)
        state[row, (height > 0) & (comm >= _IDLE_BELOW) & (talked >= (top - below) / 2)] = COMM
    characters = np.array([*(ord(character) for character in glyphs.work), *glyphs.shades[1:]], np.uint32)
    colors = np.array(
        [inks.dim, inks.dim, inks.rule, inks.gpu_copy, inks.gpu_comm, inks.gpu_kernel], np.uint8
    )
    return states(state, characters), colors[np.minimum(state, KERNEL)]


def entries(time: WorkTime, surface: Surface, device: str) -> list[Entry]:
    """Legend: the shares of the time in sight that is known; of one device among several on one line."""
    known = ~np.isnan(time.kernel) | ~np.isnan(time.observed)
    if not known.any():
        return []
    kernel, copy, comm = (
        float(np.nan_to_num(part[known]).mean()) for part in (time.kernel, time.copy, time.comm)
    )
    # Copies may have run beside kernels, so that this is what was idle for certain.
    busy = np.minimum(np.nan_to_num(time.kernel) + np.nan_to_num(time.copy), 1)[known]
    observed = np.nan_to_num(time.observed[known]) >= _OBSERVED_FROM
    idle = float(np.where(observed, 1 - busy, 0.0).mean())
    unknown = float(np.where(observed, 0.0, 1 - busy).mean())
    palette, glyphs = surface.palette, surface.glyphs
    _, not_observed, nothing, copying, talking = list(glyphs.work)
    if device:
        value = f"{100 * kernel:.0f} %, idle {100 * idle:.0f} %"
        if unknown >= 0.005:
            value = f"{100 * kernel:.0f} %, unseen {100 * unknown:.0f} %"
        return [Entry(glyphs.block, palette.gpu_kernel, device, value)]
    found = [
        Entry(glyphs.block, palette.gpu_kernel, "kernel", with_unit(100 * kernel, "%")),
        Entry(nothing, palette.dim, "idle", with_unit(100 * idle, "%")),
    ]
    if comm >= 0.0005:
        found.append(Entry(talking, palette.gpu_comm, "communication", with_unit(100 * comm, "%")))
    if copy >= 0.0005:
        found.append(Entry(copying, palette.gpu_copy, "copy", with_unit(100 * copy, "%")))
    if unknown >= 0.005:
        found.insert(1, Entry(not_observed, palette.dim, "not seen", with_unit(100 * unknown, "%")))
    return found
