"""What the sampler says of itself: its sources, also those that break, its memory, and the clock pair."""

from __future__ import annotations

import argparse
import threading
import time

import pytest

from gpuprof.sampler import main, status
from gpuprof.sampler.sources import Sources
from gpuprof.sampler.status import Failed, Reporter, bpf_bytes_of_smaps
from gpuprof.snapshots.errors import GpuprofError
from gpuprof.snapshots.frames import Hello, SourceStatus
from gpuprof.snapshots.history import History


def history() -> History:
    return History(Hello(1, "node", "boot", "6.1", 2, 5, 0, "0", 1, 99, 10, True))


def options(*argv: str) -> argparse.Namespace:
    return main._parser().parse_args(argv)


HANG_S = 40


class Works:
    stopped = False

    def start(self) -> None: ...

    def stop(self) -> None:
        self.stopped = True

    def status(self) -> SourceStatus:
        return SourceStatus("nvml", "ok")

    def pids(self) -> set[int]:
        return {4, 5}


class Breaks(Works):
    def status(self) -> SourceStatus:
        raise RuntimeError


class Hangs(Works):
    def stop(self) -> None:
        time.sleep(HANG_S)


def started(made: Sources) -> dict[str, SourceStatus]:
    made.start()
    deadline = time.monotonic() + 60
    while not made.settled:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    return {found.name: found for found in (source.status() for source in made.all())}


def test_one_source_that_fails_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_bcc(_self: Sources) -> status.Source:
        raise GpuprofError("bcc is missing", "apt install python3-bpfcc")

    def bug(_self: Sources) -> status.Source:
        raise KeyError("x")

    monkeypatch.setattr(Sources, "_make_gpus", lambda self: Works())
    monkeypatch.setattr(Sources, "_make_host", bug)
    monkeypatch.setattr(Sources, "_make_stacks", no_bcc)
    made = Sources(history(), options(), privileged=True)
    assert {source.status().state for source in made.all()} == {"starting"}
    found = started(made)
    assert found["nvml"].state == "ok"
    assert (found["cpu"].state, found["cpu"].reason) == ("failed", "bcc is missing")
    assert found["cpu"].hint == "apt install python3-bpfcc"
    assert "KeyError" in found["processes"].reason
    assert made._gpu_pids() == {4, 5}
    assert made.bpf_run_ns() is None
    made.stop(1.0)


def test_a_source_that_hangs_holds_up_neither_start_nor_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()

    def slow(_self: Sources) -> status.Source:
        gate.wait(HANG_S)
        return Works()

    monkeypatch.setattr(Sources, "_make_gpus", slow)
    monkeypatch.setattr(Sources, "_make_host", lambda self: Hangs())
    made = Sources(history(), options("--no-cpu"), privileged=True)
    made.start()
    while made.all()[1].status().state != "ok":
        time.sleep(0.005)
    assert made.all()[0].status().state == "starting"
    assert not made.settled
    begin = time.monotonic()
    made.stop(0.2)
    assert time.monotonic() - begin < HANG_S / 2
    gate.set()  # what starts after the end is stopped again
    while not made.settled:
        time.sleep(0.005)
    last = made.all()[0]
    while not getattr(last, "stopped", True):
        time.sleep(0.005)


def test_without_the_right_the_sudo_line_is_the_hint() -> None:
    made = Sources(
        history(), options("--command", "/opt/my tools/gpuprof-tui", "--no-nvml"), privileged=False
    )
    made._make_host = Works  # type: ignore[method-assign, assignment]
    found = started(made)
    assert found["cpu"].state == "failed"
    assert found["cpu"].hint == "sudo '/opt/my tools/gpuprof-tui'"
    assert made.all()[0].status().state == "off"
    made.stop(1.0)


def test_hello_has_the_sudo_line_only_where_it_helps() -> None:
    given = options("--command", "/opt/gpuprof-tui")
    assert main.hello(given, privileged=False).sudo_line == "sudo /opt/gpuprof-tui"
    assert main.hello(given, privileged=False).cpu_hz == 0
    assert main.hello(given, privileged=True).sudo_line is None
    assert main.hello(given, privileged=True).cpu_hz == 99


def test_the_status_counts_cpu_time_and_memory_as_the_kernel_does() -> None:
    begin = time.process_time_ns()
    frame = Reporter(history()).frame([Works(), Breaks(), Failed("cpu", "why", "how")])
    assert begin <= frame.sampler_cpu_ns <= time.process_time_ns()
    with open("/proc/self/status") as file:
        rss = next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmRSS"))
    assert abs(frame.sampler_rss_bytes - rss) < 8 << 20
    assert [source.state for source in frame.sources] == ["ok", "failed", "failed"]
    assert "RuntimeError" in frame.sources[1].reason
    assert frame.sources[2].hint == "how"


def test_bpf_maps_are_found_in_smaps() -> None:
    lines = b"""7f0000000000-7f0000400000 rw-s 00000000 00:0e 1057   anon_inode:bpf-map
Size:               4096 kB
Rss:                1200 kB
Pss:                1200 kB
7f0000400000-7f0000500000 rw-p 00000000 00:00 0
Rss:                 900 kB
7f0000500000-7f0000600000 r--p 00000000 08:01 77   /usr/lib/libbpf.so.1
Rss:                 300 kB
7f0000700000-7f0000800000 rw-s 00001000 00:0e 1057   anon_inode:bpf-map
Rss:                 100 kB
""".splitlines(keepends=True)
    assert bpf_bytes_of_smaps(lines) == 1300 * 1024
    assert bpf_bytes_of_smaps([]) == 0


def test_the_clock_pair_is_of_one_instant() -> None:
    before = (time.monotonic_ns(), time.time_ns())
    mono, wall = main.clock_pair()
    after = (time.monotonic_ns(), time.time_ns())
    assert before[0] <= mono <= after[0]
    assert before[1] <= wall <= after[1]


def test_a_sampler_that_nobody_could_reach_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["--no-cpu", "--no-nvml"]) == 2
    assert "--socket" in capsys.readouterr().err
