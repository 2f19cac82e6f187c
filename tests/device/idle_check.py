"""Records each workload of idle_causes.py and checks that the tree of GPU idle time names its cause.

usage: python3 idle_check.py FOLDER [CAUSE ...]      as root on a node with a GPU; FOLDER keeps the recordings
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from gpuprof.snapshots.file import read_snapshot
from gpuprof.snapshots.frames import Query
from gpuprof.snapshots.report import json_report

HERE = Path(__file__).parent
RECORD_S = 14
LONG_S = 45  # of what is recorded in windows with pauses of ten seconds and more
START_S = 6  # of the workload and the first windows; not judged
# For each cause: names of which one must hold most of the idle time.
EXPECTED = {
    "cpu_loading": ["decode_batch_here"],
    "worker_loading": ["decode_in_worker"],
    "slow_disk": ["write_checkpoint"],
    "lock": ["take_the_lock", "work_while_holding"],
    "gil_hog": ["hog_the_gil", "burn_until", "woken by"],
    "sync_copies": ["copy_synchronously"],
    "launch_bound": ["launch_tiny"],
}
LEAST_SHARE = 0.5


def share_of(node: dict[str, Any], names: list[str]) -> int:
    """Weight of the outermost rows whose name has one of `names` in it."""
    if any(name in node["name"] for name in names):
        return int(node["total"])
    return sum(share_of(child, names) for child in node.get("children", ()))


def judge(file: Path, names: list[str]) -> tuple[bool, str]:
    """Whether the idle tree of a recording names the cause, and in words what it says."""
    history = read_snapshot(str(file)).history
    start, end = history.span
    query = Query(id=1, tree="idle", start_ns=start + START_S * 10**9, end_ns=end)
    report = json_report(history, query)
    total = report["total"]
    share = share_of(report["root"], names) / total if total else 0.0
    return (
        share >= LEAST_SHARE,
        f"{share:.0%} of {total / 1e9:.2f} s under {names[0]}; {report.get('summary')}",
    )


def main(folder: str, causes: list[str]) -> int:
    failures = 0
    for cause in causes or list(EXPECTED):
        file = Path(folder) / f"idle-{cause}.gpuprof"
        seconds = LONG_S if cause == "launch_bound" else RECORD_S
        command = ["gpuprof-tui", "record", "-o", str(file), "--for", f"{seconds}s", "--"]
        command += [sys.executable, str(HERE / "idle_causes.py"), cause, str(seconds + 20)]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
        if done.returncode:
            print(f"FAIL {cause}: record ended with {done.returncode}: {done.stderr[-300:]}")
            failures += 1
            continue
        right, words = judge(file, EXPECTED[cause])
        failures += not right
        print(f"{'PASS' if right else 'FAIL'} {cause}: {words}", flush=True)
    return failures


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
