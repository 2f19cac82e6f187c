"""The highest threshold of a time, against the plain maximum."""

from __future__ import annotations

import random

from gpuprof.sampler.wait_peaks import MAX_KEYS, MAX_STEPS, Peaks


def test_the_highest_value_that_held_since() -> None:
    peaks = Peaks()
    for now_ns, value_ns in ((10, 5), (20, 40), (30, 20), (40, 20), (50, 3)):
        peaks.note(7, value_ns, now_ns)
    peaks.note(8, 1, 50)
    assert peaks.since(0) == {7: 40, 8: 1}
    assert peaks.since(20) == {7: 40, 8: 1}
    assert peaks.since(21) == {7: 20, 8: 1}
    assert peaks.since(41) == {7: 3, 8: 1}
    assert peaks.since(51) == {}


def test_it_is_the_maximum_of_all_values_of_the_time() -> None:
    rng = random.Random(1)
    for _ in range(50):
        values = [rng.randrange(1, 30) for _ in range(60)]
        first = rng.randrange(60)
        peaks = Peaks()
        for now_ns, value_ns in enumerate(values):
            peaks.note(0, value_ns, now_ns)
        assert peaks.since(first) == {0: max(values[first:])}


def test_it_is_bounded_and_never_too_low() -> None:
    peaks = Peaks()
    for step in range(10 * MAX_STEPS):  # each lower than the one before
        peaks.note(3, 10_000 - step, step)
    assert peaks.since(0) == {3: 10_000}
    for first in range(0, 10 * MAX_STEPS, 17):
        assert peaks.since(first)[3] >= 10_000 - first
    for key in range(1, 2 * MAX_KEYS):
        peaks.note(key, key, 10_000)
    found = peaks.since(10_000)
    assert len(found) <= MAX_KEYS + 1
    assert found[0] == 2 * MAX_KEYS - 1  # those without a place are told of with all others
