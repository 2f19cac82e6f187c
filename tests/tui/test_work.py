"""The strip of a device's work: shares and cells worked out by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from gpuprof.tui import palette
from gpuprof.tui.series import EMPTY_VIEW, SeriesView
from gpuprof.tui.timescale import TimeScale
from gpuprof.tui.widgets.braille import ALL_GLYPHS, ASCII, BRAILLE
from gpuprof.tui.widgets.surface import inks_of
from gpuprof.tui.widgets.work import WorkTime, cells, entries, gauge_shares, shares

SECOND = 10**9
NAN = float("nan")
NONE = np.full(3, NAN)
INKS = inks_of(palette.DARK, "#121212")


def view(*readings: tuple[float, float, float]) -> SeriesView:
    """Readings (start s, end s, value)."""
    start, end, value = (np.array(column) for column in zip(*readings, strict=True))
    return SeriesView((start * SECOND).astype(np.uint64), (end * SECOND).astype(np.uint64), value)


def test_a_column_has_the_mean_of_its_windows() -> None:
    readings = view((1, 1.2, 100), (1.2, 1.4, 50), (1.4, 1.6, 0), (1.6, 1.8, 30), (9, 9.2, 10))
    edges = np.array([0.8, 1.0, 1.2, 1.3, 1.6, 1.8, 3.0, 9.0, 9.2, 10]) * SECOND
    found = gauge_shares(readings, edges.astype(np.int64), 100.0)
    expected = [NAN, 1.0, 0.5, 0.5 * 1 / 3, 0.3, NAN, NAN, 0.1, NAN]
    np.testing.assert_allclose(found, expected, atol=1e-9)


def test_no_readings_no_shares() -> None:
    found = gauge_shares(EMPTY_VIEW, np.array([0, 1, 2]), 1.0)
    assert np.isnan(found).all()


def test_windows_that_overlap_count_once() -> None:
    readings = view((0, 2, 100), (1, 3, 0), (3, 4, 0))
    found = gauge_shares(readings, np.array([0, 2, 4]) * SECOND, 100.0)
    np.testing.assert_allclose(found, [1.0, 0.0])


def test_the_last_second_is_not_called_idle() -> None:
    kernel = view(*((t / 5, (t + 1) / 5, 0.0) for t in range(0, 45)))  # up to second 9
    observed = view(*((t, t + 1, 1.0) for t in range(10)))  # up to second 10
    time = shares([kernel, EMPTY_VIEW, observed, EMPTY_VIEW], TimeScale(0, SECOND // 2, 22))
    codes, _ = cells(time, 1, BRAILLE, INKS)
    assert "".join(map(chr, codes[0])) == "·" * 18 + " " * 4


@pytest.mark.parametrize("glyphs", ALL_GLYPHS.values())
def test_cells_of_one_row(glyphs: object) -> None:
    time = WorkTime(
        np.array([NAN, 0.0, 0.0, 0.0, 1.0, 0.5]),
        np.array([NAN, 0.0, 0.0, 0.7, 0.2, NAN]),
        np.array([NAN, 0.0, 1.0, 1.0, 0.0, NAN]),
        np.full(6, NAN),
    )
    codes, color = cells(time, 1, glyphs, INKS)  # type: ignore[arg-type]
    text = "".join(map(chr, codes[0]))
    shades = "".join(map(chr, glyphs.shades))  # type: ignore[attr-defined]
    assert text == glyphs.work[:4] + shades[-1] + shades[4]  # type: ignore[attr-defined]
    assert color[0, 3:].tolist() == [INKS.gpu_copy, INKS.gpu_kernel, INKS.gpu_kernel]


def test_cells_of_two_rows_are_filled_from_below() -> None:
    time = WorkTime(np.array([0.75, 0.25, 0.0]), np.array([0.0, 0.5, 1.0]), np.array([1.0, 0.0, 1.0]), NONE)
    codes, _ = cells(time, 2, BRAILLE, INKS)
    assert ["".join(map(chr, row)) for row in codes] == ["▄▒▒", "█▄▒"]
    time = WorkTime(np.array([0.5, 0.5]), np.array([0.0, 0.0]), np.array([1.0, 0.0]), NONE[:2])
    codes, _ = cells(time, 2, ASCII, INKS)
    assert ["".join(map(chr, row)) for row in codes] == ["_?", "##"]


def test_communication_is_the_upper_part_of_the_kernels() -> None:
    time = WorkTime(
        np.array([1.0, 1.0, 0.5, 0.5, 0.9]),
        np.zeros(5),
        np.ones(5),
        np.array([1.0, 0.5, 0.5, 0.0, 0.01]),
    )
    codes, color = cells(time, 2, BRAILLE, INKS)
    assert ["".join(map(chr, row)) for row in codes] == ["░░··▇", "░█░██"]
    assert color[0, 0] == INKS.gpu_comm
    assert color[1, 1] == INKS.gpu_kernel
    one_row, _ = cells(time, 1, BRAILLE, INKS)
    assert "".join(map(chr, one_row[0])) == "░░░▄█"


def test_the_legend_names_communication_only_where_there_was_some() -> None:
    time = WorkTime(np.array([0.5]), np.array([0.0]), np.array([1.0]), np.array([0.2]))
    found = entries(time, cast(Any, SimpleNamespace(palette=palette.DARK, glyphs=BRAILLE)), "")
    assert [(entry.label, entry.value) for entry in found if entry.label == "communication"] == [
        ("communication", "20 %")
    ]
    silent = WorkTime(time.kernel, time.copy, time.observed, np.array([NAN]))
    found = entries(silent, cast(Any, SimpleNamespace(palette=palette.DARK, glyphs=BRAILLE)), "")
    assert "communication" not in [entry.label for entry in found]
