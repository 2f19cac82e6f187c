"""Compares a recording of threads_streams.py with what it did: a PASS or FAIL line for each claim.

usage: python3 threads_streams_check.py FILE.gpuprof
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from claims import claim
from gpu_oracle_check import Paths

from gpuprof.snapshots.file import read_snapshot

QUIET, MANY, EACH, COPIES, COPY_BYTES, WAITS = 1512, 100, 7, 13, 64 << 20, 11  # as in threads_streams.py


def main(file: str) -> int:
    history = read_snapshot(file).history

    status = next(source for source in history.status.sources if source.name == "gpu")
    print(f"status: {status}")
    counts: dict[str, int] = {}
    copied, took, streams = 0, 0, set()
    for view, rows in history.gpu_work_between(0, 1 << 62):
        known, columns = Paths(view), rows.columns
        for stack in np.unique(columns["stack"]).tolist():
            path, _ = known.of(stack)
            mine = columns["stack"] == stack
            for word in ("launch_quiet", "launch_few", "copy_known"):
                if word in path:
                    counts[word] = counts.get(word, 0) + int(np.count_nonzero(mine))
            if "copy_known" in path:
                copied += int(columns["bytes"][mine].sum())
                took += int((columns["end_ns"] - columns["start_ns"])[mine].sum())
            if "wait_for_side" in path and "tan" in path[-1]:
                streams |= set(columns["stream"][mine].tolist())
    claim(
        counts.get("launch_quiet") == QUIET, f"quiet thread: {counts.get('launch_quiet')} of {QUIET} kernels"
    )
    found = counts.get("launch_few")
    claim(found == MANY * EACH, f"{MANY} threads: {found} of {MANY * EACH} kernels")
    claim(copied == COPIES * COPY_BYTES, f"copies: {copied:,} of {COPIES * COPY_BYTES:,} bytes")
    print(f"  at {copied / max(took, 1):.1f} GB/s")
    named: dict[str, int] = {}
    for view, rows in history.waits_between(0, 1 << 62):
        known = Paths(view)
        for stack in rows.columns["stack"].tolist():
            path, _ = known.of(stack)
            if "wait_for_side" in path:
                named[path[-1]] = named.get(path[-1], 0) + 1
    said = {int(match[1]) for name in named if (match := re.search(r"\(stream (\d+)\)", name))}
    claim(said == streams and len(said) == 1, f"waits name stream {said}, its kernels ran on {streams}")
    claim(max(named.values(), default=0) >= WAITS, f"waits: {named}")
    claim(status.lost == 0, f"lost {status.lost}")
    return claim.failed > 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
