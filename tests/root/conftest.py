"""What the tests of CPU stacks share: a sampler in this process, and the stacks that it found."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from gpuprof.bpf.programs import StackPrograms
from gpuprof.sampler.cpu_stacks import CpuStacks
from gpuprof.snapshots.errors import GpuprofError
from gpuprof.snapshots.frames import Hello
from gpuprof.snapshots.history import History

# Tests are not imported from a package: what they share (tree_rows.py) is found by its folder.
sys.path.append(str(Path(__file__).parent))

from tree_rows import Rows, sampled_rows

HZ = 499


class Sampling:
    """A running sampler and its history."""

    def __init__(self, hz: int) -> None:
        self.history = History(
            Hello(
                version=1, host="test", boot_id="", kernel="", cpu_count=os.cpu_count() or 1,
                mono_ns=time.monotonic_ns(), wall_ns=time.time_ns(), sampler_version="",
                sampler_pid=os.getpid(), cpu_hz=hz, nvml_hz=0, privileged=True,
            )
        )  # fmt: skip
        self.stacks = CpuStacks(self.history, StackPrograms.load(hz), hz)

    def for_seconds(self, seconds: float) -> tuple[int, int]:
        """Wait, and until what came in that time is in the history, named; begin and end of the time."""
        begin = time.monotonic_ns()
        time.sleep(seconds)
        end = time.monotonic_ns()
        assert self.stacks.settle(30.0)
        return begin, end

    def rows(self, span: tuple[int, int], pids: Sequence[int] = ()) -> Rows:
        """The stacks of a time; no pids: of all processes."""
        return sampled_rows(self.history, *span, pids)


@pytest.fixture(scope="module")
def sampling() -> Iterator[Sampling]:
    """Samples all processes while a module's tests run; skips where eBPF cannot be used."""
    try:
        running = Sampling(HZ)
    except GpuprofError as error:
        pytest.skip(f"no eBPF here: {error}")
    running.stacks.start()
    try:
        yield running
    finally:
        running.stacks.stop()
