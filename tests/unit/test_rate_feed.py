"""What work rates the screen asks for, and what becomes of the answers, over a real history."""

from __future__ import annotations

import numpy as np
import pytest

from gpuprof.snapshots.errors import GpuprofError
from gpuprof.snapshots.frames import Failure, FrameKind, GpuFacts, Hello, ProcessDef
from gpuprof.snapshots.history import History
from gpuprof.snapshots.work_frames import Counted, Rates, WorkKind
from gpuprof.tui.rate_choice import choice_of
from gpuprof.tui.rate_feed import LATE_NS, MAX_CHOSEN, Choice, RateFeed, label
from gpuprof.tui.series import SeriesStore

S, MS = 10**9, 10**6
ZERO = 1000 * S
GPU = GpuFacts("G0", 0, "GPU")
GEMM = Choice(WorkKind.KERNEL, "gemm")


class Node:
    """A history in which a kernel ends every 40 ms, asked by a feed as the screen does."""

    def __init__(self) -> None:
        self.history = History(Hello(1, "node", "boot", "6.1", 2, ZERO, 10**18, "0.1", 1, 99, 10, True))
        self.store = SeriesStore()
        self.feed = RateFeed(self.store)
        self.local_ns = 0
        self.asked = 0

    def run(self, start_ns: int, end_ns: int) -> None:
        with self.history.lock:
            tables = self.history.tables
            thread = tables.thread(
                tables.process(ProcessDef(7, 7, "train", "train", "ada", 1, 1)), 7, "train"
            )
            kernel = tables.frame(tables.function("gemm", "", "[gpu]", FrameKind.GPU_KERNEL))
            end = np.arange(start_ns, end_ns, 40 * MS, dtype=np.uint64)
            one = np.ones(len(end), np.uint32)
            self.history.add_gpu_work(
                start_ns=end - np.uint64(MS), end_ns=end, gpu=one * tables.string("G0"), stream=one,
                thread=one * thread, stack=one * tables.stack([kernel]),
            )  # fmt: skip

    def look(
        self, now_ns: int, *, span: tuple[int, int] | None = None, pinned: tuple[int, int] | None = None
    ) -> bool:
        self.local_ns += 2 * S
        question = self.feed.due(self.local_ns, now_ns, span, pinned)
        if question is None:
            return False
        self.asked += 1
        self.feed.accept(self.history.rates(question))
        return True


@pytest.fixture
def node() -> Node:
    found = Node()
    found.run(ZERO, ZERO + 60 * S)
    return found


def check_whole(
    node: Node, key: tuple[str, str | None, int | None, int | None], low_ns: int, high_ns: int
) -> None:
    """All of [low, high] is drawn once, at 25 per second."""
    view = node.store.view(key)
    assert set(view.value.round(6).tolist()) == {25.0}
    assert (view.start_ns[1:] == view.end_ns[:-1]).all()
    assert int(view.start_ns[0]) <= low_ns + 400 * MS
    assert int(view.end_ns[-1]) >= high_ns - 400 * MS


def test_live_the_pieces_fit_together(node: Node) -> None:
    node.feed.set_gpus([GPU])
    node.feed.toggle(GEMM)
    for second in range(30, 60):
        now = ZERO + second * S
        node.feed.view = (now - 20 * S, now)
        node.look(now)
    assert node.asked == 30
    for key in (("kernel_rate_hz", "G0", None, None), ("work_rate_hz", None, None, 1)):
        check_whole(node, key, ZERO + 10 * S, ZERO + 59 * S - LATE_NS)
    node.feed._loop = None
    node.feed.view = (ZERO, ZERO + 59 * S)  # somebody looks further back
    for _ in range(5):
        node.look(ZERO + 59 * S)
    check_whole(node, ("work_rate_hz", None, None, 1), ZERO, ZERO + 59 * S - LATE_NS)
    assert not node.look(ZERO + 59 * S)


def test_a_file_is_asked_once(node: Node) -> None:
    node.feed.set_gpus([GPU])
    node.feed.view = (0, ZERO + 100 * S)
    span = (ZERO, ZERO + 60 * S)
    assert node.look(ZERO + 60 * S, span=span)
    check_whole(node, ("kernel_rate_hz", "G0", None, None), *span)
    node.local_ns += 100 * S
    assert not node.look(ZERO + 60 * S, span=span)  # nor for a loop, of which there will be no more
    assert len(node.store.view(("kernel_rate_hz", "G0", None, None))) == 299


def test_a_loop_is_found_and_kept(node: Node) -> None:
    with node.history.lock:
        tables = node.history.tables
        stack = tables.stack([tables.frame(tables.function("step", "", "", FrameKind.NVTX))])
        ends = np.arange(ZERO + S, ZERO + 50 * S, 500 * MS, dtype=np.uint64)
        same = np.zeros(len(ends), np.uint32)
        node.history.add_ranges(ends - np.uint64(MS), ends, same, same + np.uint32(stack))
    node.feed.set_gpus([GPU])
    node.feed.view = (ZERO, ZERO + 30 * S)
    node.look(ZERO + 32 * S)
    node.look(ZERO + 33 * S)
    assert node.feed.labels == {0: "step"}
    assert set(node.store.view(("work_rate_hz", None, None, 0)).value.round(6).tolist()) == {2.0}
    assert node.feed.chosen == []
    assert node.feed.toggle(Choice(WorkKind.RANGE, "step")) is False  # it is taken away as any other
    assert not node.store.has("work_rate_hz")


