"""Readings to columns: windows, joins, gaps, spikes; the incremental way gives what the whole one gives."""

from __future__ import annotations

import numpy as np
import pytest

from gpuprof.tui.series import SeriesView
from gpuprof.tui.widgets.envelope import ColumnCache, envelope, usual_gap_ns
from gpuprof.tui.widgets.lanes import ShareCache, busy_shares, group


def view(*readings: tuple[int, int, float], appended: int | None = None) -> SeriesView:
    start, end, value = zip(*readings, strict=True) if readings else ((), (), ())
    return SeriesView(
        np.array(start, np.uint64),
        np.array(end, np.uint64),
        np.array(value, np.float64),
        len(value) if appended is None else appended,
    )


def shown(values: np.ndarray) -> list[float | None]:
    return [None if np.isnan(value) else float(value) for value in values]


class TestEnvelope:
    def test_a_window_is_drawn_over_its_window_and_nowhere_else(self) -> None:
        low, high = envelope(view((20, 50, 7.0)), 0, 8, 10, 5)
        assert shown(low) == shown(high) == [None, None, 7.0, 7.0, 7.0, None, None, None]

    def test_neighbouring_windows_make_a_step(self) -> None:
        low, high = envelope(view((0, 20, 1.0), (20, 40, 5.0)), 0, 4, 10, 5)
        # The step itself stands in the column where the earlier window ends.
        assert shown(low) == [1.0, 1.0, 5.0, 5.0]
        assert shown(high) == [1.0, 5.0, 5.0, 5.0]

    def test_instants_are_joined_by_a_line(self) -> None:
        low, high = envelope(view((5, 5, 0.0), (45, 45, 4.0)), 0, 5, 10, 50)
        assert high == pytest.approx([0.5, 1.5, 2.5, 3.5, 4.0])
        assert low == pytest.approx([0.0, 0.5, 1.5, 2.5, 3.5])

    def test_a_pause_is_a_gap_and_not_zero(self) -> None:
        low, high = envelope(view((5, 5, 3.0), (75, 75, 3.0)), 0, 9, 10, 50)
        assert shown(high) == [3.0, *[None] * 6, 3.0, None]
        assert shown(low) == shown(high)

    def test_spikes_survive_any_zoom(self) -> None:
        times = np.arange(10_000, dtype=np.uint64) * 10
        values = np.zeros(10_000)
        values[4_321] = 99.0
        values[7_777] = -5.0
        low, high = envelope(SeriesView(times, times, values), 0, 10, 10_000, 50)
        assert high.tolist() == [0, 0, 0, 0, 99, 0, 0, 0, 0, 0]
        assert low.tolist() == [0, 0, 0, 0, 0, 0, 0, -5, 0, 0]

    def test_what_is_out_of_sight_still_leads_the_line_into_it(self) -> None:
        low, high = envelope(view((0, 0, 0.0), (100, 100, 10.0)), 4, 2, 10, 200)
        assert low == pytest.approx([4.0, 5.0])
        assert high == pytest.approx([5.0, 6.0])

    def test_overlapping_windows(self) -> None:
        low, high = envelope(view((0, 30, 1.0), (10, 40, 2.0), (35, 50, 3.0)), 0, 5, 10, 5)
        assert shown(high)[:2] == [1.0, 1.0]
        assert high[4] == 3.0
        assert not np.isnan(low).any()

    def test_empty(self) -> None:
        low, high = envelope(view(), 0, 3, 10, 5)
        assert shown(low) == shown(high) == [None, None, None]
        assert len(envelope(view((1, 2, 3.0)), 0, 0, 10, 5)[0]) == 0

    def test_the_gap_follows_the_pace_of_the_readings(self) -> None:
        def paced(interval_ns: int) -> SeriesView:
            return view(*[(i * interval_ns, i * interval_ns, 1.0) for i in range(10)])

        assert usual_gap_ns(paced(100_000_000)) == 350_000_000
        assert usual_gap_ns(paced(1_000_000_000)) == 3_500_000_000
        assert usual_gap_ns(paced(1_000_000)) == 200_000_000


