"""Launch records: stacks by hash, cut at the API call, by process and epoch."""

from __future__ import annotations

import os
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gpuprof.bpf.records import FAMILY_LAUNCH, HEADER, Batch, batch_of
from gpuprof.sampler.frame_ids import FrameIds
from gpuprof.sampler.gone_processes import GoneProcesses
from gpuprof.sampler.launch_stacks import (
    MAX_WAITING,
    UNKNOWN_STACK,
    Launches,
    LaunchQueue,
    LaunchStacks,
    cut_at_probe,
)
from gpuprof.sampler.processes import NS_PER_TICK, describe
from gpuprof.sampler.thread_ids import ThreadIds
from gpuprof.snapshots.frames import FrameKind
from gpuprof.snapshots.history import History

START_NS = 12_345_678_901
TICK_NS = START_NS - START_NS % NS_PER_TICK


def record(
    hashed: int, correlation: int, *, words: tuple[int, ...] = (), epoch: int = 1, tid: int = 7
) -> Any:
    header = np.zeros(1, HEADER)
    header["pid"], header["tid"], header["start_ns"], header["time_ns"] = 5, tid, START_NS, 1000 + correlation
    header["family"], header["header_words"], header["n_user"] = (
        FAMILY_LAUNCH,
        HEADER.itemsize // 8,
        len(words),
    )
    header["extra"], header["comm"] = epoch << 32 | correlation, b"python"
    return np.concatenate([header.view(np.uint64), np.array([*words, hashed, 1], np.uint64)])


def batch(*records: Any) -> Batch:
    starts = np.cumsum([0, *map(len, records)])[:-1]
    return batch_of(np.concatenate(records), starts.astype(np.int64))


class Fakes:
    """A follower with one process, and a resolver that makes frames of words."""

    def __init__(self) -> None:
        definition = describe(os.getpid())
        self.process = SimpleNamespace(
            pid=5,
            start_ns=TICK_NS,
            definition=definition,
            table_threads={},
            last_seen_ns=0,
            since_ns=0,
            gone_ns=None,
        )
        self.ids = FrameIds()
        self.asked: list[tuple[int, int]] = []
        self.resolved = 0
        self.stacks = LaunchStacks(self, self, self)  # type: ignore[arg-type]
        self.threads = ThreadIds(self)  # type: ignore[arg-type]

    def all(self) -> list[Any]:
        return [self.process]

    def get(self, pid: int, *_: Any, **__: Any) -> Any:
        assert pid == 5
        return self.process

    def resend_stack(self, pid: int, stack_hash: int) -> None:
        self.asked.append((pid, stack_hash))

    def resolve(self, part: Batch) -> Any:
        self.resolved += len(part)
        stacks = []
        for first, count in zip(part.first.tolist(), part.n_user.tolist(), strict=True):
            words = part.words[first : first + count].tolist()
            frames = tuple(self.ids.get(f"f{word}", "", "app", FrameKind.NATIVE) for word in reversed(words))
            stacks.append(SimpleNamespace(frames=frames, complete=words[-1] == 1))
        return SimpleNamespace(processes=[self.process] * len(part), stacks=stacks)

    def consume(self, history: History, *records: Any) -> list[Launches]:
        with history.lock:
            return self.stacks.consume(batch(*records), history.tables, self.ids, self.threads)


def names(history: History, stack: int) -> list[str]:
    view = history.tables.view()
    found = []
    while stack:
        found.append(view.strings[view.name[view.frame_function[view.frame[stack]]]])
        stack = int(view.parent[stack])
    return found


def test_frames_come_once_and_hashes_after_that(history: History) -> None:
    fakes = Fakes()
    (first,) = fakes.consume(
        history,
        record(11, 1, words=(30, 20, 1)),
        record(11, 2),
        record(22, 3, words=(40, 1)),
        record(11, 4, tid=8),
    )
    assert (first.pid, first.start_ns, first.epoch) == (5, TICK_NS, 1)
    assert first.correlation.tolist() == [1, 2, 3, 4]
    assert first.enter_ns.tolist() == [1001, 1002, 1003, 1004]
    assert [names(history, stack) for stack in first.stack.tolist()] == [
        ["f30", "f20", "f1"], ["f30", "f20", "f1"], ["f40", "f1"], ["f30", "f20", "f1"],
    ]  # fmt: skip
    assert first.thread[0] == first.thread[1] != first.thread[3]
    (second,) = fakes.consume(history, record(22, 5), record(11, 6))
    assert second.stack.tolist() == [first.stack[2], first.stack[0]]
    assert fakes.resolved == 2
    assert (fakes.stacks.truncated, fakes.stacks.unknown, fakes.asked) == (0, 0, [])


def test_a_stack_whose_frames_were_lost_is_asked_for(history: History) -> None:
    fakes = Fakes()
    (found,) = fakes.consume(history, record(11, 1), record(11, 2))
    assert names(history, int(found.stack[0])) == [UNKNOWN_STACK]
    assert (fakes.stacks.unknown, fakes.asked) == (2, [(5, 11)])
    (found,) = fakes.consume(history, record(11, 3, words=(30, 2)))
    assert names(history, int(found.stack[0])) == ["f30", "f2"]
    assert fakes.stacks.truncated == 1


