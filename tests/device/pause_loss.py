"""What the steps of a loop tell about the cost of recording, with and without drift: pure functions
(window_trace.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from windows import mean_and_width, trimmed_mean_and_width

NEAR_S = 1.0
PLAIN, LOADED = 0, 1  # the process without the library, and that with it


@dataclass(frozen=True)
class Steps:
    """Steps of the loop in the order of time, as columns; times in s."""

    end: NDArray[np.float64]
    length: NDArray[np.float64]
    cpu: NDArray[np.float64]  # CPU time of the thread
    process: NDArray[np.int64]
    block: NDArray[np.int64]
    turn: NDArray[np.int64]  # four of them, of LOADED, PLAIN, PLAIN, LOADED; -1: of none

    def __getitem__(self, at: NDArray[np.bool_]) -> Steps:
        return Steps(*(getattr(self, name)[at] for name in Steps.__dataclass_fields__))

    def __len__(self) -> int:
        return len(self.end)


def inside(
    steps: Steps, at: NDArray[np.float64], holds: NDArray[np.bool_], slack_s: float
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Of each step whether it lies within readings that all hold, and whether any of them holds: readings
    `at` times in order, of which those within `slack_s` of the step count.
    """
    first = np.clip(np.searchsorted(at, steps.end - steps.length - slack_s), 0, len(at) - 1)
    last = np.clip(np.searchsorted(at, steps.end + slack_s), 0, len(at) - 1)
    count = np.concatenate([[0], np.cumsum(holds)])
    found = count[last + 1] - count[first]
    return found == last + 1 - first, found > 0


def window_losses(steps: Steps, recorded: NDArray[np.bool_]) -> list[float]:
    """For each window how many seconds longer its steps took than they would have, had each been as long as
    those not recorded within NEAR_S of it.
    """
    turns = np.flatnonzero(np.diff(recorded.astype(np.int8), prepend=0, append=0)).reshape(-1, 2)
    losses = []
    for first, after in turns:
        begin, end = steps.end[first] - NEAR_S, steps.end[after - 1] + NEAR_S
        near = ~recorded & (steps.end > begin) & (steps.end < end)
        if near.any():
            losses.append(float((steps.length[first:after] - steps.length[near].mean()).sum()))
    return losses


def ratios(steps: Steps, what: str = "length") -> NDArray[np.float64]:
    """Of each turn of four with steps of all four, by how many percent a step of the process with the
    library is longer than one of the other. Drift within a turn that goes on steadily cancels.
    """
    values = getattr(steps, what)
    found = []
    for turn in np.unique(steps.turn[steps.turn >= 0]):
        of_turn = steps.turn == turn
        means = [values[of_turn & (steps.process == process)] for process in (PLAIN, LOADED)]
        if all(map(len, means)):
            found.append((means[LOADED].mean() / means[PLAIN].mean() - 1) * 100)
    return np.array(found)


def against(there: NDArray[np.float64], here: NDArray[np.float64]) -> tuple[float, float]:
    """How much larger the mean is `here`, and half of its 95 % interval; both without their extremes."""
    mean, width = trimmed_mean_and_width(here.tolist())
    base, base_width = trimmed_mean_and_width(there.tolist())
    return mean - base, float(np.hypot(width, base_width))


def by_block(
    steps: Steps, pairs: list[tuple[int, int]], what: str = "length"
) -> tuple[float, float, list[float]]:
    """By how many percent a step is longer in the second block of each pair than in the first: mean, half
    of its 95 % interval, each.
    """
    values, found = getattr(steps, what), []
    for there, here in pairs:
        base, loss = values[steps.block == there], values[steps.block == here]
        if len(base) and len(loss):
            found.append(float((loss.mean() / base.mean() - 1) * 100))
    if not found:
        return float("nan"), float("nan"), []
    return *mean_and_width(found), found
