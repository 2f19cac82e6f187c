"""Rows cut to the time of a recording, of every kind, at both edges."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from gpuprof.snapshots import row_cut
from gpuprof.snapshots.frames import Frame, GpuWork, Ranges, Readings, Samples, StringDefs, Waits
from gpuprof.snapshots.row_cut import cut

STARTS = [0, 50, 90, 100, 150, 190, 199, 200, 300, 120]
ENDS = [40, 100, 110, 100, 160, 250, 200, 260, 300, 120]  # 3, 8 and 9 are instants


def windows(kind: type[Frame], **more: Any) -> Frame:
    values: dict[str, Any] = {field.name: np.arange(10) for field in dataclasses.fields(kind)}
    values |= {"start_ns": np.array(STARTS, np.uint64), "end_ns": np.array(ENDS, np.uint64), **more}
    return kind(**values)


@pytest.mark.parametrize(
    "frame",
    [
        windows(GpuWork, generation=1),
        windows(Waits, generation=1),
        windows(Ranges, generation=1),
        windows(Readings),
    ],
)
def test_windows(frame: Any) -> None:
    found = cut(frame, 100, 200)
    assert found.start_ns.tolist() == [100, 100, 150, 190, 199, 120]
    assert found.end_ns.tolist() == [110, 100, 160, 200, 200, 120]
    first = next(field.name for field in dataclasses.fields(frame) if field.name in {"thread", "series"})
    assert getattr(found, first).tolist() == [2, 3, 4, 5, 6, 9]
    open_end = cut(frame, 100, None)
    assert open_end.end_ns.tolist() == [110, 100, 160, 250, 200, 260, 300, 120]
    assert cut(frame, 1 << 63, None) is None
    whole = cut(frame, 0, None)
    assert (whole.start_ns.tolist(), whole.end_ns.tolist()) == (STARTS, ENDS)


def test_samples() -> None:
    times = np.array([99, 100, 199, 200], np.uint64)
    frame = Samples(1, times, np.arange(4), np.arange(4), np.arange(4))
    found = cut(frame, 100, 200)
    assert found is not None
    assert found.time_ns.tolist() == [100, 199]
    assert found.stack.tolist() == [1, 2]


def test_other_frames_and_all_columns() -> None:
    other = StringDefs(1, 1, ["a"])
    assert cut(other, 5, 6) is other
    for kind, names in row_cut._COLUMNS.items():
        fields = {field.name for field in dataclasses.fields(kind)} - {"generation"}
        assert fields == set(names), kind
