"""What the source of GPU work needs of the stack reader."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from gpuprof.bpf.programs import GraphCalls
    from gpuprof.sampler.launch_stacks import Launches
    from gpuprof.snapshots.frames import SourceStatus


@runtime_checkable
class LaunchSource(Protocol):
    """Launches with their stacks; see CpuStacks, which is one. Every method may be called from any thread."""

    def status(self) -> SourceStatus: ...

    def follow(self, pid: int) -> None: ...

    def follows(self, pid: int) -> bool: ...

    def injected_pids(self) -> set[int]: ...

    def open_launch_probe(self, pid: int, path: str, offset: int) -> int: ...

    def open_graph_probe(self, pid: int, path: str, offset: int, program: str) -> int: ...

    def graph_calls(self, pid: int) -> GraphCalls: ...

    def forget_graph_calls(self, pid: int) -> None: ...

    def wait_for_launches(self, seconds: float) -> None: ...

    def take_launches(self) -> list[Launches]: ...

    def launch_losses(self) -> tuple[int, int]: ...
