"""Slices of waits that lasted: all have the waker of the last one; by hand, and against a plain loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpuprof.snapshots import wait_slices
from gpuprof.snapshots.file import SnapshotWriter, read_snapshot
from gpuprof.snapshots.frames import NO_THREAD, FrameKind, WaitKind
from gpuprof.snapshots.history import History
from gpuprof.snapshots.people import People
from gpuprof.snapshots.row_cut import cut
from gpuprof.snapshots.wait_slices import PersonRows

ORIGIN, MS = 10**12, 10**6  # of a story
HOST = "main get <futex>"
WOKEN = f"{HOST} <woken_by_worker> work put"


def long_wait(stories: Any, *, rolled: tuple[int, ...] = ()) -> Any:
    """Thread 7 waits from 0 to 60 in slices of 10, `rolled`: before which slices new tables begin."""
    story = stories.Story(names={7: "python3", 40: "worker"}, process_of={40: 4})
    for start in range(0, 60, 10):
        if start in rolled:
            story.history.roll_generation()
        last = start == 50
        story.wait(7, WOKEN if last else HOST, start, start + 10, waker=40 if last else None)
        story.wait(
            9, "other nap <sleep> <woken_by_a~timer>", start, start + 10
        )  # the same edges, other waits
    story.wait(7, "main get <futex>", 60.5, 70)  # the next wait, which goes on
    return story


@pytest.mark.parametrize("rolled", [(), (20,), (10, 30, 50), (60,)])
def test_the_slices_of_a_wait_have_its_waker(stories: Any, rolled: tuple[int, ...]) -> None:
    story = long_wait(stories, rolled=rolled)
    found = stories.totals(story.ask("offcpu", 0, 100, tids=[7]))
    assert found["python3 (7) / main / get / futex"] == 69.5
    assert found["python3 (7) / main / get / futex / woken by worker / work / put"] == 60.0
    said = story.ask("offcpu", 0, 100, tids=[7]).summary
    assert said == "python3 (7) waited 69.5 ms of thread time: 100 % futex (woken by worker)"
    assert stories.totals(story.ask("offcpu", 0, 100, tids=[9]))[""] == 60.0


@pytest.mark.parametrize("rolled", [(), (20,), (10, 30, 50)])
def test_a_range_that_ends_before_the_wait_did(stories: Any, rolled: tuple[int, ...]) -> None:
    story = long_wait(stories, rolled=rolled)
    for start, end in ((0, 25), (5, 10), (12, 13), (0, 30), (15, 50), (20, 60)):
        found = stories.totals(story.ask("offcpu", start, end, tids=[7]))
        assert found["python3 (7) / main / get / futex / woken by worker"] == end - start
    assert stories.totals(story.ask("offcpu", 61, 65))["python3 (7) / main / get / futex"] == 4.0
    assert not any("woken" in path for path in stories.totals(story.ask("offcpu", 61, 65)))


def test_a_wait_that_goes_on_has_no_waker(stories: Any) -> None:
    story = stories.Story()
    for start in range(0, 50, 10):
        story.wait(7, HOST, start, start + 10)
    for range_ in ((0, 50), (0, 20), (10, 90)):
        assert not any("woken" in path for path in stories.totals(story.ask("offcpu", *range_)))


@pytest.mark.parametrize(
    ("first", "second", "kind"),
    [
        ("main get <futex>", "main get <poll> <woken_by_a~timer>", WaitKind.BLOCKED),
        ("main get <futex>", "main get <futex> <woken_by_a~timer>", WaitKind.RUNNABLE),
        ("main get <futex>", "main get <futex> <woken_by_a~timer>", WaitKind.SYNC),
    ],
)
@pytest.mark.parametrize("rolled", [False, True])
def test_other_waits_that_begin_where_one_ends_are_others(
    stories: Any, first: str, second: str, kind: WaitKind, rolled: bool
) -> None:
    story = stories.Story()
    story.wait(7, first, 0, 10)
    if rolled:
        story.history.roll_generation()
    story.wait(7, second, 10, 20, kind=kind)
    found = stories.totals(story.ask("offcpu", 0, 10))
    assert not any("woken" in path for path in found)
    whole = stories.totals(story.ask("offcpu", 0, 20))
    assert sum(ms for path, ms in whole.items() if path.endswith("woken by a timer")) == 10.0


@pytest.mark.parametrize("rolled", [False, True])
def test_a_stack_that_was_not_known_at_first_is_that_of_the_last_slice(stories: Any, rolled: bool) -> None:
    story = stories.Story()
    story.wait(7, ":main_guessed <futex>", 0, 10)
    if rolled:
        story.history.roll_generation()
    story.wait(7, "main get <futex> <woken_by_a~timer>", 10, 20)
    found = stories.totals(story.ask("offcpu", 0, 20))
    assert found["proc7 (7) / main / get / futex / woken by a timer"] == found[""] == 20.0


def test_from_a_file(stories: Any, tmp_path: Path) -> None:
    story = long_wait(stories, rolled=(20, 40))
    path = tmp_path / "x.gpuprof"
    with SnapshotWriter(path, story.history.hello) as writer:
        writer.write(story.history.frames_between(0, 1 << 60))
    story.history = read_snapshot(path).history
    found = stories.totals(story.ask("offcpu", 0, 100, tids=[7]))
    assert found["python3 (7) / main / get / futex / woken by worker / work / put"] == 60.0


@pytest.mark.parametrize("rolled", [(), (20,), (10, 30, 50)])
def test_a_range_that_is_saved_says_what_it_said(
    stories: Any, tmp_path: Path, rolled: tuple[int, ...]
) -> None:
    """The file ends before the slices that have the waker: they give it to those that are saved."""
    story = long_wait(stories, rolled=rolled)
    whole = story.history
    for number, (start, end) in enumerate(((0, 25), (5, 10), (12, 13), (0, 30), (15, 50), (61, 65))):
        story.history = whole
        said = story.ask("offcpu", start, end)
        low, high = ORIGIN + start * MS, ORIGIN + end * MS
        path = tmp_path / f"{number}.gpuprof"
        with SnapshotWriter(path, whole.hello) as writer:
            writer.recorded(low, high)
            cuts = [cut(frame, low, high) for frame in whole.frames_between(low, high)]
            writer.write([frame for frame in cuts if frame is not None])
        story.history = read_snapshot(path).history
        saved = story.ask("offcpu", start, end)
        assert stories.totals(saved) == stories.totals(said)
        assert saved.summary == said.summary
        # Without a filter of time, too: nothing of what came behind the range is in the file.
        assert stories.totals(story.ask("offcpu", -1000, 1000)) == stories.totals(said)


def test_idle_time_is_told_by_what_the_waker_did_all_along(stories: Any) -> None:
    story = stories.Story(names={7: "python3", 40: "worker"}, process_of={40: 4})
    story.gpu(7, "main step %gemm", 0, 10)
    for start in range(10, 100, 30):
        story.wait(7, WOKEN if start == 70 else HOST, start, start + 30, waker=40 if start == 70 else None)
    story.on_cpu(40, "work transform", 0, 100)
    story.observed(0, 100)
    found = stories.totals(story.ask("idle", 0, 100))
    woken = "python3 (7) / main / get / futex / woken by worker"
    assert found[f"{woken} / meanwhile worker / work / transform"] == pytest.approx(90.0)
    assert "in transform (transform.py)" in story.ask("idle", 0, 100).summary


def plain(rows: list[dict[str, int]]) -> list[dict[str, int]]:
    """The same by a loop: rows of one generation, with `wait` and `woken` frames by stack."""
    told = []
    for row in rows:
        last, seen = row, 0
        while row["kind"] == WaitKind.BLOCKED and not last["woken"] and seen < len(rows):
            following = [
                other
                for other in rows
                if other["kind"] == WaitKind.BLOCKED
                and (other["person"], other["start"], other["wait"])
                == (last["person"], last["end"], last["wait"])
                and other["end"] > other["start"]
                and last["end"] > last["start"]
            ]
            if not following:
                break
            last, seen = following[0], seen + 1
        told.append({**row, "stack": last["stack"]} if last["woken"] else row)
    return told


@pytest.mark.parametrize("seed", range(30))
def test_against_a_plain_loop(stories: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    story = stories.Story()
    tables = story.history.tables
    stacks = [story.stack(f"main f{n} <futex{n}>{end}") for n in range(2) for end in ("", " <woken_by_x> g")]
    threads = [story.thread(tid) for tid in range(5, 8)]
    rows = []
    for thread in threads:
        edges = np.unique(rng.integers(1, 60, 25))  # no two rows of a thread begin at one time
        for start, following in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            stack = int(rng.choice(4, p=[0.4, 0.1, 0.4, 0.1]))
            end = following if rng.random() < 0.8 else start
            kind = WaitKind.BLOCKED if rng.random() < 0.9 else WaitKind.RUNNABLE
            rows.append(
                {"person": thread, "start": start, "end": end, "stack": stacks[stack], "kind": int(kind),
                 "wait": stack // 2, "woken": stack % 2}
            )  # fmt: skip
    order = rng.permutation(len(rows)).tolist()
    rows = [rows[n] for n in order]
    columns = {
        "start_ns": np.array([row["start"] for row in rows], np.uint64),
        "end_ns": np.array([row["end"] for row in rows], np.uint64),
        "thread": np.array([row["person"] for row in rows], np.uint32),
        "stack": np.array([row["stack"] for row in rows], np.uint32),
        "waker": np.full(len(rows), NO_THREAD, np.uint32),
        "weight": np.ones(len(rows), np.float32),
        "kind": np.array([row["kind"] for row in rows], np.uint8),
    }
    view = tables.view()
    person = People().of(view, columns["thread"])
    (found,) = wait_slices.with_wakers([PersonRows(view, columns, person)])
    names = ("thread", "start_ns", "end_ns", "stack", "kind")
    got = sorted(zip(*(found.columns[name].tolist() for name in names), strict=True))
    wanted = sorted(
        (row["person"], row["start"], row["end"], row["stack"], row["kind"]) for row in plain(rows)
    )
    assert got == wanted


def test_later_slices_of_many_waits_are_found_block_by_block(stories: Any) -> None:
    story = stories.Story()
    history: History = story.history
    host, woken = story.stack(HOST), story.stack("main get <futex> <woken_by_x> g")
    assert history.tables.view().kind.max() == FrameKind.WAIT
    threads = [story.thread(tid) for tid in range(100, 140)]
    for start in range(0, 1000, 10):  # 40 threads, 100 slices each, then the last
        ends = start == 990
        count = len(threads)
        history.add_waits(
            [10**12 + start] * count, [10**12 + start + 10] * count, threads,
            [woken if ends else host] * count, [NO_THREAD] * count, 1.0, [0] * count,
        )  # fmt: skip
    asked = history.waits_between(10**12, 10**12 + 5)
    found = wait_slices.later(asked, 10**12 + 5, lambda: history.waits_between(10**12 + 5, 1 << 62))
    starts = np.concatenate([rows.columns["start_ns"] for _, rows in found])
    assert sorted(starts.tolist()) == sorted(10**12 + start for start in range(10, 1000, 10) for _ in threads)
    assert not wait_slices.later(asked, 10**12 + 20, lambda: pytest.fail("nothing goes on there"))
