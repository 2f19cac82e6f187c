"""Print how long a query over 1 M sample rows with 20 k stacks takes, beside a bare numpy count of the same
rows.
"""

from __future__ import annotations

import numpy as np
from cpu_time import median_ms

from gpuprof.snapshots.frames import FrameKind, Hello, ProcessDef, Query
from gpuprof.snapshots.history import History

ROWS = 1_000_000
STACKS = 20_000
PROCESSES = 12
THREADS_PER_PROCESS = 8
FUNCTIONS = 3_000


def filled_history() -> History:
    """Return a history of ROWS samples: stacks of 20 to 60 frames that share their outer half, as real ones
    do.
    """
    rng = np.random.default_rng(1)
    hello = Hello(1, "bench", "boot", "6.1", 16, 0, 10**18, "0", 1, 99, 0, True)
    history = History(hello, max_bytes=1 << 30, max_age_ns=None)
    tables = history.tables
    threads: list[int] = []
    for pid in range(PROCESSES):
        process = tables.process(ProcessDef(pid + 100, pid, f"worker-{pid}", "worker", "user", 1000, 1))
        threads += [
            tables.thread(process, pid * 100 + tid, f"thread-{tid}") for tid in range(THREADS_PER_PROCESS)
        ]
    frames = [
        tables.frame(
            tables.function(f"function_{n}", f"file_{n % 90}.py", "python3.11", FrameKind.PYTHON), n % 400 + 1
        )
        for n in range(FUNCTIONS)
    ]
    trunks = [rng.integers(0, FUNCTIONS, rng.integers(15, 45)).tolist() for _ in range(400)]
    stacks = [
        tables.stack(
            [
                frames[n]
                for n in trunks[int(rng.integers(400))]
                + rng.integers(0, FUNCTIONS, int(rng.integers(4, 9))).tolist()
            ]
        )
        for _ in range(STACKS)
    ]
    popularity = rng.zipf(1.3, ROWS) % STACKS
    stack = np.array(stacks, np.uint32)[popularity]
    thread = np.array(threads, np.uint32)[popularity % len(threads)]
    time_ns = np.arange(ROWS, dtype=np.uint64) * 600_000
    history.add_samples(time_ns, rng.integers(0, 16, ROWS), thread, stack)
    return history


def main() -> None:
    """Print the figures, one a line."""
    history = filled_history()
    query = Query(1, "cpu", 0, 1 << 62)
    by_thread = Query(1, "cpu", 0, 1 << 62, by_thread=True)
    bottom_up = Query(1, "cpu", 0, 1 << 62, bottom_up=True)
    blocks = history.samples_between(0, 1 << 62)
    stack = np.concatenate([rows.columns["stack"] for _, rows in blocks])
    nodes = history.tables.node_count
    baseline = median_ms(lambda: np.bincount(stack, minlength=nodes))
    fold = median_ms(lambda: history.query(query))
    print(f"fold: {ROWS} rows, {STACKS} stacks, {nodes} nodes, {len(history.query(query).parent)} rows shown")
    print(f"fold.ms {fold:.1f} (target 100)")
    print(f"fold.by_thread.ms {median_ms(lambda: history.query(by_thread)):.1f}")
    turned = median_ms(lambda: history.query(bottom_up))
    print(f"fold.bottom_up.ms {turned:.1f}, {turned / fold:.1f} times the tree")
    print(f"fold.baseline_bincount.ms {baseline:.1f}")
    print(f"fold.ratio {fold / baseline:.1f}")


if __name__ == "__main__":
    main()
