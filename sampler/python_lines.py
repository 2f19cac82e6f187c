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

MAX_TABLE_BYTES = 1 << 20
_MAX_LINE = (1 << 31) - 1


class LineTable:
    """Runs of instructions: run i begins at `starts[i]` and has line `lines[i]`."""

    __slots__ = ("lines", "starts")

    def __init__(self, version: tuple[int, int], table: bytes, first_line: int) -> None:
        self.starts = array("I")
        self.lines = array("I")
        if version >= (3, 11):
            self._parse_locations(table, first_line)
        elif version == (3, 10):
            self._parse_runs(table, first_line)
        else:
            self._parse_lnotab(table, first_line)

    def line(self, offset: int) -> int:
        """The line of the instruction at `offset`, of the code before it where it has none; 0: not known."""
        index = bisect_right(self.starts, max(offset, 0)) - 1
        return self.lines[index] if index >= 0 else 0

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

    def _parse_lnotab(self, table: bytes, line: int) -> None:
        address = 0
        self._add(0, line)
        for index in range(0, len(table) - 1, 2):
            address += table[index]
            line += _signed(table[index + 1])
            self._add(address, line)

    def _parse_runs(self, table: bytes, line: int) -> None:
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

    def _parse_locations(self, table: bytes, line: int) -> None:
        address, at, size = 0, 0, len(table)
        try:
            while at < size:
                first = table[at]
                at += 1
                code = first >> 3 & 15
                current: int | None = line
                if code < 10:
                    at += 1
                elif code < 13:
                    line += code - 10
                    current = line
                    at += 2
                elif code == 15:
                    current = None
                else:
                    delta, at = _varint(table, at)
                    line += -(delta >> 1) if delta & 1 else delta >> 1
                    current = line
                    if code == 14:
                        for _ in range(3):
                            _, at = _varint(table, at)
                self._add(address, current)
                address += (first & 7) + 1
        except IndexError:
            pass  # a table that was read while it was freed ends in the middle: keep what it says so far


def _signed(byte: int) -> int:
    return byte - 256 if byte > 127 else byte


def _varint(table: bytes, at: int) -> tuple[int, int]:
    """(value, position after it); at most 36 bits are read."""
    byte = table[at]
    value = byte & 63
    shift = 6
    while byte & 64:
        at += 1
        byte = table[at]
        if shift < 36:
            value |= (byte & 63) << shift
        shift += 6
    return value, at + 1
