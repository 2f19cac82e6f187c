"""Planted waits from the first instant of a command to the end of a recording, with a sampler of its own and
with the service: how long each was is known, and who ended it.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuprof.sampler.wait_stacks import BEGAN_BEFORE
from gpuprof.snapshots.file import read_snapshot
from gpuprof.snapshots.frames import MAGIC, Done, Failure, Frame, Query, Status, Subscribe, Tree, Watch
from gpuprof.snapshots.history import History
from gpuprof.snapshots.wire import Decoder, pack

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]

WORKLOADS = Path(__file__).parent / "workloads"
COMMAND = [sys.executable, "-I", "-c", "import sys; from gpuprof.tui.command import main; sys.exit(main())"]
NS = 1e9
MANY = 3000  # waits
EDGE = 0.06  # s: a process starts, a signal travels, and the machine is busy with other tests


class Client:
    """A connection to the service."""

    def __init__(self, path: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(path)
        self.socket.sendall(MAGIC)
        self.decoder = Decoder()

    def ask(self, request: Frame, *wanted: type[Frame], seconds: float = 20.0) -> Frame:
        """The first answer of a kind that is wanted."""
        self.socket.sendall(pack(request))
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            if select.select([self.socket], [], [], left)[0]:
                for frame in self.decoder.feed(self.socket.recv(1 << 18)):
                    if isinstance(frame, wanted):
                        return frame
        raise AssertionError(f"no {wanted} in time")

    def close(self) -> None:
        self.socket.close()


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> str:
    if shutil.which("gcc") is None:
        pytest.skip("no gcc")
    built = str(tmp_path_factory.mktemp("long_waits") / "long_waits")
    source = str(WORKLOADS / "long_waits.c")
    subprocess.run(["gcc", "-O2", "-fno-optimize-sibling-calls", "-pthread", "-o", built, source], check=True)
    return built


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The socket of a running service whose stack reader is ready."""
    path = str(tmp_path_factory.mktemp("service") / "sampler.sock")
    process = subprocess.Popen([*COMMAND, "sampler", "--socket", path], stderr=subprocess.PIPE)
    try:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and not os.path.exists(path):
            assert process.poll() is None, process.stderr and process.stderr.read()
            time.sleep(0.05)
        while time.monotonic() < deadline:
            client = Client(path)
            status = client.ask(Subscribe("metrics"), Status)
            client.close()
            assert isinstance(status, Status)
            states = {source.name: source for source in status.sources}
            if states["cpu"].state == "failed":
                pytest.skip(states["cpu"].reason)
            if states["cpu"].state in {"ok", "degraded"} and states["offcpu"].state != "starting":
                break
            time.sleep(0.2)
        yield path
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(10)


@pytest.fixture(params=["own sampler", "service"])
def sampler(request: pytest.FixtureRequest) -> list[str]:
    """The options of `record` that choose who samples."""
    if request.param == "own sampler":
        return ["--no-service"]
    return ["--socket", request.getfixturevalue("service")]


class Waits:
    """The off-CPU tree of one process of a recording."""

    def __init__(self, file: Path, name: str, start: float = 0.0, end: float | None = None) -> None:
        history: History = read_snapshot(str(file)).history
        first, last = history.span
        self.seconds = (last - first) / NS
        until = last if end is None else int(first + end * NS)
        if history.waits.next > MANY:
            pytest.skip("other workloads are followed, too, and so many of their waits that all are sampled")
        query = Query(1, "offcpu", int(first + start * NS), until, min_fraction=0.0)
        self.tree: Tree = history.query(query)
        tree = self.tree
        names = [tree.strings[number].removesuffix(" (caller guessed)") for number in tree.name]
        self.paths = [[names[0]]]
        for node in range(1, len(names)):
            self.paths.append([*self.paths[int(tree.parent[node])], names[node]])
        self.name = name

    def sum(self, *wanted: str, without: str | None = None) -> float:
        """Seconds of the rows below which all of these names occur, in this order."""
        total = 0.0
        for node, path in enumerate(self.paths):
            rest = iter(path)
            below = len(path) > 1 and path[1].startswith(self.name) and all(name in rest for name in wanted)
            if below and not (without is not None and any(without in name for name in path)):
                total += float(self.tree.self_weight[node]) / NS
        return total


def record(options: list[str], file: Path, *rest: str) -> subprocess.CompletedProcess[str]:
    command = [*COMMAND, "record", *options, "-f", "-o", str(file), *rest]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("language", ["c", "python"])
