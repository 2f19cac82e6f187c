"""The renderer against dots worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from gpuprof.tui.widgets.braille import (
    ASCII,
    BLOCKS,
    BRAILLE,
    Raster,
    default_glyphs,
    sparkline,
    spread_color,
    to_bits,
    to_dot_row,
    to_dot_rows,
    to_runs,
)


def text(bits: np.ndarray, glyphs=BRAILLE) -> list[str]:
    return ["".join(chr(code) for code in row) for row in glyphs.table[bits]]


def rows(*values: int) -> np.ndarray:
    return np.array(values, np.int16)


class TestDots:
    def test_each_dot_of_a_cell_is_the_unicode_dot_at_its_place(self) -> None:
        # U+2800 + 2^(n-1) for dot n; dots 1 2 3 7 run down the left, 4 5 6 8 down the right.
        left = [0x01, 0x02, 0x04, 0x40]
        right = [0x08, 0x10, 0x20, 0x80]
        for row in range(4):
            assert text(to_bits(rows(row, 1), rows(row, 0), 1, BRAILLE)) == [chr(0x2800 + left[row])]
            assert text(to_bits(rows(1, row), rows(0, row), 1, BRAILLE)) == [chr(0x2800 + right[row])]

    def test_a_column_of_dots_across_two_cells(self) -> None:
        # Dot rows 2..5 on the left: dots 3 and 7 of the upper cell, dots 1 and 2 of the lower one.
        assert text(to_bits(rows(2, 1), rows(5, 0), 2, BRAILLE)) == [
            chr(0x2800 + 0x44),
            chr(0x2800 + 0x03),
        ]

    def test_full_and_empty_cells(self) -> None:
        assert text(to_bits(rows(0, 0, 1, 1), rows(3, 3, 0, 0), 1, BRAILLE)) == ["⣿ "]

    def test_many_lines_at_once_are_the_same_as_one_by_one(self) -> None:
        random = np.random.default_rng(3)
        upper = random.integers(0, 24, (5, 60)).astype(np.int16)
        lower = random.integers(0, 24, (5, 60)).astype(np.int16)
        together = to_bits(upper, lower, 6, BRAILLE)
        for line in range(5):
            assert (together[line] == to_bits(upper[line], lower[line], 6, BRAILLE)).all()

    def test_against_a_dot_by_dot_drawing(self) -> None:
        random = np.random.default_rng(4)
        upper = random.integers(0, 12, 20).astype(np.int16)
        lower = random.integers(0, 12, 20).astype(np.int16)
        order = [[0x01, 0x02, 0x04, 0x40], [0x08, 0x10, 0x20, 0x80]]
        expected = [[0x2800] * 10 for _ in range(3)]
        for x in range(20):
            for y in range(upper[x], lower[x] + 1):
                expected[y // 4][x // 2] |= order[x % 2][y % 4]
        wanted = ["".join(" " if code == 0x2800 else chr(code) for code in row) for row in expected]
        assert text(to_bits(upper, lower, 3, BRAILLE)) == wanted

    @pytest.mark.parametrize(("glyphs", "wanted"), [(BLOCKS, ["▀▄█ "]), (ASCII, ["'.: "])])
    def test_fallbacks(self, glyphs, wanted) -> None:
        assert text(to_bits(rows(0, 1, 0, 1), rows(0, 1, 1, 0), 1, glyphs), glyphs) == wanted


class TestValuesToDots:
    def test_top_is_row_0_and_bottom_the_last(self) -> None:
        values = np.array([0.0, 50.0, 100.0])
        upper, lower = to_dot_rows(values, values, 0.0, 100.0, 21)
        assert upper.tolist() == lower.tolist() == [20, 10, 0]

    def test_an_extent_covers_lowest_to_highest(self) -> None:
        upper, lower = to_dot_rows(np.array([25.0]), np.array([75.0]), 0.0, 100.0, 5)
        assert (upper[0], lower[0]) == (1, 3)

    def test_what_lies_outside_is_drawn_at_the_edge(self) -> None:
        values = np.array([-1e300, 1e300, np.inf, -np.inf])
        upper, lower = to_dot_rows(values, values, 0.0, 1.0, 8)
        assert upper.tolist() == lower.tolist() == [7, 0, 0, 7]

    def test_nothing_is_empty_and_never_zero(self) -> None:
        nothing = np.array([np.nan])
        upper, lower = to_dot_rows(nothing, nothing, 0.0, 1.0, 8)
        assert upper[0] > lower[0]
        assert (to_bits(upper.repeat(2), lower.repeat(2), 2, BRAILLE) == 0).all()

    def test_a_flat_scale_does_not_divide_by_zero(self) -> None:
        upper, _ = to_dot_rows(np.array([5.0]), np.array([5.0]), 5.0, 5.0, 8)
        assert 0 <= upper[0] < 8
        assert to_dot_row(5.0, 5.0, 5.0, 8) == 0

    def test_sparkline_has_eight_levels_and_gaps(self) -> None:
        values = np.repeat(np.array([0.0, 12.5, 50.0, 100.0, np.nan]), 2)
        blocks = "".join(map(chr, sparkline(values, values, 0.0, 100.0, BRAILLE)))
        assert blocks == "▁▂▅█ "


class TestLayers:
    def test_the_last_line_gives_a_cell_its_colour_and_all_lines_their_dots(self) -> None:
        raster = Raster(1, 1)
        first = to_bits(rows(0, 0), rows(0, 0), 1, BRAILLE)
        second = to_bits(rows(3, 3), rows(3, 3), 1, BRAILLE)
        raster.lines(np.stack([first, second]), [5, 7])
        assert text(raster.bits) == [chr(0x2800 + 0x01 + 0x08 + 0x40 + 0x80)]
        assert raster.color.tolist() == [[7]]

    def test_lines_hide_what_lies_below_them(self) -> None:
        raster = Raster(1, 2)
        raster.horizontal(0, 1)
        raster.lines(to_bits(rows(3, 3, 1, 1), rows(3, 3, 0, 0), 1, BRAILLE)[None], [2])
        assert text(raster.bits) == ["⣀⠉"]
        assert raster.color.tolist() == [[2, 1]]


class TestRuns:
    def test_runs_end_where_attributes_change(self) -> None:
        codes = np.array([[ord(c) for c in "aabbc"], [ord(c) for c in "xxxxx"]], np.uint32)
        attributes = np.array([[1, 1, 2, 2, 1], [3, 3, 3, 3, 3]], np.uint16)
        assert to_runs(codes, attributes) == [[("aa", 1), ("bb", 2), ("c", 1)], [("xxxxx", 3)]]

    def test_blanks_do_not_cut_a_run(self) -> None:
        color = np.array([[4, 9, 9, 4, 2]], np.uint8)
        inked = np.array([[True, False, False, True, True]])
        assert spread_color(color, inked).tolist() == [[4, 4, 4, 4, 2]]

    def test_rows_do_not_leak_into_each_other(self) -> None:
        color = np.array([[1, 1], [2, 3]], np.uint8)
        inked = np.array([[True, True], [False, True]])
        assert spread_color(color, inked).tolist() == [[1, 1], [2, 3]]

    def test_nothing(self) -> None:
        assert to_runs(np.empty((0, 5), np.uint32), np.empty((0, 5), np.uint16)) == []


def test_glyphs_by_terminal() -> None:
    assert default_glyphs({}, "utf-8") is BRAILLE
    assert default_glyphs({"TERM": "linux"}, "UTF-8") is BLOCKS
    assert default_glyphs({}, "ascii") is ASCII
    assert default_glyphs({"GPUPROF_GLYPHS": "ascii"}, "utf-8") is ASCII
    assert default_glyphs({"GPUPROF_GLYPHS": "nonsense"}, "utf-8") is BRAILLE
