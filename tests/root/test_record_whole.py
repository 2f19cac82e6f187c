"""`gpuprof-tui record` with a sampler of its own: what one that is killed leaves, and what a report says."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from machine_time import PATIENCE_S
from recorders import record

from gpuprof.snapshots.errors import FileError
from gpuprof.snapshots.file import read_snapshot
from gpuprof.snapshots.frames import Query
from gpuprof.snapshots.report import text_report

pytestmark = pytest.mark.root

SECOND = 10**9


def test_a_recorder_that_is_killed_leaves_most_and_reading_meanwhile_is_no_fault(tmp_path: Path) -> None:
    path = tmp_path / "a.gpuprof"
    process = record("--no-service", "-o", str(path))
    lines = []
    assert process.stderr is not None
    while not any("recording to" in line for line in lines):
        lines.append(process.stderr.readline())
    assert "getting ready" in lines[0]
    deadline, early = time.monotonic() + PATIENCE_S, set()
    while time.monotonic() < deadline:
        time.sleep(0.2)
        try:
            opened = read_snapshot(path)
        except FileError as error:
            early.add("is still being recorded" in error.message)
            continue
        assert opened.damage is None
        assert opened.growing is not None
        break
    assert early <= {True}
    process.kill()
    process.communicate(timeout=PATIENCE_S)
    left = read_snapshot(path)
    assert left.growing is None
    assert left.damage is not None
    assert "it was not closed: the first" in left.damage
    first, last = left.history.span
    assert last - first > 0.5 * SECOND


def test_record_and_report_say_the_same_numbers(tmp_path: Path) -> None:
    path = tmp_path / "a.gpuprof"
    process = record("--no-service", "-o", str(path), "--for", "2s", "--", "sh", "-c", "while :; do :; done")
    _, err = process.communicate(timeout=60)
    found = re.search(r"wrote .*: ([\d.]+) s, ([\d,]+) CPU samples", err)
    assert found is not None, err
    history = read_snapshot(path).history
    text = text_report(history, Query(1, "cpu", *history.span))
    assert f"({found[1]} s)" in text.split("\n")[1]
    assert f"source    cpu ok; {found[2]} samples, 0 lost" in text
    assert f"{found[2].replace(',', '')} CPU samples" in text


def test_a_whole_sampler_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "a.gpuprof"
    process = record("--no-service", "-o", str(path), "--for", "1.2s")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    defs, columns = read_snapshot(path).history.readings_between(0, 1 << 62)
    assert "core_busy_ns" in {series.metric for series in defs.values()}
    assert len(columns["value"]) > 0
