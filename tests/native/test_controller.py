"""The overhead controller alone, on simulated workloads: what it plans costs what it may, and no workload can
keep in step with it."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

STEP_NS = 50_000_000
CALL_NS, RECORD_NS, NODE_NS, OWN_NS, STACK_NS = 500.0, 1300.0, 430.0, 120.0, 7000.0
RANGE_NS, SKIP_NS = 90.0, 8.0


DEPTHS = 8  # RANGE_DEPTHS


class Counts(ctypes.Structure):
    _fields_ = [
        *(
            (name, ctypes.c_uint64)
            for name in (
                "now_ns", "launches", "stacks", "probe_ns", "timed_calls", "timed_ns", "records", "waits",
                "wait_ns", "cycle_ns", "others", "other_ns",
            )
        ),
        ("range_calls", ctypes.c_uint64 * DEPTHS),
        *((name, ctypes.c_uint64) for name in ("timed_ranges", "timed_ranges_ns", "judged", "behind")),
    ]  # fmt: skip


class Plan(ctypes.Structure):
    _fields_ = [
        ("shift", ctypes.c_uint32), ("wait_ns", ctypes.c_uint32), ("stacks_at_once", ctypes.c_uint32),
        ("range_depth", ctypes.c_uint32), ("pause_ns", ctypes.c_uint64),
    ]  # fmt: skip


class Controller(ctypes.Structure):
    _fields_ = [
        ("budget_ppm", ctypes.c_uint32), ("random", ctypes.c_uint64), ("learnt", ctypes.c_double * 21),
        ("before", Counts), ("window", Counts), ("spare", ctypes.c_char * 64),
    ]  # fmt: skip


@pytest.fixture(scope="module")
def library(kit: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    target = tmp_path_factory.mktemp("controller") / "controller.so"
    command = ["gcc", *kit.WARNINGS, "-Werror", "-O2", "-shared", "-fPIC", "-o", target]
    subprocess.run([*command, kit.INJECT / "controller.c"], check=True)
    found = ctypes.CDLL(str(target))
    found.controller_step.restype = Plan
    return found


@dataclass
class Result:
    """What a simulated run came to."""

    cost: float  # share of the time
    recorded: float  # share of the time
    stacks: float  # share of the recorded launches
    windows: list[tuple[int, int]]
    depth: int  # of NVTX ranges that are followed, at the end
    ranges: float = 0.0  # cost of them, share of the time


def simulate(
    library: Any, budget_ppm: int, rate: Callable[[float], float], seconds: float, *, seed: int = 1,
    nodes: float = 0.0, behind: float = 0.0, waits: float = 0.0, wait_share: float = 0.0,
    cycle_ns: float = 20e6, others: float = 0.0, ranges: Callable[[float, int], float] = lambda t, depth: 0.0,
) -> Result:  # fmt: skip
    """Launches come at rate(t) a second, `waits` waits a second that take `wait_share` of the time, `others`
    other callbacks a second, and ranges(t, depth) begins and ends of NVTX ranges a second.
    """
    controller, counts = Controller(random=seed), Counts(now_ns=10**12, cycle_ns=0)
    library.controller_begin(ctypes.byref(controller), budget_ppm, ctypes.byref(counts))
    plan, cost, recorded, launched, windows, began = Plan(), 0.0, 0.0, 0.0, [], counts.now_ns
    plan.range_depth, of_ranges = DEPTHS, 0.0

    def ranges_pass(ns: int) -> float:
        """They go on in pauses; where none is followed nobody counts."""
        spent, at = 0.0, (counts.now_ns - 10**12) / 1e9
        for depth in range(DEPTHS if plan.range_depth else 0):
            calls = round(ranges(at, depth) * ns / 1e9)
            counts.range_calls[depth] += calls
            followed = depth < plan.range_depth
            spent += calls * (RANGE_NS if followed else SKIP_NS)
            counts.timed_ranges += calls // 61 if followed else 0
            counts.timed_ranges_ns += int(calls // 61 * RANGE_NS) if followed else 0
        return spent

    end = counts.now_ns + int(seconds * 1e9)
    while counts.now_ns < end:
        dt = STEP_NS / 1e9
        launches = round(rate((counts.now_ns - 10**12) / 1e9) * dt)
        stacks = launches / 2**plan.shift
        if plan.stacks_at_once and stacks > plan.stacks_at_once:
            stacks = plan.stacks_at_once + (launches - plan.stacks_at_once * 2**plan.shift) / 2 ** (
                plan.shift + 6
            )
        for_waits = wait_share * STEP_NS / max(plan.wait_ns, wait_share * 1e9 / waits) if waits else 0.0
        counts.now_ns += STEP_NS
        counts.launches += launches
        counts.records += round(launches * (1 + nodes))
        counts.stacks += round(stacks + for_waits)
        counts.probe_ns += round((stacks + for_waits) * STACK_NS)
        counts.timed_calls += launches // 64
        counts.timed_ns += int(launches // 64 * OWN_NS)
        counts.judged += launches
        counts.behind += round(launches * behind)
        counts.waits += round(waits * dt)
        counts.wait_ns += round(wait_share * STEP_NS)
        counts.others += round(others * dt)
        counts.other_ns += round(others * dt * OWN_NS)
        cost += others * dt * (CALL_NS + OWN_NS)
        spent = ranges_pass(STEP_NS)
        of_ranges, cost = of_ranges + spent, cost + spent
        cost += launches * (CALL_NS + RECORD_NS + OWN_NS + nodes * NODE_NS) + (stacks + for_waits) * STACK_NS
        cost += waits * dt * (CALL_NS + OWN_NS)
        recorded += STEP_NS
        launched += stacks / launches * STEP_NS if launches else STEP_NS
        plan = library.controller_step(ctypes.byref(controller), ctypes.byref(counts))
        if plan.pause_ns:
            windows.append((began - 10**12, counts.now_ns - 10**12))
            cost += cycle_ns
            counts.cycle_ns = int(cycle_ns)
            spent = ranges_pass(plan.pause_ns)
            of_ranges, cost = of_ranges + spent, cost + spent
            counts.now_ns += plan.pause_ns
            began = counts.now_ns
            library.controller_begin(ctypes.byref(controller), budget_ppm, ctypes.byref(counts))
    took = counts.now_ns - 10**12
    return Result(
        cost / took, recorded / took, launched / recorded, windows, plan.range_depth, of_ranges / took
    )


def test_the_structure_is_large_enough(library: Any) -> None:
    """Controller is only memory here: its size must not be less than C's."""
    assert ctypes.sizeof(Controller) >= 8 + 8 + 21 * 8 + 8 + 8 + 2 * ctypes.sizeof(Counts)


