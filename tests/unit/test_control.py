"""The control socket between the screen and its parent: packets, descriptors, and a side that misbehaves."""

from __future__ import annotations

import array
import asyncio
import os
import socket
from collections.abc import Iterator

import pytest

from gpuprof.snapshots.errors import GpuprofError
from gpuprof.tui import control
from gpuprof.tui.control_client import ControlClient, SamplerEvent, open_control


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    parent, screen = control.pair()
    yield parent, screen
    parent.close()
    screen.close()


def test_a_packet_carries_its_fields_and_a_descriptor(ends: tuple[socket.socket, socket.socket]) -> None:
    read_fd, write_fd = os.pipe()
    assert control.send(ends[0], "saved", write_fd, path="/x")
    os.close(write_fd)
    packet = control.receive(ends[1])
    assert packet is not None
    assert (packet.op, packet.fields) == ("saved", {"path": "/x"})
    os.write(packet.fd, b"hi")
    assert os.read(read_fd, 2) == b"hi"
    assert not os.get_inheritable(packet.fd)
    packet.close()
    os.close(read_fd)
    assert control.receive(ends[1]) is None


@pytest.mark.parametrize("body", [b"x", b"[]", b"3", b'"op"', b"\xff\xfe", b"[" * 8000, b'{"op": 3}'])
def test_malformed_packets_are_told_from_silence(
    ends: tuple[socket.socket, socket.socket], body: bytes
) -> None:
    ends[0].send(body)
    packet = control.receive(ends[1])
    assert packet is not None
    assert packet.op == ""


def test_more_descriptors_than_wanted_are_closed(ends: tuple[socket.socket, socket.socket]) -> None:
    before = len(os.listdir("/proc/self/fd"))
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2, 0, 1, 2, 0, 1, 2]))]
    ends[0].sendmsg([b'{"op":"save"}'], rights)
    packet = control.receive(ends[1])
    assert packet is not None
    packet.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_sending_never_waits_and_the_end_is_an_eof(ends: tuple[socket.socket, socket.socket]) -> None:
    sent = 0
    while control.send(ends[0], "sampler", state="x" * 1000):
        sent += 1
    assert sent > 1
    ends[0].close()
    for _ in range(sent):
        assert control.receive(ends[1]) is not None
    with pytest.raises(EOFError):
        control.receive(ends[1])


async def test_the_client_gets_connections_files_and_news(ends: tuple[socket.socket, socket.socket]) -> None:
    events: list[SamplerEvent] = []
    client = ControlClient(ends[1].detach())
    client.start(events.append)
    asking = asyncio.create_task(client.new_connection())
    while (packet := control.receive(ends[0])) is None:
        await asyncio.sleep(0)
    assert packet.op == "reconnect"
    control.send(ends[0], "sampler", state="running", message="again")
    ours, theirs = socket.socketpair()
    control.send(ends[0], "connection", theirs.fileno())
    theirs.close()
    connection = await asking
    connection.send(b"hi")
    assert ours.recv(2) == b"hi"
    assert events == [SamplerEvent("running", "again")]
    ours.close()
    connection.close()

    saving = asyncio.create_task(client.save_descriptor())
    await asyncio.sleep(0)
    control.send(ends[0], "refused", request="save", message="no room", hint="elsewhere")
    with pytest.raises(GpuprofError, match="no room"):
        await saving

    saving = asyncio.create_task(client.save_descriptor())
    await asyncio.sleep(0)
    ends[0].close()
    with pytest.raises(GpuprofError, match="parent"):
        await saving
    with pytest.raises(GpuprofError, match="parent"):
        await client.new_connection()
    client.close()


def test_no_client_without_a_descriptor() -> None:
    assert open_control(None) is None
    assert open_control(987) is None
