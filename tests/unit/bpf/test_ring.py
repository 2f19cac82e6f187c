"""The ring reader on a ring laid out by hand, and the columns made of its records."""

from __future__ import annotations

import mmap
import os
import struct
import time
from collections.abc import Iterator

import numpy as np
import pytest

from gpuprof.bpf import records
from gpuprof.bpf.records import FAMILY_LAUNCH, HEADER, batch_of, launch_batches
from gpuprof.bpf.ring import RingReader

SIZE = 8192
PAGE = mmap.PAGESIZE
BUSY, DISCARDED = 1 << 31, 1 << 30


class FakeRing:
    """A memfd with the pages of a ring; the kernel's double mapping is imitated by writing twice."""

    def __init__(self, size: int = SIZE, position: int = 0) -> None:
        self.size = size
        self.fd = os.memfd_create("ring")
        os.ftruncate(self.fd, 2 * PAGE + 2 * size)
        self.position = position
        os.pwrite(self.fd, struct.pack("<Q", position), 0)
        os.pwrite(self.fd, struct.pack("<Q", position), PAGE)

    @property
    def consumed(self) -> int:
        return int(struct.unpack("<Q", os.pread(self.fd, 8, 0))[0])

    def put(self, payload: bytes, flags: int = 0, *, publish: bool = True) -> int:
        record = struct.pack("<II", len(payload) | flags, 0) + payload + bytes(-len(payload) % 8)
        at = self.position % self.size
        for index, byte in enumerate(range(at, at + len(record))):
            for copy in (byte % self.size, byte % self.size + self.size):
                os.pwrite(self.fd, record[index : index + 1], 2 * PAGE + copy)
        self.position += len(record)
        if publish:
            os.pwrite(self.fd, struct.pack("<Q", self.position), PAGE)
        return at

    def set_length(self, at: int, length: int) -> None:
        for copy in (at, at + self.size):
            os.pwrite(self.fd, struct.pack("<I", length), 2 * PAGE + copy)


@pytest.fixture
def ring() -> Iterator[FakeRing]:
    ring = FakeRing()
    yield ring
    os.close(ring.fd)


def payloads(reader: RingReader, count: int = 1) -> list[bytes]:
    words, starts = reader.read()
    return [words[start : start + count].tobytes() for start in starts]


def test_records_come_in_order_and_are_consumed_once(ring: FakeRing) -> None:
    reader = RingReader(ring.fd, SIZE)
    ring.put(b"a" * 8)
    ring.put(b"b" * 13)
    assert payloads(reader) == [b"a" * 8, b"b" * 8]
    assert ring.consumed == 16 + 24
    assert payloads(reader) == []
    ring.put(b"c" * 8)
    assert payloads(reader) == [b"c" * 8]
    reader.close()


def test_a_busy_record_holds_back_those_behind_it(ring: FakeRing) -> None:
    reader = RingReader(ring.fd, SIZE)
    ring.put(b"a" * 8)
    at = ring.put(b"b" * 8, BUSY)
    ring.put(b"c" * 8)
    assert payloads(reader) == [b"a" * 8]
    assert payloads(reader) == []
    ring.set_length(at, 8)
    assert payloads(reader) == [b"b" * 8, b"c" * 8]
    reader.close()


def test_discarded_records_are_passed_over(ring: FakeRing) -> None:
    reader = RingReader(ring.fd, SIZE)
    ring.put(b"a" * 8, DISCARDED)
    ring.put(b"b" * 8)
    assert payloads(reader) == [b"b" * 8]
    assert ring.consumed == ring.position
    reader.close()


def test_records_across_the_end_of_the_ring(ring: FakeRing) -> None:
    reader = RingReader(ring.fd, SIZE)
    seen = []
    for index in range(100):  # 24,800 bytes: three times around
        ring.put(struct.pack("<Q", index) * 30)
        if index % 7 == 6:
            seen += payloads(reader, 30)
    seen += payloads(reader, 30)
    assert seen == [struct.pack("<Q", index) * 30 for index in range(100)]
    reader.close()


def header(n_kernel: int = 0, n_user: int = 0, n_python: int = 0, **fields: object) -> bytes:
    row = np.zeros(1, HEADER)
    row["n_kernel"], row["n_user"], row["n_python"], row["header_words"] = n_kernel, n_user, n_python, 9
    for name, value in fields.items():
        row[name] = value
    return row.tobytes()


