"""The name under which a process of this program shows in process tables and in its own profiles."""

from __future__ import annotations

from contextlib import suppress


def set_process_name(name: str) -> None:
    """Call this process `name` (at most 15 bytes; comm in proc_pid_comm(5)), and the threads that it starts
    later.

    To be called by its first thread. Where the kernel does not let it, the name stays as it was.
    """
    with suppress(OSError), open("/proc/self/comm", "wb", buffering=0) as comm:
        comm.write(name.encode("ascii", "replace")[:15])
