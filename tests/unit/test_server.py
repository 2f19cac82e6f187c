"""The sampler's server against clients that behave, and clients that do not."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio

from gpuprof.sampler.connection import Limits
from gpuprof.sampler.server import MAX_CLIENTS, Server
from gpuprof.snapshots import wire
from gpuprof.snapshots.errors import GpuprofError
from gpuprof.snapshots.frames import (
    MAGIC,
    Failure,
    Fetch,
    Fetched,
    Frame,
    FrameKind,
    Hello,
    ProcessDef,
    Query,
    Readings,
    Samples,
    Status,
    Subscribe,
    Tree,
)
from gpuprof.snapshots.history import History
from gpuprof.snapshots.work_frames import RateQuery, Rates, Wanted

SECOND = 10**9
PATIENCE_S = 60.0  # far more than anything takes; a slow machine is no failure


def hello() -> Hello:
    return Hello(1, "node", "boot", "6.1", 2, 5 * SECOND, 0, "0", 1, 99, 10, True)


def add_samples(history: History, count: int, start_ns: int = 10 * SECOND) -> None:
    """`count` rows, 1 ms apart, all with one stack: main -> work."""
    with history.lock:
        tables = history.tables
        process = tables.process(ProcessDef(7, 1, "python", "python t.py", "me", 1000, 1))
        thread = tables.thread(process, 7, "main")
        frames = [
            tables.frame(tables.function(name, "t.py", "", FrameKind.PYTHON), 1) for name in ("main", "work")
        ]
        stack = tables.stack(frames)
        times = start_ns + np.arange(count, dtype=np.uint64) * np.uint64(1_000_000)
        history.add_samples(times, np.zeros(count), np.full(count, thread), np.full(count, stack))


class Client:
    """A client that keeps what it received; `start` sends the magic."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.sock.setblocking(False)
        self.loop = asyncio.get_running_loop()
        self.decoder = wire.Decoder()
        self.frames: list[Frame] = []

    async def start(self, *requests: Frame) -> None:
        await self.loop.sock_sendall(self.sock, MAGIC)
        await self.send(*requests)

    async def send(self, *requests: Frame) -> None:
        await self.loop.sock_sendall(self.sock, b"".join(wire.pack(request) for request in requests))

    async def until(self, wanted: Callable[[Frame], bool]) -> Frame:
        """The first frame (of those received so far, or later) that is wanted."""
        seen = 0
        while True:
            while seen < len(self.frames):
                seen += 1
                if wanted(self.frames[seen - 1]):
                    return self.frames[seen - 1]
            data = await asyncio.wait_for(self.loop.sock_recv(self.sock, 1 << 20), PATIENCE_S)
            assert data, f"the server closed; got {[f.KIND for f in self.frames]}"
            self.frames += self.decoder.feed(data)

    async def answer(self, number: int) -> Frame:
        return await self.until(lambda f: isinstance(f, (Tree, Rates, Failure, Fetched)) and f.id == number)

    async def rest(self) -> list[Frame]:
        """Everything until the server closes (a reset: it had not read all that was sent)."""
        with suppress(ConnectionResetError):
            while data := await asyncio.wait_for(self.loop.sock_recv(self.sock, 1 << 20), PATIENCE_S):
                self.frames += self.decoder.feed(data)
        return self.frames


class House:
    """A history, its server, and the clients of one test."""

    def __init__(self, history: History, limits: Limits) -> None:
        self.history = history
        self.server = Server(history, hello, limits=limits)
        self.clients: list[Client] = []

    def client(self) -> Client:
        ours, theirs = socket.socketpair()
        self.server.adopt(theirs.detach())
        self.clients.append(Client(ours))
        return self.clients[-1]

    async def close(self) -> None:
        await self.server.close()
        for client in self.clients:
            client.sock.close()


FAST = Limits(tick_s=0.01, last_words_s=0.3)


@pytest_asyncio.fixture
async def house() -> AsyncIterator[House]:
    made = House(History(hello()), FAST)
    yield made
    await made.close()


async def test_hello_comes_first_and_a_query_is_answered(house: House) -> None:
    add_samples(house.history, 100)
    client = house.client()
    await client.start(Query(3, "cpu", 0, 1 << 60))
    tree = await client.answer(3)
    assert isinstance(client.frames[0], Hello)
    assert isinstance(tree, Tree)
    assert tree.total_weight[0] == 100
    assert [tree.strings[n] for n in tree.name[-2:]] == ["main", "work"]


async def test_a_rate_query_is_answered(house: House) -> None:
    client = house.client()
    wanted = [Wanted("kernel", "gemm", 0, 1 << 60, 10**9), Wanted("loop", "", 0, 1 << 60, 10**9)]
    await client.start(
        RateQuery(3, wanted), RateQuery(4, wanted * 40), RateQuery(5, [Wanted("x", "", 0, 1, 1)])
    )
    rates = await client.answer(3)
    assert isinstance(rates, Rates)
    assert [counted.reason for counted in rates.counted] == [
        "no GPU work was recorded here",
        "no NVTX range was recorded here",
    ]
    for number in (4, 5):
        assert isinstance(await client.answer(number), Failure)


