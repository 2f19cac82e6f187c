"""perf-PID.map: right on good files, harmless on bad ones."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuprof.sampler.jit_map import REREAD_NS, JitMap

NUMBER = 987_654_000 + os.getpid() % 1000  # a pid that no process has: the name of the map only


@pytest.fixture
def path() -> Iterator[Path]:
    path = Path(f"/tmp/perf-{NUMBER}.map")
    yield path
    path.unlink(missing_ok=True)


@pytest.fixture
def jit() -> JitMap:
    return JitMap(os.getpid(), NUMBER, os.geteuid())


def test_lookup(path: Path, jit: JitMap) -> None:
    path.write_text(
        "7f0000001000 20 LazyCompile:~fib /w.js:1\n7f0000002000 10 two words\n0x7f0000003000 0x10 prefixed\n"
    )
    assert jit.lookup(0x7F0000001000, 0) == "LazyCompile:~fib /w.js:1"
    assert jit.lookup(0x7F000000101F, 0) == "LazyCompile:~fib /w.js:1"
    assert jit.lookup(0x7F0000001020, 0) is None
    assert jit.lookup(0x7F0000002008, 0) == "two words"
    assert jit.lookup(0x7F0000003000, 0) == "prefixed"
    assert jit.lookup(0, 0) is None


def test_a_later_line_replaces_an_earlier_one_and_growth_is_seen(path: Path, jit: JitMap) -> None:
    path.write_text("1000 20 old\n")
    assert jit.lookup(0x1000, 0) == "old"
    with path.open("a") as file:
        file.write("1000 20 new\n3000 10 more\nunfinished")
    assert jit.lookup(0x3000, REREAD_NS - 1) is None  # not read more than once a second
    assert jit.lookup(0x3000, REREAD_NS) == "more"
    assert jit.lookup(0x1000, REREAD_NS) == "new"


def test_names_are_clean_and_garbage_is_skipped(path: Path, jit: JitMap) -> None:
    path.write_bytes(
        b"zz 1 x\n1000 10 a\x1b]0;x\x07b\n\n1000\n2000 -5 x\nffffffffffffffff ff wraps\n4000 10 ok\n"
    )
    name = jit.lookup(0x1000, 0)
    assert name is not None
    assert name.isprintable()
    assert jit.lookup(0x4000, 0) == "ok"


def test_links_fifos_and_foreign_files_are_not_read(path: Path, tmp_path: Path, jit: JitMap) -> None:
    target = tmp_path / "target"
    target.write_text("1000 10 secret\n")
    path.symlink_to(target)
    assert jit.lookup(0x1000, 0) is None
    path.unlink()
    os.mkfifo(path)
    assert jit.lookup(0x1000, REREAD_NS) is None
    path.unlink()
    if os.geteuid() == 0:
        path.write_text("1000 10 foreign\n")
        os.chown(path, 12345, 12345)
        assert jit.lookup(0x1000, 2 * REREAD_NS) is None


def test_a_file_over_the_limit_is_not_read(path: Path, jit: JitMap) -> None:
    path.write_text("1000 10 big\n")
    os.truncate(path, 65 << 20)
    assert jit.lookup(0x1000, 0) is None
