"""Families of programs on their way into the kernel, with descriptors of /dev/null in place of programs."""

from __future__ import annotations

import os
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from gpuprof.bpf import inventory, program_load
from gpuprof.snapshots.errors import GpuprofError


@pytest.fixture
def loader(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a loader of the optional families, whose last program loads once `release` is set."""
    families = [family for family in inventory.FAMILIES if not family.required]
    names = [name for family in families for name in family.programs]
    release = threading.Event()
    opened: list[int] = []

    def load(name: str, _kind: int, _code: bytes, **_more: Any) -> int:
        if name == names[-1]:
            release.wait(30)
        opened.append(os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC))
        return opened[-1]

    monkeypatch.setattr(program_load, "link", lambda _program, _maps, _seed: b"")
    monkeypatch.setattr(program_load.syscalls, "program_load", load)
    monkeypatch.setattr(program_load.syscalls, "map_update", lambda *_: None)
    compiled: Any = SimpleNamespace(programs={name: SimpleNamespace(name=name, code=b"") for name in names})
    maps = {family.table: 0 for family in families if family.table}
    made = program_load.FamilyLoader(families, compiled, maps, seed=1)
    yield SimpleNamespace(loader=made, release=release, opened=opened, names=names)
    release.set()
    made.close()


def is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def results(loader: Any) -> list[int]:
    found = []
    for parts in loader.loader._parts.values():
        for part in parts.values():
            if not part.cancelled():
                found.append(part.result())
    return found


def test_programs_are_closed_also_those_that_are_being_loaded(loader: Any) -> None:
    while len(loader.opened) < len(loader.names) - 1 and not loader.release.is_set():
        loader.release.wait(0.01)
    loader.loader.close()
    loader.release.set()
    results(loader)
    while any(is_open(fd) for fd in loader.opened):  # they are closed by the threads that loaded them
        time.sleep(0.01)
    with pytest.raises(GpuprofError):
        loader.loader.wait_for_all()


def test_a_second_close_leaves_alone_what_has_those_numbers_by_then(loader: Any) -> None:
    """As when the owner closes while a part is being loaded, and that thread then finds it closed."""
    loader.release.set()
    loader.loader.wait_for_all()
    numbers = results(loader)
    loader.loader.close()
    others = [os.open("/dev/zero", os.O_RDONLY | os.O_CLOEXEC) for _ in numbers]
    assert set(others) & set(numbers)
    try:
        loader.loader.close()
        assert all(is_open(fd) for fd in others)
    finally:
        for fd in others:
            os.close(fd)
