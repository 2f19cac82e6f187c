"""Estimated parts of the tree of GPU time: by hand, and 100 simulated workloads against their truth."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from gpuprof.snapshots import report, simplify
from gpuprof.snapshots import tree as trees
from gpuprof.snapshots.frames import STACK_NOT_TAKEN, UNMATCHED_LAUNCH, FrameKind, Query, Tree

NOT_TAKEN = STACK_NOT_TAKEN.replace(" ", "_")
UNSEEN = UNMATCHED_LAUNCH.replace(" ", "_")


def named(tree: Tree) -> dict[str, Any]:
    return {row.name: row for row in trees.rows(tree)}


def test_time_without_stacks_is_spread_over_the_paths_of_the_sampled_launches(stories: Any) -> None:
    story = stories.Story()
    story.gpu(7, "main a %gemm", 0, 1, weight=4)  # stands for 3 more of 1 ms
    story.gpu(7, "main b %gemm", 1, 3, weight=2)  # stands for 1 more of 2 ms
    story.gpu(7, "main c %add", 3, 4)  # exact
    story.gpu(7, f"{NOT_TAKEN} %gemm", 10, 20)
    story.gpu(7, f"{NOT_TAKEN} %relu", 20, 21)  # none of its launches has a stack
    tree = story.ask("gpu", 0, 100)
    found = stories.totals(tree)
    assert found == {
        "": 15.0,
        "proc7 (7)": 15.0,
        "proc7 (7) / main": 14.0,
        "proc7 (7) / main / a": 7.0,  # 1 + 10 * 3 / 5
        "proc7 (7) / main / a / gemm": 7.0,
        "proc7 (7) / main / b": 6.0,  # 2 + 10 * 2 / 5
        "proc7 (7) / main / b / gemm": 6.0,
        "proc7 (7) / main / c": 1.0,
        "proc7 (7) / main / c / add": 1.0,
        "proc7 (7) / [stack not taken]": 1.0,
        "proc7 (7) / [stack not taken] / relu": 1.0,
    }
    rows = named(tree)
    marked = {row.name for row in trees.rows(tree) if row.estimated}
    assert marked == {"main", "a", "b", "gemm"}
    assert tree.truncated == 0
    # parts 6 and 4 ms of rows of 1 and 2 ms: w' (w' - 1) d^2 = 6 * 7 and 4 * 6; p = 0.6
    variance = 42 * (1 - 2 * 0.6) + 0.6**2 * (42 + 24)
    assert rows["a"].error == pytest.approx(1e6 * math.sqrt(variance))
    assert rows["b"].error == pytest.approx(rows["a"].error)
    assert rows["main"].error > 0  # two sampled launches do not show that there is no other path
    assert rows["c"].error is None
    simplified = simplify.without_internals(tree).tree
    assert simplified.estimated.tolist() == tree.estimated.tolist()


def test_groups_are_process_device_and_kernel(stories: Any) -> None:
    story = stories.Story(process_of={9: 9})
    story.gpu(7, "main a %gemm", 0, 1, weight=2)
    story.gpu(7, f"{NOT_TAKEN} %gemm", 1, 3, gpu="G1")  # another device
    story.gpu(9, f"{NOT_TAKEN} %gemm", 1, 3)  # another process
    story.gpu(7, f"{UNSEEN} %gemm", 5, 9, weight=0)  # its launch was not even seen
    story.gpu(7, f"{NOT_TAKEN} %gemm", 9, 14)
    found = stories.totals(story.ask("gpu", 0, 100))
    assert found["proc7 (7) / main / a / gemm"] == 6.0
    assert found["proc7 (7) / [stack not taken] / gemm"] == 2.0
    assert found["proc9 (9) / [stack not taken] / gemm"] == 2.0
    assert found["proc7 (7) / [launch not seen] / gemm"] == 4.0
    assert stories.totals(story.ask("gpu", 0, 100, gpus=["G0"], pids=[7]))[""] == 10.0


def test_without_weights_of_a_sample_the_known_launches_take_shares(stories: Any) -> None:
    story = stories.Story()
    story.gpu(7, "main a %gemm", 0, 1)
    story.gpu(7, "main b %gemm", 1, 4)
    story.gpu(7, f"{NOT_TAKEN} %gemm", 10, 18)
    tree = story.ask("gpu", 0, 100, by_thread=True)
    found = stories.totals(tree)
    assert found["proc7 (7) / t7 (7) / main / a"] == 3.0
    assert found["proc7 (7) / t7 (7) / main / b"] == 9.0
    assert named(tree)["a"].estimated


def test_what_is_exact_is_not_marked(stories: Any) -> None:
    story = stories.Story()
    story.gpu(7, "main a %gemm", 0, 1)
    tree = story.ask("gpu", 0, 100)
    assert not tree.estimated.any()
    assert np.isnan(tree.error).all()
    parsed = json.loads(report.json_text(report.json_report(story.history, Query(0, "gpu", 0, 1 << 60))))
    assert "estimated" not in json.dumps(parsed)


# ------------------------------------------------------------------------------------------------- simulation

PATHS = ["step forward attn", "step forward mlp", "step backward attn", "step backward mlp", "eval head"]
KERNELS = ["gemm", "add"]


def workload(rng: np.random.Generator, kind: str, count: int) -> tuple[Any, Any, Any]:
    """Path, kernel and duration (ns) of each launch, in order."""
    share = rng.dirichlet(np.full(len(PATHS), 0.7 if kind == "skewed" else 3.0))
    if kind == "bursty":  # long runs of one path
        path = np.repeat(rng.choice(len(PATHS), count, p=share), rng.geometric(0.03, count))[:count]
    elif kind == "periodic":  # a fixed pattern, over and over
        path = np.resize(rng.choice(len(PATHS), int(rng.integers(7, 60)), p=share), count)
    else:
        path = rng.choice(len(PATHS), count, p=share)
    kernel = (rng.random(count) < 0.3 + 0.1 * (path % 3)).astype(np.intp)
    usual = rng.lognormal(np.log(30_000), 1.0, (len(PATHS), len(KERNELS)))
    spread = 1.2 if kind == "skewed" else 0.3
    return path, kernel, (usual[path, kernel] * rng.lognormal(0, spread, count)).astype(np.int64) + 1


def truth_of(path: Any, kernel: Any, duration: Any) -> dict[str, float]:
    """The time (ns) of each row of the tree, by path as in stories.totals."""
    truth: dict[str, float] = {"": float(duration.sum()), "proc7 (7)": float(duration.sum())}
    for p, words in enumerate(PATHS):
        for k, name in enumerate(KERNELS):
            time = float(duration[(path == p) & (kernel == k)].sum())
            names = ["proc7 (7)", "main", *words.split(), name]
            for depth in range(2, len(names) + 1):
                at = " / ".join(names[:depth])
                truth[at] = truth.get(at, 0.0) + time
    return truth


def simulated(stories: Any, seed: int) -> tuple[Tree, dict[str, float]]:
    """The tree of a workload of which launches were drawn at a rate that changes, and the truth by path."""
    rng = np.random.default_rng(seed)
    kind = ("bursty", "periodic", "skewed")[seed % 3]
    path, kernel, duration = workload(rng, kind, 6000)
    count = len(path)
    weight = np.repeat(rng.choice([1, 8, 20, 50], 12, p=[0.1, 0.4, 0.3, 0.2]), count // 12 + 1)[:count]
    drawn = rng.random(count) < 1 / weight
    story = stories.Story()
    history = story.history
    stacks = np.array([[story.stack(f"main {p} %{k}") for k in KERNELS] for p in PATHS])
    without = np.array([story.stack(f"{NOT_TAKEN} %{k}") for k in KERNELS])
    start = stories.ORIGIN + np.cumsum(duration)
    history.add_gpu_work(
        start_ns=start, end_ns=start + duration, gpu=np.full(count, history.tables.string("G0")),
        stream=np.zeros(count), thread=np.full(count, story.thread(7)),
        stack=np.where(drawn, stacks[path, kernel], without[kernel]), weight=np.where(drawn, weight, 0),
    )  # fmt: skip
    return history.query(Query(1, "gpu", 0, 1 << 60, min_fraction=0.0)), truth_of(path, kernel, duration)


def test_the_shown_intervals_contain_the_truth(stories: Any) -> None:
    """In 100 seeded workloads: the 95 % interval of a path chosen before, and of all rows of at least 1 %."""
    target = "proc7 (7) / main / step / forward / attn"
    held = shown = inside = targets = 0
    for seed in range(100):
        tree, truth = simulated(stories, seed)
        found = stories.totals(tree)
        assert found[""] == pytest.approx(truth[""] / 1e6)
        by_kernel: dict[str, float] = {}
        for path, row in zip(found, trees.rows(tree), strict=True):
            if row.kind == FrameKind.GPU_KERNEL:
                by_kernel[row.name] = by_kernel.get(row.name, 0.0) + row.total_weight
            if not row.estimated or row.total_weight < 0.01 * truth[""]:
                continue
            assert row.error is not None
            well = abs(row.total_weight - truth[path]) <= 1.96 * row.error
            shown += 1
            inside += well
            if path == target:
                targets += 1
                held += well
        for kernel in KERNELS:  # exact, however few launches have a stack
            whole = sum(time for path, time in truth.items() if path.endswith(f" / {kernel}"))
            assert by_kernel[kernel] == pytest.approx(whole)
    assert targets >= 80
    assert held >= 0.9 * targets
    assert inside >= 0.9 * shown


# ------------------------------------------------------------------------------------- recorded now and then


def now_and_then(stories: Any) -> Any:
    """1 s of which 300 of the 900 ms from the first to the last recorded instant were recorded."""
    story = stories.Story()
    for start in (0, 400, 800):
        story.observed(start, start + 100)
        story.observed(start + 100, min(start + 400, 1000), value=0.0)
        story.gpu(7, "main a %gemm", start, start + 20 + start / 100)
        story.gpu(7, "main b %gemm", start + 50, start + 60)
    return story


def test_time_that_was_not_recorded_is_scaled_only_where_asked(stories: Any) -> None:
    story = now_and_then(stories)
    plain = story.ask("gpu", 0, 1000)
    assert stories.totals(plain)["proc7 (7) / main / a"] == 72.0
    assert not plain.estimated.any()
    tree = story.ask("gpu", 0, 1000, scaled=True)
    rows = named(tree)
    assert rows["a"].total_weight == pytest.approx(3 * 72e6)  # 900 ms for 300; the last 100 ms are no pause
    assert rows["all"].total_weight == pytest.approx(3 * (72 + 30) * 1e6)
    assert rows[
        "a"
    ].error == pytest.approx(  # by hand: k / (k - 1) of the windows' deviations, unrecorded part
        3e6 * math.sqrt(2 / 3 * 1.5 * ((20 - 24) ** 2 + (24 - 24) ** 2 + (28 - 24) ** 2))
    )
    assert rows["b"].estimated  # the same in each window, which does not show that the pauses are like them
    assert rows["b"].error is None
    assert rows["all"].error == pytest.approx(rows["a"].error)
    assert "the tree is scaled from the 33 % of 900 ms that was recorded" in tree.summary
    one = story.ask("gpu", 0, 300, scaled=True)
    assert named(one)["a"].estimated
    assert named(one)["a"].total_weight == pytest.approx(3 * 20e6)
    assert named(one)["a"].error is None  # from one window it cannot be told
    assert not story.ask("gpu", 0, 100, scaled=True).estimated.any()


@pytest.mark.parametrize("low", [0, 450, 800])
def test_what_comes_after_the_last_recorded_instant_is_not_made_up(low: int, stories: Any) -> None:
    story = now_and_then(stories)
    short, long = (story.ask("gpu", low, end, scaled=True) for end in (900, 1000))
    assert stories.totals(short) == stories.totals(long)
    assert np.array_equal(short.error, long.error, equal_nan=True)
    assert ("scaled" in long.summary) == bool(long.estimated.any()) == (low < 800)


def test_a_start_that_was_not_observed_and_an_end_are_no_pauses(stories: Any) -> None:
    """Recorded from 400 to 900 of 1000 ms, with work before that, which counts as it is; no pause at all."""
    story = stories.Story()
    story.observed(0, 400, value=0.0)
    for start in range(400, 900, 100):
        story.observed(start, start + 100)
    story.observed(900, 1000, value=0.0)
    story.gpu(7, "main a %gemm", 300, 310)
    story.gpu(7, "main a %gemm", 390, 410)
    story.gpu(7, "main a %gemm", 500, 540)
    for low, high in ((0, 1000), (0, 450), (350, 1000), (0, 350), (880, 1000)):
        plain, scaled = (story.ask("gpu", low, high, scaled=scale) for scale in (False, True))
        assert stories.totals(scaled) == stories.totals(plain)
        assert not scaled.estimated.any()
        assert scaled.summary == plain.summary


def test_only_pauses_are_scaled_and_work_outside_of_all_windows_is_as_it_was(stories: Any) -> None:
    """Windows [100, 200) and [400, 600) of [0, 1000): 300 of 500 ms, and 10 ms each before and after."""
    story = stories.Story()
    story.observed(0, 100, value=0.0)
    story.observed(100, 200)
    story.observed(200, 400, value=0.0)
    story.observed(400, 600)
    story.observed(600, 1000, value=0.0)
    for start in (50, 120, 250, 420, 700):  # at 250 in a pause, of which the windows tell
        story.gpu(7, "main a %gemm", start, start + 10)
    story.gpu(7, "main b %gemm", 450, 480)
    tree = story.ask("gpu", 0, 1000, scaled=True)
    rows = named(tree)
    scale = 500 / 300
    assert rows["a"].total_weight == pytest.approx((10 + 20 * scale + 10) * 1e6)
    assert rows["b"].total_weight == pytest.approx(30 * scale * 1e6)
    # y: 10 and 10 of 20 in windows of 1/3 and 2/3; (1 - 300/500) * 2 = 0.8
    assert rows["a"].error == pytest.approx(1e6 * scale * math.sqrt(0.8 * 2) * 20 / 6)
    assert rows["b"].error == pytest.approx(1e6 * scale * math.sqrt(0.8 * 2) * 10)
    assert "the tree is scaled from the 60 % of 500 ms that was recorded" in tree.summary


def test_work_that_began_before_the_range_in_a_window_that_goes_on_counts(stories: Any) -> None:
    story = now_and_then(stories)
    tree = story.ask("gpu", 10, 900, scaled=True)  # 10 of the 20 ms of the first, 290 of 890 ms recorded
    assert named(tree)["a"].total_weight == pytest.approx((10 + 24 + 28) * 890 / 290 * 1e6)


def test_a_text_says_that_an_error_is_not_known(stories: Any) -> None:
    story = now_and_then(stories)
    first = stories.ORIGIN
    text = report.text_report(story.history, Query(0, "gpu", first, first + 10**9, scaled=True), columns=120)
    lines = {line.split()[-2]: line for line in text.splitlines() if line.endswith(".py)")}
    assert "± one standard error (?: not known)" in text
    assert "90.0 ms ±? " in lines["b"]
    assert "216 ms ±17.0 ms" in lines["a"]
    assert "±0" not in text


@pytest.mark.parametrize("kind", ["bursty", "periodic", "skewed"])
def test_scaled_times_contain_the_truth(stories: Any, kind: str) -> None:
    """34 seeded workloads of a kind, recorded for a quarter of the time in windows with random gaps; the
    periodic one has the mean period of the windows. What comes after the last one is not estimated.
    """
    held = shown = 0
    slots, slot_ns = 60, 50_000_000
    for seed in range(34):
        rng = np.random.default_rng(seed)
        path, kernel, duration = workload(rng, "skewed" if kind == "skewed" else "bursty", 6000)
        gap = rng.exponential(slots * slot_ns / 6000, 6000).astype(np.int64)
        if kind == "periodic":
            at = (
                np.sort(rng.integers(0, slots, 6000)) * slot_ns
                + (path * slot_ns // 6)
                + rng.integers(0, 10**6, 6000)
            )
        else:
            at = np.cumsum(gap) * (slots * slot_ns) // int(gap.sum() + 1)
        at = np.minimum(at, slots * slot_ns - duration)
        begin = np.cumsum(slot_ns // 4 + rng.exponential(slot_ns * 3 / 4, 2 * slots).astype(np.int64))
        begin = np.concatenate([[0], begin[begin < slots * slot_ns]])
        story = stories.Story()
        history = story.history
        for edge in begin.tolist():
            story.observed(edge / 1e6, (edge + slot_ns // 4) / 1e6)
        window = np.searchsorted(begin, at, "right") - 1
        inside = (window >= 0) & (at < begin[window] + slot_ns // 4)
        stacks = np.array([[story.stack(f"main {p} %{k}") for k in KERNELS] for p in PATHS])
        start = stories.ORIGIN + at[inside]
        count = len(start)
        history.add_gpu_work(
            start_ns=start, end_ns=start + duration[inside], gpu=np.full(count, history.tables.string("G0")),
            stream=np.zeros(count), thread=np.full(count, story.thread(7)),
            stack=stacks[path, kernel][inside],
        )  # fmt: skip
        tree = story.ask("gpu", 0, slots * slot_ns / 1e6, scaled=True)
        told = at < begin[-1] + slot_ns // 4  # up to the last recorded instant
        truth = truth_of(path[told], kernel[told], duration[told])
        for name, row in zip(stories.totals(tree), trees.rows(tree), strict=True):
            if row.error is not None and row.total_weight >= 0.02 * tree.total_weight[0]:
                shown += 1
                held += abs(row.total_weight - truth[name]) <= 1.96 * row.error
    assert shown > 100
    assert held >= 0.9 * shown
