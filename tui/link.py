"""Keeps one connection to the data alive: opens it, feeds the model, hands answers over, and reconnects when
it ends."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass

from gpuprof.snapshots.errors import EXIT_UNAVAILABLE, FrameError, GpuprofError
from gpuprof.snapshots.frames import Failure, Fetch, Fetched, Frame, Hello, Subscribe, Tree
from gpuprof.snapshots.ingest import check_version
from gpuprof.snapshots.work_frames import Rates
from gpuprof.tui.model import Model
from gpuprof.tui.transports import Transport

FIRST_RETRY_S = 0.5
LONGEST_RETRY_S = 5.0
FIRST_TRIES = 3  # to reach what was never there
SILENCE_S = 15.0  # after which a connection that says nothing is spoken of; ssh gives up one of TCP after 10
FRAMES_PER_TURN = 32  # frames applied before other tasks (keys, redraws) get a turn
FETCH_IDS_FROM = 1 << 30  # queries are numbered from 1
FETCH_QUEUE = 32
FETCH_SILENCE_S = 30.0
HISTORY_AT_START_NS = 15 * 60 * 10**9


@dataclass(frozen=True, slots=True)
class LinkState:
    """`state`: connecting, open, gone (being retried), failed (not retried) or closed."""

    state: str
    message: str = ""
    hint: str = ""


class _Fetch:
    """A fetch under way: its frames come in one piece, from a hello to `fetched`, on the same stream as
    all others."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.started = False
        self.abandoned = False
        self.queue: asyncio.Queue[Frame | GpuprofError | None] = asyncio.Queue(FETCH_QUEUE)

    async def put(self, item: Frame | GpuprofError | None) -> None:
        if not self.abandoned:
            await self.queue.put(item)


