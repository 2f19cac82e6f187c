"""What injection libraries say of themselves, and what anybody else may say there."""

from __future__ import annotations

import fcntl
import os
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest

from gpuprof.sampler.bell import Bell
from gpuprof.sampler.gpu_discovery import knock_address
from gpuprof.sampler.gpu_knocks import AT_ONCE, MAX_KNOCKS, Knocks
from gpuprof.sampler.readable import readable

KNOCK = "import socket, sys; socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET).connect(sys.argv[1])"


@pytest.fixture
def knocks() -> Iterator[Knocks]:
    knocks = Knocks()
    assert knocks.take() == set()
    knocks.open()
    yield knocks
    knocks.close()
    assert knocks.take() == set()


def knock() -> int:
    # An argument has no zero byte.
    code = KNOCK.replace("sys.argv[1]", "chr(0) + sys.argv[1]")
    process = subprocess.Popen([sys.executable, "-c", code, knock_address()[1:]])
    assert process.wait(30) == 0
    return process.pid


def test_who_knocks_is_told_by_the_kernel(knocks: Knocks) -> None:
    pids = {knock(), knock()}
    assert knocks.take() == pids
    assert knocks.take() == set()


def test_a_knock_ends_the_wait(knocks: Knocks) -> None:
    began = time.monotonic()
    knocks.wait(0.1)
    assert time.monotonic() - began >= 0.1
    pid = knock()
    began = time.monotonic()
    knocks.wait(60)
    assert time.monotonic() - began < 30
    assert knocks.take() == {pid}


def test_a_second_sampler_hears_nothing_and_goes_on(knocks: Knocks) -> None:
    other = Knocks()
    other.open()
    pid = knock()
    other.wait(0)
    assert other.take() == set()
    other.close()
    assert knocks.take() == {pid}


def test_whoever_knocks_much_and_sends_files_leaves_nothing_behind(knocks: Knocks) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with ExitStack() as crowd, suppress(BlockingIOError):
        for _ in range(10 * MAX_KNOCKS):
            one = crowd.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            one.setblocking(False)
            one.connect(knock_address())
            socket.send_fds(one, [b"x" * 5000], [0, 1, 2])
    for _ in range(MAX_KNOCKS // AT_ONCE + 1):  # one more may wait
        assert knocks.take() == set()  # this process itself
    pid = knock()
    assert knocks.take() == {pid}
    assert len(os.listdir("/proc/self/fd")) == before


def test_descriptors_of_any_number_are_waited_for() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, 3000), hard), hard))
    bell, other = Bell(), Bell()
    high = fcntl.fcntl(bell.fileno(), fcntl.F_DUPFD_CLOEXEC, 2000)
    try:
        assert readable([high, other.fileno()], 0) == set()
        bell.ring()
        assert readable([high, other.fileno()], 60) == {high}
        began = time.monotonic()
        assert readable([], 0.05) == readable([other.fileno()], 0.05) == set()
        assert time.monotonic() - began >= 0.1
    finally:
        os.close(high)
        bell.close()
        other.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_bell_wakes_once_and_may_be_rung_when_it_is_gone() -> None:
    bell = Bell()
    thread = threading.Thread(target=bell.ring)
    thread.start()
    thread.join()
    assert os.eventfd_read(bell.fileno()) == 1
    bell.ring()
    bell.clear()
    with pytest.raises(BlockingIOError):
        os.eventfd_read(bell.fileno())
    bell.close()
    bell.ring()
    bell.clear()
    bell.close()