def test_a_long_wait_is_told_whole_with_its_waker(
    sampler: list[str], program: str, language: str, tmp_path: Path
) -> None:
    script = str(WORKLOADS / "long_waits.py")
    command = [program, "planted"] if language == "c" else [sys.executable, script, "planted"]
    done = record(sampler, tmp_path / "a.gpuprof", "--", *command)
    assert done.returncode == 0, done.stderr
    name = "long_waits" if language == "c" else "python"
    waits = Waits(tmp_path / "a.gpuprof", name)
    let_go = "let_go"
    for wanted, seconds in (
        (("long_sleep", "sleep", "woken by a timer"), 2.5),
        (("last_sleep", "sleep", "woken by a timer"), 1.0),
        (("lock_waiter", "futex", let_go), 2.5),
        (("joiner", "futex"), 1.0),
    ):
        assert waits.sum(*wanted) == pytest.approx(seconds, abs=EDGE), (wanted, waits.tree.summary)
    for function, seconds in (
        ("long_sleep", 2.5),
        ("lock_waiter", 2.5),
        ("last_sleep", 1.0),
        ("joiner", 1.0),
    ):
        assert waits.sum(function) == pytest.approx(seconds, abs=EDGE)
        assert waits.sum(function, without="woken by") < EDGE, function
    assert waits.sum(BEGAN_BEFORE) == 0.0
    part = Waits(tmp_path / "a.gpuprof", name, 0.0, 1.5)  # ends before the waits did
    assert part.sum("lock_waiter", "futex", let_go) == pytest.approx(1.5, abs=3 * EDGE)
    assert part.sum("lock_waiter", without="woken by") < EDGE


def test_short_sleeps_at_the_very_beginning_are_there(
    sampler: list[str], program: str, tmp_path: Path
) -> None:
    done = record(sampler, tmp_path / "a.gpuprof", "--", program, "naps")
    assert done.returncode == 0, done.stderr
    waits = Waits(tmp_path / "a.gpuprof", "long_waits")
    assert waits.sum("nap", "sleep", "woken by a timer") == pytest.approx(1.0, abs=EDGE)
    assert waits.sum("long_sleep", "sleep", "woken by a timer") == pytest.approx(1.5, abs=EDGE)


