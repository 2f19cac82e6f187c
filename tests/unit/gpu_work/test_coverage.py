"""When a device was busy, from batches of intervals; and whether that is the whole truth."""

from __future__ import annotations

import numpy as np
import pytest

from gpuprof.sampler.gpu_coverage import COPY, KERNEL, MAX_SPANS, WINDOW_NS, Coverage
from gpuprof.snapshots.gaps import union
from gpuprof.snapshots.history import History

SECOND = 10**9


def test_busy_windows(history: History, gpu: str) -> None:
    """Two overlapping streams are busy once; a kernel that spans windows counts in each."""
    begin = 50 * WINDOW_NS
    coverage = Coverage(history, begin)
    w = WINDOW_NS
    starts, ends = np.array([0, w // 4, 2 * w]) + begin, np.array([w // 2, w // 2 + 7, 4 * w]) + begin
    coverage.add(gpu, starts.astype(np.uint64), ends.astype(np.uint64), kind=KERNEL)
    coverage.add(gpu, np.array([begin + w], np.uint64), np.array([begin + w + w // 10], np.uint64), kind=COPY)
    coverage.write(begin + 3 * w + SECOND, {gpu})
    coverage.write(begin + 5 * w + SECOND, {gpu})
    defs, columns = history.readings_between(0, 1 << 62)
    found: dict[str, list[float]] = {}
    for series, start, end, value in zip(*(columns[n].tolist() for n in columns), strict=True):
        assert end - start == w
        found.setdefault(defs[series].metric, []).append(round(value, 4))
    assert found["gpu_kernel_busy_percent"] == [50.0, 0.0, 100.0, 100.0, 0.0]
    assert found["gpu_copy_busy_percent"] == [0.0, 10.0, 0.0, 0.0, 0.0]


def test_observed_only_when_all_record(history: History, gpu: str) -> None:
    coverage = Coverage(history, 10 * SECOND)
    always = union([0], [20 * SECOND])
    coverage.write_observed(11 * SECOND, {gpu: [5, 6], "GPU-empty": []}, {5: always})
    coverage.write_observed(12 * SECOND, {gpu: [5, 6], "GPU-empty": []}, {5: always, 6: always})
    defs, columns = history.readings_between(0, 1 << 62)
    found = [
        (defs[series].metric, defs[series].gpu, defs[series].pid, value, start, end)
        for series, start, end, value in zip(*(columns[n].tolist() for n in columns), strict=True)
    ]
    observed = [(g, v, s // SECOND, e // SECOND) for m, g, _, v, s, e in found if m == "gpu_observed"]
    assert observed == [
        (gpu, 0.0, 10, 11),
        ("GPU-empty", 1.0, 10, 11),
        (gpu, 1.0, 11, 12),
        ("GPU-empty", 1.0, 11, 12),
    ]
    assert [(p, v) for m, _, p, v, *_ in found if m == "proc_recording"] == [
        (5, 1.0),
        (6, 0.0),
        (5, 1.0),
        (6, 1.0),
    ]


def test_a_flood_of_intervals_is_bounded(history: History, gpu: str) -> None:
    """Per device and in all; what there is no room for is counted."""
    coverage = Coverage(history, 0)
    for device in (gpu, "GPU-second", "GPU-third"):
        for n in range(20):
            starts = np.arange(30_000, dtype=np.uint64) * np.uint64(10) + np.uint64(n * 300_000 + 1)
            coverage.add(device, starts, starts + np.uint64(5), kind=KERNEL)
    held = [sum(map(len, coverage._parts[device, 0])) for device in (gpu, "GPU-second", "GPU-third")]
    assert held == [MAX_SPANS, MAX_SPANS, 0]
    assert coverage.left_out == 3 * 600_000 - 2 * MAX_SPANS
    coverage.write(10 * SECOND, set())
    assert coverage._held == 0


@pytest.mark.parametrize("seed", range(8))
def test_busy_windows_of_random_batches(seed: int, history: History, gpu: str) -> None:
    """Batches that overlap, are out of order, touch, or span windows: as marked nanosecond by nanosecond."""
    random = np.random.default_rng(seed)
    begin, scale = 50 * WINDOW_NS, WINDOW_NS // 40  # one mark stands for so many ns
    coverage, marks, windows = Coverage(history, begin), np.zeros(400, np.bool_), 8
    for round_ in range(windows):
        for _ in range(int(random.integers(1, 4))):
            count = int(random.integers(1, 30))
            low = random.integers(40 * round_, 40 * round_ + 60, count)
            low = low if random.random() < 0.5 else np.sort(low)
            high = low + random.integers(0, 7 if random.random() < 0.9 else 40, count)
            for first, last in zip(low.tolist(), high.tolist(), strict=True):
                marks[first:last] = True
            coverage.add(
                gpu,
                (low * scale + begin).astype(np.uint64),
                (high * scale + begin).astype(np.uint64),
                kind=KERNEL,
            )
        coverage.write(begin + round_ * WINDOW_NS + SECOND, {gpu})  # of nothing that comes later
    coverage.write(begin + windows * WINDOW_NS + SECOND, {gpu})
    defs, columns = history.readings_between(0, 1 << 62)
    found = [
        round(value, 6)
        for series, value in zip(columns["series"].tolist(), columns["value"].tolist(), strict=True)
        if defs[series].metric == "gpu_kernel_busy_percent"
    ]
    assert found == [round(marks[40 * n : 40 * n + 40].mean() * 100, 6) for n in range(windows)]


def test_every_kernel_of_a_busy_device_counts(history: History, gpu: str) -> None:
    """110,000 kernels a second with a gap after each: more than 65,536 spans wait for their windows."""
    begin = 50 * WINDOW_NS
    coverage = Coverage(history, begin)
    for n in range(12):
        starts = np.arange(11_000, dtype=np.uint64) * np.uint64(9_000) + np.uint64(begin + n * 99_000_000)
        coverage.add(gpu, starts, starts + np.uint64(4_500), kind=KERNEL)
    coverage.write(begin + 5 * WINDOW_NS + SECOND, {gpu})
    defs, columns = history.readings_between(0, 1 << 62)
    kernels = [number for number, series in defs.items() if series.metric == "gpu_kernel_busy_percent"]
    busy = columns["value"][columns["series"] == kernels[0]]
    assert len(busy) == 5
    assert np.allclose(busy, 50.0, atol=0.01)
