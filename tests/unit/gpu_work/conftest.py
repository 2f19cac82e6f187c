"""A ring written by hand, as the injection library writes it, or as nobody should."""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from gpuprof.sampler import gpu_discovery, gpu_ring
from gpuprof.sampler.gpu_discovery import FoundRing
from gpuprof.sampler.gpu_session import GpuSession
from gpuprof.sampler.processes import describe
from gpuprof.snapshots.frames import Hello
from gpuprof.snapshots.history import History

RING_NAME = f"gpuprof-test-{os.getpid()}"  # a sampler that runs on this machine shall not find it
AHEAD_NS = 1_700_000_000 * 10**9  # of CUPTI's clock
UUID = bytes(range(1, 17))
GPU = "GPU-01020304-0506-0708-090a-0b0c0d0e0f10"


class Writer:
    """The process's side of a ring."""

    def __init__(self, size: int = gpu_ring.RING_BYTES, seals: int = gpu_ring.SEALS) -> None:
        self.fd = os.memfd_create(RING_NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.fd, size)
        if seals:
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, seals)
        self.map = mmap.mmap(self.fd, size)
        if size < gpu_ring.RING_BYTES:
            return
        struct.pack_into(
            "<QIIIIIIIIIIQQQQQQ", self.map, 0, gpu_ring.MAGIC, gpu_ring.VERSION, gpu_ring.HEADER_BYTES, 64,
            gpu_ring.SLOTS, os.getpid(), 1, 1, 130000, 0, 1, 0, 0, 0, 0, 0, 0,
        )  # fmt: skip
        self.map[96:112] = UUID
        self.words = np.frombuffer(self.map, np.uint64, gpu_ring.HEADER_BYTES // 8)
        self.slots = np.frombuffer(self.map, gpu_ring.WORK, gpu_ring.SLOTS, gpu_ring.HEADER_BYTES)
        self.head = 0

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def set_head(self, head: int) -> None:
        self.words[1152 // 8] = self.head = head

    def put(self, rows: np.ndarray[Any, Any]) -> None:
        """Publish rows of any 64-byte dtype."""
        rows = rows.view(gpu_ring.WORK)
        at = (self.head + np.arange(len(rows))) % gpu_ring.SLOTS
        self.slots[at] = rows
        self.set_head(self.head + len(rows))

    def clock(self, difference_ns: int = AHEAD_NS, width_ns: int = 70, mono_ns: int | None = None) -> None:
        row = np.zeros(1, gpu_ring.CLOCKS)
        mono_ns = time.monotonic_ns() if mono_ns is None else mono_ns
        row[["kind", "epoch", "mono_ns", "width_ns"]] = (gpu_ring.CLOCK, 1, mono_ns, width_ns)
        row["cupti_ns"] = mono_ns + difference_ns
        self.put(row)

    def name(self, number: int, text: bytes, epoch: int = 1) -> None:
        parts = [text[at : at + 40] for at in range(0, len(text), 40)]
        rows = np.zeros(len(parts), gpu_ring.TEXTS)
        for n, part in enumerate(parts):
            rows[n] = (
                gpu_ring.NAME_PART,
                len(part),
                0,
                epoch,
                number,
                0,
                40 * n,
                len(text),
                part.ljust(40, b"\0"),
            )
        self.put(rows)

    def work(self, correlation: Any, start_ns: Any, end_ns: Any, **fields: Any) -> None:
        """Records with times on CLOCK_MONOTONIC, unless `raw` says that they are on CUPTI's clock already."""
        ahead = 0 if fields.pop("raw", False) else AHEAD_NS
        correlation = np.atleast_1d(correlation)
        rows = np.zeros(len(correlation), gpu_ring.WORK)
        rows["correlation"] = correlation
        rows["start"] = np.atleast_1d(np.asarray(start_ns, np.uint64)) + np.uint64(ahead)
        rows["end"] = np.atleast_1d(np.asarray(end_ns, np.uint64)) + np.uint64(ahead)
        for name, value in {"kind": gpu_ring.KERNEL, "epoch": 1, "stream": 7, **fields}.items():
            rows[name] = value
        self.put(rows)


@pytest.fixture(autouse=True)
def _ring_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_discovery, "NAME", f"/memfd:{RING_NAME}")


@pytest.fixture
def make_writer() -> Iterator[Callable[..., Writer]]:
    made: list[Writer] = []

    def make(*arguments: int) -> Writer:
        made.append(Writer(*arguments))
        return made[-1]

    yield make
    for writer in made:
        writer.close()


@pytest.fixture
def writer(make_writer: Callable[..., Writer]) -> Writer:
    return make_writer()


@pytest.fixture
def session(writer: Writer) -> Iterator[GpuSession]:
    """A session that listens to `writer`, in this process."""
    process = describe(os.getpid())
    assert process is not None
    fd = os.open(f"/proc/self/fd/{writer.fd}", os.O_RDWR)
    info = os.fstat(fd)
    found = FoundRing(process, os.pidfd_open(os.getpid()), fd, writer.fd, (info.st_dev, info.st_ino))
    session = GpuSession(found)
    assert session.lock()
    yield session
    session.close()


@pytest.fixture
def history() -> History:
    return History(
        Hello(1, "node", "boot", "6.1", 2, time.monotonic_ns(), time.time_ns(), "0", 1, 99, 10, True)
    )


@pytest.fixture
def gpu() -> str:
    return GPU


@pytest.fixture
def ahead_ns() -> int:
    return AHEAD_NS
