"""Turns waits as the kernel side sends them into rows: from the switch-out to the wake a thread was blocked,
from there to the switch-in it was ready and not scheduled.

A wait of at least its threshold is always sent, a shorter one with probability duration / threshold, so that
those of one thread together are told to within a threshold (bpf/wait_choice.bpf.h), and
where threads wait very often those under UNWALKED_NS only if theirs is the one switch-out in `weight` whose
stack was taken; the reciprocal of the product is the row's weight, so that sums over rows are unbiased. A
wait that lasts is written in pieces, so that it is seen before it ends.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuprof.bpf.wait_programs import COUNTS_TWICE, UNWALKED_NS
from gpuprof.snapshots.frames import WaitKind

MAX_WAIT_NS = 1 << 60
FIRST_PIECE_NS = 10**9  # a wait that lasts longer is written while it lasts, in pieces of a fifth of its age
MAX_PIECE_NS = 5 * 10**9


@dataclass(frozen=True, slots=True, eq=False)
class WaitRows:
    """Columns of equal length; `of` is the index of the wait that a row belongs to."""

    of: NDArray[np.int64]
    start_ns: NDArray[np.uint64]
    end_ns: NDArray[np.uint64]
    weight: NDArray[np.float32]
    kind: NDArray[np.uint8]
    invalid: int  # waits that cannot be

    def __len__(self) -> int:
        return len(self.of)


def weights_of(waits: NDArray[np.void], end_ns: NDArray[np.uint64]) -> NDArray[np.float32]:
    """How many waits each of these stands for, at least 1."""
    duration = np.maximum(end_ns.astype(np.float64) - waits["extra"].astype(np.float64), 1.0)
    shorter = np.maximum(waits["threshold_ns"].astype(np.float64) / duration, 1.0)
    of_walks = np.where(duration < UNWALKED_NS, np.maximum(waits["weight"], 1), 1)
    shorter *= np.where((shorter > 1) & (waits["waker_flags"] & COUNTS_TWICE > 0), 2, 1)
    found: NDArray[np.float32] = (of_walks * shorter).astype(np.float32)
    return found


def rows_of(
    waits: NDArray[np.void], end_ns: NDArray[np.uint64], from_ns: NDArray[np.uint64] | None = None
) -> WaitRows:
    """The rows of waits (wait_programs.WAIT_RECORD) that end, or are cut, at `end_ns`; what lies before
    `from_ns` was written already.
    """
    out = waits["extra"]
    valid = (out > 0) & (end_ns >= out) & (end_ns < MAX_WAIT_NS)
    woken = waits["woken_ns"]
    was_woken = (woken >= out) & (woken > 0) & (woken <= end_ns)
    slept = waits["state"] != 0
    ready = np.where(slept, np.where(was_woken, woken, end_ns), out)
    begin = out if from_ns is None else np.maximum(out, from_ns)
    weight = weights_of(waits, end_ns)
    parts = []
    for kind, start, end in (
        (WaitKind.BLOCKED, begin, ready),
        (WaitKind.RUNNABLE, np.maximum(begin, ready), end_ns),
    ):
        at = np.flatnonzero(valid & (end > start))
        parts.append((at, start[at], end[at], weight[at], np.full(len(at), kind, np.uint8)))
    of, starts, ends, weights, kinds = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.argsort(ends, kind="stable")
    return WaitRows(of[order], starts[order], ends[order], weights[order], kinds[order], int((~valid).sum()))


class LastingWaits:
    """Which pieces of waits that last were written already. Not thread-safe."""

    def __init__(self) -> None:
        self._written: dict[int, tuple[int, int]] = {}  # thread: switch-out, up to where its wait was written

    def __len__(self) -> int:
        return len(self._written)

    def due(
        self, running: NDArray[np.void], now_ns: int, least_ns: int | None = None
    ) -> tuple[NDArray[np.void], NDArray[np.uint64]]:
        """(waits of which a piece is due, where each piece begins), of those that last now; each is written
        up to `now_ns`. `least_ns`: a piece so long is due, too.

        What is known of waits that last no more is forgotten, so end() must be asked of them before.
        """
        written: dict[int, tuple[int, int]] = {}
        chosen, starts = [], []
        columns = (running[name].tolist() for name in ("tid", "extra", "threshold_ns", "weight"))
        for index, (tid, out_ns, threshold_ns, weight) in enumerate(zip(*columns, strict=True)):
            if now_ns - out_ns < (threshold_ns if weight == 1 else max(threshold_ns, UNWALKED_NS)):
                continue  # it may yet be one that is sampled
            known = self._written.get(tid)
            begun = known is not None and known[0] == out_ns
            upto = known[1] if known is not None and begun else out_ns
            enough_ns = min(max((now_ns - out_ns) // 5, FIRST_PIECE_NS), MAX_PIECE_NS)
            if least_ns is not None:
                enough_ns = min(enough_ns, max(least_ns, 1))
            if now_ns - upto >= enough_ns:
                chosen.append(index)
                starts.append(upto)
                upto, begun = now_ns, True
            if begun:
                written[tid] = out_ns, upto
        self._written = written
        return running[np.array(chosen, np.int64)], np.array(starts, np.uint64)

    def end(self, waits: NDArray[np.void]) -> NDArray[np.uint64]:
        """Up to where each of these waits, which ended, was written; 0 for none."""
        found = np.zeros(len(waits), np.uint64)
        if self._written:
            for index, (tid, out_ns) in enumerate(
                zip(waits["tid"].tolist(), waits["extra"].tolist(), strict=True)
            ):
                known = self._written.get(tid)
                if known is not None and known[0] == out_ns:
                    found[index] = known[1]
        return found
