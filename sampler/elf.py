"""Reader of 64-bit little-endian ELF files: segments, sections, symbols, build id, where the unwind tables
are.

The format (System V gABI): a 64-byte file header; program headers (56 bytes: type, flags, offset, vaddr,
paddr, file size, memory size, align); section headers (64 bytes: name, type, flags, addr, offset, size, link,
info, align, entry size); symbols (24 bytes: name u32, info u8, other u8, section u16, value u64, size u64).

Files come from profiled processes. Everything is read with pread and never mapped: a file that is truncated
while it is mapped would kill the reader with SIGBUS. Counts and sizes are bounded; what does not fit the
format is an ElfError.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

PT_LOAD = 1
PT_NOTE = 4
PT_GNU_EH_FRAME = 0x6474E550
PF_X = 1
SHT_SYMTAB = 2
SHT_NOBITS = 8
SHT_DYNSYM = 11
SHF_EXECINSTR = 4
STT_NOTYPE, STT_FUNC, STT_GNU_IFUNC = 0, 2, 10

MAX_SEGMENTS = 4096
MAX_SECTIONS = 100_000
MAX_STRING_SECTION = 16 << 20
MAX_SYMBOLS = 2 << 20  # four times what libtorch_cpu has; the arrays of so many take 200 MB for a moment
MAX_NOTE_BYTES = 64 << 10
MAX_NOTE_SEGMENTS = 16
MAX_DYNAMIC_TABLES = 4  # a file has one
MAX_SECTION_NAME = 256
_SYMBOLS_AT_ONCE = 64 << 10  # 1.5 MB: what is read at a time, so that the peak does not grow with the file

SYMBOL = np.dtype(
    [("name", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2"), ("value", "<u8"), ("size", "<u8")]
)

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SECTION = struct.Struct("<IIQQQQIIQQ")


class ElfError(Exception):
    """The file is not a 64-bit little-endian ELF file, or lies about itself."""


@dataclass(frozen=True, slots=True)
class Segment:
    """One program header; addresses as linked (unrelocated)."""

    type: int
    flags: int
    offset: int
    vaddr: int
    file_size: int
    mem_size: int


@dataclass(frozen=True, slots=True)
class Section:
    """One section header; `address` as linked."""

    name: str
    type: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    entry_size: int


@dataclass(frozen=True, slots=True)
class FunctionSymbols:
    """Functions by rising address. `name` is the file offset of the NUL-terminated name; `rank` 0 is the best
    kind.

    Columns of one length: value u64, size u32 (larger ones saturate), name u64, rank u8.
    """

    value: NDArray[np.uint64]
    size: NDArray[np.uint32]
    name: NDArray[np.uint64]
    rank: NDArray[np.uint8]


class ElfFile:
    """An open ELF file; takes over the descriptor, close() closes it. Raises ElfError."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        try:
            self.size = os.fstat(fd).st_size
            self._parse_header()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> ElfFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the descriptor; the arrays and fields read so far stay usable."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def read(self, offset: int, size: int) -> bytes:
        """Exactly `size` bytes at a file offset; ElfError where the file does not have them."""
        if offset < 0 or size < 0 or offset + size > self.size:
            raise ElfError(f"{size} bytes at {offset:#x} are outside of the file")
        parts = []
        while size > 0:
            try:
                part = os.pread(self.fd, size, offset)
            except (OSError, OverflowError) as error:
                raise ElfError(f"read failed: {error}") from None
            if not part:
                raise ElfError("the file became shorter")
            parts.append(part)
            size -= len(part)
            offset += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _parse_header(self) -> None:
        fields = _HEADER.unpack(self.read(0, _HEADER.size))
        ident, self.type, self.machine = fields[0], fields[1], fields[2]
        if ident[:4] != b"\x7fELF" or ident[4] != 2 or ident[5] != 1:
            raise ElfError("not a 64-bit little-endian ELF file")
        program_offset, self._section_offset = fields[5], fields[6]
        entry_size, count = fields[9], fields[10]
        self._section_entry_size, self._section_count, self._names_index = fields[11], fields[12], fields[13]
        if count > MAX_SEGMENTS or (count and entry_size != _SEGMENT.size):
            raise ElfError("program headers are not of this format")
        raw = self.read(program_offset, count * _SEGMENT.size)
        self.segments = [
            Segment(kind, flags, offset, vaddr, file_size, mem_size)
            for kind, flags, offset, vaddr, _, file_size, mem_size, _ in _SEGMENT.iter_unpack(raw)
        ]

    @property
    def loads(self) -> list[Segment]:
        """The PT_LOAD segments."""
        return [segment for segment in self.segments if segment.type == PT_LOAD]

    def load_bias(self, start: int, file_offset: int) -> int | None:
        """Runtime minus linked address of an executable mapping at `start` of `file_offset`; None: no such
        segment.
        """
        return load_bias(self.loads, start, file_offset)

    def offset_of(self, vaddr: int) -> int | None:
        """File offset of a linked address."""
        for segment in self.loads:
            if segment.vaddr <= vaddr < segment.vaddr + segment.file_size:
                return segment.offset + vaddr - segment.vaddr
        return None

    @cached_property
    def sections(self) -> list[Section]:
        """All sections; an empty list when the file has no section headers (sstrip)."""
        count, names_index = self._section_count, self._names_index
        if not self._section_offset:
            return []
        if self._section_entry_size != _SECTION.size:
            raise ElfError("section headers are not of this format")
        first = _SECTION.unpack(self.read(self._section_offset, _SECTION.size))
        count = count or first[5]  # more than 65,279 sections: the numbers are in section 0
        names_index = first[6] if names_index == 0xFFFF else names_index
        if count > MAX_SECTIONS:
            raise ElfError("too many sections")
        raw = list(_SECTION.iter_unpack(self.read(self._section_offset, count * _SECTION.size)))
        names = b""
        if names_index < count and raw[names_index][1] != SHT_NOBITS:
            names = self.read(raw[names_index][4], min(raw[names_index][5], MAX_STRING_SECTION))
        return [
            Section(_string(names, name), kind, flags, address, offset, size, link, entry_size)
            for name, kind, flags, address, offset, size, link, _, _, entry_size in raw
        ]

    def section(self, name: str) -> Section | None:
        """The first section of that name that has bytes in the file."""
        return next((s for s in self.sections if s.name == name and s.type != SHT_NOBITS), None)

    def eh_frame_hdr(self) -> tuple[int, int, int] | None:
        """(file offset, size, linked address) of the table that PT_GNU_EH_FRAME points to."""
        for segment in self.segments:
            if segment.type == PT_GNU_EH_FRAME:
                return segment.offset, segment.file_size, segment.vaddr
        return None

    def eh_frame(self) -> tuple[int, int, int] | None:
        """(file offset, size, linked address) of .eh_frame, by section or else through .eh_frame_hdr."""
        section = self.section(".eh_frame")
        if section is not None and section.offset + section.size <= self.size:
            return section.offset, section.size, section.address
        header = self.eh_frame_hdr()
        if header is None:
            return None
        offset, _, vaddr = header
        version, pointer_encoding, _, _, pointer = struct.unpack("<BBBBi", self.read(offset, 8))
        if version != 1 or pointer_encoding != 0x1B:  # DW_EH_PE_pcrel | sdata4, what every linker writes
            return None
        target = vaddr + 4 + pointer
        for segment in self.loads:
            if segment.vaddr <= target < segment.vaddr + segment.file_size:
                at = segment.offset + target - segment.vaddr
                return at, min(segment.vaddr + segment.file_size - target, self.size - at), target
        return None

    @cached_property
    def build_id(self) -> bytes | None:
        """The GNU build id from the notes, usually 20 bytes."""
        notes = [segment for segment in self.segments if segment.type == PT_NOTE]
        for segment in notes[:MAX_NOTE_SEGMENTS]:
            found = _find_build_id(self.read(segment.offset, min(segment.file_size, MAX_NOTE_BYTES)))
            if found is not None:
                return found
        return None

    def function_symbols(self) -> FunctionSymbols:
        """Functions of .symtab and .dynsym, sorted by (value, rank)."""
        executable = np.zeros(max(len(self.sections), 1), bool)
        for index, section in enumerate(self.sections):
            executable[index] = bool(section.flags & SHF_EXECINSTR)
        columns: list[
            tuple[NDArray[np.uint64], NDArray[np.uint32], NDArray[np.uint64], NDArray[np.uint8]]
        ] = []
        left = MAX_SYMBOLS  # of all tables together: a file may claim the same bytes for many
        for section in self.sections:
            if section.type not in (SHT_SYMTAB, SHT_DYNSYM) or section.entry_size != SYMBOL.itemsize:
                continue
            if section.link >= len(self.sections):
                continue
            strings = self.sections[section.link]
            count = min(section.size // SYMBOL.itemsize, left)
            left -= count
            for first in range(0, count, _SYMBOLS_AT_ONCE):
                size = min(_SYMBOLS_AT_ONCE, count - first) * SYMBOL.itemsize
                raw = np.frombuffer(self.read(section.offset + first * SYMBOL.itemsize, size), SYMBOL)
                columns.append(_functions(raw, strings, executable))
        if not columns:
            return FunctionSymbols(
                np.zeros(0, np.uint64), np.zeros(0, np.uint32), np.zeros(0, np.uint64), np.zeros(0, np.uint8)
            )
        value, length, name, rank = (np.concatenate(part) for part in zip(*columns, strict=True))
        order = np.lexsort((rank, value))
        return FunctionSymbols(value[order], length[order], name[order], rank[order])

    def dynamic_symbols(self, wanted: set[str]) -> dict[str, tuple[int, int]]:
        """(value, size) of the defined symbols of .dynsym with these exact names."""
        found: dict[str, tuple[int, int]] = {}
        tables = [s for s in self.sections if s.type == SHT_DYNSYM and s.entry_size == SYMBOL.itemsize]
        for section in tables[:MAX_DYNAMIC_TABLES]:
            self._find_symbols(section, wanted, found)
        return found

    def _find_symbols(self, section: Section, wanted: set[str], found: dict[str, tuple[int, int]]) -> None:
        if section.link >= len(self.sections):
            return
        strings = self.sections[section.link]
        if strings.size > MAX_STRING_SECTION * 4 or section.size > MAX_SYMBOLS * SYMBOL.itemsize:
            return
        names = self.read(strings.offset, strings.size)
        offsets = {}
        for name in wanted - found.keys():
            at = names.find(b"\0" + name.encode() + b"\0")
            if at >= 0:
                offsets[at + 1] = name
        if not offsets:
            return
        keys = np.fromiter(offsets, np.uint32)
        count = section.size // SYMBOL.itemsize
        for first in range(0, count, _SYMBOLS_AT_ONCE):
            size = min(_SYMBOLS_AT_ONCE, count - first) * SYMBOL.itemsize
            raw = np.frombuffer(self.read(section.offset + first * SYMBOL.itemsize, size), SYMBOL)
            for row in raw[np.isin(raw["name"], keys) & (raw["section"] != 0)]:
                found.setdefault(offsets[int(row["name"])], (int(row["value"]), int(row["size"])))


def load_bias(loads: Sequence[Segment], start: int, file_offset: int, page: int = 4096) -> int | None:
    """As ElfFile.load_bias. A segment need not begin on a page: the kernel maps from the page that holds its
    first byte.
    """
    for segment in sorted(loads, key=lambda segment: not segment.flags & PF_X):
        first = segment.offset & -page
        if first <= file_offset < segment.offset + segment.file_size:
            return start - (segment.vaddr + file_offset - segment.offset)
    return None


def _functions(
    raw: NDArray[np.void], strings: Section, executable: NDArray[np.bool_]
) -> tuple[NDArray[np.uint64], NDArray[np.uint32], NDArray[np.uint64], NDArray[np.uint8]]:
    """The rows of a symbol table that name code: functions, and untyped labels in executable sections
    (assembly).
    """
    kind = raw["info"] & 15
    section = raw["section"]
    in_code = executable[np.minimum(section, len(executable) - 1)] & (section < len(executable))
    function = (kind == STT_FUNC) | (kind == STT_GNU_IFUNC)
    keep = (section != 0) & (raw["name"] < strings.size) & (function | ((kind == STT_NOTYPE) & in_code))
    rows = raw[keep]
    rank = np.where((rows["info"] >> 4) == 1, 0, np.where((rows["info"] >> 4) == 2, 1, 2)).astype(np.uint8)
    rank[kind[keep] == STT_NOTYPE] += 4
    return (
        rows["value"].copy(),
        np.minimum(rows["size"], 0xFFFFFFFF).astype(np.uint32),
        rows["name"].astype(np.uint64) + np.uint64(strings.offset),
        rank,
    )


def _string(table: bytes, offset: int) -> str:
    limit = min(offset + MAX_SECTION_NAME, len(table))
    end = table.find(b"\0", offset, limit)
    return table[offset : end if end >= 0 else limit].decode("latin-1")


def _find_build_id(notes: bytes) -> bytes | None:
    """The descriptor of the note of type 3 owned by GNU; note fields are padded to 4 bytes."""
    at = 0
    while at + 12 <= len(notes):
        name_size, size, kind = struct.unpack_from("<III", notes, at)
        name_at = at + 12
        descriptor_at = name_at + (name_size + 3 & ~3)
        at = descriptor_at + (size + 3 & ~3)
        if kind == 3 and notes[name_at : name_at + name_size] == b"GNU\0" and 0 < size <= 64:
            descriptor = notes[descriptor_at : descriptor_at + size]
            return descriptor if len(descriptor) == size else None
    return None
