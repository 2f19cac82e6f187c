"""Waits that had begun before: what /proc says of a thread, and of which threads a wait is told."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from gpuprof.bpf.records import FAMILY_WAIT
from gpuprof.sampler import earlier_waits
from gpuprof.sampler.earlier_waits import (
    KernelStack,
    Sleep,
    parse_stack,
    parse_status,
    parse_syscall,
    waits_of,
)
from gpuprof.sampler.wait_kinds import kind_of_wait

STATUS = b"""Name:\tpython3
Umask:\t0022
State:\t%s (sleeping)
Tgid:\t7
Uid:\t1000\t1001\t1002\t1003
voluntary_ctxt_switches:\t12
nonvoluntary_ctxt_switches:\t30
"""
STACK = b"""[<0>] futex_wait_queue+0x60/0x90
[<0>] futex_wait+0x185/0x270
[<0>] nvidia_ioctl+0x1f/0x30 [nvidia]
[<0>] entry_SYSCALL_64_after_hwframe+0x6e/0xd8
"""


@pytest.mark.parametrize(
    ("letter", "state"), [(b"S", 1), (b"D", 2), (b"T", 4), (b"R", 0), (b"Z", 0), (b"?", 0)]
)
def test_a_status(letter: bytes, state: int) -> None:
    assert parse_status(STATUS % letter) == Sleep(state, 42, 1000)


@pytest.mark.parametrize(
    "text",
    [b"", b"State:\tS", b"\0\xff" * 50, STATUS % b"", STATUS.replace(b"12", b"many"), STATUS[:60], b"State:"],
)
def test_what_is_no_status(text: bytes) -> None:
    found = parse_status(text)
    assert found is None or found.state == 0


def test_a_kernel_stack() -> None:
    found = parse_stack(STACK)
    assert found.names == ("futex_wait_queue", "futex_wait", "nvidia_ioctl", "entry_SYSCALL_64_after_hwframe")
    assert found.binaries == ("[kernel]", "[kernel]", "[nvidia]", "[kernel]")
    assert kind_of_wait(found.names, 202, binaries=found.binaries) == "futex"
    assert found.hash == parse_stack(STACK).hash != KernelStack().hash != 0
    assert parse_stack(b"") == KernelStack() == parse_stack(b"[<0>] \x1b[31m\n\xff\n[<0>] f+1/2\n")
    assert len(parse_stack(STACK * 1000).names) == earlier_waits.MAX_KERNEL_FRAMES
    assert "\x1b" not in "".join(parse_stack(b"[<0>] a\x1b[0mb+0x1/0x2 [m\x1bm]\n").names)


@pytest.mark.parametrize(
    ("text", "number"),
    [(b"202 0x1 0x2 0x7ffc\n", 202), (b"running\n", -1), (b"-1 0x7f 0x7e\n", -1), (b"", -1), (b"9" * 40, -1)],
)
def test_a_system_call(text: bytes, number: int) -> None:
    assert parse_syscall(text) == number


class Added:
    """Takes what waits_of finds, and changes the folder of the thread meanwhile, where it is told to."""

    def __init__(self, most: int = 100) -> None:
        self.waits: list[NDArray[np.void]] = []
        self.most = most
        self.meanwhile: dict[int, bytes] = {}
        self.folder = Path()

    def __call__(self, wait: NDArray[np.void], stack: KernelStack) -> bool:
        assert int(wait["stack"][0]) == stack.hash
        tid = int(wait["tid"][0])
        if tid in self.meanwhile:
            (self.folder / str(os.getpid()) / "task" / str(tid) / "status").write_bytes(self.meanwhile[tid])
        self.waits.append(wait[0].copy())
        return len(self.waits) <= self.most


def fake(folder: Path, tids: dict[int, bytes]) -> Path:
    own = folder / str(os.getpid())
    for tid, letter in tids.items():
        place = own / "task" / str(tid)
        place.mkdir(parents=True)
        (place / "status").write_bytes(STATUS % letter)
        (place / "stack").write_bytes(STACK)
        (place / "syscall").write_bytes(b"202 0x1\n")
        (place / "comm").write_bytes(b"worker\n")
    (own / "stat").write_bytes(b"7 (a) b) S 1 7 7 0 -1 4194304 0 0")
    return folder


def test_the_threads_that_wait(tmp_path: Path) -> None:
    added = Added()
    fake(tmp_path, {11: b"S", 12: b"R", 13: b"D"})
    times = iter((5, 6))
    over = waits_of(os.getpid(), 1000, added, lambda: (), proc=str(tmp_path), now_ns=lambda: next(times))
    assert not over
    found = {int(wait["tid"]): wait for wait in added.waits}
    assert found.keys() == {11, 13}
    wait = found[11]
    assert (wait["pid"], wait["family"], wait["header_words"], wait["uid"]) == (
        os.getpid(),
        FAMILY_WAIT,
        9,
        1000,
    )
    assert (wait["comm"], wait["state"], wait["syscall"], wait["weight"]) == (b"worker", 1, 202, 1)
    assert (wait["threshold_ns"], wait["bar_ns"], wait["woken_ns"], wait["time_ns"]) == (1000, 0, 0, 0)
    assert sorted(int(wait["extra"]) for wait in added.waits) == [5, 6]
    assert found[13]["state"] == 2


def test_one_whose_wait_is_followed_already_is_left_alone(tmp_path: Path) -> None:
    added = Added()
    fake(tmp_path, {11: b"S", 13: b"S"})
    asked = []

    def followed() -> set[int]:
        asked.append(len(added.waits))
        return {13}

    waits_of(os.getpid(), 0, added, followed, proc=str(tmp_path))
    assert [int(wait["tid"]) for wait in added.waits] == [11]
    assert asked == [0]


@pytest.mark.parametrize(
    "now",
    [
        STATUS % b"R",
        (STATUS % b"S").replace(b"\t12", b"\t13"),
        (STATUS % b"S").replace(b"\t30", b"\t31"),
        b"",
    ],
)
def test_a_wait_that_has_ended_meanwhile_is_dropped_again(tmp_path: Path, now: bytes) -> None:
    added = Added()
    added.folder = fake(tmp_path, {11: b"S", 13: b"S"})
    added.meanwhile = {13: now}
    assert waits_of(os.getpid(), 0, added, lambda: (), proc=str(tmp_path)) == [13]


def test_no_more_than_fit(tmp_path: Path) -> None:
    added = Added(most=2)
    fake(tmp_path, dict.fromkeys(range(20, 30), b"S"))
    waits_of(os.getpid(), 0, added, lambda: (), proc=str(tmp_path))
    assert len(added.waits) == 3  # the last was refused


def test_nobody_and_a_kernel_thread(tmp_path: Path) -> None:
    added = Added()
    assert not waits_of((1 << 22) + 1, 0, added, lambda: ())
    fake(tmp_path, {11: b"S"})
    (tmp_path / str(os.getpid()) / "stat").write_bytes(b"7 (kthread) S 2 0 0 0 -1 2129984 0 0")
    assert not waits_of(os.getpid(), 0, added, lambda: (), proc=str(tmp_path))
    assert not added.waits


def until_there(pid: int, tid: int, wanted: Callable[[np.void], bool]) -> np.void:
    """A wait of a thread that is wanted, once it has come so far."""
    deadline = time.monotonic() + 60
    while True:
        added = Added()
        waits_of(pid, 0, added, lambda: ())
        for wait in added.waits:
            if wait["tid"] == tid and wanted(wait):
                return wait
        assert time.monotonic() < deadline, added.waits
        time.sleep(0.005)


def test_of_this_very_process() -> None:
    """A thread that waits in a known system call, as this kernel shows it."""
    release = threading.Event()
    thread = threading.Thread(target=release.wait)
    thread.start()
    child = subprocess.Popen([sys.executable, "-c", "import time; print(1, flush=True); time.sleep(60)"],
                             stdout=subprocess.PIPE)  # fmt: skip
    try:
        assert child.stdout is not None
        child.stdout.readline()
        sleeps = {-1, 35, 230}  # hidden from others than root; nanosleep, clock_nanosleep
        wait = until_there(child.pid, child.pid, lambda wait: wait["syscall"] in sleeps)
        assert (wait["pid"], wait["tid"], wait["comm"][:6]) == (child.pid, child.pid, b"python")
        assert wait["state"] == 1
        assert thread.native_id is not None
        until_there(os.getpid(), thread.native_id, lambda wait: True)
    finally:
        release.set()
        thread.join()
        child.kill()
        child.wait()
