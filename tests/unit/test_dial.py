"""The relay of dial-stdio: bytes both ways, ends passed on, no more than a piece in memory."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
import threading

from gpuprof.snapshots import wire
from gpuprof.snapshots.frames import Frame, Hello, Query, Tree
from gpuprof.tui.dial import relay


class _Relay:
    """A relay in a thread, with pipes for its standard streams."""

    def __init__(self) -> None:
        self.sampler, connection = socket.socketpair()
        in_r, self.stdin = os.pipe()
        self.stdout, out_w = os.pipe()
        self.received = -1

        def run() -> None:
            self.received = relay(connection, in_r, out_w)
            connection.close()
            os.close(in_r)
            os.close(out_w)

        self.thread = threading.Thread(target=run)
        self.thread.start()

    def join(self) -> None:
        self.thread.join(60)
        assert not self.thread.is_alive()


def test_bytes_go_both_ways_and_arrive_whole() -> None:
    data = random.Random(1).randbytes(5_000_000)
    joined = _Relay()

    def echo() -> None:
        while piece := joined.sampler.recv(65536):
            joined.sampler.sendall(piece)
        joined.sampler.close()

    def feed() -> None:
        rest = data
        while rest:
            rest = rest[os.write(joined.stdin, rest[:100_000]) :]
        os.close(joined.stdin)  # the end is passed on, and what is still due arrives

    threads = [threading.Thread(target=echo), threading.Thread(target=feed)]
    for thread in threads:
        thread.start()
    back = b""
    while piece := os.read(joined.stdout, 1 << 20):
        back += piece
    assert back == data
    joined.join()
    assert joined.received == len(data)
    for thread in threads:
        thread.join()
    os.close(joined.stdout)


def test_it_ends_when_the_sampler_does() -> None:
    joined = _Relay()
    joined.sampler.sendall(b"last words")
    joined.sampler.close()
    assert os.read(joined.stdout, 100) == b"last words"
    assert os.read(joined.stdout, 100) == b""
    joined.join()
    os.close(joined.stdin)
    os.close(joined.stdout)


def test_it_ends_when_the_reader_is_gone() -> None:
    joined = _Relay()
    os.close(joined.stdout)
    joined.join()
    joined.sampler.close()
    os.close(joined.stdin)


def test_a_reader_that_is_slow_holds_the_sampler_back() -> None:
    joined = _Relay()
    joined.sampler.setblocking(False)
    sent = 0
    idle = 0
    while idle < 20:
        try:
            sent += joined.sampler.send(bytes(65536))
            idle = 0
        except BlockingIOError:
            idle += 1
            threading.Event().wait(0.01)
    assert sent < 2_000_000  # two socket buffers, a pipe, and one piece
    got = 0
    joined.sampler.close()
    while piece := os.read(joined.stdout, 1 << 20):
        got += len(piece)
    assert got == sent
    joined.join()
    os.close(joined.stdin)
    os.close(joined.stdout)


def test_the_command_serves_a_client_and_leaves_nothing_behind() -> None:
    code = "import sys; from gpuprof.tui.command import main; sys.exit(main(['dial-stdio', '--no-service']))"
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(wire.MAGIC + wire.pack(Query(5, "cpu", 0, 1)))
    process.stdin.flush()
    decoder = wire.Decoder()
    frames: list[Frame] = []
    while not any(isinstance(frame, Tree) for frame in frames):
        data = os.read(process.stdout.fileno(), 65536)
        assert data, process.stderr.read() if process.stderr else ""
        frames += decoder.feed(data)
    (hello,) = [frame for frame in frames if isinstance(frame, Hello)]
    assert os.path.exists(f"/proc/{hello.sampler_pid}")
    _, err = process.communicate(timeout=60)  # closes standard input, as the end of ssh does
    assert process.returncode == 0, err
    assert err == b""
    assert not os.path.exists(f"/proc/{hello.sampler_pid}")