def test_a_quiet_process_is_recorded_whole(library: Any) -> None:
    result = simulate(library, 10_000, lambda t: 500.0, 30)
    assert (result.recorded, result.stacks) == (1.0, 1.0)
    assert result.cost < 0.01


def test_without_a_budget_everything_is_recorded(library: Any) -> None:
    result = simulate(library, 0, lambda t: 200_000.0, 5)
    assert (result.recorded, result.stacks) == (1.0, 1.0)


@pytest.mark.parametrize("rate", [2_000.0, 4_000.0])
def test_stacks_go_before_time(library: Any, rate: float) -> None:
    result = simulate(library, 10_000, lambda t: rate, 60)
    assert result.recorded == 1.0
    assert 0.05 < result.stacks < 0.9
    assert result.cost < 0.0115


@pytest.mark.parametrize("rate", [6_000.0, 20_000.0, 130_000.0])
@pytest.mark.parametrize("budget", [0.01, 0.05])
def test_time_goes_when_recording_alone_is_too_dear(library: Any, rate: float, budget: float) -> None:
    result = simulate(library, round(budget * 1e6), lambda t: rate, 1200)
    assert result.cost < 1.1 * budget
    fixed = rate * (CALL_NS + RECORD_NS + OWN_NS) * 1e-9
    if fixed > budget:
        assert result.recorded < 1.0
        assert result.recorded > 0.4 * budget / fixed  # the rest goes into stacks and into coming and going
    else:
        assert result.recorded == 1.0


def test_bursts_count_by_their_mean(library: Any) -> None:
    """A tenth of a second of launches a second: a pause would be for nothing."""
    result = simulate(library, 10_000, lambda t: 25_000.0 if t % 1 < 0.1 else 0.0, 120)
    assert result.recorded == 1.0
    assert result.cost < 0.012


def test_nodes_of_graphs_count(library: Any) -> None:
    result = simulate(library, 10_000, lambda t: 1_000.0, 300, nodes=200)
    assert result.cost < 0.011
    assert result.recorded < 0.3


def test_launches_that_wait_for_the_device_cost_little(library: Any) -> None:
    """A process that is ahead of the device is recorded whole where one that is not could not be."""
    ahead = simulate(library, 10_000, lambda t: 8_000.0, 60, behind=1.0)
    assert ahead.recorded == 1.0
    assert ahead.stacks > 0.2
    assert simulate(library, 10_000, lambda t: 8_000.0, 600).recorded < 0.7
    graphs = simulate(library, 10_000, lambda t: 1_000.0, 300, nodes=200, behind=1.0)
    assert graphs.recorded < 0.3  # what the kernels of a graph cost may be the device's own time


