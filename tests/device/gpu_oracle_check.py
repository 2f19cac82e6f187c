"""Compares a recording of gpu_oracle.py with what it did: a PASS or FAIL line for each claim.

usage: python3 gpu_oracle_check.py FILE.gpuprof TRUTH.json

Where recording was by sample (--gpu-overhead 1%), counts are of the time that was recorded, and shares must
lie within five standard errors; with --gpu-overhead off everything must be exact.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from typing import Any

import numpy as np
from claims import claim

from gpuprof.snapshots.file import read_snapshot
from gpuprof.snapshots.frames import STACK_NOT_TAKEN, UNMATCHED_LAUNCH, FrameKind

PLACEMENT_NS = 2_000  # the bracket's width, and the two clock readings of the workload
LEAST_WAITS = 10
AROUND_NS = 60_000  # Python and PyTorch around a synchronizing call, on the host's clock but not in the call


class Paths:
    """Names from the root to the leaf, and the leaf's kind, of the stacks of one generation."""

    def __init__(self, view: Any) -> None:
        self._view = view
        self._known: dict[int, tuple[list[str], int]] = {}

    def of(self, stack: int) -> tuple[list[str], int]:
        found = self._known.get(stack)
        if found is None:
            view, names, kinds, node = self._view, [], [], stack
            while node:
                function = int(view.frame_function[int(view.frame[node])])
                names.append(view.strings[int(view.name[function])])
                kinds.append(int(view.kind[function]))
                node = int(view.parent[node])
            found = self._known[stack] = (names[::-1], kinds[0] if kinds else FrameKind.UNKNOWN)
        return found


def all_work(history: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[list[str]], np.ndarray]:
    """Start, end, weight, the path of each distinct stack, and which of them each kernel has."""
    starts, ends, weights, labels, paths = [], [], [], [], []
    for view, rows in history.gpu_work_between(0, 1 << 62):
        known, columns = Paths(view), rows.columns
        stacks, which = np.unique(columns["stack"], return_inverse=True)
        found = [known.of(int(stack)) for stack in stacks]
        kernel = np.array([kind in (FrameKind.GPU_KERNEL, FrameKind.GPU_COMM) for _, kind in found], bool)
        keep = kernel[which.reshape(-1)]
        starts.append(columns["start_ns"][keep])
        ends.append(columns["end_ns"][keep])
        weights.append(columns["weight"][keep])
        labels.append(which.reshape(-1)[keep] + len(paths))
        paths += [path for path, _ in found]
    return *(np.concatenate(part) for part in (starts, ends, weights)), paths, np.concatenate(labels)


def main(file: str, truth_path: str) -> int:
    history = read_snapshot(file).history
    with open(truth_path) as source:
        truth = json.load(source)
    start, end, weight, paths, label = all_work(history)
    status = next(s for s in history.status.sources if s.name == "gpu")
    print(f"status: {status}")
    sampled = bool((weight == 0).any())
    print(f"{len(start):,} kernels, {'a sample of' if sampled else 'all'} launches with a stack")
    of_path: dict[str, np.ndarray] = {}
    for word in ("launch_primes", "replay_graph", *truth["ratio"], "launch_blocks"):
        of_path[word] = np.array([word in path for path in paths], bool)[label]

    def count(word: str, kernel: str = "") -> int:
        named = np.array([kernel in path[-1] for path in paths], bool)[label]
        return int(np.count_nonzero(of_path[word] & named))

    if not sampled:
        for kernel, wanted in truth["primes"].items():
            found = count("launch_primes", kernel)
            claim(found == wanted, f"primes: {found} of {wanted} {kernel} kernels under launch_primes")
        found = count("replay_graph")
        claim(found == truth["graph"], f"graph: {found} of {truth['graph']} kernels under replay_graph")
    check_ratio(truth, of_path, weight, sampled)
    check_waits(truth, history, sampled)
    check_placement(truth, start, end, paths, label, sampled)
    unmatched = np.array([UNMATCHED_LAUNCH in path for path in paths], bool)[label]
    claim(
        int(np.count_nonzero(unmatched)) <= 0.001 * len(start),
        f"unmatched: {np.count_nonzero(unmatched)} kernels, early {status.early}, lost {status.lost}",
    )
    claim(status.early == 0, f"no kernel before its launch ({status.early})")
    return claim.failed > 0


