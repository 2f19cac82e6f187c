"""Workloads whose GPU idles for one known cause each.

usage: python3 idle_causes.py CAUSE SECONDS

Each step keeps the GPU busy for about 10 ms and then leaves it idle for about 30, for the cause asked for.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable

import torch
from torch.utils.data import DataLoader, Dataset

BUSY_MATMULS = 7
IDLE_S = 0.03


def burn_until(deadline: float) -> int:
    """Pure-Python work up to an instant."""
    turns = 0
    while time.perf_counter() < deadline:
        for value in range(200):
            turns += value & 1
    return turns


def keep_gpu_busy(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    for _ in range(BUSY_MATMULS):
        a = torch.matmul(a, b)
        a = a / a.norm()
    torch.cuda.synchronize()
    return a


def decode_batch_here() -> None:
    burn_until(time.perf_counter() + IDLE_S)


class Slow(Dataset):
    """Samples that a worker decodes slowly."""

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> torch.Tensor:
        return decode_in_worker(index)


def decode_in_worker(index: int) -> torch.Tensor:
    burn_until(time.perf_counter() + IDLE_S)
    return torch.zeros(8) + index


def write_checkpoint(file: int, block: bytes) -> None:
    """Waits for the disk: each part is on it before the next is written."""
    for _ in range(8):
        os.pwrite(file, block, 0)
        os.fsync(file)


def hold_the_lock(lock: threading.Lock, turn: threading.Event, stop: threading.Event) -> None:
    while not stop.is_set():
        with lock:
            turn.set()
            work_while_holding()
        while turn.is_set() and not stop.is_set():
            time.sleep(0.0005)


def work_while_holding() -> None:
    time.sleep(IDLE_S)


def hog_the_gil(stop: threading.Event) -> None:
    while not stop.is_set():
        burn_until(time.perf_counter() + 0.2)


def copy_synchronously(tensor: torch.Tensor, host: torch.Tensor) -> None:
    """Through pageable memory, which the driver stages piece by piece."""
    host.copy_(tensor)
    tensor.copy_(host)


def launch_tiny(tensor: torch.Tensor) -> None:
    for _ in range(2000):
        tensor.add_(1.0)


def steps_of(cause: str, seconds: float) -> int:
    """Run one cause; returns how many steps were done."""
    a = torch.randn(3072, 3072, device="cuda")
    b = torch.randn(3072, 3072, device="cuda")
    stop = threading.Event()
    between: Callable[[], object]
    if cause == "cpu_loading":
        between = decode_batch_here
    elif cause == "worker_loading":
        loader = iter(DataLoader(Slow(), batch_size=1, num_workers=1, prefetch_factor=1))
        between = lambda: next(loader)  # noqa: E731
    elif cause == "slow_disk":
        file = tempfile.TemporaryFile(dir=os.environ.get("SLOW_DISK"))  # noqa: SIM115 - lives as long as we
        between = lambda: write_checkpoint(file.fileno(), b"x" * 4_000_000)  # noqa: E731
    elif cause == "lock":
        lock, turn = threading.Lock(), threading.Event()
        threading.Thread(target=hold_the_lock, args=(lock, turn, stop), daemon=True).start()

        def take_the_lock() -> None:
            turn.wait()
            with lock:
                turn.clear()

        between = take_the_lock
    elif cause == "gil_hog":
        threading.Thread(target=hog_the_gil, args=(stop,), daemon=True).start()
        between = lambda: [time.sleep(0) for _ in range(5)]  # noqa: E731
    elif cause == "sync_copies":
        large, host = torch.zeros(1 << 24, device="cuda"), torch.zeros(1 << 24)
        between = lambda: copy_synchronously(large, host)  # noqa: E731
    elif cause == "launch_bound":
        tiny = torch.zeros(16, device="cuda")
        between = lambda: launch_tiny(tiny)  # noqa: E731
    else:
        raise SystemExit(f"no such cause: {cause}")
    end = time.monotonic() + seconds
    steps = 0
    while time.monotonic() < end:
        a = keep_gpu_busy(a, b)
        between()
        steps += 1
    stop.set()
    return steps


def late_rank(seconds: float) -> int:
    """Rank 1 comes late to every all-reduce; to be started by torchrun on two devices."""
    import torch.distributed as dist

    dist.init_process_group("nccl")
    rank = dist.get_rank()
    torch.cuda.set_device(rank)
    a, b = torch.randn(3072, 3072, device="cuda"), torch.randn(3072, 3072, device="cuda")
    total = torch.zeros(1 << 20, device="cuda")
    end = time.monotonic() + seconds
    steps = 0
    going = torch.ones(1, device="cuda")
    while going.item() > 0:
        a = keep_gpu_busy(a, b)
        if rank == 1:
            decode_batch_here()
        dist.all_reduce(total)
        going.fill_(float(time.monotonic() < end))
        dist.all_reduce(going, op=dist.ReduceOp.MIN)
        steps += 1
    dist.destroy_process_group()
    return steps


if __name__ == "__main__":
    cause, seconds = sys.argv[1], float(sys.argv[2])
    steps = late_rank(seconds) if cause == "late_rank" else steps_of(cause, seconds)
    print(f"{cause}: {steps} steps", flush=True)
