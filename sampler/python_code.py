"""Names a CPython code object of another process: qualified name, file, first line and line table.

Read with pread on /proc/PID/mem, which neither stops nor changes the process. The object may be freed or
reused at any time: its type is checked, everything is bounded, and what was read is read again after a while.

Layouts: code object as in PythonLayout; str: length, state bits (kind: bytes per character, ascii), data
behind the header; bytes (the line table): ob_size, hash, data.
"""

from __future__ import annotations

import contextlib
import os
import struct
import sys
import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from gpuprof.sampler.python_lines import MAX_TABLE_BYTES, LineTable, line_table
from gpuprof.sampler.python_runtime import PythonLayout
from gpuprof.snapshots.names import clean
from gpuprof.snapshots.recent import Recent

MAX_NAME = 4096  # characters of a name or path that are read
# A code object at the same address with the same first line may be another one by then.
RECHECK_NS = 60 * 10**9
_HEADER_BYTES = 224  # of the code object, up to co_linetable in all versions
_STRING_BYTES = 256  # read at once: header and most names
_TABLE_BYTES = 512
_USER_END = 1 << 47
_MAX_CODES = 20_000  # some 1.3 KB each
_MAX_CACHED_BYTES = 48 << 20  # what a process says of itself may be made to be large
_ENTRY_BYTES = 800
_MAX_COPIES = 2048  # code objects that were told and not named yet, 1.3 KB each
_MAX_SHARED = 2048  # Codes and paths that processes share, kept twice
_MAX_SHARED_BYTES = 1 << 19
_PLACE_BYTES = 250  # of one of them: the object, and its place
T = TypeVar("T", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Code:
    """What a code object says about itself. `name` and `file` are clean, for display."""

    name: str
    file: str
    first_line: int
    lines: LineTable

    def line(self, instruction: int) -> int:
        """The current line at an instruction offset (code units; bytes in 3.9)."""
        return self.lines.line(instruction) or self.first_line

    @property
    def nbytes(self) -> int:
        """About how much memory it takes, with its place in a cache."""
        return _ENTRY_BYTES + sys.getsizeof(self.name) + sys.getsizeof(self.file) + self.lines.nbytes


@dataclass(slots=True)
class _Entry:
    code: Code | None
    fingerprint: bytes
    checked_ns: int

    @property
    def nbytes(self) -> int:
        return self.code.nbytes if self.code is not None else _ENTRY_BYTES


class CodeReader:
    """Code objects of one process, cached by (address, first line)."""

    def __init__(self, pid: int, layout: PythonLayout) -> None:
        self.layout = layout
        self._codes: dict[tuple[int, int], _Entry] = {}
        self.nbytes = 0  # of what is cached
        # By address of a code object copies of its memory, from when it was sampled, until it is named.
        self._copies: dict[int, dict[int, bytes]] = {}
        self._copied: dict[int, bytes] = {}  # those of the one that is being named
        try:
            self._memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._memory = -1

    def close(self) -> None:
        """Close the process's memory; what is cached stays."""
        if self._memory >= 0:
            os.close(self._memory)
            self._memory = -1

    def remember(self, parts: Sequence[tuple[int, bytes]]) -> None:
        """Keep copies of the memory that makes up a code object, itself first, in case the process is gone
        when its name is asked for.
        """
        if not parts:
            return
        if len(self._copies) >= _MAX_COPIES:
            del self._copies[next(iter(self._copies))]
        self._copies[parts[0][0]] = dict(parts)

    def get(self, address: int, first_line: int, now_ns: int | None = None) -> Code | None:
        """The code object at an address; None when it is not one (a frame being set up), or the process is
        gone.
        """
        now_ns = time.monotonic_ns() if now_ns is None else now_ns
        key = (address, first_line)
        entry = self._codes.get(key)
        if entry is not None and now_ns - entry.checked_ns < RECHECK_NS:
            return entry.code
        self._copied = self._copies.get(address, {})
        header = self._read(address, _HEADER_BYTES)
        fingerprint = self._fingerprint(header) if len(header) == _HEADER_BYTES else b""
        if entry is not None and (not header or fingerprint == entry.fingerprint):
            entry.checked_ns = now_ns
            return entry.code
        code = self._parse(header, first_line) if len(header) == _HEADER_BYTES else None
        if code is not None:
            self._copies.pop(address, None)
        if code is not None or header:  # a process that cannot be read at all may become readable
            self._keep(key, _Entry(code, fingerprint, now_ns))
        return code

    def _keep(self, key: tuple[int, int], entry: _Entry) -> None:
        old = self._codes.pop(key, None)
        self.nbytes += entry.nbytes - (old.nbytes if old is not None else 0)
        if len(self._codes) >= _MAX_CODES or self.nbytes > _MAX_CACHED_BYTES:
            self._codes.clear()
            self.nbytes = entry.nbytes
        self._codes[key] = entry

    def _fingerprint(self, header: bytes) -> bytes:
        """The fields that make it this code object; the reference count beside them always changes."""
        layout = self.layout
        offsets = (layout.ob_type, layout.co_qualname, layout.co_filename, layout.co_linetable)
        return b"".join(header[offset : offset + 8] for offset in offsets)

    def _parse(self, header: bytes, first_line: int) -> Code | None:
        layout = self.layout
        if layout.code_type and _pointer(header, layout.ob_type) != layout.code_type:
            return None
        (own_first_line,) = struct.unpack_from("<i", header, layout.co_firstlineno)
        if own_first_line & 0xFFFFFF != first_line & 0xFFFFFF or own_first_line < 0:
            return None
        name = self._string(_pointer(header, layout.co_qualname)) or self._string(
            _pointer(header, layout.co_name)
        )
        file = self._string(_pointer(header, layout.co_filename))
        if name is None or file is None:
            return None
        table = self._bytes(_pointer(header, layout.co_linetable))
        lines = line_table(layout.version, table, own_first_line)
        # Many functions have the same file, and many processes the same functions.
        path = _one_of(_paths, clean(file, MAX_NAME))
        return _one_of(_codes, Code(clean(name), path, own_first_line, lines))

    def _string(self, address: int) -> str | None:
        layout = self.layout
        raw = self._read(address, _STRING_BYTES)
        if len(raw) < layout.str_compact + 8:
            return None
        length, state = _pointer(raw, layout.str_length), struct.unpack_from("<I", raw, layout.str_state)[0]
        if layout.free_threaded:  # `interned` is a byte of its own there
            kind, ascii_only = state >> 8 & 7, state >> 12 & 1
        else:
            kind, ascii_only = state >> 2 & 7, state >> 6 & 1
        encoding = {1: "latin-1", 2: "utf-16-le", 4: "utf-32-le"}.get(kind)
        if encoding is None or length > MAX_TABLE_BYTES:
            return None
        start = layout.str_ascii if ascii_only else layout.str_compact
        size = min(length, MAX_NAME) * kind
        data = raw[start : start + size]
        if len(data) < size:
            data += self._read(address + start + len(data), size - len(data))
        return data.decode(encoding, "replace") if len(data) == size else None

    def _bytes(self, address: int) -> bytes:
        raw = self._read(address, _TABLE_BYTES)
        size_at = self.layout.bytes_size
        if len(raw) < size_at + 16:
            return b""
        size = min(_pointer(raw, size_at), MAX_TABLE_BYTES)
        data = raw[size_at + 16 : size_at + 16 + size]
        if len(data) < size:
            data += self._read(address + size_at + 16 + len(data), size - len(data))
        return data

    def _read(self, address: int, size: int) -> bytes:
        """Up to `size` bytes of the process's memory; a short answer at the end of a mapping, b"" when not
        readable.
        """
        if not 4096 <= address < _USER_END:
            return b""
        data = b""
        if self._memory >= 0:
            with contextlib.suppress(OSError):
                data = os.pread(self._memory, size, address)
        return data or self._copied.get(address, b"")[:size]


def _one_of(kept: Recent[T, T], value: T) -> T:
    """The one that is kept of all that are equal."""
    found = kept.get(value)
    if found is None:
        found = value
        kept.put(value, value)
    return found


def _shared_bytes(_: object, value: Code | str) -> int:
    if isinstance(value, str):
        return _PLACE_BYTES + sys.getsizeof(value)
    return _PLACE_BYTES + sys.getsizeof(value.name) + value.lines.nbytes  # the path is shared by itself


_codes: Recent[Code, Code] = Recent(_MAX_SHARED, _MAX_SHARED_BYTES, _shared_bytes)
_paths: Recent[str, str] = Recent(_MAX_SHARED, _MAX_SHARED_BYTES, _shared_bytes)


def _pointer(raw: bytes, offset: int) -> int:
    return int(struct.unpack_from("<Q", raw, offset)[0])
