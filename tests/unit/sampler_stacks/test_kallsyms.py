"""Kernel symbols."""

from __future__ import annotations

import random
from pathlib import Path

from gpuprof.sampler.kallsyms import KernelSymbols

TEXT = """\
ffffffff81000000 T _stext
ffffffff81000100 t do_work.isra.0
ffffffff81000200 D some_data
ffffffff81000300 W entry
ffffffffc0000000 t nvidia_ioctl\t[nvidia]
"""


def test_lookup(tmp_path: Path) -> None:
    path = tmp_path / "kallsyms"
    path.write_text(TEXT)
    symbols = KernelSymbols(str(path))
    assert symbols.lookup(0xFFFFFFFF81000000) == ("_stext", "[kernel]")
    assert symbols.lookup(0xFFFFFFFF810002FF) == ("do_work", "[kernel]")
    assert symbols.lookup(0xFFFFFFFF81000300) == ("entry", "[kernel]")
    assert symbols.lookup(0xFFFFFFFFC0000010) == ("nvidia_ioctl", "[nvidia]")
    assert symbols.lookup(0x1000) == ("[kernel code]", "[kernel]")


def test_without_permission_all_addresses_are_zero(tmp_path: Path) -> None:
    path = tmp_path / "kallsyms"
    path.write_text("".join(f"{0:016x} T f{i}\n" for i in range(10)))
    assert KernelSymbols(str(path)).lookup(0xFFFFFFFF81000000) == ("[kernel code]", "[kernel]")
    assert KernelSymbols(str(tmp_path / "missing")).lookup(1) == ("[kernel code]", "[kernel]")


def test_long_tables_across_blocks_and_chunks(tmp_path: Path) -> None:
    """More than one block is read and more than one chunk is kept; names, modules and order come out
    right."""
    rng = random.Random(2)
    rows = []
    for i in range(30_000):
        address = 0xFFFFFFFF80000000 + 64 * i
        rows.append((address, rng.choice("tTwWdDrRbB"), "f" * rng.randrange(1, 60) + str(i), i % 7 == 0))
    shuffled = rows[:]
    rng.shuffle(shuffled)
    path = tmp_path / "kallsyms"
    path.write_text(
        "".join(
            f"{a:016x} {kind} {name}{chr(9) + '[mod]' if module else ''}\n"
            for a, kind, name, module in shuffled
        )
    )
    symbols = KernelSymbols(str(path))
    expected = ("[kernel code]", "[kernel]")
    for address, kind, name, module in rows:
        if kind in "tTwW":
            expected = (name, "[mod]" if module else "[kernel]")
        if address % 640 == 0:
            assert symbols.lookup(address + 5) == expected


def test_lines_that_are_not_of_the_format(tmp_path: Path) -> None:
    good = f"{0xFFFFFFFF81000000:016x} T good\n"
    bad = ["", "x", " " * 40, "ffffffff8100zzzz T bad", "FFFFFFFF81000100 T bad", "ffffffff81000100-T bad"]
    bad += ["ffffffff81000100 T " + "n" * 5000, "ffffffff81000100 T\tbad", "ffffffff81000100 T "]
    path = tmp_path / "kallsyms"
    path.write_bytes(("\n".join(bad) + "\n" + good).encode() + b"\xff\x00\n" + b"ffffffff81000200 t cut")
    symbols = KernelSymbols(str(path))
    assert symbols.lookup(0xFFFFFFFF81000300) == ("good", "[kernel]")
