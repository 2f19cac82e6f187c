"""What a screen says of a sampler that does not serve it, speaks a later protocol, or says nothing."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pilot_screen import shows, text_of

from gpuprof.sampler import endpoint
from gpuprof.sampler.server import Server
from gpuprof.snapshots.errors import EXIT_UNAVAILABLE
from gpuprof.snapshots.frames import MAGIC, PROTOCOL_VERSION, Hello
from gpuprof.snapshots.history import History
from gpuprof.snapshots.wire import pack
from gpuprof.tui import link as links
from gpuprof.tui.app import GpuprofApp
from gpuprof.tui.link import Link, LinkState
from gpuprof.tui.model import Model
from gpuprof.tui.transports import CommandTransport, SocketTransport

PATIENCE_S = 60.0  # far more than anything takes; a slow machine is no failure
Answer = Callable[[socket.socket], None]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[[Answer], str]]:
    """Have every client of a socket answered so; its path."""
    listening = socket.socket(socket.AF_UNIX)

    def start(answer: Answer) -> str:
        listening.bind(str(tmp_path / "s.sock"))
        listening.listen()

        def run() -> None:
            while True:
                try:
                    client, _ = listening.accept()
                except OSError:
                    return
                answer(client)

        threading.Thread(target=run, daemon=True).start()
        return str(tmp_path / "s.sock")

    yield start
    listening.shutdown(socket.SHUT_RDWR)
    listening.close()


async def states_until(path: str, state: str) -> list[LinkState]:
    """The states of a link to `path` up to the first of that name."""
    seen: list[LinkState] = []
    come = asyncio.Event()

    def on_state(now: LinkState) -> None:
        seen.append(now)
        if now.state == state:
            come.set()

    link = Link(SocketTransport(path=path), Model(), lambda answer: None, on_state)
    task = asyncio.create_task(link.run())
    await asyncio.wait_for(come.wait(), PATIENCE_S)
    await link.close()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return seen


@pytest.mark.parametrize("late", [False, True])
async def test_why_a_sampler_refuses_is_said(
    late: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the sampler or the client comes first to what the other has said."""
    if late:
        opened = SocketTransport.open

        async def open_slowly(transport: SocketTransport) -> None:
            await opened(transport)
            await asyncio.sleep(0.3)

        monkeypatch.setattr(SocketTransport, "open", open_slowly)
    monkeypatch.setattr(endpoint, "may_connect", lambda uid, groups, gid: False)
    hello = Hello(PROTOCOL_VERSION, "node17", "boot", "6.1", 2, 5, 0, "7.0", 1, 99, 0, True)
    server = Server(History(hello), lambda: hello)
    path = str(tmp_path / "s.sock")
    server.listen(endpoint.listen(path, "no-such-group-as-this"))
    (gone,) = (state for state in await states_until(path, "gone") if state.state == "gone")
    await server.close()
    assert gone.message == "this user may not read the sampler"
    assert "usermod -aG gpuprof" in gone.hint


async def test_a_later_protocol_is_not_guessed_at(
    serve: Callable[[Answer], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "FIRST_RETRY_S", 0.01)
    hello = Hello(PROTOCOL_VERSION + 1, "node17", "boot", "6.1", 2, 5, 0, "7.0", 1, 99, 0, True)
    kept: list[socket.socket] = []

    def answer(client: socket.socket) -> None:
        kept.append(client)
        client.sendall(MAGIC + pack(hello))

    seen = await states_until(serve(answer), "failed")
    assert {state.state for state in seen} == {"gone", "failed"}
    assert "newer gpuprof (7.0)" in seen[-1].message
    assert "Update gpuprof-tui here" in seen[-1].hint
    for client in kept:
        client.close()


@pytest.mark.parametrize("command", [["/bin/sh", "-c", "exit 127"], ["/nonexistent/ssh"]])
async def test_a_command_that_never_speaks_is_given_up_and_told_by_the_exit_code(command: list[str]) -> None:
    app = GpuprofApp(CommandTransport(command, "node17"))
    async with app.run_test(notifications=True, size=(140, 30)) as pilot:
        await shows(pilot, "not connected, trying again")
        await shows(pilot, "cannot connect")
        assert "Trying again" not in text_of(app)
        await pilot.press("q")
    assert app.return_code == EXIT_UNAVAILABLE


async def test_a_login_that_says_nothing_is_spoken_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuprof.tui.link.SILENCE_S", 0.3)
    app = GpuprofApp(CommandTransport(["/bin/sleep", "1000"], "node17"))
    async with app.run_test(notifications=True, size=(140, 30)) as pilot:
        await shows(pilot, "connecting to node17")
        await shows(pilot, "It has said nothing for")
        await shows(pilot, "Does a login there ask for something")
