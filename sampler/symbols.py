"""Function names of one binary, by linked address.

From .symtab and .dynsym, else the compressed .gnu_debugdata (MiniDebugInfo), else the separate debug file of
the same build id. Names are read from the file when they are asked for; only addresses are held. Where no
symbol covers an address the function is named by its start in .eh_frame_hdr ("libcuda.so.1!0x1d2f40"): the
same for every sample in that function.
"""

from __future__ import annotations

import contextlib
import os
import struct
from dataclasses import dataclass

from gpuprof.sampler.demangle import MAX_MANGLED, display_name
from gpuprof.sampler.elf import ElfError, ElfFile
from gpuprof.sampler.function_index import FunctionIndex
from gpuprof.sampler.symbol_table import SymbolTable

MAX_DEBUGDATA_BYTES = 64 << 20
MAX_NAMED = 8192  # functions whose names are kept, some 250 bytes each; they are in the file
DEBUG_ROOT = "/usr/lib/debug/.build-id"


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
        self._table = SymbolTable()
        self._functions: FunctionIndex | None = None
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
        return self._table.nbytes

    def load_bias(self, start: int, file_offset: int) -> int | None:
        """Runtime minus linked address of an executable mapping."""
        self._load_once()
        return self._elf.load_bias(start, file_offset) if self._elf is not None else None

    def lookup(self, address: int) -> Symbol:
        """The function that holds a linked address."""
        return self.lookup_span(address)[0]

    def lookup_span(self, address: int) -> tuple[Symbol, int]:
        """The function that holds a linked address, and an address up to which all from this one on are
        in it."""
        self._load_once()
        table = self._table
        index = table.covering(address)
        end = table.next_start(address)
        if index is not None:
            start = table.start(index)
            symbol = self._by_start.get(start)
            if symbol is None:
                symbol = self._keep(Symbol(self._name_of(index), start))
            return symbol, min(end, table.reach(index))
        symbol, function_end = self._unnamed(address)
        return symbol, min(end, function_end)

    def code(self, address: int, size: int) -> bytes:
        """The bytes of the file at a linked address; fewer, or none, where they cannot be read."""
        self._load_once()
        try:
            offset = self._elf.offset_of(address) if self._elf is not None else None
            return self._elf.read(offset, size) if self._elf is not None and offset is not None else b""
        except ElfError:
            return b""

    def _load_once(self) -> None:
        if not self._loaded:
            self._loaded = True
            try:
                self._elf = ElfFile(self._fd)
                self._functions = FunctionIndex(self._elf)
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
        self._table = SymbolTable(symbols)
        for elf in {self._elf, self._names}:
            with contextlib.suppress(AttributeError):
                del elf.sections  # some 10 KB that are not needed again; they would be read anew
            elf.segments = elf.loads  # nothing else is asked for from now on

    def _mini_debug_info(self) -> ElfFile | None:
        assert self._elf is not None
        section = self._elf.section(".gnu_debugdata")
        if section is None or section.size > MAX_DEBUGDATA_BYTES:
            return None
        try:
            import lzma
        except ImportError:  # a Python that was built without it
            return None
        try:
            data = lzma.LZMADecompressor(memlimit=MAX_DEBUGDATA_BYTES).decompress(
                self._elf.read(section.offset, section.size), MAX_DEBUGDATA_BYTES
            )
        except (MemoryError, ElfError, EOFError, ValueError, lzma.LZMAError):
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

    def _name_of(self, index: int) -> str:
        """Name of a symbol; of aliases the one with the fewest leading underscores, which is the one people
        know.
        """
        names = []
        for offset, rank in self._table.aliases(index):
            name = self._read_name(offset)
            if name:
                names.append((len(name) - len(name.lstrip(b"_")), rank, len(name), name))
        return display_name(min(names)[3]) if names else f"{self.name}!{self._table.start(index):#x}"

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

    def _unnamed(self, address: int) -> tuple[Symbol, int]:
        """A name from the function's start in the unwind table, the same for all its addresses; and its
        end."""
        function = self._function(address)
        if function is None:
            return Symbol(f"[no symbols in {self.name}]", 0, known=False), address + 1
        start, end = function
        symbol = self._by_start.get(start)
        if symbol is None:
            symbol = self._keep(Symbol(f"{self.name}!{start:#x}", start, known=False))
        return symbol, end

    def _keep(self, symbol: Symbol) -> Symbol:
        if len(self._by_start) >= MAX_NAMED:
            self._by_start.clear()
        self._by_start[symbol.start] = symbol
        return symbol

    def _function(self, address: int) -> tuple[int, int] | None:
        try:
            return self._functions.find(address) if self._functions is not None else None
        except (ElfError, struct.error):
            return None
