"""NVTX ranges of one process, on their way from a ring to the history.

A path is a range within the ranges that it was pushed in. Its name comes once to a listener, in parts of up
to 40 bytes, after that of the range around it, under an id that keeps its meaning for as long as the process
lives. A range that has ended is a slot; of one that ends very often a slot stands for several.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuprof.sampler.gpu_clock import LIMIT
from gpuprof.sampler.text_parts import TextParts
from gpuprof.snapshots.frames import FrameKind
from gpuprof.snapshots.names import clean
from gpuprof.snapshots.tables import Tables

MAX_PATHS = 8192  # as nvtx.h of the library
MAX_NAME_BYTES = 256
MAX_DEPTH = 128  # the library's own limit is lower
NVTX_BINARY = "[nvtx]"
REMEMBERED = 4096  # launches of graphs whose kernels may come in several batches
Columns = dict[str, NDArray[Any]]


class PathTable:
    """The paths of one process: `order` has (id, parent's id, name) of each, parents first. Not
    thread-safe.
    """

    def __init__(self) -> None:
        self.order: list[tuple[int, int, str]] = []
        self._depth: dict[int, int] = {0: 0}
        self._parts = TextParts()

    def knows(self, ids: NDArray[Any]) -> NDArray[np.bool_]:
        """Which of some ids are those of paths."""
        known, place = np.unique(ids, return_inverse=True)
        mask = np.array([number > 0 and number in self._depth for number in known.tolist()], np.bool_)
        return mask[place.reshape(-1)]

    def add(self, parts: NDArray[Any]) -> int:
        """Take rows of dtype gpu_ring.TEXTS; how many of them are of no path."""
        invalid = 0
        columns = (parts[name].tolist() for name in ("id", "parent", "offset", "total", "length"))
        for number, parent, offset, total, length, text in zip(*columns, parts["text"], strict=True):
            if number in self._depth and number:  # those of a later epoch repeat what is known
                continue
            sound = (
                0 < number < MAX_PATHS
                and total < MAX_NAME_BYTES
                and self._depth.get(parent, MAX_DEPTH) < MAX_DEPTH
            )
            try:
                name = self._parts.add(number, offset, total, text.tobytes()[:length]) if sound else None
            except ValueError:
                sound = False
            invalid += not sound
            if sound and name is not None:
                self._depth[number] = self._depth[parent] + 1
                self.order.append((number, parent, clean(name)))
        return invalid


def decode_ranges(slots: NDArray[Any], paths: PathTable) -> tuple[Columns, int]:
    """Slots (dtype gpu_ring.RANGES) as columns, and how many of them cannot be true.

    The columns: start_ns, end_ns u64 (monotonic); path u32, known to `paths`; weight f32, at least 1.
    """
    sound = (slots["end_ns"] >= slots["start_ns"]) & (slots["end_ns"] < LIMIT) & (slots["start_ns"] > 0)
    sound &= (slots["weight"] > 0) & paths.knows(slots["path"])
    invalid = len(slots) - int(np.count_nonzero(sound))
    slots = slots[sound] if invalid else slots
    columns: Columns = {name: slots[name] for name in ("start_ns", "end_ns", "path")}
    columns["weight"] = np.minimum(slots["weight"], 1e9).astype(np.float32)
    return columns, invalid


class PathStacks:
    """Stacks of frames of kind NVTX for the paths of one process, in one generation of tables. The history's
    lock is held around `of`.
    """

    def __init__(self) -> None:
        self._nodes = np.zeros(MAX_PATHS, np.uint32)
        self._done = 0

    def of(self, tables: Tables, paths: PathTable) -> NDArray[np.uint32]:
        """By path id; 0, the empty stack, for ids that are of no path."""
        for number, parent, name in paths.order[self._done :]:
            frame = tables.frame(tables.function(name, "", NVTX_BINARY, FrameKind.NVTX))
            self._nodes[number] = tables.stacks.child(int(self._nodes[parent]), frame)
        self._done = len(paths.order)
        return self._nodes


class GraphLaunches:
    """Tells the first kernel of a launch of a graph from the others, which may come in later batches."""

    def __init__(self) -> None:
        self._seen = np.zeros(0, np.uint64)

    def again(self, columns: Columns) -> NDArray[np.uint8]:
        """1 for each row of work of which an earlier row, of this call or one before, is of the same launch.

        `columns`: correlation, launch_ns and graph (bool) as GpuSession.decode has them.
        """
        again = np.zeros(len(columns["graph"]), np.uint8)
        rows = np.flatnonzero(columns["graph"])
        if not len(rows):
            return again
        launch = columns["launch_ns"][rows].astype(np.uint64) << np.uint64(16)
        keys, first = np.unique(launch ^ columns["correlation"][rows], return_index=True)
        again[rows] = 1
        again[rows[first]] = 0
        # Most launches are newer than all of before; np.isin for the others would take ten times as long.
        older = int(np.searchsorted(keys, self._seen.max(), "right")) if len(self._seen) else 0
        if older:
            known = np.sort(self._seen)
            seen = known[np.minimum(np.searchsorted(known, keys[:older]), len(known) - 1)] == keys[:older]
            again[rows[first[:older][seen]]] = 1
        self._seen = np.concatenate([self._seen, keys])[-REMEMBERED:]
        return again
