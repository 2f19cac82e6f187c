"""A workload that knows the truth about itself: what gpu_oracle_check.py holds a recording against.

usage: python3 gpu_oracle.py TRUTH.json [SECONDS]   under `gpuprof-tui record -o F [--gpu-overhead X] -- ...`

Five parts, each under a call path of its own: prime numbers of launches on two streams; replays of a graph
that was captured before anyone could listen; one kernel launched from three paths in the ratio 2 : 5 : 11;
waits of two known lengths; and a million tiny kernels in blocks between two readings of CLOCK_MONOTONIC.
"""

from __future__ import annotations

import json
import random
import sys
import time

import torch

PRIMES = {"sin": 1009, "cos": 503, "tan": 211}
GRAPH_NODES, GRAPH_REPLAYS = 13, 307
RATIO = {"path_two": 2, "path_five": 5, "path_eleven": 11}
WAITS = {"wait_briefly": (400, 300_000), "wait_long": (60, 4_000_000)}  # how often, ns of GPU time
BLOCKS, BLOCK_LAUNCHES = 100, 10_000


def launch_primes(x: torch.Tensor, y: torch.Tensor, other: torch.cuda.Stream) -> None:
    for name, count in PRIMES.items():
        with torch.cuda.stream(other if name == "cos" else torch.cuda.current_stream()):
            for _ in range(count):
                getattr(torch, name)(x, out=y)
    torch.cuda.synchronize()


def replay_graph(graph: torch.cuda.CUDAGraph) -> None:
    for _ in range(GRAPH_REPLAYS):
        graph.replay()
    torch.cuda.synchronize()


def path_two(x: torch.Tensor) -> None:
    x.mul_(1.0001)


def path_five(x: torch.Tensor) -> None:
    x.mul_(1.0001)


def path_eleven(x: torch.Tensor) -> None:
    x.mul_(1.0001)


def three_paths(x: torch.Tensor, seconds: float) -> int:
    """Rounds of 18 launches in an order of chance, about 10,000 launches a second."""
    order = [path_two] * 2 + [path_five] * 5 + [path_eleven] * 11
    rounds, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        random.shuffle(order)
        for path in order:
            path(x)
        rounds += 1
        if rounds % 50 == 0:
            torch.cuda.synchronize()
        time.sleep(0.0017)
    torch.cuda.synchronize()
    return rounds


def wait_briefly(cycles: int) -> int:
    return wait(cycles)


def wait_long(cycles: int) -> int:
    return wait(cycles)


def wait(cycles: int) -> int:
    """Nanoseconds inside the synchronize, as the host sees it."""
    torch.cuda._sleep(cycles)
    began = time.monotonic_ns()
    torch.cuda.current_stream().synchronize()
    return time.monotonic_ns() - began


def launch_blocks(x: torch.Tensor) -> list[tuple[int, int]]:
    blocks = []
    for _ in range(BLOCKS):
        torch.cuda.synchronize()
        began = time.monotonic_ns()
        for _ in range(BLOCK_LAUNCHES):
            x.neg_()
        torch.cuda.synchronize()
        blocks.append((began, time.monotonic_ns()))
    return blocks


def cycles_per_ns() -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda._sleep(1_000_000)
    start.record()
    torch.cuda._sleep(50_000_000)
    end.record()
    end.synchronize()
    return 50_000_000 / (start.elapsed_time(end) * 1e6)


def main(out: str, seconds: float) -> None:
    x = torch.rand(1 << 16, device="cuda")
    y = torch.empty_like(x)
    for name in PRIMES:
        getattr(torch, name)(x, out=y)
    x.mul_(1.0)
    x.neg_()
    other, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    other.wait_stream(torch.cuda.current_stream())
    with torch.cuda.graph(graph):
        for _ in range(GRAPH_NODES):
            y.add_(1.0)
    graph.replay()
    speed = cycles_per_ns()
    torch.cuda.synchronize()
    time.sleep(4)  # the sampler finds the process, and the library attaches

    launch_primes(x, y, other)
    replay_graph(graph)
    rounds = three_paths(x, seconds)
    waits = {}
    for path in (wait_briefly, wait_long):
        count, ns = WAITS[path.__name__]
        waits[path.__name__] = count, sum(path(int(ns * speed)) for _ in range(count))
    blocks = launch_blocks(x)
    time.sleep(2)
    truth = {
        "primes": PRIMES, "graph": GRAPH_NODES * GRAPH_REPLAYS, "ratio": RATIO, "rounds": rounds,
        "waits": waits, "blocks": blocks, "block_launches": BLOCK_LAUNCHES,
    }  # fmt: skip
    with open(out, "w") as file:
        json.dump(truth, file)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 15.0)
