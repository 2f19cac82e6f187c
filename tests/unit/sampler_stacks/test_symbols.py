"""Function names, against nm."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuprof.sampler.symbols import BinarySymbols

LIBC = Path("/lib/x86_64-linux-gnu/libc.so.6")
HIDDEN = """\
static __attribute__((noinline)) int hidden(int x) { return x * 3; }
int main(int argc, char **argv) { return hidden(argc); }
"""
needs_nm = pytest.mark.skipif(shutil.which("nm") is None, reason="needs nm")


def opened(path: Path) -> BinarySymbols:
    return BinarySymbols(os.open(path, os.O_RDONLY), path.name)


def nm(path: Path, *options: str) -> list[tuple[int, int, str]]:
    """(address, size, name) of the functions that nm lists with a size."""
    lines = subprocess.run(["nm", "-S", *options, path], capture_output=True, text=True, check=True).stdout
    found = []
    for line in lines.splitlines():
        fields = line.split()
        if len(fields) == 4 and fields[2] in "TtWwi" and int(fields[1], 16):
            found.append((int(fields[0], 16), int(fields[1], 16), fields[3].partition("@")[0]))
    return found


@needs_nm
@pytest.mark.skipif(not LIBC.exists(), reason="needs libc")
def test_every_address_is_named_as_nm_names_it() -> None:
    functions = nm(LIBC, "-D")
    by_address: dict[int, set[str]] = {}
    for address, _, name in functions:
        by_address.setdefault(address, set()).add(name)
    symbols = opened(LIBC)
    chosen = random.Random(1).sample(functions, 400)
    for address, size, _ in chosen:
        # Any function of the table that covers the address is right: some lie inside others.
        covering = {
            name for start, length, _ in functions if start <= address + size - 1 < start + length
            for name in by_address[start]
        }  # fmt: skip
        assert symbols.lookup(address).name in by_address[address]
        assert symbols.lookup(address + size - 1).name in covering
    symbols.close()


@needs_nm
def test_own_program_with_static_and_cold_functions(compile_c: Callable[..., Path]) -> None:
    program = compile_c(
        "static __attribute__((noinline)) int inner(int x) { return x * 3; }\n"
        "__attribute__((noinline)) int outer(int x) { return inner(x) + 1; }\n"
        "int main(int argc, char **argv) { return outer(argc); }\n"
    )
    symbols = opened(program)
    for address, size, name in nm(program):
        assert symbols.lookup(address).name == name
        assert symbols.lookup(address + size - 1).name == name
    assert symbols.lookup(0).known is False


def test_a_stripped_function_is_named_by_its_start(compile_c: Callable[..., Path], tmp_path: Path) -> None:
    plain = compile_c(HIDDEN, name="plain")
    start, size = next((address, length) for address, length, name in nm(plain) if name == "hidden")
    stripped = tmp_path / "libstripped.so.1"
    subprocess.run(["strip", "-o", stripped, plain], check=True)
    symbols = opened(stripped)
    names = {symbols.lookup(address).name for address in range(start, start + size)}
    assert names == {f"libstripped.so.1!{start:#x}"}
    assert not symbols.lookup(start).known


def test_the_debug_file_of_the_same_build_is_used(
    compile_c: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = compile_c(HIDDEN, "-Wl,--build-id", name="plain")
    start = next(address for address, _, name in nm(plain) if name == "hidden")
    stripped = tmp_path / "stripped"
    subprocess.run(["strip", "-o", stripped, plain], check=True)
    notes = subprocess.run(["readelf", "-n", plain], capture_output=True, text=True, check=True).stdout
    build_id = notes.partition("Build ID: ")[2].split()[0]
    (tmp_path / "debug" / build_id[:2]).mkdir(parents=True)
    shutil.copy(plain, tmp_path / "debug" / build_id[:2] / f"{build_id[2:]}.debug")
    monkeypatch.setattr("gpuprof.sampler.symbols.DEBUG_ROOT", str(tmp_path / "debug"))
    assert opened(stripped).lookup(start).name == "hidden"


@pytest.fixture
def mini_debug_info(compile_c: Callable[..., Path], tmp_path: Path) -> tuple[Path, int]:
    """A stripped program with .gnu_debugdata, and where its function `hidden` begins."""
    if shutil.which("xz") is None:
        pytest.skip("needs xz")
    plain = compile_c(HIDDEN, name="plain")
    start = next(address for address, _, name in nm(plain) if name == "hidden")
    mini, stripped = tmp_path / "mini", tmp_path / "stripped"
    shutil.copy(plain, mini)
    subprocess.run(["strip", "--keep-symbol=hidden", mini], check=True)
    subprocess.run(["xz", "-k", mini], check=True)
    subprocess.run(["strip", "-o", stripped, plain], check=True)
    subprocess.run(["objcopy", "--add-section", f".gnu_debugdata={mini}.xz", stripped], check=True)
    return stripped, start


def test_mini_debug_info(mini_debug_info: tuple[Path, int]) -> None:
    path, start = mini_debug_info
    assert opened(path).lookup(start).name == "hidden"


def test_a_python_without_lzma(mini_debug_info: tuple[Path, int], monkeypatch: pytest.MonkeyPatch) -> None:
    path, start = mini_debug_info
    monkeypatch.setitem(sys.modules, "lzma", None)  # its import fails
    symbol = opened(path).lookup(start)
    assert (symbol.name, symbol.known) == (f"stripped!{start:#x}", False)


@pytest.mark.parametrize("content", [b"", b"\x7fELF", b"\x7fELF" + b"\xff" * 500, b"#!/bin/sh\n"])
def test_what_is_no_elf_file_has_a_name_all_the_same(content: bytes) -> None:
    fd = os.memfd_create("x")
    os.write(fd, content)
    symbol = BinarySymbols(fd, "thing").lookup(0x1234)
    assert symbol.name == "[no symbols in thing]"
    assert not symbol.known
