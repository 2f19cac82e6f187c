"""Line tables of CPython code objects: which source line an instruction belongs to.

Formats, by version (Objects/lnotab_notes.txt of 3.9, Objects/locations.md of 3.11+, PEP 626):
- 3.9 co_lnotab: pairs (bytes of code u8, lines s8), each moving on before the next line begins.
- 3.10 co_linetable: pairs (bytes of code u8, lines s8), each describing a run; -128 means "no line".
- 3.11+ location table: entries that begin with a byte 1ccccLLL (code, length - 1 in code units); by code: 0-9
short form
  (1 more byte, same line), 10-12 one line (2 more bytes, line += code - 10), 13 no columns (svarint line
  delta), 14 long (svarint line delta, varints end line, column, end column), 15 no line. Varints have 6 bits
  a byte, low first, bit 6 continues.

Offsets here are in code units of 2 bytes, except for 3.9, whose f_lasti counts bytes.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right

import numpy as np
from numpy.typing import NDArray

from gpuprof.snapshots.recent import Recent

MAX_TABLE_BYTES = 1 << 20
_MAX_LINE = (1 << 31) - 1
_MAX_SHARED = 2048  # kept twice: those in use, and those of before
_MAX_SHARED_BYTES = 1 << 19  # of all of them; a process can make many that are as large as it likes
_MAX_TABLE_SHARED = 2048  # most are far smaller
_TABLE_BYTES = 300  # of a LineTable without its runs, with its key and its place
_MAX_VARINT = 6  # bytes that are looked at: 36 bits


def line_table(version: tuple[int, int], table: bytes, first_line: int) -> LineTable:
    """The LineTable, the same for the same function in another process: scripts run again and again."""
    if len(table) > _MAX_TABLE_SHARED:
        return LineTable(version, table, first_line)
    key = version, table, first_line
    found = _shared.get(key)
    if found is None:
        found = LineTable(version, table, first_line)
        _shared.put(key, found)
    return found


class LineTable:
    """Runs of instructions, each of one line. Packed, since there are thousands of small tables."""

    __slots__ = ("_runs",)

    def __init__(self, version: tuple[int, int], table: bytes, first_line: int) -> None:
        if version >= (3, 11):
            self._runs = _parse_locations(table, first_line)
            return
        runs = _Runs()
        if version == (3, 10):
            runs.parse_runs(table, first_line)
        else:
            runs.parse_lnotab(table, first_line)
        self._runs = (runs.starts + runs.lines).tobytes()

    def line(self, offset: int) -> int:
        """The line of the instruction at `offset`, of the code before it where it has none; 0: not known."""
        runs = memoryview(self._runs).cast("I")  # first where they begin, then their lines
        count = len(runs) // 2
        index = bisect_right(runs, max(offset, 0), 0, count) - 1
        return runs[count + index] if index >= 0 else 0

    @property
    def nbytes(self) -> int:
        """Memory of the runs."""
        return len(self._runs)


class _Runs:
    """The runs of a table of CPython 3.9 or 3.10, while they are read."""

    def __init__(self) -> None:
        self.starts = array("I")
        self.lines = array("I")

    def _add(self, start: int, line: int | None) -> None:
        """Begin a run unless it goes on with the same line; an instruction without line counts to the run
        before it.
        """
        if line is None or not 0 < line <= _MAX_LINE or start < 0 or (self.lines and self.lines[-1] == line):
            return
        if self.starts and self.starts[-1] == start:
            self.lines[-1] = line
        else:
            self.starts.append(start)
            self.lines.append(line)

    def parse_lnotab(self, table: bytes, line: int) -> None:
        address = 0
        self._add(0, line)
        for index in range(0, len(table) - 1, 2):
            address += table[index]
            line += _signed(table[index + 1])
            self._add(address, line)

    def parse_runs(self, table: bytes, line: int) -> None:
        address = 0
        for index in range(0, len(table) - 1, 2):
            delta = _signed(table[index + 1])
            if delta == -128:
                self._add(address, None)
            else:
                line += delta
                if table[index]:  # an empty run only carries a part of a large line delta
                    self._add(address, line)
            address += table[index] // 2


def _parse_locations(table: bytes, first_line: int) -> bytes:
    """All entries at once: only their first bytes have bit 7 set. What the runs are, packed."""
    raw = np.frombuffer(table + b"\0" * _MAX_VARINT, np.uint8)
    at = np.flatnonzero(raw >= 128)
    if not len(at):
        return b""
    first = raw[at]
    code = first >> 3 & 15
    units = (first & 7).astype(np.int64) + 1
    address = np.cumsum(units) - units
    delta = np.where((code >= 10) & (code <= 12), code.astype(np.int64) - 10, 0)
    long_form = np.flatnonzero((code == 13) | (code == 14))
    if len(long_form):
        delta[long_form] = _signed_varints(raw, at[long_form] + 1)
    line = first_line + np.cumsum(delta)
    # A run begins where the line changes; an instruction without line (15) counts to the one before.
    keep = (code != 15) & (line > 0) & (line <= _MAX_LINE)
    address, line = address[keep], line[keep]
    begins = np.ones(len(line), bool)
    begins[1:] = line[1:] != line[:-1]
    return np.concatenate([address[begins], line[begins]]).astype(np.uint32).tobytes()


_Key = tuple[tuple[int, int], bytes, int]


def _size_of(key: _Key, table: LineTable) -> int:
    return _TABLE_BYTES + len(key[1]) + table.nbytes


_shared: Recent[_Key, LineTable] = Recent(_MAX_SHARED, _MAX_SHARED_BYTES, _size_of)


def _signed_varints(raw: NDArray[np.uint8], at: NDArray[np.int64]) -> NDArray[np.int64]:
    """The signed varint at each position; `raw` ends in _MAX_VARINT zero bytes."""
    value = np.zeros(len(at), np.int64)
    more = np.ones(len(at), bool)
    for index in range(_MAX_VARINT):
        byte = raw[at + index].astype(np.int64)
        value |= np.where(more, (byte & 63) << (6 * index), 0)
        more &= (byte & 64) != 0
        if not more.any():
            break
    return np.where(value & 1, -(value >> 1), value >> 1)


def _signed(byte: int) -> int:
    return byte - 256 if byte > 127 else byte
