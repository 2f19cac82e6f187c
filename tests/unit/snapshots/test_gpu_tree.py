"""The tree of GPU time against hand-computed ones and a plain loop, its summary, and its reports."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpuprof.snapshots import tree as trees
from gpuprof.snapshots.errors import EXIT_USAGE, GpuprofError
from gpuprof.snapshots.frames import FrameKind, GpuFacts, Gpus, Query, Tree
from gpuprof.snapshots.history import History
from gpuprof.snapshots.report import json_report, json_text, text_report
from gpuprof.snapshots.timerange import duration_text, wall_iso

S = 10**9
START = 10**12
ALL = Query(1, "gpu", 0, 1 << 60, min_fraction=0.0, max_nodes=1 << 30)
UNION = json.loads((Path(__file__).parent / "data" / "union_and_sum.json").read_text())


def drawn(tree: Tree) -> list[str]:
    return [
        f"{'  ' * row.depth}{row.name} {row.self_weight:g}/{row.total_weight:g}" for row in trees.rows(tree)
    ]


def observe(history: History, *windows: tuple[int, int, float], gpu: str = "G0") -> None:
    series = history.series("gpu_observed", gpu=gpu)
    start, end, value = zip(*windows, strict=True)
    history.add_readings([series] * len(windows), start, end, value)


# ---------------------------------------------------------------------------------------------------- weights


def test_a_tree_computed_by_hand(planted_work: Any, work: Any) -> None:
    planted_work.run(
        work(100, 200, "main step > gemm"),
        work(150, 400, "main step > gemm", stream=13),
        work(400, 410, "main step > add"),
        work(400, 500, "main load > copyHtoD"),
        work(600, 650, "> gemm", tid=0),
        work(700, 700, "main step > gemm"),
    )
    tree = planted_work.history.query(ALL)
    assert drawn(tree) == [
        "all 0/510",
        "  proc7 (7) 0/510",
        "    main 0/460",
        "      step 0/360",
        "        gemm 350/350",
        "        add 10/10",
        "      load 0/100",
        "        copyHtoD 100/100",
        "    [launch not seen] 0/50",
        "      gemm 50/50",
    ]
    assert (tree.tree, tree.unit, tree.truncated) == ("gpu", "ns", 0)
    kinds = [row.kind for row in trees.rows(tree)]
    assert kinds.count(FrameKind.GPU_KERNEL) == 3
    assert kinds.count(FrameKind.GPU_COPY) == 1
    clipped = planted_work.history.query(replace(ALL, start_ns=190, end_ns=405))
    assert drawn(clipped)[-2:] == ["      load 0/5", "        copyHtoD 5/5"]
    assert clipped.total_weight[0] == 10 + 210 + 5 + 5


def test_the_sum_of_the_case_is_the_width_of_the_root(planted_work: Any, work: Any) -> None:
    planted_work.run(
        *(work(start, end, "main > k", stream=stream) for stream, start, end in UNION["intervals_ns"])
    )
    for case in UNION["ranges"]:
        tree = planted_work.history.query(replace(ALL, start_ns=case["range"][0], end_ns=case["range"][1]))
        assert tree.total_weight[0] == case["sum"]


@pytest.mark.parametrize("seed", range(6))
def test_random_work_folds_as_in_a_plain_loop(
    seed: int, planted_work: Any, random_work: Any, path_weights: Any
) -> None:
    rows = random_work(seed, 2500)
    for at in range(0, len(rows), 600):
        planted_work.run(*rows[at : at + 600])
        if seed % 2:
            planted_work.history.roll_generation()
    middle = START + 800_000
    for asked in (
        ALL,
        replace(ALL, by_thread=True),
        replace(ALL, start_ns=middle, end_ns=middle + 50_001),
        replace(ALL, start_ns=middle, end_ns=middle + 1),
        replace(ALL, start_ns=middle + 7, end_ns=middle + 300_000, pids=[1, 3, 99], by_thread=True),
        replace(ALL, gpus=["G1", "G9"]),
        replace(ALL, gpus=["G0"], tids=[101, 202, -1], start_ns=middle),
    ):
        found = path_weights(planted_work.history.query(asked))
        assert found == planted_work.brute(asked)


def test_totals_add_up_whatever_is_cut(planted_work: Any, random_work: Any) -> None:
    planted_work.run(*random_work(3, 2000))
    for changes in ({"min_fraction": 0.02}, {"max_nodes": 12}, {"min_fraction": 1.0}):
        tree = planted_work.history.query(replace(ALL, **changes))
        sums = tree.self_weight.copy()
        np.add.at(sums, tree.parent[1:], tree.total_weight[1:])
        assert np.array_equal(sums, tree.total_weight)


def test_stacks_that_did_not_reach_the_root_are_counted_in_time(planted_work: Any, work: Any) -> None:
    cut = ("[truncated: no rule]", "", "", 0, FrameKind.UNKNOWN)
    whole = work(0, 30, "main > gemm")
    planted_work.run(whole, replace(whole, frames=(cut, *whole.frames)), work(0, 12, "> gemm"))
    assert planted_work.history.query(ALL).truncated == 30
    told = " ".join(text_report(planted_work.history, ALL).split())  # however wide the terminal is
    assert "truncated 30 ns is below stacks that do not reach the root of their thread (41.7 %)" in told


# ---------------------------------------------------------------------------------------------------- summary


@pytest.fixture
def told(planted_work: Any, work: Any) -> History:
    """Ten seconds of two devices: the first observed but for one second, the second never."""
    planted_work.run(
        work(START, START + 2 * S, "main > gemm"),
        work(START + S, START + 3 * S, "main > gemm", stream=13),
        work(START + 3 * S, START + 4 * S, "main > copyHtoD"),
        work(START + 8 * S, START + 8 * S + S // 100, "> gemm", tid=0),
        work(START, START + S, "main > gemm", gpu="G1", pid=9),
    )
    history: History = planted_work.history
    observe(
        history,
        (START, START + 5 * S, 1),
        (START + 5 * S, START + 6 * S, 0),
        (START + 6 * S, START + 10 * S, 1),
    )
    history.set_gpus(Gpus("580", None, [GpuFacts("G1", 0, "H200"), GpuFacts("G0", 1, "H200")]))
    return history


def test_the_summary_says_busy_idle_and_not_observed(told: History) -> None:
    whole = told.query(replace(ALL, start_ns=START, end_ns=START + 10 * S))
    assert whole.summary.split(" · ") == [
        "GPU 0: busy 1.00 s, not observed 9.00 s of 10.0 s; kernels sum 1.00 s; 100 % matched to a launch",
        "GPU 1: busy 4.01 s, idle 4.99 s, not observed 1.00 s of 10.0 s; kernels sum 4.01 s, copies 1.00 s; "
        "99.8 % matched to a launch",
    ]
    part = told.query(replace(ALL, start_ns=START + 5 * S, end_ns=START + 7 * S, gpus=["G0"]))
    assert part.summary == "GPU 1: busy 0 s, idle 1.00 s, not observed 1.00 s of 2.00 s"
    assert part.total_weight[0] == 0


def test_a_summary_of_some_processes_says_that_busy_is_of_all(told: History) -> None:
    tree = told.query(replace(ALL, start_ns=START, end_ns=START + 10 * S, pids=[9]))
    assert tree.total_weight[0] == S
    assert tree.summary.split(" · ") == [
        "GPU 0: busy 1.00 s, not observed 9.00 s of 10.0 s (all processes); here kernels sum 1.00 s; "
        "100 % matched to a launch",
        "GPU 1: busy 4.01 s, idle 4.99 s, not observed 1.00 s of 10.0 s (all processes)",
    ]


def test_a_range_beyond_what_was_recorded_is_of_what_was(told: History) -> None:
    assert "of 10.0 s" in told.query(ALL).summary


def test_a_window_that_is_denied_is_not_observed(planted_work: Any, work: Any) -> None:
    planted_work.run(work(START, START + S, "> gemm"), work(START + 9 * S, START + 10 * S, "> gemm"))
    observe(planted_work.history, (START, START + 10 * S, 1), (START + 3 * S, START + 5 * S, 0))
    summary = planted_work.history.query(replace(ALL, start_ns=START, end_ns=START + 10 * S)).summary
    assert summary == (
        "G0: busy 2.00 s, idle 6.00 s, not observed 2.00 s of 10.0 s; kernels sum 2.00 s; "
        "0 % matched to a launch"
    )


def test_many_devices_are_not_all_named(planted_work: Any, work: Any) -> None:
    planted_work.run(*(work(5, 9, "main > k", gpu=f"G{number:02}") for number in range(40)))
    summary = planted_work.history.query(ALL).summary
    assert summary.startswith("G00: busy 4 ns, not observed")
    assert summary.endswith(" · 24 more devices")


@pytest.mark.parametrize(
    ("ns", "text"),
    [(0, "0 s"), (7, "7 ns"), (999, "999 ns"), (1000, "1.00 µs"), (99_949, "99.9 µs"),
     (312_400_000, "312 ms"),
     (999_600_000, "1.00 s"), (2_104_000_000, "2.10 s"), (3_600 * S, "3600 s")],
)  # fmt: skip
def test_lengths_of_time(ns: int, text: str) -> None:
    assert duration_text(ns) == text


# -------------------------------------------------------------------------------------------- what is refused


def test_no_gpu_work_at_all_is_said_with_a_next_step(planted: Any, row: Any) -> None:
    planted.add(row(1, "a"))
    with pytest.raises(GpuprofError, match="no GPU time was recorded") as error:
        planted.history.query(ALL)
    assert "gpuprof-tui run -- CMD" in error.value.hint


def test_an_empty_range_of_a_recording_with_gpu_work_is_no_error(planted_work: Any, work: Any) -> None:
    planted_work.run(work(100, 200, "main > gemm"))
    tree = planted_work.history.query(replace(ALL, start_ns=300, end_ns=400))
    assert drawn(tree) == ["all 0/0"]
    assert "No GPU work was seen in this range." in text_report(
        planted_work.history, replace(ALL, start_ns=300, end_ns=400)
    )
    assert planted_work.history.query(replace(ALL, start_ns=9, end_ns=3)).total_weight[0] == 0
    assert (
        planted_work.history.query(replace(ALL, start_ns=-(1 << 63), end_ns=1 << 62)).total_weight[0] == 100
    )
    planted_work.history.clear_rows()  # it was recorded, and is not held any more
    assert drawn(planted_work.history.query(ALL)) == ["all 0/0"]


@pytest.mark.parametrize("changes", [{"cpus": [1]}, {"tree": "cpu", "gpus": ["G0"]}])
def test_a_filter_that_a_tree_does_not_have_is_an_error(
    planted_work: Any, work: Any, changes: dict[str, Any]
) -> None:
    planted_work.run(work(100, 200, "main > gemm"))
    with pytest.raises(GpuprofError) as error:
        planted_work.history.query(replace(ALL, **changes))
    assert error.value.exit_code == EXIT_USAGE
    assert error.value.hint


def test_work_that_contradicts_itself_is_refused(planted_work: Any, work: Any) -> None:
    planted_work.run(work(100, 200, "main > gemm"))
    good = {"start_ns": [1], "end_ns": [2], "gpu": [0], "stream": [0], "thread": [0], "stack": [0]}
    planted_work.history.add_gpu_work(**good)
    for change in (
        {"end_ns": [0]}, {"end_ns": [1 << 63]}, {"gpu": [999]}, {"thread": [1]}, {"stack": [999]},
        {"start_ns": [1, 2]},
    ):  # fmt: skip
        with pytest.raises(ValueError):
            planted_work.history.add_gpu_work(**(good | change))
    planted_work.history.add_gpu_work(**{name: [] for name in good})


# ---------------------------------------------------------------------------------------------------- reports


def test_json_has_the_public_form(told: History) -> None:
    report = json_report(told, replace(ALL, start_ns=START + 3 * S, end_ns=START + 10 * S, gpus=["G0"]))
    assert report == {
        "host": "node17",
        "range_ns": [START + 3 * S, START + 10 * S],
        "tree": "gpu",
        "unit": "ns",
        "total": S + S // 100,
        "root": {
            "name": "all", "kind": "root", "self": 0, "total": S + S // 100,
            "children": [{
                "name": "proc7 (7)", "kind": "process", "self": 0, "total": S + S // 100,
                "children": [
                    {"name": "main", "kind": "python", "file": "a.py", "binary": "python3",
                     "self": 0, "total": S,
                     "children": [{"name": "copyHtoD", "kind": "gpu-copy", "self": S, "total": S,
                                   "children": []}]},
                    {"name": "[launch not seen]", "kind": "unknown", "self": 0, "total": S // 100,
                     "children": [{"name": "gemm", "kind": "gpu-kernel", "self": S // 100, "total": S // 100,
                                   "children": []}]},
                ],
            }],
        },
        "sources": [],
        "summary": "GPU 1: busy 1.01 s, idle 4.99 s, not observed 1.00 s of 7.00 s; kernels sum 10.0 ms, "
                   "copies 1.00 s; 99.0 % matched to a launch",
        "range_epoch_ns": [told.hello.wall_ns + 3 * S, told.hello.wall_ns + 10 * S],
        "range_wall": [wall_iso(told, START + 3 * S), wall_iso(told, START + 10 * S)],
        "min_percent": 0.0,
    }  # fmt: skip
    assert json.loads(json_text(report)) == report


def test_text_has_the_summary_and_times(told: History) -> None:
    lines = text_report(
        told, replace(ALL, start_ns=START, end_ns=START + 10 * S, gpus=["G0"]), columns=160
    ).split("\n")
    assert "only      GPU G0" in lines
    assert any(line.startswith("summary   GPU 1: busy 4.01 s, idle 4.99 s") for line in lines)
    assert lines[-7:] == [
        "5.01 s of GPU time; each row with all that it launches",
        "100.0 %   5.01 s ████████████ all",
        "100.0 %   5.01 s ████████████   proc7 (7)",
        " 99.8 %   5.00 s ████████████     main (a.py)",
        " 79.8 %   4.00 s █████████▋         gemm",
        " 20.0 %   1.00 s ██▍                copyHtoD",
        "  0.2 %  10.0 ms                  other (1)",
    ]
