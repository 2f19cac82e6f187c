"""What tests/device/window_trace.py makes of steps: planted costs are found, drift is not taken for one."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[1] / "device"))

from pause_loss import LOADED, PLAIN, Steps, against, by_block, inside, ratios, window_losses

TURN, STEPS = 0.15, 75
DRIFT = 0.3  # of the machine, up and down once a minute


def steps_of(cost: float, *, block: int = 0, begin: float = 0.0, turns: int = 40, seed: int = 1) -> Steps:
    """Turns of four in which a step of the process with the library takes `cost` more of its length."""
    random, columns, at = np.random.default_rng(seed + block), [], begin
    for turn in range(turns):
        for process in (LOADED, PLAIN, PLAIN, LOADED):
            for _ in range(STEPS):
                drift = 1 + DRIFT * np.sin(at * 2 * np.pi / 60)
                noise = random.normal(1, 0.02)
                length = TURN / STEPS * drift * noise * (1.03 + cost if process == LOADED else 1)
                at += length
                columns.append((at, length, length, process, block, turn))
    end, length, cpu, *rest = np.array(columns).T
    return Steps(end, length, cpu, *(one.astype(np.int64) for one in rest))


@pytest.mark.parametrize("cost", [0.0, 0.02, 0.087])
def test_a_planted_cost_of_pauses_is_found_under_drift(cost: float) -> None:
    """Two processes that are never alike, by 3 %, on a machine that drifts by 30 %."""
    nobody, paused = steps_of(0.0), steps_of(cost, block=1, begin=31.0)
    mean, width = against(ratios(nobody), ratios(paused))
    assert width < 0.5
    assert abs(mean - 100 * cost) < 2 * width


def test_blocks_are_compared_in_pairs() -> None:
    rows = [(float(n), 1.0 + 0.5 * (n % 2) + n // 2, 1.0, LOADED, n, -1) for n in range(4) for _ in range(3)]
    columns = np.array(rows).T
    steps = Steps(*columns[:3], *columns[3:].astype(np.int64))
    mean, width, each = by_block(steps, [(0, 1), (2, 3), (8, 9)])
    assert each == pytest.approx([50.0, 25.0])
    assert mean == pytest.approx(37.5)
    assert width == pytest.approx(12.71 * np.std([50, 25], ddof=1) / np.sqrt(2))
    assert np.isnan(by_block(steps, [(8, 9)])[0])


def test_a_window_is_held_against_the_steps_around_it() -> None:
    length = np.full(1000, 0.01)
    recorded = np.zeros(1000, np.bool_)
    recorded[400:420] = True
    length[recorded] = 0.015
    length[:200] = 0.02  # more than a second away
    nothing = np.full(1000, -1)
    steps = Steps(np.cumsum(length), length, length, nothing, nothing, nothing)
    assert window_losses(steps, recorded) == pytest.approx([20 * 0.005])
    assert window_losses(steps, np.zeros(1000, np.bool_)) == []


def test_a_step_is_of_a_state_that_all_readings_around_it_show() -> None:
    at = np.arange(0, 10, 0.1)
    holds = (at >= 3) & (at < 6)
    end = np.array([2.0, 3.1, 4.0, 6.1, 7.0])
    nothing = np.full(5, -1)
    steps = Steps(end, np.full(5, 0.3), np.full(5, 0.3), nothing, nothing, nothing)
    whole, any_of_it = inside(steps, at, holds, 0.01)
    assert whole.tolist() == [False, False, True, False, False]
    assert any_of_it.tolist() == [False, True, True, True, False]


def test_turns_without_both_processes_tell_nothing() -> None:
    steps = steps_of(0.0, turns=3)
    left = steps[(steps.turn != 1) | (steps.process == PLAIN)]
    assert len(ratios(left)) == 2
    assert len(ratios(steps[steps.turn < 0])) == 0
