"""A loop that ends with the server: no task is left pending in it, no coroutine unawaited, no socket open."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
import time
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from gpuprof.sampler import endpoint
from gpuprof.sampler.server import Server
from gpuprof.snapshots import wire
from gpuprof.snapshots.frames import MAGIC, Fetch, Hello, Query, Settle, Subscribe, Watch
from gpuprof.snapshots.history import History

PATIENCE_S = 60.0  # far more than anything takes; a slow machine is no failure


class Sources:
    """Takes its time to settle, in a thread of the loop's pool."""

    def __init__(self) -> None:
        self.go_on = threading.Event()

    def watch(self, pid: int, *, itself: bool, children: bool) -> None:
        self.go_on.wait(PATIENCE_S)

    def report(self) -> None:
        pass

    def settle(self, seconds: float, least_wait_ns: int = 0) -> None:
        self.go_on.wait(PATIENCE_S)


@pytest.mark.parametrize("turns", range(9))
@pytest.mark.parametrize("client", ["stays", "goes first", "is reset", "errs"])
def test_nothing_is_left_of_a_connection(turns: int, client: str, tmp_path: Path) -> None:
    """Ended after so many turns of the loop: before a task began, within a request, or later; a client that
    is reset (it goes and has not read all) or errs ends its requests before they have begun.
    """
    hello = Hello(1, "node", "boot", "6.1", 2, 5, 0, "0", 1, 99, 10, True)
    sources = Sources()
    requests = [
        Subscribe("rows"), Subscribe("metrics"), Settle(1), Watch(2, 4711),
        Fetch(3, 0, time.monotonic_ns()), Query(4, "offcpu", 0, time.monotonic_ns()), Query(5, "cpu", 0, 1),
    ]  # fmt: skip
    loop = asyncio.new_event_loop()
    unraised: list[Any] = []
    loop.set_exception_handler(lambda _loop, context: unraised.append(context))
    ours, theirs = socket.socketpair()

    async def serve() -> set[asyncio.Task[Any]]:
        server = Server(History(hello), lambda: hello, capture=sources)
        server.listen(endpoint.listen(str(tmp_path / "s")))
        server.adopt(theirs.detach())
        data = MAGIC + b"".join(wire.pack(request) for request in requests)
        if client == "is reset":
            await asyncio.sleep(0.01)  # there is a hello, which nobody reads
            ours.sendall(data)
            ours.close()
        else:
            ours.sendall(data + (b"\xff\xff\xff\xff" if client == "errs" else b""))
        for _ in range(turns):
            await asyncio.sleep(0)
        if client == "goes first":
            ours.shutdown(socket.SHUT_RDWR)
            await asyncio.sleep(0)
        await server.close()
        return asyncio.all_tasks() - {asyncio.current_task()}  # type: ignore[arg-type]

    gc.collect()  # what tests before have left is not told as this one's
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        left = loop.run_until_complete(serve())
        sources.go_on.set()
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
        gc.collect()
    if client != "is reset":
        ours.settimeout(PATIENCE_S)
        with suppress(ConnectionResetError):  # there was more that it did not read; it is closed
            while ours.recv(1 << 16):
                pass
        ours.close()
    assert not left
    assert not unraised
    assert not [str(warning.message) for warning in warned]
