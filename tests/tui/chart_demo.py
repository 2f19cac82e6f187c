"""Look at the charts with made-up readings.

Python tests/tui/chart_demo.py [--gpus N] [--cores N] [--still] [--light].
"""

from __future__ import annotations

import argparse
import math
import time
from typing import ClassVar

import numpy as np
from textual.app import App, ComposeResult

from gpuprof.snapshots.frames import GpuFacts, Readings, SeriesDef
from gpuprof.tui.series import SeriesStore
from gpuprof.tui.widgets.chart_stack import ChartStack

SECOND = 10**9
START_NS = 5_000 * SECOND


class Synthetic:
    """A node that trains something with a slow loader, as readings at 10 Hz."""

    def __init__(self, gpus: int, cores: int, *, seed: int = 1, dense: bool = False) -> None:
        self.dense = dense  # slow readings at 10 Hz too
        self.random = np.random.default_rng(seed)
        self.gpus = [
            GpuFacts(
                f"GPU-{index}",
                index,
                "NVIDIA H200",
                memory_total_bytes=150_754_820_096,
                temp_slowdown_c=89.0,
                clock_sm_max_mhz=1980,
                clock_mem_max_mhz=3201,
                power_limit_max_w=700,
                has_gpm=True,
            )
            for index in range(gpus)
        ]
        self.cores = cores
        self.ids: dict[tuple[str, str | None, int | None, int | None], int] = {}
        self.defs: list[SeriesDef] = []
        self.rows: list[tuple[int, int, int, float]] = []
        self.busy_ns = np.zeros(cores)
        self.cpu_ns = {4242: 0.0, 4243: 0.0, 4250: 0.0}
        self.now_ns = START_NS

    names: ClassVar = {
        4242: "python3",
        4243: "python3",
        4250: "nvidia-[red]evil\x1b[31m-server-with-a-long-name",
    }

    def put(
        self,
        metric: str,
        value: float,
        window_ns: int = 0,
        gpu: str | None = None,
        *,
        pid: int | None = None,
        core: int | None = None,
    ) -> None:
        key = (metric, gpu, pid, core)
        if key not in self.ids:
            self.ids[key] = len(self.ids)
            self.defs.append(SeriesDef(self.ids[key], metric, gpu, pid, core))
        self.rows.append((self.ids[key], self.now_ns - window_ns, self.now_ns, value))

    def step(self) -> None:
        """A tenth of a second."""
        self.now_ns += SECOND // 10
        tick = (self.now_ns - START_NS) // (SECOND // 10)
        t = tick / 10
        noise = self.random.normal
        whole = tick % 10 == 0 or self.dense
        for number, gpu in enumerate(self.gpus):
            phase = (t + number * 3.1) % 13
            load = (
                0.0
                if 9.5 < phase < 12
                else max(0.0, min(1.0, 0.88 + 0.08 * math.sin(t * 2) + noise(0, 0.04)))
            )
            u = gpu.uuid
            self.put("util_gpu_percent", 100 * load, SECOND // 10, u)
            self.put("util_mem_percent", 45 * load, SECOND // 10, u)
            self.put("mem_used_bytes", (38 + 6 * math.sin(t / 9) + 20 * (phase > 5)) * 2**30, 0, u)
            self.put("power_w", 120 + 540 * load + noise(0, 12), 0, u)
            self.put("power_limit_w", 700, 0, u)
            self.put("temp_c", 52 + 14 * math.sin(t / 30) + 6 * load, 0, u)
            self.put("clock_sm_mhz", 1980 if load > 0.1 else 1305, 0, u)
            self.put("clock_mem_mhz", 3201, 0, u)
            if whole:
                for pid, share in ((4242, 0.7), (4243, 0.22)):
                    self.put("proc_sm_percent", 100 * load * share, SECOND, u, pid=pid)
                    self.put("proc_gpu_mem_bytes", 26 * share * 2**30, 0, u, pid=pid)
                self.put("pcie_tx_bytes_per_s", 2e8 + 9e8 * load, SECOND, u)
                self.put("pcie_rx_bytes_per_s", 6e9 * (phase < 2) + 1.2e9 * load, SECOND, u)
                self.put("sm_active_percent", 80 * load, SECOND, u)
                self.put("tensor_active_percent", 46 * load, SECOND, u)
                self.put("dram_active_percent", 33 * load + 3, SECOND, u)
        wave = (t % 13) / 13 * self.cores
        for core in range(self.cores):
            near = math.exp(-(((core - wave) % self.cores) ** 2) / max(self.cores, 4))
            share = min(1.0, max(0.0, 0.9 * near + abs(noise(0, 0.04)) * (core % 3 == 0)))
            self.busy_ns[core] += share * SECOND / 10
            self.put("core_busy_ns", float(self.busy_ns[core]), 0, core=core)
        for pid in self.cpu_ns:
            self.cpu_ns[pid] += (0.3 + 0.7 * (math.sin(t / (pid % 7 + 2)) > 0)) * SECOND / 10
            if whole:
                self.put("proc_cpu_ns", self.cpu_ns[pid], 0, pid=pid)
        if not self.gpus:
            self.put("mem_available_bytes", (6 + math.sin(t / 7)) * 2**30)

    def flush(self, store: SeriesStore) -> None:
        """Hand over what was made since the last call, as one frame."""
        store.define(self.defs)
        self.defs = []
        if self.rows:
            ids, starts, ends, values = zip(*self.rows, strict=True)
            store.add(
                Readings(
                    np.array(ids, np.uint32),
                    np.array(starts, np.uint64),
                    np.array(ends, np.uint64),
                    np.array(values, np.float64),
                )
            )
            self.rows = []


class ChartDemo(App[None]):
    """The stack alone, on made-up readings."""

    BINDINGS: ClassVar = [("q", "quit", "Quit")]

    def __init__(
        self, gpus: int = 1, cores: int = 8, seconds: int = 70, *, still: bool = False, dense: bool = False
    ) -> None:
        super().__init__()
        self.node = Synthetic(gpus, cores, dense=dense)
        self.store = SeriesStore()
        self.still = still
        for _ in range(seconds * 10):
            self.node.step()
        self.node.flush(self.store)

    def compose(self) -> ComposeResult:
        yield ChartStack(id="charts")

    def on_mount(self) -> None:
        stack = self.query_one(ChartStack)
        stack.set_gpus(self.node.gpus)
        stack.set_processes(self.node.names)
        stack.set_store(self.store)
        stack.set_clock(self.node.now_ns, time.time_ns())
        stack.focus()
        if not self.still:
            self.set_interval(0.1, self.more)

    def more(self) -> None:
        self.node.step()
        self.node.flush(self.store)
        self.query_one(ChartStack).refresh_data()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--cores", type=int, default=8)
    parser.add_argument("--still", action="store_true")
    parser.add_argument("--light", action="store_true")
    arguments = parser.parse_args()
    demo = ChartDemo(arguments.gpus, arguments.cores, still=arguments.still)
    if arguments.light:
        demo.theme = "textual-light"
    demo.run()
