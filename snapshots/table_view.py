"""The intern tables as their readers see them: a view at one moment, and how far a reader has got."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpuprof.snapshots.columns import Array, Rows
from gpuprof.snapshots.frames import ProcessDef, ThreadDef


@dataclass(slots=True)
class ChangeCursor:
    """How far a reader has got in a table whose definitions may change: ids below `count`, as of
    `version`.
    """

    count: int = 0
    version: int = 0


@dataclass(slots=True)
class TableCursor:
    """How far a reader has got in the tables of one generation; begins at what is always defined."""

    generation: int
    strings: int = 1
    functions: int = 0
    frames: int = 0
    stacks: int = 1
    processes: ChangeCursor = field(default_factory=ChangeCursor)
    threads: ChangeCursor = field(default_factory=ChangeCursor)


@dataclass(frozen=True, slots=True)
class TablesView:
    """The tables as they were at one moment: arrays that never change, and lists of which only the first
    items count.
    """

    generation: int
    parent: Array  # u32 by stack
    frame: Array  # u32 by stack
    depth: Array  # u16 by stack, number of frames
    frame_function: Array  # u32 by frame
    frame_line: Array  # u32 by frame
    name: Array  # u32 string ids by function
    file: Array
    binary: Array
    kind: Array  # u8 by function
    thread_process: Array  # u32 by thread
    thread_tid: Array  # u32 by thread
    strings: list[str]
    processes: list[ProcessDef]
    threads: list[ThreadDef]


TaggedRows = tuple[TablesView, Rows]  # rows of one block, and the tables that they refer to


def frame_label(view: TablesView, frame: int) -> tuple[str, str, str, int, int]:
    """Return name, file, binary, line and kind of a frame."""
    function = int(view.frame_function[frame])
    strings = view.strings
    return (
        strings[int(view.name[function])],
        strings[int(view.file[function])],
        strings[int(view.binary[function])],
        int(view.frame_line[frame]),
        int(view.kind[function]),
    )


def ancestors(parent: Array, stacks: Array) -> Array:
    """Return a mask over all nodes: the given ones, everything on their way to the root, and the root."""
    mask = np.zeros(len(parent), np.bool_)
    mask[0] = True
    current: Any = stacks[~mask[stacks]]
    while len(current):
        mask[current] = True
        current = parent[current]
        current = np.unique(current[~mask[current]])
    return mask
