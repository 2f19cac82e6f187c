"""The NVML reader's readings and facts against a scripted libnvidia-ml."""

from __future__ import annotations

import json
import os
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from gpuprof.sampler import gpu_readings
from gpuprof.sampler.gpu_reader import GpuReader
from gpuprof.snapshots.frames import Hello
from gpuprof.snapshots.history import History

MIB = 1024 * 1024
PID = os.getpid()
UUID = [f"GPU-00000000-0000-0000-0000-{n:012d}" for n in range(4)]


def test_every_reading_in_its_unit(mock: Any, reader: GpuReader, recorder: Any, wait_for: Any) -> None:
    mock(
        f"process 0 {PID} 1077936128",
        f"process 0 {os.getppid()} na",
        f"busy 0 {PID} 35 3",
        "set 0 event_reasons 4",
    )
    reader.start()
    expected = {
        "util_gpu_percent": 50,
        "util_mem_percent": 20,
        "mem_used_bytes": 8589934592,
        "mem_reserved_bytes": 644939776,
        "power_w": 312,
        "power_instant_w": 600,
        "power_limit_w": 700,
        "energy_j": 123456.789,
        "temp_c": 61,
        "clock_sm_mhz": 1980,
        "clock_mem_mhz": 3201,
        "clocks_event_reasons": 4,
        "sm_active_percent": 42.5,
        "sm_occupancy_percent": 21.25,
        "tensor_active_percent": 11.5,
        "dram_active_percent": 33,
        "pcie_tx_bytes_per_s": 100 * MIB,
        "pcie_rx_bytes_per_s": 200 * MIB,
        "nvlink_rx_bytes_per_s": 300 * MIB,
        "nvlink_tx_bytes_per_s": 400 * MIB,
    }
    wait_for(
        lambda: len(recorder.of("nvlink_tx_bytes_per_s")) > 1 and recorder.of("proc_sm_percent", pid=PID)
    )
    wait_for(lambda: all(recorder.of(metric, UUID[0]) for metric in expected))
    for metric, value in expected.items():
        readings = recorder.of(metric, UUID[0])
        assert {reading[2] for reading in readings} == {value}, metric
    assert {r[2] for r in recorder.of("proc_gpu_mem_bytes", pid=PID)} == {1077936128}
    assert {r[2] for r in recorder.of("proc_sm_percent", pid=PID)} == {35}
    assert {r[2] for r in recorder.of("proc_mem_util_percent", pid=PID)} == {3}
    # Not available is absent, and a process without a sample was idle.
    assert recorder.of("proc_gpu_mem_bytes", pid=os.getppid()) == []
    assert {r[2] for r in recorder.of("proc_sm_percent", pid=os.getppid())} == {0}
    assert reader.pids() == {PID, os.getppid()}
    assert reader.status().state == "ok"
    wait_for(lambda: reader.status().samples == len(recorder.rows))  # both grow


def test_facts(mock: Any, reader: GpuReader, recorder: Any, wait_for: Any) -> None:
    mock("gpus 2", "unset 1 slowdown", "unset 1 gpm", "set 1 clock_sm_max -1")
    reader.start()
    wait_for(lambda: recorder.gpus and len(recorder.gpus[-1].gpus) == 2)  # the first list waits 2 s for each
    gpus = recorder.gpus[-1]
    assert gpus.driver_version == "580.159.04"
    first, second = gpus.gpus
    assert (first.uuid, first.index, first.name) == (UUID[0], 0, "NVIDIA H200")
    assert first.pci_bus_id == "00000000:17:00.0"
    assert first.memory_total_bytes == 150754820096
    assert (first.temp_slowdown_c, first.temp_shutdown_c, first.temp_max_c) == (89, 95, 87)
    assert (first.clock_sm_max_mhz, first.clock_mem_max_mhz, first.power_limit_max_w) == (1980, 3201, 700)
    assert (first.pcie_gen_max, first.pcie_width_max, first.has_gpm) == (5, 16, True)
    assert (second.uuid, second.temp_slowdown_c, second.has_gpm) == (UUID[1], None, False)
    assert second.clock_sm_max_mhz is None
    assert gpus.lost == []


