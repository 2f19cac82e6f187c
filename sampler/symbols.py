"""Function names of one binary, by linked address.

From .symtab and .dynsym, else the compressed .gnu_debugdata (MiniDebugInfo), else the separate debug file of
the same build id. Names are read from the file when they are asked for; only addresses are held. Where no
symbol covers an address the function is named by its start in .eh_frame_hdr ("libcuda.so.1!0x1d2f40"): the
same for every sample in that function.

.eh_frame_hdr (LSB): version 1, encodings of the pointer (u8), count (u8) and table (u8), the pointer, the
count, then pairs (start of function, its FDE), s32 relative to the header, sorted. FDE: length, CIE pointer,
start s32 relative to itself, size.
"""

from __future__ import annotations

import os
import struct
from array import array
from bisect import bisect_right
from dataclasses import dataclass

import numpy as np

from gpuprof.sampler.demangle import MAX_MANGLED, display_name
from gpuprof.sampler.elf import ElfError, ElfFile

MAX_DEBUGDATA_BYTES = 64 << 20
DEBUG_ROOT = "/usr/lib/debug/.build-id"
_MAX_COVERING_STEPS = 16
_MAX_LABEL_DISTANCE = 1 << 16
_HDR_ENCODINGS = (0x1B, 0x03, 0x3B)  # pcrel sdata4, udata4, datarel sdata4: what every linker writes
_RANK_LABEL = 4


@dataclass(frozen=True, slots=True, eq=False)
class Symbol:
    """A function: its name for display and its linked start address. `known` is False for a name made from an
    address.
    """

    name: str
    start: int
    known: bool = True


