"""One process that is read again and again, through a descriptor that cannot come to mean another process."""

from __future__ import annotations

import os

from gpuprof.sampler.proc_stat import ProcessTimes, process_times
from gpuprof.sampler.process_scan import STAT_BYTES


class TrackedProcess:
    """An open /proc/PID/stat. Reading it when the process has gone fails, even if its pid is used again."""

    def __init__(self, pid: int, descriptor: int, times: ProcessTimes) -> None:
        self.pid = pid
        self.start_ticks = times.start_ticks
        self.comm = times.comm
        self._descriptor = descriptor

    @classmethod
    def open(cls, pid: int, proc: str = "/proc") -> TrackedProcess | None:
        """Open the process `pid`; None when it is gone, a zombie, or not ours to read."""
        try:
            descriptor = os.open(f"{proc}/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        times = _read(descriptor)
        if times is None or times.zombie:
            os.close(descriptor)
            return None
        return cls(pid, descriptor, times)

    def read(self) -> ProcessTimes | None:
        """Its times now; None when it is gone or a zombie."""
        times = _read(self._descriptor)
        if times is None or times.zombie or times.start_ticks != self.start_ticks:
            return None
        return times

    def close(self) -> None:
        os.close(self._descriptor)


def _read(descriptor: int) -> ProcessTimes | None:
    try:
        return process_times(os.pread(descriptor, STAT_BYTES, 0))
    except OSError:
        return None