async def test_a_query_that_cannot_be_answered_fails_alone(house: House) -> None:
    client = house.client()
    await client.start(Query(3, "gossip", 0, 1), Query(4, "cpu", 0, 1))
    failure = await client.answer(3)
    assert isinstance(failure, Failure)
    assert "gossip" in failure.message
    assert isinstance(await client.answer(4), Tree)


async def test_a_bug_in_a_query_is_a_failure_frame(capsys: pytest.CaptureFixture[str]) -> None:
    class Broken(History):
        def query(self, query: Query) -> Tree:
            raise ZeroDivisionError(query.tree)

    house = House(Broken(hello()), FAST)
    client = house.client()
    await client.start(Query(1, "cpu", 0, 1))
    failure = await client.answer(1)
    assert isinstance(failure, Failure)
    assert "ZeroDivisionError" in failure.message
    assert "ZeroDivisionError" in capsys.readouterr().err
    await client.send(Query(2, "cpu", 0, 1))
    await client.answer(2)
    await house.close()


def _garbage() -> list[bytes]:
    rng = random.Random(7)
    bodies = [
        b"GET / HTTP/1.1\r\n\r\n" * 10,
        MAGIC + struct.pack("<I", 0xFFFFFFFF),
        MAGIC + struct.pack("<I", 65 << 10) + b"x" * (65 << 10),
        MAGIC + struct.pack("<I", 4) + b"\xc1\xc1\xc1\xc1",
        MAGIC + struct.pack("<I", 3000) + b"\x91" * 3000,  # nested arrays
        MAGIC + wire.pack(Fetched(1)),  # not a request
        MAGIC + wire.pack(Subscribe("everything")),
        b"\0" * 100_000,
    ]
    bodies += [MAGIC + struct.pack("<I", 64) + rng.randbytes(64) for _ in range(20)]
    return bodies


@pytest.mark.parametrize("bytes_sent", _garbage())
async def test_garbage_is_answered_by_a_failure_and_the_end(house: House, bytes_sent: bytes) -> None:
    client = house.client()
    await client.loop.sock_sendall(client.sock, bytes_sent)
    frames = await client.rest()
    assert isinstance(frames[-1], Failure)
    assert frames[-1].id == 0
    assert frames[-1].message
    other = house.client()
    await other.start(Query(1, "cpu", 0, 1))
    assert isinstance(await other.answer(1), Tree)


async def test_a_client_that_says_nothing_is_let_go() -> None:
    house = House(History(hello()), Limits(handshake_s=0.05))
    ours, theirs = socket.socketpair()
    house.server._serve(theirs)  # as one that came through the listening socket
    client = Client(ours)
    frames = await client.rest()
    assert isinstance(frames[-1], Failure)
    await house.close()
    ours.close()


async def test_subscription_sends_definitions_before_rows_and_goes_on(house: House) -> None:
    client = house.client()
    await client.start(Subscribe("rows", 0))
    add_samples(house.history, 10)
    series = house.history.series("mem_available_bytes")
    house.history.add_readings([series], [SECOND], [SECOND], [5.0])
    await client.until(lambda f: isinstance(f, Samples))
    await client.until(lambda f: isinstance(f, Readings))
    kinds = [frame.KIND for frame in client.frames]
    assert kinds.index("stacks") < kinds.index("samples")
    assert kinds.index("series") < kinds.index("readings")
    add_samples(house.history, 5, 20 * SECOND)
    later = await client.until(lambda f: isinstance(f, Samples) and f.time_ns[0] == 20 * SECOND)
    assert isinstance(later, Samples)
    assert len(later.time_ns) == 5


async def test_metrics_level_carries_no_samples(house: House) -> None:
    add_samples(house.history, 10)
    client = house.client()
    await client.start(Subscribe("metrics", 0), Query(1, "cpu", 0, 1 << 60))
    await client.until(lambda f: f.KIND == "processes")
    await client.answer(1)
    assert not any(isinstance(frame, Samples) for frame in client.frames)


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


