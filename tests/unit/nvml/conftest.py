"""A scripted libnvidia-ml, and a history that only remembers."""

from __future__ import annotations

import importlib.util
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from gpuprof.sampler.gpu_reader import GpuReader
from gpuprof.snapshots.frames import Gpus
from gpuprof.snapshots.metrics import METRICS

NATIVE = Path(__file__).parents[2] / "native"


class Recorder:
    """A history that only remembers."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.names: list[tuple[str, str | None, int | None]] = []
        self.rows: list[tuple[str, str | None, int | None, int, int, float]] = []
        self.gpus: list[Gpus] = []
        self.batches = 0

    def series(
        self, metric: str, *, gpu: str | None = None, pid: int | None = None, core: int | None = None
    ) -> int:
        assert metric in METRICS
        with self.lock:
            self.names.append((metric, gpu, pid))
            return len(self.names) - 1

    def add_readings(
        self, series: Sequence[int], start_ns: Sequence[int], end_ns: Sequence[int], value: Sequence[float]
    ) -> None:
        with self.lock:
            self.batches += 1
            for number, start, end, reading in zip(series, start_ns, end_ns, value, strict=True):
                self.rows.append((*self.names[number], start, end, reading))

    def set_gpus(self, gpus: Gpus) -> None:
        self.gpus.append(gpus)

    def of(self, metric: str, gpu: str | None = None, pid: int | None = None) -> list[tuple[int, int, float]]:
        with self.lock:
            return [
                row[3:]
                for row in self.rows
                if row[0] == metric and (gpu or row[1]) == row[1] and pid == row[2]
            ]


def until(condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    deadline = time.monotonic() + seconds
    while True:
        result = condition()
        if result or time.monotonic() > deadline:
            assert result, "did not happen in time"
            return result
        time.sleep(0.005)


@pytest.fixture(scope="session")
def wait_for() -> Callable[..., Any]:
    """wait_for(condition) returns the first true result of it."""
    return until


@pytest.fixture(scope="session")
def mock_nvml() -> Any:
    """The module that builds and scripts the mock."""
    spec = importlib.util.spec_from_file_location("mock_nvml", NATIVE / "mock_nvml.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def mock_path(mock_nvml: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(mock_nvml.build(tmp_path_factory.mktemp("mock"), soname="mock-nvml.so"))


@pytest.fixture
def mock(mock_nvml: Any, mock_path: Path) -> Iterator[Any]:
    """pynvml on the mock, in its first state: mock("gpus 2") scripts it."""
    scripted = mock_nvml.MockNvml(mock_path)
    scripted("reset")
    with mock_nvml.in_pynvml(scripted.library):
        yield scripted
        scripted("release")


@pytest.fixture
def new_recorder() -> Callable[[], Recorder]:
    return Recorder


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def reader(mock: Any, recorder: Recorder) -> Iterator[GpuReader]:
    """A quick reader that writes into `recorder`, not started yet."""
    source = GpuReader(recorder, fast_hz=50, slow_hz=20)
    yield source
    mock("release")
    source.stop()
    for worker in source._workers:
        assert worker.join(time.monotonic() + 60)
