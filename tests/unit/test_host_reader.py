"""The host source: parsers on odd input, and real processes against what the kernel says elsewhere."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpuprof.sampler import host_processes
from gpuprof.sampler.host_processes import HostProcesses
from gpuprof.sampler.host_reader import HostReader
from gpuprof.sampler.proc_stat import (
    NS_PER_TICK,
    core_busy_ns,
    cpu_and_start,
    mem_available_bytes,
    process_times,
)
from gpuprof.sampler.process_scan import MAX_REST, ProcessScan
from gpuprof.sampler.tracked_process import TrackedProcess
from gpuprof.snapshots.frames import Hello
from gpuprof.snapshots.history import History

BUSY = "while True: pass"


def stat_line(comm: bytes = b"python3", state: bytes = b"R", utime: int = 250, stime: int = 50) -> bytes:
    middle = (
        b"1 1 1 0 -1 4194304 100 0 0 0 %d %d 7 9 20 0 4 0 123456 99999999 2048 18446744073709551615 1 1"
        % (
            utime,
            stime,
        )
    )
    return b"4711 (" + comm + b") " + state + b" " + middle + b"\n"


def history() -> History:
    return History(
        Hello(1, "host", "boot", "6.18", 2, time.monotonic_ns(), time.time_ns(), "0", 1, 0, 10, False)
    )


def wait_for(condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.02)
    return result


@pytest.fixture
def spawn() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    children = []

    def start(program: str) -> subprocess.Popen[bytes]:
        children.append(subprocess.Popen([sys.executable, "-c", program]))
        return children[-1]

    yield start
    for child in children:
        child.kill()
        child.wait()


# -------------------------------------------------------------------------------- parsers


def test_busy_time_leaves_idle_and_iowait_out() -> None:
    text = (
        b"cpu  10 20 30 40 50 60 70 80 90 100\n"
        b"cpu0 1 2 4 1000 2000 8 16 32 64 128\n"
        b"cpu7 1 0 0 0 0 0 0 0 0 0\n"  # cores in between are offline
        b"cpu8 broken\n"
        b"intr 5 cpu9 1 1 1 1 1 1 1 1\n"
    )
    assert core_busy_ns(text) == {0: 63 * NS_PER_TICK, 7: 1 * NS_PER_TICK}
    assert core_busy_ns(b"") == {}


@pytest.mark.parametrize(
    "comm",
    [
        b"python3",
        b"tmux: server",
        b"a) R 1 (b",
        b")",
        b"((",
        b"new\nline",
        b"\xff\x1b[31m",
        b"",
        b"Z) Z 0 0 0",
    ],
)
def test_a_name_may_hold_anything(comm: bytes) -> None:
    times = process_times(stat_line(comm))
    assert times is not None
    assert (times.comm, times.state, times.cpu_ns) == (comm, "R", 300 * NS_PER_TICK)
    assert (times.start_ticks, times.rss_bytes) == (123456, 2048 * os.sysconf("SC_PAGE_SIZE"))
    assert cpu_and_start(stat_line(comm)) == (300 * NS_PER_TICK, 123456)


@pytest.mark.parametrize(
    "text", [b"", b"4711", b"4711 (x", b"4711 (x) R", b") (", stat_line()[:60], b"\0" * 200]
)
def test_what_is_not_a_stat_line_is_nothing(text: bytes) -> None:
    assert process_times(text) is None
    assert cpu_and_start(text) is None


def test_zombies_are_told() -> None:
    zombie = process_times(stat_line(state=b"Z"))
    assert zombie is not None
    assert zombie.zombie
    assert cpu_and_start(stat_line(state=b"Z")) is None


def test_memory_available() -> None:
    assert mem_available_bytes(b"MemTotal: 9 kB\nMemAvailable:    1234 kB\n") == 1234 * 1024
    assert mem_available_bytes(b"MemTotal: 9 kB\n") is None


# -------------------------------------------------------------------------------- the search


def fake_proc(root: Path, processes: dict[int, bytes]) -> str:
    for pid, line in processes.items():
        (root / str(pid)).mkdir(exist_ok=True)
        (root / str(pid) / "stat").write_bytes(line)
    return str(root)


def test_a_search_is_paced_by_its_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proc = fake_proc(tmp_path, {pid: stat_line() for pid in range(1, 3001)})
    scan = ProcessScan(proc)
    visits: list[str] = []
    visit = scan._visit
    monkeypatch.setattr(scan, "_visit", lambda name: (visits.append(name), visit(name)))
    monkeypatch.setattr(time, "thread_time_ns", lambda: 100_000 * len(visits))  # what a visit costs
    seen = []
    while not scan.step(2_000_000):
        seen.append(len(visits))
    assert np.diff(seen, prepend=0).tolist() == [24] * 124  # the budget's 20, and the rest of the eight
    assert len(visits) == len(scan.busiest(5000, 0.0)) == 3000


def test_sleepers_rest_and_newcomers_go_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuprof.sampler.process_scan._MIN_INTERVAL_NS", 0)
    visits: list[str] = []
    proc = fake_proc(tmp_path, {pid: stat_line(state=b"S") for pid in range(1, 41)})
    scan = ProcessScan(proc)
    visit = scan._visit
    monkeypatch.setattr(scan, "_visit", lambda name: (visits.append(name), visit(name)))
    rounds = 3 * MAX_REST
    for _ in range(rounds):
        scan.step(10**9)
    assert len(visits) < 40 * rounds / 3
    fake_proc(tmp_path, {9999: stat_line(utime=5000)})
    visits.clear()
    scan.step(10**9)
    assert visits[0] == "9999"
    (tmp_path / "9999" / "stat").unlink()
    (tmp_path / "9999").rmdir()
    scan.step(10**9)
    assert 9999 not in scan.busiest(100, 0.0)


def test_a_used_again_pid_does_not_inherit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuprof.sampler.process_scan._MIN_INTERVAL_NS", 0)
    proc = fake_proc(tmp_path, {7: stat_line(utime=10**9)})
    scan = ProcessScan(proc)
    scan.step(10**9)
    fake_proc(tmp_path, {7: stat_line(utime=0, stime=0).replace(b" 123456 ", b" 123999 ")})
    scan.step(10**9)
    assert scan.busiest(10, 1e-9) == []


# -------------------------------------------------------------------------------- real processes


def test_a_descriptor_never_means_another_process(spawn: Callable[..., subprocess.Popen[bytes]]) -> None:
    child = spawn("import time; time.sleep(600)")
    tracked = TrackedProcess.open(child.pid)
    assert tracked is not None
    assert tracked.read() is not None
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert tracked.read() is None  # a zombie
    assert TrackedProcess.open(child.pid) is None
    child.wait()
    assert tracked.read() is None  # gone
    tracked.close()


def test_a_busy_process_is_found(
    spawn: Callable[..., subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_processes, "ROUND_NS", 0)
    monkeypatch.setattr(host_processes, "MIN_AGE_NS", 0)
    child = spawn(BUSY)
    kept = history()
    follower = HostProcesses(kept)
    times = wait_for(lambda: next((t for pid, _, t in follower.read(set()) if pid == child.pid), None))
    child.kill()
    usage = os.wait4(child.pid, 0)[2]
    child.returncode = -9
    assert times.cpu_ns <= (usage.ru_utime + usage.ru_stime) * 1e9 + 2 * NS_PER_TICK
    assert times.rss_bytes > 1 << 20
    assert child.pid not in {pid for pid, _, _ in follower.read(set())}
    with kept.lock:
        names = {entry.pid: entry.name for entry in kept.tables.view().processes}
    assert names[child.pid].startswith("python")
    # A new generation is told again who is there.
    sleeper = spawn("import time; time.sleep(600)")
    wait_for(lambda: sleeper.pid in {pid for pid, _, _ in follower.read({sleeper.pid})})
    kept.roll_generation()
    follower.read({sleeper.pid})
    assert sleeper.pid in {entry.pid for entry in kept.tables.view().processes}
    follower.close()


def test_processes_on_a_gpu_are_followed_though_idle(spawn: Callable[..., subprocess.Popen[bytes]]) -> None:
    child = spawn("import time; time.sleep(600)")
    kept = history()
    reader = HostReader(kept, lambda: {child.pid, 2**31 - 1})
    reader.start()

    def found() -> bool:
        return {"proc_cpu_ns", "proc_rss_bytes"} <= {
            d.metric for d in list(kept.series_defs.values()) if d.pid == child.pid
        }

    wait_for(found)
    began = time.monotonic()
    reader.stop()
    assert time.monotonic() - began < 20  # and not for as long as it lives
    assert not [d for d in kept.series_defs.values() if d.pid == 2**31 - 1]
    assert reader.status().state == "ok"


def test_a_swarm_of_newcomers_does_not_fill_the_history(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[int] = []

    class Opened:
        start_ticks = 0
        comm = b"cc1"

        def __init__(self, pid: int) -> None:
            self.pid = pid

        @classmethod
        def open(cls, pid: int) -> Opened:
            opened.append(pid)
            return cls(pid)

        def read(self) -> Any:
            return process_times(stat_line(b"cc1"))

        def close(self) -> None:
            pass

    from gpuprof.snapshots.frames import ProcessDef

    monkeypatch.setattr(host_processes, "TrackedProcess", Opened)
    monkeypatch.setattr(host_processes, "describe", lambda pid: ProcessDef(pid, 0, "cc1", "", "u", 1, 1))
    monkeypatch.setattr(host_processes, "ROUND_NS", 0)
    follower = HostProcesses(history())
    fresh = iter(range(10, 10**6))
    monkeypatch.setattr(follower._scan, "step", lambda budget: True)
    monkeypatch.setattr(follower._scan, "busiest", lambda count, cores: [next(fresh) for _ in range(count)])
    for _ in range(50):
        assert len(follower.read(set())) <= host_processes.MAX_BUSY
    assert len(set(opened)) < host_processes.MAX_BUSY + 20


def test_cores_add_up_with_the_kernels_own_sum() -> None:
    threads = threading.active_count()
    kept = history()
    reader = HostReader(kept)
    reader.start()
    wait_for(lambda: len(kept.readings_between(0, 2**63)[1]["series"]) > 20)
    reader.stop()
    wait_for(lambda: threading.active_count() <= threads)
    definitions, columns = kept.readings_between(0, 2**63)
    last: dict[int, float] = {}
    for series, value in zip(columns["series"].tolist(), columns["value"].tolist(), strict=True):
        definition = definitions[series]
        if definition.metric == "core_busy_ns":
            assert definition.core is not None
            assert value >= last.get(definition.core, 0)
            last[definition.core] = value
    fields = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    total = (sum(fields) - fields[3] - fields[4]) * NS_PER_TICK
    assert 0 <= total - sum(last.values()) < 10 * 10**9
    assert len(last) == len(os.sched_getaffinity(0)) or len(last) == os.cpu_count()
