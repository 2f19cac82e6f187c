"""Processes with more Python threads than the kernel side's search looks at: none loses its Python frames."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tree_rows import Row, own_rows

from gpuprof.sampler.offcpu import OffCpu, Picks
from gpuprof.snapshots.frames import FrameKind, Query

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]

WORKLOADS = Path(__file__).parent / "workloads"
PYENV = Path.home() / ".pyenv" / "versions"
THREADS = 300
SETTLE_S = 1.0  # by then all threads are known
SECONDS = 3.0
Started = list[subprocess.Popen[bytes]]


def interpreters() -> dict[str, str]:
    """CPython versions of this machine."""
    found = {"this": sys.executable}
    for version in ("3.9", "3.10", "3.11", "3.12", "3.13", "3.14", "3.15"):
        for path in PYENV.glob(f"{version}.*/bin/python"):
            found[version] = str(path)
    return found


VERSIONS = interpreters()


@pytest.fixture
def started() -> Iterator[Started]:
    """Processes that are ended with the test."""
    found: Started = []
    yield found
    for process in found:
        process.kill()
        process.communicate()


def start(started: Started, python: str, script: str, *arguments: str) -> int:
    command = [python, str(WORKLOADS / script), *arguments]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    started.append(process)
    assert process.stdout is not None
    if process.stdout.readline() != b"ready\n":
        pytest.skip(f"{python} has no such interpreters")
    return process.pid


def own_functions(row: Row) -> set[str]:
    return {name.rpartition(".")[2] for name in row.path if name.rpartition(".")[2].startswith("own_")}


def is_told(row: Row) -> bool:
    return any(name.startswith("[truncated: ") for name in row.path)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_thread_has_its_python_frames(sampling: Any, started: Started, version: str) -> None:
    pid = start(started, VERSIONS[version], "many_threads.py", str(THREADS), "60")
    time.sleep(SETTLE_S)
    for _ in range(5):  # on a busy machine it may take longer until all threads are known
        walked = sampling.stacks.counters()["thread_walks"]
        rows = sampling.rows(sampling.for_seconds(SECONDS), [pid])
        walks = sampling.stacks.counters()["thread_walks"] - walked
        in_python = rows.where(lambda row: True)  # all that its threads do; a stripped CPython names no loop
        lost = in_python.where(lambda row: FrameKind.PYTHON not in row.kinds)
        # But for a frame that is being set up; and what is known is found without a search.
        few = in_python.weight <= 100
        if not few and lost.weight <= 0.005 * in_python.weight and walks <= 0.2 * in_python.weight:
            break
    else:
        pytest.fail(f"{lost.weight} of {in_python.weight} without Python frames, {walks} searches")
    assert in_python.weight > 100
    assert rows.where(lambda row: len(own_functions(row)) > 1) == []
    assert len({name for row in rows for name in own_functions(row)}) > 50


def test_waits_of_every_thread(sampling: Any, started: Started) -> None:
    pid = start(started, sys.executable, "many_threads.py", str(THREADS), "60")
    waits = OffCpu(lambda: sampling.stacks, lambda: True, set, Picks(pids=(pid,)))
    waits.start()
    try:
        deadline = time.monotonic() + 30
        while waits.status().state == "starting" and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(SETTLE_S + 0.2)  # a wait that began before is told by its old stack
        begin, end = sampling.for_seconds(SECONDS)
        assert sampling.stacks.settle(10.0)
        query = Query(
            id=1, tree="offcpu", start_ns=begin, end_ns=end, pids=[pid], min_fraction=0.0, max_nodes=1 << 20
        )
        rows = own_rows(sampling.history.query(query))
    finally:
        waits.stop()
    asleep = rows.where(lambda row: any("clock_nanosleep" in name or "select" in name for name in row.path))
    total = asleep.weight / 1e9
    assert total > 0.8 * THREADS * SECONDS
    lost = asleep.where(lambda row: FrameKind.PYTHON not in row.kinds)
    assert lost.weight <= 0.005 * asleep.weight
    seen = {name for row in asleep for name in own_functions(row)}
    assert len(seen) > 0.9 * THREADS  # of a storm some are not followed


@pytest.mark.parametrize("version", [version for version in VERSIONS if version in {"3.12", "3.13", "3.14"}])
def test_threads_in_subinterpreters(sampling: Any, started: Started, version: str) -> None:
    """Both chains of each thread, that of its interpreter and that which made it, far back in the lists."""
    pid = start(started, VERSIONS[version], "many_interpreters.py", "40", "200")
    time.sleep(2 * SETTLE_S)
    rows = sampling.rows(sampling.for_seconds(SECONDS), [pid])
    inside = rows.where(lambda row: "time_sleep" in row.path or "inside" in row.path or "outside" in row.path)
    assert inside.weight > 50
    whole = inside.where(lambda row: row.has("outside", "inside"))
    told = inside.where(is_told)
    assert whole.weight + told.weight >= 0.99 * inside.weight
    assert whole.weight >= 0.95 * inside.weight
