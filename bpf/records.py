"""What the BPF programs send: stack records and control messages, as layout.bpf.h lays them out.

A stack record is a header of `header_words` 8-byte words (_HEADER below), then n_kernel kernel addresses,
n_user user words and n_python pairs of words, innermost frame first.

- A kernel word is a return address; the first one is exact.
- A user word: the low 47 bits are the program counter (the first one exact, the others return addresses:
  subtract 1 to look them up, unless the frame before is where a signal handler returns to); bit 47 says that
  the frame was found by scanning the stack, and is a guess (only in records with SCANNED); the high 16 bits
  are how far the frame's stack pointer is above that of the frame before, in 8-byte words (0xffff: that far
  or farther, or below). The first frame's stack pointer is `sp0`.
- A Python pair: word 0 has the address of the code object in its low 48 bits and the frame's owner byte in
  its high 8 bits. Owner: 0 up to 3.10, `is_entry` in 3.11, `owner` from 3.12 on, where 3 marks a shim frame,
  which has no code: the low 48 bits are then its own address, which lies on the C stack inside the native
  frame that entered the interpreter. Word 1 has the instruction offset in its low 32 bits (signed; code units
  from the first bytecode, up to 3.10 f_lasti) and co_firstlineno in the 24 bits above.
- A launch (family 1) has two more words: the hash of all the words before, with what the header says of them,
  and the weight. Where the frames of that hash went out a few seconds ago for the same process, they are left
  out: n_user is 0, which it never is otherwise. `time_ns` is when the API call was entered, `extra` the
  correlation id, with the attach epoch in its high 32 bits.
- A stack of a wait or of a waker (family 2) has its hash in `extra`; waits (family 3): wait_programs.py.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuprof.bpf.ring import RingReader

HEADER = np.dtype(
    [
        ("time_ns", "<u8"),
        ("pid", "<u4"),
        ("tid", "<u4"),
        ("cpu", "<u2"),
        ("n_kernel", "<u2"),
        ("n_user", "<u2"),
        ("n_python", "<u2"),
        ("stop", "u1"),
        ("flags", "u1"),
        ("family", "u1"),
        ("header_words", "u1"),
        ("uid", "<u4"),
        ("comm", "S16"),
        ("sp0", "<u8"),
        ("start_ns", "<u8"),
        ("extra", "<u8"),
    ]
)
MESSAGE = struct.Struct("<IIQ")
_PART_WORDS, _MAX_PARTS = 144 << 10, 16  # of 12,288 launches: malloc has room for the headers
_HEADER_WORDS = HEADER.itemsize // 8
FAMILY_CPU, FAMILY_LAUNCH, FAMILY_WAIT_STACK, FAMILY_WAIT = 0, 1, 2, 3


class StopReason(IntEnum):
    """Why a user stack ends where it ends; ROOT is a complete one."""

    ROOT = 0
    NO_MAPPING = 1
    NO_RULE = 2
    UNREADABLE = 3
    NO_PROGRESS = 4
    TOO_DEEP = 5
    NO_TABLES = 6
    KERNEL_THREAD = 7
    NOT_64_BIT = 8
    INTERNAL = 9

    @property
    def words(self) -> str:
        """For a person, as in "[truncated: ...]"."""
        return _STOP_WORDS[self]


_STOP_WORDS = {
    StopReason.ROOT: "complete",
    StopReason.NO_MAPPING: "code outside of the known mappings",
    StopReason.NO_RULE: "code without unwind rules",
    StopReason.UNREADABLE: "stack memory not readable",
    StopReason.NO_PROGRESS: "unwind rules lead nowhere",
    StopReason.TOO_DEEP: "more than 128 native frames",
    StopReason.NO_TABLES: "process not known yet",
    StopReason.KERNEL_THREAD: "kernel thread",
    StopReason.NOT_64_BIT: "32-bit process",
    StopReason.INTERNAL: "walk failed",
}


class RecordFlag(IntFlag):
    """What a consumer should know about how the stack was found."""

    SCANNED = 1  # a return address was found by scanning the stack
    PYTHON_TRUNCATED = 2  # the Python chain did not reach its outermost frame
    NO_THREAD_STATE = 4  # the process runs Python, but this thread has no thread state there
    FRAME_POINTER = 8  # a frame without unwind rule was passed by its frame pointer
    KERNEL_MAPPING = 16  # mappings were found in the kernel, not in published tables
    PYTHON_NOT_FOUND = 32  # the Python thread states of the thread could not be reached


class MessageReason(IntEnum):
    """Control messages. NEW_PROCESS, UNKNOWN_MAPPING and THREAD_STATES come at most ten times a second per
    process.
    """

    NEW_PROCESS = 1  # a sample hit a process without tables
    UNKNOWN_MAPPING = 2  # `address` lies in no mapping that was published
    NO_RULE = 3
    EXIT = 4  # the whole process; only for processes that were published or asked for
    EXEC = 5  # the same, at time `address`; its tables are already dropped in the kernel
    FORK = 6  # `pid` is a new process that inherited the tables of process `address`
    NEW_BINARY = 7  # `pid` executes a file whose tables are not there
    MAPPING = 8  # see messages.py
    WHO = 9  # the same
    CODE = 10  # the same
    THREAD_STATES = 11  # a thread's states lie too far back in the lists of its process


@dataclass(frozen=True, slots=True)
class ControlMessage:
    """One message of the kernel side to whoever publishes the tables."""

    pid: int
    reason: MessageReason
    address: int


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """n stack records as columns; `first` is the index in `words` of each record's first word after the
    header.
    """

    time_ns: NDArray[np.uint64]
    pid: NDArray[np.uint32]
    tid: NDArray[np.uint32]
    cpu: NDArray[np.uint16]
    n_kernel: NDArray[np.uint16]
    n_user: NDArray[np.uint16]
    n_python: NDArray[np.uint16]
    stop: NDArray[np.uint8]
    flags: NDArray[np.uint8]
    family: NDArray[np.uint8]
    uid: NDArray[np.uint32]
    comm: NDArray[np.bytes_]
    sp0: NDArray[np.uint64]
    start_ns: NDArray[
        np.uint64
    ]  # process start, CLOCK_BOOTTIME ns (/proc/PID/stat has the same in 10 ms ticks)
    extra: NDArray[np.uint64]  # CPU samples: nanoseconds that the walk took; launches: see above
    first: NDArray[np.int64]
    words: NDArray[np.uint64]

    def __len__(self) -> int:
        return len(self.first)


def batch_of(words: NDArray[np.uint64], starts: NDArray[np.int64]) -> Batch:
    """Columns of the records that begin at these indices of `words` (copied out of the ring)."""
    if not len(starts):
        return _NO_RECORDS  # most reads of a ring find nothing
    header = np.empty((_HEADER_WORDS, len(starts)), np.uint64)
    for n, row in enumerate(header):  # word by word: a row of words for each record would be copied twice
        row[:] = words.take(starts + n)
    dtype, offset = HEADER.fields["header_words"][:2]  # type: ignore[index]  # it has fields
    header_words = _field(header[offset // 8], dtype, offset)
    return _columns(header, starts + header_words.astype(np.int64), words)


def launch_batches(ring: RingReader) -> list[Batch]:
    """The records of launches that are ready in their ring, in parts that the cache holds."""
    parts: list[Batch] = []
    while len(parts) < _MAX_PARTS:  # it may be filled as quickly as it is read
        part = ring.take(_launches_of, _PART_WORDS)
        if part is None:
            break
        parts.append(part)
    return parts


def _launches_of(words: NDArray[np.uint64], starts: NDArray[np.int64]) -> Batch:
    """A batch of launches, which are in their ring. Where all stacks were seen before, as nearly always, it
    gets the two words after each header, and no others.
    """
    count, step = len(starts), 1 + _HEADER_WORDS + 2  # with the word of the ring itself
    if len(words) == count * step and (starts[1:] - starts[:-1] == step).all():
        records = words.reshape(count, step)
        header = records[:, 1 : 1 + _HEADER_WORDS].T.copy()
        batch = _columns(header, 2 * np.arange(count), records[:, 1 + _HEADER_WORDS :].reshape(-1))
        if not (batch.n_kernel.any() or batch.n_user.any() or batch.n_python.any()):
            return batch
    return batch_of(words.copy(), starts)


def _columns(header: NDArray[np.uint64], first: NDArray[np.int64], words: NDArray[np.uint64]) -> Batch:
    """A batch of records; row n of `header` has the nth words of all of their headers."""
    columns: dict[str, NDArray[Any]] = {}
    for name, (dtype, offset, *_) in (HEADER.fields or {}).items():
        of = header[offset // 8 : -(-(offset + dtype.itemsize) // 8)]
        if name == "header_words":
            continue
        if len(of) > 1:
            columns[name] = np.stack(list(of), axis=1).view(dtype)[:, 0]
        else:
            columns[name] = _field(of[0], dtype, offset)
    return Batch(first=first, words=words, **columns)


def _field(word: NDArray[np.uint64], dtype: np.dtype[Any], offset: int) -> NDArray[Any]:
    """A field of many records: a view of the word of each that holds it."""
    field: NDArray[Any] = word.view(dtype)[offset % 8 // dtype.itemsize :: 8 // dtype.itemsize]
    return field


_NO_RECORDS = _columns(np.zeros((_HEADER_WORDS, 0), np.uint64), np.zeros(0, np.int64), np.zeros(0, np.uint64))
