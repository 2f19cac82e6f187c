"""Key a of the process table: it asks, has the parent attach, and says how that went, or what to type."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from pilot_screen import said, screen_of, text_of, until
from textual.pilot import Pilot

from gpuprof.tui import control
from gpuprof.tui.app import GpuprofApp
from gpuprof.tui.control_client import ControlClient
from gpuprof.tui.process_rows import ProcessRow
from gpuprof.tui.screens.confirm import ConfirmScreen
from gpuprof.tui.transports import SocketTransport

ROW = ProcessRow(4711, 0, "ada", "train[/x]", 50.0, 2**30, 100.0, False)


@pytest.fixture
def parent() -> Iterator[tuple[socket.socket, ControlClient]]:
    ours, theirs = control.pair()
    yield ours, ControlClient(theirs.detach())
    ours.close()


async def asked(sock: socket.socket) -> control.Packet:
    for _ in range(6000):
        packet = control.receive(sock)
        if packet is not None:
            return packet
        await asyncio.sleep(0.01)
    raise AssertionError("nothing was asked")


async def look(sock: socket.socket, answer: str = "attachable", **fields: str) -> None:
    """The parent is asked whether it can be done before anybody else is asked anything."""
    packet = await asked(sock)
    assert (packet.op, packet.fields) == ("check", {"pid": "4711"})
    control.send(sock, answer, **fields)


async def press_a(app: GpuprofApp, pilot: Pilot[Any], row: ProcessRow) -> None:
    screen = screen_of(app)
    await until(pilot, lambda: app.session.model.hello is not None)
    screen.feeding._last_process_ns = 1 << 62  # the rows below are what is shown
    screen.table.set_rows([row])
    screen.set_focus(screen.table)
    await pilot.pause()
    await pilot.press("a")
    await pilot.pause()


async def press_a_until_it_asks(app: GpuprofApp, pilot: Pilot[Any], sock: socket.socket) -> None:
    await press_a(app, pilot, ROW)
    await look(sock, message="")
    await until(pilot, lambda: isinstance(app.screen, ConfirmScreen))


async def test_it_asks_then_attaches(
    node_socket: tuple[Any, str], parent: tuple[socket.socket, ControlClient]
) -> None:
    app = GpuprofApp(SocketTransport(path=node_socket[1]), control=parent[1])
    async with app.run_test(notifications=True, size=(160, 40)) as pilot:
        await press_a_until_it_asks(app, pilot, parent[0])
        await pilot.press("n")
        await pilot.pause()
        assert control.receive(parent[0]) is None
        await press_a_until_it_asks(app, pilot, parent[0])
        await pilot.press("y")
        packet = await asked(parent[0])
        assert (packet.op, packet.fields) == ("attach", {"pid": "4711"})
        control.send(parent[0], "attached", message="pid 4711 is ready")
        await until(pilot, lambda: "train[/x] (pid 4711) has loaded the library" in said(app))
        assert app.attaching.refused == {}


async def test_a_refusal_is_told_and_stays_in_the_table(
    node_socket: tuple[Any, str], parent: tuple[socket.socket, ControlClient]
) -> None:
    app = GpuprofApp(SocketTransport(path=node_socket[1]), control=parent[1])
    async with app.run_test(notifications=True, size=(160, 40)) as pilot:
        await press_a_until_it_asks(app, pilot, parent[0])
        await pilot.press("enter")
        await asked(parent[0])
        control.send(parent[0], "refused", request="attach", message="gdb debugs it", hint="let it go")
        await until(pilot, lambda: "gdb debugs it" in said(app))
        assert "let it go" in said(app)
        assert app.attaching.refused == {4711: "gdb debugs it"}


@pytest.mark.parametrize("columns", [60, 80, 90, 120])
async def test_what_cannot_be_is_said_before_anything_is_asked_and_no_command_is_cut(
    node_socket: tuple[Any, str], parent: tuple[socket.socket, ControlClient], columns: int
) -> None:
    app = GpuprofApp(SocketTransport(path=node_socket[1]), control=parent[1])
    async with app.run_test(notifications=True, size=(columns, 30)) as pilot:
        await press_a(app, pilot, ROW)
        why, hint = "it does not use CUDA (yet)", "attach later, or start it with: gpuprof-tui run -- CMD"
        await look(parent[0], "refused", request="check", message=why, hint=hint)
        await until(pilot, lambda: app.attaching.refused == {4711: why})
        await until(pilot, lambda: "-- CMD" in text_of(app))
        assert not isinstance(app.screen, ConfirmScreen)


async def test_a_process_that_has_the_library_needs_no_question(
    node_socket: tuple[Any, str], parent: tuple[socket.socket, ControlClient]
) -> None:
    app = GpuprofApp(SocketTransport(path=node_socket[1]), control=parent[1])
    async with app.run_test(notifications=True, size=(160, 40)) as pilot:
        await press_a(app, pilot, ROW)
        await look(parent[0], message="loaded")
        await until(pilot, lambda: "has loaded the library already" in said(app))
        assert not isinstance(app.screen, ConfirmScreen)
        assert app.attaching.refused == {}


async def test_without_a_parent_it_shows_the_command(node_socket: tuple[Any, str]) -> None:
    app = GpuprofApp(SocketTransport(path=node_socket[1]))
    async with app.run_test(notifications=True, size=(160, 40)) as pilot:
        await press_a(app, pilot, ROW)
        await until(pilot, lambda: "sudo gpuprof-tui attach 4711" in said(app))
        assert not isinstance(app.screen, ConfirmScreen)


async def test_a_recorded_process_needs_nothing(node_socket: tuple[Any, str]) -> None:
    app = GpuprofApp(SocketTransport(path=node_socket[1]))
    async with app.run_test(notifications=True, size=(160, 40)) as pilot:
        await press_a(app, pilot, ProcessRow(7, 0, None, None, None, None, None, True))
        await until(pilot, lambda: "pid 7 is recorded already" in said(app))


@pytest.mark.parametrize("size", [(160, 40), (40, 12)])
async def test_what_the_table_shows(node_socket: tuple[Any, str], size: tuple[int, int]) -> None:
    app = GpuprofApp(SocketTransport(path=node_socket[1]))
    async with app.run_test(size=size) as pilot:
        screen = screen_of(app)
        await pilot.pause()
        screen.feeding._last_process_ns = 1 << 62
        rows = [
            ProcessRow(1, 0, "u", "recorded", None, 3.0, None, True),
            ProcessRow(2, 0, "u", "plain", None, 2.0, None, False),
            ProcessRow(3, 0, "u", "taken", None, 1.0, None, False, "kineto\x1b is there"),
        ]
        screen.table.set_rows(rows)
        lines = [screen.table._line(row, 100).strip(100, screen.table.base_style).text for row in rows]
        assert "●" in lines[0]
        assert " a " in lines[1]
        assert " ! " in lines[2]
        assert "taken  kineto" in lines[2]
        assert "\x1b" not in lines[2]