class TestColumnCache:
    @pytest.mark.parametrize("seed", range(12))
    def test_incremental_equals_whole(self, seed: int) -> None:
        random = np.random.default_rng(seed)
        counter = bool(seed % 2)
        total = 400
        steps = random.integers(60, 140, total) * 1_000_000
        steps[random.integers(0, total, 4)] += 3_000_000_000
        end = np.cumsum(steps).astype(np.uint64) + np.uint64(10**9)
        start = end if seed % 3 else end - np.uint64(50_000_000)
        value = np.cumsum(random.random(total)) if counter else random.random(total)
        cache = ColumnCache(counter=counter)
        column_ns = int(random.integers(20, 900)) * 1_000_000
        seen = 40
        while seen < total:
            part = SeriesView(start[:seen], end[:seen], value[:seen], seen, 0)
            first = int(end[seen - 1]) // column_ns - 99
            low, high = cache.update(part, first, 100, column_ns)
            whole = ColumnCache(counter=counter)
            whole.gap_ns = cache.gap_ns
            expected = whole._compute(part, first, 100, column_ns)
            np.testing.assert_allclose(low, expected[0])
            np.testing.assert_allclose(high, expected[1])
            seen += int(random.integers(0, 7))

    def test_late_readings_that_were_sorted_in_are_drawn(self) -> None:
        cache = ColumnCache()
        readings = [(i * 10**8, i * 10**8, 1.0) for i in range(100)]
        cache.update(view(*readings), 0, 100, 10**8)
        readings.insert(50, (4_950_000_000, 4_950_000_000, 9.0))
        late = view(*readings)
        late = SeriesView(late.start_ns, late.end_ns, late.value, 101, epoch=1)
        _, high = cache.update(late, 0, 100, 10**8)
        assert high.max() == 9.0

    def test_a_counter_that_restarts_leaves_a_gap(self) -> None:
        cache = ColumnCache(counter=True)
        values = [0, 1e8, 2e8, 3e8, 0, 1e8, 2e8]
        low, high = cache.update(
            view(*[(i * 10**8, i * 10**8, v) for i, v in enumerate(values)]), 0, 7, 10**8
        )
        assert low[:3] == pytest.approx([1e9] * 3)
        assert (high[~np.isnan(high)] >= 0).all()


class TestShares:
    def test_a_share_is_exact_where_readings_meet_the_edges(self) -> None:
        times = np.array([0, 100, 200, 300], np.int64)
        totals = np.array([[0.0, 25.0, 125.0, 125.0]])
        edges = np.array([0, 100, 200, 300, 400], np.int64)
        assert shown(busy_shares(times, totals, edges, 500)[0]) == [0.25, 1.0, 0.0, None]

    def test_a_pause_was_not_observed(self) -> None:
        times = np.array([0, 10, 20, 500, 510], np.int64)
        shares = busy_shares(times, np.array([[0.0, 10, 20, 20, 30]]), np.arange(0, 520, 10), 100)[0]
        assert shown(shares[:2]) == [1.0, 1.0]
        assert np.isnan(shares[3:49]).all()

    def test_an_idle_core_is_zero_and_an_unseen_one_is_not(self) -> None:
        cache = ShareCache()
        times = [(i * 10**8, i * 10**8, 5.0) for i in range(20)]
        shares = cache.update([view(*times), view()], 0, 4, 5 * 10**8)
        assert shown(shares[0]) == [0.0, 0.0, 0.0, 0.0]
        assert shown(shares[1]) == [None] * 4

    @pytest.mark.parametrize("together", [True, False])
    def test_incremental_equals_whole(self, together: bool) -> None:
        random = np.random.default_rng(5)
        end = np.cumsum(random.integers(80, 120, 300) * 1_000_000).astype(np.uint64)
        values = np.cumsum(random.random((4, 300)) * 80_000_000, axis=1)
        cache = ShareCache()
        cell = 333_000_000
        for seen in range(50, 300, 7):
            cut = [seen if together else seen - core for core in range(4)]
            counters = [SeriesView(end[:n], end[:n], values[core, :n], n) for core, n in enumerate(cut)]
            first = int(end[seen - 1]) // cell - 39
            shares = cache.update(counters, first, 40, cell)
            for core, counter in enumerate(counters):
                edges = np.arange(first, first + 41) * cell
                whole = busy_shares(
                    counter.end_ns.astype(np.int64), counter.value[None], edges, cache._gap_ns
                )
                np.testing.assert_allclose(shares[core], whole[0], rtol=1e-9)

    def test_groups_keep_the_busiest(self) -> None:
        shares = np.zeros((128, 3))
        shares[77, 1] = 1.0
        shares[:16, 2] = np.nan
        mean, highest, members = group(shares, 8)
        assert members[0] == (0, 15)
        assert members[4] == (64, 79)
        assert mean[4, 1] == 1 / 16
        assert highest[4, 1] == 1.0
        assert np.isnan(mean[0, 2])
