"""Hostile text files of a profiled process: /proc/PID/maps and perf-PID.map."""

from __future__ import annotations

import os
import random
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpuprof.sampler import jit_map
from gpuprof.sampler.jit_map import JitMap
from gpuprof.sampler.maps import parse_maps

CASES = 300
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
MAPS = b"""\
55d0c0a00000-55d0c0a01000 r-xp 00001000 fd:01 132                        /opt/a\\012b/prog (deleted)
7f0000000000-7f0000020000 r-xp 00020000 fd:01 133                        /usr/lib/libx.so.1
7f0000100000-7f0000101000 rwxp 00000000 00:00 0
7f0000200000-7f0000201000 r-xs 00000000 00:01 2048                       /memfd:jit (deleted)
7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0                          [stack]
7ffc00100000-7ffc00102000 r-xp 00000000 00:00 0                          [vdso]
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]
"""
PERF = b"".join(b"%x %x LazyCompile:~f%d /srv/app.js:%d\n" % (0x1000 + 64 * i, 64, i, i) for i in range(50))


def hostile_text(original: bytes, rng: random.Random, fuzz: Any) -> bytes:
    if rng.random() < 0.1:
        return bytes(rng.choice(b"0123456789abcdef-x \n\\/[]\xff\0") for _ in range(rng.randrange(4000)))
    lines = fuzz.mutate(original, rng).split(b"\n")
    for _ in range(rng.randrange(4)):
        at = rng.randrange(len(lines))
        lines[at] = rng.choice(
            (
                lines[at] * 50,
                lines[at].replace(b" ", b"  "),
                lines[at].upper(),
                b"\x1b[2J" + lines[at],
                lines[at] + b"\\777\\012\\x",
                b"ffffffffffffffff " + lines[at],
                b"0" * 5000,
                b"\xff\xfe" + lines[at],
                b"",
            )
        )
    return b"\n".join(lines)


def test_hostile_maps(fuzz: Any) -> None:
    counts = set()
    for seed in fuzz.seeds(CASES):
        text = hostile_text(MAPS, random.Random(seed), fuzz)
        with fuzz.watched(seed):
            mappings = parse_maps(text)
            counts.add(len(mappings))
            for mapping in mappings:
                assert 0 <= mapping.start < mapping.end <= 1 << 64
                assert 0 <= mapping.offset < 1 << 64
                assert not CONTROL.search(mapping.name)
                assert hash(mapping.key) is not None
            assert [m for m in mappings if m.executable] == parse_maps(text, executable_only=True)
    assert len(counts) > 3


@pytest.mark.parametrize(
    "line",
    [
        b"0" * (1 << 20),
        b"7f00-7f01 r-xp " * 80_000,
        b" " * (1 << 20),
        b"\\012" * (1 << 18),
        b"a-" * (1 << 19),
    ],
    ids=["zeros", "beginnings", "spaces", "escapes", "dashes"],
)
def test_long_lines_take_no_longer_than_their_length(line: bytes, fuzz: Any) -> None:
    whole = b"7f0000000000-7f0000020000 r-xp 00020000 fd:01 133 /" + line + b"\n"
    with fuzz.watched(0):
        parse_maps(line)
        parse_maps(line + b"\n" + line)
        (mapping,) = parse_maps(whole)
        assert len(mapping.name) < 70_000
        assert fuzz.peak_of(lambda: parse_maps(whole)) < 64 << 20


def jit_of(text: bytes, folder: Path, monkeypatch: pytest.MonkeyPatch) -> JitMap:
    """The map of a file with this text, as of a process of ours."""
    path = folder / "perf-1.map"
    path.write_bytes(text)
    monkeypatch.setattr(JitMap, "_open", lambda self: os.open(path, os.O_RDONLY))
    return JitMap(os.getpid(), 1, os.getuid())


def test_hostile_perf_maps(fuzz: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = set()
    for seed in fuzz.seeds(CASES):
        rng = random.Random(seed)
        text = hostile_text(PERF, rng, fuzz)
        with fuzz.watched(seed):
            jit = jit_of(text, tmp_path, monkeypatch)
            for address in (
                0,
                0x1000,
                0x1040,
                0x103F,
                1 << 63,
                (1 << 64) - 1,
                *(rng.getrandbits(14) for _ in range(20)),
            ):
                name = jit.lookup(address, now_ns=time.monotonic_ns())
                found.add(name is not None)
                assert name is None or not CONTROL.search(name)
    assert found == {True, False}


def test_a_perf_map_of_many_lines(fuzz: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest file that is read, full of the shortest lines: time and memory stay bounded."""
    text = b"1 1 x\n" * (jit_map.MAX_MAP_BYTES // 6 - 1) + b"2 1 y\n"
    jit = jit_of(text, tmp_path, monkeypatch)
    with fuzz.watched(0):
        assert jit.lookup(2, now_ns=1 << 62) == "y"
        assert jit.lookup(1) == "x"
    state = np.concatenate((jit._start, jit._end))
    assert len(state) == 4
    with (tmp_path / "perf-1.map").open("r+b") as file:
        file.truncate(jit_map.MAX_MAP_BYTES + 1)
    assert JitMap(os.getpid(), 1, os.getuid()).lookup(1, now_ns=1 << 62) is None
