"""The reader of /proc/PID/maps."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from gpuprof.sampler.maps import Mapping, open_mapping, parse_maps, read_maps

CASE = b"""\
00400000-00401000 r-xp 00000000 fd:01 131 /opt/my\\040env/bin/python3
7f0000000000-7f0000020000 r-xp 00020000 fd:01 132 /opt/a\\012b/lib\\134odd.so (deleted)
7f0000100000-7f0000101000 r-xp 00000000 00:01 99 /memfd:jit\\040code (deleted)
7f0000200000-7f0000201000 r-xp 00000000 00:00 0\x20
7f0000300000-7f0000302000 r-xp 00000000 00:00 0 [anon:v8 code]
7ffd00000000-7ffd00002000 r-xp 00000000 00:00 0 [vdso]
"""


def test_escapes_deleted_memfd_and_anonymous() -> None:
    mappings = parse_maps(CASE)
    assert [mapping.path for mapping in mappings] == [
        "/opt/my env/bin/python3", "/opt/a\nb/lib\\odd.so", None, None, None, "[vdso]",
    ]  # fmt: skip
    assert [mapping.deleted for mapping in mappings] == [False, True, True, False, False, False]
    assert [mapping.kind for mapping in mappings] == [
        "file",
        "file",
        "memfd",
        "anonymous",
        "anonymous",
        "vdso",
    ]
    assert [mapping.name for mapping in mappings] == [
        "python3", "lib\\odd.so", "memfd:jit code", "[anon]", "[anon:v8 code]", "[vdso]",
    ]  # fmt: skip
    assert mappings[1].offset == 0x20000
    assert (mappings[0].start, mappings[0].end) == (0x400000, 0x401000)


def test_names_are_drawable() -> None:
    line = b"1000-2000 r-xp 00000000 fd:01 1 /opt/\\033[31mred\\012/lib\x1b]0;owned\x07.so\n"
    (mapping,) = parse_maps(line)
    assert mapping.name.isprintable()
    assert mapping.path is not None
    assert "\x1b" in mapping.path


@pytest.mark.parametrize(
    "line",
    [
        b"", b"\n", b"garbage\n", b"2000-1000 r-xp 0 fd:01 1 /x\n", b"1000-2000 rwxp\n",
        b"1000-20000000000000000 r-xp 00000000 fd:01 1 /x\n", b"1000-2000 r-xp zz fd:01 1 /x\n",
        b"ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0 [vsyscall]\n",
    ],
)  # fmt: skip
def test_lines_that_are_no_mapping(line: bytes) -> None:
    assert parse_maps(line) == []


def test_only_executable_ones_when_asked() -> None:
    text = b"1000-2000 r--p 00000000 fd:01 1 /x\n2000-3000 r-xp 00001000 fd:01 1 /x\n"
    assert [mapping.start for mapping in parse_maps(text, executable_only=True)] == [0x2000]
    assert len(parse_maps(text)) == 2


def test_key_tells_reused_inodes_apart_and_joins_processes() -> None:
    first = Mapping(0, 1, 0, "fd:01", 7, "/a", False, True, "file", "a", stamp=1)
    same = Mapping(4096, 8192, 0, "fd:01", 7, "/a", False, True, "file", "a", stamp=1)
    rebuilt = Mapping(0, 1, 0, "fd:01", 7, "/a", False, True, "file", "a", stamp=2)
    assert first.key == same.key
    assert first.key != rebuilt.key


def test_own_mappings_agree_with_the_kernel() -> None:
    libc = next(mapping for mapping in read_maps(os.getpid()) if mapping.name.startswith("libc.so"))
    assert libc.path is not None
    info = os.stat(libc.path)
    assert libc.inode == info.st_ino
    assert libc.executable
    if os.geteuid() == 0:
        fd = open_mapping(os.getpid(), libc)
        try:
            assert os.fstat(fd).st_ino == info.st_ino
        finally:
            os.close(fd)


def test_a_process_that_is_gone_has_no_mappings() -> None:
    assert read_maps(0x7FFFFFF0) == []


def test_vdso_is_an_elf_image() -> None:
    vdso = [mapping for mapping in read_maps(os.getpid()) if mapping.kind == "vdso"]
    if not vdso:
        pytest.skip("no vdso here")
    fd = open_mapping(os.getpid(), vdso[0])
    try:
        assert os.pread(fd, 4, 0) == b"\x7fELF"
    finally:
        os.close(fd)


@pytest.mark.skipif(os.geteuid() != 0, reason="map_files needs root")
def test_a_deleted_file_is_opened_as_it_was_mapped(tmp_path: Path) -> None:
    import mmap

    path = tmp_path / "code"
    path.write_bytes(b"\x7fELF" + bytes(4092))
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 4096, prot=mmap.PROT_READ | mmap.PROT_EXEC, flags=mmap.MAP_PRIVATE)
    path.unlink()
    path.write_bytes(b"other")
    (mapping,) = [m for m in read_maps(os.getpid()) if m.path == str(path)]
    assert mapping.deleted
    fd = open_mapping(os.getpid(), mapping)
    try:
        assert stat.S_ISREG(os.fstat(fd).st_mode)
        assert os.pread(fd, 4, 0) == b"\x7fELF"
    finally:
        os.close(fd)
        mapped.close()
