"""The rows of a flame tree: oracles are trees small enough to work out by hand, and a slow walk over random
ones."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

from gpuprof.snapshots.errors import FrameError, GpuprofError
from gpuprof.snapshots.frames import FrameKind, Tree
from gpuprof.snapshots.preorder import depths, preorder_ends
from gpuprof.tui.rate_choice import choice_of
from gpuprof.tui.widgets.flame_rows import FlameRows

MakeTree = Callable[..., Tree]


@pytest.fixture
def tree(make_tree: MakeTree) -> Tree:
    return make_tree(
        [(0, "all", 0), (1, "a", 0), (2, "b", 10), (3, "c", 50), (1, "d", 1), (2, "e", 1), (1, "b", 38)]
    )


def names(rows: FlameRows) -> list[str]:
    return [rows.tree.strings[rows.tree.name[node]] for node in rows.visible]


def test_hot_path_is_open_and_small_branches_are_shut(tree: Tree) -> None:
    assert names(FlameRows(tree)) == ["all", "a", "b", "c", "d", "b"]


def test_only_branching_indents(tree: Tree) -> None:
    rows = FlameRows(tree)
    assert [int(rows.indent[node]) for node in rows.visible] == [0, 1, 1, 1, 1, 1]


def test_shut_and_open(tree: Tree) -> None:
    rows = FlameRows(tree)
    rows.set_expanded(1, False)
    assert names(rows) == ["all", "a", "d", "b"]
    rows.set_expanded(1, True)
    assert names(rows) == ["all", "a", "b", "c", "d", "b"]
    rows.collapse_all()
    assert names(rows) == ["all", "a", "d", "b"]
    rows.expand_all()
    assert names(rows) == ["all", "a", "b", "c", "d", "e", "b"]


def test_expansion_survives_another_tree(tree: Tree, make_tree: MakeTree) -> None:
    rows = FlameRows(tree)
    rows.set_expanded(4, True)
    rows.set_expanded(1, False)
    later = make_tree(
        [(0, "all", 0), (1, "b", 90), (1, "d", 1), (2, "e", 1), (1, "a", 0), (2, "b", 20), (3, "c", 50)]
    )
    again = FlameRows(later, rows.expansion)
    assert names(again) == ["all", "b", "d", "e", "a"]


def test_zoom_shows_a_subtree_and_its_own_rows(tree: Tree) -> None:
    rows = FlameRows(tree)
    rows.zoom(2)
    assert names(rows) == ["b", "c"]


def test_search_counts_recursion_once(make_tree: MakeTree) -> None:
    tree = make_tree([(0, "all", 0), (1, "f", 10), (2, "g", 10), (3, "f", 30), (1, "h", 50)])
    rows = FlameRows(tree)
    rows.search("F")
    assert rows.match_fraction == pytest.approx(0.5)
    assert rows.next_match(0, 1) == 1
    assert rows.next_match(1, 1) == 3
    assert rows.next_match(3, 1) == 1
    assert rows.next_match(1, -1) == 3


def test_search_finds_files_and_binaries(make_tree: MakeTree) -> None:
    tree = make_tree(
        [(0, "all", 0), (1, "f", 10, 3, "/srv/train.py", 3, ""), (1, "g", 30, 4, "", 0, "libcuda.so")]
    )
    rows = FlameRows(tree)
    rows.search("train.py")
    assert rows.match_fraction == pytest.approx(0.25)
    rows.search("LIBCUDA")
    assert rows.match_fraction == pytest.approx(0.75)
    rows.search("nothing")
    assert rows.match_fraction == 0
    assert rows.next_match(0, 1) is None


def test_reveal_opens_ancestors(tree: Tree) -> None:
    rows = FlameRows(tree)
    rows.zoom(6)
    rows.reveal(5)
    assert rows.position(5) is not None


def test_visible_rows_of_random_trees_match_a_walk(make_tree: MakeTree) -> None:
    for seed in range(30):
        chance = random.Random(seed)
        depth, listed = 0, [(0, "all", 0.0)]
        for place in range(chance.randrange(1, 200)):
            depth = chance.randrange(1, depth + 2)
            listed.append((depth, f"n{place}", chance.random()))
        rows = FlameRows(make_tree(listed))
        for node in range(rows.count):
            if chance.random() < 0.4:
                rows.set_expanded(node, chance.random() < 0.5)
        rows.zoom(chance.randrange(rows.count))
        assert rows.visible.tolist() == _walk(rows), seed


def _walk(rows: FlameRows) -> list[int]:
    children: dict[int, list[int]] = {}
    for node in range(1, rows.count):
        children.setdefault(int(rows.parent[node]), []).append(node)
    seen, queue = [], [rows.root]
    while queue:
        node = queue.pop()
        seen.append(node)
        if rows.expanded[node]:
            queue += reversed(children.get(node, []))
    return seen


def test_ends_and_depths_by_hand() -> None:
    parent = np.array([0, 0, 1, 1, 0, 4])
    assert depths(parent).tolist() == [0, 1, 2, 2, 1, 2]
    assert preorder_ends(parent).tolist() == [6, 4, 3, 4, 6, 6]


@pytest.mark.parametrize("parent", [[], [1, 0], [0, 2, 0], [0, 0, 0, 1], [0, 0, 1, 0, 1]])
def test_what_is_no_preorder_is_refused(parent: list[int]) -> None:
    with pytest.raises(FrameError):
        preorder_ends(np.array(parent, np.int64))


def test_strings_out_of_range_are_refused(tree: Tree) -> None:
    tree.name[3] = 99
    with pytest.raises(FrameError):
        FlameRows(tree)


@pytest.mark.parametrize("weight", [float("nan"), float("inf"), -1.0])
def test_weights_that_are_none_are_refused(tree: Tree, weight: float) -> None:
    tree.total_weight[2] = weight
    with pytest.raises(FrameError):
        FlameRows(tree)


def test_a_deep_chain_is_no_recursion(make_tree: MakeTree) -> None:
    rows = FlameRows(make_tree([(depth, f"f{depth}", 1.0) for depth in range(5000)]))
    assert len(rows.visible) > 100
    rows.expand_all()
    assert len(rows.visible) == 5000


def test_weight_by_binary(make_tree: MakeTree) -> None:
    tree = make_tree(
        [
            (0, "all", 0, 0),
            (1, "p", 5, 1),
            (2, "f", 20, 3, "a.py", 1, ""),
            (3, "g", 30, 4, "", 0, "libc.so.6"),
        ]
    )
    assert FlameRows(tree).weight_by_binary() == [("libc.so.6", 30.0), ("python", 20.0)]


def test_many_processes_as_one_row_keep_their_state_while_more_come(make_tree: MakeTree) -> None:
    def grown(count: int) -> FlameRows:
        group = (1, f"python3 ({count} processes)", 0, FrameKind.PROCESS)
        return FlameRows(make_tree([(0, "all", 0, FrameKind.ROOT), group, (2, "f", count), (1, "b", 900)]))

    before, after = grown(302), grown(303)
    assert before.path.tolist() == after.path.tolist()


def test_what_a_row_of_many_processes_did_is_not_counted_as_that_of_one(make_tree: MakeTree) -> None:
    rows = FlameRows(
        make_tree([
            (0, "all", 0, FrameKind.ROOT),
            (1, "python3 (302 processes)", 0, FrameKind.PROCESS),
            (2, "gemm", 5, FrameKind.GPU_KERNEL),
            (1, "a (3 processes) (4711, 5 in its container)", 1, FrameKind.PROCESS),
            (1, "b (12)", 1, FrameKind.PROCESS),
        ])
    )  # fmt: skip
    with pytest.raises(GpuprofError, match="several processes"):
        choice_of("gpu", rows, 1)
    assert [choice_of("gpu", rows, node).pid for node in (0, 3, 4)] == [None, 4711, 12]
