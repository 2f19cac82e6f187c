"""Kernel symbols."""

from __future__ import annotations

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
