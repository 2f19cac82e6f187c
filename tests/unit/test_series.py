"""The store: bulk appends, order, bounds, rates, and input that no sampler should send."""

from __future__ import annotations

import numpy as np
import pytest

from gpuprof.snapshots.frames import Readings, SeriesDef
from gpuprof.tui.series import EMPTY_VIEW, SeriesStore, rate

SECOND = 10**9


def readings(rows: list[tuple[int, int, int, float]]) -> Readings:
    ids, start, end, value = zip(*rows, strict=True)
    return Readings(
        np.array(ids, np.uint32), np.array(start, np.uint64), np.array(end, np.uint64), np.array(value)
    )


def store(**bounds: int) -> SeriesStore:
    made = SeriesStore(**bounds)
    made.define([SeriesDef(1, "temp_c", "GPU-a"), SeriesDef(2, "temp_c", "GPU-b")])
    made.define(SeriesDef(3, "core_busy_ns", core=0))
    return made


def test_a_frame_is_split_by_series() -> None:
    made = store()
    made.add(readings([(2, 5, 5, 50.0), (1, 1, 1, 40.0), (2, 6, 6, 51.0), (1, 3, 3, 41.0)]))
    assert made.get("temp_c", "GPU-a").value.tolist() == [40.0, 41.0]
    assert made.get("temp_c", "GPU-b").end_ns.tolist() == [5, 6]
    assert made.get("power_w", "GPU-a") is EMPTY_VIEW
    assert made.subjects("temp_c") == [("temp_c", "GPU-a", None, None), ("temp_c", "GPU-b", None, None)]
    assert made.span == (1, 6)
    assert made.has("temp_c", "GPU-b")
    assert not made.has("temp_c", "GPU-c")


def test_views_do_not_copy() -> None:
    made = store()
    made.add(readings([(1, 1, 1, 40.0)]))
    assert np.shares_memory(made.get("temp_c", "GPU-a").value, made.get("temp_c", "GPU-a").value)


def test_many_appends_keep_everything_in_order() -> None:
    made = store(max_points_per_series=1000)
    for first in range(0, 5000, 7):
        made.add(readings([(1, t, t, float(t)) for t in range(first, first + 7)]))
    view = made.get("temp_c", "GPU-a")
    last = (5000 // 7 + 1) * 7
    assert view.value.tolist() == [float(t) for t in range(last - 1000, last)]
    assert view.appended == last


def test_a_view_taken_before_stays_what_it_was() -> None:
    made = store(max_points_per_series=100)
    made.add(readings([(1, t, t, float(t)) for t in range(100)]))
    view = made.get("temp_c", "GPU-a")
    for first in range(100, 1000, 10):
        made.add(readings([(1, t, t, float(t)) for t in range(first, first + 10)]))
    assert view.value.tolist() == [float(t) for t in range(100)]


def test_late_readings_are_sorted_in_and_said_so() -> None:
    made = store()
    made.add(readings([(1, 10, 10, 1.0), (1, 30, 30, 3.0)]))
    epoch = made.get("temp_c", "GPU-a").epoch
    made.add(readings([(1, 20, 20, 2.0)]))
    view = made.get("temp_c", "GPU-a")
    assert view.value.tolist() == [1.0, 2.0, 3.0]
    assert view.epoch != epoch


def test_bounds_by_age_and_by_number() -> None:
    made = store(max_age_ns=100 * SECOND)
    for t in range(0, 400, 5):
        made.add(readings([(1, t * SECOND, t * SECOND, 1.0)]))
    assert made.span[0] >= (395 - 106) * SECOND
    made = store(max_points=500)
    for t in range(0, 4000, 10):
        made.add(readings([(1 + t // 10 % 2, u, u, 1.0) for u in range(t, t + 10)]))
    assert made.points <= 510
    assert made.span[1] == 3999


def test_a_series_that_is_gone_has_no_subject() -> None:
    made = store(max_age_ns=10 * SECOND)
    made.add(readings([(2, SECOND, SECOND, 1.0)]))
    for t in range(2, 40):
        made.add(readings([(1, t * SECOND, t * SECOND, 1.0)]))
    assert [key[1] for key in made.subjects("temp_c")] == ["GPU-a"]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_values_that_are_not_finite_are_not_readings(value: float) -> None:
    made = store()
    made.add(readings([(1, 1, 1, value)]))
    assert len(made.get("temp_c", "GPU-a")) == 0


def test_hostile_frames() -> None:
    made = store()
    made.define(SeriesDef(9, "no_such_metric"))
    made.add(
        readings(
            [(9, 1, 1, 1.0), (77, 1, 1, 1.0), (1, 9, 3, 1.0), (1, 2**64 - 1, 2**64 - 1, 1.0), (1, 2, 4, 5.0)]
        )
    )
    assert made.get("temp_c", "GPU-a").value.tolist() == [5.0]
    assert made.span == (2, 4)
    made.define([SeriesDef(id, "temp_c", f"GPU-{id}") for id in range(100, 100_000)])
    assert len(made._keys) <= 20_000
    made.add(readings([(1, 5, 6, 6.0), (99_999, 5, 6, 7.0)]))
    assert made.get("temp_c", "GPU-a").value.tolist() == [5.0, 6.0]
    assert made.get("temp_c", "GPU-99999").value.tolist() == [7.0]


def test_rate_of_a_counter() -> None:
    made = store()
    made.add(
        readings([(3, t * SECOND, t * SECOND, v) for t, v in ((0, 0), (1, 5e8), (3, 25e8), (4, 0), (5, 1e9))])
    )
    view = rate(made.get("core_busy_ns", core=0))
    assert view.value.tolist() == [5e8, 1e9, 1e9]
    assert view.start_ns.tolist() == [0, SECOND, 4 * SECOND]
    assert view.end_ns.tolist() == [SECOND, 3 * SECOND, 5 * SECOND]
    assert len(rate(EMPTY_VIEW)) == 0


def test_clear() -> None:
    made = store()
    made.add(readings([(1, 1, 1, 1.0)]))
    made.clear()
    assert made.span == (0, 0)
    assert made.subjects("temp_c") == []
