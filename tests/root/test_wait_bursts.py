"""Long waits that begin while threads are switched out very often: their time is exact, and each stands for
itself.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpuprof.bpf.wait_programs import UNWALKED_NS
from gpuprof.sampler.wait_stacks import NOT_TAKEN
from gpuprof.snapshots.file import read_snapshot
from gpuprof.snapshots.history import History
from gpuprof.snapshots.table_view import frame_label

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]

WORKLOADS = Path(__file__).parent / "workloads"
COMMAND = [sys.executable, "-I", "-c", "import sys; from gpuprof.tui.command import main; sys.exit(main())"]
NS = 1e9


@dataclass(frozen=True)
class Row:
    """One row of waits: names innermost first."""

    tid: int
    thread: str
    names: tuple[str, ...]
    start_ns: int
    ns: int
    weight: float


def recorded(file: Path, *command: str) -> tuple[str, History]:
    """(what the command printed, what was recorded of it)"""
    done = subprocess.run(
        [*COMMAND, "record", "--no-service", "-f", "-o", str(file), "--", *command],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    history = read_snapshot(str(file)).history
    status = status_of(history)
    if status[0] == "failed":
        pytest.skip(status[1])
    return done.stdout, history


def status_of(history: History) -> tuple[str, str, int]:
    assert history.status is not None
    return next((one.state, one.reason, one.lost) for one in history.status.sources if one.name == "offcpu")


def rows_of(history: History) -> list[Row]:
    found = []
    for view, rows in history.waits_between(*history.span):
        names: dict[int, tuple[str, ...]] = {0: ()}

        def path(node: int, view=view, names=names) -> tuple[str, ...]:  # type: ignore[no-untyped-def]
            if node not in names:
                label = frame_label(view, int(view.frame[node]))[0].removesuffix(" (caller guessed)")
                names[node] = (label, *path(int(view.parent[node])))
            return names[node]

        columns = {name: column.tolist() for name, column in rows.columns.items()}
        for thread, stack, start, end, weight in zip(
            *(columns[name] for name in ("thread", "stack", "start_ns", "end_ns", "weight")), strict=True
        ):
            found.append(
                Row(
                    int(view.thread_tid[thread]), view.threads[thread].name,
                    path(stack), start, end - start, weight,
                )
            )  # fmt: skip
    return sorted(found, key=lambda row: row.start_ns)


@pytest.mark.parametrize(("count", "length"), [(16, 0.01), (50, 0.1), (100, 0.5)])
def test_what_the_main_thread_waits_for_after_it_started_its_threads(
    count: int, length: float, tmp_path: Path
) -> None:
    script = str(WORKLOADS / "burst.py")
    _, history = recorded(tmp_path / "a.gpuprof", sys.executable, script, str(count), str(length))
    rows = rows_of(history)
    for function, seconds in (("blocked_two_seconds", 2.0), ("blocked_in_join", 1.5 + length / 2)):
        mine = [row for row in rows if function in row.names]
        long = [row for row in mine if row.ns >= UNWALKED_NS]
        assert {row.weight for row in long} == {1.0}, (function, status_of(history))
        waited = sum(row.ns * row.weight for row in mine) / NS
        assert waited == pytest.approx(seconds, abs=0.1 + length / 2), (function, status_of(history))
    two = [row.ns for row in rows if "blocked_two_seconds" in row.names]
    assert sum(two) / NS == pytest.approx(2.0, abs=0.06)
    # No thread waits longer than there was time, but for the chance of its short waits.
    first, last = history.span
    said = status_of(history)[1]
    for tid in {row.tid for row in rows}:
        of_thread = [row for row in rows if row.tid == tid]
        waited = sum(row.ns * row.weight for row in of_thread)
        deviation = sum(row.ns**2 * row.weight * (row.weight - 1) for row in of_thread) ** 0.5
        assert waited <= (last - first) * 1.02 + 5 * deviation, (tid, said)


def test_long_waits_are_exact_where_others_wait_too_often_for_all_stacks_to_be_taken(tmp_path: Path) -> None:
    """Of a thread that polls, its own clock is the oracle; what it did there is known of some waits only."""
    if shutil.which("gcc") is None:
        pytest.skip("no gcc")
    program = str(tmp_path / "switches")
    source = str(WORKLOADS / "switches.c")
    subprocess.run(["gcc", "-O2", "-pthread", "-o", program, source], check=True)
    pairs = str(min(2 * (os.cpu_count() or 1), 64))
    printed, history = recorded(tmp_path / "a.gpuprof", program, pairs, "12")
    mine = [row for row in rows_of(history) if row.thread == "the_poller" and row.ns >= UNWALKED_NS]
    assert {row.weight for row in mine} == {1.0}
    assert len({row.start_ns for row in mine}) >= 12
    assert sum(row.ns for row in mine) / NS == pytest.approx(float(printed), rel=0.03)
    # A thread that waits seldom has an allowance of its own, so that others do not take its stacks.
    assert sum("long_poll" in row.names for row in mine) >= 0.9 * len(mine), {row.names for row in mine}
    assert all("long_poll" in row.names or NOT_TAKEN in row.names for row in mine)


def test_the_functions_of_a_program_that_is_gone_before_its_waits_are_named(tmp_path: Path) -> None:
    """A short-lived Python program, of another name than what started it: its code objects are told by the
    kernel side, and its thread has the name that it had last.
    """
    nap = (
        "import ctypes, time\n"
        "ctypes.CDLL(None).prctl(15, b'napper', 0, 0, 0)\n"
        "def the_nap(): time.sleep(0.15)\n"
        "the_nap()\n"
    )
    script = (
        "import subprocess, sys, time\ntime.sleep(0.5)\n"
        f"for _ in range(12): subprocess.run([sys.executable, '-I', '-c', {nap!r}])\n"
    )
    _, history = recorded(tmp_path / "a.gpuprof", sys.executable, "-c", script)
    mine = [row for row in rows_of(history) if row.thread == "napper" and row.ns >= UNWALKED_NS]
    naps = [row for row in mine if "sleep" in row.names]
    assert len(naps) >= 12, status_of(history)
    unsaid = [row.names for row in naps if not any(name[:1] == "[" for name in row.names)]
    assert unsaid
    assert all("the_nap" in names for names in unsaid), unsaid
