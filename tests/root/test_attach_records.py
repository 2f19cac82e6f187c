"""`gpuprof-tui attach` and `record` together: processes on the mock driver that run already are attached to
while a recording is under way, one of them where it cannot see the library's file, and their launches are in
it, with the stacks that launched them.
"""

from __future__ import annotations

import importlib.util
import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from gpuprof.tui import attach

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]

HERE = Path(__file__).parent
NATIVE = HERE.parent / "native"
COMMAND = [sys.executable, "-I", "-c", "import sys; from gpuprof.tui.command import main; sys.exit(main())"]
LAUNCHES = {
    ("main", "forward", "gemm_nn"): 211,
    ("main", "backward", "gemm_nn"): 103,
    ("main", "forward", "add_bias"): 47,
}


def _mocks(folder: Path) -> Any:
    spec = importlib.util.spec_from_file_location("injected", NATIVE / "injected.py")
    assert spec is not None
    assert spec.loader is not None
    kit = importlib.util.module_from_spec(spec)
    sys.modules["injected"] = kit
    spec.loader.exec_module(kit)
    return kit.build(folder)


def _line(process: subprocess.Popen[bytes], seconds: float = 60) -> bytes:
    assert process.stdout is not None
    assert select.select([process.stdout], [], [], seconds)[0]
    return process.stdout.readline()


def _say(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.write(b"\n")
    process.stdin.flush()


def _paths(node: dict[str, Any], above: tuple[str, ...] = ()) -> dict[tuple[str, ...], float]:
    """Own time by path."""
    names = (*above, node["name"].partition("<")[0])
    found = {names: node["self"]} if node.get("self") else {}
    for child in node.get("children", ()):
        found.update(_paths(child, names))
    return found


@pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc")
def test_attached_processes_are_in_the_recording(tmp_path: Path) -> None:
    try:
        attach.find_helper(), attach.find_library()
    except Exception as error:  # noqa: BLE001
        pytest.skip(str(error))
    built = _mocks(tmp_path)
    program = tmp_path / "mock_train"
    link = [str(tmp_path / "libcuda.so.1"), "-Wl,-rpath,$ORIGIN"]
    flags = ["-O2", "-std=gnu11", "-fomit-frame-pointer", f"-I{NATIVE}"]
    subprocess.run(["gcc", *flags, "-o", program, HERE / "workloads" / "mock_train.c", *link], check=True)
    environ = {**os.environ, "GPUPROF_CUPTI": str(built.cupti)}
    recording = tmp_path / "run.gpuprof"
    recorder = subprocess.Popen(
        [*COMMAND, "record", "--no-service", "--gpu-overhead", "off", "-o", str(recording), "--for", "60s"],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    workloads = [
        subprocess.Popen([*words, str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ)
        for words in ([], ["unshare", "-m"])
    ]
    try:
        for workload in workloads:
            assert _line(workload) == b"ready\n"
        said = ""
        end = time.monotonic() + 55
        pids = [str(workload.pid) for workload in workloads]
        while said.count("is being recorded") < len(pids):  # the sampler needs a moment to start
            assert time.monotonic() < end, said
            done = subprocess.run(
                [*COMMAND, "attach", "--no-screen", *pids], capture_output=True, text=True, check=False
            )
            assert (done.returncode, done.stderr) == (0, "")
            said = done.stdout
        for workload in workloads:
            _say(workload)
            assert _line(workload) == b"done\n"
        assert "/memfd:libgpuprof_inject.so" in Path(f"/proc/{pids[1]}/maps").read_text()
        time.sleep(1.5)  # the recorder takes what has come
        recorder.terminate()
        recorder.communicate(timeout=60)
    finally:
        for process in (recorder, *workloads):
            process.kill()
            process.communicate()
    for pid in pids:
        report = subprocess.run(
            [*COMMAND, "report", str(recording), "--tree", "gpu", "--pid", pid, "--json"],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        tree = json.loads(report.stdout)
        times: dict[tuple[str, ...], float] = {}
        for path, own in _paths(tree["root"]).items():
            key = ("main", *(name for name in path if name in {"forward", "backward", "gemm_nn", "add_bias"}))
            times[key] = times.get(key, 0) + own
        assert set(times) == set(LAUNCHES), tree
        per_launch = {"gemm_nn": 700, "add_bias": 300}
        assert times == {path: count * per_launch[path[-1]] for path, count in LAUNCHES.items()}
