"""The .eh_frame parser of ehframe.c in Python, for machines without a compiler: the same rows, some thirty
times slower.

The format and the meaning of rules and rows are described in ehframe.c and layout.bpf.h; limits and order of
the work are the same, so that both give identical results on any input.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

from gpuprof.bpf.ehframe import MAX_RANGES, STATUS_WORDS, EhFrameError, UnwindRows
from gpuprof.bpf.ehframe_instructions import Instructions
from gpuprof.bpf.ehframe_rows import TOO_LARGE, Failed, Rows
from gpuprof.bpf.ehframe_state import CFA_NONE, MASK, Cie, Reader

_EMPTY = 4
_MAX_SECTION = 64 << 20
_MAX_FACTOR = 0xFFFF
_WORK_PER_BYTE, _WORK_FREE = 16, 65536
_ALIGNMENT_GAP = 16


@dataclass(frozen=True, slots=True)
class _Fde:
    begin: int
    end: int
    offset: int
    cie: Cie


class _Builder:
    """One build: entries are collected, sorted by address, run (ehframe_instructions.py), packed."""

    def __init__(self, section: bytes, address: int, ranges: Sequence[tuple[int, int]]) -> None:
        self.section, self.address, self.ranges = section, address & MASK, list(ranges[:MAX_RANGES])
        self.rows = Rows()
        work = len(section) * _WORK_PER_BYTE + _WORK_FREE
        self.instructions = Instructions(self.rows, self.address, work)
        self.cies: dict[int, Cie] = {}
        self.fdes: list[_Fde] = []

    def build(self) -> UnwindRows:
        self.collect()
        self.fdes.sort(key=attrgetter("begin", "offset"))
        for index, fde in enumerate(self.fdes):
            following = self.fdes[index + 1].begin if index + 1 < len(self.fdes) else MASK
            self.run_fde(fde, min(fde.end, following))
            if following - fde.end >= _ALIGNMENT_GAP:
                self.rows.add(fde.end, CFA_NONE)
        if not len(self.rows):
            raise Failed(_EMPTY)
        return self.rows.pack(len(self.fdes), self.instructions.unsupported)

    # ------------------------------------------------------------------------------------------------ entries

    def entry(self, offset: int) -> Reader | None:
        """The body of the entry at an offset; None at the end of what is well-formed."""
        size = len(self.section)
        if size - offset < 4:
            return None
        reader = Reader(self.section, offset, size)
        length = reader.fixed(4)
        if length == 0xFFFFFFFF:
            if reader.end - reader.at < 8:
                return None
            length = reader.fixed(8)
        if length > size - reader.at or 0 < length < 4:
            return None
        reader.end = reader.at + length
        return reader

    def collect(self) -> None:
        offset = 0
        while offset < len(self.section):
            body = self.entry(offset)
            if body is None:
                return
            end = body.end
            if body.at < end:
                id_at = body.at
                identity = body.fixed(4)
                if identity and identity <= id_at:
                    self.add_fde(offset, body, self.cie(id_at - identity))
            offset = end

    def cie(self, offset: int) -> Cie:
        cie = self.cies.get(offset)
        if cie is None:
            cie = self.cies[offset] = Cie()
            cie.valid = self.parse_cie(offset, cie)
            self.instructions.unsupported += not cie.valid
        return cie

    def parse_cie(self, offset: int, cie: Cie) -> bool:
        reader = self.entry(offset)
        if reader is None or reader.end - reader.at < 8 or reader.fixed(4) != 0:
            return False
        version = reader.fixed(1)
        if version not in (1, 3, 4):
            return False
        terminator = self.section.find(b"\0", reader.at, reader.end)
        if terminator < 0:
            return False
        augmentation = self.section[reader.at : terminator]
        reader.at = terminator + 1
        if version == 4:
            reader.at = min(reader.at + 2, reader.end)
        cie.code_factor, cie.data_factor = reader.uleb(), reader.sleb()
        cie.return_register = reader.fixed(1) if version == 1 else reader.uleb() & 0xFFFFFFFF
        if not 0 < cie.code_factor <= _MAX_FACTOR or abs(cie.data_factor) > _MAX_FACTOR:
            return False
        if augmentation[:1] == b"z":
            cie.has_data = True
            data = reader.block()
            for letter in augmentation[1:]:
                if letter == ord("R"):
                    cie.encoding = data.fixed(1)
                elif letter == ord("L"):
                    data.fixed(1)
                elif letter == ord("P"):
                    data.pointer(data.fixed(1) & 0x0F, 0)
                elif letter == ord("S"):
                    cie.signal_frame = True
                else:
                    break
        elif augmentation:
            return False
        if cie.encoding & 0xE0:
            return False
        self.instructions.run(cie, reader, cie.initial, 0, 0, emit=False)
        return True

    def add_fde(self, offset: int, body: Reader, cie: Cie) -> None:
        if not cie.valid:
            return
        begin = body.pointer(cie.encoding, self.address + body.at)
        length = body.pointer(cie.encoding & 0x0F, 0)
        if begin is None or not length:
            return
        for low, high in self.ranges:
            if low <= begin < high:
                end = high if length > high - begin else begin + length
                self.fdes.append(_Fde(begin, end, offset, cie))
                return

    def run_fde(self, fde: _Fde, end: int) -> None:
        cie = fde.cie
        body = self.entry(fde.offset)
        if body is None:
            return
        body.fixed(4)
        body.pointer(cie.encoding & 0x0F, 0)
        body.pointer(cie.encoding & 0x0F, 0)
        if cie.has_data:
            body.block()
        state = cie.initial.copy()
        pc, state = self.instructions.run(cie, body, state, fde.begin, end, emit=True)
        if pc < end:
            self.rows.add(pc, state.pack(cie.signal_frame))


def build_rows_in_python(section: bytes, address: int, ranges: Sequence[tuple[int, int]]) -> UnwindRows:
    """As ehframe.build_rows, without the C parser."""
    if len(section) > _MAX_SECTION:
        raise EhFrameError(STATUS_WORDS[TOO_LARGE])
    try:
        return _Builder(section, address, ranges).build()
    except Failed as failed:
        raise EhFrameError(STATUS_WORDS[failed.args[0]]) from None
