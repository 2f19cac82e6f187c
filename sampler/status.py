"""What the sampler says of itself every second: the state of its sources, and what it costs in CPU time
and memory.

Memory is the resident set of the sampler, its history and the file pages of its libraries included,
without the maps and rings of BPF programs, which are the kernel's memory that happens to be mapped here;
they are found in /proc/self/smaps, which is slow to read and therefore read rarely. See proc(5).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from gpuprof.snapshots.frames import SourceStatus, Status
from gpuprof.snapshots.history import History

_SMAPS_EVERY_NS = 15 * 10**9
_SMAPS_EVERY_NS_AT_FIRST = 10**9  # rings become resident as they are written to


class Source(Protocol):
    """A source of readings or rows. It owns its threads, writes into the history, and raises nothing out of
    them."""

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def status(self) -> SourceStatus: ...


class Failed:
    """Stands for a source that could not be started: says why, for as long as the sampler runs."""

    def __init__(self, name: str, reason: str, hint: str = "", state: str = "failed") -> None:
        self._status = SourceStatus(name, state, reason, hint)

    def start(self) -> None:
        """Nothing to start."""

    def stop(self) -> None:
        """Nothing to stop."""

    def status(self) -> SourceStatus:
        """The reason it is missing."""
        return self._status


class Reporter:
    """Makes the status frame. `bpf_run_ns`: time inside the BPF programs so far, None where the kernel does
    not count it."""

    def __init__(self, history: History, bpf_run_ns: Callable[[], int | None] = lambda: None) -> None:
        self._history = history
        self._bpf_run_ns = bpf_run_ns
        self._page = os.sysconf("SC_PAGE_SIZE")
        self._bpf_bytes = 0
        self._smaps_read_ns = 0
        self._began_ns = time.monotonic_ns()

    def frame(self, sources: Sequence[Source]) -> Status:
        """The status now. A source whose own status fails is shown as failed, with the error."""
        now = time.monotonic_ns()
        every_ns = min(max((now - self._began_ns) // 4, _SMAPS_EVERY_NS_AT_FIRST), _SMAPS_EVERY_NS)
        if now - self._smaps_read_ns >= every_ns:
            self._smaps_read_ns = now
            self._bpf_bytes = _bpf_resident_bytes()
        found = [_status_of(source) for source in sources]
        return Status(
            time_ns=time.monotonic_ns(),  # with the CPU time, since a share is made of the two
            sources=found,
            sampler_cpu_ns=time.process_time_ns(),
            sampler_rss_bytes=max(0, self._resident_bytes() - self._bpf_bytes),
            history_start_ns=self._history.span[0],
            history_bytes=self._history.bytes_used,
            bpf_run_ns=self._bpf_run_ns(),
        )

    def _resident_bytes(self) -> int:
        with open("/proc/self/statm", "rb") as statm:
            return int(statm.read().split()[1]) * self._page


def bpf_bytes_of_smaps(lines: Sequence[bytes]) -> int:
    """Resident bytes of mapped BPF maps and rings, from the lines of a smaps file."""
    total, inside = 0, False
    for line in lines:
        if line[:1] in b"0123456789abcdef":  # headers are lower case, fields start with a capital
            inside = b"bpf" in line and b"anon_inode:" in line
        elif inside and line.startswith(b"Rss:"):
            total += int(line.split()[1]) * 1024
    return total


def _bpf_resident_bytes() -> int:
    try:
        with open("/proc/self/smaps", "rb") as smaps:
            return bpf_bytes_of_smaps(smaps.readlines())
    except (OSError, ValueError, IndexError):
        return 0


def _status_of(source: Source) -> SourceStatus:
    try:
        return source.status()
    except Exception as error:  # noqa: BLE001
        name = type(source).__name__
        return SourceStatus(name, "failed", f"its status could not be read ({type(error).__name__})")
