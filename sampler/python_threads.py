"""Finds the Python thread states of threads that the kernel side's search does not reach.

That search is bounded: of a process with many threads it sees the newest ones. It then asks, and all of the
lists are read here, from /proc/PID/mem, which neither stops nor changes the process; what is found goes into
the kernel's table of known states, where each is checked at every use, so that one that is out of date does
no harm.

A list may change while it is read, and a process may make up what it likes: every state must lead back to
where it was reached from, and number, time and table entries are bounded.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gpuprof.sampler.processes import start_time_ns
from gpuprof.sampler.python_runtime import PythonLayout

STATES_OF_THREAD = 4  # as in maps.bpf.h
MAX_STATES = 1 << 16  # of a process
MAX_INTERPRETERS = 1 << 12
MAX_READ_NS = 250_000_000
MIN_PAUSE_NS = 200_000_000  # between two readings of a process
PAUSE_PER_NS = 20  # of reading: at most a twentieth of the time goes into it
AGAIN_NS = 10 * 10**9  # what is known and has not changed may have left the table
MAX_PROCESSES = 4096
MANY_THREADS = 32  # the kernel side's search looks at 64 states and interpreters
SPARE_STATES = 1024  # states of threads that ended without giving them back
_MAX_STATE_BYTES = 4096
_USER_END = 1 << 47
_LINKS = struct.Struct("<QQQ")  # prev, next and interp follow each other in all versions
_POINTER = struct.Struct("<Q")

Read = Callable[[int, int], bytes]
Head = tuple[int, int, int, int]  # interpreter, its newest state, the one behind that, its thread


@dataclass(slots=True)
class ThreadStates:
    """Addresses of thread states by thread (pthread_self()), those of the newest interpreter first; threads
    newest first. `complete`: nothing was left out. `heads`: where the lists began.
    """

    by_thread: dict[int, list[int]] = field(default_factory=dict)
    complete: bool = True
    heads: list[Head] = field(default_factory=list)


class StateLists:
    """The lists of thread states in one process's memory. `read(address, size)` gives b"" or less where it
    cannot; nothing is raised for what is there.
    """

    def __init__(self, read: Read, layout: PythonLayout) -> None:
        self._read = read
        self._layout = layout
        links = layout.ts_next - _LINKS.size // 3
        self._low = min(links, layout.ts_tid)
        self._links, self._thread = links - self._low, layout.ts_tid - self._low
        self._size = max(self._links + _LINKS.size, self._thread + _POINTER.size)

    def heads(self) -> list[Head] | None:
        """The newest state of each interpreter: while these are the same, no state was added. None where they
        cannot be read.
        """
        found: list[Head] = []
        seen: set[int] = set()
        interpreter = self._pointer(self._layout.interpreters)
        while interpreter:
            head = self._pointer(interpreter + self._layout.threads_head)
            following = self._pointer(interpreter + self._layout.interp_next)
            state = self._state(head) if head else (0, 0, 0, 0)
            if head is None or following is None or state is None:
                return None
            if interpreter in seen or len(seen) >= MAX_INTERPRETERS:
                return None
            seen.add(interpreter)
            found.append((interpreter, head, state[1], state[3]))
            interpreter = following
        return found if interpreter is not None else None

    def all(self, clock_ns: Callable[[], int] = time.monotonic_ns) -> ThreadStates:
        """All states, as far as they can be read in MAX_READ_NS."""
        found = ThreadStates()
        deadline_ns = clock_ns() + MAX_READ_NS
        heads = self.heads()
        if heads is None:
            found.complete = False
            return found
        found.heads = heads
        seen: set[int] = set()
        for interpreter, head, _, _ in heads:
            own: dict[int, int] = {}
            before, state = 0, head
            while state:
                read = self._state(state)
                over = len(seen) >= MAX_STATES or state in seen or clock_ns() >= deadline_ns
                if over or read is None or (read[0], read[2]) != (before, interpreter):
                    found.complete = False
                    break
                seen.add(state)
                thread = read[3]
                if thread:
                    # The oldest is kept: up to 3.11 a thread that is to begin bears its maker's number.
                    own[thread] = state
                else:
                    found.complete = False  # its thread has not begun
                before, state = state, read[1]
            for number, address in own.items():
                found.by_thread.setdefault(number, []).append(address)
        return found

    def _state(self, address: int) -> tuple[int, int, int, int] | None:
        """(previous state, next state, interpreter, thread) of a state; None when it cannot be one."""
        if self._low < 0 or self._size > _MAX_STATE_BYTES or not _is_address(address + self._low):
            return None
        raw = self._read(address + self._low, self._size)
        if len(raw) < self._size:
            return None
        before, following, interpreter = _LINKS.unpack_from(raw, self._links)
        return before, following, interpreter, _POINTER.unpack_from(raw, self._thread)[0]

    def _pointer(self, address: int) -> int | None:
        raw = self._read(address, _POINTER.size) if _is_address(address) else b""
        return int(_POINTER.unpack(raw)[0]) if len(raw) == _POINTER.size else None


@dataclass(slots=True)
class _Known:
    """What was found in a process, and when it may be read again."""

    start_ns: int
    next_ns: int
    heads: list[Head] | None = None  # None: not all was found
    again_ns: int = 0


class ThreadStateFinder:
    """What the kernel side is to be told. Not thread-safe."""

    def __init__(self, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._clock_ns = clock_ns
        self._known: dict[int, _Known] = {}

    def find(self, pid: int, start_ns: int, layout: PythonLayout) -> dict[int, list[int]]:
        """The thread states of a process by thread, as ThreadStates; none where they were read just now,
        there is nothing new, or they cannot be read.
        """
        began_ns = self._clock_ns()
        known = self._known.get(pid)
        if known is None or known.start_ns != start_ns:
            known = _Known(start_ns, 0)
        if began_ns < known.next_ns:
            return {}
        if len(self._known) >= MAX_PROCESSES:
            self._known.clear()
        self._known[pid] = known
        try:
            memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            known.next_ns = began_ns + MIN_PAUSE_NS
            return {}
        try:
            return self._find(pid, memory, layout, known)
        finally:
            os.close(memory)
            now_ns = self._clock_ns()
            known.next_ns = now_ns + max(MIN_PAUSE_NS, PAUSE_PER_NS * (now_ns - began_ns))

    def _find(self, pid: int, memory: int, layout: PythonLayout, known: _Known) -> dict[int, list[int]]:
        if start_time_ns(pid) != known.start_ns:  # asked with its memory open: it is this one's from now on
            return {}
        lists = StateLists(lambda address, size: _pread(memory, address, size), layout)
        now_ns = self._clock_ns()
        if known.heads is not None and now_ns < known.again_ns and lists.heads() == known.heads:
            return {}
        found = lists.all(self._clock_ns)
        known.heads = found.heads if found.complete else None
        known.again_ns = now_ns + AGAIN_NS
        return _some(found.by_thread, 2 * _threads_of(pid) + SPARE_STATES)

    def forget(self, pid: int) -> None:
        """The process is gone."""
        self._known.pop(pid, None)


def has_many_threads(pid: int) -> bool:
    """Whether a process may have more Python threads than the kernel side's search looks at."""
    return _threads_of(pid) >= MANY_THREADS


def _some(by_thread: Mapping[int, list[int]], limit: int) -> dict[int, list[int]]:
    """So many at most, so that a process cannot drive all others out of the kernel's table."""
    threads = list(by_thread)[:limit]
    return {thread: by_thread[thread][:STATES_OF_THREAD] for thread in threads}


def _threads_of(pid: int) -> int:
    """How many threads a process has."""
    try:
        return max(os.stat(f"/proc/{pid}/task").st_nlink - 2, 1)
    except OSError:
        return 1


def _pread(memory: int, address: int, size: int) -> bytes:
    try:
        return os.pread(memory, size, address)
    except OSError:
        return b""


def _is_address(address: int) -> bool:
    return 4096 <= address < _USER_END
