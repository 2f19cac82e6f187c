"""What stands in for UnwindTables: it uploads nothing, and notes what it is told."""

from __future__ import annotations

from collections.abc import Mapping as MappingOf
from collections.abc import Sequence

from gpuprof.sampler.maps import Mapping
from gpuprof.sampler.python_runtime import PythonLayout


class NotedTables:
    """`forks`: whether the kernel has given a child the tables of its parent."""

    def __init__(self, *, forks: bool = True) -> None:
        self.published: dict[int, tuple[Sequence[Mapping], PythonLayout | None]] = {}
        self.forgotten: list[int] = []
        self.threads: dict[int, MappingOf[int, Sequence[int]]] = {}
        self.forks = forks

    def publish(self, pid: int, mappings: Sequence[Mapping], python: PythonLayout | None) -> None:
        self.published[pid] = (mappings, python)

    def fork(self, child: int) -> bool:
        return self.forks

    def forget(self, pid: int) -> None:
        self.published.pop(pid, None)
        self.forgotten.append(pid)

    def put_thread_states(self, pid: int, states: MappingOf[int, Sequence[int]]) -> None:
        self.threads[pid] = states

    def housekeeping(self) -> None:
        pass
