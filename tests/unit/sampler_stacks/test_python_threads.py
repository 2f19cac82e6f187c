"""The lists of thread states: of living interpreters, against what they say, and made-up ones."""

from __future__ import annotations

import os
import random
import struct
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from gpuprof.sampler import python_threads
from gpuprof.sampler.maps import read_maps
from gpuprof.sampler.processes import start_time_ns
from gpuprof.sampler.python_runtime import PythonLayout, find_python
from gpuprof.sampler.python_threads import StateLists, ThreadStateFinder

Child = Callable[[str, str], tuple[subprocess.Popen[bytes], bytes]]

HEAD = 0x10000
LAYOUT = PythonLayout(
    version=(3, 11), free_threaded=False, binary="python3.11", key=None, bias=0, interpreters=HEAD,
    interp_next=0, threads_head=16, cframe=1, cf_cur=8, ts_frame=56, ts_next=8, ts_tid=152, f_code=32,
    f_prev=48, f_instr=56, f_owner=68, co_bytecode=184, co_firstlineno=72, co_filename=112, co_name=120,
    co_qualname=128, co_linetable=136, str_length=16, str_state=32, str_ascii=48, str_compact=72, code_type=0,
)  # fmt: skip
STATE_BYTES = 256


class Memory:
    """A process's memory as words; what was not set cannot be read."""

    def __init__(self) -> None:
        self.words: dict[int, int] = {}
        self.reads = 0

    def read(self, address: int, size: int) -> bytes:
        self.reads += 1
        words = [self.words.get(at) for at in range(address, address + size, 8)]
        known = words[: words.index(None)] if None in words else words
        return struct.pack(f"<{len(known)}Q", *known)

    def state(self, address: int, before: int, following: int, interpreter: int, thread: int) -> None:
        self.words.update(dict.fromkeys(range(address, address + STATE_BYTES, 8), 0))
        self.words[address] = before
        self.words[address + LAYOUT.ts_next] = following
        self.words[address + LAYOUT.ts_next + 8] = interpreter
        self.words[address + LAYOUT.ts_tid] = thread

    def interpreters(self, lists: Mapping[int, Sequence[tuple[int, int]]]) -> None:
        """Interpreters, newest first, each with its (state, thread), newest first."""
        ends = [*lists, 0]
        self.words[HEAD] = ends[0]
        for interpreter, after in pairwise(ends):
            states = lists[interpreter]
            self.words[interpreter + LAYOUT.interp_next] = after
            self.words[interpreter + LAYOUT.threads_head] = states[0][0] if states else 0
            for n, (state, thread) in enumerate(states):
                before = states[n - 1][0] if n else 0
                following = states[n + 1][0] if n + 1 < len(states) else 0
                self.state(state, before, following, interpreter, thread)


def states_of(count: int, base: int = 0x100000) -> list[tuple[int, int]]:
    return [(base + n * STATE_BYTES, 0x7F0000000000 + n * 4096) for n in range(count)]


@pytest.fixture
def memory() -> Memory:
    return Memory()


@pytest.fixture
def lists(memory: Memory) -> StateLists:
    return StateLists(memory.read, LAYOUT)


def test_all_threads_of_all_interpreters(memory: Memory, lists: StateLists) -> None:
    old, new = states_of(1000), [(0x900000, 0x7F0000000000), (0x900100, 0x7F0000003000)]
    memory.interpreters({0x20000: new, 0x30000: old})
    found = lists.all()
    assert found.complete
    assert len(found.by_thread) == 1000
    assert found.by_thread[0x7F0000000000] == [0x900000, old[0][0]]  # that of the newest interpreter first
    assert found.by_thread[0x7F0000003000] == [0x900100, old[3][0]]
    assert found.by_thread[old[999][1]] == [old[999][0]]
    assert found.heads == lists.heads()


def test_a_new_state_is_seen_at_the_heads(memory: Memory, lists: StateLists) -> None:
    states = states_of(5)
    memory.interpreters({0x20000: states[1:]})
    before = lists.heads()
    memory.interpreters({0x20000: states})
    assert lists.heads() != before
    again = lists.heads()
    memory.interpreters({0x20000: states[:3] + states[4:]})  # one that ended is none that could be missing
    assert lists.heads() == again


def test_a_thread_that_is_to_begin(memory: Memory, lists: StateLists) -> None:
    old, new = 0x100000, 0x100100
    memory.interpreters({0x20000: [(new, 7), (old, 7)]})  # up to 3.11: it bears its maker's number
    assert lists.all().by_thread == {7: [old]}
    memory.interpreters({0x20000: [(new, 0), (old, 7)]})  # later: none
    found = lists.all()
    assert found.by_thread == {7: [old]}
    assert not found.complete  # it gets one without a change of the list


