"""Unwind tables in memory files instead of BPF maps, looked up as the kernel's side does, against the rows
themselves.
"""

from __future__ import annotations

import bisect
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from gpuprof.bpf import syscalls
from gpuprof.bpf.ehframe import EhFrameError, UnwindRows, build_rows
from gpuprof.bpf.programs import TableSizes
from gpuprof.sampler import unwind_binaries, unwind_tables
from gpuprof.sampler.elf import PF_X, ElfFile
from gpuprof.sampler.maps import Mapping, read_maps
from gpuprof.sampler.table_space import TableSpace
from gpuprof.sampler.unwind_rules import RuleTable
from gpuprof.sampler.unwind_tables import MAPPING, QUARANTINE_NS, RETIRE_NS, UnwindTables


class FakePrograms:
    """Maps as memfds, and the hash of processes as a dict."""

    def __init__(self, sizes: TableSizes) -> None:
        self.sizes = sizes
        self.processes: dict[bytes, bytes] = {}
        elements = {
            "unwind_mappings": sizes.mappings * 40,
            "unwind_pages": sizes.pages * 8,
            "unwind_rows": sizes.row_blocks * 64,
            "unwind_rules": sizes.rules * 8,
            "python_layouts": sizes.python_layouts * 40,
        }
        self.maps = {name: os.memfd_create(name) for name in elements}
        for name, size in elements.items():
            os.ftruncate(self.maps[name], size + 4095 & ~4095)
        self.maps["processes"] = self.maps["unwind_binaries"] = self.maps["thread_states"] = -1

    def close(self) -> None:
        for fd in self.maps.values():
            if fd >= 0:
                os.close(fd)

    def table(self, name: str, dtype: object) -> np.ndarray:
        fd = self.maps[name]
        data = os.pread(fd, os.fstat(fd).st_size, 0)
        return np.frombuffer(data, dtype, len(data) // np.dtype(dtype).itemsize)  # type: ignore[call-overload]

    def rule_at(self, pid: int, address: int) -> int | str:
        """What the BPF side finds for an address: a packed rule, or why there is none."""
        value = self.processes.get(struct.pack("<I", pid))
        if value is None:
            return "no tables"
        first, count, _, serial = struct.unpack("<IIII16x", value)
        mappings = self.table("unwind_mappings", MAPPING)
        if mappings[first]["start"] != serial:
            return "withdrawn"
        run = mappings[first + 1 : first + 1 + count]
        index = bisect.bisect_right(run["start"].tolist(), address) - 1
        if index < 0 or address >= run[index]["end"]:
            return "no mapping"
        mapping = run[index]
        if mapping["kind"] != 0:
            return f"kind {mapping['kind']}"
        linked = address - int(mapping["bias"]) & (1 << 64) - 1
        page = (linked >> 16) - int(mapping["first_page"])
        if not 0 <= page < mapping["pages"]:
            return 0
        low, high = (
            self.table("unwind_pages", "<u4").reshape(-1, 2)[int(mapping["page_base"]) + page].tolist()
        )
        rows = self.table("unwind_rows", "<u4")
        row = low + bisect.bisect_right((rows[low:high] & 0xFFFF).tolist(), linked & 0xFFFF) - 1
        return int(self.table("unwind_rules", "<u8")[rows[row] >> 16])


SIZES = TableSizes(row_blocks=200_000, mappings=400, pages=8000, rules=16384, python_layouts=8)


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakePrograms]:
    fake = FakePrograms(SIZES)
    install(fake, monkeypatch)
    own = unwind_binaries.open_mapping
    monkeypatch.setattr(unwind_binaries, "open_mapping", lambda pid, mapping: own(os.getpid(), mapping))
    yield fake
    fake.close()


def install(fake: FakePrograms, monkeypatch: pytest.MonkeyPatch) -> None:
    def update(fd: int, key: bytes, value: bytes) -> None:
        fake.processes[key] = value

    monkeypatch.setattr(syscalls, "map_lookup", lambda fd, key, size: fake.processes.get(key))
    monkeypatch.setattr(syscalls, "map_update", update)
    monkeypatch.setattr(syscalls, "map_delete", lambda fd, key: fake.processes.pop(key, None) is not None)


