"""Idle time is divided, instant by instant, by who lived then: by hand, and against a loop over every ns."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from gpuprof.snapshots import gaps
from gpuprof.snapshots.gaps import EMPTY, Spans
from gpuprof.snapshots.presence import FOREVER, Presence

Lives = dict[int, tuple[int, int]]


def spans(*pairs: tuple[int, int]) -> Spans:
    start, end = np.array(pairs, np.int64).T
    return Spans(start, end)


def divided(idle: Spans, lives: Lives) -> dict[int, float]:
    """The share of each thread that has one."""
    there = Presence.of(lives, int(idle.start[0]), int(idle.end[-1]))
    return {who: there.share_ns(idle.clipped(*life)) for who, life in there.lives.items()}


def test_a_thread_that_comes_and_one_that_goes() -> None:
    """7 and 9 have 0..100 and 200..220, 7 alone 220..250, 7 and 8 the rest."""
    idle = spans((0, 100), (200, 300), (400, 500))
    lives = {7: FOREVER, 8: (250, 1000), 9: (0, 220)}
    assert divided(idle, lives) == {7: 120 / 2 + 30 + 150 / 2, 8: 150 / 2, 9: 120 / 2}


def test_parts_of_the_time_have_their_own_rate() -> None:
    there = Presence.of({7: FOREVER, 8: (250, 1000), 9: (0, 220)}, 0, 500)
    idle = spans((0, 100), (200, 300), (400, 500))
    assert there.rates(np.array([0, 219, 220, 249, 250, 499])).tolist() == [0.5, 0.5, 1, 1, 0.5, 0.5]
    found = there.shares_ns(idle, np.array([-50, 90, 210, 260, 110]), np.array([600, 210, 260, 261, 190]))
    assert found.tolist() == [165.0, 5 + 5, 5 + 30 + 5, 0.5, 0.0]
    assert there.shares_ns(EMPTY, np.array([1]), np.array([2])).tolist() == [0.0]


def test_two_hundred_that_come_one_after_the_other() -> None:
    """Of the 10 ns in which n live each has 10/n; the last has 10/200."""
    lives = {number: (10 * number, 10_000) for number in range(200)}
    found = divided(spans((0, 2000)), lives)
    harmonic = [0.0]
    for count in range(1, 201):
        harmonic.append(harmonic[-1] + 10 / count)
    assert found == pytest.approx({number: harmonic[200] - harmonic[number] for number in range(200)})
    assert sum(found.values()) == pytest.approx(2000)


@pytest.mark.parametrize(
    ("lives", "expected"),
    [
        ({7: (100, 200)}, {7: 300}),
        ({7: (50, 100), 8: (150, 300)}, {7: 100, 8: 200}),
        ({7: (0, 100), 8: (250, 300), 9: (250, 400)}, {7: 100, 8: 100, 9: 100}),
        ({7: (400, 500), 8: (-9, -5)}, {7: 300}),
        ({7: (0, 100), 8: (300, 500), 9: (400, 500)}, {7: 100, 8: 200}),
        ({7: (-20, -10), 8: (-9, -5), 9: (-7, -5)}, {8: 150, 9: 150}),
        (
            {7: (0, 100), 8: (50, 100), 9: (10, 90)},
            {7: 10 + 20 + 40 / 3 + 105, 8: 40 / 3 + 105, 9: 20 + 40 / 3},
        ),
        ({7: (100, 100)}, {7: 300}),
    ],
)  # fmt: skip
def test_time_of_nobody_is_that_of_who_comes_next_or_was_there_last(
    lives: Lives, expected: dict[int, float]
) -> None:
    assert divided(spans((0, 300)), lives) == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(40))
def test_each_instant_is_divided_once(seed: int) -> None:
    """Against a plain loop over every ns; the uptime of the node is beyond what an f64 holds to the ns."""
    rng = random.Random(seed)
    origin = rng.choice([0, 10**15, 2**60])
    edges = sorted(rng.sample(range(400), 2 * rng.randrange(1, 8)))
    idle = spans(*((origin + low, origin + high) for low, high in pairwise(edges)))
    idle = Spans(idle.start[::2], idle.end[::2])
    lives: Lives = {}
    for who in range(rng.randrange(1, 12)):
        born, died = sorted(rng.sample(range(-50, 450), 2))
        lives[who] = FOREVER if rng.random() < 0.1 else (origin + born, origin + died)
    there = Presence.of(lives, int(idle.start[0]), int(idle.end[-1]))
    expected = dict.fromkeys(there.lives, 0.0)
    rate = {}
    for at in range(int(idle.start[0]), int(idle.end[-1])):
        alive = [who for who, (born, died) in there.lives.items() if born <= at < died]
        really = [who for who, (born, died) in lives.items() if born <= at < died]
        assert alive == (really or alive)
        rate[at] = 1 / len(alive)
        if idle.holds([at])[0]:
            for who in alive:
                expected[who] += rate[at]
    found = divided(idle, lives)
    assert found == pytest.approx(expected)
    assert sum(found.values()) == pytest.approx(idle.total_ns)
    instants = np.array(list(rate), np.int64)
    assert there.rates(instants).tolist() == pytest.approx(list(rate.values()))
    low, high = (np.array([origin + rng.randrange(-20, 420) for _ in range(30)], np.int64) for _ in range(2))
    low, high = np.minimum(low, high), np.maximum(low, high)
    some = there.shares_ns(idle, low, high)
    for one in range(30):
        part = gaps.union(low[one : one + 1], high[one : one + 1]).both(idle)
        assert some[one] == pytest.approx(there.share_ns(part), abs=1e-9)


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


def test_waits_and_samples_count_what_was_a_threads_own_then(stories: Any) -> None:
    """Idle from 100 to 1100: thread 7 is alone until 600, then 8 is there too, so that a ms counts half."""
    story = stories.Story(names={7: "python3", 8: "autograd"})
    story.gpu(7, "main@train.py:88 %gemm", 0, 100)
    story.gpu(8, "backward %gemm", 1100, 1200)
    story.observed(0, 1200)
    story.wait(7, "main read <disk or file I/O>", 100, 300)
    story.wait(7, "main read <disk or file I/O>", 600, 700)
    story.on_cpu(7, "main early", 300, 600)  # 30 samples of one each
    story.on_cpu(7, "main late", 700, 1100)  # 40 of a half
    story.wait(8, ":thread_main <futex>", 600, 1100)
    found = stories.totals(story.ask("idle", 0, 1200, by_thread=True))
    mine = "python3 (7) / python3 (7) / main"
    assert found["python3 (7) / autograd (8)"] == 250.0
    assert found[f"{mine} / read"] == 200 + 50
    assert found[f"{mine} / early"] == pytest.approx(500 * 30 / 50)
    assert found[f"{mine} / late"] == pytest.approx(500 * 20 / 50)


@pytest.mark.parametrize("until", [9000, 1500])
def test_who_is_gone_has_no_share_but_who_was_there_at_the_end_is_there(stories: Any, until: int) -> None:
    """Idle from 100 on; the rows of thread 8 end at 800. Where all that is recorded ends at 1,500 it may be
    in a wait that is not told yet.
    """
    story = stories.Story(names={7: "python3", 8: "autograd"})
    story.gpu(7, "main %gemm", 0, 100)
    story.gpu(8, "backward %gemm", 90, 100)
    story.observed(0, until)
    story.wait(7, "main read <disk or file I/O>", 100, until)
    story.wait(8, ":thread_main <futex>", 100, 800)
    found = stories.totals(story.ask("idle", 0, 9_000, by_thread=True))
    both_ms = 700 if until == 9_000 else 1400
    assert found["python3 (7) / autograd (8)"] == both_ms / 2
    assert found["python3 (7) / python3 (7)"] == until - 100 - both_ms / 2


@pytest.mark.parametrize("seed", range(6))
def test_the_shares_of_any_threads_add_up_to_the_idle_time(stories: Any, seed: int) -> None:
    rng = random.Random(seed)
    story = stories.Story(process_of={})
    busy = sorted(rng.sample(range(0, 60_000, 10), 80))
    for number, at in enumerate(busy):
        story.gpu(100 + number % 40, "main %gemm", at, at + 5)
    story.observed(0, 60_000)
    for tid in range(100, 140):
        at = rng.randrange(0, 50_000)
        for _ in range(rng.randrange(0, 6)):
            length = rng.randrange(1, 1500)
            waker = rng.choice([None, rng.randrange(100, 140)])
            story.wait(tid, "main get <futex>", at, at + length, waker=waker, weight=rng.choice([1, 1, 3]))
            story.on_cpu(tid, "main load", at + length, at + length + 200)
            at += length + 200
    idle_ms = 60_000 - 5 * len(busy)
    tree = story.ask("idle", 0, 60_000, by_thread=rng.random() < 0.5)
    assert stories.totals(tree)[""] == pytest.approx(idle_ms)
    assert sum(tree.self_weight) == pytest.approx(idle_ms * 1e6)
