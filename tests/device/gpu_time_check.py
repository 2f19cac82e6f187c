"""Compares a recording of prime_launches.py with what it launched.

usage: python3 gpu_time_check.py FILE.gpuprof TRUTH.json
"""

from __future__ import annotations

import json
import sys
from collections import Counter

from gpuprof.snapshots.file import read_snapshot
from gpuprof.snapshots.frames import UNMATCHED_LAUNCH, FrameKind


def main(file: str, truth_path: str) -> int:
    history = read_snapshot(file).history
    with open(truth_path) as source:
        truth = json.load(source)
    counts: Counter[tuple[str, str]] = Counter()
    time_ns: Counter[str] = Counter()
    complete = total = total_ns = matched_ns = 0
    for view, rows in history.gpu_work_between(0, 1 << 63):
        columns = rows.columns
        for start, end, stack in zip(
            *(columns[n].tolist() for n in ("start_ns", "end_ns", "stack")), strict=True
        ):
            names, kinds, node = [], [], stack
            while node:
                function = int(view.frame_function[int(view.frame[node])])
                names.append(view.strings[int(view.name[function])])
                kinds.append(int(view.kind[function]))
                node = int(view.parent[node])
            total += 1
            total_ns += end - start
            matched = UNMATCHED_LAUNCH not in names
            matched_ns += (end - start) * matched
            complete += matched and FrameKind.UNKNOWN not in kinds
            if kinds[0] != FrameKind.GPU_KERNEL:
                continue
            path = next((n for n in names if n in truth["counts"]), "elsewhere")
            kind = next((k for k in ("sin", "cos", "mul") if k in names[0].lower()), "other")
            counts[path, kind] += 1
            if path != "elsewhere":
                time_ns[kind] += end - start
    bad = 0
    for path, kinds in truth["counts"].items():
        for kind, wanted in kinds.items():
            found = counts[path, kind]
            bad += found != wanted
            print(f"{path} {kind}: {found} of {wanted}")
    for kind, paths in truth["event_s"].items():
        events, kernels = sum(paths.values()), time_ns[kind] / 1e9
        print(f"{kind}: kernels {kernels:.4f} s, CUDA events {events:.4f} s, ratio {kernels / events:.4f}")
    print(f"elsewhere: {sum(n for (path, _), n in counts.items() if path == 'elsewhere')} kernels")
    print(f"GPU time matched to a launch: {matched_ns / max(total_ns, 1):.4%}")
    print(f"launch stacks complete to the root: {complete / max(total, 1):.4%} of {total}")
    return bad > 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
