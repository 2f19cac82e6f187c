"""The injection library alone, under a reader of its ring: memory, CUPTI's memory on the device, detach at
any call, attach and detach over and over. A PASS or FAIL line for each claim.

usage: python3 library_checks.py [SECONDS]    as root with a GPU and PyTorch, no sampler running; 60 to 90 s
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

from claims import claim

from gpuprof.sampler import gpu_ring
from gpuprof.tui import run

HOST_MOST_MB = 32.0
DEVICE_MOST_MB = 128.0
CYCLES = 40


def worker() -> None:
    """Obeys: `launch S`, `threads S`, `sync S`, `event S`, `idle S`; answers with calls a second."""
    import torch

    torch.zeros(4096, device="cuda")
    event = torch.cuda.Event()
    event.record()
    torch.cuda.synchronize()

    def launches(end: float) -> int:
        done = 0
        y = torch.zeros(4096, device="cuda")
        while time.perf_counter() < end:
            for _ in range(500):
                y.add_(1)
            torch.cuda.current_stream().synchronize()
            done += 500
        return done

    def calls(end: float, call: object) -> int:
        done = 0
        while time.perf_counter() < end:
            call()  # type: ignore[operator]
            done += 1
            time.sleep(0.01)
        return done

    for line in sys.stdin:
        what, seconds = line.split()
        end, done = time.perf_counter() + float(seconds), 0
        if what == "launch":
            done = launches(end)
        elif what == "threads":
            totals: list[int] = []
            threads = [
                threading.Thread(target=lambda end=end, totals=totals: totals.append(launches(end)))
                for _ in range(8)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            done = sum(totals)
        elif what == "sync":
            done = calls(end, torch.cuda.synchronize)
        elif what == "event":
            done = calls(end, event.query)
        else:
            time.sleep(float(seconds))
        print(done / float(seconds), flush=True)


class Worker:
    """The process, and the reader of its ring."""

    def __init__(self) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--worker"],
            stdin=pipe, stdout=pipe, text=True, env=run.environment(os.environ),
        )  # fmt: skip
        self.ask("launch", 1)
        self.link = next(
            link
            for link in Path(f"/proc/{self.process.pid}/fd").iterdir()
            if os.readlink(link).startswith(gpu_ring.NAME)
        )
        self.records = 0

    def begin(self, what: str, seconds: float) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{what} {seconds}\n")
        self.process.stdin.flush()

    def answer(self) -> float:
        assert self.process.stdout is not None
        return float(self.process.stdout.readline())

    def ask(self, what: str, seconds: float) -> float:
        self.begin(what, seconds)
        return self.answer()

    def ring(self) -> gpu_ring.GpuRing:
        return gpu_ring.GpuRing(os.open(self.link, os.O_RDWR | os.O_CLOEXEC))

    def read_for(self, ring: gpu_ring.GpuRing, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            slots = ring.slots()
            self.records += int((slots["kind"] <= gpu_ring.MEMSET).sum())
            time.sleep(0.02)

    def rss_mb(self) -> float:
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        lines = {name: rest.split() for name, _, rest in (line.partition(":") for line in text.splitlines())}
        return (int(lines["RssAnon"][0]) + int(lines["RssShmem"][0])) / 1024

    def device_mb(self) -> float:
        """Of the device, all of it: nobody else should be there."""
        import pynvml

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        return float(pynvml.nvmlDeviceGetMemoryInfo(handle).used) / 2**20


def reach(ring: gpu_ring.GpuRing, state: str, seconds: float = 3.0) -> float:
    began = time.monotonic()
    while ring.facts().state != state and time.monotonic() - began < seconds:
        time.sleep(0.001)
    return time.monotonic() - began


def memory(worker: Worker, seconds: float) -> None:
    host, device = worker.rss_mb(), worker.device_mb()
    ring = worker.ring()
    assert ring.lock()
    reach(ring, "recording")
    worker.begin("launch", seconds)
    most_host = most_device = 0.0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        worker.read_for(ring, 0.5)
        most_host, most_device = max(most_host, worker.rss_mb()), max(most_device, worker.device_mb())
    rate = worker.answer()
    worker.read_for(ring, 1)
    facts = ring.facts()
    print(f"     {rate:,.0f} launches/s, {facts.records:,} records, {facts.dropped} dropped")
    # CUPTI's own code and data come on top of the library's: told apart by what is left after the detach.
    claim(facts.dropped == facts.cupti_dropped == 0, "nothing dropped at full rate")
    claim(
        most_device - device <= DEVICE_MOST_MB,
        f"CUPTI's memory on the device: +{most_device - device:.0f} MB (most {DEVICE_MOST_MB:.0f})",
    )
    claim(
        most_host - host <= 3 * HOST_MOST_MB,
        f"host memory with CUPTI and the ring: +{most_host - host:.0f} MB",
    )
    halfway = worker.rss_mb()
    worker.begin("launch", seconds / 2)
    worker.read_for(ring, seconds / 2)
    worker.answer()
    claim(
        worker.rss_mb() - halfway < 4,
        f"it does not grow: {worker.rss_mb() - halfway:+.1f} MB in the second half",
    )
    ring.close()
    worker.ask("launch", 0.5)
    time.sleep(0.5)
    claim(
        worker.device_mb() - device < 16,
        f"memory on the device after the detach: {worker.device_mb() - device:+.0f} MB",
    )


def detach_at_any_call(worker: Worker) -> None:
    for what in ("launch", "sync", "event"):
        ring, watcher = worker.ring(), worker.ring()
        assert ring.lock()
        reach(ring, "recording")
        worker.begin(what, 2)
        time.sleep(0.3)
        ring.close()
        took = reach(watcher, "waiting")
        claim(
            watcher.facts().state == "waiting",
            f"detached within {took * 1e3:.0f} ms of a process that does {what}",
        )
        worker.answer()
        watcher.close()


def cycles(worker: Worker) -> None:
    before = statistics.fmean(worker.ask("threads", 2) for _ in range(2))
    worker.begin("threads", 0.5 * CYCLES)
    attach, detach = [], []
    watcher = worker.ring()
    for _ in range(CYCLES):
        ring = worker.ring()
        assert ring.lock()
        attach.append(reach(watcher, "recording"))
        worker.read_for(ring, 0.2)
        ring.close()
        detach.append(reach(watcher, "waiting"))
    alive = worker.process.poll() is None
    claim(alive, f"{CYCLES} attaches and detaches under 8 launching threads")
    worker.answer()
    facts = watcher.facts()
    print(
        f"     attach median {statistics.median(attach) * 1e3:.0f} ms, "
        f"detach {statistics.median(detach) * 1e3:.0f} ms, cost so far {facts.cost_ns / 1e6:.0f} ms"
    )
    after = statistics.fmean(worker.ask("threads", 2) for _ in range(2))
    claim(abs(after / before - 1) < 0.1, f"launches/s {before:,.0f} before, {after:,.0f} after")
    watcher.close()


def main(seconds: float) -> int:
    worker_process = Worker()
    memory(worker_process, seconds)
    detach_at_any_call(worker_process)
    cycles(worker_process)
    worker_process.process.kill()
    return claim.failed > 0


if __name__ == "__main__":
    if "--worker" in sys.argv:
        worker()
    else:
        sys.exit(main(float(sys.argv[1]) if len(sys.argv) > 1 else 16.0))
