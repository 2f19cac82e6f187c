"""The fold against hand-computed trees, and against a plain loop over random rows."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gpuprof.snapshots import levels
from gpuprof.snapshots import tree as trees
from gpuprof.snapshots.errors import FrameError, GpuprofError
from gpuprof.snapshots.frames import FrameKind, Query, Tree

EVERYTHING = Query(5, "cpu", 0, 1 << 60, min_fraction=0.0, max_nodes=1 << 30)


def query(**changes: Any) -> Query:
    values = {
        "id": 5,
        "tree": "cpu",
        "start_ns": 0,
        "end_ns": 1 << 60,
        "min_fraction": 0.0,
        "max_nodes": 1 << 30,
    }
    return Query(**(values | changes))


def drawn(tree: Tree) -> list[str]:
    """Return the rows as a person would draw them."""
    return [
        f"{'  ' * row.depth}{row.name} {row.self_weight:g}/{row.total_weight:g}" for row in trees.rows(tree)
    ]


def test_a_tree_computed_by_hand(planted: Any, row: Any) -> None:
    planted.add(
        row(1, "main work"), row(2, "main work inner"), row(3, "main idle"), row(4, "main work inner")
    )
    planted.add(row(5, "main", pid=9, tid=9), row(6, "", pid=9, tid=10))
    tree = planted.history.query(query())
    assert drawn(tree) == [
        "all 0/6",
        "  proc7 (7) 0/4",
        "    main 0/4",
        "      work 1/3",
        "        inner 2/2",
        "      idle 1/1",
        "  proc9 (9) 1/2",
        "    main 1/1",
    ]
    assert (tree.id, tree.tree, tree.unit, tree.summary) == (5, "cpu", "samples", "")
    by_thread = planted.history.query(query(by_thread=True, pids=[9]))
    assert drawn(by_thread) == [
        "all 0/2",
        "  proc9 (9) 0/2",
        "    t10 (10) 1/1",
        "    t9 (9) 0/1",
        "      main 1/1",
    ]


def test_children_are_ordered_by_total_then_name(planted: Any, row: Any) -> None:
    for number, stack in enumerate(["a b", "a c", "a c", "a aa", "a d", "a d"]):
        planted.add(row(number, stack))
    names = [found.name for found in trees.rows(planted.history.query(query()))]
    assert names == ["all", "proc7 (7)", "a", "c", "d", "aa", "b"]


def test_one_sample_can_be_asked_for(planted: Any, row: Any) -> None:
    planted.add(row(100, "a"), row(200, "b"), row(300, "c"))
    assert drawn(planted.history.query(query(start_ns=200, end_ns=201)))[1:] == [
        "  proc7 (7) 0/1",
        "    b 1/1",
    ]


def test_an_empty_range_is_a_tree_of_its_root(planted: Any, row: Any) -> None:
    assert drawn(planted.history.query(query())) == ["all 0/0"]
    planted.add(row(100, "a"))
    assert drawn(planted.history.query(query(start_ns=5, end_ns=5))) == ["all 0/0"]
    assert drawn(planted.history.query(query(pids=[99]))) == ["all 0/0"]
    assert drawn(planted.history.query(query(start_ns=-(1 << 63), end_ns=-1))) == ["all 0/0"]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("dense_keys", [1 << 22, 0])
def test_random_rows_fold_as_in_a_plain_loop(
    seed: int, dense_keys: int, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted, random_rows, path_weights = (
        request.getfixturevalue(name) for name in ("planted", "random_rows", "path_weights")
    )
    monkeypatch.setattr(levels, "_DENSE_KEYS", dense_keys)
    rows = random_rows(seed, 3000)
    for at in range(0, len(rows), 700):
        planted.add(*rows[at : at + 700])
        if seed % 2:
            planted.history.roll_generation()
    start = 10**12
    asked = [
        query(),
        query(by_thread=True),
        query(start_ns=start + 500_000, end_ns=start + 1_700_001),
        query(pids=[2, 3, 99], by_thread=True),
        query(tids=[101, 202, -5, 1 << 40], cpus=[0, 3, -1, 1 << 30]),
        query(cpus=[1], pids=[1]),
    ]
    for one in asked:
        assert path_weights(planted.history.query(one)) == planted.brute(one)


def check_totals(tree: Tree) -> None:
    sums = tree.self_weight.copy()
    np.add.at(sums, tree.parent[1:], tree.total_weight[1:])
    assert np.array_equal(sums, tree.total_weight)
    path: list[int] = []  # of the row before: in preorder a row's parent is on it
    for index, parent in enumerate(tree.parent.tolist()):
        if index:
            assert parent in path
            del path[path.index(parent) + 1 :]
        path.append(index)


@pytest.mark.parametrize("max_nodes", [2, 3, 10, 50, 200, 20_000])
@pytest.mark.parametrize("min_fraction", [0.0, 0.002, 0.05, 1.0])
def test_totals_add_up_whatever_is_cut(
    max_nodes: int, min_fraction: float, planted: Any, random_rows: Any
) -> None:
    planted.add(*random_rows(9, 4000))
    tree = planted.history.query(query(min_fraction=min_fraction, max_nodes=max_nodes))
    check_totals(tree)
    assert len(tree.parent) <= max(max_nodes, 2)
    assert tree.total_weight[0] == 4000
    for found in trees.rows(tree):
        if found.kind != FrameKind.OTHER:
            assert found.total_weight >= min_fraction * 4000
        else:
            assert found.name.startswith("other (")


def test_small_siblings_are_one_row_that_says_how_many(planted: Any, row: Any) -> None:
    planted.add(*[row(number, "main big") for number in range(96)])
    planted.add(row(100, "main s1 x"), row(101, "main s2"), row(102, "main s3"), row(103, "main s4"))
    assert drawn(planted.history.query(query(min_fraction=0.02)))[2:] == [
        "    main 0/100",
        "      big 96/96",
        "      other (4) 4/4",
    ]


def test_equal_names_of_two_generations_are_one_row(planted: Any, row: Any) -> None:
    planted.add(row(1, "main a"))
    planted.history.roll_generation()
    planted.add(row(2, "main b"), row(3, "main a"))
    assert drawn(planted.history.query(query()))[2:] == ["    main 0/3", "      a 2/2", "      b 1/1"]


def test_recursion_and_depth_do_not_matter(planted: Any, row: Any) -> None:
    planted.add(row(1, "f " * 8000), row(2, "f " * 8000 + "g"))
    tree = planted.history.query(query())
    assert len(tree.parent) == 8003
    assert int(trees.depths(tree).max()) == 8002
    check_totals(tree)


def test_stacks_that_did_not_reach_the_root_are_counted(planted: Any, row: Any) -> None:
    cut = ("[truncated: no rule]", "", "", 0, FrameKind.UNKNOWN)
    planted.add(row(1, "a"))
    for time in (2, 3):
        whole = row(time, "b")
        planted.add(type(whole)(whole.time_ns, 0, 7, 7, (cut, *whole.frames)))
    assert planted.history.query(query()).truncated == 2
    assert planted.history.query(query(by_thread=True)).truncated == 2
    assert planted.history.query(query(start_ns=3)).truncated == 1


def test_a_reused_pid_is_two_rows(planted: Any, row: Any) -> None:
    planted.add(row(1, "a"))
    tables = planted.history.tables
    again = tables.process(type(planted.process(7))(7, 999, "proc7", "", "", 0, 1))
    thread = tables.thread(again, 7, "t7")
    planted.history.add_samples([2], [0], [thread], [0])
    assert [found.name for found in trees.rows(planted.history.query(query()))].count("proc7 (7)") == 2


@pytest.mark.parametrize("name", ["gpu", "idle", "offcpu", "nonsense", ""])
def test_a_tree_that_is_not_there_is_refused_with_a_hint(planted: Any, name: str) -> None:
    with pytest.raises(GpuprofError) as error:
        planted.history.query(query(tree=name))
    assert error.value.hint


def test_odd_limits_do_not_break(planted: Any, random_rows: Any) -> None:
    planted.add(*random_rows(2, 300))
    for changes in (
        {"min_fraction": math.nan},
        {"min_fraction": -1.0},
        {"min_fraction": 1e300},
        {"max_nodes": -5},
    ):
        check_totals(planted.history.query(query(**changes)))


@pytest.mark.parametrize("change", ["parent", "name", "kind", "empty", "root"])
def test_a_hostile_tree_is_refused(planted: Any, row: Any, change: str) -> None:
    planted.add(row(1, "a b"))
    tree = planted.history.query(EVERYTHING)
    columns: dict[str, Callable[[Any], Any]] = {
        "parent": lambda c: np.array([0, 2, 1, 1], np.uint32),
        "name": lambda c: c + 100,
        "kind": lambda c: c + 100,
        "root": lambda c: c + 1,
    }
    fields = {name: getattr(tree, name) for name in tree.__slots__}
    if change == "empty":
        fields |= {name: value[:0] for name, value in fields.items() if isinstance(value, np.ndarray)}
    else:
        name = "parent" if change == "root" else change
        fields[name] = columns[change](fields[name])
    with pytest.raises(FrameError):
        list(trees.rows(Tree(**fields)))
