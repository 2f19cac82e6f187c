"""A tree as columns: its rows, before it is cut and made a frame."""

from __future__ import annotations

from dataclasses import dataclass

from gpuprof.snapshots.columns import Array

Label = tuple[str, str, str, int, int]  # name, file, binary, line, kind


@dataclass(slots=True)
class Nodes:
    """A tree as columns, parents before children: node 0 is the root and its own parent; `label` indexes
    `labels`. `estimated` marks the rows whose total is not exact, `variance` is that of the total (both None:
    all is exact). `bytes`: moved by the copies below (None: none).
    """

    parent: Array
    label: Array
    depth: Array
    self_weight: Array
    total_weight: Array
    labels: list[Label]
    variance: Array | None = None
    estimated: Array | None = None
    bytes: Array | None = None
