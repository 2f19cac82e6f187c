"""What the kernel side tells of a process is known before the first stack that needs it is named: it is told
once, and a process may be gone by the time that somebody asks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuprof.bpf.programs import MAX_MESSAGE_BYTES, StackPrograms
from gpuprof.bpf.records import FAMILY_LAUNCH, MESSAGE, MessageReason
from gpuprof.sampler import cpu_stacks, pending_records
from gpuprof.sampler.cpu_stacks import CpuStacks
from gpuprof.snapshots.frames import Hello
from gpuprof.snapshots.history import History


class Stacks(list[int]):
    """Some stacks, each with the number of the message that it needs."""

    words: bytes = b"12345678"


class Known(Stacks):
    """Launches of known stacks."""

    family = (FAMILY_LAUNCH,)

    def __init__(self, count: int) -> None:
        super().__init__(range(count))
        self.words = bytes(2 * count)


class Kernel:
    """Never stands still: before and after each look something is told and then needed, in every ring."""

    def __init__(self) -> None:
        self.number = 0
        self.told: list[int] = []
        self.rings: dict[str, list[int]] = {"samples": [], "launches": [], "waits": []}
        self.waits = None

    def happen(self) -> None:
        self.number += 1
        self.told.append(self.number)
        for ring in self.rings.values():
            ring.append(self.number)

    def look(self, ring: str) -> Stacks:
        self.happen()
        found, self.rings[ring] = Stacks(self.rings[ring]), []
        self.happen()
        return found

    def read(self) -> Stacks:
        return self.look("samples")

    def read_launches(self) -> list[Stacks]:
        return [self.look("launches")]

    def messages(self) -> list[int]:
        self.happen()
        found, self.told = self.told, []
        self.happen()
        return found

    def follow_cpus(self) -> None:
        pass


class Waits:
    """In the place of the WaitReader."""

    def __init__(self, kernel: Kernel, name_all: Callable[[Stacks], None]) -> None:
        self.kernel, self.name_all, self.taken = kernel, name_all, Stacks()
        self.taken_ns = 0

    def take(self, now_ns: int, least_ns: int | None = None) -> None:
        self.taken, self.taken_ns = self.kernel.look("waits"), now_ns

    def tick(self, now_ns: int, ids: Any) -> None:
        self.name_all(self.taken)


def reader(monkeypatch: Any, kernel: Kernel, handle: Callable[..., None]) -> Any:
    """A CpuStacks that reads from `kernel` whenever it may."""
    monkeypatch.setattr(pending_records, "DRAIN_NS", 0)
    monkeypatch.setattr(cpu_stacks, "UnwindTables", lambda programs: None)
    hello = Hello(1, "t", "", "", 1, 0, 0, "", 0, 99, 0, True)
    stacks: Any = CpuStacks(History(hello), kernel)  # type: ignore[arg-type]
    stacks.waits = Waits(kernel, lambda taken: None)
    stacks._follower = SimpleNamespace(handle=handle, want=lambda pid: None, tidy=lambda now_ns: None)
    return stacks


def test_no_stack_is_named_before_what_it_needs_was_told(monkeypatch: Any) -> None:
    kernel, handled, named = Kernel(), set[int](), list[int]()

    def name_all(stacks: Stacks) -> None:
        assert handled.issuperset(stacks)
        named.extend(stacks)

    def handle(messages: list[int], between: Callable[[], None]) -> None:
        handled.update(messages)
        between()  # is when the rings are drained, so that they do not fill

    stacks = reader(monkeypatch, kernel, handle)
    stacks.waits.name_all = stacks.consume = name_all
    for _ in range(5):
        stacks._tick()
    assert len(named) > 100


def test_launches_are_announced_when_they_are_named_and_not_a_tick_later(monkeypatch: Any) -> None:
    """Those of the records that are read then: later they would not be the newest any more."""
    stacks = reader(monkeypatch, Kernel(), lambda messages, between: None)
    stacks.consume = lambda batch: stacks._launches.put([batch])
    stacks._tick()
    assert stacks._launches._some.is_set()
    assert stacks.take_launches()


def test_what_waits_to_be_named_is_bounded_by_what_it_takes(monkeypatch: Any) -> None:
    """A batch of known launches has two words for each, and the nine of each one's header as columns."""
    kernel: Any = Kernel()
    kernel.read = Stacks
    kernel.read_launches = lambda: [Known(10_000)]
    stacks = reader(monkeypatch, kernel, lambda messages, between: None)
    pending = stacks._pending
    for _ in range(500):
        pending.drain()
    held = sum(len(pending.pop()) for _ in range(len(pending)))
    assert held * 11 <= pending_records.MAX_PENDING_WORDS < (held + 10_000) * 11
    assert pending.dropped_launches + held == 500 * 10_000


def test_code_comes_after_what_introduces_its_process() -> None:
    """Both are sent between any two looks at the rings, the process first. Here an EXEC stands for code."""
    rings: dict[str, list[int]] = {"_messages": [], "_codes": []}
    reasons = {"_messages": MessageReason.FORK, "_codes": MessageReason.EXEC}
    sent = 0

    def look(name: str) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
        nonlocal sent
        found, rings[name] = rings[name], []
        sent += 1
        for ring in rings.values():
            ring.append(sent)
        step = MAX_MESSAGE_BYTES // 8
        raw = b"".join(MESSAGE.pack(pid, reasons[name], 0).ljust(8 * step, b"\0") for pid in found)
        return np.frombuffer(raw, np.uint64), np.arange(len(found), dtype=np.int64) * step

    programs: Any = object.__new__(StackPrograms)
    for name in rings:
        setattr(programs, name, SimpleNamespace(read=functools.partial(look, name)))
    introduced: set[int] = set()
    for _ in range(5):
        for message in programs.messages():
            if message.reason == MessageReason.FORK:
                introduced.add(message.pid)
            else:
                assert message.pid in introduced
    assert len(introduced) > 5
