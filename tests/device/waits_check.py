"""Records train_slow_loader.py and checks its waits: the main thread waits for workers, which are named with
the code that held it up, waits of the GPU driver are told apart, and nothing is lost.

usage: python3 waits_check.py FILE      as root on a node with a GPU and PyTorch; FILE keeps the recording
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpuprof.snapshots.file import read_snapshot
from gpuprof.snapshots.frames import Query
from gpuprof.snapshots.report import json_report

HERE = Path(__file__).parent
RECORD_S = 26  # with the start of PyTorch, two shards of ten seconds each
WORKERS = 4
WORKER_NAMES = ("woken by pt_", "woken by python")  # recent PyTorch names its workers


def waits_of(node: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], float]]:
    """(names from the process down, ns) of every row that has time of its own."""
    path = (*path, node["name"])
    if node["self"]:
        yield path, float(node["self"])
    for child in node.get("children", ()):
        yield from waits_of(child, path)


def main() -> int:
    file = Path(sys.argv[1])
    workload = [sys.executable, str(HERE / "train_slow_loader.py"), str(RECORD_S), str(WORKERS)]
    command = [sys.executable, "-I", "-c", "from gpuprof.tui.command import main; raise SystemExit(main())"]
    command += ["record", "--no-service", "-f", "-o", str(file), "--for", f"{RECORD_S}s", "--", *workload]
    subprocess.run(command, check=False)
    history = read_snapshot(str(file)).history
    report = json_report(history, Query(0, "offcpu", *history.span, min_fraction=0.0, max_nodes=1 << 20))
    source = next(one for one in report["sources"] if one["name"] == "offcpu")
    kinds: Counter[str] = Counter()
    for_workers = by_worker = total = 0.0
    for path, ns in waits_of(report["root"]):
        kinds[path[-1] if not path[-1].startswith("[") else "other"] += int(ns)
        total += ns
        woken = next((at for at, name in enumerate(path) if name.startswith("woken by")), len(path))
        if any("_next_data" in name or "_try_get_data" in name for name in path[:woken]):  # not the waker's
            for_workers += ns
            by_worker += ns if any(name.startswith(WORKER_NAMES) for name in path) else 0
    driver = sum(ns for path, ns in waits_of(report["root"]) if "NVIDIA ioctl" in path)
    print(f"source: {source}")
    print(f"waits: {total / 1e9:.1f} s of thread time; in the GPU driver {driver / 1e9:.2f} s")
    print(f"for the next batch: {for_workers / 1e9:.2f} s, of it woken by a worker {by_worker / 1e9:.2f} s")
    for name, ns in kinds.most_common(12):
        print(f"  {ns / 1e9:8.2f} s  {name}")
    good = (
        source["state"] == "ok" and not source["lost"] and for_workers > 0 and by_worker > 0.5 * for_workers
    )
    print("good" if good else "NOT as expected")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
