"""The BPF programs of waits as the sampler holds them: whom to track, and what was sent.

Records come from a ring of their own, see records.py for stacks (family WAIT_STACK, whose `extra` is the hash
of the stack) and WAIT below for waits (family WAIT). A wait is at hand only at its end; running_waits() shows
those that last.
"""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from gpuprof.bpf import syscalls
from gpuprof.bpf.inventory import WAIT_TRACEPOINTS
from gpuprof.bpf.records import FAMILY_WAIT, FAMILY_WAIT_STACK, HEADER, Batch, batch_of
from gpuprof.bpf.ring import RingReader
from gpuprof.bpf.sizes import WAIT_RING_BYTES
from gpuprof.snapshots.errors import EXIT_UNAVAILABLE, GpuprofError

MAX_THRESHOLD_NS = (1 << 32) - 1
TRACK_SELF, TRACK_CHILDREN = 1, 2
MAX_TRACKED = 16384
MAX_THREADS = 16384
MAX_EPOCH = (1 << 32) - 1
MAX_EARLIER = 4000  # of the 4096 that the map holds
UNWALKED_NS = 100_000_000  # a wait so long is sent though its stack was not taken; of layout.bpf.h
ON_INTERRUPT_STACK, NOT_IN_SYSCALL, TIME_WAS_UP, COUNTS_TWICE = 1, 2, 4, 8  # of waker_flags

# A wait; struct wait of layout.bpf.h up to `rate`. In its header time_ns is the switch-in, extra the
# switch-out.
_WORDS = [
    ("woken_ns", "<u8"),  # 0: not woken
    ("bar_ns", "<u8"),
    ("threshold_ns", "<u8"),
    ("stack", "<u8"),  # hash of the stack at the switch-out; 0: not known
    ("waker_stack", "<u8"),
    ("waker_start_ns", "<u8"),  # when the waker's process started, CLOCK_BOOTTIME
    ("waker_tid", "<u4"),
    ("waker_pid", "<u4"),  # 0: not known, or an idle CPU
    ("waker_comm", "S16"),
    ("state", "<u4"),  # of the task; 0: ready to run
    ("weight", "<u4"),  # it stands for so many that are shorter than UNWALKED_NS; 0: its stack was not taken
    ("syscall", "<i4"),  # -1: none
    ("waker_flags", "<u4"),
]
WAIT_RECORD = np.dtype([(name, *rest) for name, *rest in HEADER.descr] + _WORDS)
_WAIT_STATE = np.dtype(
    [
        *WAIT_RECORD.descr,
        ("rate", "<u8", 3),
        ("task", "<u8"),
        ("out_ns_again", "<u8"),
        ("run_ns", "<u8"),
        ("due_ns", "<u8"),
        ("epoch", "<u4"),
        ("choice", "<u4", 3),
    ]
)
MAY_HAVE = 1 << 13  # elements of `may_be_tracked`, by the low bits of a pid
_MAPS = (
    "tracked", "waits", "earlier_waits", "wait_settings", "wait_thresholds", "seen_waits", "may_be_tracked",
)  # fmt: skip
_FAMILY_WORD = 3  # of a record's header: stop, flags, family
_SETTINGS = struct.Struct("<QIIII")


