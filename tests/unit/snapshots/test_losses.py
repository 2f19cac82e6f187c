"""The counts of sources over time: of a range, through files, and against hostile frames."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpuprof.snapshots import losses, report
from gpuprof.snapshots.errors import FrameError
from gpuprof.snapshots.file import SnapshotWriter, read_snapshot
from gpuprof.snapshots.frames import FrameKind, Hello, Query, SourceCounts, SourceStatus, Status
from gpuprof.snapshots.history import History
from gpuprof.snapshots.losses import LossLog

S = 10**9
START = 10**12


def status(second: float, lost: int, **more: int) -> Status:
    return Status(START + round(second * S), [SourceStatus("cpu", "ok", lost=lost, **more)], 1, 2, 3, 4)


def of(log: LossLog, start: float, end: float) -> int:
    source = SourceStatus("cpu", "ok", lost=999)
    return log.between(source, START + round(start * S), START + round(end * S))["lost"]


def complete(*statuses: Status) -> LossLog:
    """Return a log as it is read back from what another one has kept."""
    log, copy = LossLog(), LossLog()
    for one in statuses:
        log.add(one)
    frame = log.frame(0, 1 << 62)
    assert frame is not None
    copy.add_counts(frame)
    return copy


def test_the_losses_of_a_range_are_a_difference() -> None:
    log = complete(*(status(second, lost) for second, lost in enumerate([50, 50, 53, 53, 53, 60, 60])))
    assert of(log, 0, 6) == of(log, -5, 100) == 10
    assert of(log, 0, 1) == 0
    assert of(log, 1, 2) == 3
    assert of(log, 2, 4) == 0
    assert of(log, 2.5, 4.5) == 7  # a status comes once a second: the next one tells
    assert of(log, 5, 6) == 0


def test_without_what_came_before_the_totals_stand() -> None:
    log = LossLog()
    log.add(status(0, 5))
    assert of(log, 0, 1) == 999
    assert LossLog().frame(0, 1) is None
    assert log.frame(-5, -1) is not None  # whatever a client asks for
    assert log.frame(1 << 70, 1 << 71) is not None


def test_a_sampler_that_counts_from_zero_again_loses_nothing_negative() -> None:
    assert of(complete(status(0, 50), status(1, 3)), 0, 2) == 0


def test_it_is_bounded_and_keeps_its_first_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "_MAX_ENTRIES", 64)
    log = complete(*(status(second, second * 2) for second in range(1000)))
    frame = log.frame(0, 1 << 62)
    assert frame is not None
    assert len(frame.lost) <= 64
    assert of(log, 0, 1000) == 2 * 999


@pytest.mark.parametrize(
    "change",
    [
        {"source": np.array([7], np.uint32)},
        {"names": []},
        {"lost": np.array([(1 << 64) - 1], np.uint64)},
        {"start_ns": np.array([(1 << 64) - 1], np.uint64)},
    ],
)
def test_hostile_counts(hello: Hello, change: dict[str, Any]) -> None:
    one = np.array([1], np.uint64)
    frame = SourceCounts(["cpu"], np.array([0], np.uint32), one, one, one, one, one, one, one)
    history = History(hello)
    history.set_status(status(0, 1))
    try:
        history.ingest(replace(frame, **change))
    except FrameError:
        assert {"source", "names"} & set(change)
    report.json_report(history, Query(1, "cpu", 0, 1 << 60))


def test_a_recording_of_a_service_counts_what_is_its_own(planted: Any, row: Any, tmp_path: Path) -> None:
    """The sampler has counted 8,844 samples and 70 lost ones before; 20 samples and 3 losses are recorded."""
    history = planted.history
    cut = ("[truncated: no rule]", "", "", 0, FrameKind.UNKNOWN)
    whole = row(START, "main")
    history.set_status(status(-1, 70, samples=8844, truncated=40))
    path = tmp_path / "x"
    cursor = history.cursor("rows")
    writer = SnapshotWriter(path, history.hello)
    writer.write([history.hello])
    for second in range(20):
        planted.add(row(START + second * S, "main") if second != 4 else replace(
            whole, time_ns=START + 4 * S, frames=(cut, *whole.frames)
        ))  # fmt: skip
        history.set_status(status(second, 70 + min(second, 3), samples=8844 + second, truncated=41))
        writer.write(history.since(cursor))
    writer.close()
    copy = tmp_path / "y"  # as key w saves it: a stream of a range
    with SnapshotWriter(copy, history.hello) as second_writer:
        second_writer.write(history.frames_between(0, 1 << 62))
    for file in (path, copy):
        opened = read_snapshot(file).history
        text = report.text_report(opened, Query(1, "cpu", *opened.span))
        assert "source    cpu ok; 20 samples, 3 lost, 1 truncated" in text.split("\n")
        assert "truncated 1 stacks" in text
        found = json.loads(report.json_text(report.json_report(opened, Query(1, "cpu", *opened.span))))
        (cpu,) = found["sources"]
        assert (cpu["rows"], cpu["lost"], cpu["truncated"]) == (20, 3, 1)
        later = report.json_report(opened, Query(1, "cpu", START + 5 * S, START + 9 * S))["sources"][0]
        assert (later["rows"], later["lost"], later["truncated"]) == (4, 0, 0)
