"""Workloads of the comparison bench: each counts its rounds into a shared file, so that throughput can be
read at any moment from outside.

usage: python peers_work.py NAME COUNTER_FILE
"""

from __future__ import annotations

import json
import mmap
import re
import struct
import sys
from collections.abc import Callable
from pathlib import Path


def fib(n: int) -> int:
    return n if n < 2 else fib(n - 1) + fib(n - 2)


def parse() -> object:
    return json.loads(json.dumps({str(i): [i] * 5 for i in range(40)}))


def substitute() -> str:
    return re.sub("a+", lambda match: match.group(0) * 2, "aab" * 30)


def plain_round() -> None:
    """W1: Python with C code between: json, re, sort."""
    fib(9)
    parse()
    substitute()
    sorted(range(300), key=lambda i: -i)


def torch_round() -> Callable[[], None]:
    """W2: a training step of PyTorch on the CPU."""
    import torch

    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    optimizer = torch.optim.Adam(model.parameters())
    inputs, labels = torch.randn(32, 64), torch.randint(0, 10, (32,))

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()

    return step


def numpy_round() -> Callable[[], None]:
    """W2 where there is no PyTorch: a training step written in numpy, with OpenBLAS's assembly below."""
    import numpy as np

    rng = np.random.default_rng(1)
    weights = [rng.standard_normal((64, 128)) * 0.1, rng.standard_normal((128, 10)) * 0.1]
    inputs, labels = rng.standard_normal((32, 64)), rng.integers(0, 10, 32)

    def forward() -> tuple[np.ndarray, np.ndarray]:
        hidden = np.maximum(inputs @ weights[0], 0)
        scores = hidden @ weights[1]
        chances = np.exp(scores - scores.max(1, keepdims=True))
        return hidden, chances / chances.sum(1, keepdims=True)

    def backward(hidden: np.ndarray, chances: np.ndarray) -> None:
        error = chances.copy()
        error[np.arange(32), labels] -= 1
        below = (error @ weights[1].T) * (hidden > 0)
        weights[1] -= 1e-3 * (hidden.T @ error)
        weights[0] -= 1e-3 * (inputs.T @ below)

    def step() -> None:
        backward(*forward())
        np.linalg.eigvalsh(weights[1][:24].T @ weights[1][:24])

    return step


def has_torch(python: str) -> bool:
    """Whether an interpreter can import torch."""
    import subprocess

    return subprocess.run([python, "-c", "import torch"], capture_output=True, check=False).returncode == 0


ROUNDS: dict[str, Callable[[], Callable[[], None]]] = {
    "python": lambda: plain_round, "torch": torch_round, "numpy": numpy_round,
}  # fmt: skip


def main() -> None:
    """Round after round, for ever."""
    name, path = sys.argv[1:3]
    run_round = ROUNDS[name]()
    with Path(path).open("r+b") as file:
        counter = mmap.mmap(file.fileno(), 8)
    rounds = 0
    while True:
        run_round()
        rounds += 1
        struct.pack_into("<Q", counter, 0, rounds)


if __name__ == "__main__":
    main()
