"""A question for all that happened up to now that is not answered in time is told as one, until it is."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from gpuprof.sampler import cpu_stacks
from gpuprof.sampler.cpu_stacks import CpuStacks
from gpuprof.snapshots.frames import Hello
from gpuprof.snapshots.history import History


class Waits:
    """In the place of the WaitReader: it takes as long as the test wants."""

    def __init__(self) -> None:
        self.taken_ns = 0
        self.go_on = threading.Event()
        self.asked = threading.Event()

    def take(self, now_ns: int, least_ns: int | None = None) -> None:
        self.taken_ns = now_ns
        if least_ns is not None:
            self.asked.set()

    def tick(self, now_ns: int, ids: Any) -> None:
        if self.asked.is_set():
            self.go_on.wait(60)


class Reader:
    """A CpuStacks without a kernel, whose thread ticks again and again."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(cpu_stacks, "UnwindTables", lambda programs: None)
        programs = SimpleNamespace(
            waits=None, read=list, read_launches=list, messages=list, follow_cpus=lambda: None, maps={},
            close=lambda: None,
        )  # fmt: skip
        hello = Hello(1, "t", "", "", 1, 0, 0, "", 0, 99, 0, True)
        self.stacks: Any = CpuStacks(History(hello), programs)  # type: ignore[arg-type]
        self.stacks.waits = self.waits = Waits()
        self.stacks._follower = SimpleNamespace(
            handle=lambda messages, between: None, tidy=lambda now_ns: None, unsupported_pythons=list
        )
        self.stacks._tables = SimpleNamespace(problem=lambda: None)
        self.stacks._state = "ok"
        self.ended = threading.Event()
        self.stacks._thread = threading.Thread(target=self._run, daemon=True)
        self.stacks._thread.start()

    def _run(self) -> None:
        while not self.ended.wait(0.005):
            self.stacks._tick()


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    made = Reader(monkeypatch)
    yield made
    made.ended.set()
    made.waits.go_on.set()
    made.stacks._thread.join()


def test_what_is_settled_is_complete_up_to_the_question(reader: Reader) -> None:
    reader.waits.go_on.set()
    asked_ns = time.monotonic_ns()
    assert reader.stacks.settle(60.0)
    assert reader.stacks.complete_ns >= asked_ns
    assert (reader.stacks.status().state, reader.stacks.overdue()) == ("ok", "")


def test_what_was_not_read_in_time_is_said_until_it_is(reader: Reader) -> None:
    asked_ns = time.monotonic_ns()
    assert not reader.stacks.settle(0.05)
    assert reader.stacks.complete_ns < asked_ns + 50_000_000
    status = reader.stacks.status()
    assert status.state == "degraded"
    assert "not read in time" in status.reason
    reader.waits.go_on.set()
    assert reader.stacks.settle(60.0)  # with it the one before is done, too
    assert reader.stacks.complete_ns > asked_ns
    assert (reader.stacks.status().state, reader.stacks.overdue()) == ("ok", "")


def test_of_a_reader_that_has_ended_nobody_waits(reader: Reader) -> None:
    reader.ended.set()
    reader.stacks._thread.join()
    assert not reader.stacks.settle(3600.0)
    assert reader.stacks.overdue() == ""
