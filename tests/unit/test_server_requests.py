"""What a client may ask of the sources: that a process is watched, and that all up to now is sent."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import AsyncIterator

import numpy as np
import pytest_asyncio

from gpuprof.sampler.connection import Limits
from gpuprof.sampler.server import Server
from gpuprof.snapshots import wire
from gpuprof.snapshots.errors import GpuprofError
from gpuprof.snapshots.frames import (
    MAGIC,
    Done,
    Failure,
    Fetch,
    Fetched,
    Frame,
    FrameKind,
    Hello,
    ProcessDef,
    Query,
    Samples,
    Settle,
    SourceStatus,
    Status,
    Subscribe,
    Tree,
    Watch,
)
from gpuprof.snapshots.history import History

SECOND = 10**9
PATIENCE_S = 60.0  # far more than anything takes; a slow machine is no failure


class Sources:
    """Records what is asked of it; a settle adds a sample of that very moment."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.watched: list[tuple[int, bool, bool]] = []
        self.settled: list[int] = []
        self.reports = 0
        self.until_ns: int | None = None
        self.problem: GpuprofError | None = None
        self.may_settle = threading.Event()
        self.may_settle.set()

    def watch(self, pid: int, *, itself: bool, children: bool) -> None:
        if self.problem is not None:
            raise self.problem
        self.watched.append((pid, itself, children))

    def report(self) -> None:
        self.reports += 1

    def settle(self, seconds: float, least_wait_ns: int = 0) -> int | None:
        self.may_settle.wait(seconds)
        self.settled.append(least_wait_ns)
        with self.history.lock:
            tables = self.history.tables
            thread = tables.thread(tables.process(ProcessDef(7, 1, "a", "", "me", 1000, 1)), 7, "main")
            stack = tables.stack([tables.frame(tables.function("f", "", "", FrameKind.PYTHON), 1)])
            self.history.add_samples([time.monotonic_ns()], [0], [thread], [stack])
        return self.until_ns


class Talk:
    """A server with such sources, and one client."""

    def __init__(self, *, sources: bool = True) -> None:
        hello = Hello(1, "node", "boot", "6.1", 2, 5 * SECOND, 0, "0", 1, 99, 10, True)
        self.history = History(hello)
        self.sources = Sources(self.history)
        # A subscription comes by itself once a minute.
        limits = Limits(tick_s=60.0, last_words_s=0.3, last_settle_s=1.0)
        capture = self.sources if sources else None
        self.server = Server(self.history, lambda: hello, limits=limits, capture=capture)
        self.socket, theirs = socket.socketpair()
        self.server.adopt(theirs.detach())
        self.socket.setblocking(False)
        self.decoder = wire.Decoder()
        self.frames: list[Frame] = []

    async def ask(self, *requests: Frame) -> None:
        data = b"".join(wire.pack(request) for request in requests)
        await asyncio.get_running_loop().sock_sendall(self.socket, data)

    async def answer(self, number: int) -> Frame:
        loop = asyncio.get_running_loop()
        while True:
            for frame in self.frames:
                if isinstance(frame, Done | Failure | Fetched | Tree) and frame.id == number:
                    return frame
            data = await asyncio.wait_for(loop.sock_recv(self.socket, 1 << 20), PATIENCE_S)
            assert data
            self.frames += self.decoder.feed(data)

    async def close(self) -> None:
        await self.server.close()
        self.socket.close()


@pytest_asyncio.fixture
async def talk() -> AsyncIterator[Talk]:
    made = Talk()
    await asyncio.get_running_loop().sock_sendall(made.socket, MAGIC)
    yield made
    await made.close()


async def test_a_process_is_watched_and_one_without_a_number_is_who_asks(talk: Talk) -> None:
    await talk.ask(Watch(3, 4711), Watch(4, itself=False), Watch(5, 12, children=False))
    for number in (3, 4, 5):
        assert isinstance(await talk.answer(number), Done)
    assert sorted(talk.sources.watched) == sorted(
        [(4711, True, True), (os.getpid(), False, True), (12, True, False)]
    )


async def test_what_cannot_be_watched_is_said(talk: Talk) -> None:
    talk.sources.problem = GpuprofError("there is no process 9", "look for it")
    await talk.ask(Watch(3, 9), Watch(4, -5))
    for number in (3, 4):
        answer = await talk.answer(number)
        assert isinstance(answer, Failure)
    await talk.ask(Query(6, "cpu", 0, SECOND))  # and the connection goes on
    assert isinstance(await talk.answer(6), Tree)


async def test_without_sources_nobody_is_watched_but_all_is_sent() -> None:
    talk = Talk(sources=False)
    await asyncio.get_running_loop().sock_sendall(talk.socket, MAGIC)
    await talk.ask(Watch(3, 4711), Settle(4))
    assert isinstance(await talk.answer(3), Failure)
    assert isinstance(await talk.answer(4), Done)
    await talk.close()