def test_waits_take_their_part_alone(library: Any) -> None:
    result = simulate(library, 10_000, lambda t: 100.0, 60, waits=10_000, wait_share=0.8)
    assert result.cost < 0.0115 + 0.0062  # 10,000 callbacks cost 0.62 %, the stacks a quarter of the budget


def test_other_callbacks_are_charged(library: Any) -> None:
    """Records of events cost as much as a launch's callback: what they take is not there for stacks."""
    few = simulate(library, 10_000, lambda t: 1_000.0, 60)
    many = simulate(library, 10_000, lambda t: 1_000.0, 60, others=8_000.0)
    assert few.stacks == 1.0
    assert many.stacks < 0.6
    assert many.cost < 0.0115
    too_many = simulate(library, 10_000, lambda t: 100.0, 600, others=40_000.0)
    assert too_many.recorded < 0.5
    assert too_many.cost < 0.011


def nested(step: float, op: float) -> Callable[[float, int], float]:
    """So many ranges a second around everything, and so many within them; each begins and ends."""
    return lambda t, depth: 2 * {0: step, 1: step * 4, 2: op}.get(depth, 0.0)


def test_few_ranges_are_all_followed(library: Any) -> None:
    result = simulate(library, 10_000, lambda t: 500.0, 60, ranges=nested(10, 1_000))
    assert (result.depth, result.recorded, result.stacks) == (DEPTHS, 1.0, 1.0)
    assert result.cost < 0.01


def test_ranges_take_from_what_stacks_have(library: Any) -> None:
    without = simulate(library, 10_000, lambda t: 1_100.0, 60)
    result = simulate(library, 10_000, lambda t: 1_100.0, 60, ranges=nested(10, 20_000))
    assert result.depth == DEPTHS
    assert without.stacks == 1.0
    assert result.stacks < 0.8
    assert result.cost < 0.0115


def test_the_deepest_ranges_go_first(library: Any) -> None:
    """100,000 a second within others would alone take the budget twice; the outer ones stay, and so does what
    is recorded.
    """
    result = simulate(library, 10_000, lambda t: 500.0, 60, ranges=nested(10, 100_000))
    assert result.depth == 2
    assert result.recorded == 1.0
    assert result.ranges < 0.005
    assert result.cost < 0.0115
    assert simulate(library, 10_000, lambda t: 500.0, 5, ranges=nested(10, 20_000)).depth == DEPTHS


def test_ranges_come_back_when_they_are_fewer(library: Any) -> None:
    burst = nested(10, 150_000)
    result = simulate(
        library, 10_000, lambda t: 500.0, 30, ranges=lambda t, depth: burst(t, depth) if t < 10 else 0.0
    )
    assert result.depth == DEPTHS


def test_flat_ranges_without_end_are_not_looked_at(library: Any) -> None:
    """Two million a second, within nothing: for ten seconds at a time none is looked at."""
    flat = lambda t, depth: 4e6 if depth == 0 else 0.0  # noqa: E731
    result = simulate(library, 10_000, lambda t: 500.0, 300, ranges=flat)
    assert result.depth in (0, DEPTHS)
    assert result.ranges < 0.006
    assert result.recorded > 0.9
    quiet = simulate(library, 10_000, lambda t: 500.0, 60, ranges=lambda t, d: flat(t, d) if t < 5 else 0.0)
    assert quiet.depth == DEPTHS


def test_ranges_in_pauses_are_paid_by_longer_pauses(library: Any) -> None:
    result = simulate(library, 10_000, lambda t: 30_000.0, 1200, ranges=nested(10, 20_000))
    assert result.depth == DEPTHS
    assert 0.003 < result.ranges < 0.005
    assert result.recorded < 0.2
    assert result.cost < 0.011


def test_without_a_budget_all_ranges_are_followed(library: Any) -> None:
    assert simulate(library, 0, lambda t: 500.0, 5, ranges=nested(10, 900_000)).depth == DEPTHS


def test_nothing_keeps_in_step_with_the_windows(library: Any) -> None:
    """Over many windows each phase of a period is seen as often as any other, whatever the period."""
    for period in (0.5, 1.0, 2.0, 7.0):
        seen = [0.0] * 10
        for seed in range(8):
            result = simulate(library, 20_000, lambda t: 30_000.0, 600, seed=seed)
            for start, end in result.windows[1:]:
                for at in range(start, end, STEP_NS):
                    seen[int(at / 1e9 % period / period * 10)] += 1
        mean = sum(seen) / 10
        assert all(0.7 * mean < count < 1.3 * mean for count in seen), (period, seen)
