"""MPS, the Multi-Process Service of CUDA: its server is on the device in its clients' name."""

from __future__ import annotations

import os
from collections.abc import Iterable

SERVER = "nvidia-cuda-mps-server"


def launching(pids: Iterable[int], proc: str = "/proc") -> frozenset[int]:
    """`pids` without MPS servers, which launch nothing of their own.

    NVML lists the server beside its clients, and it is the clients that have an injection library. The server
    is told by the name of its program's file (root may read that of every process); one that cannot be read
    stays in.
    """
    return frozenset(pid for pid in pids if _program(pid, proc) != SERVER)


def _program(pid: int, proc: str) -> str:
    try:
        return os.path.basename(os.readlink(f"{proc}/{pid}/exe")).removesuffix(" (deleted)")
    except OSError:
        return ""