class BinarySymbols:
    """Names of one ELF file, which stays open. `name` is the file's base name, for made-up names. Never
    raises.
    """

    def __init__(self, fd: int, name: str) -> None:
        self.name = name
        self._fd = fd
        self._elf: ElfFile | None = None
        self._names: ElfFile | None = None  # where names are read: the file itself, or its debug file
        self._by_start: dict[int, Symbol] = {}
        self._function_starts: array[int] | None = None
        # Columns as array.array: bisect and single items cost a fraction of what they do in numpy.
        self._value = array("Q")
        self._size = array("I")
        self._name = array("Q")
        self._rank = b""
        self._loaded = False

    def close(self) -> None:
        """Close the files. Names that were asked for before stay known."""
        if not self._loaded:
            os.close(self._fd)
            self._loaded = True
        for elf in {self._elf, self._names}:
            if elf is not None:
                elf.close()
        self._elf = self._names = None

    @property
    def nbytes(self) -> int:
        """Memory of the arrays."""
        starts = self._function_starts or array("Q")
        return 21 * len(self._value) + 8 * len(starts)

    def load_bias(self, start: int, file_offset: int) -> int | None:
        """Runtime minus linked address of an executable mapping."""
        self._load_once()
        return self._elf.load_bias(start, file_offset) if self._elf is not None else None

    def lookup(self, address: int) -> Symbol:
        """The function that holds a linked address."""
        self._load_once()
        index = self._covering(address)
        if index is not None:
            start = self._value[index]
            symbol = self._by_start.get(start)
            if symbol is None:
                symbol = self._by_start[start] = Symbol(self._name_of(index), start)
            return symbol
        return self._unnamed(address)

    def _load_once(self) -> None:
        if not self._loaded:
            self._loaded = True
            try:
                self._elf = ElfFile(self._fd)
                self._load()
            except ElfError:
                pass

    def _load(self) -> None:
        assert self._elf is not None
        self._names = self._elf
        symbols = self._elf.function_symbols()
        if self._elf.section(".symtab") is None:
            for other in (self._mini_debug_info, self._debug_file):
                debug = other()
                if debug is None:
                    continue
                try:
                    more = debug.function_symbols()
                except ElfError:
                    more = symbols
                if len(more.value) > len(symbols.value):
                    symbols, self._names = more, debug
                    break
                debug.close()
        self._value = array("Q", symbols.value.tobytes())
        self._size = array("I", symbols.size.tobytes())
        self._name = array("Q", symbols.name.tobytes())
        self._rank = symbols.rank.tobytes()

    def _mini_debug_info(self) -> ElfFile | None:
        assert self._elf is not None
        section = self._elf.section(".gnu_debugdata")
        if section is None or section.size > MAX_DEBUGDATA_BYTES:
            return None
        try:
            import lzma

            data = lzma.LZMADecompressor(memlimit=MAX_DEBUGDATA_BYTES).decompress(
                self._elf.read(section.offset, section.size), MAX_DEBUGDATA_BYTES
            )
        except (ImportError, MemoryError, ElfError, EOFError, ValueError, lzma.LZMAError):
            return None
        fd = os.memfd_create("debugdata", os.MFD_CLOEXEC)
        try:
            os.write(fd, data)
            return ElfFile(fd)
        except (OSError, ElfError):
            return None

    def _debug_file(self) -> ElfFile | None:
        """The separate debug file of this build id, where the distribution's debug package is installed."""
        assert self._elf is not None
        build_id = self._elf.build_id
        if build_id is None or len(build_id) < 3:
            return None
        path = f"{DEBUG_ROOT}/{build_id[:1].hex()}/{build_id[1:].hex()}.debug"
        try:
            debug = ElfFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))
        except (OSError, ElfError):
            return None
        if debug.build_id != build_id:
            debug.close()
            return None
        return debug

    def _covering(self, address: int) -> int | None:
        """Index of the best symbol at or before an address that covers it; labels without size reach to the
        next one.
        """
        value, size = self._value, self._size
        at = bisect_right(value, address) - 1
        label = None
        for index in range(at, max(at - _MAX_COVERING_STEPS, -1), -1):
            start, length = value[index], size[index]
            if length and address < start + length:
                return self._first_at(index)
            if not length and label is None and address - start < _MAX_LABEL_DISTANCE and start == value[at]:
                label = index
        return label

    def _first_at(self, index: int) -> int:
        """The best of the symbols with the same address, which are sorted by rank."""
        value, size = self._value, self._size
        while index > 0 and value[index - 1] == value[index] and size[index - 1] == size[index]:
            index -= 1
        return index

    def _name_of(self, index: int) -> str:
        """Name of a symbol; of aliases the one with the fewest leading underscores, which is the one people
        know.
        """
        value, rank = self._value, self._rank
        names = []
        for other in range(index, min(index + 8, len(value))):
            if value[other] != value[index] or rank[other] >= _RANK_LABEL > rank[index]:
                break
            name = self._read_name(self._name[other])
            if name:
                names.append((len(name) - len(name.lstrip(b"_")), rank[other], len(name), name))
        return display_name(min(names)[3]) if names else f"{self.name}!{value[index]:#x}"

    def _read_name(self, offset: int) -> bytes:
        if self._names is None:
            return b""
        for size in (256, MAX_MANGLED + 1):
            try:
                text = self._names.read(offset, max(min(size, self._names.size - offset), 0))
            except ElfError:
                return b""
            end = text.find(b"\0")
            if end >= 0:
                return text[:end]
        return text

    def _unnamed(self, address: int) -> Symbol:
        """A name from the function's start in the unwind table, the same for all its addresses."""
        function = self._function_start(address)
        if function is None:
            return Symbol(f"[no symbols in {self.name}]", 0, known=False)
        symbol = self._by_start.get(function)
        if symbol is None:
            symbol = self._by_start[function] = Symbol(f"{self.name}!{function:#x}", function, known=False)
        return symbol

    def _function_start(self, address: int) -> int | None:
        try:
            if self._function_starts is None:
                self._function_starts = array("Q")  # tried once, also when it fails
                self._function_starts = self._read_function_starts()
            starts = self._function_starts
            index = bisect_right(starts, address) - 1
            if index < 0:
                return None
            start = starts[index]
            return start if address < start + self._function_size(index, start) else None
        except (ElfError, struct.error):
            return None

    def _read_function_starts(self) -> array[int]:
        header = self._elf.eh_frame_hdr() if self._elf is not None else None
        if header is None or self._elf is None:
            return array("Q")
        offset, size, vaddr = header
        version, *encodings = struct.unpack("<4B", self._elf.read(offset, 4))
        if version != 1 or tuple(encodings) != _HDR_ENCODINGS or size < 12:
            return array("Q")
        (count,) = struct.unpack("<I", self._elf.read(offset + 8, 4))
        count = min(count, (size - 12) // 8)
        pairs = np.frombuffer(self._elf.read(offset + 12, 8 * count), "<i4").reshape(-1, 2)
        return array("Q", (pairs[:, 0].astype(np.int64) + vaddr).tobytes())

    def _function_size(self, index: int, start: int) -> int:
        """Length of a function by its FDE, so that code behind it that has no FDE is not taken for it."""
        if self._elf is None:
            return 0
        header = self._elf.eh_frame_hdr()
        if header is None:
            return 0
        offset, _, vaddr = header
        (relative,) = struct.unpack("<i", self._elf.read(offset + 12 + 8 * index + 4, 4))
        fde = self._elf.offset_of(vaddr + relative)
        if fde is None:
            return 0
        begin, size = struct.unpack("<iI", self._elf.read(fde + 8, 8))
        return size if vaddr + relative + 8 + begin == start else 0
