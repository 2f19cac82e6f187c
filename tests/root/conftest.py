"""What the tests of CPU stacks share: a sampler in this process, and the stacks that it found."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pytest

from gpuprof.bpf.programs import StackPrograms
from gpuprof.sampler.cpu_stacks import CpuStacks
from gpuprof.snapshots.errors import GpuprofError
from gpuprof.snapshots.frames import FrameKind, Hello, Query
from gpuprof.snapshots.history import History

HZ = 499


@dataclass(frozen=True)
class Row:
    """A stack, from the process down, and its number of samples."""

    path: tuple[str, ...]
    files: tuple[str, ...]
    lines: tuple[int, ...]
    kinds: tuple[FrameKind, ...]
    weight: float

    @property
    def complete(self) -> bool:
        return FrameKind.UNKNOWN not in self.kinds

    def has(self, *names: str) -> bool:
        """Whether the names occur in the path in this order, others between them or not."""
        rest = iter(self.path)
        return all(name in rest for name in names)


class Rows(list[Row]):
    """The stacks of a query."""

    @property
    def weight(self) -> float:
        return sum(row.weight for row in self)

    def where(self, wanted: Callable[[Row], bool]) -> Rows:
        return Rows(row for row in self if wanted(row))

    def share(self, wanted: Callable[[Row], bool]) -> float:
        """The part of the samples that is wanted."""
        return self.where(wanted).weight / self.weight if self else 0.0


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
        """Wait, and until what came in that time is named; begin and end of the time."""
        begin = time.monotonic_ns()
        time.sleep(seconds)
        end = time.monotonic_ns()
        time.sleep(0.5)
        return begin, end

    def rows(self, span: tuple[int, int], pids: Sequence[int] = ()) -> Rows:
        """The stacks of a time; no pids: of all processes."""
        tree = self.history.query(
            Query(
                id=1, tree="cpu", start_ns=span[0], end_ns=span[1], pids=list(pids), min_fraction=0.0,
                max_nodes=1 << 20,
            )
        )  # fmt: skip
        found = [Row((), (), (), (), 0.0)]
        for node, parent in enumerate(tree.parent.tolist()):
            if node:
                above = found[parent]
                found.append(
                    Row(
                        (*above.path, tree.strings[int(tree.name[node])]),
                        (*above.files, tree.strings[int(tree.file[node])]),
                        (*above.lines, int(tree.line[node])),
                        (*above.kinds, FrameKind(int(tree.kind[node]))),
                        float(tree.self_weight[node]),
                    )
                )
        return Rows(row for row in found if row.weight)


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
