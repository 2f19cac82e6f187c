"""Keeps what the kernel knows of processes: their executable mappings, the unwind rows behind them, their
Python.

The arrays are those of layout.bpf.h. A process has a *run*: a head entry with the run's serial number, then
its mappings by address. A walk trusts a run only while the head has the serial that the process's entry
names, so a run is withdrawn by clearing its head, and its space is used again some time after that. A forked
child uses its parent's run.
"""

from __future__ import annotations

import contextlib
import struct
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from collections.abc import Mapping as MappingOf
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuprof.bpf import syscalls
from gpuprof.bpf.programs import StackPrograms
from gpuprof.sampler.elf import load_bias
from gpuprof.sampler.map_window import MapWindow
from gpuprof.sampler.maps import Mapping
from gpuprof.sampler.python_runtime import PythonLayout
from gpuprof.sampler.table_space import TableSpace
from gpuprof.sampler.unwind_binaries import Binary, UnwindBinaries

MAX_MAPPINGS = 4095  # of a process: what the kernel's search reaches
RETIRE_NS = 1_000_000_000  # a run's head is cleared this long after its last process left it
QUARANTINE_NS = 100_000_000  # and its space is reused this long after that
KIND_TABLE, KIND_FRAME_POINTER, KIND_NO_TABLE = 0, 1, 2

MAPPING = np.dtype(
    [("start", "<u8"), ("end", "<u8"), ("bias", "<u8"), ("first_page", "<u4"), ("pages", "<u4"),
     ("page_base", "<u4"), ("kind", "<u4")]
)  # fmt: skip
_PROCESS = struct.Struct(
    "<IIIIQQ"
)  # struct process_tables: first, count, python, serial, bias, executable pages
_LAYOUT = struct.Struct("<QII15H2x")  # struct python_layout
_THREAD = struct.Struct("<QI4x")  # struct thread_key
_STATES = struct.Struct("<4Q")  # struct known_states
_LAYOUT_TYPE = np.dtype((np.void, _LAYOUT.size))
_PID = struct.Struct("<I")
_MASK_64 = (1 << 64) - 1


@dataclass(slots=True, eq=False)
class Run:
    """The mappings of one process and of those forked from it. `python`: packed layout, empty when there is
    none.
    """

    serial: int
    first: int
    entries: NDArray[np.void]
    binaries: list[Binary | None]
    python: bytes
    python_index: int
    python_bias: int
    executable_pages: int
    pids: set[int]


