"""Following processes by control messages, with real processes and tables that only take notes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest
from noted_tables import NotedTables

from gpuprof.bpf.records import ControlMessage, MessageReason
from gpuprof.sampler.frame_ids import FrameIds
from gpuprof.sampler.known_processes import PURGE_AFTER_EXIT_NS
from gpuprof.sampler.process_follower import ProcessFollower
from gpuprof.sampler.processes import describe
from gpuprof.sampler.symbol_store import SymbolStore

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="reads other processes")


@pytest.fixture
def notes() -> NotedTables:
    return NotedTables()


@pytest.fixture
def follower(notes: NotedTables) -> Iterator[ProcessFollower]:
    follower = ProcessFollower(notes, FrameIds(), SymbolStore())  # type: ignore[arg-type]
    yield follower
    follower.close()


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A Python process that runs until it is told to end."""
    code = "import sys; print(1, flush=True); sys.stdin.read()"
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    process.kill()
    process.communicate()


def start_ns(pid: int) -> int:
    found = describe(pid)
    assert found is not None
    return found.start_ns


def sample(follower: ProcessFollower, pid: int, start: int, *, comm: bytes = b"x") -> str:
    """The name of the process that a sample of now is given to."""
    process = follower.get(pid, start, time.monotonic_ns(), uid=0, comm=comm)
    return process.definition.name


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_new_process_is_published_with_its_python(
    follower: ProcessFollower, notes: NotedTables, sleeper: subprocess.Popen[bytes]
) -> None:
    message = ControlMessage(sleeper.pid, MessageReason.NEW_PROCESS, 0)
    follower.handle([message, message])
    mappings, python = notes.published[sleeper.pid]
    assert any(mapping.name.startswith("libc.so") for mapping in mappings)
    assert python is not None
    assert python.version == sys.version_info[:2]


MANY = """
import sys, threading
wait = threading.Event()
threads = [threading.Thread(target=wait.wait, daemon=True) for _ in range(int(sys.argv[1]))]
[thread.start() for thread in threads]
print(threading.get_ident(), *(thread.ident for thread in threads), flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("count", [3, 100])
def test_threads_that_the_kernel_did_not_find(
    follower: ProcessFollower, notes: NotedTables, count: int
) -> None:
    command = [sys.executable, "-c", MANY, str(count)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        threads = set(map(int, process.stdout.readline().split()))
        message = ControlMessage(process.pid, MessageReason.THREAD_STATES, 0)
        follower.handle([message])
        assert notes.threads == {}  # nobody knows the process yet
        follower.want(process.pid)
        follower.handle([])
        assert (process.pid in notes.threads) == (count == 100)  # many are read before they are asked for
        follower.handle([message])
        assert set(notes.threads[process.pid]) == threads
    finally:
        process.kill()
        process.communicate()


def test_messages_about_processes_that_are_gone(follower: ProcessFollower, notes: NotedTables) -> None:
    for reason in MessageReason:
        follower.handle([ControlMessage(0x7FFFFFF0, reason, 0x1000)])
    assert notes.published == {}


def test_a_kernel_thread_has_nothing_to_publish(follower: ProcessFollower, notes: NotedTables) -> None:
    follower.handle([ControlMessage(2, MessageReason.NEW_PROCESS, 0)])
    assert notes.published == {}


def test_a_sample_of_a_process_that_is_gone_keeps_its_own_name(follower: ProcessFollower) -> None:
    assert sample(follower, 0x7FFFFFF0, 123_456_789, comm=b"gone\x1b") == "gone␛"
    first = follower.get(0x7FFFFFF0, 123_456_789, 0, uid=0, comm=b"gone")
    again = follower.get(0x7FFFFFF0, 123_450_000, 0, uid=0, comm=b"gone")
    assert first is again  # the same to the tick of /proc/PID/stat


def test_a_reused_pid_is_another_process(follower: ProcessFollower, sleeper: subprocess.Popen[bytes]) -> None:
    start = start_ns(sleeper.pid)
    living = sample(follower, sleeper.pid, start)
    assert sample(follower, sleeper.pid, start - 10**10, comm=b"before") == "before"
    assert sample(follower, sleeper.pid, start) == living


def test_exit_keeps_names_for_late_samples_then_lets_go(
    follower: ProcessFollower, notes: NotedTables, sleeper: subprocess.Popen[bytes]
) -> None:
    start = start_ns(sleeper.pid)
    follower.handle([ControlMessage(sleeper.pid, MessageReason.NEW_PROCESS, 0)])
    before = follower.get(sleeper.pid, start, time.monotonic_ns(), uid=0, comm=b"x")
    sleeper.kill()
    sleeper.wait()
    follower.handle([ControlMessage(sleeper.pid, MessageReason.EXIT, 0)])
    assert notes.forgotten == [sleeper.pid]
    after = follower.get(sleeper.pid, start, time.monotonic_ns(), uid=0, comm=b"x")
    assert after is before
    assert after.mappings
    follower.tidy(time.monotonic_ns() + PURGE_AFTER_EXIT_NS + 1)
    assert list(follower.all()) == []


def test_exec_tells_the_two_programs_apart(follower: ProcessFollower) -> None:
    code = "import os, sys; print(1, flush=True); sys.stdin.readline(); os.execv('/bin/cat', ['cat'])"
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        start = start_ns(process.pid)
        follower.handle([ControlMessage(process.pid, MessageReason.NEW_PROCESS, 0)])
        old_time = time.monotonic_ns()
        old = follower.get(process.pid, start, old_time, uid=0, comm=b"python")
        process.stdin.write(b"\n")
        process.stdin.flush()
        wait_until(lambda: (found := describe(process.pid)) is not None and found.name == "cat")
        follower.handle([ControlMessage(process.pid, MessageReason.EXEC, old_time + 1)])
        assert follower.get(process.pid, start, old_time, uid=0, comm=b"python") is old
        assert sample(follower, process.pid, start, comm=b"cat") == "cat"
        follower.handle([ControlMessage(process.pid, MessageReason.NEW_PROCESS, 0)])
        assert sample(follower, process.pid, start) == "cat"
        assert follower.get(process.pid, start, old_time, uid=0, comm=b"python") is old
        new = follower.get(process.pid, start, time.monotonic_ns(), uid=0, comm=b"cat")
        assert new.python is None
        assert [m.name for m in new.mappings] != [m.name for m in old.mappings]
    finally:
        process.kill()
        process.communicate()


def test_a_forked_child_takes_over_the_tables(
    follower: ProcessFollower, notes: NotedTables, sleeper: subprocess.Popen[bytes]
) -> None:
    code = "import os, sys; pid = os.fork() or sys.stdin.read(); print(pid, flush=True); sys.stdin.read()"
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        follower.handle([ControlMessage(process.pid, MessageReason.NEW_PROCESS, 0)])
        follower.handle([ControlMessage(child, MessageReason.FORK, process.pid)])
        parent = follower.get(process.pid, start_ns(process.pid), 0, uid=0, comm=b"x")
        forked = follower.get(child, start_ns(child), time.monotonic_ns(), uid=0, comm=b"x")
        assert child not in notes.published
        assert forked.mappings == parent.mappings
        assert forked.python == parent.python
        # A child whose parent's tables are gone is read itself.
        follower.handle([ControlMessage(child, MessageReason.EXIT, 0)])
        notes.forks = False
        follower.handle([ControlMessage(child, MessageReason.FORK, process.pid)])
        follower.handle([ControlMessage(child, MessageReason.NEW_PROCESS, 0)])
        assert child in notes.published
    finally:
        process.kill()
        process.communicate()
