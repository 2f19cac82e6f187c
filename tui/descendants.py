"""Ends a command together with the processes that descend from it, as they are when it is asked to end.

They are looked up in /proc before the first signal, since a process whose parent has ended is no longer
known to descend from anything. One that made itself a session of its own (setsid(2)) has left on purpose,
and is let be; so is one of another user. A pid is a process only together with its start time, so that a
process that came to have the same number is never signalled.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Process:
    """A process as /proc/PID/stat has it; `start`: clock ticks since boot."""

    pid: int
    parent: int
    session: int
    start: int
    has_ended: bool = False


def process(pid: int) -> Process | None:
    """The process that has this pid now, None when none has."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            data = file.read(4096)
        words = data[data.rindex(b")") + 1 :].split()  # a name may hold anything, even ")"
        # One whose first thread has ended is shown as a zombie, too, while others run.
        has_ended = words[0] in (b"Z", b"X") and int(words[17]) <= 1
        return Process(pid, int(words[1]), int(words[3]), int(words[19]), has_ended)
    except (OSError, ValueError, IndexError):
        return None


def living(members: Iterable[Process]) -> list[Process]:
    """Those of `members` that have not ended: a zombie has."""
    found = [(member, process(member.pid)) for member in members]
    return [
        member for member, now in found if now is not None and now.start == member.start and not now.has_ended
    ]


def descendants(pid: int) -> list[Process]:
    """The living descendants of `pid` in its session and of this process's user, parents first; never `pid`
    itself.
    """
    root = process(pid)
    if root is None:
        return []
    children: dict[int, list[Process]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (entry := process(int(name))) is not None:
            children.setdefault(entry.parent, []).append(entry)
    found: list[Process] = []
    parents = [pid]
    while parents:
        generation = [child for parent in parents for child in children.pop(parent, [])]
        found += generation
        parents = [child.pid for child in generation]
    mine = [member for member in found if member.session == root.session and member.start >= root.start]
    return [member for member in mine if not member.has_ended and _real_uid(member.pid) == os.getuid()]


def send(member: Process, signum: signal.Signals) -> None:
    """Send a signal to exactly this process; nothing when it has ended."""
    fd = None
    try:
        fd = os.pidfd_open(member.pid)
    except ProcessLookupError:
        return
    except OSError:  # before Linux 5.3, or forbidden in a container
        pass
    try:
        if not living([member]):  # read after the descriptor was opened, which then is of that process
            return
        with suppress(OSError):
            if fd is None:
                os.kill(member.pid, signum)
            else:
                signal.pidfd_send_signal(fd, signum)
    finally:
        if fd is not None:
            os.close(fd)


class Family:
    """A command, a child of this process, and its descendants at one instant."""

    def __init__(self, pid: int) -> None:
        """Look the descendants up. `pid` is not reaped yet, so that it still means the command."""
        self._command = process(pid)
        self._members = descendants(pid)

    def ask_to_end(self) -> None:
        """Send SIGTERM to all, the command first, so that a shell does not go on to its next line."""
        for member in self._all():
            send(member, signal.SIGTERM)
            send(member, signal.SIGCONT)  # one that is stopped would not see it

    def living(self) -> list[Process]:
        """Those that have not ended yet."""
        return living(self._all())

    def kill(self, seconds: float) -> None:
        """Send SIGKILL to those that live, and to what they have started since; wait for their end, for
        `seconds` at most.
        """
        left = self.living()
        self._members += [child for member in left for child in descendants(member.pid)]
        for member in self.living():
            send(member, signal.SIGKILL)
        deadline = time.monotonic() + seconds
        while self.living() and time.monotonic() < deadline:
            time.sleep(0.01)

    def _all(self) -> list[Process]:
        return [*([self._command] if self._command is not None else []), *self._members]


def _real_uid(pid: int) -> int | None:
    """The user of a process, None when it has ended. The owner of /proc/PID is root for some (proc(5))."""
    with suppress(OSError, ValueError, StopIteration, IndexError), open(f"/proc/{pid}/status", "rb") as file:
        return int(next(line for line in file if line.startswith(b"Uid:")).split()[1])
    return None