class WaitPrograms:
    """The family's maps and programs; the descriptors stay the caller's. From any thread, but one at a time
    reads.

    `programs` waits for the family and gives the descriptors of its programs, or raises GpuprofError.
    """

    def __init__(self, maps: Mapping[str, int], programs: Callable[[], Mapping[str, int]]) -> None:
        self._maps = {name: maps[name] for name in _MAPS}
        self._programs = programs
        self._ring = RingReader(maps["wait_records"], WAIT_RING_BYTES)
        self._lock = threading.Lock()
        self._attached: list[int] = []
        self._settings = 0, 0, 0  # of _SETTINGS the first
        self._epoch = 1
        self._thresholds: dict[int, int] = {}  # of processes that have another than that of the settings
        self._earlier: set[int] = set()  # threads of which an earlier wait was put in
        self._closed = False
        self.begun = False  # there may be something to read

    def start(self, threshold_ns: int, *, track_all: bool, own_pid: int) -> None:
        """Begin to follow the waits of tracked processes, or of all but `own_pid`. GpuprofError when it
        cannot be.

        `threshold_ns`: shorter waits are sampled.
        """
        if not 0 <= threshold_ns <= MAX_THRESHOLD_NS:
            raise ValueError(f"no threshold for waits: {threshold_ns} ns")
        programs = self._programs()
        with self._lock:
            if self._closed:
                raise GpuprofError("the programs were closed", "", EXIT_UNAVAILABLE)
            self._settings = threshold_ns, int(track_all), own_pid
            self._epoch = self._epoch % MAX_EPOCH + 1
            self._earlier = set()
            self.begun = True
            try:
                self._write_thresholds({})
                self._write_settings()
                if not self._attached:
                    # What was left when waits were followed before: nobody saw how it went on.
                    for task in syscalls.map_keys(self._maps["waits"], 8, MAX_THREADS):
                        syscalls.map_delete(self._maps["waits"], task)
                    for name, tracepoint in WAIT_TRACEPOINTS.items():
                        self._attached.append(syscalls.raw_tracepoint_open(tracepoint, programs[name]))
            except OSError as error:
                self._detach()
                raise GpuprofError(
                    f"waits cannot be followed: {error.strerror or error}", "", EXIT_UNAVAILABLE
                ) from None

    @property
    def threshold_ns(self) -> int:
        """Waits that are shorter are sampled, those of a process with a threshold of its own excepted."""
        return self._settings[0]

    @property
    def thresholds(self) -> Mapping[int, int]:
        """The thresholds of processes that have one of their own, in ns."""
        return self._thresholds

    def set_thresholds(self, others_ns: int, of: Mapping[int, int]) -> None:
        """Sample what is shorter from now on, of the processes `of` and of all others; waits that have begun
        keep the threshold that they began under.
        """
        of = {pid: min(threshold_ns, MAX_THRESHOLD_NS) for pid, threshold_ns in of.items()}
        others_ns = min(others_ns, MAX_THRESHOLD_NS)
        with self._lock, suppress(OSError):
            if not self._closed and (others_ns != self._settings[0] or of != self._thresholds):
                self._write_thresholds(of)
                self._settings = others_ns, *self._settings[1:]
                # The kernel side keeps the threshold of each thread until there is another epoch.
                self._epoch = self._epoch % MAX_EPOCH + 1
                self._write_settings()

    def _write_thresholds(self, of: Mapping[int, int]) -> None:
        written, wait_thresholds = dict(self._thresholds), self._maps["wait_thresholds"]
        for pid in self._thresholds.keys() - of.keys():
            syscalls.map_delete(wait_thresholds, struct.pack("<I", pid))
            del written[pid]
        for pid, threshold_ns in of.items():
            if written.get(pid) != threshold_ns:
                with suppress(OSError):  # no room: it has that of the others
                    syscalls.map_update(
                        wait_thresholds, struct.pack("<I", pid), struct.pack("<Q", threshold_ns)
                    )
            written[pid] = threshold_ns
        self._thresholds = written

    def _write_settings(self) -> None:
        values = _SETTINGS.pack(*self._settings, bool(self._earlier), self._epoch)
        syscalls.map_update(self._maps["wait_settings"], bytes(4), values)

    @property
    def running(self) -> bool:
        """Whether waits are followed."""
        return bool(self._attached)

    def stop(self) -> None:
        """Follow no more waits; what was sent can still be read."""
        with self._lock:
            self._detach()

    def _detach(self) -> None:
        for fd in self._attached:
            os.close(fd)
        self._attached = []
        self._drop_earlier(self._earlier)

    def close(self) -> None:
        """Stop, and let go of the ring."""
        with self._lock:
            self._detach()
            if not self._closed:
                self._closed = True
                self._ring.close()

    def track(self, pid: int, how: int = TRACK_SELF | TRACK_CHILDREN) -> bool:
        """Follow the waits of a process, of the children that it has from now on, or both; False when it
        cannot be.
        """
        with self._lock, suppress(OSError):
            if not self._closed:
                may_be = struct.pack("<I", pid % MAY_HAVE)  # first: without it nobody looks for the process
                syscalls.map_update(self._maps["may_be_tracked"], may_be, struct.pack("<Q", 1))
                syscalls.map_update(self._maps["tracked"], struct.pack("<I", pid), struct.pack("<I", how))
                return True
        return False

    def how_tracked(self, pid: int) -> int:
        """What is followed of a process now, TRACK_*; 0: nothing."""
        with self._lock, suppress(OSError):
            if not self._closed:
                found = syscalls.map_lookup(self._maps["tracked"], struct.pack("<I", pid), 4)
                return int.from_bytes(found or b"", "little")
        return 0

    def forget(self, pid: int) -> None:
        """Follow it no longer."""
        with self._lock, suppress(OSError):
            if not self._closed:
                syscalls.map_delete(self._maps["tracked"], struct.pack("<I", pid))

    def tracked(self) -> set[int]:
        """The processes that are tracked now: those that were named, and their children."""
        with self._lock, suppress(OSError):
            if not self._closed:
                keys = syscalls.map_keys(self._maps["tracked"], 4, MAX_TRACKED)
                return {int.from_bytes(key, "little") for key in keys}
        return set()

    def forget_task(self, task: int) -> None:
        """Drop the wait of a thread that is gone; `task` as of running_waits()."""
        with self._lock, suppress(OSError):
            if not self._closed:
                syscalls.map_delete(self._maps["waits"], struct.pack("<Q", task))

    def add_earlier(self, wait: NDArray[np.void]) -> bool:
        """Follow a wait (one WAIT_RECORD without an end) that had begun when its process was tracked; False
        when it cannot be. Its switch-in, and what it waits for next, are seen by the kernel side.
        """
        state = np.zeros(1, _WAIT_STATE)
        for name in WAIT_RECORD.names or ():
            state[name] = wait[name]
        state["out_ns_again"] = wait["extra"]
        tid = int(wait["tid"][0])
        with self._lock, suppress(OSError):
            if not self._closed and self._attached and len(self._earlier) < MAX_EARLIER:
                syscalls.map_update(self._maps["earlier_waits"], struct.pack("<I", tid), state.tobytes())
                self._earlier.add(tid)
                if len(self._earlier) == 1:
                    self._write_settings()
                return True
        return False

    def drop_earlier(self, tids: Collection[int]) -> None:
        """Follow the earlier waits of these threads no longer, where they still last."""
        with self._lock:
            if not self._closed:
                self._drop_earlier(tids)

    def _drop_earlier(self, tids: Collection[int]) -> None:
        for tid in list(tids):
            with suppress(OSError):
                syscalls.map_delete(self._maps["earlier_waits"], struct.pack("<I", tid))
        self._keep_earlier(self._earlier - set(tids))

    def _keep_earlier(self, left: set[int]) -> None:
        """When none is left, switches need not look for them."""
        none_left = self._earlier and not left
        self._earlier = left
        if none_left:
            with suppress(OSError):
                self._write_settings()

    def resend_stack(self, pid: int, stack_hash: int) -> None:
        """Have the frames of a stack sent again when it is next seen."""
        with self._lock, suppress(OSError):
            if not self._closed:
                syscalls.map_delete(self._maps["seen_waits"], struct.pack("<QII", stack_hash, pid, 0))

    def read(self) -> tuple[Batch, NDArray[np.void]]:
        """(stacks, waits) that are ready. A wait's stacks come before it or with it."""
        with self._lock:
            if self._closed:
                return batch_of(np.zeros(0, np.uint64), np.zeros(0, np.int64)), np.zeros(0, WAIT_RECORD)
            words, starts = self._ring.read()
        family = (words[starts + _FAMILY_WORD] >> np.uint64(16) & np.uint64(0xFF)).astype(np.uint8)
        stacks = batch_of(words, starts[family == FAMILY_WAIT_STACK])
        at = starts[family == FAMILY_WAIT][:, None] + np.arange(WAIT_RECORD.itemsize // 8)
        waits = (
            np.ascontiguousarray(words[at]).view(WAIT_RECORD)[:, 0] if len(at) else np.zeros(0, WAIT_RECORD)
        )
        return stacks, waits

    def running_waits(self) -> tuple[NDArray[np.void], NDArray[np.uint64]]:
        """(the waits that last at this moment, as records without the time of their end; the tasks that
        wait; 0 where it is not known yet).
        """
        values = earlier = b""
        with self._lock, suppress(OSError):  # before 5.6: such a wait is seen when it ends
            if self._attached:
                if self._earlier:  # first: one that becomes like the others meanwhile comes twice, not never
                    size = _WAIT_STATE.itemsize
                    earlier = syscalls.map_values(self._maps["earlier_waits"], 4, size, MAX_EARLIER)
                    found = np.frombuffer(earlier, _WAIT_STATE)["tid"]
                    self._keep_earlier(self._earlier & set(found.tolist()))
                values = syscalls.map_values(self._maps["waits"], 8, _WAIT_STATE.itemsize, MAX_THREADS)
        states = np.frombuffer(values + earlier, _WAIT_STATE)
        states = states[(states["extra"] > 0) & (states["extra"] == states["out_ns_again"])]
        _, first = np.unique(states[["tid", "extra"]], return_index=True)
        states = states[np.sort(first)]
        found = np.zeros(len(states), WAIT_RECORD)
        for name in WAIT_RECORD.names or ():
            found[name] = states[name]
        return found, states["task"].copy()
