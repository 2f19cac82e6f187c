"""The flame tree as a widget: keys, mouse, what survives a refresh, and what is drawn for which name."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
from rich.cells import cell_len
from textual.app import App, ComposeResult

from gpuprof.snapshots.frames import FrameKind, Tree
from gpuprof.tui.palette import DARK
from gpuprof.tui.widgets.flame_row import RowPainter, chop, details, legend
from gpuprof.tui.widgets.flame_rows import FlameRows
from gpuprof.tui.widgets.flame_tree import FlameTree
from gpuprof.tui.widgets.icicle import Box, Icicle, level_boxes
from gpuprof.tui.widgets.styled import Line, bar

MakeTree = Callable[..., Tree]
ROWS = [
    (0, "all", 0, 0),
    (1, "python3 (7)", 0, 1),
    (2, "main", 0, 3, "/srv/train.py", 88, ""),
    (3, "step", 10, 3, "/srv/train.py", 31, ""),
    (4, "cudaLaunchKernel", 40, 4, "", 0, "libcudart.so.12"),
    (3, "load", 10, 3, "/srv/data.py", 5, ""),
    (4, "read", 20, 4, "", 0, "libc.so.6"),
    (3, "other (3)", 3, 10),
    (1, "sh (9)", 0, 1),
    (2, "[truncated: no unwind table]", 17, 11),
]


class TreeApp(App[None]):
    def compose(self) -> ComposeResult:
        yield FlameTree()


def shown(tree: FlameTree) -> list[str]:
    return [tree.render_line(y).text.rstrip() for y in range(tree.size.height)]


def under_cursor(tree: FlameTree) -> str:
    assert tree.rows is not None
    assert tree.node is not None
    return tree.rows.tree.strings[tree.rows.tree.name[tree.node]]


def test_details_of_a_copy_and_of_a_kernel(make_tree: MakeTree) -> None:
    """Bytes and bandwidth of a copy; the name in full of a kernel, which is no file."""
    full = "void gemm<float, 4>(float*, at::native::{lambda(float)#1})" + " padding" * 200
    rows = [
        (0, "all", 0, FrameKind.ROOT),
        (1, "python3 (7)", 0, FrameKind.PROCESS),
        (2, "memcpy HtoD", 40_000_000, FrameKind.GPU_COPY, "", 0, "[gpu]"),
        (2, "gemm", 30_000_000, FrameKind.GPU_KERNEL, full, 0, "[gpu]"),
    ]
    tree = make_tree(rows, tree="gpu", unit="ns", bytes=np.array([1e9, 1e9, 1e9, 0.0]))
    flame = FlameRows(tree)
    said = " ".join(_text(line) for line in details(flame, 2, DARK, 120, 3))
    assert "1.00 GB at 25.0 GB/s" in said
    lines = details(flame, 3, DARK, 100, 3)
    said = "".join(_text(line) for line in lines)
    assert "gemm" in said
    assert "void gemm<float, 4>(float*, at::native::{lambda(float)#1})" in " ".join(said.split())
    assert ":0" not in said
    assert len(lines) == 3
    assert all(cell_len(_text(line)) <= 100 for line in lines)
    painter = RowPainter(flame, DARK, 100, "")
    assert "lambda" not in _text(painter.line(3))


async def test_rows_as_drawn(make_tree: MakeTree) -> None:
    app = TreeApp()
    async with app.run_test(size=(90, 14)):
        tree = app.query_one(FlameTree)
        tree.set_tree(make_tree(ROWS))
        lines = shown(tree)
        assert lines[0].startswith("100.0 % ████████ ▾ all  100 samples")
        assert lines[1].startswith(" 83.0 % ██████▋  ├ ▾ python3 (7)")
        assert "│ ▾ main (train.py:88)" in lines[2]
        assert "│ ├ ▾ step (train.py:31)" in lines[3]
        assert lines[3].endswith("10.0 %")
        assert "│ │   cudaLaunchKernel (libcudart.so.12)" in lines[4]
        assert lines[4].endswith("40.0 %")
        assert "└   other (3)" in lines[7]
        assert not lines[7].endswith("%")
        assert "[truncated: no unwind table]" in lines[9]


async def test_keys_move_open_shut_and_zoom(make_tree: MakeTree) -> None:
    app = TreeApp()
    async with app.run_test(size=(90, 8)) as pilot:
        tree = app.query_one(FlameTree)
        tree.focus()
        tree.set_tree(make_tree(ROWS))
        await pilot.press("down", "j", "j")
        assert under_cursor(tree) == "step"
        await pilot.press("left")
        assert "▸ step" in shown(tree)[3]
        await pilot.press("h")
        assert under_cursor(tree) == "main"
        await pilot.press("l", "right")
        assert "▾ step" in "\n".join(shown(tree))
        await pilot.press("right")
        assert under_cursor(tree) == "cudaLaunchKernel"
        await pilot.press("k", "enter")
        assert tree.rows is not None
        assert [tree.rows.tree.strings[tree.rows.tree.name[node]] for node in tree.rows.visible] == [
            "step",
            "cudaLaunchKernel",
        ]
        assert shown(tree)[1].startswith(" 80.0 %")
        assert "zoom: all › python3 (7) › main › step" in _text(tree.breadcrumb_line(90))
        await pilot.press("escape")
        assert tree.rows.root == 2
        assert under_cursor(tree) == "step"
        await pilot.press("escape", "G")
        assert under_cursor(tree) == "[truncated: no unwind table]"
        await pilot.press("c", "g", "e", "end", "home", "pagedown")
        assert tree.cursor == 7


async def test_search_moves_counts_and_marks(make_tree: MakeTree) -> None:
    app = TreeApp()
    async with app.run_test(size=(90, 14)) as pilot:
        tree = app.query_one(FlameTree)
        tree.focus()
        tree.set_tree(make_tree(ROWS))
        tree.rows.set_expanded(5, False)  # type: ignore[union-attr]
        tree.search("READ")
        assert under_cursor(tree) == "read"
        assert tree.rows is not None
        assert tree.rows.match_fraction == pytest.approx(0.2)
        tree.search("a")
        first = under_cursor(tree)
        await pilot.press("n", "n", "N", "N")
        assert under_cursor(tree) == first
        row = tree.render_line(tree.cursor)
        assert any(segment.style and segment.style.bgcolor for segment in row if segment.text.lower() == "a")


async def test_refresh_keeps_cursor_expansion_and_zoom_by_path(make_tree: MakeTree) -> None:
    app = TreeApp()
    async with app.run_test(size=(90, 14)) as pilot:
        tree = app.query_one(FlameTree)
        tree.focus()
        tree.set_tree(make_tree(ROWS))
        await pilot.press("down", "down", "down", "left", "down")
        assert under_cursor(tree) == "load"
        again = [ROWS[0], (1, "zsh (1)", 60, 1), *ROWS[1:3], *ROWS[5:7], ROWS[3], ROWS[4], *ROWS[7:]]
        tree.set_tree(make_tree(again))
        assert under_cursor(tree) == "load"
        assert any("▸ step" in line for line in shown(tree))
        await pilot.press("enter")
        tree.set_tree(make_tree(ROWS))
        assert tree.rows is not None
        assert tree.rows.tree.strings[tree.rows.tree.name[tree.rows.root]] == "load"
        without = [ROWS[0], ROWS[1], ROWS[2], ROWS[3]]
        tree.set_tree(make_tree(without))
        assert tree.rows.tree.strings[tree.rows.tree.name[tree.rows.root]] == "main"


async def test_a_row_under_the_cursor_is_not_pushed_off_the_screen_by_a_refresh(make_tree: MakeTree) -> None:
    """Of 31 rows 14 are on the screen; what becomes hot is put above the others."""

    def tree_of(hot: int) -> Tree:
        cold = [(1, f"f{number}", 20, 4) for number in range(30)]
        return make_tree([(0, "all", 0, 0), *[(1, f"hot{number}", 30, 4) for number in range(hot)], *cold])

    app = TreeApp()
    app.stylesheet.add_source("FlameTree { overflow-y: auto; height: 14; }")
    async with app.run_test(size=(90, 14)) as pilot:
        tree = app.query_one(FlameTree)
        tree.focus()
        tree.set_tree(tree_of(0))
        await pilot.press(*["down"] * 9)
        tree.set_tree(tree_of(3))
        await pilot.pause()
        assert tree.scroll_y == 0  # it is still in sight, and so is the top
        assert "f8" in shown(tree)[12]
        tree.set_tree(tree_of(5))
        await pilot.pause()
        assert under_cursor(tree) == "f8"
        assert "f8" in shown(tree)[12]  # on the line that it had
        await pilot.press("home")
        tree.scroll_to(y=12, animate=False)  # the wheel leaves the cursor behind
        await pilot.pause()
        seen = shown(tree)
        tree.set_tree(tree_of(5))
        await pilot.pause()
        assert shown(tree) == seen


async def test_mouse(make_tree: MakeTree) -> None:
    app = TreeApp()
    async with app.run_test(size=(90, 14)) as pilot:
        tree = app.query_one(FlameTree)
        tree.set_tree(make_tree(ROWS))
        await pilot.click(FlameTree, offset=(40, 3))
        assert under_cursor(tree) == "step"
        marker = shown(tree)[3].index("▾")
        await pilot.click(FlameTree, offset=(marker, 3))
        assert "▸ step" in shown(tree)[3]
        await pilot.click(FlameTree, offset=(40, 3), times=2)
        assert tree.rows is not None
        assert under_cursor(tree) == "step"
        assert tree.rows.root == 3


async def test_a_broken_tree_is_said_not_drawn(make_tree: MakeTree) -> None:
    app = TreeApp()
    async with app.run_test(size=(90, 14)):
        tree = app.query_one(FlameTree)
        broken = make_tree(ROWS)
        broken.parent[2] = 9
        tree.set_tree(broken)
        assert "cannot be drawn" in "".join(shown(tree))


async def test_hostile_names_draw_one_line_of_the_right_width(
    make_tree: MakeTree, hostile_names: list[str]
) -> None:
    rows: list[tuple[object, ...]] = [(0, "all", 0, 0)]
    for name in hostile_names:
        rows += [(1, name, 1, 1), (2, name, 5, 4, name, 3, name), (3, name, 2, 3, name, 0, "")]
    app = TreeApp()
    async with app.run_test(size=(140, 130)):
        tree = app.query_one(FlameTree)
        tree.set_tree(make_tree(rows))
        tree.action_expand_all()
        for y in range(tree.size.height):
            strip = tree.render_line(y)
            assert strip.cell_length == tree.size.width == cell_len(strip.text)
            assert not re.search("[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u200b]", strip.text)
        everything = "\n".join(shown(tree))
        assert "[bold red]x" in everything
        assert "(none)" in everything
        assert "x" * 63 + "…" in everything
        assert "x" * 65 not in everything


def test_the_whole_of_a_long_name_is_in_the_details(make_tree: MakeTree) -> None:
    name = "std::vector<" + "int, " * 40 + ">"
    rows = FlameRows(make_tree([(0, "all", 0, 0), (1, name, 1, 4, "", 0, "libx.so")]))
    lines = details(rows, 1, DARK, 80, 6)
    text = "".join(_text(line) for line in lines)
    assert name.replace(" ", "") in text.replace(" ", "")
    assert " ".join(text.split()).endswith("native libx.so")
    assert all(line.cells <= 80 for line in lines)


def test_deep_guides_leave_room_for_the_name(make_tree: MakeTree) -> None:
    rows: list[tuple[object, ...]] = [(0, "all", 0, 0)]
    for depth in range(1, 60):
        rows += [(depth, f"f{depth}", 0, 4)]
    flat = [*rows, *((depth, f"leaf{depth}", 1, 4) for depth in range(60, 0, -1))]
    shown_rows = FlameRows(make_tree(flat))
    shown_rows.expand_all()
    line = RowPainter(shown_rows, DARK, 80, "").line(59)
    assert line.cells <= 80
    assert "f59" in _text(line)


def test_legend_names_the_binaries_with_most_own_weight(make_tree: MakeTree) -> None:
    text = _text(legend(FlameRows(make_tree(ROWS)), DARK, 80))
    assert re.findall(r"■ (\S+) (\d+) %", text) == [
        ("libcudart.so.12", "40"),
        ("libc.so.6", "20"),
        ("python", "20"),
    ]


@pytest.mark.parametrize(
    ("fraction", "text"), [(0, "    "), (1, "████"), (0.5, "██  "), (2, "████"), (-1, "    "), (0.53, "██▏ ")]
)
def test_bar(fraction: float, text: str) -> None:
    assert bar(fraction, 4) == text


def test_chop_counts_wide_characters() -> None:
    assert chop("日本語", 4) == "日本"
    assert chop("日本語", 1) == "日"


def test_kinds_that_are_not_known_here_are_drawn(make_tree: MakeTree) -> None:
    rows = FlameRows(make_tree([(0, "all", 0, 0), (1, "new", 1, 77)]))
    assert "new" in _text(RowPainter(rows, DARK, 80, "").line(1))
    assert FrameKind.UNKNOWN == 11


def _text(line: Line) -> str:
    return line.strip(line.cells).text


def test_icicle_boxes_by_hand(make_tree: MakeTree) -> None:
    rows = FlameRows(make_tree([(0, "all", 10, 0), (1, "a", 20), (2, "b", 20), (1, "c", 50)]))
    assert level_boxes(rows, 0, 100) == [Box(0, 0, 100)]
    assert level_boxes(rows, 1, 100) == [Box(1, 10, 50), Box(3, 50, 100)]
    assert level_boxes(rows, 2, 100) == [Box(2, 30, 50)]
    assert level_boxes(rows, 3, 100) == []
    assert level_boxes(rows, 1, 4) == [Box(1, 0, 2), Box(3, 2, 4)]
    rows.zoom(1)
    assert level_boxes(rows, 1, 100) == [Box(2, 50, 100)]


class IcicleApp(App[None]):
    def compose(self) -> ComposeResult:
        self.flame = FlameTree()
        self.flame.display = False
        yield self.flame
        yield Icicle(self.flame)

    def on_flame_tree_moved(self) -> None:
        self.query_one(Icicle).follow()


async def test_icicle_keys_mouse_and_names(make_tree: MakeTree, hostile_names: list[str]) -> None:
    app = IcicleApp()
    async with app.run_test(size=(100, 20)) as pilot:
        icicle = app.query_one(Icicle)
        icicle.focus()
        app.flame.set_tree(make_tree(ROWS))
        await pilot.press("down", "down", "down")
        assert under_cursor(app.flame) == "step"
        await pilot.press("right")
        assert under_cursor(app.flame) == "load"
        await pilot.press("left", "up", "enter")
        assert app.flame.rows is not None
        assert app.flame.rows.root == 2
        assert icicle.render_line(0).text.startswith("▏main")
        await pilot.press("escape")
        await pilot.click(Icicle, offset=(20, 3))
        assert under_cursor(app.flame) == "step"
        rows: list[tuple[object, ...]] = [(0, "all", 0, 0)]
        rows += [(1, name, 5, 4, name, 3, name) for name in hostile_names]
        app.flame.set_tree(make_tree(rows))
        await pilot.pause()
        for y in range(3):
            strip = icicle.render_line(y)
            assert strip.cell_length == 100 == cell_len(strip.text)
            assert strip.text.isprintable()