def test_what_is_broken_ends_a_list(memory: Memory, lists: StateLists) -> None:
    states = states_of(10)
    for damage in (
        {states[5][0]: states[2][0]},  # it was reached from another one
        {states[5][0] + 16: 0x30000},  # of another interpreter
        {states[4][0] + 8: states[4][0]},  # a cycle of one
        {states[9][0] + 8: states[0][0]},  # of all
        {states[4][0] + 8: 8},
        {states[4][0] + 8: (1 << 64) - 8},
        {states[4][0] + 8: 0xDEAD000},  # not there
    ):
        memory.interpreters({0x20000: states, 0x30000: [(0x900000, 5)]})
        memory.words.update(damage)
        found = lists.all()
        assert not found.complete
        count = 10 if states[9][0] + 8 in damage else 5
        assert found.by_thread == {**{thread: [at] for at, thread in states[:count]}, 5: [0x900000]}


def test_cycles_of_interpreters(memory: Memory, lists: StateLists) -> None:
    memory.interpreters({0x20000: states_of(3), 0x30000: []})
    memory.words[0x30000 + LAYOUT.interp_next] = 0x20000
    assert lists.heads() is None
    assert not lists.all().complete
    memory.words[HEAD] = 0
    assert lists.heads() == []  # it has not begun


def test_number_and_time_are_bounded(
    memory: Memory, lists: StateLists, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory.interpreters({0x20000: states_of(100)})
    now = iter(range(0, 10**12, 10**7))
    found = lists.all(lambda: next(now))
    assert 0 < len(found.by_thread) < 30
    assert not found.complete
    monkeypatch.setattr(python_threads, "MAX_STATES", 50)
    found = lists.all()
    assert len(found.by_thread) == 50
    assert not found.complete
    monkeypatch.setattr(python_threads, "MAX_INTERPRETERS", 5)
    memory.interpreters({0x20000 + n * 64: [] for n in range(6)})
    assert lists.heads() is None


def test_offsets_of_a_file_that_lies(memory: Memory) -> None:
    memory.interpreters({0x20000: states_of(3)})
    for wild in (
        replace(LAYOUT, ts_tid=65528),
        replace(LAYOUT, ts_next=0),
        replace(LAYOUT, threads_head=65528),
    ):
        found = StateLists(memory.read, wild).all()
        assert found.by_thread == {}
        assert not found.complete


@pytest.mark.parametrize("seed", range(5))
def test_wild_memory(memory: Memory, seed: int) -> None:
    """Pointers to anywhere, mostly into themselves: it ends, and gives nothing that is no address."""
    rng = random.Random(seed)
    places = [0x1000 * n for n in range(1, 40)]
    for _ in range(200):
        for place in places:
            memory.words.update(
                {
                    at: rng.choice([0, rng.choice(places), rng.getrandbits(64)])
                    for at in range(place, place + 400, 8)
                }
            )
        memory.words[HEAD] = rng.choice(places)
        memory.reads = 0
        found = StateLists(memory.read, LAYOUT).all()
        assert memory.reads < 1000
        assert all(4096 <= state < 1 << 47 for states in found.by_thread.values() for state in states)


MANY = """
import sys, threading
wait = threading.Event()
threads = [threading.Thread(target=wait.wait, daemon=True) for _ in range(300)]
[thread.start() for thread in threads]
print(threading.get_ident(), *(thread.ident for thread in threads), flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="reads the memory of another process")
class TestLiving:
    @pytest.fixture
    def process(
        self, interpreter: str, child: Child
    ) -> tuple[subprocess.Popen[bytes], set[int], PythonLayout]:
        process, line = child(interpreter, MANY)
        layout = find_python(process.pid, read_maps(process.pid))
        assert layout is not None
        return process, set(map(int, line.split())), layout

    def test_every_thread_is_found(self, process: Any) -> None:
        living, threads, layout = process
        start_ns = start_time_ns(living.pid)
        assert start_ns is not None
        states = ThreadStateFinder().find(living.pid, start_ns, layout)
        assert set(states) == threads  # threading.get_ident() is pthread_self()
        assert all(len(known) == 1 for known in states.values())

    def test_it_is_read_again_only_for_something_new(self, process: Any) -> None:
        living, _, layout = process
        now = [10**9]
        finder = ThreadStateFinder(lambda: now[0])
        start_ns = start_time_ns(living.pid)
        assert start_ns is not None
        find: Callable[[], object] = lambda: finder.find(living.pid, start_ns, layout)  # noqa: E731
        assert find()
        assert not find()  # too soon
        now[0] += 10**9
        assert not find()  # nothing new
        now[0] += python_threads.AGAIN_NS
        assert find()  # it may have left the table
        finder.forget(living.pid)
        assert find()
        assert not finder.find(living.pid, start_ns + 10**7, layout)  # the pid is another process's by now
        living.kill()
        living.wait()
        now[0] += python_threads.AGAIN_NS
        assert not find()


def test_a_process_cannot_fill_the_table() -> None:
    wild = {n: [1, 2, 3, 4, 5, 6] for n in range(1, 10000)}
    some = python_threads._some(wild, 100)
    assert len(some) == 100
    assert set(map(tuple, some.values())) == {(1, 2, 3, 4)}
    assert python_threads._threads_of(os.getpid()) == len(os.listdir("/proc/self/task"))
    assert python_threads._threads_of(0) == 1
