"""Keeps the sampler small: what C libraries hold on to, and what would be loaded for nothing.

Left to itself glibc raises its thresholds to the largest block that was ever freed, so that after the
unwind tables of one large library were built (45 MB for libtorch_cpu, for a moment) as much would stay.
See mallopt(3).
"""

from __future__ import annotations

import ctypes
import os
import sys

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
LARGE_BYTES = 1 << 20  # such blocks are mapped for themselves, and unmapped when they are freed
ARENAS = 2  # one thread at a time runs Python; more arenas only hold more holes
_UNUSED = ("ssl", "_hashlib")  # OpenSSL, 5 MB: asyncio and hashlib do without


def configure() -> None:
    """Call it first, before numpy and asyncio are imported."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy would start a thread per core, for nothing
    for name in _UNUSED:
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]  # None: it cannot be imported
    give_memory_back()


def give_memory_back() -> None:
    """Set malloc's thresholds, which no longer move then; call it before the first thread. Nothing changes
    where malloc is not glibc's."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES)
        mallopt(_M_TRIM_THRESHOLD, LARGE_BYTES)
        mallopt(_M_ARENA_MAX, ARENAS)


def trim() -> None:
    """Give back to the kernel what is free now (some ms)."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)
