"""Unions, sums and gaps against the cases and against a plain count of nanoseconds."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpuprof.snapshots import gaps
from gpuprof.snapshots.gaps import EMPTY, Spans, shares, union

DATA = Path(__file__).parent / "data"
UNION = json.loads((DATA / "union_and_sum.json").read_text())
HOST = json.loads((DATA / "host_range_is_not_the_copy.json").read_text())


def random_intervals(rng: random.Random, count: int, reach: int = 300) -> list[tuple[int, int]]:
    found = []
    for _ in range(count):
        start = rng.randrange(reach)
        found.append((start, start + rng.choice([0, 1, rng.randrange(10), rng.randrange(40)])))
    return found


def columns(intervals: list[tuple[int, int]]) -> tuple[Any, Any]:
    array = np.array(intervals, np.uint64).reshape(-1, 2)
    return array[:, 0], array[:, 1]


def instants(intervals: list[tuple[int, int]]) -> set[int]:
    """Return every nanosecond that some interval covers."""
    return {ns for start, end in intervals for ns in range(start, end)}


def runs(covered: set[int]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for ns in sorted(covered):
        if found and found[-1][1] == ns:
            found[-1] = (found[-1][0], ns + 1)
        else:
            found.append((ns, ns + 1))
    return found


@pytest.mark.parametrize("case", UNION["ranges"], ids=lambda case: str(case["range"]))
def test_union_sum_and_gaps_of_the_case(case: dict[str, Any]) -> None:
    start, end = columns([(start, end) for _, start, end in UNION["intervals_ns"]])
    low, high = case["range"]
    busy = union(start, end)
    assert int(gaps.lengths(start, end, low, high).sum()) == case["sum"]
    assert busy.clipped(low, high).total_ns == case["union"]
    assert busy.gaps(low, high).pairs() == [tuple(gap) for gap in case["gaps"]]


def test_a_host_range_is_not_the_copy_that_it_submitted() -> None:
    ns = 1_000_000
    host = (round(HOST["host_range"]["start"] * ns), round(HOST["host_range"]["end"] * ns))
    end = round(HOST["copy"]["end"] * ns)
    copy = union([end - round(HOST["copy"]["duration"] * ns)], [end])
    expected = {name: round(value * ns) for name, value in HOST["expected"].items()}
    assert host[1] - host[0] == expected["host_range_length"]
    assert copy.pairs()[0][0] == expected["copy_start"]
    assert end - host[1] == expected["copy_outlives_range_by"]
    observed = union([0], [end])
    idle = shares(*host, copy, observed).idle_ns
    assert idle == expected["device_idle_before_copy_in_range"]


@pytest.mark.parametrize("seed", range(60))
def test_sets_are_what_a_plain_count_gives(seed: int) -> None:
    rng = random.Random(seed)
    left, right = (random_intervals(rng, rng.choice([0, 1, 5, 40])) for _ in range(2))
    a, b = union(*columns(left)), union(*columns(right))
    in_a, in_b = instants(left), instants(right)
    low, high = sorted(rng.randrange(-20, 360) for _ in range(2))
    window = set(range(low, high))
    assert a.pairs() == runs(in_a)
    assert a.total_ns == len(in_a)
    assert a.clipped(low, high).pairs() == runs(in_a & window)
    assert a.gaps(low, high).pairs() == runs(window - in_a)
    assert a.both(b).pairs() == runs(in_a & in_b)
    assert a.minus(b).pairs() == runs(in_a - in_b)
    assert a.joined(b).pairs() == runs(in_a | in_b)
    times = list(range(-5, 360))
    assert a.holds(times).tolist() == [ns in in_a for ns in times]
    assert a.before(times).tolist() == [sum(ns < time for ns in in_a) for time in times]
    start, end = columns(right)
    assert a.overlap(start, end).tolist() == [len(in_a & set(range(*pair))) for pair in right]
    edges = sorted(rng.randrange(360) for _ in range(8))
    assert a.in_windows(edges).tolist() == [
        len(in_a & set(range(*pair))) for pair in itertools.pairwise(edges)
    ]
    assert int(gaps.lengths(start, end, low, high).sum()) == sum(
        len(set(range(*pair)) & window) for pair in right
    )


@pytest.mark.parametrize("seed", range(20))
def test_busy_idle_and_not_observed_add_up(seed: int) -> None:
    rng = random.Random(seed)
    busy, observed = random_intervals(rng, 20), random_intervals(rng, 8)
    low, high = sorted(rng.randrange(360) for _ in range(2))
    found = shares(low, high, union(*columns(busy)), union(*columns(observed)))
    window, in_busy, in_observed = set(range(low, high)), instants(busy), instants(observed)
    assert found.busy_ns == len(window & in_busy)
    assert found.idle_ns == len((window - in_busy) & in_observed)
    assert found.unobserved_ns == len(window - in_busy - in_observed)


def test_odd_ranges_and_instants() -> None:
    one = union([5, 5, 9], [7, 5, 9])
    assert one.pairs() == [(5, 7)]
    for low, high in ((7, 5), (6, 6), (9, 9)):
        assert one.gaps(low, high).pairs() == []
        assert one.clipped(low, high).pairs() == []
    assert one.gaps(-(1 << 63), (1 << 63) - 1).total_ns == (1 << 63) - 2
    assert EMPTY.both(one) is EMPTY.minus(one)
    assert len(EMPTY.holds([1, 2])) == 2
    assert union(np.array([1, 1 << 63], np.uint64), np.array([2, (1 << 64) - 1], np.uint64)).pairs() == [
        (1, 2)
    ]
    assert isinstance(union([], []), Spans)
