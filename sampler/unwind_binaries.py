"""The unwind rows of binaries in the kernel's tables: built once, shared by all processes, dropped when space
is wanted.

A binary takes blocks of 16 rows, pages (one per 64 KiB of text, each naming its first and last row) and
rules, which are shared between binaries.
"""

from __future__ import annotations

import contextlib
import struct
import time
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gpuprof.bpf import syscalls
from gpuprof.bpf.ehframe import EhFrameError, UnwindRows, build_rows
from gpuprof.bpf.messages import pack_key
from gpuprof.bpf.programs import StackPrograms
from gpuprof.sampler.elf import PF_X, ElfError, ElfFile, Segment
from gpuprof.sampler.map_window import MapWindow
from gpuprof.sampler.maps import Mapping, open_mapping
from gpuprof.sampler.table_space import TableSpace
from gpuprof.sampler.unwind_rules import RuleTable

MAX_EH_FRAME_BYTES = 64 << 20
MAX_UNUSED = 512  # binaries that are kept although no process uses them
ROWS_PER_BLOCK = 16
TABLE_FULL = "the unwind table is full"
_CHUNK = 1 << 18  # rows at a time, which bounds our own memory
_PAGE = np.dtype([("first", "<u4"), ("last", "<u4")])
_DIRECTORY_HEAD = struct.Struct("<IIII")  # struct unwind_binary, and its code_segment
_DIRECTORY_CODE = struct.Struct("<QQQ")
_WALK_S = 0.001  # a walk that has begun ends within this


@dataclass(slots=True, eq=False)
class Binary:
    """A mapped file and where its rows are. `problem`: why it has none; `retry`: it may open through another
    process.
    """

    key: Hashable
    loads: list[Segment] = field(default_factory=list)
    first_page: int = 0
    pages: int = 0
    page_base: int = 0
    block_base: int = 0
    blocks: int = 0
    problem: str | None = None
    retry: bool = False
    users: int = 0
    python: int = 0  # index of the layout of the interpreter that it holds; 0: none that is known


