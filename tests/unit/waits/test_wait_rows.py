"""From waits to rows: intervals, weights, and waits that last."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gpuprof.bpf.wait_programs import COUNTS_TWICE, TIME_WAS_UP, UNWALKED_NS, WAIT_RECORD
from gpuprof.sampler.wait_reader import LASTING_NS, TOGETHER_NS
from gpuprof.sampler.wait_rows import LastingWaits, rows_of
from gpuprof.snapshots.frames import WaitKind
from gpuprof.snapshots.gaps import MAX_NS
from gpuprof.snapshots.presence import life

MS = 10**6
SECOND = 10**9


def waits(*records: dict[str, Any]) -> NDArray[np.void]:
    made = np.zeros(len(records), WAIT_RECORD)
    made["weight"], made["threshold_ns"], made["state"] = 1, MS, 1
    for index, record in enumerate(records):
        for name, value in record.items():
            made[name][index] = value
    return made


def rows(made: NDArray[np.void], from_ns: list[int] | None = None) -> list[tuple[int, int, int, int, float]]:
    """(wait, kind, start, end, weight)"""
    starts = None if from_ns is None else np.array(from_ns, np.uint64)
    found = rows_of(made, made["time_ns"].copy(), starts)
    return [
        (int(of), int(kind), int(start), int(end), float(weight))
        for of, kind, start, end, weight in zip(
            found.of, found.kind, found.start_ns, found.end_ns, found.weight, strict=True
        )
    ]


def test_a_wait_is_blocked_until_the_wake_and_ready_from_then_on() -> None:
    made = waits({"extra": 10 * MS, "woken_ns": 60 * MS, "time_ns": 61 * MS})
    assert rows(made) == [
        (0, WaitKind.BLOCKED, 10 * MS, 60 * MS, 1.0),
        (0, WaitKind.RUNNABLE, 60 * MS, 61 * MS, 1.0),
    ]


def test_a_preempted_thread_was_ready_all_the_time() -> None:
    made = waits({"extra": 10 * MS, "time_ns": 14 * MS, "state": 0})
    assert rows(made) == [(0, WaitKind.RUNNABLE, 10 * MS, 14 * MS, 1.0)]


def test_a_wake_that_was_not_seen_leaves_one_row() -> None:
    made = waits(
        {"extra": 10 * MS, "time_ns": 14 * MS},
        {"extra": 20 * MS, "time_ns": 24 * MS, "woken_ns": 9 * MS},  # of an earlier wait: not this one's
    )
    assert rows(made) == [
        (0, WaitKind.BLOCKED, 10 * MS, 14 * MS, 1.0),
        (1, WaitKind.BLOCKED, 20 * MS, 24 * MS, 1.0),
    ]


def test_weights_are_the_reciprocals_of_the_chances() -> None:
    made = waits(
        {"extra": MS, "time_ns": MS + 250_000},
        {"extra": 3 * MS, "time_ns": 3 * MS + 250_000, "weight": 3},
        {"extra": 5 * MS, "time_ns": 10 * MS, "weight": 3},
        {"extra": 20 * MS, "time_ns": 20 * MS + 10, "threshold_ns": 0},
    )
    assert [weight for *_, weight in rows(made)] == [4.0, 12.0, 3.0, 1.0]


def test_a_wait_in_which_two_points_lie_counts_twice_unless_it_stands_for_itself() -> None:
    made = waits(
        {"extra": MS, "time_ns": MS + 250_000, "waker_flags": COUNTS_TWICE | TIME_WAS_UP},
        {"extra": 3 * MS, "time_ns": 3 * MS + 250_000, "weight": 3, "waker_flags": COUNTS_TWICE},
        {"extra": 5 * MS, "time_ns": 10 * MS, "waker_flags": COUNTS_TWICE},  # longer than its threshold
    )
    assert [weight for *_, weight in rows(made)] == [8.0, 24.0, 1.0]


def test_a_long_wait_stands_for_itself_however_many_stacks_were_left_out() -> None:
    made = waits(
        {"extra": MS, "time_ns": MS + UNWALKED_NS - 1, "weight": 4},
        {"extra": MS, "time_ns": MS + UNWALKED_NS, "weight": 4},
        {"extra": MS, "time_ns": 2001 * MS, "weight": 4},
        {"extra": MS, "time_ns": 2001 * MS, "weight": 0},  # its own stack was left out
        {"extra": MS, "time_ns": MS + 250 * MS, "weight": 0, "threshold_ns": SECOND},
        {"extra": MS, "time_ns": MS + 250 * MS, "weight": 4, "threshold_ns": SECOND},
        {"extra": MS, "time_ns": MS + SECOND, "weight": 4, "threshold_ns": SECOND},
    )
    by_wait = sorted((of, weight) for of, *_, weight in rows(made))
    assert [weight for _, weight in by_wait] == [4.0, 1.0, 1.0, 1.0, 4.0, 4.0, 1.0]


@pytest.mark.parametrize("threshold_ns", [0, MS, 50 * MS, 300 * MS, SECOND])
def test_sums_are_unbiased_where_stacks_are_left_out(threshold_ns: int) -> None:
    """The rule of wait_choice.bpf.h, for waits from 0.1 ms to 2 s; of long ones the sum is exact."""
    random = np.random.default_rng(2)
    duration = np.exp(random.uniform(np.log(MS / 10), np.log(2 * SECOND), 300_000)).astype(np.int64)
    weight = random.integers(1, 6, len(duration))  # one in so many stacks was taken at that moment
    walked = (random.integers(0, 1 << 32, len(duration)) * weight) >> 32 == 0
    bar = (threshold_ns * random.integers(0, 1 << 32, len(duration))) >> 32
    sent = duration >= np.where(walked, bar, np.maximum(bar, UNWALKED_NS))
    made = np.zeros(int(sent.sum()), WAIT_RECORD)
    made["weight"] = np.where(walked, weight, 0)[sent]
    made["threshold_ns"], made["state"], made["extra"] = threshold_ns, 1, SECOND
    made["time_ns"] = SECOND + duration[sent]
    found = rows_of(made, made["time_ns"].copy())
    ns = (found.end_ns - found.start_ns).astype(float) * found.weight
    assert ns.sum() == pytest.approx(float(duration.sum()), rel=0.01)
    exact = max(threshold_ns, UNWALKED_NS)
    assert ns[found.end_ns - found.start_ns >= exact].sum() == duration[duration >= exact].sum()
    short = duration < exact
    assert ns[found.end_ns - found.start_ns < exact].sum() == pytest.approx(
        float(duration[short].sum()), rel=0.02
    )


def test_sums_are_unbiased_below_the_threshold() -> None:
    """The rule of wait_choice.bpf.h, played with its own kind of random numbers."""
    random = np.random.default_rng(1)
    duration = random.integers(1000, 2 * MS, 200_000)
    bar = (MS * random.integers(0, 1 << 32, len(duration))) >> 32
    sent = duration >= bar
    made = np.zeros(int(sent.sum()), WAIT_RECORD)
    made["weight"], made["threshold_ns"], made["state"], made["extra"] = 1, MS, 1, SECOND
    made["time_ns"] = SECOND + duration[sent]
    found = rows_of(made, made["time_ns"].copy())
    total = float(((found.end_ns - found.start_ns).astype(np.float64) * found.weight).sum())
    # Of each wait below the threshold the estimate is MS with chance d / MS: variance d * (MS - d).
    below = duration[duration < MS].astype(np.float64)
    deviation = float((below * (MS - below)).sum() ** 0.5)
    assert abs(total - duration.sum()) < 4.5 * deviation
    assert len(made) < len(duration) * 0.8


def test_what_cannot_be_is_counted_and_left_out() -> None:
    made = waits({"extra": 0, "time_ns": 5}, {"extra": 10, "time_ns": 5}, {"extra": 1, "time_ns": 1 << 62})
    found = rows_of(made, made["time_ns"].copy())
    assert len(found) == 0
    assert found.invalid == 3


def test_a_wait_that_lasts_is_written_in_pieces_and_no_instant_twice() -> None:
    lasting = LastingWaits()
    sleeper = waits({"tid": 7, "extra": 100 * SECOND})
    written: list[tuple[int, int]] = []
    for now in range(100, 121):
        due, starts = lasting.due(sleeper, now * SECOND)
        written += [(int(start) // SECOND, now) for start in starts]
        assert len(due) == len(starts)
    assert written[0] == (100, 101)
    assert all(one[1] == next_one[0] for one, next_one in itertools.pairwise(written))
    assert all(end - start <= 5 for start, end in written)
    # It wakes: the rest of it is written, from where the last piece ended.
    sleeper["time_ns"], sleeper["woken_ns"] = 122 * SECOND, 121 * SECOND + 999 * MS
    found = rows(sleeper, lasting.end(sleeper).tolist())
    assert found[0][1:4] == (WaitKind.BLOCKED, written[-1][1] * SECOND, 121 * SECOND + 999 * MS)
    assert found[1][1] == WaitKind.RUNNABLE


def test_the_next_wait_of_a_thread_is_not_the_one_before() -> None:
    lasting = LastingWaits()
    assert len(lasting.due(waits({"tid": 7, "extra": 10 * SECOND}), 12 * SECOND)[0]) == 1
    after = waits({"tid": 7, "extra": 13 * SECOND, "time_ns": 14 * SECOND})
    assert lasting.end(after).tolist() == [0]
    assert len(lasting.due(after, 13 * SECOND + 1)[0]) == 0
    assert len(lasting) == 0  # what lasts no more is forgotten


def test_all_that_lasts_is_written_up_to_now_when_it_is_asked_for() -> None:
    lasting = LastingWaits()
    both = waits(
        {"tid": 7, "extra": 10 * SECOND}, {"tid": 8, "extra": 12 * SECOND - MS // 2, "threshold_ns": MS}
    )
    assert len(lasting.due(both, 10 * SECOND + 300 * MS)[0]) == 0
    due, starts = lasting.due(both, 12 * SECOND, 0)
    # One that is shorter than its threshold may be one of many that are not told.
    assert (due["tid"].tolist(), starts.tolist()) == ([7], [10 * SECOND])
    due, starts = lasting.due(both, 12 * SECOND + 100 * MS, 200 * MS)
    assert len(due) == 0
    due, starts = lasting.due(both, 12 * SECOND + 300 * MS, 200 * MS)
    assert (due["tid"].tolist(), starts.tolist()) == ([7, 8], [12 * SECOND, 12 * SECOND - MS // 2])
    assert len(lasting.due(both, 12 * SECOND + 300 * MS, 0)[0]) == 0  # nothing is left


def test_a_wait_under_a_long_threshold_is_not_written_in_pieces() -> None:
    """Its end decides whether it is sent at all."""
    lasting = LastingWaits()
    one = waits({"tid": 7, "extra": 10 * SECOND, "threshold_ns": 4 * SECOND})
    assert len(lasting.due(one, 13 * SECOND)[0]) == 0
    assert len(lasting.due(one, 14 * SECOND)[0]) == 1


@pytest.mark.parametrize("weight", [0, 3])
def test_a_wait_that_stands_for_others_while_it_is_short_is_told_when_it_is_long(weight: int) -> None:
    lasting = LastingWaits()
    one = waits({"tid": 7, "extra": 10 * SECOND, "weight": weight})
    assert len(lasting.due(one, 10 * SECOND + UNWALKED_NS - 1, 0)[0]) == 0
    due, starts = lasting.due(one, 10 * SECOND + UNWALKED_NS, 0)
    assert (len(due), starts.tolist()) == (1, [10 * SECOND])
    found = rows_of(due, np.array([10 * SECOND + UNWALKED_NS], np.uint64), starts)
    assert found.weight.tolist() == [1.0]


@pytest.mark.parametrize("look_ns", [LASTING_NS, LASTING_NS + TOGETHER_NS])
def test_who_waits_is_taken_to_live_until_the_next_piece(look_ns: int) -> None:
    """Whenever somebody asks, however long it has waited: what is not told yet is no end of its life."""
    lasting, told = LastingWaits(), [(100 * SECOND - 10, 100 * SECOND)]
    wait = np.zeros(1, WAIT_RECORD)
    wait["tid"], wait["extra"], wait["threshold_ns"] = 7, 100 * SECOND, 10**6
    for now_ns in range(100 * SECOND + 1, 180 * SECOND, look_ns):
        _, starts = lasting.due(wait, now_ns)
        told += [(int(start), now_ns) for start in starts]
        start, end = np.array(told, np.int64).T
        waits: Any = SimpleNamespace(start_ns=start, end_ns=end)
        assert life([], [waits], now_ns + look_ns)[1] == MAX_NS, (now_ns, told)
    assert life([], [waits], told[-1][1] + 8 * SECOND)[1] == told[-1][1]
    ran: Any = SimpleNamespace(time_ns=np.array([told[-1][1] + SECOND]))
    assert life([ran], [waits], told[-1][1] + 4 * SECOND)[1] == told[-1][1] + SECOND
