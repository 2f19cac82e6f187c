"""A GPU that is lost, and calls that hang: the others go on."""

from __future__ import annotations

import os
import re
import time
from typing import Any

import pytest

from gpuprof.sampler import gpu_reader
from gpuprof.sampler.gpu_reader import GpuReader

PID = os.getpid()
UUID = [f"GPU-00000000-0000-0000-0000-{n:012d}" for n in range(4)]


@pytest.mark.parametrize("how", ["lose 0", "fail 0 nvmlDeviceGetTemperatureV 16"])
def test_lost_in_mid_run(mock: Any, reader: GpuReader, recorder: Any, how: str, wait_for: Any) -> None:
    mock("gpus 2", f"process 0 {PID} 1000")
    reader.start()
    wait_for(lambda: recorder.of("temp_c", UUID[0]) and recorder.of("energy_j", UUID[0]))
    wait_for(lambda: recorder.gpus and len(recorder.gpus[-1].gpus) == 2)  # told by another thread
    mock(how)
    wait_for(lambda: recorder.gpus[-1].lost == [UUID[0]])
    assert len(recorder.gpus[-1].gpus) == 2
    for thread in reader._workers[0]._threads:
        thread.join(60)
        assert not thread.is_alive()
    calls, seen = mock.calls(0), len(recorder.of("temp_c", UUID[1]))
    wait_for(lambda: len(recorder.of("temp_c", UUID[1])) > seen + 10)
    assert mock.calls(0) == calls  # a lost handle is never used again
    assert mock.calls_after_loss() <= 3  # one per thread that was between its check and its call
    status = reader.status()
    assert status.state == "degraded"
    assert "GPU 0 (NVIDIA H200) is lost" in status.reason
    assert reader.pids() == set()


def test_lost_before_it_was_read(mock: Any, reader: GpuReader, recorder: Any, wait_for: Any) -> None:
    mock("gpus 2", "lose 1")
    reader.start()
    wait_for(lambda: recorder.of("temp_c", UUID[0]))
    assert "GPU 1 was lost before it could be read" in reader.status().reason


@pytest.mark.parametrize("function", ["nvmlDeviceGetTemperatureV", "nvmlDeviceGetEnforcedPowerLimit"])
def test_a_hanging_call_holds_up_nothing_else(
    mock: Any,
    reader: GpuReader,
    recorder: Any,
    monkeypatch: pytest.MonkeyPatch,
    *,
    function: str,
    wait_for: Any,
) -> None:
    monkeypatch.setattr(gpu_reader, "STUCK_S", 0.5)
    mock("gpus 2")
    reader.start()
    wait_for(lambda: recorder.of("temp_c", UUID[0]) and recorder.of("power_limit_w", UUID[0]))
    wait_for(lambda: reader.status().state == "ok")
    mock(f"hang 0 {function} -1")
    said = rf"GPU 0 \(NVIDIA H200\) has not answered for \d+ s \({function[:20]}"
    status = wait_for(lambda: re.search(said, (s := reader.status()).reason) and s)
    assert status.state == "degraded"
    seen = len(recorder.of("temp_c", UUID[1])), len(recorder.of("power_limit_w", UUID[1]))
    wait_for(lambda: len(recorder.of("temp_c", UUID[1])) > seen[0] + 5)
    wait_for(lambda: len(recorder.of("power_limit_w", UUID[1])) > seen[1] + 2)
    stalled = len(recorder.of("temp_c", UUID[0])), len(recorder.of("power_limit_w", UUID[0]))
    mock("release")
    wait_for(lambda: len(recorder.of("temp_c", UUID[0])) > stalled[0] + 1)
    wait_for(lambda: len(recorder.of("power_limit_w", UUID[0])) > stalled[1] + 1)
    wait_for(lambda: reader.status().state == "ok")


def test_stop_returns_while_a_call_hangs(mock: Any, reader: GpuReader, recorder: Any, wait_for: Any) -> None:
    mock("gpus 2")
    reader.start()
    wait_for(lambda: recorder.of("temp_c", UUID[0]))
    mock("hang 0 nvmlDeviceGetTemperatureV -1")
    wait_for(reader._workers[0].device.stuck)
    began = time.monotonic()
    reader.stop()
    assert time.monotonic() - began < 20  # the call hangs for ever
    assert mock.calls(-1, "nvmlShutdown") == 0  # not under a thread that is inside


def test_a_gpu_that_hangs_while_it_is_opened(
    mock: Any, reader: GpuReader, recorder: Any, monkeypatch: pytest.MonkeyPatch, wait_for: Any
) -> None:
    monkeypatch.setattr(gpu_reader, "FACTS_WAIT_S", 0.1)
    mock("gpus 2", "hang 0 nvmlDeviceGetName -1")
    reader.start()
    wait_for(lambda: recorder.gpus and [gpu.uuid for gpu in recorder.gpus[-1].gpus] == [UUID[1]])
    wait_for(lambda: recorder.of("temp_c", UUID[1]))
    mock("release")
    wait_for(lambda: [gpu.uuid for gpu in recorder.gpus[-1].gpus] == UUID[:2])


def test_an_init_that_hangs_is_told_and_can_be_stopped(
    mock: Any, reader: GpuReader, monkeypatch: pytest.MonkeyPatch, wait_for: Any
) -> None:
    monkeypatch.setattr(gpu_reader, "STUCK_S", 0.05)
    mock("hang * nvmlInitWithFlags -1")
    reader.start()
    wait_for(lambda: "has not answered" in reader.status().reason)
    began = time.monotonic()
    reader.stop()
    assert time.monotonic() - began < 20
