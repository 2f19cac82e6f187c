"""Symbol lookups against readelf on the libraries of this machine, and tables that do not fit 32
bits."""

from __future__ import annotations

import itertools
import os
import random
import re
import shutil
import subprocess
import sysconfig
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from gpuprof.sampler.elf import ElfError, ElfFile, FunctionSymbols
from gpuprof.sampler.function_index import FunctionIndex
from gpuprof.sampler.symbol_table import SymbolTable
from gpuprof.sampler.symbols import BinarySymbols

LIBRARIES = [
    Path(path)
    for path in (
        "/usr/lib/x86_64-linux-gnu/libc.so.6",
        "/usr/lib/x86_64-linux-gnu/libm.so.6",
        "/usr/lib/x86_64-linux-gnu/libz.so.1",
        f"{sysconfig.get_config_var('LIBDIR')}/{sysconfig.get_config_var('INSTSONAME')}",
    )
    if Path(path).is_file()
]
needs_binutils = pytest.mark.skipif(shutil.which("readelf") is None, reason="no binutils")


def listed(path: Path) -> dict[int, tuple[int, set[str]]]:
    """Functions of .symtab and .dynsym as readelf lists them, those of the separate debug file too: (largest
    size, names) by address.
    """
    sizes: dict[int, int] = defaultdict(int)
    names: dict[int, set[str]] = defaultdict(set)
    with ElfFile(os.open(path, os.O_RDONLY)) as elf:
        build_id = (elf.build_id or b"").hex()
    debug = Path(f"/usr/lib/debug/.build-id/{build_id[:2]}/{build_id[2:]}.debug")
    files = [path, debug] if debug.is_file() else [path]
    out = subprocess.run(["readelf", "-W", "-s", *files], capture_output=True, text=True, check=False).stdout
    for line in out.splitlines():
        fields = line.split()  # number, value, size, type, bind, visibility, section, name[@version]
        if len(fields) >= 8 and fields[3] in ("FUNC", "IFUNC") and fields[6] != "UND":
            address = int(fields[1], 16)
            sizes[address] = max(sizes[address], int(fields[2], 0))
            names[address].add(fields[7].partition("@")[0])
    return {address: (size, names[address]) for address, size in sizes.items() if size}


@needs_binutils
@pytest.mark.parametrize("path", LIBRARIES, ids=lambda path: path.name)
def test_names_as_readelf_gives_them(path: Path) -> None:
    functions = listed(path)
    rng = random.Random(3)
    chosen = rng.sample(sorted(functions), min(800, len(functions)))
    symbols = BinarySymbols(os.open(path, os.O_RDONLY), path.name)
    wrong = []
    for start in chosen:
        size, _ = functions[start]
        address = start + rng.randrange(size)
        found = symbols.lookup(address)
        known, allowed = functions.get(found.start, (0, set()))
        # One of that function's names, less what is folded for display; and it holds the address.
        folded = {
            re.sub(r"(\.(isra|part|constprop|cold|localalias|lto_priv)(\.\d+)?)+$", "", name)
            for name in allowed
        }
        if not found.start <= address < found.start + known or found.name not in allowed | folded:
            wrong.append((hex(address), found, allowed))
    symbols.close()
    assert not wrong


@needs_binutils
@pytest.mark.parametrize("path", LIBRARIES[:2], ids=lambda path: path.name)
def test_functions_as_readelf_gives_them(path: Path) -> None:
    out = subprocess.run(
        ["readelf", "--debug-dump=frames", path], capture_output=True, text=True, check=False
    ).stdout
    ranges = [(int(a, 16), int(b, 16)) for a, b in re.findall(r" FDE .*pc=([0-9a-f]+)\.\.([0-9a-f]+)", out)]
    assert ranges
    with ElfFile(os.open(path, os.O_RDONLY)) as elf:
        index = FunctionIndex(elf)
        assert index.count == len(ranges)
        for start, end in random.Random(5).sample(ranges, 500):
            for address in (start, (start + end) // 2, end - 1):
                assert index.find(address) == (start, end)
        covered = sorted(ranges)
        gaps = [end for (_, end), (start, _) in itertools.pairwise(covered) if start > end]
        for address in [0, covered[0][0] - 1, covered[-1][1], *gaps[:50]]:
            assert index.find(address) is None


def table(rows: list[tuple[int, int, int, int]]) -> SymbolTable:
    """Of (address, size, name, rank)."""
    value, size, name, rank = (np.array(column) for column in zip(*rows, strict=True))
    return SymbolTable(
        FunctionSymbols(
            value.astype(np.uint64), size.astype(np.uint32), name.astype(np.uint64), rank.astype(np.uint8)
        )
    )


@pytest.mark.parametrize("base", [0, 0x400000, 0xFFFFFFFF81000000])
@pytest.mark.parametrize("far", [0x5000, 1 << 33])
def test_addresses_of_any_width(base: int, far: int) -> None:
    """A table that spans more than 4 GB is held in 64 bits; the answers are the same."""
    if base + far + 0x200 > 1 << 64:
        base -= 1 << 40
    last = base + far
    found = table(
        [(base, 0x100, 7, 0), (base, 0x100, 9, 1), (base + 0x100, 0, 11, 4), (last, 0x10, 1 << 34, 0)]
    )
    assert found.covering(base - 1) is None
    assert found.covering(base + 0xFF) == 0
    assert list(found.aliases(0)) == [(7, 0), (9, 1)]
    assert found.covering(base + 0x150) == 2
    assert found.reach(2) == base + 0x100 + (1 << 16)
    assert found.next_start(base) == base + 0x100
    assert found.covering(last + 0xF) == 3
    assert found.covering(last + 0x10) is None
    assert found.next_start(last) == 1 << 64
    assert list(found.aliases(3)) == [(1 << 34, 0)]
    assert (found.start(3), found.reach(3)) == (last, last + 0x10)


def test_thirteen_bytes_a_symbol() -> None:
    many = table([(0x1000 + 16 * i, 16, 5 * i, 0) for i in range(1000)])
    assert many.nbytes == 13 * 1000
    assert len(SymbolTable()) == SymbolTable().nbytes == 0
    assert SymbolTable().covering(5) is None


def test_an_index_that_lies(tmp_path: Path) -> None:
    """Counts, offsets and FDEs of a hostile file: an answer or an ElfError, in bounded time."""
    source = bytearray(LIBRARIES[0].read_bytes())
    with ElfFile(os.open(LIBRARIES[0], os.O_RDONLY)) as elf:
        header = elf.eh_frame_hdr()
    assert header is not None
    rng = random.Random(9)
    for turn in range(40):
        torn = bytearray(source)
        at = header[0]
        torn[at + 8 : at + 12] = rng.choice(
            [b"\xff\xff\xff\xff", b"\0\0\0\0", b"\xff\xff\xff\x7f", torn[at + 8 : at + 12]]
        )
        for _ in range(200):
            torn[at + 12 + rng.randrange(header[1] - 12)] = rng.randrange(256)
        path = tmp_path / f"{turn % 2}"
        path.write_bytes(torn)
        with ElfFile(os.open(path, os.O_RDONLY)) as elf:
            index = FunctionIndex(elf)
            for _ in range(20):
                try:
                    found = index.find(rng.randrange(1 << 22))
                except ElfError:
                    continue
                assert found is None or found[0] < found[1]
