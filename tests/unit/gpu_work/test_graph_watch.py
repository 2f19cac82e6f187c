"""When a process that makes CUDA graphs may be attached to: by the times and counts of its calls."""

from __future__ import annotations

import os
import queue
from typing import Any

import pytest

from gpuprof.sampler import graph_watch
from gpuprof.sampler.graph_watch import CAPTURE_NS, FEW_AFTER_NS, QUIET_NS, TELL_AFTER_NS, WORDS, GraphWatch
from gpuprof.snapshots.errors import GpuprofError

SECOND = 10**9
BEGAN = 1000 * SECOND


class Calls:
    """A source of which the probes have seen what is set."""

    def __init__(self, *, refuses: int = 0) -> None:
        self.seen = 0, 0, 0
        self.opened: list[int] = []
        self.refuses = refuses
        self.forgotten = 0

    def open_graph_probe(self, pid: int, path: str, offset: int, program: str) -> int:
        if self.refuses:
            self.refuses -= 1
            raise GpuprofError("no uprobe")
        self.opened.append(os.open("/dev/null", os.O_RDONLY))
        return self.opened[-1]

    def graph_calls(self, pid: int) -> tuple[int, int, int]:
        return self.seen

    def forget_graph_calls(self, pid: int) -> None:
        self.forgotten += 1


@pytest.fixture
def sites(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, str]]:
    found = [("/lib/libcuda.so.1", 4096 * n, "graph_call") for n in range(3)]
    monkeypatch.setattr(graph_watch, "_sites", lambda pid: found)
    return found


def watch(calls: Any) -> GraphWatch:
    return GraphWatch(1, calls, BEGAN)


def test_it_is_watched_for_a_while_first(sites: Any) -> None:
    one = watch(Calls())
    assert not one.allows(BEGAN + QUIET_NS - 1)
    assert one.allows(BEGAN + QUIET_NS)


def test_a_call_puts_it_off(sites: Any) -> None:
    calls = Calls()
    one = watch(calls)
    calls.seen = BEGAN + QUIET_NS // 2, 1, 0
    assert not one.allows(BEGAN + QUIET_NS)
    assert one.allows(BEGAN + QUIET_NS // 2 + QUIET_NS)


def test_a_capture_is_waited_for_unless_it_was_forgotten(sites: Any) -> None:
    calls = Calls()
    one = watch(calls)
    calls.seen = BEGAN, 1, 1
    assert not one.allows(BEGAN + CAPTURE_NS - 1)
    assert one.allows(BEGAN + CAPTURE_NS)


@pytest.mark.parametrize(("per_second", "allowed"), [(20, True), (99, True), (101, False), (5000, False)])
def test_who_makes_few_all_the_time_is_not_put_off_for_ever(
    sites: Any, per_second: int, allowed: bool
) -> None:
    calls = Calls()
    one = watch(calls)
    for tenth in range(1, 200):
        now = BEGAN + tenth * SECOND // 10
        calls.seen = now - SECOND // 100, tenth * per_second // 10, 0
        assert one.allows(now) == (allowed and now - BEGAN >= FEW_AFTER_NS), tenth


def test_many_at_first_and_few_then(sites: Any) -> None:
    """The rate is that of the last second."""
    calls = Calls()
    one = watch(calls)
    count = 0
    for tenth in range(1, 150):
        count += 500 if tenth <= 100 else 1
        now = BEGAN + tenth * SECOND // 10
        calls.seen = now - 1, count, 0
        assert one.allows(now) == (tenth >= 110), tenth


def test_words_come_late(sites: Any) -> None:
    one = watch(Calls())
    assert one.words(BEGAN + TELL_AFTER_NS - 1) == ""
    assert one.words(BEGAN + TELL_AFTER_NS) == WORDS


def test_without_a_driver_or_probes_it_is_not_put_off(
    sites: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert watch(Calls(refuses=3)).allows(BEGAN)
    some = watch(Calls(refuses=2))
    assert not some.allows(BEGAN)
    sites.clear()
    assert watch(Calls()).allows(BEGAN)


def test_what_was_seen_before_is_forgotten_and_probes_are_closed(
    sites: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: queue.Queue[list[int]] = queue.Queue()
    monkeypatch.setattr(graph_watch, "_close", closed.put)
    calls = Calls()
    one = watch(calls)
    assert calls.forgotten == 1
    one.close()
    one.close()
    assert closed.get(timeout=10) == calls.opened
    assert closed.empty()
    assert one.allows(BEGAN)