class UnwindTables:
    """One owner of all tables. Not thread-safe: one thread publishes and forgets."""

    def __init__(self, programs: StackPrograms, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        sizes, maps = programs.sizes, programs.maps
        self._clock_ns = clock_ns
        self._processes_fd, self._threads_fd = maps["processes"], maps["thread_states"]
        self._mappings = MapWindow(maps["unwind_mappings"], sizes.mappings, MAPPING)
        self._layouts = MapWindow(maps["python_layouts"], sizes.python_layouts, _LAYOUT_TYPE)
        self._mapping_space = TableSpace(sizes.mappings, 1)
        self._layout_space = TableSpace(sizes.python_layouts, 1)
        self._layout_indices: dict[bytes, int] = {}  # one for each build of CPython, kept for ever
        self._binaries = UnwindBinaries(programs)
        self._runs: dict[int, Run] = {}  # by index of the head
        self._by_pid: dict[int, Run] = {}
        self._leaving: deque[tuple[int, Run]] = deque()  # (since when nobody uses it, run)
        self._withdrawn: deque[tuple[int, Run]] = deque()  # (since when its head is cleared, run)
        self._serial = 0
        self._problem: str | None = None

    def publish(self, pid: int, mappings: Sequence[Mapping], python: PythonLayout | None) -> None:
        """Make a process's stacks walkable. Again: replaces what changed, and is nearly free when nothing
        did.

        A binary that is new is read and parsed here (some ms, libtorch_cpu 0.15 s). Never raises for what is
        in the files.
        """
        executable = [mapping for mapping in mappings if mapping.executable][:MAX_MAPPINGS]
        binaries = self._acquire(pid, executable)
        if self._binaries.fragmented:
            self._compact()
            self._release(binaries)
            binaries = self._acquire(pid, executable)
        entries = _entries(executable, binaries)
        layout = _pack_layout(python) if python is not None else b""
        old = self._by_pid.get(pid)
        pages, bias = executable_pages(mappings), python.bias if python is not None else 0
        same = old is not None and (old.python, old.python_bias, old.executable_pages) == (
            layout,
            bias,
            pages,
        )
        if old is not None and same and np.array_equal(old.entries, entries):
            self._release(binaries)
            if not self._is_published(pid, old):
                self._point(pid, old)
            return
        run = self._new_run(entries, binaries, layout, bias, pages)
        if python is not None and run is not None and run.python_index:
            self._binaries.set_python(python.key, run.python_index)
        if run is None:
            self._release(binaries)
            return
        self._point(pid, run)
        self._leave(pid)
        run.pids.add(pid)
        self._by_pid[pid] = run

    def fork(self, child: int) -> bool:
        """Note that a forked process uses its parent's run; False when it does not (any more)."""
        value = syscalls.map_lookup(self._processes_fd, _PID.pack(child), _PROCESS.size)
        if value is None:
            return False
        first, _, _, serial, _, _ = _PROCESS.unpack(value)
        run = self._runs.get(first)
        if run is None or run.serial != serial:
            return False
        if self._by_pid.get(child) is not run:
            self._leave(child)
            run.pids.add(child)
            self._by_pid[child] = run
        return True

    def forget(self, pid: int) -> None:
        """The process is gone, or became another program."""
        syscalls.map_delete(self._processes_fd, _PID.pack(pid))
        self._leave(pid)

    def put_thread_states(self, pid: int, states: MappingOf[int, Sequence[int]]) -> None:
        """Where the Python thread states of threads are, by thread pointer; at most four of each."""
        keys = b"".join(_THREAD.pack(thread, pid) for thread in states)
        values = b"".join(_STATES.pack(*known, *(0,) * (4 - len(known))) for known in states.values())
        with contextlib.suppress(OSError):  # the stacks then say that these were not found
            syscalls.map_update_many(self._threads_fd, keys, values, len(states))

    def knows(self, pid: int) -> bool:
        """Has the process been published, or forked from one that was?"""
        return pid in self._by_pid

    def pids(self) -> list[int]:
        """All processes that have tables."""
        return list(self._by_pid)

    def housekeeping(self) -> None:
        """Withdraw runs that were left a while ago and take back their space; call it often, it is cheap."""
        now = self._clock_ns()
        while self._leaving and now - self._leaving[0][0] >= RETIRE_NS:
            _, run = self._leaving.popleft()
            if run.pids or run.first not in self._runs:  # a fork was noted since, or it is in the queue twice
                continue
            self._mappings.write(run.first, np.zeros(1, MAPPING))
            del self._runs[run.first]
            self._withdrawn.append((now, run))
        while self._withdrawn and now - self._withdrawn[0][0] >= QUARANTINE_NS:
            _, run = self._withdrawn.popleft()
            self._mapping_space.give_back(run.first, len(run.entries) + 1)
            self._release(run.binaries)

    def problem(self) -> str | None:
        """What a person should know: that a table is full."""
        if self._binaries.full:
            return "the unwind table is full: some binaries are unwound by frame pointers and guesses"
        return self._problem

    def binary_problems(self) -> dict[Hashable, str]:
        """Binaries without unwind rows, and why."""
        return self._binaries.problems()

    def build_ns(self) -> int:
        """Time spent in reading and parsing binaries so far."""
        return self._binaries.build_ns

    def usage(self) -> dict[str, tuple[int, int]]:
        """(used, total) elements of each table; a row block holds 16 rows of 4 bytes."""
        spaces = {
            "row_blocks": self._binaries.block_space,
            "pages": self._binaries.page_space,
            "mappings": self._mapping_space,
            "python_layouts": self._layout_space,
        }
        used = {name: (space.size - space.free, space.size) for name, space in spaces.items()}
        return {**used, "rules": (len(self._binaries.rules), self._binaries.rules.size)}

    def _is_published(self, pid: int, run: Run) -> bool:
        value = syscalls.map_lookup(self._processes_fd, _PID.pack(pid), _PROCESS.size)
        if value is None:
            return False
        *_, serial, _, pages = _PROCESS.unpack(value)
        return (serial, pages) == (run.serial, run.executable_pages)

    def _point(self, pid: int, run: Run) -> None:
        value = _PROCESS.pack(
            run.first,
            len(run.entries),
            run.python_index,
            run.serial,
            run.python_bias & _MASK_64,
            run.executable_pages,
        )
        try:
            syscalls.map_update(self._processes_fd, _PID.pack(pid), value)
        except OSError:
            self._problem = "more processes than the unwind tables hold: some stacks are not unwound"

    def _leave(self, pid: int) -> None:
        run = self._by_pid.pop(pid, None)
        if run is not None:
            run.pids.discard(pid)
            if not run.pids:
                self._leaving.append((self._clock_ns(), run))

    def _new_run(
        self, entries: NDArray[np.void], binaries: list[Binary | None], layout: bytes, bias: int, pages: int
    ) -> Run | None:
        first = self._mapping_space.take(len(entries) + 1)
        if first is None:
            self._problem = "the table of mappings is full: new processes are not unwound"
            return None
        index = self._layout_index(layout) if layout else 0
        self._serial = (self._serial + 1) & 0xFFFFFFFF or 1
        run = Run(self._serial, first, entries, binaries, layout, index, bias, pages, set())
        self._mappings.write(first, np.concatenate((_head(run.serial), entries)))
        self._runs[first] = run
        return run

    def _layout_index(self, layout: bytes) -> int:
        index = self._layout_indices.get(layout)
        if index is None:
            index = self._layout_space.take(1) or 0
            if not index:
                self._problem = "the table of Python builds is full: some processes have no Python frames"
                return 0
            self._layouts.write(index, np.frombuffer(layout, _LAYOUT_TYPE))
            self._layout_indices[layout] = index
        return index

    def _acquire(self, pid: int, mappings: Sequence[Mapping]) -> list[Binary | None]:
        return [self._binaries.acquire(pid, mapping) for mapping in mappings]

    def _release(self, binaries: list[Binary | None]) -> None:
        for binary in binaries:
            if binary is not None:
                self._binaries.release(binary)

    def _compact(self) -> None:
        """Move all rows together. Every run is withdrawn for the few ms that it takes; samples then have no
        user stack.
        """
        for run in self._runs.values():
            self._mappings.write(run.first, _head(0))
        time.sleep(0.001)  # a walk that has begun ends within this
        self._binaries.compact()
        for run in self._runs.values():
            run.entries["page_base"] = [0 if b is None else b.page_base for b in run.binaries]
            self._mappings.write(run.first + 1, run.entries) if len(run.entries) else None
            self._mappings.write(run.first, _head(run.serial))


def _head(serial: int) -> NDArray[np.void]:
    head = np.zeros(1, MAPPING)
    head["start"] = serial
    return head


def _entries(mappings: Sequence[Mapping], binaries: Sequence[Binary | None]) -> NDArray[np.void]:
    """Elements of the mapping table for a process, in the order of the mappings (by address)."""
    rows = []
    for mapping, binary in zip(mappings, binaries, strict=True):
        if binary is None:
            rows.append((mapping.start, mapping.end, 0, 0, 0, 0, KIND_FRAME_POINTER))
            continue
        bias = load_bias(binary.loads, mapping.start, mapping.offset) if binary.blocks else None
        if bias is None:
            rows.append((mapping.start, mapping.end, 0, 0, 0, 0, KIND_NO_TABLE))
        else:
            rows.append(
                (
                    mapping.start,
                    mapping.end,
                    bias & _MASK_64,
                    binary.first_page,
                    binary.pages,
                    binary.page_base,
                    KIND_TABLE,
                )
            )
    return np.array(rows, MAPPING)


def executable_pages(mappings: Sequence[Mapping]) -> int:
    """What the kernel counts as mm->exec_vm: pages of mappings that can be executed and not written."""
    return sum(m.end - m.start for m in mappings if m.executable and not m.writable) >> 12


def _pack_layout(layout: PythonLayout) -> bytes:
    """struct python_layout of layout.bpf.h."""
    return _LAYOUT.pack(
        layout.interpreters - layout.bias, layout.interp_next, layout.threads_head,
        layout.version[0] * 100 + layout.version[1], layout.cframe, layout.ts_frame, layout.ts_tid,
        layout.ts_next, layout.cf_cur, layout.f_code, layout.f_prev, layout.f_instr, layout.f_owner,
        layout.co_bytecode, layout.co_firstlineno, layout.co_qualname, layout.co_filename,
        layout.co_linetable,
    )  # fmt: skip
