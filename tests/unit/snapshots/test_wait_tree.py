"""The tree of off-CPU time: weights, synchronizing calls, wakers, filters, words; by hand-computed values."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from gpuprof.snapshots import report
from gpuprof.snapshots import tree as trees
from gpuprof.snapshots.errors import GpuprofError
from gpuprof.snapshots.file import SnapshotWriter, read_snapshot
from gpuprof.snapshots.frames import Query, SourceStatus, Status, WaitKind


def planted(stories: Any) -> Any:
    story = stories.Story(names={7: "python3", 8: "hog", 40: "worker"}, process_of={40: 4})
    story.wait(7, "main get <futex> <woken_by_worker> work put", 0, 100, waker=40)
    story.wait(7, "main get <futex>", 150, 250)
    story.wait(8, "spin <runnable>", 20, 30, kind=WaitKind.RUNNABLE)
    story.wait(40, "work read <disk_or_file_I/O>", 100, 400)
    return story


def test_waits_weigh_what_of_them_lies_in_the_range(stories: Any) -> None:
    story = planted(stories)
    assert stories.totals(story.ask("offcpu", 50, 200)) == {
        "": 200.0,
        "python3 (7)": 100.0,
        "python3 (7) / main": 100.0,
        "python3 (7) / main / get": 100.0,
        "python3 (7) / main / get / futex": 100.0,
        "python3 (7) / main / get / futex / woken by worker": 50.0,
        "python3 (7) / main / get / futex / woken by worker / work": 50.0,
        "python3 (7) / main / get / futex / woken by worker / work / put": 50.0,
        "proc4 (4)": 100.0,
        "proc4 (4) / work": 100.0,
        "proc4 (4) / work / read": 100.0,
        "proc4 (4) / work / read / disk or file I/O": 100.0,
    }
    whole = story.ask("offcpu", 0, 400)
    assert (whole.unit, whole.tree, float(whole.total_weight[0])) == ("ns", "offcpu", 510e6)
    assert not whole.estimated.any()


def test_the_summary_says_who_waited_for_what_and_who_ended_it(stories: Any) -> None:
    said = planted(stories).ask("offcpu", 0, 400).summary
    assert said == (
        "proc4 (4) waited 300 ms of thread time: 100 % disk or file I/O · "
        "python3 (7) waited 210 ms of thread time: 95 % futex (woken by worker)"
    )


def test_filters_and_threads(stories: Any) -> None:
    story = planted(stories)
    found = stories.totals(story.ask("offcpu", 0, 400, pids=[7], by_thread=True))
    assert found[""] == found["python3 (7)"] == 210.0
    assert (found["python3 (7) / python3 (7)"], found["python3 (7) / hog (8)"]) == (200.0, 10.0)
    assert stories.totals(story.ask("offcpu", 0, 400, tids=[8]))[""] == 10.0
    for wrong in ({"cpus": [1]}, {"gpus": ["G0"]}):
        with pytest.raises(GpuprofError, match="cannot be filtered"):
            story.ask("offcpu", 0, 400, **wrong)


def test_a_synchronizing_call_replaces_what_its_thread_waited_inside_it(stories: Any) -> None:
    story = stories.Story()
    sync = {"kind": WaitKind.SYNC}
    story.wait(7, "main step <cudaStreamSynchronize>", 100, 200, **sync)
    story.wait(7, "main step :sync <NVIDIA_ioctl>", 120, 180)
    story.wait(7, "main step :sync <runnable>", 190, 210, kind=WaitKind.RUNNABLE)
    story.wait(9, "other <futex>", 120, 180)  # of another thread: stays
    story.history.roll_generation()
    story.wait(7, "main step :sync <futex>", 100, 110)  # of the same thread in other tables
    assert stories.totals(story.ask("offcpu", 0, 300)) == {
        "": 170.0,
        "proc7 (7)": 170.0,
        "proc7 (7) / main": 110.0,
        "proc7 (7) / main / step": 110.0,
        "proc7 (7) / main / step / cudaStreamSynchronize": 100.0,
        "proc7 (7) / main / step / sync": 10.0,
        "proc7 (7) / main / step / sync / runnable": 10.0,
        "proc7 (7) / other": 60.0,
        "proc7 (7) / other / futex": 60.0,
    }
    # half of the call lies in the range
    assert stories.totals(story.ask("offcpu", 150, 300, tids=[7]))[""] == 60.0


def test_a_sampled_wait_stands_for_several_and_says_how_sure_that_is(stories: Any) -> None:
    story = stories.Story()
    for number in range(4):
        story.wait(7, "main a <futex>", 10 * number, 10 * number + 0.5, weight=8)
    story.wait(7, "main b <poll>", 100, 110)
    tree = story.ask("offcpu", 0, 200)
    rows = {row.name: row for row in trees.rows(tree)}
    assert rows["a"].total_weight == pytest.approx(16e6)
    assert rows["a"].estimated
    assert rows["a"].error == pytest.approx(math.sqrt(4 * 8 * 7) * 0.5e6)  # Horvitz-Thompson, by hand
    assert rows["all"].error == rows["main"].error == rows["a"].error
    assert not rows["b"].estimated
    assert rows["b"].error is None


def test_nothing_recorded_says_what_switches_it_on(stories: Any) -> None:
    story = stories.Story()
    with pytest.raises(GpuprofError, match="no off-CPU time was recorded here") as caught:
        story.ask("offcpu", 0, 100)
    assert "gpuprof-tui record -o FILE -- CMD" in caught.value.hint
    assert "--offcpu-pid PID" in caught.value.hint
    story.history.set_status(
        Status(1, [SourceStatus("offcpu", "failed", "not root", "Use sudo.")], 0, 0, 0, 0)
    )
    with pytest.raises(GpuprofError, match="not root") as caught:
        story.ask("offcpu", 0, 100)
    assert caught.value.hint == "Use sudo."
    story.history.set_status(Status(1, [SourceStatus("offcpu", "ok")], 0, 0, 0, 0))
    assert stories.totals(story.ask("offcpu", 0, 100)) == {"": 0.0}


def test_the_report_as_text_and_json_from_a_file(stories: Any, tmp_path: Path) -> None:
    story = planted(stories)
    story.wait(40, "work sip <pipe_or_socket>", 400, 400.5, weight=20)
    path = tmp_path / "x.gpuprof"
    with SnapshotWriter(path, story.history.hello) as writer:
        writer.write(story.history.frames_between(0, 1 << 60))
    history = read_snapshot(path).history
    query = Query(0, "offcpu", *history.span)
    text = report.text_report(history, query, columns=100)
    assert "520 ms of waiting by threads; each row with all that it waited in" in text
    assert "± one standard error" in text
    assert "summary   python3 (7) waited 210 ms of thread time: 95 % futex (woken by worker)" in text
    parsed = json.loads(report.json_text(report.json_report(history, query)))
    assert (parsed["tree"], parsed["unit"], parsed["total"]) == ("offcpu", "ns", 520_000_000)
    first = parsed["root"]["children"][0]
    assert first["name"] == "proc4 (4)"
    assert first["estimated"] is True
    assert first["error_ns"] == pytest.approx(math.sqrt(20 * 19) * 0.5e6, rel=1e-6)
    second = parsed["root"]["children"][1]
    assert "estimated" not in second
    assert "error_ns" not in second
