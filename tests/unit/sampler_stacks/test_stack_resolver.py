"""From raw records to merged stacks, on records that are made from the live memory of a process."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from noted_tables import NotedTables

from gpuprof.bpf.records import HEADER, Batch, RecordFlag, StopReason, batch_of
from gpuprof.sampler.cpu_stacks import CpuStacks
from gpuprof.sampler.frame_ids import FrameIds
from gpuprof.sampler.maps import read_maps
from gpuprof.sampler.process_follower import ProcessFollower
from gpuprof.sampler.processes import describe
from gpuprof.sampler.python_runtime import find_python
from gpuprof.sampler.stack_resolver import MergedStack, StackResolver
from gpuprof.sampler.symbol_store import SymbolStore
from gpuprof.snapshots.frames import FrameKind, Hello, Query
from gpuprof.snapshots.history import History

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="reads its own mappings through map_files")


class Bench:
    """A resolver, and records of this very process."""

    def __init__(self) -> None:
        self.ids = FrameIds()
        follower = ProcessFollower(NotedTables(forks=False), self.ids, SymbolStore())  # type: ignore[arg-type]
        self.resolver = StackResolver(self.ids, follower)
        self.follower = follower
        own = describe(os.getpid())
        assert own is not None
        self.start_ns = own.start_ns

    def record(
        self,
        *,
        kernel: list[int] | None = None,
        user: list[int] | None = None,
        python: list[tuple[int, int]] | None = None,
        stop: StopReason = StopReason.ROOT,
        flags: int = 0,
        sp0: int = 0,
    ) -> bytes:
        kernel, user, python = kernel or [], user or [], python or []
        header = np.zeros(1, HEADER)
        header["time_ns"] = time.monotonic_ns()
        header["pid"] = os.getpid()
        header["tid"] = os.getpid()
        header["n_kernel"], header["n_user"], header["n_python"] = len(kernel), len(user), len(python)
        header["stop"], header["flags"], header["sp0"] = stop, flags, sp0
        header["header_words"] = HEADER.itemsize // 8
        header["comm"], header["start_ns"] = b"me", self.start_ns
        words = [*kernel, *user, *(word for pair in python for word in pair)]
        return header.tobytes() + np.array(words, np.uint64).tobytes()

    def batch(self, *records: bytes) -> Batch:
        starts = np.cumsum([0, *(len(record) // 8 for record in records)])[:-1]
        return batch_of(np.frombuffer(b"".join(records), np.uint64), starts.astype(np.int64))

    def names(self, *records: bytes) -> list[list[str]]:
        """Names of each stack, root first."""
        resolved = self.resolver.resolve(self.batch(*records))
        return [self._names(stack) for stack in resolved.stacks]

    def _names(self, stack: MergedStack) -> list[str]:
        return [self.ids.describe(frame)[0] for frame in stack.frames]


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.follower.close()


def address_of(name: str) -> int:
    address = ctypes.cast(getattr(ctypes.CDLL(None), name), ctypes.c_void_p).value
    assert address is not None
    return address


def signal_trampoline(compile_c: Callable[..., Path]) -> int:
    """Where handlers return to in this process: what the C library gives the kernel as sa_restorer."""
    source = """
        #include <signal.h>
        #include <unistd.h>
        #include <sys/syscall.h>
        unsigned long restorer(void) {
            unsigned long action[4] = {0};
            return syscall(SYS_rt_sigaction, SIGUSR2, 0, action, 8) ? 0 : action[2];
        }
    """
    library = compile_c(source, "-shared", "-fPIC", name="restorer.so")
    restorer = ctypes.CDLL(str(library)).restorer
    restorer.restype = ctypes.c_ulong
    before = signal.signal(signal.SIGUSR2, lambda *_: None)
    try:
        return int(restorer())
    finally:
        signal.signal(signal.SIGUSR2, before)


def python_words(function: object) -> tuple[int, int]:
    code = function.__code__  # type: ignore[attr-defined]
    return id(code), code.co_firstlineno << 32


def test_return_addresses_belong_to_the_caller(bench: Bench) -> None:
    start = address_of("strtol")
    # The first word is exact. A return address at a function's very start belongs to the code before it.
    (names,) = bench.names(bench.record(user=[start, start]))
    assert names[-1] == "strtol"
    assert names[0] != "strtol"
    assert bench.names(bench.record(user=[start, start + 1])) == [["strtol", "strtol"]]


def test_distances_do_not_disturb_addresses(bench: Bench) -> None:
    start = address_of("strtol")
    assert bench.names(bench.record(user=[start, 0xFFFF << 48 | start + 5])) == [["strtol", "strtol"]]


def test_a_guessed_caller_is_marked_at_its_callee(bench: Bench) -> None:
    start, guessed, flag = address_of("strtol"), 1 << 47, RecordFlag.SCANNED
    assert bench.names(
        bench.record(user=[start, guessed | start + 1], flags=flag),
        bench.record(user=[start, start + 1, 5 << 48 | guessed | start + 9], flags=flag),
        bench.record(user=[guessed | start, start + 1], flags=flag),  # the innermost frame is no guess
    ) == [
        ["strtol", "strtol (caller guessed)"],
        ["strtol", "strtol (caller guessed)", "strtol"],
        ["strtol", "strtol"],
    ]


def test_what_a_signal_interrupted_is_exact(bench: Bench, compile_c: Callable[..., Path]) -> None:
    """A handler returns to the trampoline of the C library; the frame outside of it did not call it."""
    trampoline = signal_trampoline(compile_c)
    start = address_of("strtol")
    (names,) = bench.names(bench.record(user=[address_of("getenv"), trampoline, start, start]))
    assert names[1:] == ["strtol", "__restore_rt", "getenv"]
    assert names[0] != "strtol"  # a return address as usual


@pytest.mark.parametrize(
    "stop", [reason for reason in StopReason if reason.name not in {"ROOT", "KERNEL_THREAD"}]
)
def test_a_truncated_stack_says_why(bench: Bench, stop: StopReason) -> None:
    resolved = bench.resolver.resolve(bench.batch(bench.record(user=[address_of("strtol")], stop=stop)))
    assert resolved.truncated == 1
    (stack,) = resolved.stacks
    name, _, _, kind, _ = bench.ids.describe(stack.frames[0])
    assert name == f"[truncated: {stop.words}]"
    assert kind == FrameKind.UNKNOWN
    assert bench.ids.describe(stack.frames[-1])[0] == "strtol"


def test_kernel_frames_are_innermost(bench: Bench) -> None:
    (stack,) = bench.resolver.resolve(
        bench.batch(bench.record(kernel=[0xFFFFFFFF81000001], user=[address_of("strtol")]))
    ).stacks
    kinds = [bench.ids.describe(frame)[3] for frame in stack.frames]
    assert kinds == [FrameKind.NATIVE, FrameKind.KERNEL_SPACE]


def test_python_alone_is_complete_when_the_native_walk_breaks(bench: Bench) -> None:
    layout = find_python(os.getpid(), read_maps(os.getpid()))
    assert layout is not None

    def inner() -> None:
        pass

    words = [python_words(inner), python_words(test_python_alone_is_complete_when_the_native_walk_breaks)]
    if layout.version >= (3, 12):
        words.append((3 << 56 | 0x7FFF0000, 0))
    elif layout.version == (3, 11):
        words[-1] = (words[-1][0] | 1 << 56, words[-1][1])
    record = bench.record(user=[address_of("strtol")], python=words, stop=StopReason.NO_RULE)
    resolved = bench.resolver.resolve(bench.batch(record))
    assert resolved.truncated == 0
    names = [bench.ids.describe(frame)[0].rpartition(".")[2] for frame in resolved.stacks[0].frames]
    assert names == ["test_python_alone_is_complete_when_the_native_walk_breaks", "inner", "strtol"]
    # The chain that was cut off is not.
    record = bench.record(python=words, stop=StopReason.NO_RULE, flags=RecordFlag.PYTHON_TRUNCATED)
    assert bench.resolver.resolve(bench.batch(record)).truncated == 1


def test_addresses_outside_of_all_mappings_and_wild_words(bench: Bench) -> None:
    stacks = bench.names(
        bench.record(user=[0x10, 0x20, (1 << 47) - 1]),
        bench.record(python=[(0, 0), (0xFF << 56, 2**64 - 1), (8, 8)]),
        bench.record(),
    )
    assert stacks[0] == ["[unknown code]"] * 3
    assert stacks[2] == []


def test_the_process_of_a_sample_may_be_gone(bench: Bench) -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    record = bytearray(bench.record(user=[0x7F0000001000], stop=StopReason.NO_TABLES))
    record[8:12] = process.pid.to_bytes(4, "little")
    (names,) = bench.names(bytes(record))
    assert names == ["[truncated: process not known yet]", "[unknown code]"]


def test_a_full_generation_is_rolled_and_all_ids_are_made_anew(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuprof.sampler.cpu_stacks.UnwindTables", lambda programs: NotedTables(forks=False))
    history = History(
        Hello(
            version=1, host="t", boot_id="", kernel="", cpu_count=1, mono_ns=0, wall_ns=0, sampler_version="",
            sampler_pid=0, cpu_hz=99, nvml_hz=0, privileged=True,
        )
    )  # fmt: skip
    stacks = CpuStacks(history, SimpleNamespace(waits=None))  # type: ignore[arg-type]
    names = ("strtol", "qsort", "getenv", "memcpy", "fopen")
    for turn, name in enumerate(names * 2):
        record = bench.record(user=[address_of(name), address_of("abort") + 1])
        if turn == len(names):
            monkeypatch.setattr("gpuprof.snapshots.tables.MAX_NODES", history.tables.node_count)
            assert history.tables.full
        if turn == len(names) + 1:
            monkeypatch.setattr("gpuprof.snapshots.tables.MAX_NODES", 1 << 18)
        stacks.consume(bench.batch(record))
    assert history.tables.generation == 1
    tree = history.query(Query(id=1, tree="cpu", start_ns=0, end_ns=1 << 62, min_fraction=0.0))
    found = {tree.strings[int(tree.name[node])]: tree.self_weight[node] for node in range(len(tree.parent))}
    assert tree.total_weight[0] == 2 * len(names)
    for name in ("strtol", "qsort", "getenv"):
        assert found[name] == 2


def test_a_thread_whose_thread_state_was_not_found(bench: Bench) -> None:
    """It says so where Python frames are missing; a thread that runs no Python has none to miss."""
    loop = bench.ids.native("_PyEval_EvalFrameDefault", "python", known=True)
    process = bench.follower.get(os.getpid(), bench.start_ns, time.monotonic_ns(), uid=0, comm=b"me")
    found: dict[int, list[int]] = {}

    def resolve(addresses: list[int]) -> list[int]:
        other = bench.ids.native("other", "libc.so.6", known=True)
        return found.setdefault(len(found), [loop if address == 0x1000 else other for address in addresses])

    process.resolve_native = resolve  # type: ignore[method-assign, assignment]
    flag = RecordFlag.PYTHON_NOT_FOUND
    records = [
        bench.record(user=[0x1000]),
        bench.record(user=[0x1000], flags=flag),
        bench.record(user=[0x2000], flags=flag),
        bench.record(user=[0x1000], flags=flag, stop=StopReason.NO_RULE),
    ]
    resolved = bench.resolver.resolve(bench.batch(*records))
    first = [bench.ids.describe(stack.frames[0])[0] for stack in resolved.stacks]
    assert first[0] == "_PyEval_EvalFrameDefault"
    assert first[1] == "[truncated: the thread's Python frames were not found]"
    assert first[2] == "other"
    assert first[3] == f"[truncated: {StopReason.NO_RULE.words}]"
    assert [stack.complete for stack in resolved.stacks] == [True, False, True, False]
    assert resolved.truncated == 2
