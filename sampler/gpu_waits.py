"""Calls in which a thread of the host waited for the device, on their way from a ring to the history.

A wait is a slot of the ring with the correlation id of its call; its stack comes through the launch probe, as
that of a launch does. Shorter waits are a random sample, in which each has the chance of its own length: the
weight says how many of its length it stands for.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuprof.sampler.gpu_clock import LIMIT
from gpuprof.sampler.gpu_names import WAIT_BINARY, NameTable
from gpuprof.sampler.gpu_ring import WAIT_HAS_STREAM
from gpuprof.snapshots.frames import NO_THREAD, FrameKind, WaitKind
from gpuprof.snapshots.gpu_records import Joined, LeafStacks
from gpuprof.snapshots.history import History
from gpuprof.snapshots.rows import MAX_WEIGHT
from gpuprof.snapshots.tables import Tables

_AS_THEY_ARE = ("epoch", "correlation", "start_ns", "end_ns", "weight")
Columns = dict[str, NDArray[Any]]


def decode_waits(slots: NDArray[Any], names: NameTable) -> tuple[Columns, int]:
    """Slots (dtype gpu_ring.WAITS) as columns, and how many of them cannot be true.

    The columns: epoch, correlation u32; start_ns, end_ns u64 (monotonic); leaf u32, an index into
    names.calls; weight f32, at least 1. The names of the calls must have been added before.
    """
    weight = slots["weight"]
    with np.errstate(invalid="ignore"):
        sound = np.isfinite(weight) & (weight >= 1) & (weight <= MAX_WEIGHT)
    sound &= (slots["end_ns"] >= slots["start_ns"]) & (slots["end_ns"] < LIMIT) & (slots["start_ns"] > 0)
    invalid = len(slots) - int(np.count_nonzero(sound))
    slots = slots[sound] if invalid else slots
    columns: Columns = {name: slots[name] for name in _AS_THEY_ARE}
    columns["leaf"] = names.call_index(slots["name"], slots["stream"], slots["flags"] == WAIT_HAS_STREAM)
    return columns, invalid


class WaitLeaves:
    """Frame ids of the calls of one process in one generation of tables."""

    def __init__(self) -> None:
        self._ids = np.zeros(0, np.uint32)

    def frames(self, tables: Tables, names: NameTable) -> NDArray[np.uint32]:
        """By index in `names.calls`."""
        if len(self._ids) < len(names.calls):
            new = [
                tables.frame(tables.function(name, "", WAIT_BINARY, FrameKind.WAIT))
                for name in names.calls[len(self._ids) :]
            ]
            self._ids = np.concatenate([self._ids, np.array(new, np.uint32)])
        return self._ids


def add_waits(
    history: History, joined: Joined, leaves: NDArray[np.uint32], stacks: LeafStacks, unknown_thread: int
) -> None:
    """Add settled waits to the history; its lock is held."""
    if not len(joined):
        return
    columns, launch = joined.columns, joined.launch
    thread = np.where(launch.thread < 0, unknown_thread, launch.thread)
    history.add_waits(
        columns["start_ns"],
        columns["end_ns"],
        thread,
        stacks.of(launch.stack, leaves[columns["leaf"]]),
        np.full(len(joined), NO_THREAD, np.uint32),
        columns["weight"],
        np.full(len(joined), WaitKind.SYNC, np.uint8),
    )
