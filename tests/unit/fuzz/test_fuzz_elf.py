"""Hostile ELF files: the reader answers or says ElfError, in bounded time and memory."""

from __future__ import annotations

import os
import random
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gpuprof.sampler.elf import ElfError, ElfFile
from gpuprof.sampler.symbols import BinarySymbols

CASES = 400
PEAK_BYTES = 96 << 20  # a small file must not make much of itself
SOURCE = """
extern int puts(const char *);
__attribute__((noinline)) int helper(int n) { return n ? helper(n - 1) + 1 : puts("x"); }
int other(int n) { return helper(n) * 3; }
"""


@pytest.fixture(scope="session")
def original(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    path = tmp_path_factory.mktemp("elf") / "small.so"
    options = ["-x", "c", "-O1", "-shared", "-fPIC", "-Wl,--build-id", "-Wl,-z,noseparate-code"]
    subprocess.run([compiler, *options, "-o", str(path), "-"], input=SOURCE.encode(), check=True)
    return path.read_bytes()


def descriptor(data: bytes, size: int = 0) -> int:
    """A file with these bytes, and holes up to `size`."""
    fd = os.memfd_create("elf")
    os.write(fd, data)
    os.ftruncate(fd, max(len(data), size))
    return fd


def use(data: bytes, size: int = 0) -> int:
    """Ask everything that the sampler asks; how many of the questions had an answer."""
    answers = 0
    try:
        elf = ElfFile(descriptor(data, size))
    except ElfError:
        return 0
    with elf:
        for question in (
            lambda: elf.sections, lambda: elf.section(".text"), elf.eh_frame, elf.eh_frame_hdr,
            lambda: elf.build_id, elf.function_symbols, lambda: elf.dynamic_symbols({"helper", "absent"}),
            lambda: elf.offset_of(0x1000), lambda: elf.load_bias(0x7F0000001000, 0x1000), lambda: elf.loads,
        ):  # fmt: skip
            try:
                question()
                answers += 1
            except ElfError:
                pass
    symbols = BinarySymbols(descriptor(data, size), "small.so")
    for address in (0, 0x1000, 0x1100, 0x1139, 1 << 40, (1 << 64) - 1):
        symbol = symbols.lookup(address)
        assert len(symbol.name) < 10_000
    symbols.load_bias(0x7F0000001000, 0x1000)
    symbols.close()
    return answers


def targeted(original: bytes, rng: random.Random) -> bytes:
    """A number changed in a header, a program header, a section header, a symbol or a note."""
    data = bytearray(original)
    program, sections = struct.unpack_from("<QQ", data, 32)
    entry, count, section_entry, section_count = struct.unpack_from("<HHHH", data, 54)
    for _ in range(rng.choice((1, 1, 2, 5))):
        where = rng.choice(
            (
                rng.randrange(0, 64, 2),
                program + rng.randrange(count) * entry + rng.randrange(0, entry, 4),
                sections + rng.randrange(section_count) * section_entry + rng.randrange(0, section_entry, 4),
                rng.randrange(len(data) - 8),
            )
        )
        size = rng.choice((2, 4, 8))
        value = rng.choice((0, 1, 0xFFFF, 0xFFFFFFFF, (1 << 64) - 1, 1 << 63, len(data), len(data) - 1,
                            rng.getrandbits(64), rng.randrange(len(data))))  # fmt: skip
        data[where : where + size] = (value & (1 << 8 * size) - 1).to_bytes(size, "little")
    return bytes(data)


def test_mutated_files(original: bytes, fuzz: Any) -> None:
    assert use(original) == 10
    answers = []
    for seed in fuzz.seeds(CASES):
        rng = random.Random(seed)
        data = targeted(original, rng) if rng.random() < 0.7 else fuzz.mutate(original, rng)
        size = rng.choice((0, 0, 0, 1 << 24))
        with fuzz.watched(seed):
            if seed % 10 == 0:
                assert fuzz.peak_of(lambda data=data, size=size: use(data, size)) < PEAK_BYTES
            else:
                answers.append(use(data, size))
    assert {0, 10} <= set(answers)
    assert len(set(answers)) > 3


def header(program_count: int, section_offset: int, section_count: int, names: int) -> bytes:
    ident = b"\x7fELF\x02\x01\x01" + bytes(9)
    return struct.pack(
        "<16sHHIQQQIHHHHHH",
        ident,
        3,
        62,
        1,
        0,
        64,
        section_offset,
        0,
        64,
        56,
        program_count,
        64,
        section_count,
        names,
    )


def section(kind: int, offset: int, size: int, link: int = 0, name: int = 0) -> bytes:
    return struct.pack("<IIQQQQIIQQ", name, kind, 4, 0, offset, size, link, 0, 8, 24)


def test_many_symbol_tables_that_share_their_bytes(fuzz: Any) -> None:
    """Each of thousands of sections claims to be the same large symbol table."""
    count, symbols = 10_000, 1 << 16
    table = struct.pack("<IBBHQQ", 1, 0x12, 0, 1, 0x1000, 16) * symbols
    at = 64 + count * 64
    rows = b"".join(section(2 if index % 2 else 11, at, len(table), link=0) for index in range(count))
    data = header(0, 64, count, 0) + rows + table
    with fuzz.watched(0):
        assert fuzz.peak_of(lambda: use(data)) < 300 << 20


def test_many_sections_whose_names_do_not_end(fuzz: Any) -> None:
    count, size = 10_000, 8 << 20
    at = 64 + count * 64
    rows = b"".join(section(3, at, size) for _ in range(count))
    data = header(0, 64, count, 0) + rows + b"n" * size
    with fuzz.watched(0):
        assert fuzz.peak_of(lambda: use(data)) < 100 << 20


def test_many_notes(fuzz: Any) -> None:
    count, size = 4096, 64 << 10
    at = 64 + count * 56
    rows = struct.pack("<IIQQQQQQ", 4, 4, at, 0, 0, size, size, 4) * count
    data = header(count, 0, 0, 0) + rows + bytes(size)
    with fuzz.watched(0):
        use(data)


def test_not_a_regular_file() -> None:
    for path in ("/dev/zero", "/proc/self/maps", "/"):
        with pytest.raises(ElfError):
            ElfFile(os.open(path, os.O_RDONLY))
    assert Path("/dev/zero").exists()
