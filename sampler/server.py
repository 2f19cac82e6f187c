"""The sampler's server: takes clients on inherited sockets and on the service's unix socket, and tells each
from the other.

One asyncio loop for all clients (connection.py), a small pool of threads for folds and fetches, another for
those who have to wait. Peer credentials are checked when a client connects; the protocol reads only.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from gpuprof.sampler import endpoint as endpoints
from gpuprof.sampler.connection import Capture, Connection, Limits
from gpuprof.snapshots import wire
from gpuprof.snapshots.errors import GpuprofError
from gpuprof.snapshots.frames import MAGIC, Failure, Hello
from gpuprof.snapshots.history import History

MAX_CLIENTS = 64  # root may always connect
QUERY_THREADS = 2
REFUSAL_S = 1.0  # in which a client that is not served can read why
PATIENT_THREADS = 8  # recordings that end, fetches and watches at once; more of them wait for each other


class Server:
    """All clients of one history. To be made and used inside a running event loop.

    `hello` returns the first frame of a new connection (its clock pair is taken then). `on_idle` is called
    when the last client has gone.
    """

    def __init__(
        self,
        history: History,
        hello: Callable[[], Hello],
        *,
        limits: Limits | None = None,
        on_idle: Callable[[], None] | None = None,
        capture: Capture | None = None,
    ) -> None:
        self._history = history
        self._hello = hello
        self._limits = limits or Limits()
        self._on_idle = on_idle
        self._capture = capture
        self._pool = ThreadPoolExecutor(QUERY_THREADS, thread_name_prefix="query")
        self._patience = ThreadPoolExecutor(PATIENT_THREADS, thread_name_prefix="patient")
        self._clients: set[asyncio.Task[None]] = set()
        self._refused: deque[socket.socket] = deque(maxlen=MAX_CLIENTS + 1)  # the last ones
        self._endpoints: list[tuple[endpoints.Endpoint, asyncio.Task[None]]] = []
        self._loop = asyncio.get_running_loop()

    @property
    def clients(self) -> int:
        """Number of connections that are being served."""
        return len(self._clients)

    def adopt(self, fd: int) -> None:
        """Serve an inherited, connected stream socket. GpuprofError when `fd` is none, or there are too
        many."""
        try:
            sock = socket.socket(fileno=fd)
        except OSError as error:
            raise GpuprofError(f"descriptor {fd} is not a connected socket") from error
        if len(self._clients) >= MAX_CLIENTS:  # the screen asks for these, and may be under others' control
            sock.close()
            raise GpuprofError("the sampler has as many clients as it takes")
        self._serve(sock, patient=True)

    def listen(self, endpoint: endpoints.Endpoint) -> None:
        """Accept clients on `endpoint` until `close`."""
        endpoint.sock.setblocking(False)
        self._endpoints.append((endpoint, self._loop.create_task(self._accept(endpoint))))

    async def close(self) -> None:
        """End all connections and remove the socket's file."""
        for endpoint, accepting in self._endpoints:
            accepting.cancel()
            endpoint.close()
        self._on_idle = None
        for client in list(self._clients):
            client.cancel()
        ending = {*self._clients, *(accepting for _, accepting in self._endpoints)}
        if ending:  # none is left pending in a loop that ends now
            await asyncio.wait(ending, timeout=0.5)
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._patience.shutdown(wait=False, cancel_futures=True)

    async def _accept(self, endpoint: endpoints.Endpoint) -> None:
        while True:
            try:
                sock, _ = await self._loop.sock_accept(endpoint.sock)
            except OSError as error:  # out of descriptors: those that are connected go on
                print(f"gpuprof sampler: cannot accept a client: {error}", file=sys.stderr)
                await asyncio.sleep(1.0)
                continue
            refusal = self._refusal(sock, endpoint)
            if refusal is None:
                self._serve(sock)
            else:
                self._refuse(sock, refusal)

    def _refusal(self, sock: socket.socket, endpoint: endpoints.Endpoint) -> GpuprofError | None:
        try:
            _, uid, groups = endpoints.peer(sock)
        except OSError:
            return GpuprofError("the sampler could not tell who connects")
        if not endpoints.may_connect(uid, groups, endpoint.gid):
            return GpuprofError(
                "this user may not read the sampler",
                f"ask an administrator to add you to the group: sudo usermod -aG {endpoints.GROUP} USER",
            )
        if len(self._clients) >= MAX_CLIENTS and uid != 0:
            return GpuprofError("the sampler has as many clients as it takes", "close one of them")
        return None

    def _refuse(self, sock: socket.socket, error: GpuprofError) -> None:
        """Say why, in the protocol, as far as the socket's buffer takes it without waiting.

        It is closed a little later: at once, what the client writes meanwhile would break the connection
        before it has read the reason.
        """
        with suppress(OSError):
            sock.setblocking(False)
            sock.send(MAGIC + wire.pack(Failure(0, error.message, error.hint)))
            sock.shutdown(socket.SHUT_WR)
        self._refused.append(sock)
        if len(self._refused) > MAX_CLIENTS:
            self._refused[0].close()
        self._loop.call_later(REFUSAL_S, sock.close)

    def _serve(self, sock: socket.socket, *, patient: bool = False) -> None:
        connection = Connection(
            sock, self._history, self._hello, self._pool, self._limits,
            patience=self._patience, patient=patient, capture=self._capture,
        )  # fmt: skip
        task = self._loop.create_task(connection.run())
        self._clients.add(task)
        task.add_done_callback(self._gone)
        task.add_done_callback(lambda _: sock.close())  # one that is cancelled before it began closes nothing

    def _gone(self, task: asyncio.Task[None]) -> None:
        self._clients.discard(task)
        if not task.cancelled() and task.exception() is not None:
            print(f"gpuprof sampler: a connection failed: {task.exception()!r}", file=sys.stderr)
        if not self._clients and self._on_idle is not None:
            self._on_idle()
