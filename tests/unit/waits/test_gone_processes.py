"""Which processes are gone: told later than seen, by their start as by their pid, a few at a time."""

from __future__ import annotations

import os
import subprocess

from gpuprof.sampler.gone_processes import LATE_NS, LOOKED_AT_ONCE, GoneProcesses
from gpuprof.sampler.processes import start_time_ns


def test_a_process_that_has_ended_is_gone_and_this_one_is_not() -> None:
    child = subprocess.Popen(["/bin/sleep", "60"])
    own, its = start_time_ns(os.getpid()), start_time_ns(child.pid)
    assert own is not None
    assert its is not None
    gone, both = GoneProcesses(), [(os.getpid(), own), (child.pid, its)]
    gone.look(both, 0)
    assert gone.due_ns is None
    assert gone.take() == set()
    child.kill()
    child.wait()
    gone.look(both, 0)
    assert gone.due_ns == LATE_NS
    assert gone.take() == {(child.pid, its)}
    assert gone.due_ns is None
    assert gone.take() == set()


def test_a_pid_that_was_given_again_is_another_process() -> None:
    starts = {1: 10, 7: 5_000_000_000}
    gone = GoneProcesses(starts.get)
    gone.look([(7, 5_000_000_123), (7, 4_000_000_000), (8, 5_000_000_000)], 0)
    assert gone.take() == {(7, 4_000_000_000), (8, 5_000_000_000)}  # of the first, /proc tells the tick only


def test_the_idle_process_is_always_there() -> None:
    gone = GoneProcesses({1: 10}.get)
    gone.look([(0, 0), (0, 70)], 0)
    assert gone.due_ns is None


def test_of_many_all_are_looked_at_in_turn() -> None:
    asked: list[int] = []

    def start_of(pid: int) -> int | None:
        asked.append(pid)
        return 10 if pid == 1 else None

    many = [(pid, 10) for pid in range(2, 3 * LOOKED_AT_ONCE + 2)]
    gone = GoneProcesses(start_of)
    found: set[tuple[int, int]] = set()
    for _ in range(3):
        gone.look(many, 0)
        found |= gone.take()
    assert len(asked) == len(set(asked)) + 2 == 3 * LOOKED_AT_ONCE + 3  # pid 1 each time
    assert found == set(many)


def test_where_processes_are_hidden_none_is_gone() -> None:
    gone = GoneProcesses({7: 10}.get)
    gone.look([(7, 10), (8, 10)], 0)
    assert gone.due_ns is None
