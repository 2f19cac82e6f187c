"""The ring reader against writers that lie about sizes, positions, names and times."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gpuprof.sampler import gpu_discovery, gpu_ring
from gpuprof.sampler.gpu_ring import GpuRing
from gpuprof.sampler.gpu_session import GpuSession
from gpuprof.sampler.processes import describe
from gpuprof.snapshots.errors import GpuprofError

OFD_GETLK = 36


def own(fd: int) -> int:
    return os.open(f"/proc/self/fd/{fd}", os.O_RDWR)


def is_listened_to(fd: int) -> bool:
    """As ring_has_listener of the library asks."""
    reply = fcntl.fcntl(fd, OFD_GETLK, struct.pack("hhqqi4x", fcntl.F_RDLCK, os.SEEK_SET, 0, 1, 0))
    return struct.unpack("hhqqi4x", reply)[0] != fcntl.F_UNLCK


@pytest.mark.parametrize(
    ("size", "seals"),
    [
        (gpu_ring.RING_BYTES - 4096, gpu_ring.SEALS),
        (gpu_ring.RING_BYTES + 4096, gpu_ring.SEALS),
        (4096, gpu_ring.SEALS),
        (gpu_ring.RING_BYTES, 0),
        (gpu_ring.RING_BYTES, fcntl.F_SEAL_GROW),
    ],
)
def test_a_file_that_could_be_cut_is_not_mapped(
    make_writer: Callable[..., Any], size: int, seals: int
) -> None:
    writer = make_writer(size, seals)
    with pytest.raises(GpuprofError, match="not sound"):
        GpuRing(own(writer.fd))


def test_a_pipe_is_no_ring() -> None:
    read, write = os.pipe()
    with pytest.raises(GpuprofError, match="not a memfd"):
        gpu_ring.check_file(read)
    os.close(read)
    os.close(write)


@pytest.mark.parametrize(("at", "value"), [(0, 7), (8, 1), (12, 1), (16, 1 << 31), (20, 0)])
def test_another_layout_is_refused(writer: Any, at: int, value: int) -> None:
    struct.pack_into("<I", writer.map, at, value)
    fd = own(writer.fd)
    with pytest.raises(GpuprofError, match="another layout"):
        GpuRing(fd)
    os.close(fd)  # it is still the caller's


def test_a_process_with_another_layout_is_refused_and_both_its_descriptors_are_closed(writer: Any) -> None:
    """As of a program that runs since before an upgrade."""
    struct.pack_into("<I", writer.map, 8, gpu_ring.VERSION + 1)
    process = describe(os.getpid())
    assert process is not None
    fd, pidfd = own(writer.fd), os.pidfd_open(os.getpid())
    with pytest.raises(GpuprofError, match="another layout"):
        GpuSession(gpu_discovery.FoundRing(process, pidfd, fd, writer.fd, (0, 0)))
    for number in (fd, pidfd):
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(number)


def test_the_lock_lasts_as_long_as_the_reader(writer: Any) -> None:
    ring, other = GpuRing(own(writer.fd)), GpuRing(own(writer.fd))
    assert not is_listened_to(writer.fd)
    assert ring.lock()
    assert is_listened_to(writer.fd)
    assert not other.lock()
    ring.close()
    assert not is_listened_to(writer.fd)
    assert other.lock()
    other.close()


def test_the_first_reader_takes_what_is_there_and_a_later_one_what_comes(writer: Any) -> None:
    """A process that expects a sampler writes its clock and names before it comes, and not again soon."""
    writer.clock()
    writer.name(5, b"kernel")
    first = GpuRing(own(writer.fd))
    writer.work(1, 1, 2)
    assert first.lock()
    assert first.slots()["kind"].tolist() == [gpu_ring.CLOCK, gpu_ring.NAME_PART, gpu_ring.KERNEL]
    writer.work([2, 3], 1, 2)
    first.close()
    later = GpuRing(own(writer.fd))
    assert later.lock()
    assert len(later.slots()) == 0
    writer.work(4, 1, 2)
    assert later.slots()["correlation"].tolist() == [4]
    later.close()


@pytest.mark.parametrize("head", [gpu_ring.SLOTS + 1, (1 << 64) - 1])
def test_a_ring_that_says_more_than_it_can_hold_is_read_from_there(writer: Any, head: int) -> None:
    writer.set_head(head)
    ring = GpuRing(own(writer.fd))
    assert ring.lock()
    assert len(ring.slots()) == 0
    assert ring.overruns == 0
    ring.close()


def test_the_lock_dies_with_the_reader(writer: Any) -> None:
    code = (
        "import os, sys, time; from gpuprof.sampler.gpu_ring import GpuRing\n"
        "ring = GpuRing(os.open(f'/proc/self/fd/{sys.argv[1]}', os.O_RDWR)); assert ring.lock()\n"
        "print('locked', flush=True); time.sleep(60)"
    )
    reader = subprocess.Popen(
        [sys.executable, "-c", code, str(writer.fd)], pass_fds=[writer.fd], stdout=subprocess.PIPE
    )
    assert reader.stdout is not None
    assert reader.stdout.readline() == b"locked\n"
    assert is_listened_to(writer.fd)
    reader.kill()
    reader.communicate()
    deadline = time.monotonic() + 60
    while is_listened_to(writer.fd):  # who looks at its memory just now keeps the file a little longer
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_slots_in_order_across_the_end(writer: Any, session: GpuSession) -> None:
    ring = session._ring
    for count in (1, gpu_ring.SLOTS - 5, 100, 3):
        ids = np.arange(count, dtype=np.uint32)
        writer.work(ids, 1, 2)
        assert ring.slots()["correlation"].tolist() == ids.tolist()
    assert len(ring.slots()) == 0
    assert int(writer.words[1216 // 8]) == writer.head


@pytest.mark.parametrize("head", [(1 << 64) - 1, 1 << 63, gpu_ring.SLOTS + 1, 1 << 40])
def test_a_head_from_nowhere(writer: Any, session: GpuSession, head: int) -> None:
    writer.set_head(head)
    assert len(session._ring.slots()) == 0
    assert session._ring.overruns == 1
    assert session.lost == 1
    assert len(session._ring.slots()) == 0
    writer.set_head((head + 2) % (1 << 64))
    assert len(session._ring.slots()) == 2


def test_random_bytes(writer: Any, session: GpuSession, history: Any) -> None:
    """Whatever is in the slots and in the header: no error, and nothing out of range."""
    from gpuprof.sampler.gpu_join import WorkJoin

    join, rng = WorkJoin(history), np.random.default_rng(7)
    writer.clock()
    for round_ in range(20):
        rows = np.frombuffer(rng.bytes(64 * 4000), gpu_ring.WORK).copy()
        if round_ % 2:
            rows["kind"] = rng.integers(0, 7, len(rows))
            rows["epoch"] = rng.integers(0, 3, len(rows))
        writer.put(rows)
        noise = np.frombuffer(rng.bytes(gpu_ring.HEADER_BYTES), np.uint8)
        writer.map[24:1152] = noise[24:1152].tobytes()
        now_ns = time.monotonic_ns()
        for part in session.read(now_ns):
            columns = part[1]
            assert int(columns["leaf"].max()) < len(session.names.leaves)
            assert int(columns["device"].max()) <= gpu_ring.DEVICES
            assert (columns["end_ns"] >= columns["start_ns"]).all()
        join.add_work(session, [], now_ns)
        session.look(now_ns)
        session._resume_ns = 0
    assert session.invalid > 0
    assert 0 <= session.lost < 1 << 41
    assert len(session.names.leaves) < 9000


def test_a_ring_that_is_always_full_takes_its_share_only(
    writer: Any, session: GpuSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring = session._ring
    real = ring.words

    def again(limit: int) -> Any:
        writer.set_head(writer.head + 8192)
        return real(limit)

    monkeypatch.setattr(ring, "words", again)
    began = time.thread_time()
    for _ in range(10):
        session.read(time.monotonic_ns())
    assert time.thread_time() - began < 0.3
    assert session.invalid > 8192  # slots of kind 0
    assert session._resume_ns > time.monotonic_ns()  # nonsense only: left alone for a while


def test_discovery_finds_it_by_its_descriptor(writer: Any) -> None:
    assert writer.fd in gpu_discovery.ring_numbers(os.getpid())
    found = gpu_discovery.take(os.getpid(), writer.fd, ())
    assert found is not None
    assert found.still_open()
    info = os.fstat(writer.fd)
    assert found.identity == (info.st_dev, info.st_ino)
    assert gpu_discovery.take(os.getpid(), writer.fd, {found.identity}) is None
    # An open file description of its own: else the process would not see the lock.
    ring = GpuRing(found.fd)
    assert ring.lock()
    assert is_listened_to(writer.fd)
    ring.close()
    os.close(found.pidfd)
    writer.close()
    assert not found.still_open()


def test_discovery_says_what_is_wrong(make_writer: Callable[..., Any]) -> None:
    """In a child, since the discovery leaves out its own process."""
    writer = make_writer(gpu_ring.RING_BYTES, 0)
    child = subprocess.Popen(["sleep", "60"], pass_fds=[writer.fd])
    try:
        discovery = gpu_discovery.Discovery()
        deadline = time.monotonic() + 60
        while not discovery.refused and time.monotonic() < deadline:
            assert discovery.find({child.pid}, ()) == []
        assert "not sound" in discovery.refused[child.pid]
    finally:
        child.kill()
        child.wait()
    discovery.find((), ())
    assert child.pid not in discovery.refused


def test_a_pid_that_is_gone() -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    assert gpu_discovery.ring_numbers(child.pid) == []
    assert gpu_discovery.take(child.pid, 3, ()) is None


def test_getfd_of_a_wrong_number() -> None:
    with pytest.raises(OSError) as caught:
        gpu_discovery.take(os.getpid(), 1 << 20, ())
    assert caught.value.errno == errno.EBADF
