"""Names of code that was compiled at run time: the perf map that Node, the JVM, CPython (-X perf) and others
write.

The format (Linux tools/perf/Documentation/jit-interface.txt): /tmp/perf-PID.map, PID as the process itself
sees it, text lines "START SIZE name", START and SIZE hexadecimal. A JIT appends, so a later line replaces
earlier ones where they overlap.

The file belongs to the profiled process and is taken for what it is: opened below /proc/PID/root without
following links, without blocking, a regular file owned by the process's user, size-capped.
"""

from __future__ import annotations

import os
import re
import stat
import time

import numpy as np
from numpy.typing import NDArray

from gpuprof.snapshots.names import clean

MAX_MAP_BYTES = 64 << 20
MAX_ENTRIES = 1 << 18  # the latest ones; so many take half a second and 60 MB for a moment
REREAD_NS = 100_000_000
_REST = 50  # times as long as reading took
_CHUNK = 64 << 10
_LINE = re.compile(rb"^(?:0x)?([0-9a-fA-F]{1,16}) (?:0x)?([0-9a-fA-F]{1,16}) ([^\n]{1,4096})\n", re.MULTILINE)


class JitMap:
    """The perf map of one process, read again when an unknown address is asked for and the file has grown."""

    def __init__(self, pid: int, own_pid: int, uid: int) -> None:
        self._pid = pid
        self._name = f"perf-{own_pid}.map"
        self._uid = uid
        self._text = b""
        self._state: tuple[int, int, int] = (0, 0, 0)  # inode, size, mtime
        self._next_read_ns = 0
        self.reads = 0  # how often the file was read
        self._start: NDArray[np.uint64] = np.zeros(0, np.uint64)
        self._end: NDArray[np.uint64] = np.zeros(0, np.uint64)
        self._span: NDArray[np.uint32] = np.zeros((0, 2), np.uint32)

    def lookup(self, address: int, now_ns: int | None = None) -> str | None:
        """The clean name of the code at an address; None where the map has none."""
        name = self._find(address)
        if name is None and self.refresh(now_ns):
            name = self._find(address)
        return name

    def refresh(self, now_ns: int | None = None) -> bool:
        """Read the file when it changed and it is time; True when it did. Large maps are read less often."""
        now_ns = time.monotonic_ns() if now_ns is None else now_ns
        if now_ns < self._next_read_ns:
            return False
        began_ns = time.thread_time_ns()
        changed = self._refresh()
        spent_ns = time.thread_time_ns() - began_ns
        self._next_read_ns = now_ns + max(REREAD_NS, spent_ns * _REST)
        return changed

    def _find(self, address: int) -> str | None:
        index = int(self._start.searchsorted(np.uint64(address), "right")) - 1
        if index < 0 or address >= int(self._end[index]):
            return None
        first, end = self._span[index]
        return clean(self._text[first:end])

    def _refresh(self) -> bool:
        """Read the file when it changed; True when it did."""
        fd = self._open()
        if fd is None:
            return False
        try:
            info = os.fstat(fd)
            state = (info.st_ino, info.st_size, info.st_mtime_ns)
            regular = stat.S_ISREG(info.st_mode) and info.st_uid in {self._uid, 0}
            if not regular or info.st_size > MAX_MAP_BYTES or state == self._state:
                return False
            self._state = state
            self._parse(_read_all(fd, info.st_size))
            self.reads += 1
            return True
        except OSError:
            return False
        finally:
            os.close(fd)

    def _open(self) -> int | None:
        """Each step without following links: an absolute link in there would lead into this process's own
        root.
        """
        path_only = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
        opened: list[int] = []
        try:
            opened.append(os.open(f"/proc/{self._pid}/root", path_only))
            opened.append(os.open("tmp", path_only | os.O_NOFOLLOW, dir_fd=opened[0]))
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
            return os.open(self._name, flags, dir_fd=opened[1])
        except OSError:
            return None
        finally:
            for fd in opened:
                os.close(fd)

    def _parse(self, text: bytes) -> None:
        text = _last_lines(text, MAX_ENTRIES)
        starts, ends, spans = [], [], []
        for match in _LINE.finditer(text):
            start, size = int(match[1], 16), int(match[2], 16)
            if size and start + size < 1 << 64:
                starts.append(start)
                ends.append(start + size)
                spans.append(match.span(3))
        start_column = np.array(starts[-MAX_ENTRIES:], np.uint64)
        # Later entries first among equals, so that unique() keeps the latest.
        latest_first = start_column[::-1]
        _, index = np.unique(latest_first, return_index=True)
        order = len(start_column) - 1 - index
        self._start = start_column[order]
        self._end = np.array(ends[-MAX_ENTRIES:], np.uint64)[order]
        self._span = np.array(spans[-MAX_ENTRIES:], np.uint32).reshape(-1, 2)[order]
        self._text = text


def _last_lines(text: bytes, count: int) -> bytes:
    """The end of a text, with about so many lines."""
    begin = len(text)
    while begin > 0 and count > 0:
        end, begin = begin, max(begin - _CHUNK, 0)
        count -= text.count(b"\n", begin, end)
    return text[text.find(b"\n", begin) + 1 :] if begin else text


def _read_all(fd: int, size: int) -> bytes:
    parts = []
    while size > 0 and (part := os.read(fd, min(size, 1 << 20))):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
