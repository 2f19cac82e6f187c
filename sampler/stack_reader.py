"""What the source of waits needs of the stack reader."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from gpuprof.sampler.wait_reader import WaitReader
    from gpuprof.snapshots.frames import SourceStatus


@runtime_checkable
class StackReader(Protocol):
    """What the source of waits needs of CpuStacks. Every method may be called from any thread."""

    waits: WaitReader

    def status(self) -> SourceStatus: ...

    def follow(self, pid: int) -> None: ...

    def injected_pids(self) -> set[int]: ...

    def settle(self, seconds: float, least_wait_ns: int = 0) -> bool: ...

    @property
    def complete_ns(self) -> int: ...

    def overdue(self) -> str: ...

    def counters(self) -> dict[str, int]: ...
