"""Loading the BPF programs while the sampler is imported: once, for the rate that was asked for."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from gpuprof.sampler import ahead
from gpuprof.snapshots.errors import GpuprofError


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, int]]]:
    """What load_programs was called with."""
    calls: list[dict[str, int]] = []

    def load(config: dict[str, int]) -> object:
        calls.append(config)
        return ("loaded", len(calls))

    monkeypatch.setattr(ahead, "load_programs", load)
    monkeypatch.setattr(ahead, "_begun", {})
    yield calls
    for thread in threading.enumerate():
        if thread.name == "load-bpf":
            thread.join(5)


def test_what_was_begun_is_taken_once(loads: list[dict[str, int]]) -> None:
    ahead.begin(["--fd", "5", "--hz", "19", "--command", "/usr/bin/gpuprof-tui"])
    assert ahead.take(19) == ("loaded", 1)
    assert ahead.take(19) == ("loaded", 2)
    assert loads[0] == loads[1]


def test_another_rate_is_loaded_for_itself(loads: list[dict[str, int]]) -> None:
    ahead.begin([])
    assert ahead.take(997) is not None
    ahead.take(99)
    assert len(loads) == 2


@pytest.mark.parametrize("argv", [["--no-cpu"], ["--hz", "0"], ["--hz", "many"], ["--hz"], ["--hz=5000"]])
def test_nothing_is_begun(loads: list[dict[str, int]], argv: list[str]) -> None:
    ahead.begin(argv)
    assert not ahead._begun
    assert not loads


def test_the_error_comes_with_the_taking(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(config: dict[str, int]) -> object:
        raise GpuprofError("no permission", "sudo", 4)

    monkeypatch.setattr(ahead, "load_programs", load)
    ahead.begin([])
    with pytest.raises(GpuprofError, match="no permission"):
        ahead.take(99)


def test_it_needs_neither_numpy_nor_bcc() -> None:
    names = "{'numpy', 'bcc', 'asyncio'}"
    code = f"import sys, gpuprof.sampler.ahead; sys.exit(bool({names} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
