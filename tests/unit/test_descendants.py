"""Which processes end with a command, and which do not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from gpuprof.tui import descendants
from gpuprof.tui.descendants import Family

# A process that starts `sleep 71`, a shell with `sleep 72`, and one in a session of its own, and says so.
TREE = """
import os, subprocess, time
kids = [subprocess.Popen(["sleep", "71"]), subprocess.Popen(["sh", "-c", "sleep 72; :"])]
kids.append(subprocess.Popen(["sleep", "73"], start_new_session=True))
while True:
    with open(f"/proc/{kids[1].pid}/task/{kids[1].pid}/children") as file:
        below = file.read().split()
    if below:
        break
    time.sleep(0.01)
print(*[kid.pid for kid in kids], *below, flush=True)
time.sleep(60)
"""


@pytest.fixture
def tree() -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    command = subprocess.Popen([sys.executable, "-c", TREE], stdout=subprocess.PIPE, text=True)
    assert command.stdout is not None
    pids = [int(word) for word in command.stdout.readline().split()]
    yield command, pids
    for pid in pids:
        found = descendants.process(pid)
        if found is not None:
            descendants.send(found, signal.SIGKILL)
    command.kill()
    command.communicate()


def lives(pid: int) -> bool:
    found = descendants.process(pid)
    return found is not None and not found.has_ended


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_all_that_descends_is_found_but_for_sessions_of_their_own(
    tree: tuple[subprocess.Popen[str], list[int]],
) -> None:
    command, (first, shell, daemon, below) = tree
    found = [member.pid for member in descendants.descendants(command.pid)]
    assert set(found) == {first, shell, below}
    assert found.index(shell) < found.index(below)
    family = Family(command.pid)
    family.ask_to_end()
    until(lambda: not family.living())
    assert [lives(pid) for pid in (first, shell, daemon, below)] == [False, False, True, False]
    assert command.wait() == -signal.SIGTERM


def test_what_was_started_since_is_killed_with_the_rest(
    tree: tuple[subprocess.Popen[str], list[int]],
) -> None:
    command, (first, shell, daemon, below) = tree
    family = Family(command.pid)
    family._members = [member for member in family._members if member.pid != below]
    family.kill(5.0)
    until(lambda: not any(map(lives, (first, shell, below))))
    assert lives(daemon)


def test_a_pid_that_another_process_has_now_is_let_be(
    tree: tuple[subprocess.Popen[str], list[int]],
) -> None:
    _, (first, *_) = tree
    found = descendants.process(first)
    assert found is not None
    other = replace(found, start=found.start - 1)
    assert descendants.living([found, other]) == [found]
    descendants.send(other, signal.SIGKILL)
    time.sleep(0.05)
    assert lives(first)


def test_without_pidfd(
    tree: tuple[subprocess.Popen[str], list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_pid: int) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    _, (first, *_) = tree
    found = descendants.process(first)
    assert found is not None
    descendants.send(replace(found, start=found.start - 1), signal.SIGTERM)
    assert lives(first)
    descendants.send(found, signal.SIGTERM)
    until(lambda: not lives(first))


def test_no_such_process() -> None:
    child = subprocess.Popen(["true"])
    until(lambda: not lives(child.pid))
    assert descendants.living([descendants.process(child.pid) or pytest.fail("it is a zombie")]) == []
    child.wait()
    assert descendants.process(child.pid) is None
    assert descendants.descendants(child.pid) == []
    assert Family(child.pid).living() == []