def test_choices_come_and_go(node: Node) -> None:
    feed = node.feed
    assert feed.toggle(GEMM) is True
    feed.view = (ZERO, ZERO + 30 * S)
    node.look(ZERO + 32 * S)
    assert node.store.has("work_rate_hz")
    revision = node.store.revision
    assert feed.toggle(GEMM) is False
    assert not node.store.has("work_rate_hz")
    assert node.store.revision > revision
    for number in range(MAX_CHOSEN):
        assert feed.toggle(Choice(WorkKind.LAUNCH, f"f{number}")) is True
    assert feed.toggle(GEMM) is None
    assert len(feed.labels) == MAX_CHOSEN


def test_the_pinned_range_is_counted(node: Node) -> None:
    node.feed.toggle(GEMM)
    pinned = (ZERO + 10 * S, ZERO + 20 * S)
    assert node.look(ZERO + 50 * S, pinned=pinned)
    ((name, counted),) = node.feed.pinned
    assert (name, counted.total, counted.recorded_ns) == ("gemm", 250, 10 * S)
    node.look(ZERO + 50 * S)
    assert node.feed.pinned == []


def test_a_pinned_range_that_has_just_ended_is_counted_until_its_records_are_in(node: Node) -> None:
    node.feed.toggle(GEMM)
    pinned = (ZERO + 50 * S, ZERO + 62 * S)  # the records of its last 2 s come in a moment
    totals = []
    for second in (62, 63, 64, 65, 66, 67):
        if second == 64:
            node.run(ZERO + 60 * S, ZERO + 64 * S)
        node.look(ZERO + second * S, pinned=pinned)
        totals.append([counted.total for _, counted in node.feed.pinned])
    assert totals == [[250], [250], [300], [300], [300], [300]]
    assert node.asked == 4  # at 62, 63, 64 and 65 s; by then all is in
    assert not node.look(ZERO + 90 * S, pinned=pinned)


def test_a_count_of_a_pinned_range_that_was_not_answered_is_asked_for_again(node: Node) -> None:
    feed, pinned = node.feed, (ZERO + 10 * S, ZERO + 20 * S)
    feed.toggle(GEMM)
    question = feed.due(S, ZERO + 50 * S, None, pinned)
    assert question is not None
    feed.accept(Failure(question.id, "busy"))
    assert feed.pinned == []
    assert feed.due(2 * S, ZERO + 51 * S, None, pinned) is None  # not at once
    assert feed.due(3 * S, ZERO + 52 * S, None, pinned) is not None
    feed.restart()  # the connection was lost, and the answer with it
    node.local_ns = 4 * S
    assert node.look(ZERO + 54 * S, pinned=pinned)
    ((_, counted),) = feed.pinned
    assert counted.total == 250


def test_answers_that_nobody_waits_for(node: Node) -> None:
    feed = node.feed
    feed.toggle(GEMM)
    feed.view = (ZERO, ZERO + 30 * S)
    none = np.zeros(0)
    stray = Rates(3, [], none, none, none, none, none, none)
    feed.accept(stray)
    question = feed.due(S, ZERO + 32 * S, None, None)
    assert question is not None
    feed.accept(stray)
    assert feed.due(2 * S, ZERO + 33 * S, None, None) is None  # it is still waited for
    feed.accept(Failure(question.id, "busy"))
    question = feed.due(4 * S, ZERO + 34 * S, None, None)
    assert question is not None
    feed.toggle(GEMM)
    feed.accept(node.history.rates(question))
    assert not node.store.has("work_rate_hz")
    feed.toggle(GEMM)
    question = feed.due(6 * S, ZERO + 35 * S, None, None)
    assert question is not None
    refused = Rates(question.id, [Counted("gemm", reason="no GPU work was recorded here")], *[none] * 6)
    feed.accept(refused)
    assert feed.refusals == [(GEMM, "no GPU work was recorded here")]
    assert feed.chosen == []
    feed.toggle(GEMM)
    assert feed.due(8 * S, ZERO + 36 * S, None, None) is not None
    assert feed.due(9 * S, ZERO + 36 * S, None, None) is None
    feed.restart()
    assert feed.due(10 * S, ZERO + 36 * S, None, None) is not None


def test_another_node_begins_anew(node: Node) -> None:
    node.feed.toggle(GEMM)
    node.feed.view = (ZERO, ZERO + 30 * S)
    node.look(ZERO + 32 * S)
    node.store.clear()
    node.look(ZERO + 34 * S)
    check_whole(node, ("work_rate_hz", None, None, 1), ZERO, ZERO + 31 * S)


def test_words() -> None:
    assert label(GEMM) == "gemm"
    assert label(Choice(WorkKind.LAUNCH, "step", "train.py")) == "launches in step"
    assert label(Choice(WorkKind.KERNELS, "", pid=4711)) == "kernels of 4711"
    for tree in ("cpu", "idle", "offcpu"):
        with pytest.raises(GpuprofError) as told:
            choice_of(tree, None, None)
        assert "(2)" in told.value.hint
    with pytest.raises(GpuprofError):
        choice_of("gpu", None, None)
