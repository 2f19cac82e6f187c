"""Two ranks of NCCL, of which one comes late to every all-reduce: the late one's device idles for what kept
it, the other's is busy with communication.

usage: python3 late_rank_check.py FOLDER     as root on a node with two GPUs and PyTorch; 40 s
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from claims import claim

from gpuprof.snapshots.file import read_snapshot
from gpuprof.snapshots.frames import Query
from gpuprof.snapshots.report import json_report

WORK = Path(__file__).parent / "idle_causes.py"
RECORD_S, JUDGED_S = 26, 8  # the last seconds are judged: NCCL takes long to start
LEAST_SHARE = 0.5


def share_of(node: dict[str, Any], word: str) -> int:
    if word in node["name"]:
        return int(node["total"])
    return sum(share_of(child, word) for child in node.get("children", ()))


def main(folder: str) -> int:
    file = f"{folder}/late-rank.gpuprof"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(WORK)]
    command = ["gpuprof-tui", "record", "-f", "-o", file, "--for", f"{RECORD_S}s", "--", *torchrun]
    done = subprocess.run(
        [*command, "late_rank", "60"], capture_output=True, text=True, timeout=150, check=False
    )
    print("\n".join(done.stderr.splitlines()[-3:]))
    history = read_snapshot(file).history
    assert history.gpus is not None
    uuids = {gpu.index: gpu.uuid for gpu in history.gpus.gpus}
    _, end = history.span
    span_ns = JUDGED_S * 10**9

    idle: dict[int, int] = {}
    for index, uuid in uuids.items():
        parts: dict[str, Any] = {}
        for number, tree in enumerate(("idle", "gpu")):
            query = Query(number, tree, end - span_ns, end, gpus=[uuid], scaled=True, min_fraction=0.0)
            parts[tree] = json_report(history, query)
            print(
                f"  {tree}, device {index}: {parts[tree]['total'] / 1e9:.2f} s; {parts[tree].get('summary')}"
            )
        idle[index] = parts["idle"]["total"]
        work = max(parts["gpu"]["total"], 1)
        nccl = share_of(parts["gpu"]["root"], "nccl") / work
        if index == 0:
            claim(nccl > LEAST_SHARE, f"device 0, which waits: {nccl:.0%} of its GPU time is communication")
        else:
            late = share_of(parts["idle"]["root"], "decode_batch_here") / max(idle[1], 1)
            claim(
                late > LEAST_SHARE,
                f"device 1, which is late: {late:.0%} of its idle time is in what keeps it",
            )
            claim(nccl < LEAST_SHARE, f"device 1: {nccl:.0%} of its GPU time is communication")
    claim(
        idle[1] > 3 * idle[0], f"idle: {idle[0] / 1e9:.2f} s and {idle[1] / 1e9:.2f} s of {JUDGED_S} s each"
    )
    return claim.failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
