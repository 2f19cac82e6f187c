"""When the rings are read again."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from gpuprof.sampler.gpu_work import SOON_S, GpuWork


@pytest.mark.parametrize("took_s", [0.0, 0.05])
def test_a_ring_that_is_never_empty_leaves_half_of_a_core(history: Any, took_s: float) -> None:
    work: Any = GpuWork(history, dict, lambda: None)
    waits: list[float] = []
    work._stop = SimpleNamespace(wait=waits.append)
    work._sessions = [SimpleNamespace(more=True)]
    work._rest(time.monotonic() - took_s)
    assert len(waits) == 1
    assert waits[0] >= max(SOON_S, took_s)
