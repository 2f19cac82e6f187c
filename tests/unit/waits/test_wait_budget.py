"""What waits may cost: the thresholds that are worked out, by hand and by simulation."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from gpuprof.bpf.wait_programs import WAIT_RECORD
from gpuprof.sampler.wait_budget import (
    FORGET_NS,
    MAX_PROCESSES,
    MAX_RAISED_NS,
    MAX_WAITS_PER_S,
    MIN_WAITS_PER_S,
    TARGET_SHARE,
    Thresholds,
    WaitBudget,
    fair_share,
    moved,
    threshold_for,
)
from gpuprof.sampler.wait_rows import weights_of

MS = 10**6
SECOND = 10**9
COST_S = 10e-6  # of a wait, in these tests
ROOM = TARGET_SHARE / COST_S  # waits a second


def threshold(duration: list[float], weight: list[float], most: float) -> float:
    return threshold_for(np.array(duration), np.array(weight), most)


def test_a_rounding_error_does_not_thin_out_what_may_stay() -> None:
    """There is room for all but 1e-14 of a wait."""
    rng = np.random.default_rng(1)
    for _ in range(200):
        duration, weight = rng.exponential(MS, 19) + 1, rng.exponential(3, 19) + 1
        most = float(np.nextafter(weight.sum(), 0))
        assert threshold_for(duration, weight, most) <= duration.min() * 1.001


def test_a_few_waits_of_great_weight_do_not_raise_a_threshold() -> None:
    """One that began under the threshold of the others, before its process had its own, stands for many."""

    def ended(pid: int, ns: int, threshold_ns: int, count: int = 1) -> NDArray[np.void]:
        waits = np.zeros(count, WAIT_RECORD)
        waits["pid"], waits["extra"], waits["time_ns"], waits["threshold_ns"] = pid, 1, 1 + ns, threshold_ns
        return waits

    base, storm, quiet = MS // 10, 7, 8
    budget, now_ns = WaitBudget(base), itertools.count(SECOND, SECOND // 4)
    others = budget.next(ended(storm, MS // 10, base, 0), 0.0, next(now_ns)).others
    for pid in range(storm, storm + 4):  # each is new when it begins
        if pid != quiet:
            others = budget.next(ended(pid, MS // 2, others, 2000), 1.0, next(now_ns)).others
    assert others > 5 * base
    assert budget.next(ended(quiet, 50 * MS, others), 0.0, next(now_ns)).get(quiet) == base
    assert budget.next(ended(quiet, base // 5, 500 * base), 0.0, next(now_ns)).get(quiet) == base


def test_the_threshold_leaves_as_many_waits_as_there_is_room_for() -> None:
    # 10 waits of 1 ms: under a threshold of 5 ms each is kept with probability 1/5, which makes two.
    assert threshold([MS] * 10, [1.0] * 10, 2.0) == pytest.approx(5 * MS)
    # 8 of 1 ms and 2 of 100 ms: the long ones are kept, so one of the short ones: 8 * 1/8.
    assert threshold([MS] * 8 + [100 * MS] * 2, [1.0] * 10, 3.0) == pytest.approx(8 * MS)
    # No room for both of the long ones either: (8 * 1 + 2 * 100) / threshold = 1.
    assert threshold([MS] * 8 + [100 * MS] * 2, [1.0] * 10, 1.0) == pytest.approx(208 * MS)
    # One wait that was kept with probability 1/8 stands for eight.
    assert threshold([MS, 100 * MS, 100 * MS], [8.0, 1.0, 1.0], 3.0) == pytest.approx(8 * MS)
    assert threshold([MS] * 3, [1.0] * 3, 3.0) == 0.0
    assert threshold([], [], 3.0) == 0.0


def test_the_threshold_is_the_least_one_for_any_mixture() -> None:
    random = np.random.default_rng(7)
    for _ in range(200):
        count = int(random.integers(1, 60))
        duration = np.exp(random.uniform(0, 20, count))
        weight = 1 + random.exponential(5, count)
        most = float(random.uniform(0.05, 0.99)) * float(weight.sum())
        found = threshold_for(duration, weight, most)
        assert float((weight * np.minimum(1, duration / found)).sum()) == pytest.approx(most)


def test_who_waits_seldom_keeps_all_and_the_others_get_alike() -> None:
    assert fair_share([10, 20, 100], 200) == float("inf")
    assert fair_share([10, 100, 100], 90) == 40  # 10, and 40 for each of the two
    assert fair_share([100, 100, 100, 100], 100) == 25
    assert fair_share([], 5) == float("inf")


def test_a_burst_is_answered_at_once_and_forgotten_slowly() -> None:
    assert moved(MS, 6.0 * MS, MS, SECOND // 4) == 6 * MS
    assert moved(MS, 100.0 * MS, MS, SECOND // 4) == 8 * MS  # not further at once
    assert moved(8 * MS, 0.0, MS, SECOND) == 4 * MS
    assert moved(8 * MS, 0.0, MS, 2 * SECOND) == 2 * MS
    assert moved(8 * MS, 6.0 * MS, MS, SECOND) == 6 * MS
    assert moved(8 * MS, 8.5 * MS, MS, SECOND) == 8 * MS  # chance
    assert moved(8 * MS, 7.0 * MS, MS, SECOND) == 8 * MS
    assert moved(2 * MS, 0.0, MS, SECOND) == MS
    assert moved(MS, 0.0, MS, SECOND) == MS


def test_the_bounds_of_a_threshold() -> None:
    assert moved(900 * MS, 1e12, MS, SECOND) == MAX_RAISED_NS  # a wait of a second is always kept
    assert moved(5 * SECOND, 1e12, 5 * SECOND, SECOND) == 5 * SECOND  # more was asked for
    assert moved(0, 1e12, 0, SECOND) == 80_000
    assert moved(12_000, 0.0, 0, SECOND) == 0
    assert moved(0, 0.0, 0, SECOND) == 0


class Kernel:
    """Keeps waits by the rule of the kernel side."""

    def __init__(self, base_ns: int) -> None:
        self.random = np.random.default_rng(3)
        self.budget = WaitBudget(base_ns)
        self.now_ns = 0
        self.thresholds = self.budget.next(np.zeros(0, WAIT_RECORD), 0.0, 0)

    def window(self, made: dict[int, NDArray[np.int64]]) -> dict[int, NDArray[np.void]]:
        """The waits that are kept of what each process `made` in a window (durations in ns)."""
        self.now_ns += SECOND // 4
        kept = {}
        for pid, duration in made.items():
            threshold_ns = self.thresholds.get(pid)
            sent = duration >= (threshold_ns * self.random.integers(0, 1 << 32, len(duration))) >> 32
            waits = np.zeros(int(sent.sum()), WAIT_RECORD)
            waits["pid"], waits["weight"], waits["threshold_ns"] = pid, 1, threshold_ns
            waits["time_ns"], waits["extra"] = self.now_ns, self.now_ns - duration[sent]
            kept[pid] = waits
        ended = np.concatenate(list(kept.values()))
        self.thresholds = self.budget.next(ended, len(ended) * COST_S, self.now_ns)
        return kept

    def second(self, made: dict[int, NDArray[np.int64]]) -> dict[int, NDArray[np.void]]:
        """The same for a second, four windows in turn."""
        parts = [self.window({pid: ns[number::4] for pid, ns in made.items()}) for number in range(4)]
        return {pid: np.concatenate([part[pid] for part in parts]) for pid in made}

    def short(self, count: int) -> NDArray[np.int64]:
        return self.random.integers(20_000, 400_000, count)


def estimate(waits: NDArray[np.void]) -> tuple[float, float]:
    """(waits, seconds) that the kept ones stand for."""
    weight = weights_of(waits, waits["time_ns"]).astype(float)
    return float(weight.sum()), float((weight * (waits["time_ns"] - waits["extra"])).sum()) / 1e9


def test_a_storm_is_thinned_to_the_budget_within_a_second_and_stays_there() -> None:
    kernel = Kernel(0)
    rates = [len(kernel.second({7: kernel.short(40_000)})[7]) for _ in range(8)]
    assert rates[0] > ROOM  # the first window had them all
    assert all(0.7 * ROOM < rate < 1.3 * ROOM for rate in rates[1:]), rates


def test_after_a_storm_the_threshold_comes_back_slowly_but_all_the_way() -> None:
    kernel = Kernel(100_000)
    for _ in range(3):
        kernel.second({7: kernel.short(40_000)})
    seen = [kernel.thresholds.get(7)]
    for _ in range(10):
        kernel.second({7: kernel.short(100)})
        seen.append(kernel.thresholds.get(7))
    assert seen[0] > 2 * MS
    assert all(0.49 * before <= after <= before for before, after in itertools.pairwise(seen)), seen
    assert seen[-1] == 100_000


def test_a_noisy_process_does_not_thin_out_the_others() -> None:
    kernel = Kernel(0)
    quiet = {1: kernel.short(300), 2: kernel.short(50)}
    for number in range(5):
        kept = kernel.second({**quiet, 7: kernel.short(40_000), 8: kernel.short(20_000)})
        if number:  # until then they have just begun, all alike
            assert (len(kept[1]), len(kept[2])) == (300, 50)
    assert 0.4 * (ROOM - 350) / 2 < len(kept[7]) < 1.8 * (ROOM - 350) / 2
    assert 0.4 * (ROOM - 350) / 2 < len(kept[8]) < 1.8 * (ROOM - 350) / 2
    assert kernel.thresholds.get(1) == kernel.thresholds.get(2) == 0


def test_many_processes_that_come_and_go_are_thinned_together() -> None:
    """A hundred a second, each with a hundred waits within a window."""
    kernel = Kernel(0)
    rates = []
    for second in range(6):
        rate = 0
        for window in range(4):
            first = 1000 * second + 100 * window
            kept = kernel.window({first + number: kernel.short(100) for number in range(1, 26)})
            rate += sum(len(waits) for waits in kept.values())
        rates.append(rate)
    assert all(rate < 1.6 * ROOM for rate in rates[2:]), rates
    assert kernel.thresholds.others > 0


def test_sums_are_unbiased_while_the_thresholds_move() -> None:
    """Waits and their time, of 60 seconds in which storms come and go, against what there was."""
    kernel = Kernel(50_000)
    wanted = np.zeros((2, 2))
    found = np.zeros((2, 2))
    moves = set()
    for second in range(60):
        noisy = kernel.short(30_000 if second % 10 < 5 else 300)
        mixed = np.concatenate([kernel.short(2_000), kernel.random.integers(MS, 30 * MS, 100)])
        kernel.random.shuffle(mixed)
        made = {7: noisy, 8: mixed}
        kept = kernel.second(made)
        moves.add(kernel.thresholds.get(7))
        for index, pid in enumerate(made):
            wanted[index] += len(made[pid]), float(made[pid].sum()) / 1e9
            found[index] += estimate(kept[pid])
    assert len(moves) > 20
    assert found == pytest.approx(wanted, rel=0.03)


def test_what_a_wait_costs_sets_the_room_within_bounds() -> None:
    for cost_s, rate in ((1e-3, MIN_WAITS_PER_S), (1e-9, MAX_WAITS_PER_S), (20e-6, TARGET_SHARE / 20e-6)):
        assert settled(lambda waits, cost_s=cost_s: len(waits) * cost_s) == pytest.approx(rate, rel=0.15)


def settled(cost: Callable[[NDArray[np.void]], float]) -> float:
    """Waits a second that are kept of a storm in the end."""
    random = np.random.default_rng(5)
    budget, thresholds, counts = WaitBudget(0), Thresholds(0), []
    for window in range(60):
        duration = random.integers(20_000, 400_000, 10_000)
        sent = duration >= (thresholds.get(7) * random.integers(0, 1 << 32, len(duration))) >> 32
        waits = np.zeros(int(sent.sum()), WAIT_RECORD)
        waits["pid"], waits["threshold_ns"] = 7, thresholds.get(7)
        waits["time_ns"], waits["extra"] = SECOND, SECOND - duration[sent]
        thresholds = budget.next(waits, cost(waits), window * SECOND // 4)
        counts.append(len(waits))
    return float(np.mean(counts[30:])) * 4


def test_dear_names_at_the_start_of_a_program_thin_out_nothing() -> None:
    """A hundred waits, half a second of CPU time to name their stacks."""
    kernel = Kernel(MS)
    waits = np.zeros(20, WAIT_RECORD)
    waits["pid"], waits["threshold_ns"], waits["time_ns"], waits["extra"] = 7, MS, 10 * SECOND, 8 * SECOND
    for window in range(1, 6):
        assert kernel.budget.next(waits, 0.1, window * SECOND // 4) == Thresholds(MS, {})


def test_processes_that_are_gone_are_forgotten_and_their_number_is_bounded() -> None:
    budget = WaitBudget(MS)
    waits = np.zeros(3 * MAX_PROCESSES, WAIT_RECORD)
    waits["pid"], waits["threshold_ns"] = np.arange(1, len(waits) + 1), MS
    waits["time_ns"], waits["extra"] = SECOND, SECOND - MS
    budget.next(waits, 0.03, 0)
    budget.next(waits, 0.03, SECOND)
    assert len(budget.next(waits, 0.03, 2 * SECOND).of) <= MAX_PROCESSES
    now_ns = 3 * SECOND
    while now_ns < 3 * FORGET_NS:
        thresholds = budget.next(waits[:0], 0.0, now_ns)
        now_ns += SECOND
    assert thresholds == Thresholds(MS, {})
    assert not budget._of  # nothing is left behind
