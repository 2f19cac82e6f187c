"""Keeps one connection to the data alive: opens it, feeds the model, hands answers over, and reconnects when
it ends."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from gpuprof.snapshots.errors import GpuprofError
from gpuprof.snapshots.frames import Failure, Fetched, Frame, Subscribe, Tree
from gpuprof.tui.model import Model
from gpuprof.tui.transports import Transport

FIRST_RETRY_S = 0.5
LONGEST_RETRY_S = 5.0
FRAMES_PER_TURN = 32  # frames applied before other tasks (keys, redraws) get a turn
HISTORY_AT_START_NS = 15 * 60 * 10**9


@dataclass(frozen=True, slots=True)
class LinkState:
    """`state`: connecting, open, gone (being retried), failed (not retried) or closed."""

    state: str
    message: str = ""
    hint: str = ""


class Link:
    """Runs a transport for as long as the screen lives. Callbacks are called in the event loop."""

    def __init__(
        self,
        transport: Transport,
        model: Model,
        on_answer: Callable[[Tree | Failure], None],
        on_state: Callable[[LinkState], None],
    ) -> None:
        self.transport = transport
        self.model = model
        self.state = LinkState("connecting")
        self._on_answer = on_answer
        self._on_state = on_state
        self._closing = False
        self.explanation = ""  # what someone else (the parent process) said about the sampler's end

    async def run(self) -> None:
        """Until closed: open, subscribe, read to the end, wait a little longer each time, again."""
        retry_s = FIRST_RETRY_S
        self.model.live = self.transport.live
        while not self._closing:
            try:
                await self.transport.open()
                await self.transport.send(self._subscription())
                async for opened in self._read():
                    if opened:
                        retry_s = FIRST_RETRY_S
                reason = GpuprofError(self.explanation or "The sampler is gone.")
            except GpuprofError as error:
                reason = error
            except OSError as error:
                reason = GpuprofError(f"The connection failed: {error.strerror or error}.")
            if self._closing:
                return
            if not self.transport.live:
                self._set(LinkState("failed", reason.message, reason.hint))
                return
            self._set(LinkState("gone", reason.message, reason.hint))
            with contextlib.suppress(OSError):
                await self.transport.close()
            await asyncio.sleep(retry_s)
            retry_s = min(2 * retry_s, LONGEST_RETRY_S)

    def _subscription(self) -> Subscribe:
        """Metrics from where the charts end, or the last minutes at the start."""
        newest = self.model.newest_ns
        return Subscribe("metrics", newest if newest else max(0, self.model.now_ns - HISTORY_AT_START_NS))

    async def _read(self) -> AsyncIterator[bool]:
        turn = 0
        async for frame in self.transport.frames():
            if self.state.state != "open":
                self.explanation = ""
                self._set(LinkState("open"))
                yield True
            self._take(frame)
            turn += 1
            if turn % FRAMES_PER_TURN == 0:
                await asyncio.sleep(0)

    def _take(self, frame: Frame) -> None:
        if isinstance(frame, (Tree, Failure)):
            self._on_answer(frame)
        elif not isinstance(frame, Fetched):
            self.model.apply(frame)

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
