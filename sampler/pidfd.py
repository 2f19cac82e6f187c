"""pidfd_getfd(2), which Python lacks, and whether the process of a pidfd is gone."""

from __future__ import annotations

import ctypes
import os
import select

_NR_PIDFD_GETFD = 438

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def get_fd(pidfd: int, number: int) -> int:
    """A duplicate of descriptor `number` of a process, close-on-exec. OSError as of the call (5.6+)."""
    arguments = (ctypes.c_int(pidfd), ctypes.c_int(number), ctypes.c_uint(0))
    result = int(_libc.syscall(ctypes.c_long(_NR_PIDFD_GETFD), *arguments))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def is_gone(pidfd: int) -> bool:
    """Whether the process has ended (a pidfd is readable then)."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))
