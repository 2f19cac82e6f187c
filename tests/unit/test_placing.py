"""Rows for charts and tree, and where the process table stands, for screens of many sizes."""

from __future__ import annotations

import pytest

from gpuprof.tui.screens.placing import LEAST_CHART_ROWS, LEAST_TREE_ROWS, Placing


def test_charts_and_tree_share_what_is_left() -> None:
    places = Placing().places(80, 40, 3)  # a row is the footer's: 36 are left
    assert (places.chart_rows, places.has_legend) == (18, True)


@pytest.mark.parametrize("height", range(1, 80))
def test_the_tree_keeps_its_rows_whatever_the_share_and_charts_never_vanish(height: int) -> None:
    placing = Placing()
    placing.give_charts(20)
    assert placing.chart_share == 0.9
    rows = placing.places(80, height, 3).chart_rows
    assert rows >= 1
    if height >= 3 + 1 + LEAST_CHART_ROWS + LEAST_TREE_ROWS:
        assert height - 4 - rows >= LEAST_TREE_ROWS
    placing.give_charts(-20)
    assert placing.chart_share == 0.1
    assert 1 <= placing.places(80, height, 3).chart_rows <= max(rows, LEAST_CHART_ROWS)


@pytest.mark.parametrize(
    ("width", "turns"),
    [
        (200, ["alone", "none", "beside", "alone"]),
        (120, ["beside", "alone", "none", "beside"]),
        (80, ["alone", "none", "alone", "none"]),
    ],
)
def test_the_table_goes_round_the_places_that_there_are(width: int, turns: list[str]) -> None:
    placing = Placing()
    found = []
    for _ in turns:
        placing.next_table(width)
        found.append(placing.table)
    assert found == turns


@pytest.mark.parametrize(
    ("table", "width", "beside", "alone"),
    [
        ("auto", 129, False, False),
        ("auto", 130, True, False),
        ("beside", 109, False, False),
        ("beside", 110, True, False),
        ("alone", 200, False, True),
        ("none", 200, False, False),
    ],
)
def test_where_the_table_stands(table: str, width: int, beside: bool, alone: bool) -> None:
    places = Placing(table).places(width, 40, 3)  # type: ignore[arg-type]
    assert (places.beside, places.alone) == (beside, alone)
    assert places.table_width == ("1fr" if alone else min(84, max(50, width * 3 // 8)))
