"""Recordings of an H200 (tests/device/frameworks.py, globaltimer.py, contexts_check.py): each kernel, under
what launched it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from gpuprof.snapshots.file import read_snapshot

HERE = Path(__file__).parent / "h200"
COUNT = 1213  # launches of the known kernel
LENGTHS_NS = (20_000, 100_000, 1_000_000, 3_000_000, 10_000_000)  # of globaltimer.py's kernels, in turn


def kernels(name: str) -> Iterator[tuple[int, int, tuple[str, ...]]]:
    """Start, end, and the names of the path, root first."""
    opened = read_snapshot(str(HERE / f"{name}.gpuprof"))
    assert opened.damage is None
    for view, rows in opened.history.gpu_work_between(0, 1 << 62):
        known: dict[int, tuple[str, ...]] = {}
        columns = (rows.columns[column].tolist() for column in ("start_ns", "end_ns", "stack"))
        for start, end, stack in zip(*columns, strict=True):
            if stack not in known:
                path, node = [], stack
                while node:
                    path.append(view.strings[int(view.name[int(view.frame_function[int(view.frame[node])])])])
                    node = int(view.parent[node])
                known[stack] = tuple(path[::-1])
            yield start, end, known[stack]


@pytest.mark.parametrize(
    ("framework", "through"),
    [
        ("cupy", "__pyx_f_4cupy_4cuda_8function__launch"),
        ("triton", "JITFunction.run"),
        ("jax", "xla::gpu::GpuExecutable::ExecuteThunks"),
        ("cuda", "main"),
    ],
)
def test_every_kernel_is_under_the_function_that_launched_it(framework: str, through: str) -> None:
    kernel = "loop_add_fusion" if framework == "jax" else "known_kernel"
    counts: Counter[bool] = Counter()
    for _, _, path in kernels(framework):
        if path[-1].startswith(kernel):
            step = [at for at, name in enumerate(path) if "launch_known_kernels" in name]
            counts[bool(step) and (framework == "cuda" or through in path[step[0] :])] += 1
            assert through in path
    assert counts[True] == COUNT
    assert counts[False] <= 1  # the warm-up


def test_kernels_of_several_contexts_are_all_there() -> None:
    """One of them is destroyed, one comes later, and in the end the device is reset."""
    launched = {
        "launch_in_primary": 1009, "launch_in_second": 503, "launch_from_threads": 614,
        "launch_before_destroy": 211, "launch_in_third": 101, "launch_after_reset": 53,
    }  # fmt: skip
    found = Counter(name for _, _, path in kernels("contexts") for name in path if name.startswith("launch_"))
    assert found == launched


def stamped() -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Starts and ends as recorded, and (first stamp, ns to the last one) of the GPU's own clock."""
    rows = sorted((start, end) for start, end, path in kernels("globaltimer") if path[-1] == "stamp")
    starts, ends = np.array(rows, np.int64).T
    with np.load(HERE / "globaltimer.npz") as file:
        return starts, ends, file["stamps"].astype(np.int64)


def test_sums_are_those_of_the_gpu_clock() -> None:
    """Within 1 %, where what a kernel takes before its first and after its last stamp is little beside it."""
    starts, ends, stamps = stamped()
    assert len(starts) == len(stamps) == 2000
    for index, length in enumerate(LENGTHS_NS):
        chosen = np.arange(2000) % len(LENGTHS_NS) == index
        recorded, told = (ends - starts)[chosen].sum(), stamps[chosen, 1].sum()
        assert told <= recorded
        assert length < 1_000_000 or recorded < 1.01 * told


def test_places_are_those_of_the_gpu_clock() -> None:
    """What is left of the distance of the two clocks after an offset and a drift is below 1 µs."""
    starts, _, stamps = stamped()
    distance = (starts - stamps[:, 0]).astype(np.float64)
    distance -= distance[0]
    at = stamps[:, 0] / 1e9
    left = distance - np.polyval(np.polyfit(at, distance, 1), at)
    assert np.abs(left).max() < 1000
