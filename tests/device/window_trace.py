"""Where the cost of the default budget lies: in the windows of recording, or in the pauses between them.

usage: python3 window_trace.py launch|graph|mock [SECONDS [BUDGET]]    as root with a GPU and nvcc, no sampler

One process launches without the library and one with it, one at a time, on the same CPU, each as fast as it
can. A third does nothing but count, on a CPU of its own: it tells how the CPUs' clocks drift. Blocks in which
nobody listens and blocks with a sampler alternate, in an order that is drawn. In both the two processes take
turns of 0.15 s (the one with the library alone while it records), so that what drifts more slowly touches
both alike. It prints, with 95 % intervals:

- each kind of step: its length and its CPU time; and how long its thread waited for its CPU;
- each window against the pauses within a second of it, and what the library says that it has cost;
- pauses against nobody listening: of the process with the library over that without it, turn by turn; of its
  steps alone, block by block; and what a sampler costs the process without the library;
- the drift of the process that counts; and in all: pauses, and windows at the pace of the budget.

SECONDS (100) are those of the blocks. `mock` runs on the mock driver of tests/native, without a GPU.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
import time
from contextlib import nullcontext, suppress
from pathlib import Path

import numpy as np
from claims import Claims
from mock_driver import gpu_loop, mock_loop
from pause_loss import LOADED, PLAIN, Steps, against, by_block, inside, ratios, window_losses
from tight_loop import KERNELS
from turns import LISTENS, NOBODY, Turns
from windows import mean_and_width, sampler

from gpuprof.snapshots.overhead import parse_budget

NOBODY_S, LISTENING_S = 6.0, 14.0
SLACK_S = 0.004  # between a reading of the ring and the step that it is about
ATTACH_S = 0.03  # before it is said to record, in which CUPTI is taken into use
MOST_IN_PAUSES, MOST_IN_ALL = 0.5, 5.0  # percent
MOST_WIDTH = 1.0  # percent, of half an interval: a wider one tells nothing
MOCK_WORK = 3000


def told(name: str, steps: Steps, base: float) -> None:
    if not len(steps):
        print(f"{name:36} none")
        return
    mean, middle, cpu = (
        float(value) / KERNELS * 1e9
        for value in (steps.length.mean(), np.median(steps.length), steps.cpu.mean())
    )
    print(
        f"{name:36} {len(steps):7} steps, {mean:7.0f} ns a kernel (median {middle:.0f}, CPU {cpu:.0f}):"
        f" {(mean / base - 1) * 100:+.2f} %"
    )


def siblings() -> str:
    """The CPUs that share a core with the loop's, as far as the machine tells."""
    path = f"/sys/devices/system/cpu/cpu{max(os.sched_getaffinity(0))}/topology/thread_siblings_list"
    with suppress(OSError):
        return Path(path).read_text().strip()
    return "?"


def run_blocks(turns: Turns, seconds: float, budget: str, rings: str) -> list[tuple[int, int]]:
    """Blocks in pairs; the numbers of each pair's block with nobody and of that with a sampler."""
    turns.block(NOBODY, NOBODY_S / 2)  # to warm up; in no pair
    pairs = []
    for _ in range(max(1, round(seconds / (NOBODY_S + LISTENING_S)))):
        numbers = {}
        for kind in random.sample((NOBODY, LISTENS), 2):
            with sampler("--gpu-overhead", budget, rings=rings) if kind == LISTENS else nullcontext():
                numbers[kind] = turns.block(kind, LISTENING_S if kind == LISTENS else NOBODY_S)
            turns.let_go()
        pairs.append((numbers[NOBODY], numbers[LISTENS]))
    return pairs


