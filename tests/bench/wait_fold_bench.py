"""Print how long queries of off-CPU time (1 M waits; 100 k slices of waits that lasted) and of idle GPU time
(1 M rows: samples, waits and work) take, beside a bare numpy sum of the same rows.
"""

from __future__ import annotations

import numpy as np
from cpu_time import median_ms

from gpuprof.snapshots.frames import NO_THREAD, FrameKind, GpuFacts, Gpus, Hello, ProcessDef, Query, WaitKind
from gpuprof.snapshots.history import History

ROWS = 1_000_000
STACKS = 20_000
FUNCTIONS = 3_000
PROCESSES = 8
THREADS = 12  # of each process
EVERYTHING = 1 << 62
STEP_NS = 200_000
SLICED_ROWS = 100_000
SLICE_NS = 2_000_000_000


class Maker:
    """Fills a history whose stacks have 25 to 45 frames, as real ones of PyTorch have."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(1)
        hello = Hello(1, "bench", "boot", "6.1", 16, 0, 10**18, "0", 1, 99, 0, True)
        self.history = History(hello, max_bytes=1 << 30, max_age_ns=None)
        tables = self.history.tables
        self.threads = np.array(
            [
                tables.thread(
                    tables.process(ProcessDef(pid + 100, pid, f"python-{pid}", "", "user", 1000, 1)),
                    pid * 100 + tid,
                    f"thread-{tid}",
                )
                for pid in range(PROCESSES)
                for tid in range(THREADS)
            ],
            np.uint32,
        )
        self._frames = [
            tables.frame(tables.function(f"function_{n}", f"file_{n % 90}.py", "", FrameKind.PYTHON), n + 1)
            for n in range(FUNCTIONS)
        ]
        self._trunks = [self._draw(int(self.rng.integers(20, 35))) for _ in range(300)]
        self._waits = [self._leaf(name) for name in ("futex", "poll", "sleep", "disk or file I/O")]
        self._wakers = [self._leaf(f"woken by thread-{n}") for n in range(THREADS)]

    def _draw(self, count: int) -> list[int]:
        return [self._frames[n] for n in self.rng.integers(0, FUNCTIONS, count).tolist()]

    def _leaf(self, name: str) -> int:
        return self.history.tables.frame(self.history.tables.function(name, "", "", FrameKind.WAIT))

    def stacks(self, count: int, *, waits: bool, leaf: int | None = None) -> np.ndarray:
        """`count` stacks; those of waits end in the wait, the waker and two frames of it."""
        rng, found = self.rng, []
        for _ in range(count):
            frames = self._trunks[int(rng.integers(300))] + self._draw(int(rng.integers(4, 9)))
            if waits:
                frames = [
                    *frames,
                    self._waits[int(rng.integers(4))],
                    self._wakers[int(rng.integers(THREADS))],
                ]
                frames += self._draw(2)
            found.append(self.history.tables.stack(frames + ([leaf] if leaf is not None else [])))
        return np.array(found, np.uint32)

    def popular(self, stacks: np.ndarray, rows: int) -> np.ndarray:
        chosen: np.ndarray = stacks[self.rng.zipf(1.3, rows) % len(stacks)]
        return chosen

    def waits(self, rows: int) -> None:
        """Waits of all threads in turn, a tenth of them sampled short ones, some inside calls."""
        rng = self.rng
        start = 10**12 + np.arange(rows, dtype=np.int64) * STEP_NS
        length = rng.integers(STEP_NS, STEP_NS * len(self.threads), rows)
        who = np.arange(rows) % len(self.threads)
        kind = np.where(rng.random(rows) < 0.05, int(WaitKind.SYNC), int(WaitKind.BLOCKED))
        waker = np.where(rng.random(rows) < 0.8, self.threads[(who + 1) % len(self.threads)], NO_THREAD)
        stack = self.popular(self.stacks(STACKS, waits=True), rows)
        weight = np.where(rng.random(rows) < 0.1, 8, 1)
        self.history.add_waits(start, start + length, self.threads[who], stack, waker, weight, kind)

    def slices(self, rows: int) -> None:
        """Waits of all threads in slices of 2 s, ten to a wait, of which only the last has a waker."""
        rng = self.rng
        count = len(self.threads)
        stacks = self.stacks(STACKS // 10, waits=True)
        hosts = self.history.tables.view().parent
        for _ in range(2):  # without the waker and its two frames
            hosts = hosts[self.history.tables.view().parent]
        place = np.arange(rows) // count
        chosen = rng.integers(0, len(stacks), (rows // count // 10 + 1, count))[
            place // 10, np.arange(rows) % count
        ]
        last = place % 10 == 9
        stack = np.where(last, stacks[chosen], hosts[stacks[chosen]])
        waker = np.where(last, self.threads[(np.arange(rows) + 1) % count], NO_THREAD)
        start = 10**12 + place * SLICE_NS
        end = start + SLICE_NS - np.where(last, 1000, 0)
        self.history.add_waits(
            start, end, self.threads[np.arange(rows) % count], stack, waker, 1.0, np.zeros(rows, np.uint8)
        )

    def samples(self, rows: int, length_ns: int) -> None:
        start = np.sort(self.rng.integers(10**12, 10**12 + length_ns, rows))
        stack = self.popular(self.stacks(STACKS, waits=False), rows)
        thread = self.rng.choice(self.threads, rows)
        self.history.add_samples(start, np.zeros(rows), thread, stack)

    def work(self, rows: int, length_ns: int) -> None:
        """Kernels that keep a device busy for two thirds of the time, launched by four threads."""
        history = self.history
        tables = history.tables
        leaf = tables.frame(tables.function("gemm", "", "", FrameKind.GPU_KERNEL))
        step = length_ns // rows
        start = 10**12 + np.arange(rows) * step
        same = np.ones(rows, np.uint32)
        history.add_gpu_work(
            start_ns=start, end_ns=start + step * 2 // 3, gpu=same * tables.string("GPU-0"), stream=same,
            thread=self.rng.choice(self.threads[:4], rows),
            stack=self.popular(self.stacks(2_000, waits=False, leaf=leaf), rows),
        )  # fmt: skip
        history.set_gpus(Gpus("580", None, [GpuFacts("GPU-0", 0, "H200")]))
        series = history.series("gpu_observed", gpu="GPU-0")
        history.add_readings([series], [10**12], [10**12 + length_ns], [1.0])


def main() -> None:
    """Print the figures, one a line."""
    maker = Maker()
    maker.waits(ROWS)
    history = maker.history
    parts = [rows.columns for _, rows in history.waits_between(0, EVERYTHING)]
    starts, ends, stack = (
        np.concatenate([part[name] for part in parts]) for name in ("start_ns", "end_ns", "stack")
    )
    nodes = history.tables.node_count
    baseline = median_ms(lambda: np.bincount(stack, ends - starts, nodes))
    query = Query(1, "offcpu", 0, EVERYTHING)
    answer = history.query(query)
    spent = median_ms(lambda: history.query(query))
    print(f"offcpu_fold: {ROWS} rows, {STACKS} stacks, {nodes} nodes, {len(answer.parent)} rows shown")
    print(f"offcpu_fold.ms {spent:.1f} (target 200)")
    print(f"offcpu_fold.baseline_sum.ms {baseline:.1f}")
    print(f"offcpu_fold.ratio {spent / baseline:.1f}")

    maker = Maker()
    maker.slices(SLICED_ROWS)
    history = maker.history
    starts, ends, stack = (
        np.concatenate([rows.columns[name] for _, rows in history.waits_between(0, EVERYTHING)])
        for name in ("start_ns", "end_ns", "stack")
    )
    nodes = history.tables.node_count
    baseline_sliced = median_ms(lambda: np.bincount(stack, ends - starts, nodes))
    early = Query(1, "offcpu", 0, 10**12 + 5 * SLICE_NS // 2)
    spent, spent_early = (median_ms(lambda asked=asked: history.query(asked)) for asked in (query, early))
    print(f"sliced_fold: {SLICED_ROWS} rows, {history.query(query).summary[:100]}")
    print(f"sliced_fold.ms {spent:.1f} (the first 5 s of it, with the slices behind them: {spent_early:.1f})")
    print(f"sliced_fold.ratio_to_baseline_sum {spent / baseline_sliced:.1f}")

    maker = Maker()
    length_ns = ROWS * 2 // 5 * STEP_NS
    maker.waits(ROWS * 2 // 5)
    maker.samples(ROWS * 2 // 5, length_ns)
    maker.work(ROWS // 5, length_ns)
    history = maker.history
    query = Query(1, "idle", 0, EVERYTHING)
    answer = history.query(query)
    spent = median_ms(lambda: history.query(query))
    print(f"idle_fold: {ROWS} rows of three kinds, {len(answer.parent)} rows shown; {answer.summary}")
    print(f"idle_fold.ms {spent:.1f} (target 200)")
    print(f"idle_fold.ratio_to_baseline_sum {spent / baseline:.1f}")


if __name__ == "__main__":
    main()
