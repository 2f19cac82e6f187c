"""Trees turned over: by hand, and random ones against stacks read backwards one by one."""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from typing import Any

import pytest

from gpuprof.snapshots import report
from gpuprof.snapshots import tree as trees
from gpuprof.snapshots.errors import GpuprofError
from gpuprof.snapshots.frames import STACK_NOT_TAKEN, Query

NOT_TAKEN = STACK_NOT_TAKEN.replace(" ", "_")


@pytest.fixture
def story(stories: Any) -> Any:
    told = stories.Story(process_of={2: 9})
    told.gpu(1, "main model %gemm", 0, 3)
    told.gpu(1, "main loss %gemm", 3, 4)
    told.gpu(1, "main model %relu", 4, 6)
    told.gpu(2, "main model %gemm", 0, 5, gpu="G1")
    told.gpu(2, "main =memcpy_HtoD", 5, 6, moved=4096)
    return told


def test_kernels_come_first_and_who_launched_them_below(story: Any, stories: Any) -> None:
    tree = story.ask("gpu", 0, 20, bottom_up=True)
    assert tree.bottom_up
    assert stories.totals(tree) == {
        "": 12,
        "gemm": 9,
        "gemm / model": 8,
        "gemm / model / main": 8,
        "gemm / model / main / proc9 (9)": 5,
        "gemm / model / main / proc7 (7)": 3,
        "gemm / loss": 1,
        "gemm / loss / main": 1,
        "gemm / loss / main / proc7 (7)": 1,
        "relu": 2,
        "relu / model": 2,
        "relu / model / main": 2,
        "relu / model / main / proc7 (7)": 2,
        "memcpy HtoD": 1,
        "memcpy HtoD / main": 1,
        "memcpy HtoD / main / proc9 (9)": 1,
    }
    moved = {row.name: row.bytes for row in trees.rows(tree) if row.depth == 1}
    assert moved == {"gemm": 0, "relu": 0, "memcpy HtoD": 4096}
    top_down = story.ask("gpu", 0, 20)
    assert not top_down.bottom_up
    assert (top_down.summary, top_down.truncated) == (tree.summary, tree.truncated)
    assert stories.totals(story.ask("gpu", 0, 20, bottom_up=True, pids=[9], gpus=["G1"]))["gemm"] == 5


def test_what_ran_itself_comes_first_in_the_tree_of_samples(stories: Any) -> None:
    told = stories.Story()
    told.on_cpu(1, "main step", 0, 30)
    told.on_cpu(1, "main step :dot", 30, 50)
    told.on_cpu(1, "main", 50, 60)
    told.on_cpu(1, "main :dot main", 60, 70)
    found = {path: weight * 10**6 for path, weight in stories.totals(
        told.ask("cpu", 0, 100, bottom_up=True, by_thread=True)
    ).items()}  # fmt: skip
    assert {path: weight for path, weight in found.items() if path.count("/") < 2} == {
        "": 7,
        "step": 3,
        "step / main": 3,
        "dot": 2,
        "dot / step": 2,
        "main": 2,
        "main / t1 (1)": 1,
        "main / dot": 1,
    }
    assert found["dot / step / main / t1 (1) / proc7 (7)"] == 2


def test_kernels_are_exact_where_only_their_paths_are_estimated(stories: Any) -> None:
    told = stories.Story()
    told.gpu(7, "main a %gemm", 0, 1, weight=4)
    told.gpu(7, "main b %gemm", 1, 3, weight=2)
    told.gpu(7, "main c %add", 3, 4)
    told.gpu(7, f"{NOT_TAKEN} %gemm", 10, 20)
    tree = told.ask("gpu", 0, 100, bottom_up=True)
    rows = {row.name: row for row in trees.rows(tree) if row.depth < 3}
    assert {name: row.total_weight / 1e6 for name, row in rows.items() if row.depth == 1} == {
        "gemm": 13.0,
        "add": 1.0,
    }
    assert {name for name, row in rows.items() if row.estimated} == {"a", "b"}
    top_down = {row.name: row for row in trees.rows(told.ask("gpu", 0, 100))}
    for name in ("a", "b"):
        assert rows[name].total_weight == top_down[name].total_weight
        assert rows[name].error == pytest.approx(top_down[name].error)


def test_an_error_that_is_not_known_stays_unknown(stories: Any) -> None:
    told = stories.Story()
    told.gpu(7, "main a %gemm", 0, 1)
    told.gpu(7, "main b %gemm", 1, 4)
    told.gpu(7, f"{NOT_TAKEN} %gemm", 10, 18)
    before = {row.name: row for row in trees.rows(told.ask("gpu", 0, 100))}
    after = {row.name: row for row in trees.rows(told.ask("gpu", 0, 100, bottom_up=True))}
    for name in ("a", "b"):
        assert after[name].estimated == before[name].estimated
        known = after[name].error
        assert known is before[name].error is None or math.isclose(known, before[name].error)


@pytest.mark.parametrize("seed", range(8))
def test_random_stacks_read_backwards(stories: Any, seed: int) -> None:
    rng = random.Random(seed)
    told = stories.Story(process_of={tid: 5 + tid % 2 for tid in range(1, 4)})
    expected: Counter[str] = Counter()
    for _ in range(60):
        tid = rng.randint(1, 3)
        words = [rng.choice("abcd") for _ in range(rng.randint(1, 9))]
        count = rng.randint(1, 4)
        told.on_cpu(tid, " ".join(words), 0, 10 * count)
        path = [*reversed(words), f"proc{5 + tid % 2} ({5 + tid % 2})"]
        for end in range(len(path) + 1):
            expected[" / ".join(path[:end])] += count
    found = stories.totals(told.ask("cpu", 0, 100, bottom_up=True))
    assert {path: round(weight * 10**6) for path, weight in found.items()} == dict(expected)


@pytest.mark.parametrize(("tree", "more"), [("idle", {}), ("offcpu", {}), ("gpu", {"scaled": True})])
def test_what_cannot_be_turned_over_is_refused(story: Any, tree: str, more: dict[str, bool]) -> None:
    with pytest.raises(GpuprofError) as caught:
        story.ask(tree, 0, 20, bottom_up=True, **more)
    assert "--bottom-up" in caught.value.hint


def test_report(story: Any) -> None:
    query = Query(1, "gpu", 0, 1 << 60, bottom_up=True)
    lines = report.text_report(story.history, query, columns=100).splitlines()
    at = next(number for number, line in enumerate(lines) if "of GPU time; " in line)
    assert lines[at].endswith("what it was spent in (callers: --depth N)")
    assert [line.split("█")[-1].split()[0] for line in lines[at + 1 : at + 3]] == ["all", "gemm"]
    assert len(lines) == at + 5
    deeper = report.text_report(story.history, query, columns=100, depth=2).splitlines()
    assert sum("model (model.py)" in line for line in deeper) == 2
    assert not any("proc7" in line for line in deeper)
    told = json.loads(report.json_text(report.json_report(story.history, query)))
    assert told["bottom_up"] is True
    assert [child["name"] for child in told["root"]["children"]] == ["gemm", "relu", "memcpy HtoD"]
