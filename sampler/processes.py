"""Who a process is: /proc/PID/{stat,comm,cmdline,status} as one ProcessDef.

stat (proc_pid_stat(5)): "PID (comm) state ppid ... starttime ...", where comm may hold any byte, also
parentheses and spaces, so fields are counted from the last ")": state is field 3, ppid 4, starttime 22 (clock
ticks since boot).
"""

from __future__ import annotations

import functools
import os
import pwd

from gpuprof.snapshots.frames import ProcessDef
from gpuprof.snapshots.names import clean

NS_PER_TICK = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_MAX_CMDLINE = 4096
_MAX_USERS = 4096


def start_time_ns(pid: int) -> int | None:
    """CLOCK_BOOTTIME start of a process, to the tick; None when there is no such process."""
    fields = _stat_fields(_read(f"/proc/{pid}/stat", 1024))
    return fields[1] if fields else None


def parent_and_start(pid: int) -> tuple[int, int] | None:
    """(parent, CLOCK_BOOTTIME start to the tick) of a process; None when there is no such process."""
    return _stat_fields(_read(f"/proc/{pid}/stat", 1024))


def cpu_ticks(pid: int) -> int | None:
    """User and system time of a process so far, in clock ticks; None when there is no such process."""
    text = _read(f"/proc/{pid}/stat", 1024)
    if not text:
        return None
    fields = text[text.rfind(b")") + 1 :].split()
    try:
        return int(fields[11]) + int(fields[12])
    except (IndexError, ValueError):
        return None


def describe(pid: int) -> ProcessDef | None:
    """The process as it is now, every string cleaned; None when it is gone. Kernel threads have an empty
    cmdline.

    The name, command line and user are read between two readings of the start time, so that a reused pid
    never gets another process's name.
    """
    before = _stat_fields(_read(f"/proc/{pid}/stat", 1024))
    if before is None:
        return None
    ppid, start_ns = before
    comm = _read(f"/proc/{pid}/comm", 64)
    cmdline = _read(f"/proc/{pid}/cmdline", _MAX_CMDLINE)
    uid, container_pid = _parse_status(_read(f"/proc/{pid}/status", 4096) or b"", pid)
    if comm is None or uid is None or start_time_ns(pid) != start_ns:
        return None
    return ProcessDef(
        pid=pid,
        start_ns=start_ns,
        name=clean(comm.removesuffix(b"\n"), 64),
        cmdline=clean(cmdline.rstrip(b"\0").replace(b"\0", b" "), _MAX_CMDLINE) if cmdline else "",
        user=user_name(uid),
        uid=uid,
        ppid=ppid,
        container_pid=container_pid,
    )


@functools.lru_cache(maxsize=_MAX_USERS)
def user_name(uid: int) -> str:
    """The account's name, or its number where this host has no such account (users of containers)."""
    try:
        return clean(pwd.getpwuid(uid).pw_name, 64)
    except (KeyError, OverflowError, OSError):
        return str(uid)


def _stat_fields(text: bytes | None) -> tuple[int, int] | None:
    """(ppid, start time in ns) of a stat line."""
    if not text:
        return None
    fields = text[text.rfind(b")") + 1 :].split()
    try:
        return int(fields[1]), int(fields[19]) * NS_PER_TICK
    except (IndexError, ValueError):
        return None


def _parse_status(text: bytes, pid: int) -> tuple[int | None, int | None]:
    """(uid, pid in its own namespace where that differs) of a status file."""
    uid = container_pid = None
    for line in text.split(b"\n"):
        key, _, value = line.partition(b":")
        fields = value.split()
        if not fields or not fields[-1].isdigit():
            continue
        if key == b"Uid":
            uid = int(fields[0])
        elif key == b"NSpid" and len(fields) > 1 and int(fields[-1]) != pid:
            container_pid = int(fields[-1])
    return uid, container_pid


def _read(path: str, limit: int) -> bytes | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.read(fd, limit)
    except OSError:
        return None
    finally:
        os.close(fd)
