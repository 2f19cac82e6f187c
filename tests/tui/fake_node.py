"""A node that does not exist: a History filled with plausible GPU and CPU data, served over the real
protocol.

Run as a program it shows the real screen over itself: `python tests/tui/fake_node.py [--gpus N] [--no-nvml]
[--no-cpu] [--hostile] [--past SECONDS]`, or serves a socket with `--socket PATH`, or writes a snapshot with
`--write FILE`.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from fake_stacks import NATIVE, PYTHON, STACKS, Function

from gpuprof.snapshots.errors import GpuprofError
from gpuprof.snapshots.frames import (
    MAGIC,
    Failure,
    Fetch,
    Fetched,
    FrameKind,
    GpuFacts,
    Gpus,
    Hello,
    ProcessDef,
    Query,
    SourceStatus,
    Status,
    Subscribe,
)
from gpuprof.snapshots.history import History
from gpuprof.snapshots.wire import Decoder, pack
from gpuprof.snapshots.work_frames import RateQuery

GPU_OFF = SourceStatus("gpu", "off", "no process is set up to record GPU work", "gpuprof-tui run -- CMD")


class FakeNode:
    """A History that grows: `fill(a, b)` adds what would have been seen in [a, b)."""

    def __init__(
        self,
        gpus: int = 2,
        *,
        nvml: bool = True,
        cpu: bool = True,
        hostile: list[str] | None = None,
        cores: int = 8,
        host: str = "node17",
        gpu_work: bool = False,
    ) -> None:
        now = time.monotonic_ns()
        self.hello = Hello(
            1,
            host,
            "boot-1",
            "6.8.0",
            cores,
            now,
            time.time_ns(),
            "0.1.0",
            os.getpid(),
            99 if cpu else 0,
            10 if nvml else 0,
            cpu,
            None if cpu else "sudo /opt/gpuprof/bin/gpuprof-tui",
        )
        self.history = History(self.hello)
        self.cores = cores
        self.random = random.Random(7)
        self.nvml, self.cpu, self.gpu_work = nvml, cpu, gpu_work
        self.gpus = [
            GpuFacts(
                f"GPU-{n:08x}",
                n,
                "NVIDIA H200",
                f"0000:{n:02x}:00.0",
                None,
                150_754_820_096,
                89.0,
                95.0,
                87.0,
                1980.0,
                3201.0,
                700.0,
                5,
                16,
                True,
            )
            for n in range(gpus if nvml else 0)
        ]
        self.history.set_gpus(Gpus("580.159.04" if nvml else None, "13" if nvml else None, self.gpus))
        self.processes = [
            (4711, "python3", "ada"),
            (4790, "pt_data_worker", "ada"),
            (77, "kworker/3:1", "root"),
        ]
        self._intern(hostile or [])
        self._busy_ns = [0.0] * cores
        self._cpu_ns = {pid: 0.0 for pid, _, _ in self.processes}
        self._samples = 0
        self._stopped = threading.Event()
        self._growing = threading.Lock()
        self.connections: list[socket.socket] = []

    def _intern(self, hostile: list[str]) -> None:
        with self.history.lock:
            tables = self.history.tables
            self._threads = [
                tables.thread(
                    tables.process(ProcessDef(pid, pid * 1000, name, name, user, 1000, 1)), pid, name
                )
                for pid, name, user in self.processes
            ]
            self._weights: list[float] = []
            self._rows: list[tuple[int, int]] = []
            for weight, thread, frames in STACKS:
                self._add(weight, self._threads[thread], frames)
            for place, name in enumerate(hostile):
                pid = 9000 + place
                process = tables.process(ProcessDef(pid, pid, name, name, name, 1000, 1))
                self.processes.append((pid, name, name))
                thread = tables.thread(process, pid, name)
                self._add(4, thread, [(name, name, name, NATIVE, 3), (name + "-callee", "", name, PYTHON, 9)])

    def _add(self, weight: float, thread: int, frames: list[Function]) -> None:
        tables = self.history.tables
        ids = [
            tables.frame(tables.function(name, file, binary, kind), line)
            for name, file, binary, kind, line in frames
        ]
        self._weights.append(weight)
        self._rows.append((thread, tables.stack(ids)))

    def fill(self, start_ns: int, end_ns: int) -> None:
        """Add samples and readings of [start_ns, end_ns)."""
        if self.cpu:
            count = int((end_ns - start_ns) / 1e9 * 99 * 2.5)
            if count:
                times = np.sort(
                    np.random.default_rng(start_ns & 0xFFFF).integers(start_ns, end_ns, count)
                ).astype(np.uint64)
                picks = self.random.choices(range(len(self._rows)), self._weights, k=count)
                threads = np.array([self._rows[pick][0] for pick in picks], np.uint32)
                stacks = np.array([self._rows[pick][1] for pick in picks], np.uint32)
                cpus = np.array([self.random.randrange(self.cores) for _ in picks], np.uint16)
                self.history.add_samples(times, cpus, threads, stacks)
                self._samples += count
        if self.gpu_work:
            self._work(start_ns, end_ns)
        step = 100_000_000
        for at in range(start_ns - start_ns % step + step, end_ns + 1, step):
            self._readings(at, step)

    def _work(self, start_ns: int, end_ns: int) -> None:
        """Every 20 ms of a busy device a kernel of 15 ms from one path, and a copy of 2 ms from another."""
        tables, history = self.history.tables, self.history
        kernel = ("sm90_xmma_gemm_bf16<128, 256>", "", "[gpu]", FrameKind.GPU_KERNEL, 0)
        copy = ("memcpy HtoD", "", "[gpu]", FrameKind.GPU_COPY, 0)
        with history.lock:
            paths = (([*STACKS[0][2], kernel], 0, 15), ([*STACKS[2][2][:-1], copy], 16, 2))
            for n, gpu in enumerate(self.gpus):
                every = np.arange(start_ns - start_ns % 20_000_000, end_ns, 20_000_000)
                every = every[((every / 1e9 + n) % 9 >= 2.2) & (every >= start_ns)]
                for frames, offset, length in paths:
                    ids = [tables.frame(tables.function(*frame[:4]), frame[4]) for frame in frames]
                    begin = (every + offset * 1_000_000).astype(np.uint64)
                    same = np.ones(len(begin), np.uint32)
                    history.add_gpu_work(
                        start_ns=begin, end_ns=begin + np.uint64(length * 1_000_000),
                        gpu=same * tables.string(gpu.uuid), stream=same,
                        thread=same * self._threads[0], stack=same * tables.stack(ids),
                    )  # fmt: skip

    def _readings(self, at: int, step: int) -> None:
        rows: list[tuple[int, int, int, float]] = []
        t = at / 1e9
        series = self.history.series

        def add(metric: str, value: float, *, window: int = 0, **subject: object) -> None:
            rows.append((series(metric, **subject), at - window, at, value))  # type: ignore[arg-type]

        for n, gpu in enumerate(self.gpus):
            starved = (t + n) % 9 < 2.2
            util = (8 if starved else 93) + 5 * math.sin(t * 3 + n)
            uuid = gpu.uuid
            add("util_gpu_percent", util, window=step, gpu=uuid)
            add("util_mem_percent", util * 0.4, window=step, gpu=uuid)
            add("mem_used_bytes", 38e9 + 2e9 * math.sin(t / 7 + n), gpu=uuid)
            add("power_w", 120 + util * 5, gpu=uuid)
            add("power_limit_w", 700, gpu=uuid)
            add("temp_c", 52 + util / 9, gpu=uuid)
            add("clock_sm_mhz", 1980 if util > 50 else 1590, gpu=uuid)
            add("clock_mem_mhz", 3201, gpu=uuid)
            add("pcie_tx_bytes_per_s", 2e8 * (1 + math.sin(t)) if starved else 4e7, window=step, gpu=uuid)
            add(
                "pcie_rx_bytes_per_s",
                9e9 if starved else 6e8 * (1.2 + math.sin(t * 2)),
                window=step,
                gpu=uuid,
            )
            add("sm_active_percent", util * 0.8, window=step, gpu=uuid)
            add("tensor_active_percent", util * 0.5, window=step, gpu=uuid)
            add("dram_active_percent", util * 0.3, window=step, gpu=uuid)
            if self.gpu_work:
                add("gpu_kernel_busy_percent", 0 if starved else 75, window=step, gpu=uuid)
                add("gpu_copy_busy_percent", 0 if starved else 10, window=step, gpu=uuid)
                if at // step % 10 == 0:
                    add("gpu_observed", float(n == 0), window=step * 10, gpu=uuid)
                    add("proc_recording", 1, window=step * 10, gpu=uuid, pid=4711)
            if at // step % 10 == 0:
                add("proc_sm_percent", util * 0.9, gpu=uuid, pid=4711)
                add("proc_gpu_mem_bytes", 36e9, gpu=uuid, pid=4711)
        if at // step % 4 == 0:
            for core in range(self.cores):
                self._busy_ns[core] += (
                    step * 4 * (0.9 if core == int(t / 3) % self.cores else 0.25 + 0.2 * math.sin(t + core))
                )
                add("core_busy_ns", self._busy_ns[core], core=core)
        if at // step % 10 == 0:
            add("mem_available_bytes", 410e9)
            for place, (pid, _, _) in enumerate(self.processes):
                self._cpu_ns[pid] = self._cpu_ns.get(pid, 0.0) + 1e9 * (1.7, 0.8, 0.02)[place % 3]
                add("proc_cpu_ns", self._cpu_ns[pid], pid=pid)
        if rows:
            self.history.add_readings(*zip(*rows, strict=True))
        if at // step % 10 == 0:
            self._status(at)

    def _status(self, at: int) -> None:
        nvml = (
            SourceStatus("nvml", "ok")
            if self.nvml
            else SourceStatus(
                "nvml",
                "failed",
                "libnvidia-ml.so.1 was not found (looked in the loader's path, /usr/lib/x86_64-linux-gnu)",
                "Install the NVIDIA driver, or watch a GPU node with gpuprof-tui --host NODE.",
            )
        )
        cpu = (
            SourceStatus("cpu", "ok", samples=self._samples, truncated=self._samples // 70)
            if self.cpu
            else SourceStatus(
                "cpu",
                "off",
                "reading the stacks of all processes needs root or CAP_BPF and CAP_PERFMON",
                "Start it with sudo.",
            )
        )
        gpu = SourceStatus("gpu", "ok", "placed within 900 ns", samples=9) if self.gpu_work else GPU_OFF
        self.history.set_status(
            Status(
                at,
                [cpu, nvml, gpu],
                int(at * 0.006),
                61_000_000,
                self.history.samples_start_ns or self.history.span[0],
                self.history.bytes_used,
                None,
            )
        )

    def serve(self, connection: socket.socket) -> None:
        """Speak the protocol on one connection until it ends (a thread of its own writes)."""
        lock = threading.Lock()
        decoder = Decoder()
        try:
            connection.sendall(MAGIC + pack(self.hello))
            while data := connection.recv(65536):
                for request in decoder.feed(data):
                    if isinstance(request, Subscribe):
                        threading.Thread(
                            target=self._push, args=(connection, lock, request), daemon=True
                        ).start()
                    elif isinstance(request, Query | RateQuery):
                        ask = self.history.query if isinstance(request, Query) else self.history.rates
                        try:
                            answer: object = ask(request)  # type: ignore[operator]
                        except GpuprofError as error:
                            answer = Failure(request.id, error.message, error.hint)
                        with lock:
                            connection.sendall(pack(answer))  # type: ignore[arg-type]
                    elif isinstance(request, Fetch):
                        with lock:
                            for frame in self.history.frames_between(request.start_ns, request.end_ns):
                                connection.sendall(pack(frame))
                            connection.sendall(pack(Fetched(request.id)))
        except OSError:
            pass

    def _push(self, connection: socket.socket, lock: threading.Lock, request: Subscribe) -> None:
        cursor = self.history.cursor(request.level, request.since_ns)
        try:
            while True:
                frames = self.history.since(cursor)
                with lock:
                    for frame in frames:
                        connection.sendall(pack(frame))
                if not frames:
                    time.sleep(0.05)
        except OSError:
            pass

    def listener(self, path: str) -> socket.socket:
        """Serve every client of a unix socket, in threads; closing the returned socket ends it."""
        server = socket.socket(socket.AF_UNIX)
        server.bind(path)
        server.listen()
        threading.Thread(target=self._accept, args=(server,), daemon=True).start()
        return server

    def _accept(self, server: socket.socket) -> None:
        try:
            while True:
                connection, _ = server.accept()
                self.connections.append(connection)
                threading.Thread(target=self.serve, args=(connection,), daemon=True).start()
        except OSError:
            pass

    def hang_up(self) -> None:
        """Close every connection, as a sampler that is killed does."""
        for connection in self.connections:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            connection.close()
        self.connections.clear()

    def run(self) -> None:
        """Grow with the clock until stopped."""
        last = time.monotonic_ns()
        while not self._stopped.wait(0.1):
            with self._growing:
                if self._stopped.is_set():
                    break
                now = time.monotonic_ns()
                self.fill(last, now)
                last = now

    def rest(self) -> None:
        """End `run`, and go on answering: once this returns, what a question is answered with stays so."""
        self._stopped.set()
        with self._growing:
            pass

    def stop(self) -> None:
        """End `run` and hang up."""
        self.rest()
        self.hang_up()


def _hostile_names() -> list[str]:
    path = Path(__file__).resolve().parents[3] / "shared/cases/names/hostile.json"
    return [
        name.encode("latin-1").decode("utf-8", "surrogateescape")
        for name in json.loads(path.read_text())["names"]
    ]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--no-nvml", action="store_true")
    parser.add_argument("--no-cpu", action="store_true")
    parser.add_argument("--hostile", action="store_true")
    parser.add_argument("--gpu-work", action="store_true")
    parser.add_argument("--past", type=float, default=90)
    parser.add_argument("--cores", type=int, default=8)
    parser.add_argument("--socket")
    parser.add_argument("--write")
    options = parser.parse_args()
    node = FakeNode(
        options.gpus,
        nvml=not options.no_nvml,
        cpu=not options.no_cpu,
        hostile=_hostile_names() if options.hostile else None,
        cores=options.cores,
        gpu_work=options.gpu_work,
    )
    now = time.monotonic_ns()
    node.fill(now - int(options.past * 1e9), now)
    if options.write:
        from gpuprof.snapshots.file import SnapshotWriter

        with SnapshotWriter(options.write, node.hello, force=True) as writer:
            writer.write(node.history.frames_between(*node.history.span))
        return
    threading.Thread(target=node.run, daemon=True).start()
    path = options.socket or os.path.join(tempfile.mkdtemp(), "sampler.sock")
    node.listener(path)
    if options.socket:
        threading.Event().wait()
    screen = subprocess.run(
        [sys.executable, "-m", "gpuprof.tui", "--socket", path, "--label", node.hello.host], check=False
    )
    raise SystemExit(screen.returncode)


if __name__ == "__main__":
    main()