async def test_all_up_to_a_settle_comes_before_its_answer(talk: Talk) -> None:
    await talk.ask(Subscribe("rows"))
    await asyncio.sleep(0.2)  # the subscription has begun, and now sleeps for a minute
    before_ns = time.monotonic_ns()
    await talk.ask(Settle(8))
    assert isinstance(await talk.answer(8), Done)
    kinds = [type(frame) for frame in talk.frames]
    assert kinds.index(Samples) < kinds.index(Done)
    (samples,) = [frame for frame in talk.frames if isinstance(frame, Samples)]
    assert np.all(samples.time_ns >= before_ns)
    assert talk.sources.settled == [0]


async def test_recent_answers_are_complete_and_old_ones_at_once(talk: Talk) -> None:
    now_ns = time.monotonic_ns()
    for number, request in enumerate(
        (
            Query(10, "cpu", 0, now_ns),
            Query(11, "offcpu", 0, now_ns - 60 * SECOND),
            Fetch(12, 0, now_ns - 60 * SECOND),
            Fetch(13, 0, now_ns + SECOND),
            Query(14, "offcpu", 0, now_ns),
            Query(15, "idle", 0, 1 << 62),
        )
    ):
        await talk.ask(request)
        await talk.answer(10 + number)
    # Of a fetch all is wanted; for a tree a moment of a wait may be missing.
    assert talk.sources.settled == [0, SECOND // 4, SECOND // 4]
    assert any(isinstance(frame, Samples) for frame in talk.frames)


async def test_a_settle_that_hangs_is_answered_with_what_there_is(talk: Talk) -> None:
    talk.sources.may_settle.clear()
    began = time.monotonic()
    await talk.ask(Settle(8), Query(9, "cpu", 0, SECOND))
    assert isinstance(await talk.answer(9), Tree)
    done = any(isinstance(frame, Done) for frame in talk.frames)
    assert not done or time.monotonic() - began >= 0.9
    assert isinstance(await talk.answer(8), Done)
    assert time.monotonic() - began >= 0.9  # it was given its second


async def test_an_answer_that_lacks_what_was_not_read_in_time_says_so(talk: Talk) -> None:
    now_ns = time.monotonic_ns()
    talk.sources.until_ns = now_ns - 3 * SECOND
    await talk.ask(Settle(8))
    answer = await talk.answer(8)
    assert isinstance(answer, Done)
    assert answer.until_ns == talk.sources.until_ns
    assert talk.sources.reports == 1  # so that what is kept has the losses up to its end
    talk.history.set_status(Status(now_ns, [SourceStatus("offcpu", "ok")], 0, 0, 0, 0))
    for number, end_ns, words in ((10, now_ns, "last 3.0 s"), (11, now_ns - 4 * SECOND, "")):
        await talk.ask(Query(number, "offcpu", 0, end_ns))
        tree = await talk.answer(number)
        assert isinstance(tree, Tree)
        assert (words in tree.summary) if words else not tree.summary
    assert talk.sources.reports == 1
    talk.sources.until_ns = None
    await talk.ask(Settle(9), Fetch(12, 0, time.monotonic_ns()))
    answer = await talk.answer(9)
    assert isinstance(answer, Done)
    assert answer.until_ns is None
    await talk.answer(12)
    assert talk.sources.reports == 3


async def test_those_who_wait_for_all_keep_no_question_from_being_answered(talk: Talk) -> None:
    """However many recordings end while the sources are late, a screen's tree comes as before."""
    loop, may_settle = asyncio.get_running_loop(), talk.sources.may_settle
    may_settle.clear()
    settle = talk.sources.settle
    talk.sources.settle = lambda seconds, least_wait_ns=0: (  # type: ignore[method-assign]
        None if least_wait_ns else settle(600.0)
    )
    others = []
    try:
        for _ in range(10):  # each with all that one client may ask at once: no pool has so many threads
            ours, theirs = socket.socketpair()
            talk.server.adopt(theirs.detach())
            others.append(ours)
            ours.setblocking(False)
            await loop.sock_sendall(ours, MAGIC + b"".join(wire.pack(Settle(number)) for number in range(4)))
        await asyncio.sleep(0.2)
        now_ns = time.monotonic_ns()
        talk.history.set_status(Status(now_ns, [SourceStatus("offcpu", "ok")], 0, 0, 0, 0))
        await talk.ask(Query(9, "offcpu", 0, now_ns))
        assert isinstance(await talk.answer(9), Tree)
    finally:
        may_settle.set()
        for sock in others:
            sock.close()
