"""A launch in a pause is the very instructions that it is without the library, whatever a real sampler has
attached: counted one by one on the mock driver.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[1] / "device"))

from launch_cost import ring_of
from launch_steps import instructions, wait_for_pause
from mock_driver import Loop, mock_loop
from stepping import patched
from windows import Worker, sampler

from gpuprof.sampler.process_stacks import INJECTION_LIBRARY

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root"),
    pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler"),
    pytest.mark.timeout(300),
]
CALLS, WORK = 3, 4  # a step may take a millisecond where others use the machine
PATIENCE_S = 20.0


@pytest.fixture(scope="module")
def loop(tmp_path_factory: pytest.TempPathFactory) -> Loop:
    return mock_loop(str(tmp_path_factory.mktemp("loop")), work=WORK)


@pytest.fixture
def launching(loop: Loop) -> Iterator[Callable[..., Worker]]:
    """launching(library=True) -> a program that has launched for a moment."""
    running = []

    def start(*, library: bool) -> Worker:
        plain = {name: value for name, value in loop.environment.items() if "INJECTION64_PATH" not in name}
        work = Worker(loop.command, loop.environment if library else plain)
        running.append(work)
        work.ask("0.2")
        return work

    yield start
    for work in running:
        work.end()


def test_a_launch_in_a_pause_takes_the_instructions_of_one_without_the_library(
    loop: Loop, launching: Callable[..., Any]
) -> None:
    without = instructions(launching(library=False), CALLS)
    assert without[0] == without[1] == without[2]
    assert instructions(launching(library=True), CALLS) == without  # nobody listens
    work = launching(library=True)
    with sampler(rings=loop.rings):
        ring = ring_of(work.process.pid, loop.rings)
        assert wait_for_pause(work, ring), ring.facts()
        paused = instructions(work, CALLS)
        end = time.monotonic() + PATIENCE_S
        while len(probes := patched(work.process.pid)) > 1 and time.monotonic() < end:
            time.sleep(0.1)  # those on functions that make graphs go one by one, a while after the attach
        assert ring.facts().state == "paused"
    assert paused == without
    assert {name for call in paused for name, _ in call} == {"tight", "libcuda.so.1"}
    assert [name for name, _ in probes] == [INJECTION_LIBRARY]  # the launch probe, which no launch passes now
