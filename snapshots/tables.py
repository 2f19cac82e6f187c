"""Intern tables of one generation: strings, functions, frames, stacks, processes and threads, numbered from
0.

Stacks are a prefix tree (stack_tree.py), of which node 0 is the empty stack. String 0 is the empty string. A
generation is bounded; when it is `full` its owner begins a new one.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

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
    ThreadDefs,
)
from gpuprof.snapshots.names import MAX_FULL_NAME, clean
from gpuprof.snapshots.process_table import ProcessTable
from gpuprof.snapshots.stack_tree import StackTree
from gpuprof.snapshots.table_view import TableCursor, TablesView

MAX_NODES = 1 << 17
MAX_STRINGS = 1 << 16
MAX_PROCESSES = 1 << 14
MAX_THREADS = 1 << 15
MAX_STRING_BYTES = 8 << 20
MAX_PROCESS_BYTES = 8 << 20
_DEFS_PER_FRAME = 1 << 16
_STRINGS_PER_FRAME = 1 << 12
_FRAME_BYTES = 160  # a frame's columns, and its entry in the dictionary with the two integers of it
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
        self.stacks = StackTree(self._frame_line)  # interns, too, where frame ids are at hand
        self._people = ProcessTable()
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
        return self.stacks.packed(array("I", frames).tobytes())

    def process(self, definition: ProcessDef) -> int:
        """Return the id of a process, see ProcessTable."""
        return self._people.process(definition)

    def thread(self, process: int, tid: int, name: str) -> int:
        """Return the id of a thread of process id `process`, see ProcessTable."""
        return self._people.thread(process, tid, name)

    # ------------------------------------------------------------------------------------------------ reading

    @property
    def node_count(self) -> int:
        """Number of stacks, with the empty one."""
        return len(self.stacks)

    @property
    def string_count(self) -> int:
        return len(self._strings)

    @property
    def thread_count(self) -> int:
        return len(self._people.threads)

    @property
    def full(self) -> bool:
        """Tell whether the owner should begin a new generation."""
        return (
            len(self.stacks) >= MAX_NODES
            or len(self._strings) >= MAX_STRINGS
            or self._string_bytes >= MAX_STRING_BYTES
            or len(self._people.processes) >= MAX_PROCESSES
            or self._people.text_bytes >= MAX_PROCESS_BYTES
            or len(self._people.threads) >= MAX_THREADS
        )

    @property
    def nbytes(self) -> int:
        """Return about how much memory these tables take."""
        return (
            self.stacks.nbytes
            + self._people.nbytes
            + len(self._frame_line) * (8 if self._frozen else _FRAME_BYTES)
            + len(self._name) * (13 if self._frozen else 250)
            + len(self._strings) * (60 if self._frozen else _STRING_BYTES)
            + self._string_bytes
        )

    def freeze(self) -> None:
        """Give back what only interning needs; these tables are only read from now on."""
        self._frozen = True
        self.stacks.freeze()
        self._people.freeze()
        self._frames = {}
        self._functions = {}
        self._kernels = {}
        self._string_ids = {}
        for column in (self._frame_function, self._frame_line):
            column.trim()

    def view(self) -> TablesView:
        """Return the tables as they are now, to be read without the lock."""
        return TablesView(
            self.generation,
            self.stacks.parent.view(),
            self.stacks.frame.view(),
            self.stacks.depth.view(),
            self._frame_function.view(),
            self._frame_line.view(),
            self._name.view(),
            self._file.view(),
            self._binary.view(),
            self._kind.view(),
            self._people.thread_process.view(),
            self._people.thread_tid.view(),
            self._strings,
            self._people.processes,
            self._people.threads,
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
        gen, people = self.generation, self._people
        for first, end in people.fresh_processes(cursor.processes):
            yield ProcessDefs(gen, first, people.processes[first:end]), (end - first) * 200
        if processes_only:
            return
        for first, end in people.fresh_threads(cursor.threads):
            yield ThreadDefs(gen, first, people.threads[first:end]), (end - first) * 50
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
