"""Reads the shared-memory ring that the injection library writes in a profiled process; trusts nothing in it.

Layout (bpf/inject/ring.h): a memfd named "gpuprof-ring", sealed against shrinking and growing; a header of
8192 bytes, then 2^17 slots of 64 bytes. The process writes slots and advances `head`; this side reads up to
`head` and advances `tail`. Holding a write lock on byte 0, through an open file description of its own, is
what tells the process to record; the kernel releases it however this process ends.

The process may write anything anywhere at any time: positions are checked before use, slots are copied
before they are looked at, and every field is validated by whoever uses it.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuprof.snapshots.errors import GpuprofError
from gpuprof.snapshots.names import clean

NAME = "/memfd:gpuprof-ring"
MAGIC = 0x31474E4946525047
VERSION = 4
HEADER_BYTES = 8192
SLOT_BYTES = 64
WORDS = SLOT_BYTES // 8
SLOTS = 1 << 17
RING_BYTES = HEADER_BYTES + SLOTS * SLOT_BYTES
DEVICES = 32
TEXT = 256
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
_F_OFD_SETLK = 37

_FACTS = struct.Struct("<QIIIIIIIIIIQQQQQQ")
_UUIDS_AT = 96
_MESSAGE_AT = _UUIDS_AT + 16 * DEVICES
_LIBRARY_AT = _MESSAGE_AT + TEXT
_HEAD_AT = 1152
_TAIL_AT = 1216
_BUDGET_AT = 1224  # u32, this side's, as the next, u64
_HOLD_AT = 1232
_COSTS = struct.Struct("<QQQQQIIQQQQI")
_COSTS_AT = 1280

STATES = ("waiting", "recording", "detaching", "refused", "ended", "paused")

KERNEL, MEMCPY, MEMSET, NAME_PART, CLOCK, WAIT, SPAN, PATH_PART, RANGE = 1, 2, 3, 4, 5, 6, 7, 8, 9
WAIT_HAS_STREAM = 1  # in the flags of a wait

WORK = np.dtype(
    [
        ("kind", "u1"), ("flags", "u1"), ("device", "<u2"), ("epoch", "<u4"), ("start", "<u8"),
        ("end", "<u8"), ("correlation", "<u4"), ("stream", "<u4"), ("context", "<u4"), ("name", "<u4"),
        ("bytes", "<u8"), ("graph", "<u4"), ("no_stack", "<u2"), ("path", "<u2"), ("enter", "<u8"),
    ]
)  # fmt: skip
TEXTS = np.dtype(  # parts of names and of the names of paths
    [
        ("kind", "u1"), ("length", "u1"), ("reserved", "<u2"), ("epoch", "<u4"), ("id", "<u4"),
        ("parent", "<u4"), ("offset", "<u4"), ("total", "<u4"), ("text", "V40"),
    ]
)  # fmt: skip
CLOCKS = np.dtype(
    [
        ("kind", "u1"), ("flags", "u1"), ("reserved", "<u2"), ("epoch", "<u4"), ("cupti_ns", "<u8"),
        ("mono_ns", "<u8"), ("width_ns", "<u8"), ("rest", "V32"),
    ]
)  # fmt: skip
WAITS = np.dtype(
    [
        ("kind", "u1"), ("flags", "u1"), ("reserved", "<u2"), ("epoch", "<u4"), ("start_ns", "<u8"),
        ("end_ns", "<u8"), ("correlation", "<u4"), ("stream", "<u4"), ("thread", "<u4"), ("name", "<u4"),
        ("weight", "<f4"), ("rest", "V20"),
    ]
)  # fmt: skip
SPANS = np.dtype(
    [
        ("kind", "u1"), ("flags", "u1"), ("reserved", "<u2"), ("epoch", "<u4"), ("start_ns", "<u8"),
        ("end_ns", "<u8"), ("rest", "V40"),
    ]
)  # fmt: skip
RANGES = np.dtype(
    [
        ("kind", "u1"), ("flags", "u1"), ("reserved", "<u2"), ("epoch", "<u4"), ("start_ns", "<u8"),
        ("end_ns", "<u8"), ("path", "<u4"), ("thread", "<u4"), ("weight", "<u4"), ("rest", "V28"),
    ]
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class RingFacts:
    """What the header says at one moment; all of it the process's own claim."""

    pid: int  # as the process sees itself, in its own pid namespace
    epoch: int
    state: str
    cupti_version: int
    launches: int
    records: int
    dropped: int
    cupti_dropped: int
    uuids: tuple[
        str | None, ...
    ]  # by the process's own device ordinal, as NVML writes them: GPU-xxxxxxxx-xxxx-...
    message: str
    library: str
    callback_ns: int = 0  # of the launching threads, in the library's callback
    cost_ns: int = 0  # of the launching threads, what recording has cost while the device waited
    stacks: int = 0  # launches that had their stack taken
    waits: int = 0
    wait_ns: int = 0
    recording_since_ns: int = 0  # 0: it does not record
    launches_per_stack: int = 1  # now: one launch of so many has its stack taken
    wait_threshold_ns: int = 0  # now: shorter waits are kept by chance
    pauses: int = 0
    judged: int = 0  # launches of which it is known whether the device was behind with its work
    behind: int = 0  # of them, those where it was
    ranges: int = 0  # NVTX ranges that have ended
    range_depth: int | None = None  # now: ranges within so many others are left out; None: all are followed


