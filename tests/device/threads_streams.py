"""Threads and streams for an oracle: a busy thread, a quiet one, a hundred with a few kernels each; copies of
known bytes, and waits for a stream of its own.

usage: gpuprof-tui record --gpu-overhead off -o F -- python3 threads_streams.py; threads_streams_check.py F
"""

from __future__ import annotations

import threading
import time

import torch

QUIET, MANY, EACH, COPIES, COPY_BYTES, WAITS = 1512, 100, 7, 13, 64 << 20, 11


def launch_quiet(x: torch.Tensor) -> None:
    for _ in range(QUIET):
        x.sin_()


def launch_few(x: torch.Tensor) -> None:
    for _ in range(EACH):
        x.cos_()


def launch_busy(x: torch.Tensor, stop: threading.Event) -> None:
    while not stop.is_set():
        x.add_(1)


def copy_known(source: torch.Tensor) -> None:
    for _ in range(COPIES):
        source.to("cuda", non_blocking=True)


def wait_for_side(x: torch.Tensor, stream: torch.cuda.Stream) -> None:
    for _ in range(WAITS):
        with torch.cuda.stream(stream):
            x.tan_()
        stream.synchronize()


def main() -> None:
    x, large = torch.rand(1 << 10, device="cuda"), torch.rand(1 << 27, device="cuda")
    pinned = torch.empty(COPY_BYTES, dtype=torch.uint8, pin_memory=True)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    stop = threading.Event()
    busy = threading.Thread(target=launch_busy, args=(x, stop))
    busy.start()
    quiet = threading.Thread(target=lambda: (launch_quiet(x.clone()), time.sleep(6)))
    quiet.start()
    crowd = [threading.Thread(target=lambda: (launch_few(x.clone()), time.sleep(4))) for _ in range(MANY)]
    for thread in crowd:
        thread.start()
    copy_known(pinned)
    wait_for_side(large, stream)
    for thread in [*crowd, quiet]:
        thread.join()
    stop.set()
    busy.join()
    torch.cuda.synchronize()


if __name__ == "__main__":
    main()
