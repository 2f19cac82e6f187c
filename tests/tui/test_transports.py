"""The three transports against a node that does not exist: same frames, same answers; and how each of them
ends."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gpuprof.snapshots.errors import GpuprofError
from gpuprof.snapshots.frames import (
    Failure,
    Fetch,
    Fetched,
    Frame,
    Hello,
    Query,
    Readings,
    Samples,
    SeriesDefs,
    Status,
    Subscribe,
    Tree,
)
from gpuprof.tui.link import Link, LinkState
from gpuprof.tui.model import Model
from gpuprof.tui.transports import CommandTransport, HistoryTransport, SocketTransport, Transport

PATIENCE_S = 60.0  # far more than anything takes; a slow machine is no failure


async def collect(transport: Transport, until: type[Frame], timeout: float = PATIENCE_S) -> list[Frame]:
    seen: list[Frame] = []

    async def read() -> None:
        async for frame in transport.frames():
            seen.append(frame)
            if isinstance(frame, until):
                return

    await asyncio.wait_for(read(), timeout)
    return seen


def kinds(frames: list[Frame]) -> list[type[Frame]]:
    return list(dict.fromkeys(type(frame) for frame in frames))


async def test_socket_by_path(node_socket: tuple[Any, str]) -> None:
    node, path = node_socket
    transport = SocketTransport(path=path)
    await transport.open()
    await transport.send(Subscribe("metrics", 0))
    seen = await collect(transport, Readings)
    assert isinstance(seen[0], Hello)
    assert kinds(seen).index(SeriesDefs) < kinds(seen).index(Readings)
    start, end = node.history.span
    await transport.send(Query(5, "cpu", start, end))
    (tree,) = [frame for frame in await collect(transport, Tree) if isinstance(frame, Tree)]
    assert tree.id == 5
    assert tree.total_weight[0] > 1000
    await transport.send(Query(6, "nonsense", start, end))
    assert any(isinstance(frame, Failure) and frame.id == 6 for frame in await collect(transport, Failure))
    await transport.close()
    with pytest.raises(GpuprofError):
        await transport.send(Subscribe("metrics"))


async def test_socket_by_descriptor_opens_once(fake_node: ModuleType) -> None:
    import threading

    node = fake_node.FakeNode(1)
    ours, theirs = socket.socketpair()
    threading.Thread(target=node.serve, args=(ours,), daemon=True).start()
    transport = SocketTransport(fd=theirs.detach())
    await transport.open()
    assert isinstance((await collect(transport, Hello))[0], Hello)
    await transport.close()
    with pytest.raises(GpuprofError, match="gone"):
        await transport.open()
    ours.close()


async def test_no_socket_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(GpuprofError) as caught:
        await SocketTransport(path=str(tmp_path / "none")).open()
    assert "doctor" in caught.value.hint


async def test_end_of_the_stream_ends_the_frames(node_socket: tuple[Any, str]) -> None:
    node, path = node_socket
    transport = SocketTransport(path=path)
    await transport.open()
    await collect(transport, Hello)
    node.hang_up()
    with contextlib.suppress(GpuprofError):  # a reset, where requests had not been read
        assert [frame async for frame in transport.frames()] == []
    await transport.open()
    assert isinstance((await collect(transport, Hello))[0], Hello)
    await transport.close()


def dial(path: str, banner: str = "") -> list[str]:
    """A command that joins its standard streams to a socket, after a banner; what dial-stdio does."""
    code = f"""
        import socket, sys, threading, os
        sys.stdout.write({banner!r}); sys.stdout.flush()
        print("a warning", file=sys.stderr, flush=True)
        s = socket.socket(socket.AF_UNIX); s.connect({path!r})
        def up():
            while data := os.read(0, 65536): s.sendall(data)
            os._exit(0)
        threading.Thread(target=up, daemon=True).start()
        while data := s.recv(65536): os.write(1, data)
    """
    return [sys.executable, "-c", textwrap.dedent(code)]


async def test_command_with_a_banner(node_socket: tuple[Any, str]) -> None:
    node, path = node_socket
    transport = CommandTransport(dial(path, "Welcome to node17\r\n" * 100), "node17")
    await transport.open()
    await transport.send(Subscribe("metrics", 0))
    assert isinstance((await collect(transport, Readings))[0], Hello)
    node.hang_up()
    with pytest.raises(GpuprofError) as caught:
        await collect(transport, Tree)
    assert "node17" in caught.value.message
    assert "a warning" in caught.value.message
    await transport.close()


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (
            ["/bin/sh", "-c", "echo no route to host >&2; exit 255"],
            "cannot connect to node17: no route to host",
        ),
        (["/bin/sh", "-c", "printf 'a\\033[31mb' >&2; exit 1"], r"said: a\[31mb"),
        (["/bin/sh", "-c", "cat /dev/zero"], "64 KiB"),
        (["/nonexistent/ssh"], "Cannot start"),
    ],
)
async def test_command_that_fails_says_why(argv: list[str], expected: str) -> None:
    transport = CommandTransport(argv, "node17")

    async def run() -> None:
        await transport.open()
        await collect(transport, Tree)

    with pytest.raises(GpuprofError, match=expected):
        await run()
    await transport.close()


async def test_command_not_found_there_has_a_hint() -> None:
    transport = CommandTransport(["/bin/sh", "-c", "exit 127"], "node17")
    await transport.open()
    with pytest.raises(GpuprofError) as caught:
        await collect(transport, Tree)
    assert "install" in caught.value.hint
    await transport.close()


async def test_what_forbids_a_login_is_said_though_it_came_on_standard_output() -> None:
    command = "echo 'This account is currently not available.'; exit 1"
    transport = CommandTransport(["/bin/sh", "-c", command], "node17")
    await transport.open()
    with pytest.raises(
        GpuprofError, match=r"status 1 .* It said: This account is currently not available\.$"
    ):
        await collect(transport, Tree)
    await transport.close()


async def test_a_banner_does_not_push_out_what_standard_error_says() -> None:
    command = "seq 100; echo 'bash: gpuprof-tui: command not found' >&2; exit 127"
    transport = CommandTransport(["/bin/sh", "-c", command], "node17")
    await transport.open()
    with pytest.raises(GpuprofError) as caught:
        await collect(transport, Tree)
    assert caught.value.message.endswith("It said: bash: gpuprof-tui: command not found")
    await transport.close()


async def test_close_ends_the_command() -> None:
    transport = CommandTransport(["/bin/sleep", "1000"], "node17")
    await transport.open()
    process = transport._process
    assert process is not None
    await transport.close()
    assert process.returncode is not None


async def test_history_in_process(fake_node: ModuleType) -> None:
    node = fake_node.FakeNode(1)
    node.fill(10**12, 10**12 + 5 * 10**9)
    transport = HistoryTransport(lambda: node.history, "run.gpuprof")
    assert transport.span is None
    await transport.open()
    assert transport.span == node.history.span
    await transport.send(Subscribe("metrics"))
    seen = await collect(transport, Readings)
    assert isinstance(seen[0], Hello)
    assert Status in kinds(seen)
    assert Samples not in kinds(seen)
    await transport.send(Query(1, "cpu", *node.history.span))
    tree = (await collect(transport, Tree))[-1]
    assert isinstance(tree, Tree)
    await transport.send(Query(2, "gpu", *node.history.span))
    assert isinstance((await collect(transport, Failure))[-1], Failure)
    await transport.send(Fetch(3, *node.history.span))
    fetched = await collect(transport, Fetched)
    assert sum(len(frame.time_ns) for frame in fetched if isinstance(frame, Samples)) == tree.total_weight[0]
    await transport.close()


async def open_link(transport: Transport) -> tuple[Link, asyncio.Task[None], list[Tree | Failure]]:
    answers: list[Tree | Failure] = []
    opened = asyncio.Event()

    def on_state(state: LinkState) -> None:
        if state.state == "open":
            opened.set()

    link = Link(transport, Model(), answers.append, on_state)
    task = asyncio.create_task(link.run())
    await asyncio.wait_for(opened.wait(), PATIENCE_S)
    return link, task, answers


async def close_link(link: Link, task: asyncio.Task[None]) -> None:
    await link.close()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_fetch_on_the_live_stream(node_socket: tuple[Any, str]) -> None:
    node, path = node_socket
    link, task, answers = await open_link(CommandTransport(dial(path), "node17"))
    start, end = node.history.span[0], node.history.span[0] + 20 * 10**9
    frames = [frame async for frame in link.fetch(start, end)]
    assert isinstance(frames[0], Hello)
    assert sum(isinstance(frame, Hello) for frame in frames) == 1
    expected = node.history.query(Query(1, "cpu", start, end)).total_weight[0]
    assert sum(len(frame.time_ns) for frame in frames if isinstance(frame, Samples)) == expected > 1000
    newest = link.model.newest_ns
    await until(lambda: link.model.newest_ns > newest)  # live goes on
    async for _ in link.fetch(start, end):
        break  # given up
    await link.send(Query(77, "cpu", start, end))
    await until(lambda: any(answer.id == 77 for answer in answers))
    assert [frame async for frame in link.fetch(start, start + 1)]
    await close_link(link, task)


async def test_a_fetch_right_after_one_that_was_given_up(node_socket: tuple[Any, str]) -> None:
    """A save that the disk had no room for is tried again at once."""
    node, path = node_socket
    link, task, _ = await open_link(SocketTransport(path=path))
    start, end = node.history.span[0], node.history.span[0] + 20 * 10**9
    expected = node.history.query(Query(1, "cpu", start, end)).total_weight[0]
    for _ in range(3):
        given_up = link.fetch(start, end)
        await given_up.__anext__()
        await given_up.aclose()
    frames = [frame async for frame in link.fetch(start, end)]
    assert sum(len(frame.time_ns) for frame in frames if isinstance(frame, Samples)) == expected
    await close_link(link, task)


async def test_fetch_ends_with_the_connection(node_socket: tuple[Any, str]) -> None:
    node, path = node_socket
    link, task, _ = await open_link(SocketTransport(path=path))

    async def take() -> None:
        async for _ in link.fetch(0, 2**62):
            node.hang_up()

    async def take_until_it_ends() -> None:
        while True:  # what was on its way when the connection ended may have been all
            await take()

    with pytest.raises(GpuprofError, match=r"went away|no connection"):
        await take_until_it_ends()
    await close_link(link, task)
    with pytest.raises(GpuprofError):
        await take()


async def until(condition: Callable[[], bool], timeout: float = PATIENCE_S) -> None:
    async def wait() -> None:
        while not condition():
            await asyncio.sleep(0.02)

    await asyncio.wait_for(wait(), timeout)
