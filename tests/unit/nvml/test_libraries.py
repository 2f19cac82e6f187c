"""Old, foreign, damaged and missing libraries, and one of another version than the driver."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpuprof.sampler import nvml_library
from gpuprof.sampler.gpu_reader import GpuReader
from gpuprof.sampler.nvml import Nvml
from gpuprof.sampler.nvml_library import NvmlUnavailable

PID = os.getpid()


def test_an_old_driver(tmp_path: Path, recorder: Any, wait_for: Any, mock_nvml: Any) -> None:
    path = mock_nvml.build(tmp_path, "-DMOCK_OLD_DRIVER", soname="mock-old.so")
    scripted = mock_nvml.MockNvml(path)
    scripted("reset", f"process 0 {PID} 5000", f"busy 0 {PID} 12 1")
    with mock_nvml.in_pynvml(scripted.library):
        source = GpuReader(recorder, fast_hz=50, slow_hz=20)
        source.start()
        wait_for(lambda: recorder.of("proc_sm_percent", pid=PID) and recorder.of("pcie_tx_bytes_per_s"))
        wait_for(lambda: recorder.of("temp_c") and recorder.of("mem_used_bytes"))
        wait_for(lambda: recorder.of("clocks_event_reasons") and recorder.gpus and recorder.gpus[-1].gpus)
        source.stop()
    assert {r[2] for r in recorder.of("proc_gpu_mem_bytes", pid=PID)} == {5000}
    assert {r[2] for r in recorder.of("temp_c")} == {61}
    assert {r[2] for r in recorder.of("mem_used_bytes")} == {8589934592 + 644939776}
    assert recorder.of("mem_reserved_bytes") == []
    assert recorder.of("clocks_event_reasons")
    assert recorder.gpus[-1].gpus[0].has_gpm is False


def run_reader(folder: Path, script: str) -> str:
    """status() of a reader in a process whose ld.so finds the library in `folder`."""
    (folder / "script").write_text(script)
    program = (
        "import time\n"
        "from gpuprof.sampler.gpu_reader import GpuReader\n"
        "class History:\n"
        "    def series(self, *a, **k): return 0\n"
        "    def add_readings(self, *a): pass\n"
        "    def set_gpus(self, gpus): pass\n"
        "reader = GpuReader(History()); reader.start()\n"
        "deadline = time.monotonic() + 60\n"
        "while time.monotonic() < deadline:\n"
        "    status = reader.status()\n"
        "    if status.state not in ('starting',) and (status.reason or status.samples): break\n"
        "    time.sleep(0.01)\n"
        "reader.stop(); print(status.state, '|', status.reason, '|', status.hint)\n"
    )
    environment = {**os.environ, "LD_LIBRARY_PATH": str(folder), "GPUPROF_MOCK_NVML": str(folder / "script")}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout


def test_found_by_ld_so(tmp_path: Path, mock_nvml: Any) -> None:
    mock_nvml.build(tmp_path)
    assert run_reader(tmp_path, "gpus 1\n").startswith("ok |")


def test_another_version_than_the_driver(tmp_path: Path, mock_nvml: Any) -> None:
    mock_nvml.build(tmp_path)
    output = run_reader(tmp_path, "fail * nvmlInitWithFlags 18\n")
    assert output.startswith("failed | libnvidia-ml.so.1")
    assert "different versions" in output
    assert "reboot" in output


def test_a_foreign_library_of_that_name(tmp_path: Path, mock_nvml: Any) -> None:
    mock_nvml.build(tmp_path, "-DMOCK_FOREIGN")
    output = run_reader(tmp_path, "")
    assert output.startswith("failed | libnvidia-ml.so.1")
    assert "lacks functions" in output


def test_a_damaged_library(tmp_path: Path) -> None:
    (tmp_path / "libnvidia-ml.so.1").write_bytes(b"\x7fELF" + bytes(200))
    output = run_reader(tmp_path, "")
    # ld.so goes on searching after a file that is not ELF for this machine, so a real driver would be found.
    assert output.startswith(("failed | libnvidia-ml.so.1 does not load", "off |", "ok |"))


def test_no_library(monkeypatch: pytest.MonkeyPatch, recorder: Any, wait_for: Any) -> None:
    monkeypatch.setattr(nvml_library, "SONAME", "libnvidia-ml-absent.so.1")
    monkeypatch.setattr(nvml_library, "nvidia_pci_devices", list)
    source = GpuReader(recorder)
    source.start()
    wait_for(lambda: source.status().state == "off")
    assert "libnvidia-ml-absent.so.1" in source.status().reason
    assert "gpuprof-tui demo" in source.status().hint
    source.stop()
    assert recorder.rows == []


def test_nvidia_ml_py_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(NvmlUnavailable, match="nvidia-ml-py") as caught:
        Nvml.open()
    assert "pip install nvidia-ml-py" in caught.value.hint