@pytest.mark.parametrize("seed", range(6))
def test_launches_come_in_parts_as_they_were_sent(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long runs of launches with a hash alone, some with frames between them, and some that were given up."""
    random = np.random.default_rng(seed)
    monkeypatch.setattr(records, "_PART_WORDS", int(random.integers(1, 300)))
    ring = FakeRing(1 << 16, position=8 * int(random.integers(0, 1 << 14)))
    reader = RingReader(ring.fd, 1 << 16)
    sent, found = [], []
    for number in range(500):
        user = int(random.integers(1, 4)) if random.random() < 0.02 else 0
        fields = {"pid": 7 + number % 2, "tid": number, "family": FAMILY_LAUNCH, "comm": b"python%d" % number}
        fields |= {"time_ns": 10**9 + number, "start_ns": 55, "extra": number << 32 | 5, "stop": number % 3}
        words = [*range(user), 1000 + number, 1 + number % 5]
        payload = header(0, user, **fields) + struct.pack(f"<{len(words)}Q", *words)
        if random.random() < 0.02:
            ring.put(payload, DISCARDED)
            continue
        ring.put(payload)
        sent.append((*fields.values(), user, words))
        if number % 200 == 199:
            found += launches_of(reader)
    found += launches_of(reader)
    assert found == sent
    assert ring.consumed == ring.position
    reader.close()
    os.close(ring.fd)


def launches_of(reader: RingReader) -> list[tuple[object, ...]]:
    """All that is in the ring, by as many calls as it takes."""
    found: list[tuple[object, ...]] = []
    for _ in range(200):
        for batch in launch_batches(reader):
            names = ("pid", "tid", "family", "comm", "time_ns", "start_ns", "extra", "stop", "n_user")
            columns = [getattr(batch, name).tolist() for name in names]
            ends = (batch.first + batch.n_user + 2).tolist()
            words = [batch.words[low:high].tolist() for low, high in zip(batch.first, ends, strict=True)]
            found += zip(*columns, words, strict=True)
    return found


def test_columns_of_a_batch(ring: FakeRing) -> None:
    reader = RingReader(ring.fd, SIZE)
    ring.put(
        header(1, 2, 1, pid=7, tid=8, cpu=3, comm=b"python3", sp0=1 << 40, time_ns=99)
        + struct.pack("<5Q", *range(5))
    )
    ring.put(header(0, 1, 0, pid=9, stop=2, flags=1, uid=1000) + struct.pack("<Q", 77))
    batch = batch_of(*reader.read())
    assert len(batch) == 2
    assert batch.pid.tolist() == [7, 9]
    assert batch.tid.tolist() == [8, 0]
    assert batch.cpu.tolist() == [3, 0]
    assert batch.comm.tolist() == [b"python3", b""]
    assert batch.stop.tolist() == [0, 2]
    assert batch.flags.tolist() == [0, 1]
    assert batch.uid.tolist() == [0, 1000]
    assert batch.sp0.tolist() == [1 << 40, 0]
    assert batch.time_ns.tolist() == [99, 0]
    first = batch.first.tolist()
    assert batch.words[first[0] : first[0] + 5].tolist() == [0, 1, 2, 3, 4]
    assert batch.words[first[1]] == 77
    reader.close()


def test_an_empty_batch(ring: FakeRing) -> None:
    reader = RingReader(ring.fd, SIZE)
    batch = batch_of(*reader.read())
    assert len(batch) == 0
    assert batch.pid.dtype == np.uint32
    reader.close()


def test_a_record_costs_a_microsecond_at_most() -> None:
    """13,000 records a second (128 CPUs at 99 Hz) must cost little of a core; the bound leaves room for a
    slow machine.
    """
    count = 2000
    ring = FakeRing(1 << 20)
    record = header(0, 24, 6, pid=1) + bytes(8 * 36)
    body = (struct.pack("<II", len(record), 0) + record) * count
    os.pwrite(ring.fd, body, 2 * PAGE)
    reader = RingReader(ring.fd, ring.size)
    best = float("inf")
    for _ in range(5):
        os.pwrite(ring.fd, struct.pack("<Q", 0), 0)
        os.pwrite(ring.fd, struct.pack("<Q", len(body)), PAGE)
        started = time.thread_time()
        batch = batch_of(*reader.read())
        best = min(best, time.thread_time() - started)
        assert len(batch) == count
    assert best / count < 3e-6, f"{best / count * 1e6:.2f} us a record"
    reader.close()
    os.close(ring.fd)


def test_long_runs_of_one_length(ring: FakeRing) -> None:
    """Equal records in a row are found at once: none is skipped, and one that is not ready ends it."""
    reader = RingReader(ring.fd, SIZE)
    for _ in range(3):  # across the end of the ring
        sent = []
        for n in range(150):
            size = 16 if n % 50 else 40
            payload = struct.pack("<QQ", n, size).ljust(size, b"\0")
            ring.put(payload, DISCARDED if n in {60, 61} else 0)
            if n not in {60, 61}:
                sent.append(payload)
        at = ring.put(struct.pack("<QQ", 150, 16), BUSY)
        ring.put(struct.pack("<QQ", 151, 16))
        words, starts = reader.read()
        found = [words[start : start + 2].tobytes() for start in starts.tolist()]
        assert found == [payload[:16] for payload in sent]
        ring.set_length(at, 16)
        words, starts = reader.read()
        assert [int(words[start]) for start in starts.tolist()] == [150, 151]
    reader.close()
