"""Every NVML function failing with every code: no exception, no zero, and words for a person."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Any

import pytest

from gpuprof.sampler import gpu_facts, gpu_reader, nvml_library
from gpuprof.sampler.gpu_facts import read_facts
from gpuprof.sampler.gpu_reader import GpuReader
from gpuprof.sampler.gpu_readings import FastReadings, PcieReadings, SlowReadings
from gpuprof.sampler.nvml import Nvml
from gpuprof.sampler.nvml_library import NvmlUnavailable
from gpuprof.sampler.nvml_values import Absent, DeviceLost

MOCK_SOURCE = Path(__file__).parents[2] / "native" / "mock_nvml.c"
PID = os.getpid()
UUID = [f"GPU-00000000-0000-0000-0000-{n:012d}" for n in range(4)]
CODES = [*range(1, 36), 999]
LOST = {15, 16}
NOT_FOUND = 6


def functions() -> list[str]:
    return sorted(set(re.findall(r"^int (nvml\w+)\(", MOCK_SOURCE.read_text(), re.MULTILINE)))


def read_everything() -> list[Any]:
    """Two cycles of everything on one device, without threads: readings, or one of the two errors."""
    device = Nvml.open().devices()[0]
    if isinstance(device.open(), Absent):
        return []
    began = time.monotonic_ns() - 10**9
    readings = []
    for each in [device, *device.mig_devices()]:
        read_facts(each)
        fast, slow, pcie = FastReadings(each, began), SlowReadings(each, processes=True), PcieReadings(each)
        for _ in range(2):
            readings += fast.read() + slow.read() + pcie.read()
        slow.close()
    return readings


def test_every_function_failing_with_every_code(mock: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_facts, "UUID_PAUSE_S", 0)

    def script() -> None:
        mock("reset", f"process 0 {PID} 1000", f"busy 0 {PID} 35 3", "set 0 event_reasons 4", "mig 0 0")

    script()
    complete = read_everything()
    assert len({reading.metric for reading in complete}) == 23
    names = functions()
    assert len(names) > 35
    for name in names:
        for code in CODES:
            script()
            mock(f"fail * {name} {code}")
            try:
                readings = read_everything()
            except (NvmlUnavailable, DeviceLost):
                continue
            idle_is_true = (name, code) == ("nvmlDeviceGetProcessUtilization", NOT_FOUND)
            zeros = {r.metric for r in readings if r.value == 0}
            assert zeros <= ({"proc_sm_percent", "proc_mem_util_percent"} if idle_is_true else set()), (
                name,
                code,
            )
            values = {(r.metric, r.value) for r in readings if r.value != 0}
            fallback = {
                ("power_w", 310.0),
                ("pcie_tx_bytes_per_s", 1_500_000.0),
                ("pcie_rx_bytes_per_s", 2_500_000.0),
            }
            reserve_not_told_apart = {("mem_used_bytes", 8589934592.0 + 644939776)}
            known = {(r.metric, r.value) for r in complete} | fallback | reserve_not_told_apart
            assert values <= known, (name, code)


def test_the_mig_calls_failing_with_every_code(mock: Any) -> None:
    for name in ("nvmlDeviceGetMigMode", "nvmlDeviceGetMigDeviceHandleByIndex", "nvmlGpmMigSampleGet"):
        for code in CODES:
            mock("reset", "mig 0 1", f"fail * {name} {code}", "set 0 event_reasons 4")
            try:
                assert all(reading.value != 0 for reading in read_everything())
            except DeviceLost:
                assert code in LOST


@pytest.mark.parametrize("after", [0, 40])
def test_all_calls_failing_with_every_code_under_the_threads(
    mock: Any, after: int, wait_for: Any, new_recorder: Any
) -> None:
    for code in CODES:
        mock("reset", "gpus 2", f"fail 0 * {code} {after}")
        recorder = new_recorder()
        source = GpuReader(recorder, fast_hz=200, slow_hz=100)
        source.start()
        wait_for(lambda recorder=recorder: recorder.of("temp_c", UUID[1]))
        wait_for(lambda: mock.calls(0) > after)
        if code in LOST:
            wait_for(lambda source=source: "GPU 0" in source.status().reason)
        source.stop()
        assert [
            reading for reading in recorder.rows if reading[5] == 0 and reading[0] != "clocks_event_reasons"
        ] == []
        assert source.status().state in ("ok", "degraded")


def test_a_gpu_that_answers_nothing_more_is_told(
    mock: Any, reader: GpuReader, recorder: Any, monkeypatch: pytest.MonkeyPatch, wait_for: Any
) -> None:
    monkeypatch.setattr(gpu_reader, "STUCK_S", 0.5)
    mock("gpus 2")
    reader.start()
    wait_for(lambda: recorder.of("temp_c", UUID[0]))
    mock("fail 0 * 999")
    said = r"GPU 0 \(NVIDIA H200\) has given no readings for \d+ s \(NVML: unknown error\)"
    status = wait_for(lambda: re.search(said, (s := reader.status()).reason) and s)
    assert status.state == "degraded"
    mock("fail 0 * 0")
    wait_for(lambda: reader.status().state == "ok")


@pytest.mark.parametrize("code", [1, 4, 9, 12, 13, 18, 28, 999])
def test_a_driver_that_does_not_start_is_explained(
    mock: Any, reader: GpuReader, code: int, monkeypatch: pytest.MonkeyPatch, wait_for: Any
) -> None:
    monkeypatch.setattr(nvml_library, "nvidia_pci_devices", lambda: ["0000:17:00.0"])
    mock(f"fail * nvmlInitWithFlags {code}")
    reader.start()
    wait_for(lambda: reader.status().state == "failed")
    assert reader.status().reason == nvml_library.explain(code).message
    assert reader.status().hint


def test_a_driver_that_comes_later_is_found(
    mock: Any, reader: GpuReader, recorder: Any, monkeypatch: pytest.MonkeyPatch, wait_for: Any
) -> None:
    monkeypatch.setattr(gpu_reader, "RETRY_S", 0.02)
    mock("fail * nvmlInitWithFlags 9")
    reader.start()
    wait_for(lambda: "modprobe" in reader.status().hint)
    mock("fail * nvmlInitWithFlags 0")
    wait_for(lambda: recorder.of("temp_c"))
    wait_for(lambda: reader.status().state == "ok")  # once all GPUs are open


def test_no_gpu_behind_a_driver(mock: Any, reader: GpuReader, wait_for: Any) -> None:
    mock("gpus 0")
    reader.start()
    wait_for(lambda: reader.status().state == "failed")
    assert "has no GPU" in reader.status().reason


def test_one_gpu_that_cannot_be_opened_does_not_hide_the_other(
    mock: Any, reader: GpuReader, recorder: Any, wait_for: Any
) -> None:
    mock("gpus 2", "fail 0 nvmlDeviceGetHandleByIndex_v2 4")
    reader.start()
    wait_for(lambda: recorder.of("temp_c", UUID[1]))
    gpus = wait_for(lambda: recorder.gpus and recorder.gpus[-1].gpus)
    assert [gpu.index for gpu in gpus] == [1]
    status = wait_for(lambda: (s := reader.status()).state == "degraded" and s)
    assert "GPU 0 cannot be opened: no permission" in status.reason
