"""Launches known numbers of kernels on two devices, and checks a recording of it.

usage: CUDA_VISIBLE_DEVICES=1,0 gpuprof-tui record -o F --gpu-overhead off -- python3 two_devices.py work
       python3 two_devices.py check F       a PASS or FAIL line for each device
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter

COUNTS = {"sin": (211, 0), "cos": (0, 307), "tan": (101, 53)}  # on the node's device 0, on its device 1


def work() -> None:
    import torch

    uuids = [f"GPU-{torch.cuda.get_device_properties(n).uuid}" for n in range(2)]
    by_uuid = {uuid: number for number, uuid in enumerate(uuids)}
    ordinals = [by_uuid[uuid] for uuid in node_uuids()]
    tensors = [torch.zeros(4096, device=f"cuda:{ordinal}") for ordinal in ordinals]
    for tensor in tensors:
        tensor.exp_()
        torch.cuda.synchronize(tensor.device)
    time.sleep(5)  # the sampler finds the process
    for name, counts in COUNTS.items():
        for tensor, count in zip(tensors, counts, strict=True):
            for _ in range(count):
                getattr(torch, name)(tensor)
    for tensor in tensors:
        torch.cuda.synchronize(tensor.device)
    time.sleep(4)


def node_uuids() -> list[str]:
    command = ["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


def check(file: str) -> int:
    from gpuprof.snapshots.file import read_snapshot

    history = read_snapshot(file).history
    assert history.gpus is not None
    index = {gpu.uuid: gpu.index for gpu in history.gpus.gpus}
    counts: Counter[tuple[str, int]] = Counter()
    for view, rows in history.gpu_work_between(0, 1 << 62):
        columns = rows.columns
        for gpu, stack in zip(columns["gpu"].tolist(), columns["stack"].tolist(), strict=True):
            leaf = view.strings[int(view.name[int(view.frame_function[int(view.frame[stack])])])]
            for name in COUNTS:
                counts[name, index.get(view.strings[gpu], -1)] += f"{name}_kernel" in leaf
    failed = 0
    for name, wanted in COUNTS.items():
        found = tuple(counts[name, device] for device in range(2))
        failed += found != wanted
        print(f"{'PASS' if found == wanted else 'FAIL'} {name}: {found} of {wanted} on devices 0 and 1")
    return failed


if __name__ == "__main__":
    sys.exit(check(sys.argv[2]) if sys.argv[1] == "check" else work())
