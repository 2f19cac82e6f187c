"""GPU time by NVTX range first: exact by range, whatever got a stack, and the same sums as without."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpuprof.snapshots import range_tree
from gpuprof.snapshots.file import SnapshotWriter, read_snapshot
from gpuprof.snapshots.frames import Query
from gpuprof.snapshots.report import text_report
from gpuprof.snapshots.simplify import without_internals


@pytest.fixture
def story(stories: Any) -> Any:
    """6 ms in step > forward, 3 of them of one line; 2 ms in step itself, 4 ms in none; another process."""
    told = stories.Story()
    told.gpu(1, "main model %gemm", 0, 3, ranges="#step #forward")
    told.gpu(1, "main model %relu", 3, 6, ranges="#step #forward")
    told.gpu(1, "main optimizer %adam", 6, 8, ranges="#step")
    told.gpu(1, "main model %gemm", 8, 12)
    told.process_of[2] = 9
    told.gpu(2, "main model %gemm", 0, 5, gpu="G1", ranges="#step")
    return told


def test_ranges_stand_above_the_host_stack(story: Any, stories: Any) -> None:
    found = stories.totals(story.ask("gpu", 0, 20, by_range=True))
    assert found == {
        "": 17,
        "proc7 (7)": 12,
        "proc7 (7) / step": 8,
        "proc7 (7) / step / forward": 6,
        "proc7 (7) / step / forward / main": 6,
        "proc7 (7) / step / forward / main / model": 6,
        "proc7 (7) / step / forward / main / model / gemm": 3,
        "proc7 (7) / step / forward / main / model / relu": 3,
        "proc7 (7) / step / main": 2,
        "proc7 (7) / step / main / optimizer": 2,
        "proc7 (7) / step / main / optimizer / adam": 2,
        "proc7 (7) / main": 4,
        "proc7 (7) / main / model": 4,
        "proc7 (7) / main / model / gemm": 4,
        "proc9 (9)": 5,
        "proc9 (9) / step": 5,
        "proc9 (9) / step / main": 5,
        "proc9 (9) / step / main / model": 5,
        "proc9 (9) / step / main / model / gemm": 5,
    }
    plain = stories.totals(story.ask("gpu", 0, 20))
    assert plain["proc7 (7) / main / model / gemm"] == 7
    assert "step" not in "".join(plain)
    assert story.ask("gpu", 0, 20, by_range=True).summary == story.ask("gpu", 0, 20).summary


def test_with_filters_threads_and_the_screens_simplification(story: Any, stories: Any) -> None:
    tree = story.ask("gpu", 0, 20, by_range=True, by_thread=True, pids=[9])
    assert stories.totals(tree)["proc9 (9) / t2 (2) / step / main"] == 5
    assert stories.totals(without_internals(tree).tree)["proc9 (9) / t2 (2) / step / main / model"] == 5


def test_time_without_a_stack_stays_in_its_range(stories: Any) -> None:
    """A sample of 2 in one range and 4 in another; the rest of each range is known exactly."""
    told = stories.Story()
    told.gpu(1, "main f %gemm", 0, 1, weight=4, ranges="#a")
    told.gpu(1, "main g %gemm", 1, 2, weight=4, ranges="#b")
    for at in range(2, 8):
        told.gpu(1, "[stack_not_taken] %gemm", at, at + 1, ranges="#a")
    told.gpu(1, "[stack_not_taken] %gemm", 8, 10, ranges="#b")
    told.gpu(1, "[stack_not_taken] %gemm", 10, 11, ranges="#c")
    found = stories.totals(told.ask("gpu", 0, 20, by_range=True))
    assert found["proc7 (7) / a"] == pytest.approx(7)
    assert found["proc7 (7) / a / main / f / gemm"] == pytest.approx(7)
    assert found["proc7 (7) / b / main / g / gemm"] == pytest.approx(3)
    assert found["proc7 (7) / c / [stack not taken] / gemm"] == pytest.approx(1)
    plain = stories.totals(told.ask("gpu", 0, 20))
    assert plain["proc7 (7) / main / f / gemm"] == pytest.approx(5.5)


def test_very_many_ranges_are_told_apart_in_part(stories: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_tree, "MAX_PATHS", 2)
    told = stories.Story()
    for number in range(6):
        told.gpu(1, "main %k", 2 * number, 2 * number + 1, ranges=f"#step #r{number}")
    for at in range(20, 24):
        told.gpu(1, "main %k", at, at + 1, ranges="#step #r5")
    found = stories.totals(told.ask("gpu", 0, 30, by_range=True))
    assert found["proc7 (7) / step"] == 10
    assert found["proc7 (7) / step / r5"] == 5
    assert found["proc7 (7) / step / main"] == 4


def test_generations_and_files(story: Any, stories: Any, tmp_path: Any) -> None:
    expected = stories.totals(story.ask("gpu", 0, 20, by_range=True))
    story.history.roll_generation()
    story.gpu(1, "main model %gemm", 12, 13, ranges="#step #forward")
    found = stories.totals(story.ask("gpu", 0, 20, by_range=True))
    assert found["proc7 (7) / step / forward / main / model / gemm"] == 4
    assert len(found) == len(expected)
    path = str(tmp_path / "a.gpuprof")
    with SnapshotWriter(path, story.history.hello) as writer:
        writer.write(story.history.frames_between(0, 1 << 62))
    history = read_snapshot(path).history
    query = Query(1, "gpu", *history.span, min_fraction=0.0, by_range=True)
    assert stories.totals(history.query(query)) == found
    assert "forward" in text_report(history, query)


def test_rows_without_any_range(stories: Any) -> None:
    told = stories.Story()
    told.gpu(1, "main %k", 0, 1)
    assert stories.totals(told.ask("gpu", 0, 2, by_range=True)) == stories.totals(told.ask("gpu", 0, 2))
    view, stack = told.history.tables.view(), np.array([1, 2])
    same, placed = range_tree.below_ranges(view, np.zeros(2, np.uint32), stack)
    assert same is view
    assert placed is stack
