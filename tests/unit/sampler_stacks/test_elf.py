"""The ELF reader, against binutils, and on files that lie."""

from __future__ import annotations

import os
import re
import shutil
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuprof.sampler.elf import ElfError, ElfFile

LIBC = Path("/lib/x86_64-linux-gnu/libc.so.6")


def opened(path: Path) -> ElfFile:
    return ElfFile(os.open(path, os.O_RDONLY))


@pytest.mark.skipif(shutil.which("readelf") is None or not LIBC.exists(), reason="needs readelf and libc")
def test_sections_segments_and_build_id_agree_with_readelf() -> None:
    sections = subprocess.run(["readelf", "-SW", LIBC], capture_output=True, text=True, check=True).stdout
    notes = subprocess.run(["readelf", "-n", LIBC], capture_output=True, text=True, check=True).stdout
    with opened(LIBC) as elf:
        for name in (".text", ".eh_frame", ".eh_frame_hdr", ".dynsym"):
            line = re.search(rf" {re.escape(name)} +\S+ +([0-9a-f]+) ([0-9a-f]+) ([0-9a-f]+)", sections)
            section = elf.section(name)
            assert line is not None
            assert section is not None
            assert (section.address, section.offset, section.size) == tuple(
                int(part, 16) for part in line.groups()
            )
        frame = elf.section(".eh_frame")
        header = elf.section(".eh_frame_hdr")
        assert frame is not None
        assert header is not None
        assert elf.eh_frame() == (frame.offset, frame.size, frame.address)
        assert elf.eh_frame_hdr() == (header.offset, header.size, header.address)
        build_id = re.search(r"Build ID: ([0-9a-f]+)", notes)
        assert build_id is not None
        assert elf.build_id is not None
        assert elf.build_id.hex() == build_id[1]


def test_eh_frame_is_found_without_sections(compile_c: Callable[..., Path], tmp_path: Path) -> None:
    program = compile_c("int main(void) { return 0; }")
    with opened(program) as elf:
        expected = elf.eh_frame()
    assert expected is not None
    image = bytearray(program.read_bytes())
    struct.pack_into("<Q", image, 40, 0)  # no section headers, as after sstrip
    stripped = tmp_path / "stripped"
    stripped.write_bytes(image)
    with opened(stripped) as elf:
        assert elf.sections == []
        found = elf.eh_frame()
    assert found is not None
    assert (found[0], found[2]) == (expected[0], expected[2])
    assert found[1] >= expected[1]


def test_load_bias_of_a_segment_that_begins_inside_a_page() -> None:
    from gpuprof.sampler.elf import PF_X, PT_LOAD, Segment, load_bias

    data = Segment(PT_LOAD, 4, 0, 0, 0x1234, 0x1234)
    text = Segment(PT_LOAD, 4 | PF_X, 0x1234, 0x202234, 0x3000, 0x3000)
    # Both segments lie in the page at file offset 0x1000; the executable mapping of it is the text's.
    assert load_bias([data, text], 0x7F0000001000, 0x1000) == 0x7F0000001000 - 0x202000
    assert load_bias([data, text], 0x7F0000001000, 0x9000) is None


READERS: list[Callable[[ElfFile], object]] = [
    lambda elf: elf.eh_frame(),
    lambda elf: elf.function_symbols(),
    lambda elf: elf.build_id,
    lambda elf: elf.dynamic_symbols({"main"}),
]


def mutations(image: bytes) -> list[bytes]:
    """Truncations and wild values in every header field."""
    found = [image[:size] for size in (0, 1, 4, 16, 63, 64, 65, 120, 1000, len(image) // 2, len(image) - 1)]
    for offset in range(16, 64, 2):
        for value in (0, 1, 0xFFFF):
            changed = bytearray(image)
            struct.pack_into("<H", changed, offset, value)
            found.append(bytes(changed))
    section_offset, count = struct.unpack_from("<Q", image, 40)[0], struct.unpack_from("<H", image, 60)[0]
    for index in range(count):
        for field in range(4, 64, 4):
            changed = bytearray(image)
            struct.pack_into("<I", changed, section_offset + 64 * index + field, 0xFFFFFFF0)
            found.append(bytes(changed))
    return found


def test_hostile_files_are_refused_or_read_within_bounds(compile_c: Callable[..., Path]) -> None:
    image = compile_c("int main(void) { return 0; }", "-s").read_bytes()
    for changed in mutations(image):
        fd = os.memfd_create("hostile")
        os.write(fd, changed)
        try:
            elf = ElfFile(fd)
        except ElfError:
            continue
        with elf:
            for read in READERS:
                try:
                    read(elf)
                except ElfError:
                    pass


def test_a_file_that_shrinks_while_open(compile_c: Callable[..., Path]) -> None:
    program = compile_c("int main(void) { return 0; }")
    with opened(program) as elf:
        os.truncate(program, 64)
        with pytest.raises(ElfError):
            elf.function_symbols()