class _Room(threading.local):
    """Where a thread copies slots to, of whichever ring: new memory each time costs more than the copy."""

    words: NDArray[np.uint64] = np.empty((WORDS, 0), np.uint64)

    def of(self, count: int) -> NDArray[np.uint64]:
        if self.words.shape[1] < count:
            self.words = np.empty((WORDS, count), np.uint64)
        return self.words[:, :count]


_room = _Room()


class GpuRing:
    """One ring, mapped. `words()` returns what was written since the last call; `slots()` too, as rows."""

    def __init__(self, fd: int) -> None:
        """Map the ring behind `fd`, an open file description of our own, which is ours from then on.

        GpuprofError: it is not a sound ring; `fd` stays the caller's.
        """
        self._fd = fd
        check_file(fd)
        self._map = mmap.mmap(fd, RING_BYTES, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        self._bytes: NDArray[np.uint8] = np.frombuffer(self._map, np.uint8)
        self._words: NDArray[np.uint64] = self._bytes[:HEADER_BYTES].view(np.uint64)
        self._slots: NDArray[np.uint64] = self._bytes[HEADER_BYTES:].view(np.uint64).reshape(SLOTS, WORDS)
        magic, version, header, slot, slots = _FACTS.unpack_from(self._map, 0)[:5]
        if (magic, version, header, slot, slots) != (MAGIC, VERSION, HEADER_BYTES, SLOT_BYTES, SLOTS):
            self._unmap()
            raise GpuprofError(
                f"the ring of a process has another layout (version {version}, not {VERSION})",
                "Start the process again with the injection library of this gpuprof-tui.",
            )
        self._tail = self._first()
        self._owned = False
        self.overruns = 0

    def lock(self, budget_ppm: int = 0) -> bool:
        """Tell the process that a sampler listens. False when another sampler does already.

        `budget_ppm`: what share of its launching threads' time recording may take, in millionths; 0: any.
        """
        request = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
        try:
            fcntl.fcntl(self._fd, _F_OFD_SETLK, request)
        except (BlockingIOError, PermissionError):
            return False
        # Only now: while another sampler holds the lock, the tail is its own.
        if not self._owned:
            self._tail = self._first()
            self._owned = True
        self._words[_TAIL_AT // 8] = self._tail
        struct.pack_into("<I", self._map, _BUDGET_AT, budget_ppm)  # it looks for the lock 50 ms apart
        return True

    def _first(self) -> int:
        """Where to begin. What lies in a ring that nobody has read yet is read too: clocks and names, which
        a process that was told to expect a sampler writes before it comes, and not again soon.
        """
        head, tail = int(self._words[_HEAD_AT // 8]), int(self._words[_TAIL_AT // 8])
        return 0 if tail == 0 and head <= SLOTS else head

    def hold(self, until_ns: int) -> None:
        """Have the process leave CUPTI alone until then (CLOCK_MONOTONIC ns); to be called while locked."""
        self._words[_HOLD_AT // 8] = until_ns

    def facts(self) -> RingFacts:
        """Return the header as it is now."""
        (
            _,
            _,
            _,
            _,
            _,
            pid,
            epoch,
            state,
            version,
            _,
            devices,
            _,
            launches,
            records,
            dropped,
            cupti_dropped,
            callback_ns,
        ) = _FACTS.unpack_from(self._map, 0)
        raw = self._map[_UUIDS_AT : _UUIDS_AT + 16 * DEVICES]
        uuids = tuple(_uuid(raw[16 * i : 16 * i + 16]) for i in range(min(devices, DEVICES)))
        known = STATES[state] if state < len(STATES) else "unknown"
        costs = _COSTS.unpack_from(self._map, _COSTS_AT)
        stacks, cost_ns, waits, wait_ns, since_ns, per_stack, threshold_ns = costs[:7]
        pauses, judged, behind, ranges, range_depth = costs[7:]
        return RingFacts(
            pid, epoch, known, version, launches, records, dropped, cupti_dropped, uuids,
            self._text(_MESSAGE_AT), self._text(_LIBRARY_AT), callback_ns, cost_ns, stacks, waits, wait_ns,
            since_ns, max(per_stack, 1), threshold_ns, pauses, judged, behind, ranges,
            range_depth - 1 if range_depth else None,
        )  # fmt: skip

    def _text(self, at: int) -> str:
        raw = self._map[at : at + TEXT].split(b"\0", 1)[0]
        return clean(raw) if raw else ""

    def words(self, limit: int = SLOTS) -> NDArray[np.uint64]:
        """Return up to `limit` new slots, oldest first; their room in the ring is free again.

        It is a copy in which column n has the eight words of slot n, each read once: row 0 the first words of
        all slots, and so on (see `field`). It is overwritten by the next call in this thread, of any ring.
        """
        head = int(self._words[_HEAD_AT // 8])
        waiting = (head - self._tail) & 0xFFFF_FFFF_FFFF_FFFF
        if waiting > SLOTS:  # no writer of ours does that: start afresh from where it says it is
            self.overruns += 1
            self._tail = head
            self._words[_TAIL_AT // 8] = head
            return _room.of(0)
        count = min(waiting, limit)
        words = _room.of(count)
        first = self._tail & (SLOTS - 1)
        straight = min(count, SLOTS - first)
        words[:, :straight] = self._slots[first : first + straight].T
        if straight < count:
            words[:, straight:] = self._slots[: count - straight].T
        self._tail = (self._tail + count) & 0xFFFF_FFFF_FFFF_FFFF
        self._words[_TAIL_AT // 8] = self._tail
        return words

    def slots(self, limit: int = SLOTS) -> NDArray[Any]:
        """Return up to `limit` new slots, oldest first, as rows of their own (WORK)."""
        return rows(self.words(limit))

    def release_pages(self) -> None:
        """Unmap what was read, so that it does not count as this process's memory; it stays in the ring."""
        self._map.madvise(mmap.MADV_DONTNEED)

    def close(self) -> None:
        """Unmap, and release the lock: the process detaches at its next launch."""
        if self._fd >= 0:
            self._unmap()
            os.close(self._fd)
            self._fd = -1

    def _unmap(self) -> None:
        del self._bytes, self._words, self._slots
        self._map.close()


def field(word: NDArray[np.uint64], name: str) -> NDArray[Any]:
    """Return a field of WORK of many slots, as a view of that word of each that holds it."""
    dtype, offset = WORK.fields[name][:2]  # type: ignore[index]  # it has fields
    column: NDArray[Any] = word.view(dtype)[offset % 8 // dtype.itemsize :: 8 // dtype.itemsize]
    return column


def rows(words: NDArray[np.uint64]) -> NDArray[Any]:
    """Return the slots of which these are the words, as rows (WORK, a copy)."""
    return words.T.copy(order="C").reshape(-1).view(WORK)


def check_file(fd: int) -> None:
    """GpuprofError unless `fd` is a memfd of the right size that nobody can shrink.

    A mapping that is shrunk under its reader kills it by SIGBUS.
    """
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
        size = os.fstat(fd).st_size
    except OSError as error:
        raise GpuprofError(f"the ring of a process is not a memfd: {error.strerror}") from None
    if seals & SEALS != SEALS or size != RING_BYTES:
        raise GpuprofError(
            f"the ring of a process is not sound (size {size}, seals {seals:#x}); it was not mapped",
            "A process that is not profiled by gpuprof-tui made it, or its library is of another version.",
        )


def _uuid(raw: bytes) -> str | None:
    if not raw.strip(b"\0"):
        return None
    text = raw.hex()
    return f"GPU-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
