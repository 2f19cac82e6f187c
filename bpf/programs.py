"""The loaded BPF programs, as the sampler holds them: attaches, reads records, messages and counters.

BPF memory, for n possible CPUs: unwind rows 8-64 MB by the machine's memory (4 bytes a row; a process with
PyTorch and CUDA needs 20 MB), mappings 2.6 MB, pages and rules 0.5 MB each, hashes 12 MB, the rings 8-16 MB,
and 70 KB for each CPU.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gpuprof.bpf import syscalls
from gpuprof.bpf.inventory import FAMILIES, LAUNCH, SAMPLING, TRACEPOINTS
from gpuprof.bpf.messages import Message, parse_message
from gpuprof.bpf.program_source import LoadedPrograms, load_programs
from gpuprof.bpf.records import Batch, batch_of, launch_batches
from gpuprof.bpf.ring import RingReader
from gpuprof.bpf.sizes import LAUNCH_RING_BYTES, PAGE_BYTES, TableSizes, config_of, sizes_of
from gpuprof.bpf.wait_programs import WaitPrograms
from gpuprof.snapshots.errors import EXIT_UNAVAILABLE, GpuprofError

COUNTERS = (
    "ring_full",
    "conflicts",
    "tail_call_failed",
    "messages_lost",
    "scanned",
    "scan_failed",
    "thread_walks",
    "frame_pointer_steps",
    "launch_ring_full",
    "launch_conflicts",
    "launch_repeats",
    "wait_ring_full",
    "wait_conflicts",
    "waits_not_chosen",
    "wait_threads_full",
    "tracked_full",
    "wait_wakes_missed",
    "wait_ends_missed",
)
_MESSAGE_RING_BYTES = 64 * 4096
_CODE_RING_BYTES = 128 * 4096
MAX_MESSAGE_BYTES = 1232
_GRAPH_CALLS = struct.Struct("<QQQq")  # struct graph_calls


class GraphCalls(NamedTuple):
    """Calls of a process that make or destroy CUDA graphs; zeros: none was seen."""

    last_ns: int  # CLOCK_MONOTONIC, as the next
    captured_ns: int  # the last that began or ended a capture
    number: int
    captures: int  # that go on


def online_cpus(text: str) -> list[int]:
    """The CPUs of /sys/devices/system/cpu/online, e.g. "0-3,8"."""
    cpus: list[int] = []
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first.isdigit():
            cpus += range(int(first), int(last or first) + 1)
    return cpus


class StackPrograms:
    """Descriptors of the programs and maps. Not thread-safe: one thread reads; start, stop and close exclude
    each other.
    """

    def __init__(self, loaded: LoadedPrograms) -> None:
        maps, config = loaded.maps, loaded.config
        self.maps = maps
        self.programs = loaded.programs  # of families that are loaded
        self.sizes = sizes_of(config)
        self.origin = loaded.origin  # "compiled", or "kept" when they came from the cache
        self._loaded = loaded
        self._launches = RingReader(maps["launches"], LAUNCH_RING_BYTES)
        self.waits = WaitPrograms(maps, self._wait_programs)
        self._ring = RingReader(maps["samples"], config["SAMPLE_RING_PAGES"] * PAGE_BYTES)
        self._messages = RingReader(maps["messages"], _MESSAGE_RING_BYTES)
        self._codes = RingReader(maps["codes"], _CODE_RING_BYTES)
        self._events: dict[int, int] = {}
        self._tracepoints: list[int] = []
        self._hz = 0
        self._stats: int | None = None

    @classmethod
    def load(cls, hz: int = 99, *, sizes: TableSizes | None = None) -> StackPrograms:
        """Load what is kept from an earlier run (0.2 s), else compile it (about a second more). Raises
        GpuprofError with what is missing. Families that are not required are still on their way, see
        need().
        """
        return cls.of(load_programs(config_of(hz, sizes)))

    @classmethod
    def of(cls, loaded: LoadedPrograms) -> StackPrograms:
        """The same of programs that are loaded already, which become its own. Raises GpuprofError."""
        try:
            return cls(loaded)
        except OSError as error:
            loaded.close()
            raise GpuprofError(f"no ring of the BPF programs: {error}", "", EXIT_UNAVAILABLE) from None

    def need(self, family: str) -> None:
        """Wait until the programs of a family are loaded (at most some tenths of a second). GpuprofError
        where the kernel refuses them.
        """
        self._loaded.wait(family)

    def _wait_programs(self) -> dict[str, int]:
        self.need("wait")
        return self.programs

    @property
    def message_fd(self) -> int:
        """Readable (poll) when a control message is waiting."""
        return self.maps["messages"]

    def start(self, hz: int) -> None:
        """Follow processes, and sample every CPU `hz` times a second. GpuprofError when the kernel does not
        let us.
        """
        self._hz = hz
        try:
            if not self._tracepoints:
                self._tracepoints = [
                    syscalls.raw_tracepoint_open(tracepoint, self.programs[name])
                    for name, tracepoint in TRACEPOINTS.items()
                ]
            self._open_cpus()
        except OSError as error:
            self.stop()
            raise GpuprofError(
                f"CPU sampling cannot start: {error.strerror or error}", "", EXIT_UNAVAILABLE
            ) from None
        if not self._events:
            self.stop()
            raise GpuprofError("CPU sampling cannot start: no CPU took the event", "", EXIT_UNAVAILABLE)
        if self._stats is None:
            with contextlib.suppress(
                OSError
            ):  # before 5.8, or the limit of such descriptors: the cost is then not shown
                self._stats = syscalls.enable_run_time_stats()

    def follow_cpus(self) -> None:
        """Sample CPUs that came online since, and let go of those that went; call it now and then."""
        with contextlib.suppress(OSError):  # tried again at the next call
            self._open_cpus()

    def _open_cpus(self) -> None:
        try:
            online = set(online_cpus(Path("/sys/devices/system/cpu/online").read_text()))
        except OSError:
            online = set(range(os.cpu_count() or 1))
        for cpu in self._events.keys() - online:
            os.close(self._events.pop(cpu))
        for cpu in sorted(online - self._events.keys()):
            try:
                self._events[cpu] = syscalls.open_cpu_clock(cpu, self._hz, self.programs[SAMPLING])
            except OSError as error:
                if error.errno not in _CPU_IS_GONE:
                    raise

    def stop(self) -> None:
        """Stop sampling; records that are in the ring can still be read."""
        for fd in [*self._events.values(), *self._tracepoints]:
            os.close(fd)
        self._events.clear()
        self._tracepoints = []

    def close(self) -> None:
        """Stop, and give everything back to the kernel."""
        self.stop()
        self._ring.close()
        self._messages.close()
        self._codes.close()
        self._launches.close()
        self.waits.close()
        if self._stats is not None:
            os.close(self._stats)
            self._stats = None
        self._loaded.close()

    def read(self) -> Batch:
        """All stack records that are ready."""
        words, starts = self._ring.read()
        return batch_of(words, starts)

    def read_launches(self) -> list[Batch]:
        """The records of launches that are ready, in parts; see records.py for what follows their Python
        words.
        """
        return launch_batches(self._launches)

    def open_launch_probe(self, pid: int, path: str, offset: int) -> int:
        """Run the launch program whenever process `pid` executes the instruction at a file offset; the
        returned descriptor ends it when closed.

        GpuprofError without the program, or when the kernel refuses.
        """
        self.need("launch")
        return self._open_uprobe(pid, path, offset, LAUNCH)

    def open_graph_probe(self, pid: int, path: str, offset: int, program: str) -> int:
        """Run a program of GRAPHS whenever process `pid` executes the instruction at a file offset; the
        returned descriptor ends it when closed. GpuprofError likewise.
        """
        self.need("graphs")
        return self._open_uprobe(pid, path, offset, program)

    def _open_uprobe(self, pid: int, path: str, offset: int, program: str) -> int:
        try:
            return syscalls.open_uprobe(pid, path, offset, self.programs[program])
        except OSError as error:
            raise GpuprofError(f"no uprobe: {error.strerror or error}", "", EXIT_UNAVAILABLE) from None

    def graph_calls(self, pid: int) -> GraphCalls:
        """What these probes have seen of a process. GpuprofError where that is not known any more."""
        try:
            found = syscalls.map_lookup(
                self.maps["graph_calls"], pid.to_bytes(4, "little"), _GRAPH_CALLS.size
            )
        except (KeyError, OSError) as error:  # KeyError: closed
            raise GpuprofError(f"no counts of graphs: {error}", "", EXIT_UNAVAILABLE) from None
        return GraphCalls(*_GRAPH_CALLS.unpack(found or bytes(_GRAPH_CALLS.size)))

    def forget_graph_calls(self, pid: int) -> None:
        """Begin to count anew."""
        with contextlib.suppress(KeyError, OSError):
            syscalls.map_delete(self.maps["graph_calls"], pid.to_bytes(4, "little"))

    def resend_stack(self, pid: int, stack_hash: int) -> None:
        """Have the frames of a stack sent again with its next launch."""
        with contextlib.suppress(OSError):
            syscalls.map_delete(self.maps["seen_stacks"], struct.pack("<QII", stack_hash, pid, 0))

    def messages(self) -> list[Message]:
        """All messages that are ready, oldest first; code after what introduces its process."""
        found: list[list[Message]] = []
        for ring in (self._codes, self._messages):  # the introduction was sent before the code
            words, starts = ring.read()
            raw = memoryview(words.tobytes())
            found.append(
                [parse_message(raw[8 * start : 8 * start + MAX_MESSAGE_BYTES]) for start in starts.tolist()]
            )
        codes, messages = found
        return messages + codes

    def counters(self) -> dict[str, int]:
        """Losses and rare events since the programs were loaded."""
        values = [
            syscalls.map_lookup(self.maps["counters"], index.to_bytes(4, "little"), 8) or bytes(8)
            for index in range(len(COUNTERS))
        ]
        return dict(zip(COUNTERS, np.frombuffer(b"".join(values), np.uint64).tolist(), strict=True))

    def run_ns(self) -> int | None:
        """Time spent in all these programs since start(), as the kernel counts it; None where it does not."""
        if self._stats is None:
            return None
        attached = [name for family in FAMILIES for name in (family.entry, *family.others)]
        programs = self.programs
        return sum(syscalls.program_run_time(programs[name])[0] for name in attached if name in programs)

    def runs(self) -> int:
        """How often the sampling program ran since start(); 0 where the kernel does not count."""
        return syscalls.program_run_time(self.programs[SAMPLING])[1]


_CPU_IS_GONE = {errno.ENXIO, errno.ENODEV, errno.EINVAL}  # it went offline between the list and the call
