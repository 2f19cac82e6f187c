"""Waits end to end with real eBPF: planted waits are found with their kind, their length and their waker."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gpuprof.bpf.programs import StackPrograms
from gpuprof.sampler import wait_budget
from gpuprof.sampler.cpu_stacks import CpuStacks
from gpuprof.sampler.offcpu import OffCpu, Picks
from gpuprof.snapshots.errors import GpuprofError
from gpuprof.snapshots.file import read_snapshot
from gpuprof.snapshots.frames import NO_THREAD, FrameKind, Hello, Query, SourceStatus, WaitKind
from gpuprof.snapshots.history import History

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]

WORKLOADS = Path(__file__).parent / "workloads"
SECONDS = "2.5"
NS = 1e9


@dataclass(frozen=True)
class Row:
    """One wait. `host`: names root first; `leaf`: the frame that names the wait, and what follows it."""

    thread: str
    waker: str | None
    host: tuple[str, ...]
    leaf: tuple[str, ...]
    kind: WaitKind
    ns: float  # within the workload's own begin and end, times the weight
    weight: float
    start_ns: int
    end_ns: int


@dataclass
class Truth:
    """What a workload says of itself, in seconds; of its main thread."""

    begin: float
    end: float
    cpu: float
    waited: float
    waits: float
    other_cpu: float
    pid: int = 0
    rows: list[Row] = field(default_factory=list)

    def sum(self, chosen: Callable[[Row], bool]) -> float:
        return sum(row.ns for row in self.rows if chosen(row)) / NS


@dataclass
class Capture:
    truths: dict[str, Truth]
    unpicked_rows: int
    status: SourceStatus
    counters: dict[str, int]


class Sampler:
    """The stack reader and the source of waits, on a history of their own."""

    def __init__(self) -> None:
        self.history = History(
            Hello(
                version=1, host="test", boot_id="", kernel="", cpu_count=os.cpu_count() or 1,
                mono_ns=time.monotonic_ns(), wall_ns=time.time_ns(), sampler_version="",
                sampler_pid=os.getpid(), cpu_hz=99, nvml_hz=0, privileged=True,
            )
        )  # fmt: skip
        self.stacks = CpuStacks(self.history, StackPrograms.load(99), 99)
        self.waits: OffCpu | None = None
        self.stacks.start()

    def follow(self, picks: Picks) -> OffCpu:
        self.waits = OffCpu(lambda: self.stacks, lambda: True, set, picks)
        self.waits.start()
        deadline = time.monotonic() + 30
        while self.waits.status().state == "starting" and time.monotonic() < deadline:
            time.sleep(0.02)
        return self.waits

    def stop(self) -> None:
        if self.waits is not None:
            self.waits.stop()
        self.stacks.stop()

    def rows(self, pid: int, begin: float, end: float) -> list[Row]:
        """The waits of a process and its children, each cut to a range in seconds."""
        found = []
        for view, part in self.history.waits_between(int(begin * NS), int(end * NS)):
            columns = {name: column.tolist() for name, column in part.columns.items()}
            for values in zip(*columns.values(), strict=True):
                row = dict(zip(columns, values, strict=True))
                thread = view.threads[row["thread"]]
                process = view.processes[thread.process]
                if pid not in {process.pid, process.ppid}:
                    continue
                names, kinds = [], []
                node = row["stack"]
                while node:
                    function = int(view.frame_function[view.frame[node]])
                    names.append(view.strings[view.name[function]])
                    kinds.append(int(view.kind[function]))
                    node = int(view.parent[node])
                names.reverse()
                kinds.reverse()
                at = kinds.index(FrameKind.WAIT)
                overlap = min(row["end_ns"], int(end * NS)) - max(row["start_ns"], int(begin * NS))
                waker = None if row["waker"] == NO_THREAD else view.threads[row["waker"]].name
                found.append(
                    Row(
                        thread.name, waker, tuple(names[:at]), tuple(names[at:]), WaitKind(row["kind"]),
                        max(overlap, 0) * row["weight"], row["weight"], row["start_ns"], row["end_ns"],
                    )
                )  # fmt: skip
        return found


def start(command: Sequence[str]) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return process


def run(sampler: Sampler, processes: dict[str, subprocess.Popen[bytes]]) -> dict[str, Truth]:
    """Let them all go at once, and wait until each has said what it measured."""
    for process in processes.values():
        assert process.stdin is not None
        process.stdin.write(b"\n")
        process.stdin.flush()
    truths = {}
    for name, process in processes.items():
        assert process.stdout is not None
        truths[name] = Truth(*map(float, process.stdout.readline().split()), pid=process.pid)
    assert sampler.stacks.settle(10.0)
    for truth in truths.values():
        truth.rows = sampler.rows(truth.pid, truth.begin, truth.end)
    return truths


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Capture:
    """All workloads: loading the programs costs more than the captures."""
    if shutil.which("gcc") is None:
        pytest.skip("no gcc")
    program = str(tmp_path_factory.mktemp("waits") / "waits")
    source = str(WORKLOADS / "waits.c")
    subprocess.run(["gcc", "-O2", "-fomit-frame-pointer", "-pthread", "-o", program, source], check=True)
    try:
        sampler = Sampler()
    except GpuprofError as error:
        pytest.skip(f"no eBPF here: {error}")
    script = str(WORKLOADS / "waits.py")
    calm = {
        "lock": [program, "lock", SECONDS],
        "pipe": [program, "pipe", SECONDS],
        "sleep": [program, "sleep", SECONDS],
        "python-lock": [sys.executable, script, "lock", SECONDS],
        "python-tcp": [sys.executable, script, "tcp", SECONDS],
    }
    busy = {"starve": [program, "starve", SECONDS]}
    many = {"short": [program, "short", SECONDS, "200"], "very-short": [program, "short", SECONDS, "20"]}
    processes: dict[str, subprocess.Popen[bytes]] = {}
    budget = wait_budget.TARGET_SHARE, wait_budget.MAX_WAITS_PER_S
    # Here the threshold stays, however busy the machine is; how it moves has tests of its own.
    wait_budget.TARGET_SHARE, wait_budget.MAX_WAITS_PER_S = 1000.0, 10**9
    unpicked = subprocess.Popen([sys.executable, "-c", "import time\nwhile True: time.sleep(0.01)"])
    try:
        for name, command in (calm | busy | many).items():
            processes[name] = start(command)
        waits = sampler.follow(Picks(pids=tuple(process.pid for process in processes.values())))
        if waits.status().state == "failed":
            pytest.skip(waits.status().reason)
        truths: dict[str, Truth] = {}
        for group in (calm, busy, many):
            truths |= run(sampler, {name: processes[name] for name in group})
        others = sampler.rows(unpicked.pid, 0, 1e9)
        status, counters = waits.status(), sampler.stacks.counters()
    finally:
        for process in [*processes.values(), unpicked]:
            process.kill()
            process.wait()
        sampler.stop()
        wait_budget.TARGET_SHARE, wait_budget.MAX_WAITS_PER_S = budget
    return Capture(truths, len(others), status, counters)


def test_the_source_is_well(capture: Capture) -> None:
    # Those that hand over to each other all the time have not all of their waits told, and that is said.
    assert capture.status.state == "degraded"
    assert re.fullmatch(
        r"so many of (process \d+ that its|\d+ processes that their) waits under (up to )?100 ms are sampled",
        capture.status.reason,
    ), capture.status.reason
    assert (capture.status.lost, capture.status.invalid) == (0, 0)
    assert capture.status.samples > 1000
    assert capture.status.truncated < capture.status.samples * 0.01


def test_a_process_that_is_not_followed_has_no_waits(capture: Capture) -> None:
    assert capture.unpicked_rows == 0


@pytest.mark.parametrize(
    ("workload", "waiter", "kind", "waker", "work", "thread"),
    [
        ("lock", "lock_waiter", "futex", "the_holder", "holder_work", "the_waiter"),
        ("pipe", "pipe_reader", "pipe or socket", "pt_data_worker", "slow_writer", "waits"),
        ("python-lock", "lock_waiter", "futex", "python", "holder_work", "python"),
        ("python-tcp", "tcp_reader", "pipe or socket", "python", "slow_sender", "python"),
    ],
)
def test_planted_wait_with_its_waker(  # noqa: PLR0917
    capture: Capture, workload: str, waiter: str, kind: str, waker: str, work: str, thread: str
) -> None:
    truth = capture.truths[workload]
    rows = [row for row in truth.rows if waiter in row.host]
    assert {row.thread for row in rows} == {thread}
    blocked = [row for row in rows if row.kind == WaitKind.BLOCKED]
    total = sum(row.ns for row in blocked)
    of_kind = sum(row.ns for row in blocked if row.leaf[0] == kind)  # Python may wait for its own lock, too
    assert of_kind / total > 0.95, {row.leaf for row in blocked}
    woken = [row for row in blocked if len(row.leaf) > 1 and row.leaf[1] == f"woken by {waker}"]
    named = sum(row.ns for row in woken if row.waker is not None and work in row.leaf)
    assert named / total > 0.95, sorted({row.leaf for row in blocked if work not in row.leaf})
    # As long as the workload itself found it, by its clock around the call.
    assert total / NS + truth.sum(lambda row: row in rows and row.kind == WaitKind.RUNNABLE) == pytest.approx(
        truth.waited, rel=0.04, abs=0.0005 * truth.waits
    )


def test_a_sleeper_is_woken_by_a_timer_and_by_nobody_else(capture: Capture) -> None:
    truth = capture.truths["sleep"]
    blocked = [row for row in truth.rows if "sleeper" in row.host and row.kind == WaitKind.BLOCKED]
    total = sum(row.ns for row in blocked)
    timer = sum(row.ns for row in blocked if row.leaf == ("sleep", "woken by a timer"))
    # A wake in the very instant of the switch-out, before there is anything to note it in, names nobody.
    assert timer / total > 0.95, {row.leaf for row in blocked}
    assert {row.leaf for row in blocked} <= {("sleep", "woken by a timer"), ("sleep",)}
    assert all(row.waker is None for row in blocked)


@pytest.mark.parametrize("workload", ["lock", "pipe", "sleep", "python-lock", "python-tcp", "starve"])
def test_waits_and_cpu_time_make_up_the_time_of_a_thread(capture: Capture, workload: str) -> None:
    truth = capture.truths[workload]
    main = {"lock": "the_waiter", "python-lock": "python", "python-tcp": "python"}.get(workload, "waits")
    roots = "main" if workload in {"lock", "pipe", "sleep", "starve"} else "<module>"
    waited = truth.sum(lambda row: row.thread == main and roots in row.host)
    wall = truth.end - truth.begin
    assert waited + truth.cpu == pytest.approx(wall, rel=0.04)


def test_two_threads_on_one_cpu_wait_for_each_other(capture: Capture) -> None:
    truth = capture.truths["starve"]
    wall = truth.end - truth.begin
    for function, cpu in (("burn_one", truth.cpu), ("burn_two", truth.other_cpu)):
        rows = [row for row in truth.rows if function in row.host]
        assert {row.leaf for row in rows} == {("runnable, not scheduled",)}
        assert {row.kind for row in rows} == {WaitKind.RUNNABLE}
        ready = sum(row.ns for row in rows) / NS
        assert ready == pytest.approx(wall - cpu, rel=0.05, abs=0.02 * wall)
        assert ready > 0.3 * wall


@pytest.mark.parametrize("workload", ["short", "very-short"])
def test_waits_below_the_threshold_are_sampled_without_bias(capture: Capture, workload: str) -> None:
    truth = capture.truths[workload]
    rows = [row for row in truth.rows if "short_sleeper" in row.host]
    assert max(row.weight for row in rows) > 2
    found = sum(row.ns for row in rows) / NS
    expected = truth.end - truth.begin - truth.cpu
    # An estimate of weight w * d for each with chance 1/w: variance d * d * (w - 1).
    deviation = sum((row.ns / row.weight) ** 2 * (row.weight - 1) * row.weight for row in rows) ** 0.5 / NS
    assert abs(found - expected) < 4.5 * deviation + 0.03 * expected, (found, expected, deviation)
    assert len(rows) < truth.waits * 2


def test_a_thread_that_waits_too_often_is_sampled(capture: Capture) -> None:
    assert capture.counters["waits_not_chosen"] > 0


def test_a_child_is_followed_from_its_fork_on(capture: Capture) -> None:
    truth = capture.truths["pipe"]
    child = [row for row in truth.rows if row.thread == "pt_data_worker" and "slow_writer" in row.host]
    wall = truth.end - truth.begin
    assert sum(row.ns for row in child) / NS > 0.8 * wall


def test_a_storm_is_thinned_and_a_quiet_process_is_not() -> None:
    """With a budget that holds on any machine: as many waits as are taken whatever they cost."""
    sleeper = (
        "import sys, time\nlength, count = float(sys.argv[1]), int(sys.argv[2])\nprint('ready', flush=True)\n"
        "sys.stdin.readline()\nbegin, cpu = time.monotonic(), time.thread_time()\n"
        "for _ in range(count): time.sleep(length)\n"
        "print(begin, time.monotonic(), time.thread_time() - cpu, 0, 0, 0, flush=True)"
    )
    share = wait_budget.TARGET_SHARE
    try:
        sampler = Sampler()
    except GpuprofError as error:
        pytest.skip(f"no eBPF here: {error}")
    wait_budget.TARGET_SHARE = 1e-9
    processes = {
        name: start([sys.executable, "-c", sleeper, length, count])
        for name, length, count in (("quiet", "0.05", "100"), ("storm", "0.0005", "6000"))
    }
    try:
        source = sampler.follow(
            Picks(pids=tuple(process.pid for process in processes.values()), threshold_ns=100_000)
        )
        if source.status().state == "failed":
            pytest.skip(source.status().reason)
        truths = run(sampler, processes)
        source.look()
        status = source.status()
    finally:
        wait_budget.TARGET_SHARE = share
        for process in processes.values():
            process.kill()
            process.wait()
        sampler.stop()
    assert status.state == "degraded"
    # Until it is known who waits so much, it is one of all others.
    of_one = f"so many of process {truths['storm'].pid} that its waits under"
    assert of_one in status.reason or "are sampled, of some processes those under up to" in status.reason
    quiet, storm = truths["quiet"].rows, truths["storm"].rows
    # On a busy machine it waits for a CPU as well, and so briefly that this is sampled with all others.
    sleeps = [row for row in quiet if row.kind == WaitKind.BLOCKED and "sleep" in row.leaf]
    assert {row.weight for row in sleeps} == {1.0}
    assert len(sleeps) >= 100
    assert len(storm) < 2 * 6000 * 0.6
    truth = truths["storm"]
    found, expected = sum(row.ns for row in storm) / NS, truth.end - truth.begin - truth.cpu
    deviation = sum((row.ns / row.weight) ** 2 * (row.weight - 1) * row.weight for row in storm) ** 0.5 / NS
    assert abs(found - expected) < 4.5 * deviation + 0.03 * expected, (found, expected, deviation)


def test_record_follows_the_command_that_it_starts(tmp_path: Path) -> None:
    script = "import time\ndef napper(): time.sleep(0.05)\nfor _ in range(30): napper()"
    entry = "import sys; from gpuprof.tui.command import main; sys.exit(main())"
    file = tmp_path / "a.gpuprof"
    command = [sys.executable, "-I", "-c", entry, "record", "--no-service", "-o", str(file), "--"]
    done = subprocess.run(
        [*command, sys.executable, "-c", script], capture_output=True, text=True, timeout=90, check=False
    )
    assert done.returncode == 0, done.stderr
    history = read_snapshot(str(file)).history
    status = next(one for one in (history.status.sources if history.status else ()) if one.name == "offcpu")
    if status.state == "failed":
        pytest.skip(status.reason)
    tree = history.query(Query(1, "offcpu", *history.span, min_fraction=0.0))
    named = [n for n, name in enumerate(tree.name) if tree.strings[name].startswith("napper")]
    waited = sum(float(tree.total_weight[n]) for n in named) / NS
    assert waited == pytest.approx(1.5, rel=0.15, abs=0.2)