def main(kind: str, seconds: float, budget: str, folder: str) -> int:
    loop = mock_loop(folder, work=MOCK_WORK) if kind == "mock" else gpu_loop(folder, graph=kind == "graph")
    print(f"the loop keeps to CPU {max(os.sched_getaffinity(0))}, which shares its core with {siblings()}")
    turns = Turns(loop, folder)
    pairs = run_blocks(turns, seconds, budget, loop.rings if kind == "mock" else "")
    readings, waited, control = turns.end()
    steps = turns.steps()

    # ---- which step is of which kind
    nobody = np.isin(steps.block, [there for there, _ in pairs])
    listens = np.isin(steps.block, [here for _, here in pairs])
    at = readings["time"]
    whole, _ = inside(steps, at, readings["state"] == "recording", SLACK_S)
    _, touched = inside(steps, at, readings["state"] == "recording", ATTACH_S)
    paused = inside(steps, at, readings["state"] == "paused", SLACK_S)[0] & ~touched
    loaded, plain = steps.process == LOADED, steps.process == PLAIN
    base, plain_base = (float(steps[nobody & one].length.mean()) / KERNELS * 1e9 for one in (loaded, plain))
    in_pauses = listens & (plain | paused)  # of the process without the library all are
    told("with the library, nobody listens", steps[nobody & loaded], base)
    told("  recording", steps[listens & loaded & whole], base)
    told("  across an edge of a window", steps[listens & loaded & touched & ~whole], base)
    told("  in pauses", steps[listens & loaded & paused], base)
    told("without it, no sampler", steps[nobody & plain], plain_base)
    told("  beside a sampler", steps[listens & plain], plain_base)
    for name, share in waited.items():
        print(
            f"{name:42} waited for its CPU {share[0]:.3%} of its turns, pushed out {share[1]:.1f} times a"
            f" second, its process's other threads {share[2]:.2%} of a CPU, taken by the host {share[3]:.2%}"
        )

    # ---- windows
    of_loaded = steps[listens & loaded]
    recorded = touched[listens & loaded]
    losses = window_losses(of_loaded, recorded)
    if losses:
        lost_s, lost_s_width = mean_and_width(losses)
        share = 100 * len(losses) / turns.listening_s
        print(
            f"{len(losses)} windows against the pauses around them: {lost_s:.3f} +- {lost_s_width:.3f} s"
            f" each; the library says {turns.claimed_s / len(losses):.3f} s"
        )
        print(
            f"  {lost_s * share:+.2f} +- {lost_s_width * share:.2f} % of these blocks, each of which begins"
            " with a window of a new sampler"
        )

    # ---- pauses
    turn_there, turn_here = ratios(steps[nobody]), ratios(steps[in_pauses])
    loss, width = against(turn_there, turn_here)
    counts = f"{len(turn_here)} and {len(turn_there)} turns"
    print(f"in pauses, turn by turn ({counts}): {loss:+.2f} +- {width:.2f} %")
    loss_cpu, width_cpu = against(ratios(steps[nobody], "cpu"), ratios(steps[in_pauses], "cpu"))
    print(f"  the same of CPU time: {loss_cpu:+.2f} +- {width_cpu:.2f} %")
    quiet = steps[(nobody | (listens & paused)) & loaded]
    blocks = (
        ("in pauses, block by block", by_block(quiet, pairs)),
        ("a sampler, for the process without", by_block(steps[(nobody | listens) & plain], pairs)),
        ("the process that counts meanwhile", by_block(control, pairs)),
        ("  its CPU time", by_block(control, pairs, "cpu")),
    )
    for name, (mean, error, each) in blocks:
        print(f"{name}: {mean:+.2f} +- {error:.2f} % ({' '.join(f'{one:+.1f}' for one in each)})")
    drift = [float(steps.length[(steps.block == there) & plain].mean()) for there, _ in pairs]
    of_control = [float(control.length[control.block == there].mean()) for there, _ in pairs]
    apart, counting = (max(one) / min(one) - 1 for one in (drift, of_control))
    print(
        f"drift while nobody listens, largest over smallest block: without the library {apart:+.1%},"
        f" the process that counts {counting:+.1%}"
    )

    # ---- in all
    claims = Claims()
    tells = bool(len(turn_here) > 3 and len(turn_there) > 3 and losses)
    claims(tells, f"{kind}: there were windows and pauses to compare")
    if tells:
        measured, error = mean_and_width([one / max(turns.claimed_s / len(losses), 1e-9) for one in losses])
        pace = parse_budget(budget) / 1e4
        lost, lost_width = loss + measured * pace, float(np.hypot(width, error * pace))
        claims(
            width <= MOST_WIDTH and loss - width <= MOST_IN_PAUSES,
            f"{kind}: pauses cost {loss:+.2f} +- {width:.2f} % (most {MOST_IN_PAUSES}, within {MOST_WIDTH})",
        )
        claims(
            lost + lost_width <= MOST_IN_ALL,  # all of the interval; of one window nothing is known
            f"{kind}: in all {lost:+.2f} +- {lost_width:.2f} % (most {MOST_IN_ALL}): pauses, and windows at"
            f" {measured:.2f} +- {error:.2f} times what the library says, which is held to {pace:g} %",
        )
    return claims.failed


if __name__ == "__main__":
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        failed = main(
            sys.argv[1],
            float(sys.argv[2]) if len(sys.argv) > 2 else 100.0,
            sys.argv[3] if len(sys.argv) > 3 else "1%",
            scratch,
        )
    print(f"{time.monotonic() - began:.0f} s on {os.cpu_count()} CPUs")
    sys.exit(failed > 0)
