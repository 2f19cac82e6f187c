"""What rows of an old generation refer to, interned in the next one: launches outlive their tables."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuprof.snapshots.table_view import TablesView, ancestors, frame_label
from gpuprof.snapshots.tables import Tables


def carry_over(
    old: TablesView, new: Tables, threads: NDArray[Any], stacks: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Intern threads and stacks of an old generation in `new`, and return the new ids by the old ones (u32).

    Only what the given ids need is interned; the others map to 0xFFFFFFFF.
    """
    thread_map = np.full(len(old.thread_process), 0xFFFF_FFFF, np.uint32)
    for index in np.unique(threads).tolist():
        thread = old.threads[index]
        thread_map[index] = new.thread(new.process(old.processes[thread.process]), thread.tid, thread.name)
    stack_map = np.full(len(old.parent), 0xFFFF_FFFF, np.uint32)
    stack_map[0] = 0
    frames: dict[int, int] = {}
    nodes = np.flatnonzero(ancestors(old.parent, stacks))[1:]  # in order: a parent comes before its children
    for node, parent, frame in zip(
        nodes.tolist(), old.parent[nodes].tolist(), old.frame[nodes].tolist(), strict=True
    ):
        if frame not in frames:
            name, file, binary, line, kind = frame_label(old, frame)
            ids = (new.string(name), new.string(file), new.string(binary))
            frames[frame] = new.frame(new.function_of_ids(*ids, kind), line)
        stack_map[node] = new.stacks.child(int(stack_map[parent]), frames[frame])
    return thread_map, stack_map
