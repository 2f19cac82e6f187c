"""The words of a summary are those of the range and the tree, whatever of the tree is shown, and where."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpuprof.snapshots import report
from gpuprof.snapshots.errors import GpuprofError
from gpuprof.snapshots.file import SnapshotWriter, read_snapshot
from gpuprof.snapshots.frames import NOT_SEEN, FrameKind, Query, Tree
from gpuprof.snapshots.history import History
from gpuprof.snapshots.telling import telling
from gpuprof.snapshots.telling_tree import telling_tree
from gpuprof.snapshots.tree_nodes import Nodes

HERE = Path(__file__).parent
RECORDED = HERE.parents[2] / "snapshots" / "recorded" / "pytorch-slow-loader-h200.gpuprof"
H200 = HERE.parents[1] / "formats" / "h200"
TREES = ("cpu", "gpu", "idle", "offcpu")
LIMITS = (
    {},
    {"min_fraction": 0.0},
    {"min_fraction": 0.005},
    {"min_fraction": 0.3},
    {"min_fraction": 0.0, "max_nodes": 200_000},
    {"max_nodes": 20},
    {"by_thread": True},
    {"by_thread": True, "min_fraction": 0.02},
)


@pytest.fixture(scope="module")
def demo() -> History:
    return read_snapshot(str(RECORDED)).history


def ranges(history: History, seed: int, count: int) -> list[tuple[int, int]]:
    """The whole of it, and parts of 1 ms up to all of it."""
    first, last = history.span
    rng = random.Random(seed)
    found = [(first, last)]
    for _ in range(count):
        length = int((last - first) * 10 ** rng.uniform(-5, 0))
        low = rng.randrange(first, max(last - length, first + 1))
        found.append((low, low + max(length, 10**6)))
    return found


def said(history: History, tree: str, low: int, high: int, **more: Any) -> str:
    try:
        return history.query(Query(1, tree, low, high, **more)).summary
    except GpuprofError as error:  # this tree was not recorded
        return error.message


@pytest.mark.timeout(300)  # many seconds of CPU time, which a busy machine may give slowly
@pytest.mark.parametrize("tree", TREES)
def test_what_is_shown_of_a_tree_does_not_change_its_summary(demo: History, tree: str) -> None:
    for low, high in ranges(demo, 1, 8):
        assert len({said(demo, tree, low, high, **more) for more in LIMITS}) == 1


@pytest.mark.parametrize("path", sorted(H200.glob("*.gpuprof")), ids=lambda path: path.stem)
def test_of_other_recordings(path: Path) -> None:
    """Of one and of two devices, of many short processes, of every planted cause."""
    history = read_snapshot(str(path)).history
    for tree in TREES:
        for low, high in ranges(history, 2, 1):
            assert len({said(history, tree, low, high, **more) for more in LIMITS[:6:2]}) == 1


@pytest.mark.timeout(300)  # many seconds of CPU time, which a busy machine may give slowly
@pytest.mark.parametrize("tree", TREES)
def test_the_screen_the_report_and_json_say_the_same(demo: History, tree: str) -> None:
    """The screen asks as Query has it by default (tree_feed.py); tests/tui has the words on the screen."""
    for low, high in ranges(demo, 3, 2):
        words = said(demo, tree, low, high)
        query = Query(0, tree, low, high)
        try:
            lines = report.text_report(demo, query, columns=4000).split("\n")
        except GpuprofError:
            continue
        told = [line.removeprefix("summary   ") for line in lines if line.startswith("summary   ")]
        assert " · ".join(told) == words
        for least in (0.0, 0.0005):
            asked = Query(0, tree, low, high, min_fraction=least, max_nodes=200_000)
            found = json.loads(report.json_text(report.json_report(demo, asked)))
            assert found["summary"] == words


def test_a_snapshot_says_what_was_said_when_it_was_saved(demo: History, tmp_path: Path) -> None:
    first, last = demo.span
    path = tmp_path / "copy.gpuprof"
    with SnapshotWriter(path, demo.hello) as writer:
        writer.write(demo.frames_between(first, last + 1))
    copy = read_snapshot(path).history
    for tree in TREES:
        for low, high in ranges(demo, 4, 3):
            assert said(copy, tree, low, high) == said(demo, tree, low, high)


def state_shares(tree: Tree) -> dict[str, float]:
    """What part of an uncut tree was spent in each outermost wait, was not seen, or was on the CPU ("")."""
    state: list[str] = []
    found: dict[str, float] = {}
    for row, parent in enumerate(tree.parent.tolist()):
        name = tree.strings[int(tree.name[row])]
        own = name if tree.kind[row] == FrameKind.WAIT or name == NOT_SEEN else ""
        state.append((state[parent] if row else "") or own)
        found[state[-1]] = found.get(state[-1], 0.0) + float(tree.self_weight[row])
    return {name: weight / float(tree.total_weight[0]) for name, weight in found.items()}


def test_a_line_is_said_to_be_one_of_several_where_it_holds_less_than_half(stories: Any) -> None:
    story = stories.Story(names={7: "train"})
    story.gpu(7, "main %gemm", 0, 100)
    story.observed(0, 1100)
    for number, (low, high) in enumerate(((100, 500), (500, 800), (800, 1100))):
        story.on_cpu(7, f"main@/srv/train/__main__.py:{number + 1}", low, high)
    tree = story.ask("idle", 0, 1100)
    assert "100 % in main (train/__main__.py:1 and other lines), on CPU" in tree.summary
    tree = story.ask("idle", 0, 800)
    assert "100 % in main (train/__main__.py:1), on CPU" in tree.summary


def idle_story(stories: Any, **more: Any) -> Any:
    story = stories.Story(**more)
    story.gpu(7, "main %gemm", 0, 100)
    story.gpu(7, "main %gemm", 10_100, 10_200)
    story.observed(0, 10_200)
    return story


def test_waits_in_many_small_places_are_waits(stories: Any) -> None:
    """1,000 places of 8 ms each, 0.08 % of the idle time: together 80 %."""
    story = idle_story(stories, names={7: "train"})
    for number in range(1000):
        start = 100 + 10 * number
        story.wait(7, f"main@train.py:5 step{number} read <disk_or_file_I/O>", start, start + 8)
    for start in range(100, 10_100, 10):
        story.on_cpu(7, "main@train.py:5 step", start + 8, start + 10, 1)
    tree = story.ask("idle", 0, 10_200)
    assert state_shares(tree) == pytest.approx({"": 0.2, "disk or file I/O": 0.8})
    assert "100 % in main (train.py:5), waiting (disk or file I/O)" in tree.summary


def test_who_ends_waits_in_many_small_places(stories: Any) -> None:
    story = idle_story(stories, names={7: "train", 8: "hog"})
    for number in range(1000):
        start = 100 + 10 * number
        story.wait(
            7, f"main get{number}@get.py <futex> <woken_by_hog> put{number}", start, start + 8, waker=8
        )
    tree = story.ask("idle", 0, 10_200)
    assert "waiting (futex), woken by hog" in tree.summary


def test_what_many_small_processes_do_is_told_as_one(stories: Any) -> None:
    """600 processes, each with a 600th of the idle time, all at one place."""
    pids = range(1000, 1600)
    story = stories.Story(names=dict.fromkeys(pids, "python3"), process_of={pid: pid for pid in pids})
    for pid in pids:
        story.gpu(pid, "launch %gemm", 0, 1)
        story.wait(pid, "main short_work@work.py:3 <poll>", 1, 101)
    story.observed(0, 101)
    tree = story.ask("idle", 0, 101)
    assert state_shares(tree)["poll"] == pytest.approx(1.0)
    assert "100 % in short_work (work.py:3), waiting (poll)" in tree.summary


@pytest.mark.parametrize("seed", range(12))
def test_the_state_of_random_idle_time(stories: Any, seed: int) -> None:
    """No function holds a third, so that the state of the whole is told; by counting in an uncut tree."""
    rng = random.Random(seed)
    names = {100 + n: f"p{n % 3}" for n in range(6)}
    story = stories.Story(names=names, process_of={tid: tid for tid in names})
    for tid in names:
        story.gpu(tid, "go %gemm", 0, 1)
    story.observed(0, 5000)
    waits = ["<poll>", "<futex>", "<disk_or_file_I/O>", "<sleep>"][: rng.randrange(1, 5)]
    for tid in names:
        at = 1
        while at < 5000:
            length = rng.choice([1, 3, 30, 100])
            path = f"f{rng.randrange(12)} g{rng.randrange(300)}"
            if rng.random() < 0.6:
                story.wait(tid, f"{path} {rng.choice(waits)}", at, min(at + length, 5000))
            else:
                story.on_cpu(tid, path, at, at + length, 1)
            at += length
    tree = story.ask("idle", 0, 5000)
    shares = state_shares(tree)
    state = max(shares, key=lambda name: shares[name])
    expected = f"{100 * shares[state]:.0f} % {f'waiting ({state})' if state else 'on CPU'}"
    assert expected in tree.summary, shares
    for more in LIMITS:
        low, high = (stories.ORIGIN + at * stories.MS for at in (0, 5000))
        assert said(story.history, "idle", low, high, **more) == tree.summary


def test_a_function_that_is_called_like_what_is_not_known_counts_once() -> None:
    """A program may call its functions as it likes, and have one call itself."""
    labels = [("all", "", "", 0, int(FrameKind.ROOT)), (NOT_SEEN, "", "", 0, int(FrameKind.UNKNOWN))]
    chain, weight = np.array([0, 0, 1]), np.array([0.0, 50.0, 50.0])
    nodes = Nodes(chain, np.array([0, 1, 1]), np.arange(3), weight, np.array([100.0, 100.0, 50.0]), labels)
    found = telling(telling_tree(nodes))
    assert found is not None
    assert (found.share, found.known) == (1.0, False)
