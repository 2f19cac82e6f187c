"""Two processes share a GPU through MPS: every kernel of both is recorded, and the device counts as observed.

usage: python3 mps_check.py FOLDER      as root on a node with a GPU and PyTorch, nothing else on the GPU
       python3 mps_check.py --worker COUNT
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

COUNTS = (1009, 1511)


def worker(count: int) -> None:
    import torch

    x = torch.zeros(4096, device="cuda")
    x.add_(1)
    torch.cuda.synchronize()
    time.sleep(7)
    for _ in range(count):
        x.sin_()
        time.sleep(0.003)
    torch.cuda.synchronize()
    time.sleep(3)


def listed() -> None:
    """What NVML says of the processes on the device while they run."""
    import pynvml

    pynvml.nvmlInit()
    device = pynvml.nvmlDeviceGetHandleByIndex(0)
    for kind in ("Compute", "Graphics", "MPSCompute"):
        call = getattr(pynvml, f"nvmlDeviceGet{kind}RunningProcesses")
        try:
            pids = [process.pid for process in call(device)]
        except pynvml.NVMLError as error:
            print(f"NVML, {kind}: {error}")
            continue
        print(f"NVML, {kind}: {[(pid, Path(f'/proc/{pid}/comm').read_text().strip()) for pid in pids]}")


def main(folder: str) -> int:
    from gpu_oracle_check import Paths

    from gpuprof.snapshots.file import read_snapshot

    control = shutil.which("nvidia-cuda-mps-control")
    if not control:
        print("SKIP: this machine has no nvidia-cuda-mps-control")
        return 0
    pipes = Path(folder) / "mps"
    pipes.mkdir(exist_ok=True)
    environ = dict(os.environ, CUDA_MPS_PIPE_DIRECTORY=str(pipes), CUDA_MPS_LOG_DIRECTORY=str(pipes))
    subprocess.run([control, "-d"], env=environ, check=True)
    file = f"{folder}/mps.gpuprof"
    both = " & ".join(f"{sys.executable} {__file__} --worker {count}" for count in COUNTS) + " & wait"
    record = [sys.executable, "-c", "from gpuprof.tui.command import main; raise SystemExit(main())"]
    record += ["record", "--no-service", "-f", "-o", file, "--for", "60s", "--gpu-overhead", "off", "--"]
    try:
        recorder = subprocess.Popen([*record, "sh", "-c", both], env=environ)
        time.sleep(12)
        listed()
        recorder.wait()
    finally:
        subprocess.run([control], input="quit\n", text=True, env=environ, check=False)
    history = read_snapshot(file).history
    found: dict[int, int] = {}
    for view, rows in history.gpu_work_between(0, 1 << 62):
        paths = Paths(view)
        for thread, stack in zip(rows.columns["thread"], rows.columns["stack"], strict=True):
            if "sin" in paths.of(int(stack))[0][-1]:
                found[int(thread)] = found.get(int(thread), 0) + 1
    for source in history.status.sources:
        losses = f"lost {source.lost} unmatched {source.unmatched}"
        print(f"{source.name}: {source.state} {source.reason} {losses}")
    good = sorted(found.values()) == sorted(COUNTS)
    counts = f"{sorted(found.values())}, launched {sorted(COUNTS)}"
    print(f"{'PASS' if good else 'FAIL'} kernels by process: {counts}")
    return not good


if __name__ == "__main__":
    if sys.argv[1] == "--worker":
        worker(int(sys.argv[2]))
    else:
        sys.exit(main(sys.argv[1]))