@pytest.mark.parametrize("clock", ["epoch", "boot"])
def test_windows_are_the_drivers_own(
    mock: Any, reader: GpuReader, recorder: Any, clock: str, wait_for: Any
) -> None:
    mock(f"clock {clock}")
    before = time.monotonic_ns()
    reader.start()
    wait_for(lambda: len(recorder.of("util_gpu_percent")) >= 3)
    after = time.monotonic_ns()
    windows = recorder.of("util_gpu_percent")
    assert all(end == start for (_, end, _), (start, _, _) in pairwise(windows))
    assert all(abs(end - start - 166_667_000) < 20_000_000 for start, end, _ in windows[1:])
    assert before - 1_000_000 <= windows[0][0]
    assert windows[-1][1] <= after
    start, end, _ = recorder.of("power_w")[-1]
    assert end - start == 1_000_000_000


def test_without_stamped_samples_the_plain_rate_is_read(
    mock: Any, reader: GpuReader, recorder: Any, wait_for: Any
) -> None:
    mock("unset 0 samples")
    reader.start()
    windows = wait_for(lambda: len(found := recorder.of("util_gpu_percent")) > 3 and found)
    assert {value for _, _, value in windows} == {50}
    assert all(end == start for (_, end, _), (start, _, _) in pairwise(windows))


def test_samples_that_stay_away_give_way_to_the_plain_rate(
    mock: Any, reader: GpuReader, recorder: Any, monkeypatch: pytest.MonkeyPatch, wait_for: Any
) -> None:
    monkeypatch.setattr(gpu_readings, "QUIET_NS", 100_000_000)
    reader.start()
    wait_for(lambda: recorder.of("util_gpu_percent"))
    mock("fail 0 nvmlDeviceGetSamples 6", "set 0 util_gpu 80")
    wait_for(lambda: len([r for r in recorder.of("util_gpu_percent") if r[2] == 80]) > 5)
    mock("fail 0 nvmlDeviceGetSamples 0", "set 0 util_gpu 30")
    wait_for(lambda: any(r[2] == 30 and r[1] - r[0] > 10**8 for r in recorder.of("util_gpu_percent")))
    windows = recorder.of("util_gpu_percent")
    assert all(end <= start for (_, end, _), (start, _, _) in pairwise(windows))


def test_sentinels_and_unsupported_readings_are_absent(
    mock: Any, reader: GpuReader, recorder: Any, wait_for: Any
) -> None:
    mock("set 0 mem_used -1", "set 0 clock_sm -1", "set 0 power_average -1", "unset 0 power_instant")
    mock(
        "unset 0 temperature", "set 0 gpm2 -1", "unset 0 gpm60", "set 0 gpm10 100.4", "set 0 gpm3 4000000000"
    )
    reader.start()
    wait_for(
        lambda: len(recorder.of("sm_active_percent")) == 0 and len(recorder.of("dram_active_percent")) > 2
    )
    wait_for(lambda: recorder.of("power_w"))
    for metric in ("mem_used_bytes", "clock_sm_mhz", "power_instant_w", "temp_c", "nvlink_rx_bytes_per_s"):
        assert recorder.of(metric) == [], metric
    assert recorder.of("sm_active_percent") == []
    assert recorder.of("sm_occupancy_percent") == []
    assert {r[2] for r in recorder.of("dram_active_percent")} == {100}
    assert {r[2] for r in recorder.of("power_w")} == {310}  # the plain reading, which has no known window
    assert all(start == end for start, end, _ in recorder.of("power_w"))
    assert reader.status().invalid > 0
    assert reader.status().state == "ok"


