"""Finds the rings of injection libraries among the open files of processes.

A ring is a memfd; a process that has one has a link /proc/PID/fd/N to "/memfd:gpuprof-ring (deleted)". It is
taken by pidfd_getfd(2), which cannot hit another process that got the pid meanwhile, and then opened anew:
an open-file-description lock is held against other descriptions only, and a duplicate is none. Processes on
a GPU are looked at every time, all others in turn, a few at a time.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass

from gpuprof.sampler import pidfd as pidfds
from gpuprof.sampler.gpu_ring import NAME, check_file
from gpuprof.sampler.processes import describe
from gpuprof.snapshots.errors import GpuprofError
from gpuprof.snapshots.frames import ProcessDef

MAX_FDS = 4096  # of a process that are looked at: the library opens its ring early
MAX_RINGS = 4  # of one process: beside its own it may have inherited one
MAX_CANDIDATES = 512
OTHERS_AT_ONCE = 24  # processes that nobody points to, looked at in one round
FEW_OTHERS = 6  # the same, where the stack reader tells which processes map the library


@dataclass(slots=True, eq=False)
class FoundRing:
    """A ring, and the process it was found in. Whoever gets it closes both descriptors."""

    process: ProcessDef
    pidfd: int
    fd: int  # of an open file description of our own, for reading and writing
    number: int  # the process's own descriptor of it
    identity: tuple[int, int]  # device and inode

    def close(self) -> None:
        """Close both descriptors."""
        os.close(self.pidfd)
        os.close(self.fd)

    def still_open(self) -> bool:
        """Whether the process still has it: an exec closes it."""
        try:
            info = os.stat(f"/proc/{self.process.pid}/fd/{self.number}")
        except OSError:
            return False
        return (info.st_dev, info.st_ino) == self.identity


class Discovery:
    """Looks for rings; remembers how far it got with the processes that nobody points to."""

    def __init__(self) -> None:
        self.refused: dict[int, str] = {}  # pid: why its ring was not taken
        self._others: list[int] = []

    def find(
        self, candidates: Collection[int], known: Collection[tuple[int, int]], *, others: int = OTHERS_AT_ONCE
    ) -> list[FoundRing]:
        """Rings that are not `known` (by identity), of the candidates and of the next `others` processes."""
        pids = [*sorted(candidates)[:MAX_CANDIDATES]]
        if others:
            pids += [pid for pid in self._next_others(others) if pid not in candidates]
        found: list[FoundRing] = []
        for pid in pids:
            self.refused.pop(pid, None)
            for number in ring_numbers(pid) if pid != os.getpid() else []:
                ring = self._take(pid, number, {*known, *(ring.identity for ring in found)})
                if ring is not None:
                    found.append(ring)
        for pid in [pid for pid in self.refused if not os.path.exists(f"/proc/{pid}")]:
            del self.refused[pid]
        return found

    def _next_others(self, count: int) -> list[int]:
        if not self._others:
            with suppress(OSError):
                self._others = [int(name) for name in os.listdir("/proc") if name.isdigit()]
        part, self._others = self._others[:count], self._others[count:]
        return part

    def _take(self, pid: int, number: int, known: Collection[tuple[int, int]]) -> FoundRing | None:
        try:
            return take(pid, number, known)
        except GpuprofError as error:
            self.refused[pid] = error.message
        except OSError as error:
            self.refused[pid] = f"its ring cannot be taken: {error.strerror}"
        return None


def knock_address() -> str:
    """Where libraries say that they have made a ring: an abstract socket that is called as the ring is."""
    return NAME.replace("/memfd:", "\0")


def ring_numbers(pid: int) -> list[int]:
    """The descriptors of a process whose links name a ring; none without permission."""
    found: list[int] = []
    with suppress(OSError), os.scandir(f"/proc/{pid}/fd") as entries:
        for entry in itertools.islice(entries, MAX_FDS):
            with suppress(OSError):
                if os.readlink(entry.path).startswith(NAME):
                    found.append(int(entry.name))
            if len(found) == MAX_RINGS:
                break
    return found


def take(pid: int, number: int, known: Collection[tuple[int, int]]) -> FoundRing | None:
    """Descriptor `number` of a process as a ring; None when it is `known`, or the process is gone.

    GpuprofError when it is not sound (see gpu_ring.check_file), OSError when it cannot be had.
    """
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    fd = copy = -1
    try:
        process = describe(
            pid
        )  # the pidfd is open: if this describes another process, getfd fails or is_gone
        copy = pidfds.get_fd(pidfd, number)
        info = os.fstat(copy)
        identity = (info.st_dev, info.st_ino)
        if process is None or pidfds.is_gone(pidfd) or identity in known:
            return None
        if not os.readlink(f"/proc/self/fd/{copy}").startswith(NAME):
            return None
        check_file(copy)
        fd = os.open(f"/proc/self/fd/{copy}", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
        found = FoundRing(process, pidfd, fd, number, identity)
        pidfd = fd = -1
        return found
    finally:
        for descriptor in (pidfd, fd, copy):
            if descriptor >= 0:
                os.close(descriptor)
