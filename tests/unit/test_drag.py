"""What a drag of the mouse selects: from press to release, at the edges of a range, and a mere click."""

from __future__ import annotations

import pytest

from gpuprof.tui.widgets.drag import Drag
from gpuprof.tui.widgets.viewport import Viewport

SECOND = 10**9


@pytest.fixture
def view() -> Viewport:
    """A minute in 60 columns, the newest reading at its end."""
    view = Viewport()
    view.columns, view.window_ns, view.newest_ns = 60, 60 * SECOND, 1000 * SECOND
    return view


def pinned_columns(view: Viewport) -> tuple[int, int]:
    assert view.pinned is not None
    return view.scale.column(view.pinned[0]), view.scale.column(view.pinned[1] - 1)


@pytest.mark.parametrize(("start", "end"), [(10, 20), (20, 10)])
def test_a_drag_selects_both_columns_and_all_between(view: Viewport, start: int, end: int) -> None:
    drag = Drag(view)
    drag.press(start)
    assert drag.is_held
    assert not drag.move(start)
    assert drag.move(15)
    assert drag.move(end)
    assert not drag.move(end)
    assert drag.release() is None
    assert not drag.is_held
    view.pin()
    assert pinned_columns(view) == (10, 20)


def test_a_press_without_a_move_is_a_click(view: Viewport) -> None:
    drag = Drag(view)
    drag.press(10)
    assert drag.release() == 10
    assert (view.selecting, view.pinned) == (False, None)


def test_a_click_ends_the_range_that_the_keys_began(view: Viewport) -> None:
    view.begin(10)
    drag = Drag(view)
    drag.press(20)
    assert drag.release() is None
    view.pin()
    assert pinned_columns(view) == (10, 20)


@pytest.mark.parametrize(("near", "to", "found"), [(9, 5, (5, 20)), (11, 5, (5, 20)), (21, 30, (10, 30))])
def test_near_an_edge_of_the_pinned_range_that_edge_moves(
    view: Viewport, near: int, to: int, found: tuple[int, int]
) -> None:
    drag = Drag(view)
    drag.press(10)
    drag.move(20)
    drag.release()
    view.pin()
    drag.press(near)
    assert drag.move(to)
    assert drag.release() is None
    view.pin()
    assert pinned_columns(view) == found


def test_nothing_moves_while_no_button_is_down(view: Viewport) -> None:
    drag = Drag(view)
    assert not drag.move(10)
    assert drag.release() is None
    assert not view.selecting