def test_memory_that_is_not_available_and_memory_that_is_zero(
    mock: Any, reader: GpuReader, recorder: Any, wait_for: Any
) -> None:
    case = json.loads((Path(__file__).parent / "data" / "memory_sentinels.json").read_text())
    sizes, expected = case["memory_v2"], case["expected"]
    for process in case["processes"]:
        mock(f"process 0 {process['pid']} {process['usedGpuMemory']}")
    mock(f"set 0 mem_total {sizes['total']}", f"set 0 mem_reserved {sizes['reserved']}", "set 0 mem_used 0")
    reader.start()
    wait_for(lambda: recorder.of("proc_gpu_mem_bytes", pid=12) and recorder.of("mem_reserved_bytes"))
    for pid, value in expected["processes"].items():
        got = {reading[2] for reading in recorder.of("proc_gpu_mem_bytes", pid=int(pid))}
        assert got == (set() if value is None else {value}), pid
    assert {reading[2] for reading in recorder.of("mem_used_bytes")} == {expected["used_bytes"]}
    assert {reading[2] for reading in recorder.of("mem_reserved_bytes")} == {expected["reserved_bytes"]}
    gpus = wait_for(lambda: recorder.gpus and recorder.gpus[-1].gpus)
    assert gpus[0].memory_total_bytes == expected["total_bytes"]


def test_pcie_from_its_own_thread_without_gpm(
    mock: Any, reader: GpuReader, recorder: Any, wait_for: Any
) -> None:
    mock("unset 0 gpm", "hang 0 nvmlDeviceGetPcieThroughput 20")
    reader.start()
    wait_for(lambda: recorder.of("pcie_tx_bytes_per_s") and recorder.of("pcie_rx_bytes_per_s"))
    start, end, value = recorder.of("pcie_tx_bytes_per_s")[0]
    assert value == 1_500_000
    assert end - start > 15_000_000
    assert recorder.of("sm_active_percent") == []


def test_counters_reserved_to_root_leave_the_plain_pcie_counter(
    mock: Any, reader: GpuReader, recorder: Any, wait_for: Any
) -> None:
    mock("fail 0 nvmlGpmSampleGet 4")
    reader.start()
    wait_for(lambda: recorder.of("pcie_rx_bytes_per_s"))
    assert {r[2] for r in recorder.of("pcie_rx_bytes_per_s")} == {2_500_000}


def test_mig_instances_are_devices_of_their_own(
    mock: Any, reader: GpuReader, recorder: Any, wait_for: Any
) -> None:
    mock("mig 0 2", f"process 0 {PID} 4096")
    reader.start()
    gpus = wait_for(lambda: recorder.gpus and recorder.gpus[-1].gpus)
    assert [gpu.parent_uuid for gpu in gpus] == [None, UUID[0], UUID[0]]
    assert gpus[1].uuid.startswith("MIG-")
    wait_for(lambda: recorder.of("proc_gpu_mem_bytes", gpus[2].uuid, PID))
    wait_for(lambda: recorder.of("sm_active_percent", gpus[1].uuid))
    assert recorder.of("proc_gpu_mem_bytes", UUID[0], PID) == []
    assert recorder.of("util_gpu_percent") == []  # a GPU in MIG mode has no utilization: absent, not 0
    assert recorder.of("mem_used_bytes", gpus[1].uuid)


def test_one_batch_per_cycle_into_a_real_history(mock: Any, wait_for: Any) -> None:
    hello = Hello(1, "host", "boot", "6.18", 2, time.monotonic_ns(), time.time_ns(), "0", 1, 0, 10, False)
    history = History(hello)
    source = GpuReader(history, fast_hz=50, slow_hz=20)
    source.start()
    wait_for(lambda: len(history.readings_between(0, 2**63)[1]["series"]) > 100)
    wait_for(lambda: history.gpus is not None and history.gpus.gpus)
    source.stop()
    definitions, columns = history.readings_between(0, 2**63)
    temperature = next(n for n, d in definitions.items() if d.metric == "temp_c")
    assert set(columns["value"][columns["series"] == temperature].tolist()) == {61.0}
    assert history.gpus is not None
    assert history.gpus.gpus[0].uuid == UUID[0]
