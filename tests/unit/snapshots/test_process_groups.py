"""Many small processes of one name as one row, in every tree; by counting in a plain loop."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest

from gpuprof.snapshots import report
from gpuprof.snapshots import tree as trees
from gpuprof.snapshots.frames import FrameKind, Query, Tree
from gpuprof.snapshots.process_groups import without_count
from gpuprof.snapshots.simplify import without_internals


def rows_of(tree: Tree) -> dict[str, list[trees.TreeRow]]:
    found: dict[str, list[trees.TreeRow]] = {}
    for row in trees.rows(tree):
        found.setdefault(row.name, []).append(row)
    return found


def check_sums(tree: Tree) -> None:
    """Every total is the row's own weight and its children's."""
    rows = list(trees.rows(tree))
    sums = [row.self_weight for row in rows]
    for row in reversed(rows[1:]):
        assert sums[row.index] == pytest.approx(row.total_weight)
        sums[int(tree.parent[row.index])] += row.total_weight


@pytest.fixture
def churn(stories: Any) -> Any:
    """302 processes python3 that do 3 samples each, 12 sh of one sample, one `train` of 5,000."""
    names = dict.fromkeys(range(1000, 1302), "python3") | dict.fromkeys(range(2000, 2012), "sh")
    story = stories.Story(names={**names, 7: "train"}, process_of={pid: pid for pid in names})
    story.on_cpu(7, "main step", 0, 50_000)
    for pid in range(1000, 1302):
        at = pid * 30
        story.on_cpu(pid, "main short_work", at, at + 20)
        story.on_cpu(pid, "main load@a.py", at + 20, at + 30)
    for pid in range(2000, 2012):
        story.on_cpu(pid, "run", pid, pid + 10)
    return story


def test_what_many_short_processes_do_is_one_row(churn: Any) -> None:
    tree = churn.history.query(Query(1, "cpu", 0, 1 << 60, min_fraction=0.005))
    rows = rows_of(tree)
    assert rows["python3 (302 processes)"][0].total_weight == 906
    assert rows["python3 (302 processes)"][0].kind == FrameKind.PROCESS
    assert rows["short_work"][0].total_weight == 604
    assert rows["load"][0].total_weight == 302
    assert rows["train (7)"][0].total_weight == 5000
    # all shells together are below half a percent: "other" goes on counting processes
    assert [row.total_weight for row in rows["other (12)"]] == [12]
    assert tree.total_weight[0] == 5918
    check_sums(tree)


def test_it_is_in_the_reports_and_what_is_whole_stays_apart(churn: Any) -> None:
    whole = Query(1, "cpu", 0, 1 << 60, min_fraction=0.0)
    text = report.text_report(churn.history, whole)
    assert "python3 (302 processes)" in text
    assert "short_work" in text
    text = report.text_report(churn.history, whole, min_fraction=0.2)
    assert "processes)" not in text
    assert "other (314)" in text
    found = report.json_report(churn.history, whole)
    assert len(found["root"]["children"]) == 315
    assert "cut" not in found
    assert found["min_percent"] == 0


def test_a_tree_that_is_cut_to_a_number_of_rows_groups_too(churn: Any) -> None:
    query = Query(1, "cpu", 0, 1 << 60, min_fraction=0.0, max_nodes=60)
    found = report.json_report(churn.history, query)
    assert "more than 60 rows" in found["cut"]
    tree = churn.history.query(query)
    assert len(tree.parent) <= 60
    rows = rows_of(tree)
    assert rows["python3 (302 processes)"][0].total_weight == 906
    assert rows["short_work"][0].total_weight == 604
    check_sums(tree)


@pytest.mark.parametrize(("count", "is_one_row"), [(20, False), (21, True)])
def test_very_many_are_one_row_even_where_each_could_be_shown(
    stories: Any, count: int, is_one_row: bool
) -> None:
    """Each process has 0.1 % of the samples, which the screen would keep."""
    names = dict.fromkeys(range(100, 100 + count), "python3")
    story = stories.Story(names={**names, 7: "train"}, process_of={pid: pid for pid in names})
    story.on_cpu(7, "main", 0, 20_000)
    for pid in names:
        story.on_cpu(pid, "short_work", 0, 20)
    for least in (0.0005, 0.0):
        rows = rows_of(story.history.query(Query(1, "cpu", 0, 1 << 60, min_fraction=least)))
        assert (f"python3 ({count} processes)" in rows) == (is_one_row and least > 0)
        assert sum(row.total_weight for row in rows["short_work"]) == 2 * count


def test_filters_by_process_and_by_thread(churn: Any) -> None:
    one = churn.history.query(Query(1, "cpu", 0, 1 << 60, pids=[1005], min_fraction=0.005))
    assert rows_of(one)["python3 (1005)"][0].total_weight == 3
    two = churn.history.query(Query(1, "cpu", 0, 1 << 60, pids=[1005, 7], min_fraction=0.005))
    assert not any("processes)" in name for name in rows_of(two))
    threads = churn.history.query(Query(1, "cpu", 0, 1 << 60, by_thread=True, min_fraction=0.005))
    rows = rows_of(threads)
    assert rows["python3 (302 threads)"][0].kind == FrameKind.THREAD
    assert rows["short_work"][0].total_weight == 604
    check_sums(threads)


def test_small_threads_of_one_process(stories: Any) -> None:
    story = stories.Story(names={7: "server"} | dict.fromkeys(range(100, 400), "worker"))
    story.on_cpu(7, "main", 0, 10_000)
    for tid in range(100, 400):
        story.on_cpu(tid, "serve", tid * 10, tid * 10 + 20)
    rows = rows_of(story.history.query(Query(1, "cpu", 0, 1 << 60, by_thread=True, min_fraction=0.01)))
    assert rows["worker (300 threads)"][0].total_weight == 600
    assert rows["serve"][0].total_weight == 600
    assert rows["server (7)"][1].total_weight == 1000  # the thread that is large enough


@pytest.mark.parametrize("kind", ["gpu", "offcpu", "idle"])
def test_the_trees_of_time(stories: Any, kind: str) -> None:
    """50 processes that each launch 1 ms and wait 8 ms; a large one; the device is idle in between."""
    names = dict.fromkeys(range(1000, 1050), "python3")
    story = stories.Story(names={**names, 7: "train"}, process_of={pid: pid for pid in names})
    story.wait(7, "main wait <poll>", 0, 5000)
    story.gpu(7, "main launch %gemm", 5000, 10_000)
    for number, pid in enumerate(names):
        at = 10_000 + 10 * number
        story.gpu(pid, "main short_work %gemm", at, at + 1)
        story.wait(pid, "main short_wait <poll>", at + 1, at + 9)
    story.observed(0, 10_500)
    whole = story.history.query(Query(1, kind, *story.history.span, min_fraction=0.0))
    least = 0.05 if kind == "idle" else 0.002  # who feeds a device has an equal share of its idle time
    tree = story.history.query(Query(1, kind, *story.history.span, min_fraction=least))
    rows = rows_of(tree)
    assert rows["python3 (50 processes)"][0].total_weight == pytest.approx(
        sum(
            row.total_weight
            for row in trees.rows(whole)
            if row.name.startswith("python3 (") and row.kind == FrameKind.PROCESS
        )
    )
    if kind != "idle":
        name, each_ms = ("short_work", 1) if kind == "gpu" else ("short_wait", 8)
        assert rows[name][0].total_weight == pytest.approx(50 * each_ms * 1e6)
    assert tree.total_weight[0] == pytest.approx(whole.total_weight[0])
    check_sums(tree)


@pytest.mark.parametrize("seed", range(8))
def test_random_processes_keep_every_weight(planted: Any, row: Any, seed: int) -> None:
    """Two generations: totals add up whatever the threshold is, and no two rows have one path."""
    rng = random.Random(seed)
    for _ in range(2000):
        pid = 7 if rng.random() < 0.3 else rng.randrange(100, 400)
        words = " ".join(f"f{rng.randrange(4)}" for _ in range(rng.randrange(1, 5)))
        planted.add(row(rng.randrange(10**6), words, pid=pid, tid=pid * 10 + rng.randrange(3)))
    planted.history.roll_generation()
    for _ in range(500):
        pid = rng.randrange(300, 500)
        planted.add(row(rng.randrange(10**6), f"g f{rng.randrange(4)}", pid=pid, tid=pid))
    for by_thread in (False, True):
        query = Query(1, "cpu", 0, 1 << 60, min_fraction=rng.choice([0.001, 0.01, 0.1]), by_thread=by_thread)
        tree = planted.history.query(query)
        check_sums(tree)
        assert tree.total_weight[0] == 2500
        assert sum(tree.self_weight) == 2500
        simple = without_internals(tree).tree
        assert simple.total_weight[0] == 2500
        paths = set()
        for line in trees.rows(tree):  # no two rows of one path
            path = (int(tree.parent[line.index]), line.name, line.file, line.kind)
            assert path not in paths
            paths.add(path)


def test_a_row_keeps_its_identity_while_processes_come() -> None:
    assert without_count("python3 (302 processes)") == without_count("python3 (303 processes)")
    assert without_count("worker (9 threads)") != without_count("worker (9 processes)")
    for name in ("python3 (302)", "f(3 processes)", "(3 processes) f", "other (3)"):
        assert without_count(name) == name
    assert re.fullmatch(r"a \(processes\)", without_count("a (3 processes)"))
