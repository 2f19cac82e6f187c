"""Threads that waited already when their process came to be followed: their short waits after that are chosen
as those of any other thread.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from recorders import wait_until_it_records

from gpuprof.snapshots.file import read_snapshot

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]

WORKLOADS = Path(__file__).parent / "workloads"
COMMAND = [sys.executable, "-I", "-c", "import sys; from gpuprof.tui.command import main; sys.exit(main())"]
THREADS = 400
NS = 1e9


def test_one_short_wait_of_each_of_many_threads_is_not_told_as_many(tmp_path: Path) -> None:
    """Were the first short wait of each sent for certain, each would stand for a whole threshold: for more
    than ten times its length, which raises the threshold in turn.
    """
    if shutil.which("gcc") is None:
        pytest.skip("no gcc")
    program, file = str(tmp_path / "short_sleeps"), tmp_path / "a.gpuprof"
    subprocess.run(["gcc", "-O2", "-pthread", "-o", program, str(WORKLOADS / "short_sleeps.c")], check=True)
    with subprocess.Popen(
        [program, str(THREADS)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as workload:
        assert workload.stdin is not None
        assert workload.stdout is not None
        assert workload.stdout.readline() == "ready\n"
        with subprocess.Popen(
            [*COMMAND, "record", "--no-service", "-f", "-o", str(file), "--offcpu-pid", str(workload.pid)],
            stderr=subprocess.PIPE, text=True,
        ) as recording:  # fmt: skip
            said = wait_until_it_records(recording)
            assert recording.stderr is not None
            workload.stdin.write("x")
            workload.stdin.flush()
            slept = int(workload.stdout.readline()) / NS
            recording.terminate()
            said += recording.stderr.read()
            recording.wait(60)
        workload.kill()
    history = read_snapshot(str(file)).history
    assert history.status is not None
    source = next(one for one in history.status.sources if one.name == "offcpu")
    if source.state == "failed":
        pytest.skip(source.reason)
    told, count = 0.0, 0
    for view, rows in history.waits_between(*history.span):
        columns = rows.columns
        # The main thread has long ones, of which it is told as much as they were.
        sampled = (columns["weight"] > 1) & (view.thread_tid[columns["thread"]] != workload.pid)
        lengths = (columns["end_ns"] - columns["start_ns"]).astype(np.float64)
        told += float((lengths * columns["weight"])[sampled].sum()) / NS
        count += int(sampled.sum())
    assert told <= 15 * slept, (told, slept, count, source, said)
