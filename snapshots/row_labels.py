"""What the rows of a tree are called: labels of processes, threads and frames, each with one number."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from gpuprof.snapshots.columns import Array
from gpuprof.snapshots.frames import FrameKind
from gpuprof.snapshots.levels import Pairs
from gpuprof.snapshots.table_view import TablesView, frame_label
from gpuprof.snapshots.tree_nodes import Label

_GPU_KERNELS = {FrameKind.GPU_KERNEL, FrameKind.GPU_COMM}


@dataclass(slots=True)
class Labels:
    """Labels of tree rows, each once; the same across generations.

    `items`: the labels by number, of which 0 is the root's; `people`: names of processes and threads, by
    label.
    """

    items: list[Label] = field(default_factory=lambda: [("all", "", "", 0, int(FrameKind.ROOT))])
    ids: dict[object, int] = field(default_factory=dict)
    people: dict[int, str] = field(default_factory=dict)

    def of(self, label: Label, key: object = None) -> int:
        """The number of a label; rows of one `key` (default: the label itself) share that of the first."""
        key = label if key is None else key
        found = self.ids.get(key)
        if found is None:
            found = self.ids[key] = len(self.items)
            self.items.append(label)
        return found

    def of_frames(self, view: TablesView, levels: list[Pairs]) -> Array:
        """The label of every frame that the levels use, by frame id."""
        used = np.zeros(len(view.frame_line), np.bool_)
        for level in levels[1:]:
            used[view.frame[level.node]] = True
        found = np.zeros(len(used), np.intp)
        for frame in np.flatnonzero(used).tolist():
            label = frame_label(view, frame)
            # Kernels of one short name are one row, which shows the full name of the first.
            key = ("kernel", label[0], label[2], label[4]) if label[4] in _GPU_KERNELS else None
            found[frame] = self.of(label, key)
        return found

    def of_process(self, view: TablesView, index: int) -> int:
        """The label of a process, by its id."""
        process = view.processes[index]
        inside = f", {process.container_pid} in its container" if process.container_pid is not None else ""
        label = (f"{process.name} ({process.pid}{inside})", "", "", 0, int(FrameKind.PROCESS))
        number = self.of(label, ("process", process.pid, process.start_ns))
        self.people[number] = process.name
        return number

    def of_thread(self, view: TablesView, index: int) -> int:
        """The label of a thread, by its id."""
        thread = view.threads[index]
        number = self.of((f"{thread.name} ({thread.tid})", "", "", 0, int(FrameKind.THREAD)))
        self.people[number] = thread.name
        return number
