"""When a process that makes CUDA graphs may be attached to: by the times and counts of its calls."""

from __future__ import annotations

import os
import queue
import struct
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuprof.bpf import syscalls
from gpuprof.bpf.programs import GraphCalls
from gpuprof.sampler import gpu_ring, graph_watch
from gpuprof.sampler.gpu_session import GpuSession
from gpuprof.sampler.graph_watch import (
    CAPTURE_NS,
    FEW_AFTER_NS,
    MANY_AFTER_NS,
    QUIET_NS,
    REST_NS,
    TELL_AFTER_NS,
    WORDS,
    GraphWatch,
)
from gpuprof.snapshots.errors import GpuprofError

SECOND = 10**9
BEGAN = 1000 * SECOND
NONE = GraphCalls(0, 0, 0, 0)


class Calls:
    """A source of which the probes have seen what is set."""

    def __init__(self, *, refuses: int = 0) -> None:
        self.seen: GraphCalls | None = NONE
        self.opened: list[int] = []
        self.refuses = refuses
        self.forgotten = 0

    def open_graph_probe(self, pid: int, path: str, offset: int, program: str) -> int:
        if self.refuses:
            self.refuses -= 1
            raise GpuprofError("no uprobe")
        self.opened.append(len(self.opened) + 1000)
        return self.opened[-1]

    def graph_calls(self, pid: int) -> GraphCalls:
        if self.seen is None:
            raise GpuprofError("closed")
        return self.seen

    def forget_graph_calls(self, pid: int) -> None:
        self.forgotten += 1


@pytest.fixture
def sites(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, str]]:
    found = [("/lib/libcuda.so.1", 4096 * n, "graph_call") for n in range(1, 4)]
    monkeypatch.setattr(graph_watch, "_sites", lambda pid: found)
    return found


@pytest.fixture(autouse=True)
def closed(monkeypatch: pytest.MonkeyPatch) -> queue.SimpleQueue[list[int]]:
    """What is to be closed."""
    lists: queue.SimpleQueue[list[int]] = queue.SimpleQueue()
    monkeypatch.setattr(graph_watch, "_closer", lambda: lists)
    return lists


def watch(calls: Any, began: int = BEGAN) -> GraphWatch:
    return GraphWatch(1, calls, lambda: began)


def made(last_ns: int, count: int = 1) -> GraphCalls:
    return GraphCalls(last_ns, 0, count, 0)


def test_it_is_watched_for_a_while_first(sites: Any) -> None:
    one = watch(Calls())
    assert not one.allows(BEGAN + QUIET_NS - 1)
    assert one.allows(BEGAN + QUIET_NS)
    assert not one.made


def test_the_while_begins_when_the_probes_are_there(sites: Any) -> None:
    """Each takes milliseconds, and the programs may still be loading."""
    times = iter((BEGAN, BEGAN + 4 * SECOND))
    one = GraphWatch(1, Calls(), lambda: next(times))  # type: ignore[arg-type]
    assert not one.allows(BEGAN + SECOND)
    assert not one.allows(BEGAN + 4 * SECOND + QUIET_NS - 1)
    assert one.allows(BEGAN + 4 * SECOND + QUIET_NS)


