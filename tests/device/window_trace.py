"""Where the cost of the default budget lies: each step of a tight loop, against the windows of recording.

usage: python3 window_trace.py launch|graph [SECONDS [BUDGET]]   as root with a GPU and nvcc, no sampler

First a process without the library, with and without the sampler: what the charts and the CPU stacks cost
alone. Then one with the library: steps while nobody listens, in pauses, in windows, and across their edges,
each against the steps while nobody listens; and what the library says that recording has cost. A machine
that others share drifts by more than recording costs, so the last line takes each window against the pauses
within a second of it, with the 95 % interval of its mean.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time

import numpy as np
from launch_cost import ring_of
from numpy.typing import NDArray
from tight_loop import KERNELS, tight_loop
from windows import Worker, mean_and_width, sampler

from gpuprof.tui import run

BASE_S = 8
NEAR_S = 1.0


def steps_of(work: Worker, seconds: float, folder: str) -> NDArray[np.float64]:
    """Rows (end, length) in s."""
    work.ask(f"{seconds} {folder}/steps")
    return np.fromfile(f"{folder}/steps", np.float64).reshape(-1, 2)


def told(name: str, steps: NDArray[np.float64], base: float) -> None:
    length = steps[:, 1]
    if not len(length):
        print(f"{name:34} none")
        return
    mean, middle = length.mean() / KERNELS * 1e9, np.median(length) / KERNELS * 1e9
    print(
        f"{name:34} {len(length):7} steps, {mean:7.0f} ns a kernel (median {middle:.0f}):"
        f" {mean - base:+6.0f} ns, {(mean / base - 1) * 100:+.2f} %"
    )


def loss_by_window(steps: NDArray[np.float64], recorded: NDArray[np.bool_]) -> list[float]:
    """For each window, how much longer its steps took than they would have, had each been as long as those of
    the pauses within NEAR_S of it; in percent of all time.
    """
    end, length = steps[:, 0], steps[:, 1]
    turns = np.flatnonzero(np.diff(recorded.astype(np.int8), prepend=0, append=0)).reshape(-1, 2)
    excess = []
    for first, after in turns:
        near = ~recorded & (end > end[first] - NEAR_S) & (end < end[after - 1] + NEAR_S)
        if near.any():
            excess.append(float((length[first:after] - length[near].mean()).sum()))
    whole = float(end[-1] - end[0])
    return [each * len(excess) / whole * 100 for each in excess]


def main(kind: str, seconds: float, budget: str, folder: str) -> None:
    command = tight_loop(folder, graph=kind == "graph")
    plain = Worker(command, dict(os.environ))
    plain.ask("2")
    before = steps_of(plain, BASE_S, folder)
    with sampler():
        plain.ask("5")
        during = steps_of(plain, BASE_S, folder)
    after = steps_of(plain, BASE_S, folder)
    plain.end()
    base = np.concatenate([before, after])[:, 1].mean() / KERNELS * 1e9
    told("no library, before", before, base)
    told("no library, charts and CPU stacks", during, base)
    told("no library, after", after, base)

    work = Worker(command, run.environment(os.environ))
    work.ask("2")
    before = steps_of(work, BASE_S, folder)
    ring, states, stop = ring_of(work.process.pid), [], threading.Event()

    def watch() -> None:
        while not stop.wait(0.002):
            facts = ring.facts()
            states.append((time.monotonic(), facts.state, facts.cost_ns, facts.launches))

    watcher = threading.Thread(target=watch)
    watcher.start()
    with sampler("--gpu-overhead", budget):
        steps = steps_of(work, seconds, folder)
    stop.set()
    watcher.join()
    work.ask("1")
    after = steps_of(work, BASE_S, folder)
    work.end()
    base = np.concatenate([before, after])[:, 1].mean() / KERNELS * 1e9
    told("nobody listens, before", before, base)
    told("nobody listens, after", after, base)

    at = np.array([state[0] for state in states])
    recording = np.array([state[1] == "recording" for state in states])
    begin = np.clip(np.searchsorted(at, steps[:, 0] - steps[:, 1] - 0.004), 0, len(at) - 1)
    end = np.clip(np.searchsorted(at, steps[:, 0] + 0.004), 0, len(at) - 1)
    count = np.concatenate([[0], np.cumsum(recording)])
    inside = count[end + 1] - count[begin]
    whole = inside == end + 1 - begin
    told("not recording", steps[inside == 0], base)
    told("recording", steps[whole], base)
    edges = (inside > 0) & ~whole
    told("across an edge", steps[edges], base)
    windows = int(np.count_nonzero(np.diff(recording.astype(np.int8)) == 1))
    excess = (steps[:, 1] - base * KERNELS / 1e9).sum()
    at_edges = (steps[edges, 1] - base * KERNELS / 1e9).sum()
    launches = states[-1][3] - states[0][3]
    claimed = (states[-1][2] - states[0][2]) / 1e9
    print(
        f"{windows} windows, {recording.mean():.2%} of the time, {launches} launches seen;"
        f" lost {excess:.3f} s of {seconds:.0f} s ({excess / seconds:+.2%}), at edges {at_edges:.3f} s;"
        f" the library says {claimed:.3f} s ({claimed / max(launches, 1) * 1e9:.0f} ns a launch)"
    )
    losses = loss_by_window(steps, inside > 0)
    if losses:
        mean, width = mean_and_width(losses)
        print(
            f"{len(losses)} windows against the pauses around them: {mean:+.2f} +- {width:.2f} % of all time"
        )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(
            sys.argv[1],
            float(sys.argv[2]) if len(sys.argv) > 2 else 60.0,
            sys.argv[3] if len(sys.argv) > 3 else "1%",
            scratch,
        )
