"""The tight loop on the mock driver and CUPTI of tests/native, which a machine without a GPU runs too."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from tight_loop import NATIVE, tight_loop

from gpuprof.sampler import gpu_ring


@dataclass(frozen=True)
class Loop:
    """A program that launches when asked (tight_loop.py): its command, its environment with the library,
    and what links to the library's ring begin with.
    """

    command: list[str]
    environment: dict[str, str]
    rings: str = gpu_ring.NAME


def mock_loop(folder: str, *, graph: bool = False, work: int = 800) -> Loop:
    """Compile the library, the mocks and the program into `folder`. Its rings have a name of their own, so
    that no other sampler of this machine listens.
    """
    sys.path.append(str(NATIVE))
    import injected

    name = f"gpuprof-loop-{os.getpid()}"
    built = injected.build(Path(folder) / "mock", ring_name=name)
    environment = {
        **os.environ,
        "CUDA_INJECTION64_PATH": str(built.library),
        "GPUPROF_CUPTI": str(built.cupti),
        "MOCK_CUPTI_COUNTERS": f"{folder}/counters",
    }
    return Loop(
        tight_loop(folder, graph=graph, mock=str(built.folder), work=work), environment, f"/memfd:{name}"
    )


def gpu_loop(folder: str, *, graph: bool = False) -> Loop:
    """The same on a GPU, with the library that is installed."""
    from gpuprof.tui import run

    return Loop(tight_loop(folder, graph=graph), run.environment(os.environ))
