"""The mapping of time to columns and back, and what the charts look at."""

from __future__ import annotations

from itertools import pairwise

import pytest

from gpuprof.tui.timescale import TimeScale, duration_text, wall_text, zoomed
from gpuprof.tui.widgets.viewport import Viewport

SECOND = 10**9


class TestTimeScale:
    @pytest.mark.parametrize("window_s", [0.001, 1, 7, 60, 3600])
    @pytest.mark.parametrize("columns", [1, 17, 148])
    def test_columns_and_times_are_inverse(self, window_s: float, columns: int) -> None:
        scale = TimeScale.ending_at(123_456_789_012_345, int(window_s * SECOND), columns)
        for column in range(columns):
            start = scale.time(column)
            assert scale.column(start) == scale.column(start + scale.cell_ns - 1) == column
        assert 0 <= scale.column(123_456_789_012_344) < columns

    def test_scrolling_moves_whole_columns(self) -> None:
        now, window, columns = 5_000 * SECOND, 60 * SECOND, 100
        before = TimeScale.ending_at(now, window, columns)
        for later in range(0, 10 * SECOND, SECOND // 7):
            after = TimeScale.ending_at(now + later, window, columns)
            instant = now - 3 * SECOND
            assert before.column(instant) - after.column(instant) == after.first - before.first

    def test_columns_of_a_range(self) -> None:
        scale = TimeScale(100, 10, 20)
        assert scale.columns_of(1000, 1010) == (0, 1)
        assert scale.columns_of(1009, 1011) == (0, 2)
        assert scale.columns_of(0, 1000) == (0, 0)
        assert scale.columns_of(1200, 1300) == (20, 20)
        assert scale.columns_of(0, 9999) == (0, 20)

    def test_ticks_are_round_and_apart(self) -> None:
        for window_s in (1, 10, 60, 600, 7200):
            scale = TimeScale.ending_at(777_777 * SECOND, window_s * SECOND, 148)
            ticks = scale.ticks(0)
            assert 2 <= len(ticks) <= 11
            assert all(later - tick >= 13 for (tick, _), (later, _) in pairwise(ticks))

    def test_texts(self) -> None:
        assert duration_text(3_700_000_000) == "3.7 s"
        assert duration_text(2 * SECOND) == "2 s"
        assert duration_text(250_000_000) == "250 ms"
        assert duration_text(125 * SECOND) == "2 min 5 s"
        assert duration_text(3780 * SECOND) == "1 h 3 min"
        assert wall_text(11 * SECOND + 250_000_000, 10**8).endswith(":11.2")
        assert wall_text(2**63) != ""

    def test_zoom_steps_and_ends(self) -> None:
        assert zoomed(60 * SECOND, 1) == 120 * SECOND
        assert zoomed(60 * SECOND, -1) == 30 * SECOND
        assert zoomed(61 * SECOND, -1) == 60 * SECOND
        assert zoomed(86400 * SECOND, 1) == 86400 * SECOND


class TestViewport:
    def view(self) -> Viewport:
        view = Viewport()
        view.columns, view.oldest_ns, view.newest_ns = 120, 1000 * SECOND, 2000 * SECOND
        return view

    @pytest.mark.parametrize("column", [0, 30, 119])
    def test_zoom_keeps_the_instant_under_the_pointer(self, column: int) -> None:
        view = self.view()
        view.stand(1500 * SECOND)
        scale = view.scale
        instant = scale.time(column) + scale.cell_ns // 2
        view.zoom(-1, column)
        assert view.scale.column(instant) == column
        for steps in (
            -1,
            1,
            -1,
        ):  # the pointer means the middle of its column, so that half a column may be lost
            view.zoom(steps, column)
            assert abs(view.scale.column(instant) - column) <= 1

    def test_a_range_is_where_it_was_after_zooming(self) -> None:
        view = self.view()
        view.begin(20, 40)
        pinned = view.pin()
        assert pinned is not None
        for steps in (2, -4, 1):
            view.zoom(steps, 30)
        assert view.range == pinned
        assert view.scale.cell_ns * 21 != pinned[1] - pinned[0]

    def test_a_range_may_be_dragged_to_the_left(self) -> None:
        view = self.view()
        scale = view.scale
        view.begin(50, 10)
        assert view.range == (scale.time(10), scale.time(51))

    def test_the_window_stands_while_selecting_and_follows_afterwards(self) -> None:
        view = self.view()
        view.begin(50)
        before = view.scale
        view.newest_ns += 5 * SECOND
        assert view.scale == before
        view.pin()
        assert view.scale.end_ns >= view.newest_ns
        assert view.live

    def test_panning_left_stops_and_right_resumes(self) -> None:
        view = self.view()
        view.pan(-10)
        assert not view.live
        view.pan(5)
        assert not view.live
        view.pan(20)
        assert view.live

    def test_the_cursor_drags_the_window_along(self) -> None:
        view = self.view()
        view.begin(2)
        view.put_cursor(2)
        view.move_cursor(-10)
        assert view.cursor_column == 0
        assert view.range is not None
        assert view.range[1] - view.range[0] == 11 * view.scale.cell_ns

    def test_nothing_is_known_yet(self) -> None:
        view = Viewport()
        view.fit()
        view.pan(-5)
        view.zoom(-3, 0)
        view.move_cursor(-7)
        view.begin(0)
        view.pin()
        assert view.scale.columns == 1
