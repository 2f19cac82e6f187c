"""A machine that starts ten processes a second, on a simulated clock: nothing grows."""

from __future__ import annotations

import gc
import sys
import types
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gpuprof.bpf.messages import MappingMessage, Message, WhoMessage
from gpuprof.bpf.records import FAMILY_LAUNCH, HEADER, Batch, ControlMessage, MessageReason, batch_of
from gpuprof.sampler.cpu_stacks import CpuStacks
from gpuprof.snapshots.frames import Hello
from gpuprof.snapshots.history import History

STEP_S = 5
MINUTES = 12
PER_SECOND = 10
FIRST_PID, PIDS = 10_000_000, 3_000  # above every real one; they come again, as pids do
CODE = 0x5555_0000_0000
_SHARED = (type, types.ModuleType, types.FunctionType, types.CodeType, types.BuiltinFunctionType)


class Clock:
    """Stands for the time module."""

    def __init__(self) -> None:
        self.now_ns = 10**12

    def monotonic_ns(self) -> int:
        return self.now_ns


class NoTables:
    def publish(self, *arguments: object) -> None:
        pass

    def fork(self, child: int) -> bool:
        return True

    def forget(self, pid: int) -> None:
        pass

    def housekeeping(self) -> None:
        pass


class Machine:
    """Processes that live for a step, beside a few that stay; each step gives messages and samples."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._rng = np.random.default_rng(7)
        self._started = 0
        self._last: list[int] = []

    def step(self) -> tuple[list[Message], Batch, Batch]:
        self._clock.now_ns += STEP_S * 10**9
        messages: list[Message] = [ControlMessage(pid, MessageReason.EXIT, 0) for pid in self._last]
        self._last = []
        records = [self._record(FIRST_PID - 1 - n % 4, n, launch=False) for n in range(20)]
        launches = [self._record(FIRST_PID - 1, n, launch=True) for n in range(10)]
        for _ in range(PER_SECOND * STEP_S):
            pid = FIRST_PID + self._started % PIDS
            self._started += 1
            self._last.append(pid)
            messages += self._introduce(pid)
            records.append(self._record(pid, self._started, launch=False))
            if self._started % 3 == 0:
                launches.append(self._record(pid, self._started, launch=True))
        return messages, _batch(records), _batch(launches)

    def _introduce(self, pid: int) -> list[Message]:
        """Every fourth process is an exec of another, and a fork; every eighth runs a binary of its own."""
        start, own = self._start(pid), self._started % 8 == 0
        who = WhoMessage(
            pid, start, 0, 1, pid, b"cc1", b"cc1\0-o\0" + str(self._started).encode() * 20 + b"\0"
        )
        key = ("fe:01", self._started if own else 12, 34)

        def mapping(at: int, size: int, key: tuple[str, int, int]) -> MappingMessage:
            end, now = at + size, self._clock.now_ns
            return MappingMessage(
                pid=pid, start_ns=start, time_ns=now, start=at, end=end, offset=0, key=key, known=True
            )

        messages: list[Message] = [
            who,
            mapping(CODE, 1 << 20, key),
            mapping(CODE + (1 << 24), 1 << 24, ("fe:01", 99, 1)),
        ]
        if self._started % 4 == 0:
            fork = ControlMessage(pid, MessageReason.FORK, FIRST_PID - 1)
            execs = ControlMessage(pid, MessageReason.EXEC, self._clock.now_ns - 1000)
            return [fork, execs, *messages]
        return messages

    def _start(self, pid: int) -> int:
        return (self._started + 1) * 10**7 if pid >= FIRST_PID else 10**7

    def _record(self, pid: int, n: int, *, launch: bool) -> bytes:
        rng = self._rng
        depth = int(rng.integers(2, 20))
        user = (CODE + rng.integers(0, 1 << 20, depth)).astype(np.uint64)
        if rng.random() < 0.1:
            user[0] = 0x10_0000 + n  # code in no mapping
        words = [*user.tolist(), *([int(rng.integers(1, 1 << 60)), 1] if launch else [])]
        header = np.zeros(1, HEADER)
        header["time_ns"], header["pid"] = self._clock.now_ns - int(rng.integers(1, 10**9)), pid
        header["tid"], header["comm"] = (
            pid + int(rng.integers(0, 50)),
            f"t{rng.integers(0, 1 << 30)}".encode(),
        )
        header["n_user"], header["header_words"] = depth, HEADER.itemsize // 8
        header["start_ns"], header["uid"] = self._start(pid), 0
        header["family"], header["extra"] = (FAMILY_LAUNCH, 1 << 32 | n) if launch else (0, 0)
        return header.tobytes() + np.array(words, np.uint64).tobytes()


def _batch(records: list[bytes]) -> Batch:
    starts = np.cumsum([0, *(len(record) // 8 for record in records)])[:-1]
    return batch_of(np.frombuffer(b"".join(records), np.uint64), starts.astype(np.int64))


def bytes_held(*roots: object) -> int:
    """Memory of all objects that can be reached, but for code."""
    seen: set[int] = set()
    waiting: list[Any] = list(roots)
    total = 0
    while waiting:
        item = waiting.pop()
        if id(item) in seen or isinstance(item, _SHARED):
            continue
        seen.add(id(item))
        total += sys.getsizeof(item)
        if isinstance(item, np.ndarray) and item.base is not None:
            waiting.append(item.base)
        waiting += gc.get_referents(item)
    return total


def test_a_machine_that_starts_ten_processes_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr("gpuprof.sampler.process_follower.time", clock)
    monkeypatch.setattr("gpuprof.sampler.known_processes.time", clock)
    monkeypatch.setattr("gpuprof.sampler.cpu_stacks.UnwindTables", lambda programs: NoTables())
    # Smaller bounds than in earnest, so that each is met often enough to tell growth from filling up.
    monkeypatch.setattr("gpuprof.snapshots.tables.MAX_PROCESSES", 600)
    monkeypatch.setattr("gpuprof.snapshots.tables.MAX_NODES", 6_000)
    monkeypatch.setattr("gpuprof.sampler.stack_resolver.MAX_MERGED", 200)
    monkeypatch.setattr("gpuprof.sampler.known_frames.MAX_ADDRESSES", 1 << 11)
    monkeypatch.setattr("gpuprof.sampler.launch_stacks.MAX_CUT", 200)
    monkeypatch.setattr("gpuprof.sampler.launch_stacks.MAX_WAITING", 200)
    monkeypatch.setattr("gpuprof.sampler.kernel_told.MAX_FILES", 200)
    hello = Hello(
        version=1, host="t", boot_id="", kernel="", cpu_count=1, mono_ns=0, wall_ns=0, sampler_version="",
        sampler_pid=0, cpu_hz=99, nvml_hz=0, privileged=True,
    )  # fmt: skip
    history = History(hello, max_bytes=1 << 20)
    programs = SimpleNamespace(waits=None, maps={}, resend_stack=lambda pid, stack_hash: None)
    stacks = CpuStacks(history, programs)  # type: ignore[arg-type]
    machine = Machine(clock)
    held: list[int] = []
    for step in range(MINUTES * 60 // STEP_S):
        messages, samples, launches = machine.step()
        stacks._follower.handle(messages)
        stacks.consume(samples)
        stacks.consume(launches)
        stacks._follower.tidy(clock.now_ns)
        if step % 4 == 0:
            held.append(bytes_held(stacks, history))
    assert stacks.status().samples == (20 + PER_SECOND * STEP_S) * (step + 1)
    assert history.tables.generation > 5
    assert len(list(stacks._follower.all())) < 4 * PER_SECOND * STEP_S
    third = len(held) // 3
    assert max(held[-third:]) < 1.1 * max(held[third:-third]), held