class Link:
    """Runs a transport for as long as the screen lives. Callbacks are called in the event loop."""

    def __init__(
        self,
        transport: Transport,
        model: Model,
        on_answer: Callable[[Tree | Rates | Failure], None],
        on_state: Callable[[LinkState], None],
    ) -> None:
        self.transport = transport
        self.model = model
        self.state = LinkState("connecting")
        self.error: GpuprofError | None = None  # why it failed for good
        self.was_open = False  # whether anything ever came
        self._refusals = 0
        self._on_answer = on_answer
        self._on_state = on_state
        self._closing = False
        self._fetch: _Fetch | None = None
        self._fetches = 0
        self.explanation = ""  # what someone else (the parent process) said about the sampler's end

    async def run(self) -> None:
        """Until closed: open, subscribe, read to the end, wait a little longer each time, again."""
        retry_s = FIRST_RETRY_S
        self.model.live = self.transport.live
        while not self._closing:
            try:
                await self.transport.open()
                silence = asyncio.get_running_loop().call_later(SILENCE_S, self._tell_silence)
                try:
                    unsent = await self._subscribe()
                    async for opened in self._read():
                        silence.cancel()
                        if opened:
                            retry_s = FIRST_RETRY_S
                finally:
                    silence.cancel()
                reason = unsent or GpuprofError(self.explanation or "The sampler is gone.")
            except GpuprofError as error:
                reason = error
            except OSError as error:
                reason = GpuprofError(f"The connection failed: {error.strerror or error}.")
            if self._fetch is not None:
                await self._fetch.put(GpuprofError("The sampler went away before the snapshot was complete."))
                self._fetch = None
            if self._closing:
                return
            refused = self.transport.refused or isinstance(reason, FrameError)
            self._refusals = self._refusals + 1 if refused else 0
            if not self.transport.live or (not self.was_open and self._refusals >= FIRST_TRIES):
                self.error = reason
                self._set(LinkState("failed", reason.message, reason.hint))
                return
            self._set(LinkState("gone", reason.message, reason.hint))
            with contextlib.suppress(OSError):
                await self.transport.close()
            await asyncio.sleep(retry_s)
            retry_s = min(2 * retry_s, LONGEST_RETRY_S)

    def _tell_silence(self) -> None:
        if self.transport.live:  # a file may take long to read
            message = f"It has said nothing for {SILENCE_S:.0f} s, and is waited for."
            self._set(LinkState("connecting", message, self.transport.silence_hint))

    async def _subscribe(self) -> GpuprofError | None:
        """Ask for the frames; the error where the other side takes no requests any more, since it may have
        said why before."""
        try:
            await self.transport.send(self._subscription())
        except GpuprofError as error:
            return error
        return None

    def _subscription(self) -> Subscribe:
        """Metrics from where the charts end, or the last minutes at the start."""
        newest = self.model.newest_ns
        return Subscribe("metrics", newest if newest else max(0, self.model.now_ns - HISTORY_AT_START_NS))

    async def _read(self) -> AsyncIterator[bool]:
        turn = 0
        async for frame in self.transport.frames():
            if isinstance(frame, Failure) and frame.id == 0:  # of no request: this client is not served
                raise GpuprofError(frame.message, frame.hint, EXIT_UNAVAILABLE)
            if isinstance(frame, Hello):
                check_version(frame)
            if self.state.state != "open":
                self.explanation, self.was_open = "", True
                self._set(LinkState("open"))
                yield True
            if self._fetch is None or not await self._fetched(self._fetch, frame):
                self._take(frame)
            turn += 1
            if turn % FRAMES_PER_TURN == 0:
                await asyncio.sleep(0)

    def _take(self, frame: Frame) -> None:
        if isinstance(frame, (Tree, Rates, Failure)):
            self._on_answer(frame)
        elif not isinstance(frame, Fetched):
            self.model.apply(frame)

    async def _fetched(self, fetch: _Fetch, frame: Frame) -> bool:
        """Whether the frame belongs to the fetch; it is then passed on, at the pace of whoever takes it."""
        if isinstance(frame, (Tree, Rates)):
            return False
        if isinstance(frame, (Failure, Fetched)):
            if frame.id != fetch.number:
                return False
            self._fetch = None
            await fetch.put(GpuprofError(frame.message, frame.hint) if isinstance(frame, Failure) else None)
            return True
        fetch.started = fetch.started or isinstance(frame, Hello)
        if fetch.started:
            await fetch.put(frame)
        return fetch.started

    async def fetch(self, start_ns: int, end_ns: int) -> AsyncGenerator[Frame, None]:
        """The frames of [start_ns, end_ns), a hello first. Live frames wait meanwhile, and are not lost.

        GpuprofError when there is no connection, it ends, or the other side refuses. One at a time; what is
        left of one that was given up is waited for.
        """
        until = time.monotonic() + FETCH_SILENCE_S
        while self._fetch is not None and self._fetch.abandoned and time.monotonic() < until:
            await asyncio.sleep(0.02)
        if self._fetch is not None:
            raise GpuprofError("A snapshot is being fetched already.")
        self._fetches += 1
        fetch = self._fetch = _Fetch(FETCH_IDS_FROM + self._fetches)
        try:
            if not await self.send(Fetch(fetch.number, start_ns, end_ns)):
                self._fetch = None
                raise GpuprofError("There is no connection to fetch the snapshot through.")
            while True:
                try:
                    item = await asyncio.wait_for(fetch.queue.get(), FETCH_SILENCE_S)
                except asyncio.TimeoutError as error:
                    raise GpuprofError(
                        "The sampler stopped sending before the snapshot was complete."
                    ) from error
                if item is None:
                    return
                if isinstance(item, GpuprofError):
                    raise item
                yield item
        finally:
            fetch.abandoned = True  # what still comes of it is dropped
            while not fetch.queue.empty():
                fetch.queue.get_nowait()

    async def send(self, frame: Frame) -> bool:
        """Send a request; False when there is no connection (the reader will notice and reconnect)."""
        if self.state.state != "open":
            return False
        try:
            await self.transport.send(frame)
        except GpuprofError:
            return False
        return True

    async def close(self) -> None:
        """End `run`."""
        self._closing = True
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            await asyncio.wait_for(self.transport.close(), 2.0)

    def _set(self, state: LinkState) -> None:
        self.state = state
        self._on_state(state)