def check_ratio(truth: Any, of_path: dict[str, np.ndarray], weight: np.ndarray, sampled: bool) -> None:
    sums = {path: weight[of_path[path]].astype(np.float64) for path in truth["ratio"]}
    total = sum(part.sum() for part in sums.values())
    shares = sum(truth["ratio"].values())
    for path, share in truth["ratio"].items():
        part, wanted = sums[path].sum() / total, share / shares
        variance = (
            sum(((((path == other) - part) ** 2) * (w * (w - 1))).sum() for other, w in sums.items())
            / total**2
        )
        error = 5 * variance**0.5 if sampled else 0.5 / shares / truth["rounds"]
        claim(
            abs(part - wanted) <= error + 1e-12,
            f"ratio: {path} has {part:.4f}, truth {wanted:.4f} +- {error:.4f}",
        )
        if not sampled:
            found = len(sums[path])
            claim(found == share * truth["rounds"], f"ratio: {found} of {share * truth['rounds']} launches")


def check_waits(truth: Any, history: Any, sampled: bool) -> None:
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for view, rows in history.waits_between(0, 1 << 62):
        known, columns = Paths(view), rows.columns
        names = ("stack", "start_ns", "end_ns", "weight", "kind")
        for stack, begin, end, weight, kind in zip(*(columns[n].tolist() for n in names), strict=True):
            if kind == 2:
                path = known.of(stack)[0]
                word = next((word for word in truth["waits"] if word in path), "elsewhere")
                found[word].append((end - begin, weight))
    for word, (count, wanted) in truth["waits"].items():
        if sampled and len(found[word]) < LEAST_WAITS:
            print(f"---- waits: {len(found[word])} under {word}: the recording was paused, too few to judge")
            continue
        length, weight = np.array(found[word] or [(0.0, 1.0)]).T
        total = (length * weight).sum()
        if sampled:  # recorded in windows, perhaps: the mean says whose waits they are
            total *= count / weight.sum()
        error = 5 * np.sqrt((length**2 * weight * (weight - 1)).sum())
        claim(
            -error - 0.05 * wanted <= wanted - total <= error + 0.05 * wanted + count * AROUND_NS,
            f"waits: {total / 1e6:.1f} ms by {len(length)} waits under {word}, the host saw "
            f"{wanted / 1e6:.1f} ms +- {error / 1e6:.1f}",
        )


def check_placement(  # noqa: PLR0917
    truth: Any, start: np.ndarray, end: np.ndarray, paths: list[list[str]], label: np.ndarray, sampled: bool
) -> None:
    blocks = np.array(truth["blocks"], np.int64)
    begin, stop = start.astype(np.int64), end.astype(np.int64)
    kernel = np.array([("launch_blocks" in path) or (path[0] == STACK_NOT_TAKEN) for path in paths], bool)[
        label
    ]
    neg = np.array(["neg" in path[-1] for path in paths], bool)[label]
    mask = kernel & neg & (begin >= blocks[0, 0] - 10**6)
    begin, stop = begin[mask], stop[mask]
    block = np.searchsorted(blocks[:, 0], begin + PLACEMENT_NS, "right") - 1
    outside = np.count_nonzero((block < 0) | (stop > blocks[np.maximum(block, 0), 1] + PLACEMENT_NS))
    wanted = len(blocks) * truth["block_launches"]
    claim(outside == 0, f"placement: {outside} of {len(begin):,} kernels outside their block")
    if not sampled:
        claim(len(begin) == wanted, f"placement: {len(begin):,} of {wanted:,} kernels found")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
