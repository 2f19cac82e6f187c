"""Time is divided by who lived then."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuprof.snapshots.gaps import EMPTY, Spans
from gpuprof.snapshots.presence import FOREVER, MAX_STRETCHES, stretches


def spans(*pairs: tuple[int, int]) -> Spans:
    start, end = np.array(pairs, np.int64).T
    return Spans(start, end)


def told(found: list[tuple[Spans, list[int]]]) -> dict[tuple[int, ...], list[tuple[int, int]]]:
    return {tuple(who): part.pairs() for part, who in found}


def test_a_thread_that_comes_and_one_that_goes() -> None:
    idle = spans((0, 100), (200, 300), (400, 500))
    lives = {7: FOREVER, 8: (250, 1000), 9: (0, 220)}
    assert told(stretches(idle, lives)) == {
        (7, 9): [(0, 100), (200, 220)],
        (7,): [(220, 250)],
        (7, 8): [(250, 300), (400, 500)],
    }


def test_time_of_nobody_is_that_of_who_comes_next_or_was_there_before() -> None:
    assert told(stretches(spans((0, 300)), {7: (100, 200)})) == {(7,): [(0, 300)]}
    assert told(stretches(spans((0, 300)), {7: (400, 500), 8: (-9, -5)})) == {(7, 8): [(0, 300)]}
    assert stretches(EMPTY, {7: FOREVER}) == []


def test_many_births_are_taken_together_and_nothing_is_lost() -> None:
    lives = {number: (10 * number, 10_000) for number in range(200)}
    found = stretches(spans((0, 2000)), lives)
    assert len(found) <= MAX_STRETCHES + 1
    assert sum(part.total_ns for part, _ in found) == 2000


def test_a_thread_has_no_share_of_idle_time_before_it_was_there(stories: Any) -> None:
    """Gaps of 400 ms at 100 and at 600; the second thread is there from 550 on."""
    story = stories.Story(names={7: "python3", 8: "autograd"})
    story.gpu(7, "main@train.py:88 %gemm", 0, 100)
    story.gpu(7, "main@train.py:88 %gemm", 500, 600)
    story.gpu(8, "backward %gemm", 1000, 1100)
    story.observed(0, 1100)
    story.on_cpu(7, "main load", 100, 500)
    story.wait(7, "main load <futex>", 600, 1000)
    story.wait(8, ":thread_main <disk or file I/O>", 550, 1000)
    found = stories.totals(story.ask("idle", 0, 1100, by_thread=True))
    assert found["python3 (7) / python3 (7)"] == 600.0
    assert found["python3 (7) / autograd (8)"] == 200.0
