"""One client of the sampler: its requests, its place in the history, and its share of the sending.

The history keeps the rows; a client keeps a cursor. A client that does not read costs one piece of at most
`Limits.piece_bytes`, the answers it asked for (`Limits.queries` of them), and the kernel's socket buffer:
its cursor lags, and what the history has dropped meanwhile is counted in the cursor. What a client sends is
not trusted: frames are small, bad ones are answered by a `failure` frame and the end of the stream.

The stream: MAGIC and `hello` at once. While a `fetch` is answered the subscription waits, so that every
frame from the second `hello` to `fetched` belongs to the fetch, but for `tree`, `rates` and `failure`, which
carry the id of their request; so do `done` frames.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import socket
import sys
import time
import traceback
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from gpuprof.sampler import endpoint
from gpuprof.snapshots import wire
from gpuprof.snapshots.cursor import Cursor
from gpuprof.snapshots.errors import FrameError, GpuprofError
from gpuprof.snapshots.frames import (
    MAGIC,
    Done,
    Failure,
    Fetch,
    Fetched,
    Frame,
    Hello,
    Query,
    Settle,
    Subscribe,
    Tree,
    Watch,
)
from gpuprof.snapshots.gpu_tree import SUMMARY_SEPARATOR
from gpuprof.snapshots.history import History
from gpuprof.snapshots.work_frames import RateQuery

_RECEIVE_BYTES = 32 << 10
_RECENT_NS = 7 * 10**9  # a wait that goes on is written at least so often
_FRESH_WAIT_NS = 250_000_000  # for a tree, less of a wait may be missing at its end
_MORE_PIECES = 16  # of a subscription, beyond what was there, before a `settle` is answered


class Capture(Protocol):
    """What a client may ask of the sources. Both may take seconds, and are called from any thread."""

    def watch(self, pid: int, *, itself: bool, children: bool) -> None:
        """Follow the waits of a process until it ends. GpuprofError."""

    def settle(self, seconds: float, least_wait_ns: int = 0) -> int | None:
        """Have all that happened up to now in the history; where that took too long, up to when it is there,
        in ns, None otherwise.
        """

    def report(self) -> object:
        """Have a status of now, with all losses up to now, in the history."""


@dataclass(frozen=True)
class Limits:
    """What one client may cost. Times in seconds, sizes in bytes."""

    request_bytes: int = 64 << 10
    queries: int = 4  # outstanding at once
    nodes: int = 100_000  # in one answer
    piece_bytes: int = 256 << 10
    handshake_s: float = 10.0
    last_words_s: float = 2.0  # for the failure frame of a stream that is given up
    drain_s: float = 30.0  # for the answers still due to a client that has closed its sending side
    tick_s: float = 0.1
    settle_s: float = 1.0  # of a question, whose answer says where it was not enough
    last_settle_s: float = 10.0  # of what is kept: a recording's end, a fetch


class Connection:
    """Serves one connected socket until it ends; `run` never raises for anything that the client does."""

    def __init__(
        self,
        sock: socket.socket,
        history: History,
        hello: Callable[[], Hello],
        pool: Executor,
        limits: Limits,
        *,
        patience: Executor,
        patient: bool = False,
        capture: Capture | None = None,
    ) -> None:
        self._sock = sock
        self._capture = capture
        self._cursor: Cursor | None = None  # of the subscription
        self._history = history
        self._hello = hello
        self._pool = pool
        self._patience = patience  # for what may take many seconds, so that no question waits behind it
        self._limits = limits
        self._patient = patient  # an inherited socket: its program may take its time to start
        self._sending = asyncio.Lock()  # held for whole frames
        self._streaming = asyncio.Lock()  # held by the subscription for a piece, by a fetch for all of it
        self._requests: set[asyncio.Task[None]] = set()
        self._subscription: asyncio.Task[None] | None = None
        self._streams: set[asyncio.Task[None]] = set()  # it, and those before it that are about to end
        self._fetching = False
        self._loop = asyncio.get_running_loop()

    async def run(self) -> None:
        """Serve until the client closes, errs, or the task is cancelled. Closes the socket."""
        reason: GpuprofError | None = None
        try:
            self._sock.setblocking(False)
            await self._send([self._hello()], MAGIC)
            reason = await self._read_requests()
            if reason is None and self._requests:
                self._unsubscribe()
                await asyncio.wait(self._requests, timeout=self._limits.drain_s)
        except OSError:
            pass  # the client is gone
        except Exception:  # noqa: BLE001
            traceback.print_exc()
            reason = GpuprofError("the sampler could not go on with this client", "please report this")
        finally:
            try:
                await self._end(reason)
            finally:
                self._sock.close()

    async def _end(self, reason: GpuprofError | None) -> None:
        """End what is still being answered, and say why where there is a reason."""
        self._unsubscribe()
        ending = {*self._requests, *self._streams}
        for task in ending:
            task.cancel()
        with suppress(OSError, asyncio.TimeoutError):
            if reason is not None:
                await asyncio.wait_for(self._fail(0, reason), self._limits.last_words_s)
        if ending:  # the loop may end with this connection, and none may be left pending in it
            await asyncio.wait(ending, timeout=self._limits.last_words_s)

    async def _read_requests(self) -> GpuprofError | None:
        """Read until the client closes its side (None) or does what it should not (the reason)."""
        decoder = wire.Decoder(max_frame_bytes=self._limits.request_bytes)
        greeted = False
        deadline = None if self._patient else self._loop.time() + self._limits.handshake_s
        while True:
            receiving = self._loop.sock_recv(self._sock, _RECEIVE_BYTES)
            try:
                if greeted or deadline is None:
                    data = await receiving
                else:
                    data = await asyncio.wait_for(receiving, max(0.0, deadline - self._loop.time()))
            except asyncio.TimeoutError:
                return GpuprofError("no request came in time")
            if not data:
                return None
            try:
                requests = decoder.feed(data)
            except FrameError as error:
                return error
            for request in requests:
                greeted = True
                reason = await self._handle(request)
                if reason is not None:
                    return reason

    async def _handle(self, request: Frame) -> GpuprofError | None:
        if isinstance(request, Query | RateQuery):
            if len(self._requests) >= self._limits.queries:
                await self._fail(
                    request.id, GpuprofError("too many questions at once", "wait for the answers")
                )
            else:
                self._start(functools.partial(self._answer_query, request), request.id)
        elif isinstance(request, Fetch):
            if self._fetching or len(self._requests) >= self._limits.queries:
                await self._fail(request.id, GpuprofError("a fetch is under way", "wait until it has ended"))
            else:
                self._fetching = True
                self._start(functools.partial(self._answer_fetch, request), request.id)
        elif isinstance(request, Watch | Settle):
            if len(self._requests) >= self._limits.queries:
                await self._fail(
                    request.id, GpuprofError("too many requests at once", "wait for the answers")
                )
            elif isinstance(request, Watch):
                self._start(functools.partial(self._answer_watch, request), request.id)
            else:
                self._start(functools.partial(self._answer_settle, request), request.id)
        elif isinstance(request, Subscribe):
            self._unsubscribe()
            self._subscription = self._loop.create_task(self._stream(request))
            self._streams.add(self._subscription)
            self._subscription.add_done_callback(self._streams.discard)
        else:
            return FrameError(f"a {request.KIND} frame is not a request")
        return None

    # ------------------------------------------------------------------------------------------ subscription

    def _unsubscribe(self) -> None:
        if self._subscription is not None:
            self._subscription.cancel()
            self._subscription = self._cursor = None

    async def _stream(self, request: Subscribe) -> None:
        """Send what is new in the history, a piece at a time, as fast as the client reads and no faster."""
        try:
            self._cursor = cursor = self._history.cursor(request.level, request.since_ns)
            while True:
                async with self._streaming:
                    frames = self._history.since(cursor, max_bytes=self._limits.piece_bytes)
                    await self._send(frames)
                await asyncio.sleep(0 if frames else self._limits.tick_s)
        except asyncio.CancelledError:
            raise
        except OSError:
            self._hang_up()
        except Exception as error:  # noqa: BLE001
            with suppress(OSError):
                await self._fail(0, _described(error))
            self._hang_up()

    # ---------------------------------------------------------------------------------------------- requests

    def _start(self, answer: Callable[[], Coroutine[None, None, None]], request_id: int) -> None:
        task = self._loop.create_task(self._guard(answer, request_id))
        self._requests.add(task)
        task.add_done_callback(self._requests.discard)

    async def _guard(self, answer: Callable[[], Coroutine[None, None, None]], request_id: int) -> None:
        """Whatever goes wrong with one request ends that request, with a failure frame that says so.

        The coroutine is made here, so that a request that is cancelled before it began leaves none behind.
        """
        try:
            await answer()
        except OSError:
            self._hang_up()
        except Exception as error:  # noqa: BLE001
            with suppress(OSError):
                await self._fail(request_id, _described(error))

    async def _answer_query(self, request: Query | RateQuery) -> None:
        until_ns = None
        if isinstance(request, Query):
            nodes = max(1, min(request.max_nodes, self._limits.nodes))
            request = dataclasses.replace(request, max_nodes=nodes)
            if request.tree in {"offcpu", "idle"}:
                until_ns = await self._settle(request.end_ns, self._limits.settle_s, _FRESH_WAIT_NS)
        packed = await self._loop.run_in_executor(self._pool, self._compute, request, until_ns)
        await self._send_bytes(packed)

    def _compute(self, request: Query | RateQuery, until_ns: int | None) -> bytes:
        if isinstance(request, RateQuery):
            return wire.pack(self._history.rates(request))
        return wire.pack(_told_late(self._history.query(request), until_ns, time.monotonic_ns()))

    async def _answer_fetch(self, request: Fetch) -> None:
        try:
            await self._settle(request.end_ns, self._limits.last_settle_s)
            async with self._streaming:
                frames = iter(self._history.frames_between(request.start_ns, request.end_ns))
                while piece := await self._loop.run_in_executor(self._pool, self._next_piece, frames):
                    await self._send_bytes(piece)
                await self._send([Fetched(request.id)])
        finally:
            self._fetching = False

    def _next_piece(self, frames: Iterator[Frame]) -> bytes:
        piece = bytearray()
        for frame in frames:
            piece += wire.pack(frame)
            if len(piece) >= self._limits.piece_bytes:
                break
        return bytes(piece)

    async def _settle(self, end_ns: int, seconds: float, least_wait_ns: int = 0) -> int | None:
        """Have what happened up to an instant in the history, where that may not be so yet; where it took
        longer than `seconds`, up to when it is there, None otherwise.

        What is asked for in order to be kept (`least_wait_ns` 0) gets a status of that moment.
        """
        capture = self._capture
        if capture is None or end_ns <= time.monotonic_ns() - _RECENT_NS:
            return None
        settle = functools.partial(capture.settle, seconds, least_wait_ns)
        until_ns = await self._loop.run_in_executor(None if least_wait_ns else self._patience, settle)
        if not least_wait_ns:
            await self._loop.run_in_executor(None, capture.report)
        return until_ns if until_ns is not None and until_ns < end_ns else None

    async def _answer_settle(self, request: Settle) -> None:
        until_ns = await self._settle(time.monotonic_ns(), self._limits.last_settle_s)
        async with self._streaming:
            for _ in range(self._history.bytes_used // self._limits.piece_bytes + _MORE_PIECES):
                cursor = self._cursor
                frames = self._history.since(cursor, max_bytes=self._limits.piece_bytes) if cursor else []
                if not frames:
                    break
                await self._send(frames)
            await self._send([Done(request.id, until_ns)])

    async def _answer_watch(self, request: Watch) -> None:
        if self._capture is None:
            raise GpuprofError("this sampler follows nobody's waits")
        pid = request.pid or endpoint.peer(self._sock)[0]
        if pid <= 0:
            raise GpuprofError("which process asks is not known", "name it by its pid")
        watch = functools.partial(self._capture.watch, pid, itself=request.itself, children=request.children)
        await self._loop.run_in_executor(self._patience, watch)
        await self._send([Done(request.id)])

    # ----------------------------------------------------------------------------------------------- sending

    async def _send(self, frames: Iterable[Frame], preface: bytes = b"") -> None:
        data = preface + b"".join([wire.pack(frame) for frame in frames])
        if data:
            await self._send_bytes(data)

    async def _send_bytes(self, data: bytes) -> None:
        async with self._sending:
            await self._loop.sock_sendall(self._sock, data)

    async def _fail(self, request_id: int, error: GpuprofError) -> None:
        await self._send([Failure(request_id, error.message, error.hint)])

    def _hang_up(self) -> None:
        """Make the reading side end, which ends the connection."""
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)


def _told_late(tree: Tree, until_ns: int | None, now_ns: int) -> Tree:
    """A tree whose summary says what it lacks: what happened from `until_ns` on, None: nothing."""
    if until_ns is None:
        return tree
    seconds = max((min(tree.end_ns, now_ns) - until_ns) / 1e9, 0.1)
    words = f"the last {seconds:.1f} s are not all in it yet, as the machine is too busy"
    summary = SUMMARY_SEPARATOR.join(part for part in (tree.summary, words) if part)
    return dataclasses.replace(tree, summary=summary)


def _described(error: Exception) -> GpuprofError:
    if isinstance(error, GpuprofError):
        return error
    traceback.print_exception(error, file=sys.stderr)
    return GpuprofError(f"the sampler could not answer ({type(error).__name__})", "please report this")