def test_a_call_puts_it_off(sites: Any) -> None:
    calls = Calls()
    one = watch(calls)
    calls.seen = made(BEGAN + QUIET_NS // 2)
    assert not one.allows(BEGAN + QUIET_NS)
    assert one.made
    assert one.allows(BEGAN + QUIET_NS // 2 + QUIET_NS)
    calls.seen = made(BEGAN + 2 * SECOND, 2)  # before it was attached to
    assert not one.allows(BEGAN + 2 * SECOND + 1)


def test_a_capture_is_waited_for_unless_it_was_forgotten(sites: Any) -> None:
    """Also where other graphs are made meanwhile."""
    calls = Calls()
    one = watch(calls)
    calls.seen = GraphCalls(BEGAN, BEGAN, 1, 1)
    assert not one.allows(BEGAN + CAPTURE_NS - 1)
    calls.seen = GraphCalls(BEGAN + CAPTURE_NS - QUIET_NS, BEGAN, 40, 1)
    assert not one.allows(BEGAN + CAPTURE_NS - 1)
    assert one.allows(BEGAN + CAPTURE_NS)


@pytest.mark.parametrize(("per_second", "allowed"), [(20, True), (90, True)])
def test_who_makes_few_all_the_time_is_not_put_off_for_ever(
    sites: Any, per_second: int, allowed: bool
) -> None:
    calls = Calls()
    one = watch(calls)
    for tenth in range(1, 200):
        now = BEGAN + tenth * SECOND // 10
        calls.seen = made(now - SECOND // 100, tenth * per_second // 10)
        assert one.allows(now) == (now - BEGAN >= FEW_AFTER_NS), tenth


def test_who_makes_many_is_left_alone_and_looked_at_again(
    sites: list[Any], closed: queue.SimpleQueue[list[int]]
) -> None:
    clock = [BEGAN]
    calls = Calls()
    one = GraphWatch(1, calls, lambda: clock[0])
    opened_ns = 0
    for tenth in range(1, 600):
        clock[0] = BEGAN + tenth * SECOND // 10
        calls.seen = made(clock[0] - 1, tenth * 50)
        before = len(calls.opened) - 3 * closed.qsize()
        assert not one.allows(clock[0]), tenth
        opened_ns += SECOND // 10 if before else 0
    assert 3 <= closed.qsize() <= 4
    assert opened_ns < 60 * SECOND * (MANY_AFTER_NS + SECOND) / (MANY_AFTER_NS + REST_NS) + 2 * SECOND
    calls.seen = made(BEGAN, 0)
    clock[0] += REST_NS
    assert not one.allows(clock[0])
    assert one.allows(clock[0] + QUIET_NS)


def test_many_at_first_and_few_then(sites: Any) -> None:
    """The rate is that of the last second."""
    calls = Calls()
    one = watch(calls)
    count = 0
    for tenth in range(1, 150):
        count += 500 if tenth <= 20 else 1
        now = BEGAN + tenth * SECOND // 10
        calls.seen = made(now - 1, count)
        assert one.allows(now) == (tenth >= 100), tenth


def test_words_come_late(sites: Any) -> None:
    one = watch(Calls())
    assert one.words(BEGAN + TELL_AFTER_NS - 1) == ""
    assert one.words(BEGAN + TELL_AFTER_NS) == WORDS


def test_without_a_driver_or_probes_it_is_not_put_off(sites: list[Any]) -> None:
    assert watch(Calls(refuses=3)).allows(BEGAN)
    some = watch(Calls(refuses=2))
    assert not some.allows(BEGAN)
    sites.clear()
    assert watch(Calls()).allows(BEGAN)


def test_it_is_put_off_where_the_counts_are_gone(sites: Any) -> None:
    calls = Calls()
    one = watch(calls)
    calls.seen = None
    assert not one.allows(BEGAN + 10 * SECOND)


def test_what_was_seen_before_is_forgotten_and_probes_are_closed(
    sites: Any, closed: queue.SimpleQueue[list[int]]
) -> None:
    calls = Calls()
    one = watch(calls)
    assert calls.forgotten == 1
    one.close()
    one.close()
    assert closed.get_nowait() == calls.opened
    assert closed.empty()
    assert one.allows(BEGAN)


def test_an_offset_that_no_file_has_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process maps what it likes under this name."""
    file = tmp_path / "libcuda.so.1"
    file.write_bytes(b"x" * 4096)

    class Elf:
        def __init__(self, fd: int) -> None:
            self.fd = fd

        def __enter__(self) -> Elf:
            return self

        def __exit__(self, *_: object) -> None:
            os.close(self.fd)

        def dynamic_symbols(self, names: set[str]) -> dict[str, tuple[int, int]]:
            return {name: (number, 1) for number, name in enumerate(sorted(names))}

        def offset_of(self, vaddr: int) -> int | None:
            return (None, 0, 4095, 4096, 1 << 64)[vaddr]

    mapping = SimpleNamespace(kind="file", name="libcuda.so.1")
    monkeypatch.setattr(graph_watch, "read_maps", lambda pid: [mapping])
    monkeypatch.setattr(graph_watch, "open_mapping", lambda pid, found: os.open(file, os.O_RDONLY))
    monkeypatch.setattr(graph_watch, "map_file_path", lambda pid, found: "path")
    monkeypatch.setattr(graph_watch, "ElfFile", Elf)
    assert [offset for _, offset, _ in graph_watch._sites(1)] == [4095]


def test_the_kernel_is_not_asked_for_an_offset_that_does_not_fit() -> None:
    with pytest.raises(OSError, match="no offset of a file"):
        syscalls.open_uprobe(1, "/bin/true", 1 << 64, 0)


class Held:
    """A session and what its ring says: told(state, epoch, message) -> whether the process is watched."""

    def __init__(self, session: GpuSession, writer: Any) -> None:
        self.session, self.writer, self.calls = session, writer, Calls()
        self.now = time.monotonic_ns()

    def told(self, state: str, epoch: int, message: bytes = b"", after_ns: int = 0) -> bool:
        struct.pack_into("<II", self.writer.map, 28, epoch, gpu_ring.STATES.index(state))
        self.writer.map[608:864] = message.ljust(256, b"\0")
        self.now += after_ns
        self.session.look(self.now)
        self.session.watch_graphs(self.calls, self.now)  # type: ignore[arg-type]
        return self.session.graphs is not None

    @property
    def is_held(self) -> bool:
        return int(self.writer.words[1232 // 8]) > time.monotonic_ns()


@pytest.fixture
def held(session: GpuSession, writer: Any, sites: Any) -> Held:
    struct.pack_into("<II", writer.map, 28, 0, 0)
    session.look(time.monotonic_ns())
    session._first = session.facts
    return Held(session, writer)


def test_it_is_held_until_it_is_quiet_and_watched_until_cupti_is_in_use(held: Held, closed: Any) -> None:
    assert held.told("waiting", 0)
    assert held.is_held
    assert held.told("waiting", 0, after_ns=2 * QUIET_NS)
    assert not held.is_held
    held.calls.seen = made(held.now)
    assert held.told("waiting", 0)
    assert held.is_held
    assert not held.told("recording", 1)
    assert not held.is_held  # what is left of a hold would lengthen a pause
    assert closed.qsize() == 1


def test_in_pauses_only_who_has_made_graphs_is_watched(held: Held, closed: Any) -> None:
    assert held.told("waiting", 0)
    assert not held.told("recording", 1)
    assert not held.told("paused", 1)
    assert not held.told("recording", 2, b"")
    assert not held.told("paused", 2, b"paused; CUPTI stays loaded while the process makes CUDA graphs")
    assert held.told("paused", 2, b"paused, to stay within --gpu-overhead")
    assert held.is_held
    assert not held.told("recording", 3)


def test_a_window_that_no_look_saw_counts(held: Held, closed: Any) -> None:
    """Windows of a budget may be shorter than the time between two looks."""
    assert held.told("waiting", 0)
    assert not held.told("paused", 1)
    assert closed.qsize() == 1
    assert not held.is_held


def test_so_does_one_that_was_over_before_the_listener_left(held: Held) -> None:
    assert held.told("waiting", 0)
    assert not held.told("waiting", 1)


def test_a_detach_that_is_wanted_is_not_watched(held: Held) -> None:
    assert not held.told("detaching", 1)
    assert held.session.had_cupti
