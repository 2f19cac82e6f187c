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
from gpuprof.bpf.records import MESSAGE, MessageReason
from gpuprof.sampler import cpu_stacks
from gpuprof.sampler.cpu_stacks import CpuStacks
from gpuprof.snapshots.frames import Hello
from gpuprof.snapshots.history import History


class Stacks(list[int]):
    """Some stacks, each with the number of the message that it needs."""

    words = b"12345678"


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

    def take(self, now_ns: int, least_ns: int | None = None) -> None:
        self.taken = self.kernel.look("waits")

    def tick(self, now_ns: int, ids: Any) -> None:
        self.name_all(self.taken)


def test_no_stack_is_named_before_what_it_needs_was_told(monkeypatch: Any) -> None:
    monkeypatch.setattr(cpu_stacks, "DRAIN_NS", 0)  # whenever it may be
    monkeypatch.setattr(cpu_stacks, "UnwindTables", lambda programs: None)
    kernel, handled, named = Kernel(), set[int](), list[int]()

    def name_all(stacks: Stacks) -> None:
        assert handled.issuperset(stacks)
        named.extend(stacks)

    def handle(messages: list[int], between: Callable[[], None]) -> None:
        handled.update(messages)
        between()  # is when the rings are drained, so that they do not fill

    hello = Hello(1, "t", "", "", 1, 0, 0, "", 0, 99, 0, True)
    stacks: Any = CpuStacks(History(hello), kernel)  # type: ignore[arg-type]
    stacks.waits = Waits(kernel, name_all)
    stacks._follower = SimpleNamespace(handle=handle, want=lambda pid: None, tidy=lambda now_ns: None)
    stacks.consume = name_all
    for _ in range(5):
        stacks._tick()
    assert len(named) > 100


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
