"""Executes a thread one instruction at a time (ptrace(2), x86-64) and tells what each call of a function
consists of: a count that no drift of the machine changes.
"""

from __future__ import annotations

import bisect
import ctypes
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

_PEEKTEXT, _PEEKUSER, _POKEUSER, _CONT, _SINGLESTEP, _DETACH, _SEIZE, _INTERRUPT = (
    1, 3, 6, 7, 9, 17, 0x4206, 0x4207,
)  # fmt: skip
_RIP, _RSP, _BREAKPOINT, _BREAKPOINTS = (
    16 * 8,
    19 * 8,
    848,
    848 + 7 * 8,
)  # in struct user; the last: which are on
_EVENT_STOP = 128
MOST_STEPS = 1_000_000  # half a minute, on a quiet machine; the launch of a graph takes tens of thousands
FEWEST_CALLS = 3

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.restype = ctypes.c_long
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]


def _ptrace(request: int, tid: int, address: int = 0, data: int = 0) -> int:
    ctypes.set_errno(0)
    result = int(_libc.ptrace(request, tid, address, data))
    if result == -1 and ctypes.get_errno():
        raise OSError(ctypes.get_errno(), f"ptrace {request:#x}: {os.strerror(ctypes.get_errno())}")
    return result


class Stepper:
    """A thread that is stopped. Every call must come from the Python thread that made it."""

    def __init__(self, tid: int) -> None:
        self._tid = tid
        self._vdso = _vdso_of(tid)
        _ptrace(_SEIZE, tid)
        _ptrace(_INTERRUPT, tid)
        self._pass_on = self._wait()
        while self._user(_RIP) in self._vdso:  # amid such a function its caller is not where the stack points
            _ptrace(_CONT, tid, 0, self._pass_on)
            _ptrace(_INTERRUPT, tid)
            self._pass_on = self._wait()

    def _wait(self) -> int:
        """Wait for a stop; the signal that the thread is to get with its next step, or 0."""
        _, status = os.waitpid(self._tid, 0x40000000)  # __WALL
        if not os.WIFSTOPPED(status):
            raise ProcessLookupError(f"thread {self._tid} has ended")
        signum = os.WSTOPSIG(status)
        return 0 if signum == signal.SIGTRAP or status >> 16 == _EVENT_STOP else signum

    def step(self) -> int:
        """Execute one instruction; the address of the next. A function of the vDSO is one: it reads the
        clock's page again until that has not changed meanwhile, which one instruction at a time may never
        be so.
        """
        at = self._go_on(_SINGLESTEP)
        if at in self._vdso:
            caller = _ptrace(_PEEKTEXT, self._tid, self._user(_RSP))
            _ptrace(_POKEUSER, self._tid, _BREAKPOINT, caller)
            _ptrace(_POKEUSER, self._tid, _BREAKPOINTS, 1)
            while at != caller:
                at = self._go_on(_CONT)
            _ptrace(_POKEUSER, self._tid, _BREAKPOINTS, 0)
        return at

    def _go_on(self, request: int) -> int:
        _ptrace(request, self._tid, 0, self._pass_on)
        self._pass_on = self._wait()
        return self._user(_RIP)

    def _user(self, offset: int) -> int:
        return _ptrace(_PEEKUSER, self._tid, offset) & 0xFFFF_FFFF_FFFF_FFFF

    def calls(self, entry: int, count: int) -> list[list[int]]:
        """Of `count` successive calls of the function at `entry`: the addresses of the instructions from
        its first to the next call's. Fewer, of at least FEWEST_CALLS, where they take MOST_STEPS;
        TimeoutError when it is called too seldom.
        """
        found: list[list[int]] = []
        inside = False
        for _ in range(MOST_STEPS):
            at = self.step()
            if at == entry:
                if len(found) == count:
                    return found
                found.append([])
                inside = True
            if inside:
                found[-1].append(at)
        if len(found) > min(count, FEWEST_CALLS):
            return found[:-1]  # the last is not over
        raise TimeoutError(f"{len(found)} calls in {MOST_STEPS} instructions")

    def detach(self) -> None:
        """Let it run."""
        _ptrace(_DETACH, self._tid, 0, self._pass_on)


def _vdso_of(tid: int) -> range:
    for line in Path(f"/proc/{tid}/maps").read_text().splitlines():
        if line.endswith("[vdso]"):
            return range(*(int(word, 16) for word in line.split()[0].split("-")))
    return range(0)


@contextmanager
def stepping(tid: int) -> Iterator[Stepper]:
    """The thread, stopped for as long as the block lasts."""
    stepper = Stepper(tid)
    try:
        yield stepper
    finally:
        with suppress(OSError):
            stepper.detach()


def placed(pid: int, addresses: Sequence[int]) -> list[tuple[str, int]]:
    """Where each address lies: the mapped file's name without its folder, and the offset in it; ("?",
    address) where none is mapped.
    """
    starts: list[int] = []
    ranges: list[tuple[int, int, str]] = []
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        fields = line.split(maxsplit=5)
        begin, end = (int(word, 16) for word in fields[0].split("-"))
        starts.append(begin)
        name = fields[5].rsplit("/", 1)[-1] if len(fields) > 5 else "?"
        ranges.append((end, begin - int(fields[2], 16), name))
    found = []
    for address in addresses:
        at = bisect.bisect_right(starts, address) - 1
        end, base, name = ranges[at] if at >= 0 else (0, 0, "?")
        found.append((name, address - base) if address < end else ("?", address))
    return found


def patched(pid: int) -> list[tuple[str, int]]:
    """Where the code of a process is not as it is in its files, by runs: name of the file, and offset in
    it. A uprobe is such a place.
    """
    found = []
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            fields = line.split(maxsplit=5)
            if "x" not in fields[1] or len(fields) < 6 or not fields[5].startswith("/"):
                continue
            begin, end = (int(word, 16) for word in fields[0].split("-"))
            with suppress(OSError), open(f"/proc/{pid}/map_files/{fields[0]}", "rb") as file:
                file.seek(int(fields[2], 16))
                content = np.frombuffer(file.read(end - begin), np.uint8)
                now = np.frombuffer(os.pread(memory.fileno(), len(content), begin), np.uint8)
                at = np.flatnonzero(now != content[: len(now)])
                runs = at[np.diff(at, prepend=-9) > 8]
                found += [(fields[5].rsplit("/", 1)[-1], int(fields[2], 16) + int(one)) for one in runs]
    return found
