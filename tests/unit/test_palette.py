"""Colours: told apart, readable, and the same from run to run."""

from __future__ import annotations

import pytest
from rich.color import Color, ColorSystem

from gpuprof.tui.palette import ANSI16, DARK, LIGHT, binary_color, choose


class TestPalette:
    def test_binaries_keep_their_colour(self) -> None:
        # CRC-32, not hash(): the same in every process.
        assert binary_color("libfoo.so") == binary_color("libfoo.so")
        assert binary_color("libtorch_cpu.so.2") == binary_color("libtorch_cuda.so")
        assert binary_color("[kernel]") == DARK.kernel
        assert binary_color("") == DARK.unknown
        assert len({binary_color(f"lib{n}.so") for n in range(200)}) > 8

    @pytest.mark.parametrize("palette", [DARK, LIGHT])
    def test_256_colours_keep_lines_and_backgrounds_apart(self, palette) -> None:
        def reduced(color: str) -> int | None:
            return Color.parse(color).downgrade(ColorSystem.EIGHT_BIT).number

        assert len({reduced(color) for color in palette.lines}) == len(palette.lines)
        assert len({reduced(palette.background), reduced(palette.selection), reduced(palette.cursor)}) == 3

    def test_sixteen_colours(self) -> None:
        assert choose(color_system="standard") is ANSI16
        assert len(set(ANSI16.lines)) == len(ANSI16.lines)
        for color in (*ANSI16.lines, *ANSI16.heat, ANSI16.selection):
            assert Color.parse(color).number < 16
        assert ANSI16.tinted("default", 0) == "default"

    @pytest.mark.parametrize("palette", [DARK, LIGHT])
    def test_text_and_lines_can_be_read(self, palette) -> None:
        def luminance(color: str) -> float:
            parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
            linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
            return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

        def contrast(a: str, b: str) -> float:  # WCAG 2, section 1.4.3
            light, dark = sorted((luminance(a), luminance(b)), reverse=True)
            return (light + 0.05) / (dark + 0.05)

        assert contrast(palette.text, palette.background) >= 7
        for color in (*palette.lines, palette.dim, palette.limit):
            assert contrast(color, palette.background) >= 3
