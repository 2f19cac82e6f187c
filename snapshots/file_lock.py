"""The lock that says that a snapshot file is still being written.

It is an open-file-description lock (fcntl(2), F_OFD_SETLK): it belongs to the open file and not to a process,
so that the kernel releases it when the last descriptor of the writer goes, even on SIGKILL, and asking for it
takes nothing.
"""

from __future__ import annotations

import fcntl
import os
import struct

_F_OFD_GETLK, _F_OFD_SETLK = 36, 37  # fcntl has them from Python 3.9 on, but not in every build
_FLOCK = struct.Struct("@hhqqi4x")  # struct flock: type, whence, start, length (0: all), pid (0)


def mark_written(fd: int) -> None:
    """Take the lock for a descriptor that is open for writing. Nothing happens where files have no locks."""
    try:
        fcntl.fcntl(fd, _F_OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
    except OSError:
        return  # a file system without locks, or a reader that holds one: readers then go by the file's age


def mark_complete(fd: int) -> None:
    """Give the lock back, for a descriptor that stays open."""
    try:
        fcntl.fcntl(fd, _F_OFD_SETLK, _FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, 0, 0, 0))
    except OSError:
        return


def is_written(fd: int) -> bool | None:
    """Whether somebody else holds the lock; None where the file system does not say."""
    try:
        answer = fcntl.fcntl(fd, _F_OFD_GETLK, _FLOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0))
    except OSError:
        return None
    return int(_FLOCK.unpack(answer)[0]) != fcntl.F_UNLCK
