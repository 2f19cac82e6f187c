"""GPU time of a range in which recording paused, with an estimate of what ran in the pauses, and how far off
that may be.

A device is recorded in windows (where gpu_observed says so), of length R together. Between the first and the
last recorded instant of the device, as far as they are in the range, lies a length L: what ran in the windows
counts L / R. Before and after that nothing was paused, and nothing is made up. Where the windows lie as
chance has it, the scaled time of a row of the tree is a ratio estimate over clusters: with y_i its scaled
time in window i of k, T their sum and a_i the share of window i in R, its variance is
(1 - R / L) k / (k - 1) sum (y_i - T a_i)^2 (W. G. Cochran, Sampling Techniques, 3rd ed., Wiley 1977, ch. 6
and 9A). From one window alone, or from windows that are all alike, it cannot be told (NaN): few windows that
agree do not show that the pauses did.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gpuprof.snapshots.columns import Array
from gpuprof.snapshots.gaps import Spans
from gpuprof.snapshots.levels import Pairs, summed
from gpuprof.snapshots.table_view import TablesView
from gpuprof.snapshots.timerange import duration_text

LEAST_PAUSED = 1e-9  # of the time: what is less is how clocks are read, and no pause
_LEAST_SPREAD = 1e-12  # of a total's square: floats leave as much over where windows are alike


@dataclass(frozen=True, slots=True)
class Windows:
    """The windows of all devices that were recorded in part, one after the other: the device (a number) of
    each, its share of what was recorded of that device, and for each device the part of the range that was.
    """

    device: Array  # i64 by window
    share: Array  # f64 by window
    recorded: Array  # f64 by device, 0..1

    def variance(self, window: Array, row: Array, amount: Array, rows: int) -> Array:
        """Return the variance of `rows` rows of the tree, given their scaled time by window and row; NaN
        where it is not known.
        """
        devices = len(self.recorded)
        key = row * devices + self.device[window]
        size = rows * devices
        share = self.share[window]
        total, squares, mixed = (
            np.bincount(key, weights, size).reshape(rows, devices)
            for weights in (amount, amount**2, amount * share)
        )
        count = np.bincount(self.device, None, devices).astype(np.float64)
        share_squares = np.bincount(self.device, self.share**2, devices)
        spread = np.maximum(squares - 2 * total * mixed + total**2 * share_squares, 0.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            factor = (1 - self.recorded) * count / (count - 1)
            known = (count > 1) & (spread > _LEAST_SPREAD * total**2)
            found = np.where(total > 0, spread * np.where(known, factor, np.nan), 0.0)
        result: Array = found.sum(axis=1)
        return result


@dataclass(frozen=True, slots=True)
class Clustered:
    """Which window each of some rows lies in; -1: it is not scaled."""

    windows: Windows
    of_row: Array


@dataclass(frozen=True, slots=True)
class Place:
    """A device whose recording paused in a range: `windows`, when it was recorded, each whole, of which the
    first has `number`, and what they have of the range's `length_ns` between the device's first and last
    recorded instants, `first_ns` and `last_ns`.
    """

    windows: Spans
    number: int
    recorded_ns: int
    length_ns: int
    first_ns: int
    last_ns: int

    @property
    def factor(self) -> float:
        """What scales the recorded time."""
        return self.length_ns / self.recorded_ns

    def text(self) -> str:
        """Return, for example: 33 % of 900 ms."""
        share = min(max(100 * self.recorded_ns / self.length_ns, 0.1), 99.9)
        digits = 0 if 1 <= share <= 99 else 1
        return f"{share:.{digits}f} % of {duration_text(self.length_ns)}"


def windows_of(observed: Mapping[str, Spans], low_ns: int, high_ns: int) -> tuple[Windows, dict[str, Place]]:
    """Return the windows, and the places by device, of those whose recording paused in [low_ns, high_ns).

    `observed`: of the whole recording. Before a device was first recorded there was no pause, nor is there
    one after it was last: how long it will be is not known, or it was the end.
    """
    device: list[Array] = []
    share: list[Array] = []
    recorded: list[float] = []
    places: dict[str, Place] = {}
    made = 0
    for uuid, spans in observed.items():
        if not len(spans):
            continue
        first, last = int(spans.start[0]), int(spans.end[-1])
        low, high = max(low_ns, first), min(high_ns, last)
        inside = spans.clipped(low, high)
        length, held = high - low, inside.total_ns
        if not len(inside) or length - held <= LEAST_PAUSED * length:
            continue
        touching = (spans.end > low) & (spans.start < high)
        whole = Spans(spans.start[touching], spans.end[touching])
        places[uuid] = Place(whole, made, held, length, first, last)
        device.append(np.full(len(inside), len(recorded), np.int64))
        share.append((inside.end - inside.start) / held)
        recorded.append(held / length)
        made += len(inside)
    empty = np.zeros(0, np.int64)
    return (
        Windows(np.concatenate([empty, *device]), np.concatenate([np.zeros(0), *share]), np.array(recorded)),
        places,
    )


def add_variance(
    view: TablesView,
    levels: list[Pairs],
    people: Array,
    stack: Array,
    *,
    weight: Array,
    clustered: Clustered,
) -> list[Array]:
    """Return by level the variance of its pairs that comes from the time that was not recorded.

    `people`: the group of each row, as the levels have it; `stack`, `weight` (scaled): of each row.
    """
    rows = np.flatnonzero(clustered.of_row >= 0)
    size = len(view.parent)
    if not len(rows):
        return [np.zeros(len(level.node)) for level in levels]
    wide = int(people.max()) + 1
    keys, of_row = np.unique(clustered.of_row[rows] * wide + people[rows], return_inverse=True)
    window_of, person_of = np.divmod(keys, wide)
    found = summed(view, len(keys), of_row.reshape(-1), stack[rows], weight[rows])
    variances = [np.zeros(len(level.node)) for level in levels]
    for depth, part in enumerate(found):
        at = levels[depth]
        place = np.searchsorted(at.group * size + at.node, person_of[part.group] * size + part.node)
        variances[depth] = clustered.windows.variance(
            window_of[part.group], place, part.total_weight, len(at.node)
        )
    return variances
