"""GPU time of a range of which only a part was recorded, scaled to all of it, and how far off that may be.

A device is recorded in windows (where gpu_observed says so), of length R together in a range of length L.
What ran in them counts L / R. Where the windows lie as chance has it, the scaled time of a row of the tree is
a ratio estimate over clusters: with y_i its scaled time in window i of k, T their sum and a_i the share of
window i in R, its variance is (1 - R / L) k / (k - 1) sum (y_i - T a_i)^2 (W. G. Cochran, Sampling
Techniques, 3rd ed., Wiley 1977, ch. 6 and 9A). From one window alone it cannot be told (NaN).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gpuprof.snapshots.columns import Array
from gpuprof.snapshots.gaps import Spans
from gpuprof.snapshots.levels import Pairs, summed
from gpuprof.snapshots.table_view import TablesView


@dataclass(frozen=True, slots=True)
class Windows:
    """The windows of all devices that were recorded in part, one after the other: the device (a number) of
    each, its share of what was recorded of that device, and for each device the part of the range that was.
    """

    device: Array  # i64 by window
    share: Array  # f64 by window
    recorded: Array  # f64 by device, 0..1

    def variance(self, window: Array, row: Array, amount: Array, rows: int) -> Array:
        """Return the variance of `rows` rows of the tree, given their scaled time by window and row."""
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
            found = np.where(total > 0, spread * np.where(count > 1, factor, np.nan), 0.0)
        result: Array = found.sum(axis=1)
        return result


@dataclass(frozen=True, slots=True)
class Clustered:
    """Which window each of some rows lies in; -1: its device was recorded all the time."""

    windows: Windows
    of_row: Array


def windows_of(
    observed: Mapping[str, Spans], low_ns: int, high_ns: int
) -> tuple[Windows, dict[str, tuple[int, Spans]]]:
    """Return the windows of the devices that were recorded for a part of [low_ns, high_ns), and by device the
    number of its first window with its windows.
    """
    device: list[Array] = []
    share: list[Array] = []
    recorded: list[float] = []
    places: dict[str, tuple[int, Spans]] = {}
    first, length = 0, max(high_ns - low_ns, 1)
    for uuid, spans in observed.items():
        inside = spans.clipped(low_ns, high_ns)
        if not len(inside) or inside.total_ns >= length:
            continue
        places[uuid] = (first, inside)
        device.append(np.full(len(inside), len(recorded), np.int64))
        share.append((inside.end - inside.start) / inside.total_ns)
        recorded.append(inside.total_ns / length)
        first += len(inside)
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
