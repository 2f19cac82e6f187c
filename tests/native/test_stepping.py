"""tests/device/stepping.py on programs whose instructions are known."""

from __future__ import annotations

import os
import platform
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "device"))

import stepping

pytestmark = [
    pytest.mark.skipif(shutil.which("gcc") is None, reason="no C compiler"),
    pytest.mark.skipif(platform.machine() != "x86_64", reason="x86-64 only"),
    pytest.mark.timeout(120),
]
SOURCE = r"""
#include <stdio.h>
#include <time.h>
static __attribute__((noinline, noclone)) void asked(int times)
{
    struct timespec at;
    while (times-- > 0)
        clock_gettime(CLOCK_MONOTONIC, &at);
}
int main(int argc, char **argv)
{
    printf("%lu\n", (unsigned long)&asked);
    fflush(stdout);
    for (;;)
        asked(argc);
}
"""


@pytest.fixture
def loop(tmp_path: Path) -> Iterator[Callable[[int], tuple[int, int]]]:
    """loop(times) -> pid of a program that does nothing but look at the clock, and where its function is."""
    (tmp_path / "loop.c").write_text(SOURCE)
    subprocess.run(["gcc", "-O2", "-Wl,-z,now", "-o", tmp_path / "loop", tmp_path / "loop.c"], check=True)
    started = []

    def start(times: int) -> tuple[int, int]:
        command = [str(tmp_path / "loop"), *["x"] * (times - 1)]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        assert started[-1].stdout is not None
        return started[-1].pid, int(started[-1].stdout.readline())

    yield start
    for process in started:
        process.kill()
        process.communicate()


def stopped(pid: int) -> stepping.Stepper:
    try:
        return stepping.Stepper(pid)
    except OSError as error:
        pytest.skip(f"no ptrace here: {error}")


def test_a_thread_that_was_stopped_in_the_vdso_is_stepped(loop: Callable[[int], tuple[int, int]]) -> None:
    """Where its caller is known at the function's entry alone; this program is in it nearly always."""
    for _ in range(5):
        pid, entry = loop(2)
        stepper = stopped(pid)
        calls = stepper.calls(entry, 2)
        stepper.detach()
        os.kill(pid, signal.SIGKILL)
        assert len(calls) == 2
        assert calls[0] == calls[1]
        assert calls[0][0] == entry


def test_calls_are_as_many_as_fit_into_the_steps(
    loop: Callable[[int], tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    pid, entry = loop(1)
    stepper = stopped(pid)
    each = len(stepper.calls(entry, 1)[0])
    monkeypatch.setattr(stepping, "MOST_STEPS", 7 * each)
    found = stepper.calls(entry, 100)
    assert 5 <= len(found) <= 6
    assert {len(call) for call in found} == {each}
    monkeypatch.setattr(stepping, "MOST_STEPS", each)
    with pytest.raises(TimeoutError):
        stepper.calls(entry, 100)
    stepper.detach()
