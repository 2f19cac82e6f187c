"""Hostile .eh_frame sections: the C parser under the address and undefined-behaviour sanitizers, in bounded
memory, and with the same result as the Python parser.
"""

from __future__ import annotations

import os
import random
import resource
import shutil
import struct
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpuprof.bpf import ehframe
from gpuprof.bpf.ehframe import EhFrameError
from gpuprof.bpf.ehframe_python import build_rows_in_python
from gpuprof.sampler.elf import ElfFile

HERE = Path(__file__).parent
BPF_FOLDER = Path(ehframe.__file__).resolve().parent
RANGES = [(0x1000, 0x9000), (0x20000, 0x200000)]
STATUS = {words: number for number, words in ehframe.STATUS_WORDS.items()}
CASES = 1500
TOGETHER = 250  # cases for one run of the program
PARSER_MB = 400  # beside the sanitizer's own: what MAX_ROWS and MAX_RULES allow


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> str:
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    path = str(tmp_path_factory.mktemp("fuzz") / "ehframe")
    options = ["-std=c11", "-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    source = str(HERE / "ehframe_main.c")
    done = subprocess.run(
        [compiler, *options, f"-I{BPF_FOLDER}", "-o", path, source],
        capture_output=True,
        text=True,
        check=False,
    )
    if "cannot find" in done.stderr and "san" in done.stderr:
        pytest.skip("this compiler has no sanitizers")
    assert done.returncode == 0, done.stderr
    return path


def uleb(value: int) -> bytes:
    out = bytearray()
    while True:
        out.append(value & 0x7F | (0x80 if value > 0x7F else 0))
        value >>= 7
        if not value:
            return bytes(out)


def number(rng: random.Random) -> int:
    return rng.choice(
        (0, 1, 2, 6, 7, 8, 16, 63, 64, 127, 128, 0x7FFFFFFF, 1 << 32, (1 << 64) - 1, rng.getrandbits(9))
    )


def block(rng: random.Random) -> bytes:
    plt = bytes((0x77, 0x08, 0x80, 0x00, 0x3F, 0x1A, 0x3B, 0x2A, 0x33, 0x24, 0x22))
    body = rng.choice(
        (
            plt,
            b"\x77\x08",
            b"\x76\x78\x06",
            b"\x76\x10\x06\x23\x08",
            b"\x06" * 5,
            rng.randbytes(rng.randrange(12)),
            b"",
        )
    )
    return uleb(rng.choice((len(body), len(body), len(body) + 9, number(rng)))) + body


def instructions(rng: random.Random) -> bytes:
    """Some call frame instructions, mostly well-formed."""
    out = b""
    for _ in range(rng.randrange(24)):
        op = rng.choice((*range(0x17), 0x2E, 0x41, 0x48, 0x7F, 0x86, 0x90, 0xC6, 0xD0, 0x1C, 0x3F))
        out += bytes((op,))
        if op >> 6 == 2 or op in (0x06, 0x07, 0x08, 0x0D, 0x0E, 0x13, 0x2E):
            out += uleb(number(rng))
        elif op in (0x05, 0x09, 0x0C, 0x11, 0x12, 0x14, 0x15):
            out += uleb(number(rng)) + uleb(number(rng))
        elif op == 0x0F:
            out += block(rng)
        elif op in (0x10, 0x16):
            out += uleb(number(rng)) + block(rng)
        elif op == 0x01:
            out += struct.pack("<i", rng.randrange(-300, 3000))
        elif op in (0x02, 0x03, 0x04):
            out += rng.randbytes(1 << (op - 2))
    return out


def mostly(rng: random.Random, usual: Any, *others: Any) -> Any:
    """The usual value in 19 of 20 cases, since one wrong value hides what comes after it."""
    return usual if rng.random() < 0.95 else rng.choice(others)


def entry(body: bytes, rng: random.Random) -> bytes:
    size = len(body)
    length = size if rng.random() < 0.99 else rng.choice((size + 1, size - 1, 0, 0xFFFFFFFE, 3))
    if rng.random() < 0.05:
        return struct.pack("<IQ", 0xFFFFFFFF, mostly(rng, length, (1 << 64) - 1)) + body
    return struct.pack("<I", length) + body


def cie_body(rng: random.Random) -> bytes:
    """A CIE, mostly one as compilers write it but for its instructions."""
    letters = mostly(rng, b"zR", b"zPLR", b"zRS", b"", b"eh", b"zQ")
    data = bytes((mostly(rng, 0x1B, 0x03, 0x00, 0x0B, 0x04, 0x01, 0x9B, 0x33),)) + rng.randbytes(12)
    body = bytes((mostly(rng, 1, 3, 4, 0),)) + letters + b"\0"
    body += uleb(mostly(rng, 1, 4, 0, 0xFFFF, number(rng)))
    body += bytes((mostly(rng, 0x78, 0x7C, 1, 0), 16))
    if letters[:1] == b"z":
        body += uleb(mostly(rng, len(data), 1, 200)) + data
    return struct.pack("<I", 0) + body + b"\x0c\x07\x08\x90\x01" + instructions(rng)


def generated(rng: random.Random) -> tuple[bytes, int]:
    """A section of CIEs and FDEs made to order, and its address."""
    address = rng.choice((0x400000, 0, 0x1000, (1 << 64) - 64))
    section = b""
    cies: list[int] = []
    for _ in range(rng.randrange(2, 30)):
        if not cies or rng.random() < 0.2:
            cies.append(len(section))
            section += entry(cie_body(rng), rng)
            continue
        back = len(section) + 4 - mostly(rng, rng.choice(cies), rng.randrange(len(section) + 8))
        begin = rng.choice((0x1000, 0x20000)) + rng.randrange(0x7000)
        own = address + len(section) + 8
        relative = (begin - own) & 0xFFFFFFFF
        body = struct.pack("<II", back & 0xFFFFFFFF, relative)
        body += struct.pack("<I", rng.choice((16, 64, 0, 0x7FFFFFFF, rng.randrange(4096))))
        section += entry(body + mostly(rng, b"\0", uleb(number(rng))) + instructions(rng), rng)
    return section + rng.choice((b"", b"\0\0\0\0")), address


def needlessly_complex(rng: random.Random) -> tuple[bytes, int]:
    """FDEs of which each has a CIE of its own; all CIEs end in the same long run of instructions, and each
    passes the heads of those after it as its augmentation data.
    """
    count, head = rng.randrange(40, 60), 16
    nops = bytes(rng.randrange(8000, 10000))
    section = b""
    for n in range(count):
        rest = head * (count - n - 1)
        length = struct.pack("<II", head - 4 + rest + len(nops), 0)
        section += length + b"\x01z\0\x01\x78\x10" + bytes((rest & 0x7F | 0x80, rest >> 7))
    section += nops
    for n in range(count):
        back = len(section) + 4 - head * n
        section += struct.pack("<IIQQB", 21, back, 0x1000 + 64 * n, 64, 0)
    return section, 0


def case(rng: random.Random, fuzz: Any, real: tuple[bytes, int]) -> tuple[bytes, int]:
    kind = rng.random()
    if kind < 0.1:
        return fuzz.mutate(real[0], rng), real[1]
    if kind < 0.12:
        return needlessly_complex(rng)
    section, address = generated(rng)
    if kind < 0.6:
        section = fuzz.mutate(section, rng)
    return section, address


def limits() -> None:
    """Of the program: no core file, bounded CPU time."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (60, 60))


def run(program: str, cases: list[tuple[int, bytes, int]]) -> list[str]:
    """A line for each (seed, section, address)."""
    text = b"".join(struct.pack("<IQ", len(section), address) + section for _, section, address in cases)
    environment = {"ASAN_OPTIONS": f"hard_rss_limit_mb={PARSER_MB + 300}:allocator_may_return_null=1"}
    done = subprocess.run(
        [program], input=text, capture_output=True, env=environment, preexec_fn=limits, check=False
    )
    lines = done.stdout.decode().splitlines()
    message = done.stderr.decode(errors="replace")[:3000]
    assert done.returncode == 0, f"seed {cases[min(len(lines), len(cases) - 1)][0]} or later:\n{message}"
    return lines


def by_python(section: bytes, address: int) -> str:
    """The line that the program prints, from the Python parser."""
    try:
        rows = build_rows_in_python(section, address, RANGES)
    except EhFrameError as error:
        return f"{STATUS[str(error)]}"
    digest = 0xCBF29CE484222325
    for array in (rows.rows, rows.page_starts, rows.rules):
        for byte in np.ascontiguousarray(array).tobytes():
            digest = (digest ^ byte) * 0x100000001B3 & (1 << 64) - 1
    return f"0 {len(rows.rows)} {rows.fde_count} {digest:016x}"


def real_section() -> tuple[bytes, int]:
    """A part of libc's, and the address at which its first function begins at 0x20000."""
    path = next(
        line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "/libc.so" in line
    )
    with ElfFile(os.open(path, os.O_RDONLY)) as elf:
        location = elf.eh_frame()
        assert location is not None
        section = elf.read(location[0], min(location[1], 6000))
    fde = 4 + struct.unpack_from("<I", section)[0]  # behind the CIE, whose encoding is 0x1B in every libc
    (relative,) = struct.unpack_from("<i", section, fde + 8)
    return section, 0x20000 - relative - (fde + 8) & (1 << 64) - 1


def status_of(line: str) -> str:
    return line.split(maxsplit=1)[0]


def test_the_parsers_on_hostile_sections(program: str, fuzz: Any) -> None:
    real = real_section()
    batch: list[tuple[int, bytes, int]] = []
    outcomes = set()
    statuses: Counter[str] = Counter()

    def check() -> None:
        for (seed, section, address), line in zip(batch, run(program, batch), strict=True):
            outcomes.add(line)
            statuses[status_of(line)] += 1
            if seed % 3 == 0:  # the Python parser is slow, its work on these is bounded all the same
                with fuzz.watched(seed):
                    expected = by_python(section, address)
                    assert line == expected or status_of(line) == expected != "0"
        batch.clear()

    for seed in fuzz.seeds(CASES):
        batch.append((seed, *case(random.Random(seed), fuzz, real)))
        if len(batch) == TOGETHER:
            check()
    if batch:
        check()
    assert len(outcomes) > 200
    assert statuses["0"] > statuses["4"] > 0  # most describe code: the parser is not left at its first lines
    assert statuses["3"] > 0


def test_the_real_section_is_in_range(program: str) -> None:
    (line,) = run(program, [(0, *real_section())])
    status, _, fdes, _ = line.split()
    assert status == "0"
    assert int(fdes) > 50