async def test_a_client_that_never_reads_costs_no_memory_and_no_one_else() -> None:
    house = House(History(hello(), max_bytes=4 << 20), FAST)
    lazy, other = house.client(), house.client()
    await lazy.start(Subscribe("rows", 0))
    await other.start(Subscribe("rows", 0))
    add_samples(house.history, 50_000)
    await other.until(lambda f: isinstance(f, Samples))
    before = _resident_bytes()
    total = 50_000
    for second in range(60):
        add_samples(house.history, 50_000, (100 + 60 * second) * SECOND)
        total += 50_000
        await asyncio.sleep(0)
    last = (100 + 60 * 59) * SECOND
    await other.until(lambda f: isinstance(f, Samples) and int(f.time_ns[-1]) > last)
    other.frames.clear()
    # 60 x 50,000 rows are 54 MB; what is kept of them is the history's 4 MB.
    assert _resident_bytes() - before < 25 << 20
    house.history.set_status(Status(1, [], 0, 0, 0, 0))
    received = 0
    dropped = 0
    while received + dropped < total:
        frame = await lazy.until(lambda f: isinstance(f, (Samples, Status)))
        lazy.frames.remove(frame)
        if isinstance(frame, Samples):
            received += len(frame.time_ns)
        elif isinstance(frame, Status):
            dropped = frame.dropped_samples
            house.history.set_status(Status(1, [], 0, 0, 0, 0))
        lazy.frames = [f for f in lazy.frames if isinstance(f, (Samples, Status))]
    assert received + dropped == total
    assert dropped > 1_000_000
    await house.close()


async def test_fetch_is_self_contained_and_the_subscription_waits(house: House) -> None:
    add_samples(house.history, 30_000)
    client = house.client()
    await client.start(Subscribe("rows", 0))
    await client.until(
        lambda f: isinstance(f, Samples) and int(f.time_ns[-1]) == 10 * SECOND + 29_999 * 10**6
    )
    client.frames.clear()
    await client.send(Fetch(9, 10 * SECOND, 20 * SECOND))
    add_samples(house.history, 10, 50 * SECOND)
    await client.answer(9)
    kinds = [frame.KIND for frame in client.frames]
    fetched = client.frames[kinds.index("hello") : kinds.index("fetched")]
    copy = History(hello())
    for frame in fetched:
        copy.ingest(frame)
    assert copy.query(Query(1, "cpu", 0, 1 << 60)).total_weight[0] == 10_000
    await client.until(lambda f: isinstance(f, Samples) and int(f.time_ns[0]) == 50 * SECOND)


async def test_more_questions_than_allowed_fail_and_the_others_are_answered() -> None:
    gate = threading.Event()

    class Slow(History):
        def query(self, query: Query) -> Tree:
            gate.wait(PATIENCE_S)
            return super().query(query)

    house = House(Slow(hello()), FAST)
    client = house.client()
    await client.start(*(Query(number, "cpu", 0, 1) for number in range(1, 7)))
    assert isinstance(await client.answer(5), Failure)
    assert isinstance(await client.answer(6), Failure)
    gate.set()
    for number in range(1, 5):
        assert isinstance(await client.answer(number), Tree)
    await house.close()


async def test_one_fetch_at_a_time(house: House) -> None:
    add_samples(house.history, 100_000)
    client = house.client()
    await client.start(Fetch(1, 0, 1 << 60), Fetch(2, 0, 1 << 60))
    assert isinstance(await client.answer(2), Failure)
    assert isinstance(await client.answer(1), Fetched)


async def test_a_client_that_closes_its_side_still_gets_its_answers(house: House) -> None:
    client = house.client()
    await client.start(Subscribe("rows", 0), Query(1, "cpu", 0, 1))
    client.sock.shutdown(socket.SHUT_WR)
    frames = await client.rest()
    assert any(isinstance(frame, Tree) for frame in frames)


async def test_many_clients_at_once(house: House) -> None:
    clients = [house.client() for _ in range(50)]
    add_samples(house.history, 1000)
    for number, client in enumerate(clients):
        await client.start(Subscribe("rows", 0), Query(number, "cpu", 0, 1 << 60))
    for number, client in enumerate(clients):
        tree = await client.answer(number)
        assert isinstance(tree, Tree)
        assert tree.total_weight[0] == 1000
    for client in clients[:25]:
        client.sock.close()
    while house.server.clients > 25:
        await asyncio.sleep(0.01)


async def test_the_number_of_clients_is_bounded(house: House) -> None:
    for _ in range(MAX_CLIENTS):
        house.client()
    with pytest.raises(GpuprofError, match="as many clients"):
        house.client()


async def test_a_client_that_hangs_up_in_mid_answer_is_forgotten(house: House) -> None:
    add_samples(house.history, 200_000)
    client = house.client()
    await client.start(Fetch(1, 0, 1 << 60))
    await client.until(lambda f: isinstance(f, Samples))
    client.sock.close()
    while house.server.clients:
        await asyncio.sleep(0.01)


async def test_idle_is_told_when_the_last_client_goes() -> None:
    idle = asyncio.Event()
    server = Server(History(hello()), hello, on_idle=idle.set)
    ours, theirs = socket.socketpair()
    server.adopt(theirs.detach())
    ours.close()
    await asyncio.wait_for(idle.wait(), PATIENCE_S)
    await server.close()


async def test_a_descriptor_that_is_no_socket_is_refused(house: House) -> None:
    with open("/dev/null", "rb") as file, pytest.raises(GpuprofError):
        house.server.adopt(file.fileno())
