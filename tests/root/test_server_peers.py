"""Who may connect to the service's socket, tried by processes of other users."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from gpuprof.sampler import endpoint
from gpuprof.sampler.server import Server
from gpuprof.snapshots import wire
from gpuprof.snapshots.frames import Failure, Frame, Hello
from gpuprof.snapshots.history import History

pytestmark = pytest.mark.root

HELLO = Hello(1, "node", "boot", "6.1", 2, 5, 0, "0", 1, 99, 10, True)
GROUP, GROUP_ID = "games", 60
PATIENCE_S = 60.0


def connect_as(path: str, uid: int, gid: int, groups: Sequence[int]) -> tuple[int, socket.socket]:
    """A child process that connects to `path` as someone else; its exit code comes from waitpid, its bytes
    here."""
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups(groups)
            os.setresgid(gid, gid, gid)
            os.setresuid(uid, uid, uid)
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(path)
                client.settimeout(PATIENCE_S / 2)
                theirs.sendall(client.recv(65536))
            os._exit(0)
        except PermissionError:
            os._exit(13)
        finally:
            os._exit(1)
    theirs.close()
    return pid, ours


async def frames_as(path: str, uid: int, gid: int, groups: Sequence[int]) -> tuple[int, list[Frame]]:
    pid, ours = connect_as(path, uid, gid, groups)
    ours.setblocking(False)
    data = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(ours, 65536), PATIENCE_S)
    ours.close()
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return code, wire.Decoder().feed(data) if data else []


@pytest.mark.parametrize(
    ("uid", "gid", "groups", "allowed"),
    [
        (0, 0, [0], True),
        (1, 1, [1], False),
        (1, GROUP_ID, [], True),
        (1, 1, [1, GROUP_ID], True),
        (1, 1, [*range(2000, 2400), GROUP_ID], True),  # more groups than the first buffer takes
        (65534, 65534, [65534, 0], False),
    ],
)
async def test_only_root_and_the_group_are_served(
    tmp_path: Path, uid: int, gid: int, groups: list[int], allowed: bool
) -> None:
    path = str(tmp_path / "s.sock")
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_mode & 0o001 == 0:
            folder.chmod(0o711)
    listening = endpoint.listen(path, GROUP)
    server = Server(History(HELLO), lambda: HELLO)
    server.listen(listening)
    try:
        if not allowed:
            code, frames = await frames_as(path, uid, gid, groups)
            assert code == 13  # the kernel says no already
            os.chmod(path, 0o666)  # and should someone have opened it up, the peer's credentials do
            code, frames = await frames_as(path, uid, gid, groups)
            assert isinstance(frames[0], Failure)
            assert "gpuprof" in frames[0].hint
            assert server.clients == 0
        else:
            code, frames = await frames_as(path, uid, gid, groups)
            assert code == 0
            assert isinstance(frames[0], Hello)
    finally:
        await server.close()


async def test_a_socket_from_systemd_is_served(tmp_path: Path) -> None:
    path = str(tmp_path / "s.sock")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen()
        code = (
            "import os, sys; from gpuprof.tui.command import main\n"
            f"os.dup2({listening.fileno()}, 3)\n"
            "os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS='1')\n"
            "sys.exit(main(['sampler']))"
        )
        process = subprocess.Popen([sys.executable, "-c", code], pass_fds=[listening.fileno()])
    loop = asyncio.get_running_loop()
    try:
        with socket.socket(socket.AF_UNIX) as client:
            client.setblocking(False)
            await loop.sock_connect(client, path)
            data = await asyncio.wait_for(loop.sock_recv(client, 65536), PATIENCE_S)
            (found,) = wire.Decoder().feed(data)
            assert isinstance(found, Hello)
            assert found.sampler_pid == process.pid
    finally:
        process.terminate()
        assert process.wait(60) == 0
    assert os.path.exists(path)  # it is systemd's to remove
