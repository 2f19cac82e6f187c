"""Unwind rows against readelf, C against Python, and hostile sections."""

from __future__ import annotations

import os
import random
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gpuprof.bpf import ehframe
from gpuprof.bpf.ehframe import EhFrameError, UnwindRows, build_rows_in_c, open_library
from gpuprof.bpf.ehframe_python import build_rows_in_python
from gpuprof.sampler.elf import PF_X, ElfFile

SOURCE = Path(ehframe.__file__).resolve().parent / "ehframe.c"
WARNINGS = ["-Wall", "-Wextra", "-Wshadow", "-Wconversion", "-Wstrict-prototypes", "-Wpedantic", "-Werror"]
Build = Callable[[bytes, int, list[tuple[int, int]]], UnwindRows]
ADDRESS = 0x400000
CODE = [(0x1000, 0x9000)]


@pytest.fixture(scope="session")
def in_c(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """The C parser, compiled here with every warning an error and the sanitizer for undefined behaviour."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    path = tmp_path_factory.mktemp("ehframe") / ehframe.LIBRARY
    options = ["-std=c11", "-O2", "-shared", "-fPIC", "-fvisibility=hidden", "-fsanitize=undefined",
               "-fsanitize-undefined-trap-on-error"]  # fmt: skip
    subprocess.run([compiler, *WARNINGS, *options, "-o", str(path), str(SOURCE)], check=True)
    library = open_library(path)
    return lambda section, address, ranges: build_rows_in_c(library, section, address, ranges)


def section_of(path: str) -> tuple[bytes, int, list[tuple[int, int]]]:
    with ElfFile(os.open(path, os.O_RDONLY)) as elf:
        location = elf.eh_frame()
        assert location is not None
        offset, size, address = location
        ranges = [(s.vaddr, s.vaddr + s.file_size) for s in elf.loads if s.flags & PF_X]
        return elf.read(offset, size), address, ranges


def mapped_libraries() -> list[str]:
    """libc and the file that holds this interpreter."""
    paths = {
        line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if " r-xp " in line
    }
    names = re.compile(r"/(libc[.-][^/]*so[^/]*|libpython3[^/]*|python3[^/]*)$")
    return sorted(path for path in paths if path.startswith("/") and names.search(path))


def outcome(build: Build, section: bytes, ranges: list[tuple[int, int]], address: int = ADDRESS) -> object:
    try:
        rows = build(section, address, ranges)
    except EhFrameError as error:
        return str(error)
    return (
        rows.rows.tolist(), rows.page_starts.tolist(), rows.first_page, rows.rules.tolist(), rows.fde_count,
        rows.unsupported,
    )  # fmt: skip


# --------------------------------------------------------------------------------------------------- readelf


def rules_by_readelf(path: str) -> list[tuple[int, int, str, dict[str, str], bool]]:
    """(address, end of the FDE, CFA, columns by register, signal frame) of each row of readelf."""
    text = subprocess.run(
        ["readelf", "-wF", path],
        capture_output=True,
        text=True,
        check=False,
        env={"LC_ALL": "C"},
    ).stdout  # its exit status is 1 for mere warnings
    text = text[text.find(".eh_frame section") :]
    signal_cies: set[str] = set()
    rows: list[tuple[int, int, str, dict[str, str], bool]] = []
    end, names, signal = 0, [""], False
    for line in text.splitlines():
        fields = re.sub(r" \(\w+\)", "", line).split()  # readelf writes registers as "r10 (r10)"
        if " CIE " in line:
            end = 0
            if "S" in line.split('"')[1]:
                signal_cies.add(fields[0])
        elif " FDE " in line:
            match = re.search(r"cie=([0-9a-f]+) pc=([0-9a-f]+)\.\.([0-9a-f]+)", line)
            assert match is not None
            end, signal = int(match[3], 16), match[1] in signal_cies
        elif fields[:2] == ["LOC", "CFA"]:
            names = fields[2:]
        elif end and len(fields) >= 2 and re.fullmatch(r"[0-9a-f]{16}", fields[0]):
            row = (int(fields[0], 16), end, fields[1], dict(zip(names, fields[2:], strict=False)), signal)
            if rows and rows[-1][0] == row[0] and rows[-1][1] == end:
                rows.pop()  # of several rows at one address the last one counts
            rows.append(row)
    return rows


def agrees(rule: int, cfa: str, columns: dict[str, str], signal: bool) -> bool:
    """Does a packed rule say what readelf says?"""
    kind, rbp, rbp_offset, offset = struct.unpack("<BBhi", struct.pack("<Q", rule))
    if signal:
        return kind == 7
    if columns.get("ra") == "u":
        return kind == 6
    if columns.get("ra") not in (None, "c-8"):
        return kind == 0
    match = re.fullmatch(r"(\w+?)\+(-?\d+)|(\w+)(-\d+)", cfa)
    if cfa == "exp":
        if kind not in (0, 3, 4, 5):
            return False
    elif match is not None:
        register, value = (match[1], int(match[2])) if match[1] else (match[3], int(match[4]))
        wanted = {"rsp": 1, "rbp": 2}.get(register, 8)
        if kind != wanted or (offset >> 8 if wanted == 8 else offset) != value:
            return False
    column = columns.get("rbp")
    if kind in (0, 6, 7):
        return kind == 0 and cfa == "exp"
    if column is None or column == "u":  # readelf shows a register that is saved later in the function as u
        return rbp in (0, 2)
    if column.startswith("c"):
        return rbp == 1 and rbp_offset == int(column[1:])
    return rbp in (2, 3)


@pytest.mark.skipif(shutil.which("readelf") is None, reason="no readelf")
@pytest.mark.parametrize("path", mapped_libraries())
def test_every_row_of_readelf_has_its_rule(path: str, in_c: Build) -> None:
    rows = in_c(*section_of(path))
    addresses, rules = rows.addresses(), rows.rules[rows.rows[1:] >> 16]
    expected = [row for row in rules_by_readelf(path) if row[0] < row[1]]
    assert len(expected) > (1000 if ".so" in path else 2)
    found = np.searchsorted(addresses, np.array([row[0] for row in expected], np.uint64), "right") - 1
    wrong = [
        (hex(address), cfa, columns, hex(int(rules[index])))
        for index, (address, _, cfa, columns, signal) in zip(found.tolist(), expected, strict=True)
        if not agrees(int(rules[index]), cfa, columns, signal)
    ]
    assert wrong == []


# ------------------------------------------------------------------------------------------- C against Python


@pytest.mark.parametrize("path", mapped_libraries())
def test_python_gives_the_rows_of_c(path: str, in_c: Build) -> None:
    section, address, ranges = section_of(path)
    assert outcome(in_c, section, ranges, address) == outcome(build_rows_in_python, section, ranges, address)


def uleb(value: int) -> bytes:
    out = b""
    while value >= 0x80:
        out, value = out + bytes((value & 0x7F | 0x80,)), value >> 7
    return out + bytes((value,))


def entry(body: bytes) -> bytes:
    body += bytes(-len(body) % 4)
    return struct.pack("<I", len(body)) + body


def cie(instructions: bytes = b"\x0c\x07\x08\x90\x01", augmentation: bytes = b"zR") -> bytes:
    """Absolute 8-byte pointers, factors 1 and -8, return address in register 16, CFA rsp+8 unless told
    otherwise.
    """
    data = b"\x00" if b"R" in augmentation else b""
    return entry(
        bytes(4)
        + b"\x01"
        + augmentation
        + b"\0"
        + uleb(1)
        + b"\x78"
        + b"\x10"
        + uleb(len(data))
        + data
        + instructions
    )


def fde(offset: int, begin: int, size: int, instructions: bytes) -> bytes:
    """For a section in which the CIE is at 0 and this FDE at `offset`."""
    return entry(struct.pack("<IQQ", offset + 4, begin, size) + b"\0" + instructions)


def simple(*functions: tuple[int, int, bytes], first: bytes | None = None) -> bytes:
    section = first or cie()
    for begin, size, instructions in functions:
        section += fde(len(section), begin, size, instructions)
    return section


@pytest.mark.parametrize("parser", ["c", "python"])
def test_rows_of_a_function_by_hand(parser: str, in_c: Build) -> None:
    push_rbp = b"\x41\x0e\x10\x86\x02"  # +1: CFA rsp+16, rbp at CFA-16
    mov_rbp_rsp = b"\x43\x0d\x06"  # +3: CFA rbp+16
    leave = b"\x60\x0c\x07\x08"  # +32: CFA rsp+8
    section = simple((0x1000, 0x40, push_rbp + mov_rbp_rsp + leave), (0x1060, 0x10, b""))
    rows = (in_c if parser == "c" else build_rows_in_python)(section, ADDRESS, CODE)
    rules = [struct.unpack("<BBhi", struct.pack("<Q", int(rows.rules[i]))) for i in rows.rows >> 16]
    assert rows.addresses().tolist() == [0x1000, 0x1001, 0x1004, 0x1024, 0x1040, 0x1060, 0x1070]
    assert rules == [
        (0, 0, 0, 0),
        (1, 0, 0, 8),
        (1, 1, -16, 16),
        (2, 1, -16, 16),
        (1, 1, -16, 8),
        (0, 0, 0, 0),
        (1, 0, 0, 8),
        (0, 0, 0, 0),
    ]
    assert rows.fde_count == 2


@pytest.mark.parametrize("parser", ["c", "python"])
def test_special_rules_by_hand(parser: str, in_c: Build) -> None:
    build = in_c if parser == "c" else build_rows_in_python

    def rule(instructions: bytes, first: bytes | None = None) -> tuple[int, ...]:
        rows = build(simple((0x1000, 0x10, instructions), first=first), ADDRESS, CODE)
        return struct.unpack("<BBhi", struct.pack("<Q", int(rows.rules[rows.rows[1] >> 16])))

    assert rule(b"\x07\x10")[0] == 6  # return address undefined: outermost
    assert rule(b"", cie(augmentation=b"zRS"))[0] == 7  # signal frame
    plt = bytes((0x77, 8, 0x80, 0, 0x3F, 0x1A, 0x3B, 0x2A, 0x33, 0x24, 0x22))
    assert rule(b"\x0f" + uleb(len(plt)) + plt) == (3, 0, 0, 11)
    assert rule(b"\x0f\x03\x76\x78\x06") == (4, 0, 0, -8 * 256)  # *(rbp-8)
    assert rule(b"\x0f\x05\x77\x10\x06\x23\x08") == (5, 0, 0, 16 * 256 + 1)  # *(rsp+16) + 8
    assert rule(b"\x0c\x0a\x00") == (8, 0, 0, 10)  # CFA r10+0
    assert rule(b"\x09\x10\x05")[0] == 0  # return address in a register: not followed
    assert rule(b"\x10\x06\x02\x76\x70") == (1, 3, -16, 8)  # rbp saved at rbp-16


def test_padding_keeps_the_rule_and_a_gap_has_none(in_c: Build) -> None:
    rows = in_c(simple((0x1000, 0x18, b""), (0x1020, 0x10, b""), (0x1100, 0x10, b"")), ADDRESS, CODE)
    assert rows.addresses().tolist() == [0x1000, 0x1030, 0x1100, 0x1110]


# ---------------------------------------------------------------------------------------------------- hostile


def test_functions_outside_of_the_code_are_dropped(in_c: Build) -> None:
    section = simple((1 << 60, 16, b""), (0x8FF0, 1 << 63, b"\x42\x0e\x10"), (0, 16, b""))
    rows = in_c(section, ADDRESS, CODE)
    assert rows.addresses().tolist() == [0x8FF0, 0x8FF2, 0x9000]
    assert outcome(in_c, section, CODE) == outcome(build_rows_in_python, section, CODE)


def test_work_is_bounded(in_c: Build) -> None:
    """Overlapping CIEs: each FDE names another offset of one blob that reads as a long CIE everywhere."""
    blob = (struct.pack("<II", 0x8000, 0) + b"\x01\0\x01\x78\x10" + bytes(3)) * 2048
    section = struct.pack("<I", len(blob) + 4) + struct.pack("<I", 0) + blob
    for index in range(1500):
        at = 8 + (index % 2000) * 16
        section += entry(struct.pack("<IQQ", len(section) + 4 - at, 0x1000 + index * 16, 16))
    assert outcome(in_c, section, CODE) == "its .eh_frame is needlessly complex"


def test_a_span_of_many_pages_is_refused(in_c: Build) -> None:
    section = simple((0x1000, 16, b""), (1 << 40, 16, b""))
    assert outcome(in_c, section, [(0x1000, 1 << 41)]) == "its .eh_frame is too large"


@pytest.mark.parametrize(
    "section", [b"", b"\0", b"\0\0\0\0", b"\xff" * 64, b"\xff\xff\xff\xff" + b"\xff" * 8 + b"\1" * 8]
)
def test_nothing_in_it(section: bytes, in_c: Build) -> None:
    assert (
        outcome(in_c, section, CODE)
        == outcome(build_rows_in_python, section, CODE)
        == "its .eh_frame describes no code"
    )


def test_mutated_sections_give_the_same_from_both(in_c: Build) -> None:
    """The Python parser cannot read out of bounds, so agreement on rubbish means that C did not either."""
    rng = random.Random(20)
    original = simple(
        (0x1000, 0x40, b"\x41\x0e\x10\x86\x02\x43\x0d\x06\x0a\x60\x0c\x07\x08\x0b"),
        (0x1040, 0x20, b"\x0f\x05\x77\x10\x06\x23\x08\x02\x04\x10\x06\x02\x76\x70\x2e\x10"),
        (
            0x1060,
            0x20,
            b"\x05\x06\x03\x03\x05\x00\x11\x06\x7e\x12\x07\x7f\x13\x7e\x16\x06\x01\x30\x04\x01\0\0\0\xc6",
        ),
    )
    results = set()
    for _ in range(3000):
        section = bytearray(original)
        for _ in range(rng.choice((1, 2, 8))):
            section[rng.randrange(len(section))] = rng.choice((0, 0xFF, 0x80, rng.randrange(256)))
        mutated = bytes(section[: rng.randrange(len(section))] if rng.random() < 0.2 else section)
        first = outcome(in_c, mutated, CODE)
        assert first == outcome(build_rows_in_python, mutated, CODE), mutated.hex()
        results.add(repr(first))
    assert len(results) > 300


@pytest.mark.skipif(sys.maxsize < 1 << 32, reason="64-bit only")
def test_rows_stay_sorted_for_overlapping_functions(in_c: Build) -> None:
    advance = b"\x48\x0e\x10\x48\x0e\x18\x48\x0e\x20"
    section = simple((0x1000, 0x40, advance), (0x1004, 0x40, advance), (0x1000, 8, advance))
    addresses = in_c(section, ADDRESS, CODE).addresses()
    assert (np.diff(addresses.astype(np.int64)) > 0).all()
    assert outcome(in_c, section, CODE) == outcome(build_rows_in_python, section, CODE)
