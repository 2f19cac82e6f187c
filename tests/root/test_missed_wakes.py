"""Waits of which the kernel side did not see the wake, or not the switch-in: no BPF program runs in some
contexts. Here a program is detached in its place.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from gpuprof.bpf import syscalls
from gpuprof.bpf.inventory import WAIT_TRACEPOINTS
from gpuprof.bpf.programs import StackPrograms
from gpuprof.bpf.wait_programs import TIME_WAS_UP

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]

MS = 10**6
LONG_NS = 100 * MS
DUE = ("due_nanosleep", "due_until", "due_poll", "due_epoll", "due_futex", "due_condition")
LET = ("let_poll", "let_epoll", "let_futex", "let_forever", "let_read")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> str:
    if shutil.which("gcc") is None:
        pytest.skip("no gcc")
    built = str(tmp_path_factory.mktemp("limits") / "limits")
    source = str(Path(__file__).parent / "workloads" / "limits.c")
    subprocess.run(["gcc", "-O2", "-pthread", "-o", built, source], check=True)
    return built


@pytest.fixture(scope="module")
def loaded() -> Iterator[StackPrograms]:
    programs = StackPrograms.load(99)
    programs.need("wait")
    try:
        yield programs
    finally:
        programs.close()


@pytest.fixture
def programs(loaded: StackPrograms) -> Iterator[StackPrograms]:
    loaded.waits.start(MS, track_all=False, own_pid=os.getpid())
    try:
        yield loaded
    finally:
        loaded.waits.stop()


def started(command: list[str], programs: StackPrograms) -> subprocess.Popen[bytes]:
    """A workload that is followed, and begins."""
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    assert programs.waits.track(process.pid)
    tell(process)
    return process


def detach(programs: StackPrograms, name: str) -> None:
    """Have a program of waits run no more."""
    attached = programs.waits._attached
    os.close(attached.pop(list(WAIT_TRACEPOINTS).index(name)))


def long_waits(programs: StackPrograms, pid: int) -> NDArray[np.void]:
    """Those of a process since the last time, where the thread was not ready; threads by name."""
    waits = programs.waits.read()[1]
    length = waits["time_ns"] - waits["extra"]
    found: NDArray[np.void] = waits[(waits["pid"] == pid) & (length > LONG_NS) & (waits["state"] != 0)]
    return found


def test_a_wake_that_was_not_seen_is_told_by_the_time_limit(programs: StackPrograms, program: str) -> None:
    detach(programs, "wait_waking")
    before = programs.counters()["wait_wakes_missed"]
    process = started([program, "limits"], programs)
    assert process.wait(30) == 0
    waits = {bytes(wait["comm"]).decode(): wait for wait in long_waits(programs, process.pid)}
    for name in (*DUE, *LET):
        assert waits[name]["woken_ns"] == 0, name
        assert waits[name]["waker_comm"] == b""
    assert [name for name in (*DUE, *LET) if waits[name]["waker_flags"] & TIME_WAS_UP] == list(DUE)
    assert programs.counters()["wait_wakes_missed"] - before >= len(DUE) + len(LET)


def test_a_wake_that_was_seen_needs_no_time_limit(programs: StackPrograms, program: str) -> None:
    process = started([program, "limits"], programs)
    assert process.wait(30) == 0
    waits = {bytes(wait["comm"]).decode(): wait for wait in long_waits(programs, process.pid)}
    for name in LET:
        assert waits[name]["waker_comm"] == b"helper", name
        assert not waits[name]["waker_flags"] & TIME_WAS_UP
    # An interrupt may hit a thread in whose context no program runs; it is told all the same.
    assert all(waits[name]["woken_ns"] or waits[name]["waker_flags"] & TIME_WAS_UP for name in DUE)


def tell(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.write(b"x")
    process.stdin.flush()


def told(process: subprocess.Popen[bytes]) -> list[int]:
    assert process.stdout is not None
    return [int(number) for number in process.stdout.readline().split()]


def until_it_waits(programs: StackPrograms, pid: int) -> None:
    """A process with one thread."""
    deadline = time.monotonic() + 30
    while pid not in programs.waits.running_waits()[0]["pid"] and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(2 * LONG_NS / 1e9)


def test_a_switch_in_that_was_not_seen_is_told_at_the_next_switch_out(
    programs: StackPrograms, program: str
) -> None:
    for _ in range(20):
        missed = programs.counters()["wait_ends_missed"]
        process = started([program, "burner"], programs)
        until_it_waits(programs, process.pid)
        detach(programs, "wait_switch")
        tell(process)
        began, woke = told(process)  # now it uses a CPU
        again = syscalls.raw_tracepoint_open("sched_switch", programs.programs["wait_switch"])
        programs.waits._attached.insert(list(WAIT_TRACEPOINTS).index("wait_switch"), again)
        tell(process)
        (more,) = told(process)
        assert process.wait(30) == 0
        waits = np.sort(long_waits(programs, process.pid), order="extra")
        if programs.counters()["wait_ends_missed"] > missed:
            break  # otherwise it was off the CPU just then, so that a switch-in of later was seen first
    else:
        pytest.skip("this machine is too busy")
    assert len(waits) == 2  # the sleep at the end is whole, too
    assert began <= waits["extra"][0] < woke - LONG_NS
    # While nothing was seen it may have been off the CPU for a while: so much later the wait seems to end.
    assert waits["woken_ns"][0] <= waits["time_ns"][0] <= woke + more + MS


def test_what_was_left_when_waits_were_not_followed_is_dropped(programs: StackPrograms, program: str) -> None:
    """A thread that slept at the stop, and has run since, does not seem to have slept all the time."""
    process = started([program, "burner"], programs)
    until_it_waits(programs, process.pid)
    programs.waits.stop()
    tell(process)
    told(process)  # now it uses a CPU
    again_ns = time.monotonic_ns()
    programs.waits.start(MS, track_all=False, own_pid=os.getpid())
    tell(process)
    told(process)
    assert process.wait(30) == 0
    waits = programs.waits.read()[1]
    found = waits["extra"][(waits["pid"] == process.pid) & (waits["time_ns"] > again_ns)]
    assert len(found)
    assert int(found.min()) >= again_ns


def test_the_thresholds_of_processes(programs: StackPrograms, program: str) -> None:
    """Each wait carries the threshold of its process."""
    first, second = (
        subprocess.Popen([program, "limits"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(2)
    )
    programs.waits.set_thresholds(2 * MS, {first.pid: 5 * MS, 1 << 22: 3 * MS})
    assert programs.waits.threshold_ns == 2 * MS
    assert programs.waits.thresholds == {first.pid: 5 * MS, 1 << 22: 3 * MS}
    found = {}
    for process in (first, second):
        assert process.stdout is not None
        process.stdout.readline()
        programs.waits.track(process.pid)
        tell(process)
        assert process.wait(30) == 0
    waits = programs.waits.read()[1]
    for process in (first, second):
        found[process.pid] = set(waits["threshold_ns"][waits["pid"] == process.pid].tolist())
    assert found == {first.pid: {5 * MS}, second.pid: {2 * MS}}
    programs.waits.set_thresholds(MS, {})
    assert syscalls.map_keys(programs.maps["wait_thresholds"], 4, 16) == []
