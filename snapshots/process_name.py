"""The name under which a process of this program shows in process tables and in its own profiles."""

from __future__ import annotations

import os
from contextlib import suppress

SAMPLER = "gpuprof-sampler"


def set_process_name(name: str) -> None:
    """Call this process `name` (at most 15 bytes; comm in proc_pid_comm(5)), and the threads that it starts
    later.

    To be called by its first thread. Where the kernel does not let it, the name stays as it was.
    """
    with suppress(OSError), open("/proc/self/comm", "wb", buffering=0) as comm:
        comm.write(name.encode("ascii", "replace")[:15])


def is_running(name: str) -> bool:
    """Whether a process called `name`, as far as this one may see them (proc(5)), runs."""
    wanted = name.encode()[:15] + b"\n"
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with suppress(OSError), open(f"/proc/{entry}/comm", "rb") as comm:
                if comm.read(32) == wanted:
                    return True
    return False
