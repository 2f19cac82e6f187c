"""Parses what the host reader reads all the time: /proc/stat, /proc/PID/stat and /proc/meminfo (proc(5))."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

NS_PER_TICK = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
MAX_CORES = 4096

_CORE_LINE = re.compile(rb"^cpu(\d{1,5}) (.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ProcessTimes:
    """One /proc/PID/stat: CPU time since the process began, its start in ticks since boot, resident bytes."""

    comm: bytes
    state: str
    cpu_ns: int
    start_ticks: int
    rss_bytes: int

    @property
    def zombie(self) -> bool:
        return self.state in "ZXx"


def core_busy_ns(text: bytes) -> dict[int, int]:
    """Busy ns of every online core: user, nice, system, irq, softirq and steal (guest time is in user).

    Idle and iowait are not busy. A line that is not as proc(5) has it is left out.
    """
    busy = {}
    for match in _CORE_LINE.finditer(text):
        try:
            user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, match.group(2).split()[:8])
        except ValueError:
            continue
        busy[int(match.group(1))] = (user + nice + system + irq + softirq + steal) * NS_PER_TICK
        if len(busy) >= MAX_CORES:
            break
    return busy


def process_times(text: bytes) -> ProcessTimes | None:
    """Fields 2, 3, 14, 15, 22 and 24, counted from the last ")": a name may hold anything."""
    opening, closing = text.find(b"("), text.rfind(b")")
    if not 0 < opening < closing:
        return None
    fields = text[closing + 1 :].split()
    try:
        return ProcessTimes(
            comm=text[opening + 1 : closing],
            state=fields[0].decode("ascii"),
            cpu_ns=(int(fields[11]) + int(fields[12])) * NS_PER_TICK,
            start_ticks=int(fields[19]),
            rss_bytes=max(0, int(fields[21])) * PAGE_BYTES,
        )
    except (IndexError, ValueError):
        return None


def cpu_and_start(text: bytes) -> tuple[int, int] | None:
    """What a search of all processes needs of process_times(): CPU ns, start ticks; None for a zombie."""
    fields = text[text.rfind(b")") + 2 :].split(b" ", 20)
    try:
        if fields[0] in b"ZXx":
            return None
        return (int(fields[11]) + int(fields[12])) * NS_PER_TICK, int(fields[19])
    except (IndexError, ValueError):
        return None


def mem_available_bytes(text: bytes) -> int | None:
    """MemAvailable of /proc/meminfo; None where the kernel does not say."""
    match = re.search(rb"^MemAvailable:\s*(\d+) kB", text, re.MULTILINE)
    return int(match.group(1)) * 1024 if match else None


def read_file(path: str, limit: int) -> bytes | None:
    """At most `limit` bytes of a /proc file; None when it is gone or not ours to read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.read(descriptor, limit)
    except OSError:
        return None
    finally:
        os.close(descriptor)
