"""Keeps the C library from holding on to memory that was needed once.

By default glibc serves larger and larger blocks from heaps that shrink only at their end, and makes a heap
for every few threads: reading the symbols of a large binary then leaves tens of megabytes behind. See
mallopt(3).
"""

from __future__ import annotations

import ctypes
from contextlib import suppress

MMAP_THRESHOLD = 1 << 20  # blocks from here on come from the kernel and go back to it at once
TRIM_THRESHOLD = 1 << 20
ARENAS = 2
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8


def give_memory_back() -> None:
    """Set the thresholds, which no longer move then; call it before the first thread. Does nothing without
    glibc.
    """
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, MMAP_THRESHOLD)
        mallopt(_M_TRIM_THRESHOLD, TRIM_THRESHOLD)
        mallopt(_M_ARENA_MAX, ARENAS)