class Clock:
    now = 0

    def __call__(self) -> int:
        return self.now


def own_mappings() -> list[Mapping]:
    return read_maps(os.getpid())


def library(mappings: list[Mapping], name: str) -> Mapping:
    return next(mapping for mapping in mappings if mapping.name.startswith(name))


def rows_of(mapping: Mapping) -> tuple[UnwindRows, int]:
    assert mapping.path is not None
    with ElfFile(os.open(mapping.path, os.O_RDONLY)) as elf:
        location = elf.eh_frame()
        bias = elf.load_bias(mapping.start, mapping.offset)
        assert location is not None
        assert bias is not None
        ranges = [(s.vaddr, s.vaddr + s.file_size) for s in elf.loads if s.flags & PF_X]
        return build_rows(elf.read(location[0], location[1]), location[2], ranges), bias


def check_library(programs: FakePrograms, pid: int, mapping: Mapping) -> None:
    """Every hundredth row, its own address and the last address before the next row."""
    rows, bias = rows_of(mapping)
    addresses = rows.addresses().astype(np.int64)
    for index in range(0, len(addresses) - 1, max(len(addresses) // 60, 1)):
        expected = int(rows.rules[rows.rows[index + 1] >> 16])
        for address in (int(addresses[index]), int(addresses[index + 1]) - 1):
            if mapping.start <= bias + address < mapping.end:
                assert programs.rule_at(pid, bias + address) == expected


def test_published_rules_are_those_of_the_binaries(programs: FakePrograms) -> None:
    tables = UnwindTables(programs)  # type: ignore[arg-type]
    mappings = own_mappings()
    tables.publish(1, mappings, None)
    check_library(programs, 1, library(mappings, "libc."))
    check_library(programs, 1, library(mappings, "libm."))
    assert programs.rule_at(1, 0x10) == "no mapping"
    assert programs.rule_at(2, library(mappings, "libc.").start) == "no tables"
    assert tables.problem() is None


def test_anonymous_code_goes_by_frame_pointer_and_rubbish_has_no_table(
    programs: FakePrograms, tmp_path: Path
) -> None:
    tables = UnwindTables(programs)  # type: ignore[arg-type]
    jit = Mapping(0x10000, 0x20000, 0, "00:00", 0, None, False, True, "anonymous", "[anon]")
    rubbish = Mapping(0x30000, 0x40000, 0, "01:01", 5, "/gone", False, True, "file", "gone")
    tables.publish(1, [jit, rubbish], None)
    assert programs.rule_at(1, 0x10000) == "kind 1"
    assert programs.rule_at(1, 0x30000) == "kind 2"
    assert len(tables.binary_problems()) == 1


def test_a_binary_that_did_not_open_is_tried_again(
    programs: FakePrograms, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(pid: int, mapping: Mapping) -> int:
        raise FileNotFoundError(2, "No such file or directory")

    tables = UnwindTables(programs)  # type: ignore[arg-type]
    mappings = [library(own_mappings(), "libc.")]
    with monkeypatch.context() as patch:
        patch.setattr(unwind_binaries, "open_mapping", gone)
        tables.publish(1, mappings, None)
    assert programs.rule_at(1, mappings[0].start) == "kind 2"
    tables.publish(2, mappings, None)
    check_library(programs, 2, mappings[0])
    tables.publish(1, mappings, None)
    check_library(programs, 1, mappings[0])


def test_publishing_the_same_again_changes_nothing(programs: FakePrograms) -> None:
    tables = UnwindTables(programs)  # type: ignore[arg-type]
    tables.publish(1, own_mappings(), None)
    before, usage = dict(programs.processes), tables.usage()
    tables.publish(1, own_mappings(), None)
    assert programs.processes == before
    assert tables.usage() == usage


def test_space_of_processes_comes_back(programs: FakePrograms) -> None:
    clock = Clock()
    tables = UnwindTables(programs, clock)  # type: ignore[arg-type]
    mappings = own_mappings()
    address = library(mappings, "libc.").start + 0x100
    for round_ in range(60):  # 60 runs of ten and more mappings do not fit in 400 at once
        tables.publish(round_, mappings, None)
        assert programs.rule_at(round_, address) not in ("no tables", "withdrawn", "no mapping")
        tables.forget(round_)
        assert programs.rule_at(round_, address) == "no tables"
        clock.now += RETIRE_NS
        tables.housekeeping()
        clock.now += QUARANTINE_NS
        tables.housekeeping()
    assert tables.usage()["mappings"][0] == 1
    assert tables.problem() is None


def test_a_child_keeps_the_run_of_a_parent_that_is_gone(programs: FakePrograms) -> None:
    clock = Clock()
    tables = UnwindTables(programs, clock)  # type: ignore[arg-type]
    mappings = own_mappings()
    tables.publish(1, mappings, None)
    programs.processes[struct.pack("<I", 2)] = programs.processes[struct.pack("<I", 1)]  # as on_fork does
    tables.forget(1)
    assert tables.fork(2)
    assert tables.knows(2)
    for _ in range(4):
        clock.now += RETIRE_NS
        tables.housekeeping()
    check_library(programs, 2, library(mappings, "libc."))
    tables.forget(2)
    clock.now += RETIRE_NS
    tables.housekeeping()
    assert not tables.fork(2)


def test_a_fork_that_was_missed_does_not_walk_with_reused_entries(programs: FakePrograms) -> None:
    clock = Clock()
    tables = UnwindTables(programs, clock)  # type: ignore[arg-type]
    mappings = own_mappings()
    tables.publish(1, mappings, None)
    programs.processes[struct.pack("<I", 2)] = programs.processes[struct.pack("<I", 1)]
    tables.forget(1)
    for _ in range(2):
        clock.now += RETIRE_NS
        tables.housekeeping()
    tables.publish(3, mappings[1:], None)
    assert programs.rule_at(2, mappings[0].start) == "withdrawn"
    assert not tables.fork(2)


def test_the_table_of_mappings_full(programs: FakePrograms) -> None:
    tables = UnwindTables(programs)  # type: ignore[arg-type]
    jit = [
        Mapping(i << 16, (i << 16) + 4096, 0, "0:0", 0, None, False, True, "anonymous", "")
        for i in range(1, 150)
    ]
    for pid in range(4):
        tables.publish(pid, jit, None)
    assert tables.problem() is not None
    assert programs.rule_at(0, 1 << 16) == "kind 1"
    assert programs.rule_at(3, 1 << 16) == "no tables"


def binary_of(number: int, rows: int, first_page: int = 1) -> UnwindRows:
    """`rows` rows in one page, all with a rule of the binary's own."""
    table = np.arange(rows + 1, dtype=np.uint32) | np.uint32(1 << 16)
    table[0] = 0
    starts = np.array([1, rows + 1], np.uint32)
    return UnwindRows(table, starts, first_page, np.array([0, 1 + (number << 32)], np.uint64), 1, 0)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakePrograms]:
    """Room for 100 blocks; binary i has 16 * size[i] - 1 rows in page 1 and is mapped at (i + 1) << 20."""
    fake = FakePrograms(TableSizes(row_blocks=100, mappings=400, pages=64, rules=20, python_layouts=2))
    install(fake, monkeypatch)
    monkeypatch.setattr(unwind_binaries, "ElfFile", NoElf)
    monkeypatch.setattr(unwind_binaries, "open_mapping", lambda pid, mapping: mapping.inode)
    monkeypatch.setattr(unwind_tables, "load_bias", lambda loads, start, offset: start - (1 << 16))

    def build(section: bytes, address: int, ranges: object) -> UnwindRows:
        number, blocks = divmod(address, 1000)
        if not blocks:
            raise EhFrameError("no rows")
        return binary_of(number, 16 * blocks - 1)

    monkeypatch.setattr(unwind_binaries, "build_rows", build)
    yield fake
    fake.close()


class NoElf:
    loads: list[object] = []  # noqa: RUF012

    def __init__(self, number: int) -> None:
        self.number = number

    def __enter__(self) -> NoElf:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def eh_frame(self) -> tuple[int, int, int]:
        return 0, 0, self.number

    def read(self, offset: int, size: int) -> bytes:
        return b""


def fake_mapping(number: int, blocks: int) -> Mapping:
    start = (number + 1) << 20
    return Mapping(start, start + 0x10000, 0, "0:1", number * 1000 + blocks, "/x", False, True, "file", "x")


def assert_whole(fake: FakePrograms, pid: int, number: int) -> None:
    start = (number + 1) << 20
    assert fake.rule_at(pid, start) == 0
    assert fake.rule_at(pid, start + 1) == 1 + (number << 32)
    assert fake.rule_at(pid, start + 0x7FFF) == 1 + (number << 32)


def retire(tables: UnwindTables, clock: Clock) -> None:
    for _ in range(2):
        clock.now += RETIRE_NS
        tables.housekeeping()


def test_binaries_that_nobody_uses_make_room(small: FakePrograms) -> None:
    clock = Clock()
    tables = UnwindTables(small, clock)  # type: ignore[arg-type]
    for number in range(10):
        tables.publish(number, [fake_mapping(number, 30)], None)
        assert_whole(small, number, number)
        tables.forget(number)
        retire(tables, clock)
    assert tables.problem() is None


def test_what_is_in_use_stays_and_the_rest_is_said_to_be_full(small: FakePrograms) -> None:
    clock = Clock()
    tables = UnwindTables(small, clock)  # type: ignore[arg-type]
    for number in range(4):
        tables.publish(number, [fake_mapping(number, 30)], None)
    for number in range(3):
        assert_whole(small, number, number)
    assert small.rule_at(3, 4 << 20) == "kind 2"
    assert tables.problem() is not None
    tables.forget(0)
    tables.forget(3)
    retire(tables, clock)
    tables.publish(5, [fake_mapping(3, 30)], None)
    assert_whole(small, 5, 3)


def test_pieces_are_moved_together(small: FakePrograms) -> None:
    clock = Clock()
    tables = UnwindTables(small, clock)  # type: ignore[arg-type]
    for number, blocks in enumerate((30, 20, 30, 20)):
        tables.publish(number, [fake_mapping(number, blocks)], None)
    tables.forget(0)
    tables.forget(2)
    retire(tables, clock)
    tables.publish(7, [fake_mapping(7, 50)], None)  # 60 blocks are free, in pieces of 30
    assert_whole(small, 1, 1)
    assert_whole(small, 3, 3)
    assert_whole(small, 7, 7)
    assert tables.problem() is None


def test_rules_that_no_rows_use_are_dropped(small: FakePrograms) -> None:
    clock = Clock()
    tables = UnwindTables(small, clock)  # type: ignore[arg-type]
    for number in range(100):  # the table holds 20 rules
        tables.publish(number, [fake_mapping(number, 40)], None)
        assert_whole(small, number, number)
        tables.forget(number)
        retire(tables, clock)
    assert tables.problem() is None


def test_table_space() -> None:
    space = TableSpace(100, 1)
    spans = [space.take(20) for _ in range(4)]
    assert spans == [1, 21, 41, 61]
    assert space.take(20) is None
    assert (space.free, space.largest) == (19, 19)
    space.give_back(21, 20)
    assert (space.free, space.largest) == (39, 20)
    space.give_back(1, 20)
    assert space.largest == 40
    space.give_back(61, 20)
    space.give_back(41, 20)
    assert (space.free, space.largest) == (99, 99)


def test_rule_table() -> None:
    table = RuleTable(4)
    added = table.add(np.array([0, 7, 8, 7], np.uint64))
    assert added is not None
    assert added[0].tolist() == [0, 1, 2, 1]
    assert added[1] == [(1, 7), (2, 8)]
    assert table.add(np.array([9, 10], np.uint64)) is None
    table.sweep(np.array([True, False, True, False]))
    again = table.add(np.array([9, 10], np.uint64))
    assert again is not None
    assert sorted(again[0].tolist()) == [1, 3]
