"""Intern tables of one generation: strings, functions, frames, stacks, processes and threads, numbered from
0.

Stacks are a prefix tree: the id of a stack is a node, and its parent is the stack of its caller, with a
smaller id; node 0 is the empty stack. String 0 is the empty string. A generation is bounded; when it is
`full` its owner begins a new one.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuprof.snapshots.change_order import ChangeOrder
from gpuprof.snapshots.child_table import ChildTable
from gpuprof.snapshots.columns import GrowingColumn
from gpuprof.snapshots.frames import (
    Frame,
    FrameDefs,
    FrameKind,
    FunctionDefs,
    ProcessDef,
    ProcessDefs,
    StackDefs,
    StringDefs,
    ThreadDef,
    ThreadDefs,
)
from gpuprof.snapshots.names import MAX_FULL_NAME, clean
from gpuprof.snapshots.recent import Recent
from gpuprof.snapshots.table_view import ChangeCursor, TableCursor, TablesView, ancestors, frame_label

MAX_NODES = 1 << 17
MAX_STRINGS = 1 << 16
MAX_PROCESSES = 1 << 14
MAX_THREADS = 1 << 15
MAX_STRING_BYTES = 8 << 20
MAX_PROCESS_BYTES = 8 << 20
MAX_DEPTH = 60_000
_PREFIX_FRAMES = 8  # the outer eight, sixteen ... frames of a stack are found at once
_PREFIX_BYTES = 4 * _PREFIX_FRAMES
_PREFIXES = 1 << 12  # kept twice: those in use, and those of before
_PREFIXES_BYTES = 1 << 20  # the same of their memory
_PREFIX_ENTRY_BYTES = 170  # of one, without its frames
_DEFS_PER_FRAME = 1 << 16
_STRINGS_PER_FRAME = 1 << 12
_NODE_BYTES = 10  # of a node's columns
_FRAME_BYTES = 160  # a frame's columns, and its entry in the dictionary with the two integers of it
# Of a definition, with its entries in dictionaries; the texts apart. Measured with tracemalloc.
_PROCESS_BYTES, _PROCESS_FROZEN_BYTES = 400, 210
_THREAD_BYTES, _THREAD_FROZEN_BYTES = 320, 180
_STRING_BYTES = 180  # an entry in the dictionary, the list slot and the header of the text


class Tables:
    """The tables of one generation. Not thread-safe: History.lock is held around every call."""

    def __init__(self, generation: int) -> None:
        self.generation = generation
        self._strings: list[str] = [""]
        self._string_ids: dict[str, int] = {"": 0}
        self._string_bytes = 0
        self._functions: dict[tuple[int, int, int, int], int] = {}
        self._kernels: dict[tuple[int, int, int], int] = {}  # by name, binary and kind
        self._name = GrowingColumn("<u4")
        self._file = GrowingColumn("<u4")
        self._binary = GrowingColumn("<u4")
        self._kind = GrowingColumn("<u1")
        self._frames: dict[int, int] = {}
        self._frame_function = GrowingColumn("<u4")
        self._frame_line = GrowingColumn("<u4")
        self._children = ChildTable()
        self._parent = GrowingColumn("<u4", (0,))
        self._node_frame = GrowingColumn("<u4", (0,))
        self._depth = GrowingColumn("<u2", (0,))
        # The node of the outer frames of stacks.
        self._prefixes: Recent[bytes, int] = Recent(_PREFIXES, _PREFIXES_BYTES, _prefix_bytes)
        self._processes: list[ProcessDef] = []
        self._process_ids: dict[tuple[int, int], int] = {}
        self._process_bytes = 0  # of their names and command lines, each text once
        self._process_changes = ChangeOrder()
        self._threads: list[ThreadDef] = []
        self._thread_ids: dict[tuple[int, int], int] = {}
        self._thread_changes = ChangeOrder()
        self._texts: dict[str, str] = {}  # of processes and threads, which are few: each is kept once
        self._thread_process = GrowingColumn("<u4")
        self._thread_tid = GrowingColumn("<u4")
        self._version = 0
        self._frozen = False

    # ---------------------------------------------------------------------------------------------- interning

    def string(self, text: str) -> int:
        """Return the id of `text`."""
        found = self._string_ids.get(text)
        if found is None:
            found = len(self._strings)
            self._strings.append(text)
            self._string_ids[text] = found
            self._string_bytes += len(text)
        return found

    def function(self, name: str, file: str, binary: str, kind: FrameKind) -> int:
        """Return the id of a function. The names are cleaned; an unknown file or binary is ""."""
        return self.function_of_ids(
            self.string(clean(name)),
            self.string(clean(file) if file else ""),
            self.string(clean(binary) if binary else ""),
            int(kind),
        )

    def kernel(self, name: str, full_name: str, binary: str, kind: FrameKind) -> int:
        """Return the id of a GPU kernel, whose file is its full name ("": the same as its name): the first
        that came, since kernels of one name are one function.
        """
        key = (self.string(clean(name)), self.string(clean(binary)), int(kind))
        found = self._kernels.get(key)
        if found is None:
            full = self.string(clean(full_name, MAX_FULL_NAME) if full_name else "")
            found = self._kernels[key] = self.function_of_ids(key[0], full, *key[1:])
        return found

    def function_of_ids(self, name: int, file: int, binary: int, kind: int) -> int:
        """Return the id of a function whose name, file and binary are string ids of this generation."""
        key = (name, file, binary, kind)
        found = self._functions.get(key)
        if found is None:
            found = len(self._name)
            self._functions[key] = found
            self._name.append(name)
            self._file.append(file)
            self._binary.append(binary)
            self._kind.append(kind)
        return found

    def frame(self, function: int, line: int = 0) -> int:
        """Return the id of a frame: a function and a line in it (0: no line). IndexError for an unknown
        function.
        """
        if not 0 <= function < len(self._name):
            raise IndexError(f"function {function} is not defined")
        line = min(max(line, 0), 0xFFFF_FFFF)
        key = function << 32 | line
        found = self._frames.get(key)
        if found is None:
            found = len(self._frame_line)
            self._frames[key] = found
            self._frame_function.append(function)
            self._frame_line.append(line)
        return found

    def stack(self, frames: Sequence[int]) -> int:
        """Return the id of the stack of these frame ids, root (outermost caller) first. IndexError for
        unknown ids.
        """
        return self.packed_stack(array("I", frames).tobytes())

    def packed_stack(self, key: bytes) -> int:
        """Return the id of the stack of these frame ids, given as u32 of this machine's byte order."""
        known = self._prefixes
        at = (len(key) - 1) // _PREFIX_BYTES * _PREFIX_BYTES
        node = 0
        while at > 0:  # most new stacks differ from known ones in a few frames at their leaf
            found = known.get(key[:at])
            if found is not None:
                node = found
                break
            at -= _PREFIX_BYTES
        children = self._children
        at = max(at, 0)
        frames = array("I", key[at:])
        for n, frame in enumerate(frames):
            child = children.get(node << 32 | frame)
            if not child:
                return self._grow(node, frames[n:], key)
            node = child
            at += 4
            if not at % _PREFIX_BYTES:
                known.put(key[:at], node)
        return node

    def _grow(self, node: int, frames: array[int], key: bytes) -> int:
        """Add the stacks that `frames` lead to from `node`, which has no child of the first of them; `key`:
        as in packed_stack, of the last one.
        """
        depth, count, first = self._depth[node], len(frames), len(self._parent)
        if max(frames) >= len(self._frame_line):
            raise IndexError("a frame is not defined")
        if depth + count > MAX_DEPTH:
            for frame in frames:
                node = self.child(node, frame)
            return node
        parents = [node, *range(first, first + count - 1)]
        self._parent.extend(parents)
        self._node_frame.extend(np.frombuffer(frames, np.uint32))
        self._depth.extend(range(depth + 1, depth + count + 1))
        for n, frame in enumerate(frames):
            self._children.add(parents[n] << 32 | frame, first + n)
        for end in range(
            depth // _PREFIX_FRAMES * _PREFIX_FRAMES + _PREFIX_FRAMES, depth + count + 1, _PREFIX_FRAMES
        ):
            self._prefixes.put(key[: 4 * end], first + end - depth - 1)
        return first + count - 1

    def child(self, node: int, frame: int) -> int:
        """Return the stack that has `frame` called from stack `node`. IndexError when either is not
        defined.
        """
        if not (0 <= node < len(self._parent) and 0 <= frame < len(self._frame_line)):
            raise IndexError(f"stack {node} or frame {frame} is not defined")
        key = node << 32 | frame
        found = self._children.get(key)
        if not found:
            depth = self._depth[node] + 1
            if depth > MAX_DEPTH:
                return node
            found = len(self._parent)
            self._children.add(key, found)
            self._parent.append(node)
            self._node_frame.append(frame)
            self._depth.append(depth)
        return found

    def process(self, definition: ProcessDef) -> int:
        """Return the id of a process, told apart by pid and start time; a definition that changed replaces
        the old one.
        """
        key = (definition.pid, definition.start_ns)
        found = self._process_ids.get(key)
        if found is not None and self._processes[found] == definition:
            return found
        definition = replace(
            definition,
            name=self._text(definition.name),
            cmdline=self._text(definition.cmdline),
            user=self._text(definition.user),
        )
        if found is None:
            found = len(self._processes)
            self._process_ids[key] = found
            self._processes.append(definition)
        else:
            self._processes[found] = definition
        self._changed(self._process_changes, found)
        return found

    def thread(self, process: int, tid: int, name: str) -> int:
        """Return the id of a thread of process id `process`; a new name replaces the old one. IndexError as
        above.
        """
        if not 0 <= process < len(self._processes):
            raise IndexError(f"process {process} is not defined")
        found = self._thread_ids.get((process, tid))
        if found is None:
            found = len(self._threads)
            self._thread_ids[process, tid] = found
            self._threads.append(ThreadDef(process, tid, self._text(clean(name))))
            self._thread_process.append(process)
            self._thread_tid.append(tid)
        elif self._threads[found].name != (name := clean(name)):
            self._threads[found] = ThreadDef(process, tid, self._text(name))
        else:
            return found
        self._changed(self._thread_changes, found)
        return found

    def _text(self, text: str) -> str:
        known = self._texts.get(text)
        if known is None:
            known = self._texts[text] = text
            self._process_bytes += len(text)
        return known

    def _changed(self, changes: ChangeOrder, item: int) -> None:
        self._version += 1
        changes.note(item, self._version)

    # ------------------------------------------------------------------------------------------------ reading

    @property
    def node_count(self) -> int:
        """Number of stacks, with the empty one."""
        return len(self._parent)

    @property
    def string_count(self) -> int:
        return len(self._strings)

    @property
    def thread_count(self) -> int:
        return len(self._threads)

    @property
    def full(self) -> bool:
        """Tell whether the owner should begin a new generation."""
        return (
            len(self._parent) >= MAX_NODES
            or len(self._strings) >= MAX_STRINGS
            or self._string_bytes >= MAX_STRING_BYTES
            or len(self._processes) >= MAX_PROCESSES
            or self._process_bytes >= MAX_PROCESS_BYTES
            or len(self._threads) >= MAX_THREADS
        )

    @property
    def nbytes(self) -> int:
        """Return about how much memory these tables take."""
        return (
            len(self._parent) * _NODE_BYTES
            + self._children.nbytes
            + len(self._frame_line) * (8 if self._frozen else _FRAME_BYTES)
            + len(self._name) * (13 if self._frozen else 250)
            + len(self._strings) * (60 if self._frozen else _STRING_BYTES)
            + self._string_bytes
            + self._process_bytes
            + len(self._processes) * (_PROCESS_FROZEN_BYTES if self._frozen else _PROCESS_BYTES)
            + len(self._threads) * (_THREAD_FROZEN_BYTES if self._frozen else _THREAD_BYTES)
            + len(self._texts) * _STRING_BYTES
            + self._prefixes.nbytes
        )

    def freeze(self) -> None:
        """Give back what only interning needs; these tables are only read from now on."""
        self._frozen = True
        self._prefixes.clear()
        self._children = ChildTable()
        self._frames = {}
        self._functions = {}
        self._kernels = {}
        self._string_ids = {}
        self._process_ids = {}
        self._thread_ids = {}
        self._texts = {}
        self._process_changes.freeze()
        self._thread_changes.freeze()
        for column in (self._parent, self._node_frame, self._depth, self._frame_function, self._frame_line):
            column.trim()

    def view(self) -> TablesView:
        """Return the tables as they are now, to be read without the lock."""
        return TablesView(
            self.generation,
            self._parent.view(),
            self._node_frame.view(),
            self._depth.view(),
            self._frame_function.view(),
            self._frame_line.view(),
            self._name.view(),
            self._file.view(),
            self._binary.view(),
            self._kind.view(),
            self._thread_process.view(),
            self._thread_tid.view(),
            self._strings,
            self._processes,
            self._threads,
        )

    def cursor(self) -> TableCursor:
        """Return a cursor at the beginning: `since` with it returns everything."""
        return TableCursor(self.generation)

    def since(self, cursor: TableCursor) -> list[Frame]:
        """Return the definitions after `cursor`, in the order in which they can be read back, and move it to
        the end.
        """
        return [frame for frame, _ in self.definitions(cursor)]

    def definitions(
        self, cursor: TableCursor, *, processes_only: bool = False
    ) -> Iterator[tuple[Frame, int]]:
        """Yield the definitions after `cursor` as frames of bounded size, each with about its length in
        bytes.

        The cursor is moved past a frame before it is yielded, so a reader may stop anywhere and go on later
        with a new call. With `processes_only` the other tables wait. ValueError for a cursor of another
        generation.
        """
        if cursor.generation != self.generation:
            raise ValueError("the cursor is of another generation")
        gen = self.generation
        for first, end in self._changes(self._process_changes, len(self._processes), cursor.processes):
            yield ProcessDefs(gen, first, self._processes[first:end]), (end - first) * 200
        if processes_only:
            return
        for first, end in self._changes(self._thread_changes, len(self._threads), cursor.threads):
            yield ThreadDefs(gen, first, self._threads[first:end]), (end - first) * 50
        while (low := cursor.strings) < len(self._strings):
            strings = self._strings[low : low + _STRINGS_PER_FRAME]
            cursor.strings = low + len(strings)
            yield StringDefs(gen, low, strings), sum(map(len, strings)) + 3 * len(strings)
        view = self.view()
        while (low := cursor.functions) < len(view.name):
            part = slice(low, low + _DEFS_PER_FRAME)
            names = view.name[part]
            cursor.functions = low + len(names)
            yield (
                FunctionDefs(gen, low, names, view.file[part], view.binary[part], view.kind[part]),
                13 * len(names),
            )
        while (low := cursor.frames) < len(view.frame_line):
            part = slice(low, low + _DEFS_PER_FRAME)
            lines = view.frame_line[part]
            cursor.frames = low + len(lines)
            yield FrameDefs(gen, low, view.frame_function[part], lines), 8 * len(lines)
        while (low := cursor.stacks) < len(view.parent):
            part = slice(low, low + _DEFS_PER_FRAME)
            parents = view.parent[part]
            cursor.stacks = low + len(parents)
            yield StackDefs(gen, low, parents, view.frame[part]), 8 * len(parents)

    def _changes(self, changes: ChangeOrder, length: int, cursor: ChangeCursor) -> Iterator[tuple[int, int]]:
        """Yield runs [first, end) of ids to send: those that changed since they were sent, then the new
        ones.
        """
        fresh: list[tuple[int, int]] = []
        for item, version in changes.newest_first():
            if version <= cursor.version:
                break
            if item < cursor.count:
                fresh.append((item, version))
        for item, cursor.version in reversed(fresh):
            yield item, item + 1
        while (low := cursor.count) < length:
            cursor.count = min(low + _STRINGS_PER_FRAME, length)
            if cursor.count == length:
                cursor.version = self._version
            yield low, cursor.count


def _prefix_bytes(frames: bytes, _: int) -> int:
    return _PREFIX_ENTRY_BYTES + len(frames)


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
        stack_map[node] = new.child(int(stack_map[parent]), frames[frame])
    return thread_map, stack_map
