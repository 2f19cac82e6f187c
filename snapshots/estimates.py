"""Totals that are known, divided among the paths of a sample: how far each part may be off.

A group is what a total is known of: a kernel of a process on a device whose launches got a stack only now
and then, or the time that a thread was not waiting, of which there are CPU samples. Row i of its sample
stands for `part[i]` of the total Z; the estimate of what belongs to a row u of the tree is the sum of the
parts below it, a ratio estimate Z * p with p = sum(part below u) / Z.

Standard error. For a Poisson sample in which row i, of size d, was drawn with probability 1 / w, the variance
of the ratio estimate is sum over the sample of w (w - 1) e^2 with the residual e = d * ([i below u] - p)
(the residual technique: C.-E. Särndal, B. Swensson, J. Wretman, Model Assisted Survey Sampling, Springer
1992, ch. 5 and 7; W. G. Cochran, Sampling Techniques, 3rd ed., Wiley 1977, ch. 6). With `noise` = w (w - 1)
d^2 summed as B below u and as B_all in the group it is B (1 - 2 p) + p^2 B_all. For n samples that each stand
for the same time it is the binomial Z^2 p (1 - p) / n. Where the sample shows less than one row on either
side of the question, that formula says 0, which nobody knows: there the share is moved by two rows to each
side (A. Agresti, B. A. Coull, The American Statistician 52, 1998), with n = (sum part)^2 / sum part^2. Rows
of several groups are independent, so that their variances add up.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuprof.snapshots.columns import Array

_EDGE_ROWS = 2.0  # added to each side where a sample has all or nothing


@dataclass(frozen=True, slots=True)
class Sampled:
    """The rows of the samples of any number of groups, as equal-length columns.

    `thread`, `stack`: where in the tree a row stands; `group`: number of its group, from 0; `part`: what of
    the group's total it stands for; `noise`: w (w - 1) d^2, in squares of the unit of `part`; `bytes`: what
    of the bytes that the group's total has moved.
    """

    thread: Array
    stack: Array
    group: Array
    part: Array
    noise: Array
    bytes: Array | None = None

    def __len__(self) -> int:
        return len(self.part)


@dataclass(frozen=True, slots=True)
class Groups:
    """Sums of the samples by group."""

    part: Array
    noise: Array
    rows: Array  # how many equal rows would say as much

    @classmethod
    def of(cls, sampled: Sampled) -> Groups:
        """Return the sums of all groups."""
        count = int(sampled.group.max()) + 1 if len(sampled) else 0
        part, noise, squares = (
            np.bincount(sampled.group, weights, count)
            for weights in (sampled.part, sampled.noise, sampled.part**2)
        )
        rows = np.divide(part**2, squares, out=np.zeros(count), where=squares > 0)
        return cls(part, noise, rows)

    def variance(self, group: Array, part: Array, noise: Array, *, inside: bool) -> Array:
        """Return the variance of what lies below some rows of the tree.

        `group`: of each; `part`, `noise`: the sums of its sample below the row. `inside`: whether the row
        may hold less than all of its group, so that a share of 1 is not certain.
        """
        total, rows = self.part[group], self.rows[group]
        share = np.divide(part, total, out=np.zeros(len(part)), where=total > 0)
        found: Array = np.maximum(noise * (1 - 2 * share) + share**2 * self.noise[group], 0.0)
        found[share > 1 - 1e-12] = 0.0  # less what floats leave over
        if not inside:
            return found
        edge = rows * np.minimum(share, 1 - share) < 1
        moved = (rows * share + _EDGE_ROWS) / (rows + 2 * _EDGE_ROWS)
        least = total**2 * moved * (1 - moved) / (rows + 2 * _EDGE_ROWS)
        return np.where(edge, np.maximum(found, least), found)


def sampled_noise(weight: Array, size: Array) -> Array:
    """Return w (w - 1) d^2 of rows of size d that were drawn with probability 1 / w; their sum is the
    variance of the sum of w * d (D. G. Horvitz, D. J. Thompson, JASA 47, 1952).
    """
    noise: Array = np.maximum(weight * (weight - 1), 0) * size.astype(np.float64) ** 2
    return noise