@pytest.mark.parametrize("end", ["limit", "Ctrl-C", "SIGTERM", "command"])
def test_waits_that_go_on_are_told_up_to_the_end(
    sampler: list[str], program: str, end: str, tmp_path: Path
) -> None:
    file = tmp_path / "a.gpuprof"
    # With "command" the recorded command is a shell that ends while its child, which waits, goes on.
    command = [program, "forever"]
    if end == "command":
        command = ["/bin/sh", "-c", f"{program} forever >/dev/null 2>&1 & echo $! >{tmp_path}/pid; sleep 1.6"]
    limit = ["--for", "1.6s"] if end == "limit" else []
    process = subprocess.Popen(
        [*COMMAND, "record", *sampler, "-f", "-o", str(file), *limit, "--", *command],
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    said = ""
    try:
        if end in {"Ctrl-C", "SIGTERM"}:
            while "recording to" not in said:
                line = process.stderr.readline()
                assert line, said
                said += line
            time.sleep(1.6)
            process.send_signal(signal.SIGINT if end == "Ctrl-C" else signal.SIGTERM)
            if end == "Ctrl-C":  # the first is the command's, which from a terminal has it, too
                time.sleep(0.02)
                process.send_signal(signal.SIGINT)
        said += process.communicate(timeout=60)[1]
    finally:
        if process.poll() is None:
            process.kill()
        if (tmp_path / "pid").exists():
            os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    waits = Waits(file, "long_waits")
    assert waits.seconds == pytest.approx(1.6, abs=0.01 if end == "limit" else 4 * EDGE), said
    assert waits.sum("long_sleep", "sleep") == pytest.approx(waits.seconds, abs=4 * EDGE), said
    assert waits.sum("joiner", "futex") == pytest.approx(waits.seconds, abs=4 * EDGE)
    if end != "SIGTERM":  # which the command has, too
        last = Waits(file, "long_waits", waits.seconds - 0.2)
        assert last.sum("long_sleep", "sleep") == pytest.approx(0.2, abs=0.005)
        assert last.sum("joiner", "futex") == pytest.approx(0.2, abs=0.005)
    still_waits = waits.sum("long_sleep") - waits.sum("long_sleep", without="woken by")
    # A command that is ended is woken by it, a moment before or after the recording ends.
    assert still_waits == 0.0 or end == "SIGTERM"


def test_a_wait_that_began_before_is_told_from_then_on(
    sampler: list[str], program: str, tmp_path: Path
) -> None:
    """With its kind, and at its end its waker; what the thread did is not known."""
    file = tmp_path / "a.gpuprof"
    running = subprocess.Popen([program, "told"], stdin=subprocess.PIPE)
    try:
        time.sleep(0.5)
        options = list(sampler)
        if sampler[0] == "--no-service":
            options += ["--offcpu-pid", str(running.pid)]
        else:
            client = Client(sampler[1])
            answer = client.ask(Watch(7, running.pid), Done, Failure)
            client.close()
            assert isinstance(answer, Done), answer
            assert answer.id == 7
        recorder = subprocess.Popen(
            [*COMMAND, "record", *options, "-f", "-o", str(file), "--for", "3s"],
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert recorder.stderr is not None
        while "recording to" not in recorder.stderr.readline():
            assert recorder.poll() is None
        began = time.monotonic()
        time.sleep(1.6)
        assert running.stdin is not None
        running.stdin.write(b"x")
        running.stdin.flush()
        let_go = time.monotonic() - began
        said = recorder.communicate(timeout=60)[1]
    finally:
        running.kill()
        running.wait()
    waits = Waits(file, "long_waits")
    assert waits.seconds == pytest.approx(3.0, abs=2 * EDGE), said
    assert waits.sum(BEGAN_BEFORE, "futex", "woken by long_waits", "let_go") == pytest.approx(
        let_go, abs=EDGE
    )
    assert waits.sum(BEGAN_BEFORE, "pipe or socket") == pytest.approx(let_go, abs=EDGE)
    assert waits.sum(BEGAN_BEFORE) == pytest.approx(2 * let_go, abs=2 * EDGE)
    # What comes after is known whole.
    assert waits.sum("last_sleep", "sleep", "woken by a timer") == pytest.approx(1.0, abs=EDGE)
    assert waits.sum("joiner", "futex") == pytest.approx(1.0, abs=EDGE)


def test_the_samples_of_a_command_are_all_there(sampler: list[str], program: str, tmp_path: Path) -> None:
    """From its first instant to its last: as many as the CPU time that it used is worth."""
    file = tmp_path / "a.gpuprof"
    done = record(sampler, file, "--", program, "burn")
    assert done.returncode == 0, done.stderr
    history = read_snapshot(str(file)).history
    tree = history.query(Query(1, "cpu", *history.span, min_fraction=0.0))
    names = [tree.strings[number].removesuffix(" (caller guessed)") for number in tree.name]
    found = sum(float(tree.total_weight[node]) for node, name in enumerate(names) if name == "burn")
    # None is missing; there are more on a guest, whose stolen time is no CPU time of a thread.
    assert 0.92 * 1.5 < found / history.hello.cpu_hz < 1.35 * 1.5


def test_a_live_answer_has_the_waits_that_go_on(service: str, program: str) -> None:
    running = subprocess.Popen([program, "forever"])
    client = Client(service)
    try:
        assert isinstance(client.ask(Watch(7, running.pid), Done, Failure), Done)
        time.sleep(2.2)
        for _ in range(3):
            time.sleep(0.3)
            now_ns = time.monotonic_ns()
            query = Query(8, "offcpu", now_ns - 2 * 10**9, now_ns, pids=[running.pid], min_fraction=0.0)
            tree = client.ask(query, Tree, Failure)
            assert isinstance(tree, Tree), tree
            # Two threads; of each a quarter of a second may not be there yet.
            assert 4.0 - 2 * 0.25 - EDGE < float(tree.total_weight[0]) / NS < 4.0 + EDGE
    finally:
        client.close()
        running.kill()
        running.wait()


def test_a_process_that_is_not_there_cannot_be_watched(service: str) -> None:
    client = Client(service)
    answer = client.ask(Watch(3, (1 << 22) + 1), Done, Failure)
    client.close()
    assert isinstance(answer, Failure)
    assert "there is no process" in answer.message


def test_run_has_the_service_watch_the_workload(service: str, program: str, tmp_path: Path) -> None:
    """As `run` does it: the process asks, and then becomes the workload."""
    script = (
        "import os, sys; from gpuprof.tui.watching import watch_self; "
        f"assert watch_self({service!r}); os.execv(sys.argv[1], sys.argv[1:])"
    )
    recorder = subprocess.Popen(
        [*COMMAND, "record", "--socket", service, "-f", "-o", str(tmp_path / "a.gpuprof"), "--for", "4s"],
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert recorder.stderr is not None
    while "recording to" not in recorder.stderr.readline():
        assert recorder.poll() is None
    subprocess.run([sys.executable, "-I", "-c", script, program, "naps"], check=True)
    said = recorder.communicate(timeout=60)[1]
    waits = Waits(tmp_path / "a.gpuprof", "long_waits")
    assert waits.sum("nap", "sleep", "woken by a timer") == pytest.approx(1.0, abs=EDGE), said
    assert waits.sum("long_sleep", "sleep", "woken by a timer") == pytest.approx(1.5, abs=EDGE)