def test_a_stack_that_was_seen_before_counts_as_often(history: History) -> None:
    """Truncated stacks are counted for each launch; frames that come again replace those of before."""
    fakes = Fakes()
    fakes.consume(history, record(11, 1, words=(30, 2)), record(22, 2, words=(40, 1)))
    for n in range(3):
        (found,) = fakes.consume(history, record(11, 10 + n), record(22, 20 + n), record(11, 30 + n))
        assert [names(history, stack) for stack in found.stack.tolist()] == [
            ["f30", "f2"], ["f40", "f1"], ["f30", "f2"],
        ]  # fmt: skip
    assert fakes.stacks.truncated == 7
    (found,) = fakes.consume(history, record(11, 50, words=(31, 30, 1)), record(11, 51))
    assert [names(history, stack) for stack in found.stack.tolist()] == [["f31", "f30", "f1"]] * 2
    (found,) = fakes.consume(history, record(11, 52))
    assert names(history, int(found.stack[0])) == ["f31", "f30", "f1"]
    assert fakes.stacks.truncated == 7


def test_new_generations(history: History) -> None:
    fakes = Fakes()
    fakes.consume(history, record(11, 1, words=(30, 1)))
    history.roll_generation()
    (found,) = fakes.consume(history, record(11, 2))
    assert found.tables is history.tables
    assert names(history, int(found.stack[0])) == ["f30", "f1"]
    history.roll_generation()
    fakes.ids = FrameIds()  # as when the stack reader begins anew
    fakes.ids.get("other", "", "", FrameKind.NATIVE)
    (found,) = fakes.consume(history, record(11, 3))
    assert names(history, int(found.stack[0])) == ["f30", "f1"]


def test_epochs(history: History) -> None:
    fakes = Fakes()
    found = fakes.consume(
        history, record(11, 1, words=(1,)), record(11, 1, epoch=2), record(11, 2), record(11, 2, epoch=2)
    )
    assert [(part.epoch, part.correlation.tolist()) for part in found] == [(1, [1, 2]), (2, [1, 2])]
    lies = [record(11, n, epoch=n) for n in range(200)]
    assert fakes.consume(history, *lies) == []
    assert fakes.stacks.invalid == 200


def test_a_queue_that_nobody_reads(history: History) -> None:
    queue, fakes = LaunchQueue(), Fakes()
    many = fakes.consume(history, record(11, 0, words=(1,)), *[record(11, n) for n in range(1, 1000)])
    for _ in range(MAX_WAITING // 1000 + 5):
        queue.put(many)
    taken = queue.take()
    assert sum(map(len, taken)) <= MAX_WAITING
    assert queue.lost == (MAX_WAITING // 1000 + 5) * 1000 - sum(map(len, taken))
    assert queue.take() == []


def test_whoever_waits_is_woken_once_all_are_there(history: History) -> None:
    queue, fakes, taken = LaunchQueue(), Fakes(), list[int]()
    launches = fakes.consume(history, record(11, 0, words=(1,)), record(11, 1))

    def wait() -> None:
        queue.wait(10)
        taken.append(sum(map(len, queue.take())))

    thread = threading.Thread(target=wait)
    thread.start()
    queue.announce()  # of nothing
    for _ in range(3):
        queue.put(launches)
    queue.announce()
    thread.join(10)
    assert taken == [6]
    assert not queue._some.is_set()


def test_stacks_of_processes_that_are_gone_are_let_go_of(history: History) -> None:
    fakes = Fakes()
    starts: dict[int, int | None] = {1: 0, 5: TICK_NS}
    fakes.stacks._gone = GoneProcesses(starts.get)
    fakes.consume(history, *(record(n, n, words=(n, 1)) for n in range(100, 140)))
    seconds = 10**9
    for now_s in range(0, 100, 7):
        fakes.stacks.tidy(now_s * seconds)
    assert len(set(fakes.stacks._by_hash)) == 40  # it lives
    starts[5] = TICK_NS + NS_PER_TICK  # another process has the number
    for now_s in range(100, 200, 7):
        fakes.stacks.tidy(now_s * seconds)
    assert len(fakes.stacks._by_hash) == len(fakes.stacks._cut) == 0


def test_launch_stacks_are_bounded_by_their_size(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, most in (("MAX_STACKS", 50), ("MAX_STACK_BYTES", 20_000), ("MAX_CUT", 30)):
        monkeypatch.setattr(f"gpuprof.sampler.launch_stacks.{name}", most)
    fakes, stacks = Fakes(), set()
    for n in range(300):
        (found,) = fakes.consume(history, record(n, n, words=(*range(n % 90), n + 1000, 1)))
        stacks.add(int(found.stack[0]))
        assert names(history, int(found.stack[0]))[-1] == "f1"
        assert len(fakes.stacks._by_hash) <= 100
        assert fakes.stacks._by_hash.nbytes <= 2 * 21_000
        assert len(fakes.stacks._cut) <= 60
    assert len(stacks) == 300


@pytest.mark.parametrize(
    ("frames", "kept"),
    [
        ("main:app step:app gpuprof_launch:libgpuprof_inject.so", 2),
        ("main:app cudaLaunchKernel:libcudart.so.12 cuLaunchKernel:libcuda.so.1 "
         "libcuda.so.1!0x12:libcuda.so.1 libcuda.so.1!0x99:libcuda.so.1 libcupti.so.12!0x5:libcupti.so.12 "
         "on_call:libgpuprof_inject.so gpuprof_launch:libgpuprof_inject.so", 3),
        ("main:app libcuda.so.1!0x12:libcuda.so.1 libcupti.so.13!0x5:libcupti.so.13", 2),
        ("main:app libcuda.so.1!0x12:libcuda.so.1 run:app", 3),
        ("gpuprof_launch:libgpuprof_inject.so", 0),
        ("", 0),
    ],
)  # fmt: skip
def test_the_stack_ends_at_the_api_call(frames: str, kept: int) -> None:
    ids = FrameIds()
    pairs = [frame.rsplit(":", 1) for frame in frames.split()]
    numbers = tuple(ids.get(name, "", binary, FrameKind.NATIVE) for name, binary in pairs)
    assert cut_at_probe(numbers, ids) == numbers[:kept]
