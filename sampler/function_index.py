"""The start and length of the function that holds an address, from the unwind tables of a binary.

Every function with unwind information is in .eh_frame_hdr (LSB): version 1, encodings of the pointer
(u8), count (u8) and table (u8), the pointer, the count, then pairs (start of function, its FDE), s32
relative to the header, sorted. FDE: length, CIE pointer, start s32 relative to itself, size. The table is
searched in the file, since libtorch_cpu's has 335,120 pairs and few of them are ever asked for.
"""

from __future__ import annotations

import struct
from bisect import bisect_right

from gpuprof.sampler.elf import ElfError, ElfFile

_ENCODINGS = (0x1B, 0x03, 0x3B)  # pcrel sdata4, udata4, datarel sdata4: what every linker writes
_TABLE_AT = 12
_PAIR = struct.Struct("<ii")
_LEAF_PAIRS = 64  # read at once at the end of a search


class FunctionIndex:
    """Of one open file. `count`: 0 where it has no such table."""

    def __init__(self, elf: ElfFile) -> None:
        self._elf = elf
        self.count = self._offset = self._vaddr = 0
        header = elf.eh_frame_hdr()
        if header is None:
            return
        self._offset, size, self._vaddr = header
        try:
            version, *encodings, count = struct.unpack("<4B4xI", elf.read(self._offset, _TABLE_AT))
        except ElfError:
            return
        if version == 1 and tuple(encodings) == _ENCODINGS and size >= _TABLE_AT:
            self.count = min(count, (size - _TABLE_AT) // _PAIR.size)

    def find(self, address: int) -> tuple[int, int] | None:
        """(start, end) of the function that holds a linked address. ElfError where the file lies."""
        found = self._pair_before(address - self._vaddr)
        if found is None:
            return None
        start, fde_vaddr = found[0] + self._vaddr, found[1] + self._vaddr
        # By the length in its FDE, so that code behind it that has no FDE is not taken for it.
        fde = self._elf.offset_of(fde_vaddr)
        if fde is None:
            return None
        begin, size = struct.unpack("<iI", self._elf.read(fde + 8, 8))
        end = start + (size if fde_vaddr + 8 + begin == start else 0)
        return (start, end) if address < end else None

    def _pair_before(self, relative: int) -> tuple[int, int] | None:
        """The last pair whose start is not above a relative address."""
        low, high = 0, self.count
        while high - low > _LEAF_PAIRS:
            middle = (low + high) // 2
            if self._pairs(middle, 1)[0][0] <= relative:
                low = middle
            else:
                high = middle
        pairs = self._pairs(low, high - low)
        at = bisect_right([start for start, _ in pairs], relative) - 1
        return pairs[at] if at >= 0 else None

    def _pairs(self, first: int, count: int) -> list[tuple[int, int]]:
        raw = self._elf.read(self._offset + _TABLE_AT + _PAIR.size * first, _PAIR.size * count)
        return list(_PAIR.iter_unpack(raw))