class UnwindBinaries:
    """All binaries by key. acquire() and release() count users."""

    def __init__(self, programs: StackPrograms) -> None:
        sizes, maps = programs.sizes, programs.maps
        self._page_map = MapWindow(maps["unwind_pages"], sizes.pages, _PAGE)
        self._directory_fd = maps["unwind_binaries"]
        self._row_map = MapWindow(maps["unwind_rows"], sizes.row_blocks * ROWS_PER_BLOCK, np.uint32)
        self._rule_map = MapWindow(maps["unwind_rules"], sizes.rules, np.uint64)
        self.page_space = TableSpace(sizes.pages)
        self.block_space = TableSpace(sizes.row_blocks)
        self.rules = RuleTable(sizes.rules)
        self._by_key: dict[Hashable, Binary] = {}
        self._unused: OrderedDict[Hashable, Binary] = OrderedDict()
        self.fragmented = False  # set when a binary did not fit although there is room in pieces
        self.build_ns = 0  # spent in parsing so far

    def acquire(self, pid: int, mapping: Mapping) -> Binary | None:
        """The binary behind a mapping, built when it is new; None for anonymous memory. To release()."""
        key = mapping.key
        if key is None:
            return None
        binary = self._by_key.get(key)
        if binary is None:
            binary = self._by_key[key] = Binary(key, users=1)
            self._build(pid, mapping, binary)
            return binary
        if binary.users == 0:
            self._unused.pop(key, None)
        binary.users += 1
        if binary.retry:
            self._build(pid, mapping, binary)
        return binary

    def release(self, binary: Binary) -> None:
        """One user less."""
        binary.users -= 1
        if binary.users > 0:
            return
        if binary.problem == TABLE_FULL:
            self._by_key.pop(binary.key, None)  # there may be room when it comes again
            return
        self._unused[binary.key] = binary
        if len(self._unused) > MAX_UNUSED:
            self._evict_oldest()

    @property
    def full(self) -> bool:
        """Is there a binary in use that did not fit? From any thread."""
        return any(binary.problem == TABLE_FULL for binary in list(self._by_key.values()))

    def problems(self) -> dict[Hashable, str]:
        """Binaries without rows, and why. From any thread."""
        known = list(self._by_key.items())
        return {key: binary.problem for key, binary in known if binary.problem is not None}

    def set_python(self, key: Hashable, index: int) -> None:
        """Note that a binary holds an interpreter, whose layout has this index."""
        binary = self._by_key.get(key)
        if binary is not None and binary.python != index:
            binary.python = index
            self._announce(binary)

    def _announce(self, binary: Binary) -> None:
        """Tell the kernel where a binary's rows are, for processes that were not published."""
        key = pack_key(binary.key)
        if key is None or binary.retry:
            return
        if not binary.blocks and binary.problem == TABLE_FULL:
            return
        code = [s for s in binary.loads if s.flags & PF_X][:2]
        value = _DIRECTORY_HEAD.pack(
            binary.first_page, binary.pages if binary.blocks else 0, binary.page_base, binary.python
        )
        for segment in code:
            begin = segment.offset & -4096
            delta = (segment.vaddr - segment.offset) & 0xFFFFFFFFFFFFFFFF
            value += _DIRECTORY_CODE.pack(begin, segment.offset + segment.file_size, delta)
        value += bytes(_DIRECTORY_CODE.size) * (2 - len(code))
        with contextlib.suppress(
            OSError
        ):  # full: such a binary's new processes wait until they are published
            syscalls.map_update(self._directory_fd, key, value)

    def _withdraw(self, binary: Binary) -> None:
        key = pack_key(binary.key)
        if key is not None:
            syscalls.map_delete(self._directory_fd, key)

    def compact(self) -> None:
        """Move all rows and pages together. Nothing must walk meanwhile; `page_base` of binaries changes."""
        while self._unused:
            self._evict_oldest()
        stored = sorted((b for b in self._by_key.values() if b.blocks), key=lambda b: b.block_base)
        starts = {b.key: self._page_map.read(b.page_base, b.pages) for b in stored}
        for binary in stored:
            self._withdraw(binary)
        time.sleep(_WALK_S)
        self.block_space = TableSpace(self.block_space.size)
        self.page_space = TableSpace(self.page_space.size)
        for binary in stored:
            old_row = binary.block_base * ROWS_PER_BLOCK
            block_base, page_base = self.block_space.take(binary.blocks), self.page_space.take(binary.pages)
            if block_base is None or page_base is None:  # cannot be: they fitted before
                raise RuntimeError("unwind tables do not fit after compaction")
            new_row = block_base * ROWS_PER_BLOCK
            for at in range(0, binary.blocks * ROWS_PER_BLOCK, _CHUNK):
                count = min(_CHUNK, binary.blocks * ROWS_PER_BLOCK - at)
                self._row_map.write(new_row + at, self._row_map.read(old_row + at, count))
            pages = starts[binary.key]
            for column in ("first", "last"):
                pages[column] = pages[column].astype(np.int64) + (new_row - old_row)
            binary.block_base, binary.page_base = block_base, page_base
            self._page_map.write(page_base, pages)
            self._announce(binary)
        self.fragmented = False

    def _build(self, pid: int, mapping: Mapping, binary: Binary) -> None:
        started = time.monotonic_ns()
        binary.problem, binary.retry = None, False
        try:
            rows = self._read_rows(pid, mapping, binary)
            if not self._store(binary, rows):
                binary.problem = TABLE_FULL
        except OSError as error:  # most often the process is gone already
            binary.problem, binary.retry = str(error), True
        except (ElfError, EhFrameError) as error:
            binary.problem = str(error)
        self._announce(binary)
        self.build_ns += time.monotonic_ns() - started

    def _read_rows(self, pid: int, mapping: Mapping, binary: Binary) -> UnwindRows:
        with ElfFile(open_mapping(pid, mapping)) as elf:
            binary.loads = elf.loads
            location = elf.eh_frame()
            if location is None:
                raise EhFrameError("it has no .eh_frame")
            offset, size, address = location
            if size > MAX_EH_FRAME_BYTES:
                raise EhFrameError("its .eh_frame is too large")
            ranges = [(s.vaddr, s.vaddr + s.file_size) for s in elf.loads if s.flags & PF_X]
            return build_rows(elf.read(offset, size), address, ranges)

    def _store(self, binary: Binary, rows: UnwindRows) -> bool:
        blocks = -(-len(rows.rows) // ROWS_PER_BLOCK)
        pages = len(rows.page_starts) - 1
        if not self._make_room(blocks, pages):
            return False
        added = self.rules.add(rows.rules)
        if added is None:
            self.rules.sweep(self._used_rules())
            added = self.rules.add(rows.rules)
            if added is None:
                return False
        index, written = added
        for place, value in written:
            self._rule_map.write(place, np.array([value], np.uint64))
        block_base, page_base = self.block_space.take(blocks), self.page_space.take(pages)
        if block_base is None or page_base is None:
            raise RuntimeError("room that was made is gone")
        first_row = block_base * ROWS_PER_BLOCK
        for at in range(0, len(rows.rows), _CHUNK):
            part = rows.rows[at : at + _CHUNK]
            self._row_map.write(first_row + at, index[part >> 16] << np.uint32(16) | part & np.uint32(0xFFFF))
        spans = np.empty(pages, _PAGE)
        spans["first"] = rows.page_starts[:-1] + np.uint32(first_row)
        spans["last"] = rows.page_starts[1:] + np.uint32(first_row)
        self._page_map.write(page_base, spans)
        binary.block_base, binary.blocks = block_base, blocks
        binary.page_base, binary.pages, binary.first_page = page_base, pages, rows.first_page
        return True

    def _make_room(self, blocks: int, pages: int) -> bool:
        """Evict binaries that nobody uses, oldest first, until there is room."""
        evicted = False
        while self.block_space.largest < blocks or self.page_space.largest < pages:
            if not self._unused:
                self.fragmented = self.block_space.free >= blocks and self.page_space.free >= pages
                return False
            self._evict_oldest()
            evicted = True
        if evicted:
            time.sleep(_WALK_S)
        return True

    def _evict_oldest(self) -> None:
        key, binary = self._unused.popitem(last=False)
        self._by_key.pop(key, None)
        self._withdraw(binary)
        self.block_space.give_back(binary.block_base, binary.blocks)
        self.page_space.give_back(binary.page_base, binary.pages)

    def _used_rules(self) -> NDArray[np.bool_]:
        used = np.zeros(self.rules.size, bool)
        for binary in self._by_key.values():
            for at in range(0, binary.blocks * ROWS_PER_BLOCK, _CHUNK):
                count = min(_CHUNK, binary.blocks * ROWS_PER_BLOCK - at)
                used[self._row_map.read(binary.block_base * ROWS_PER_BLOCK + at, count) >> 16] = True
        return used
