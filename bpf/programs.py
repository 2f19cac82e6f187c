"""The loaded BPF programs, as the sampler holds them: starts the loader, attaches, reads records, messages
and counters.

BPF memory, for n possible CPUs: unwind rows 8-64 MB by the machine's memory (4 bytes a row; a process with
PyTorch and CUDA needs 20 MB), mappings 2.6 MB, pages and rules 0.5 MB each, hashes 5 MB, the rings 4-12 MB,
and 61 KB for each CPU.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import socket
import struct
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gpuprof.bpf import syscalls
from gpuprof.bpf.inventory import LAUNCH, SAMPLING, TRACEPOINTS
from gpuprof.bpf.records import MESSAGE, Batch, ControlMessage, MessageReason, batch_of
from gpuprof.bpf.ring import RingReader
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
)
LOAD_TIMEOUT_S = 60.0
_MESSAGE_RING_BYTES = 16 * 4096
LAUNCH_RING_BYTES = 4 << 20  # 40,000 launches whose stacks were seen before
_ROW_BLOCK_BYTES = 64


@dataclass(frozen=True, slots=True)
class TableSizes:
    """Elements of the unwind tables' maps; a row block holds 16 rows."""

    row_blocks: int
    mappings: int = 65536
    pages: int = 65536
    rules: int = 65536
    python_layouts: int = 1024


def choose_sizes(memory_bytes: int) -> TableSizes:
    """Rows for the machine: 1/512 of its memory, as a power of two from 8 to 64 MB."""
    wanted = min(max(memory_bytes // 512, 8 << 20), 64 << 20)
    return TableSizes(row_blocks=(1 << (wanted.bit_length() - 1)) // _ROW_BLOCK_BYTES)


def choose_ring_bytes(cpus: int, hz: int) -> int:
    """A power of two that holds a quarter second of samples of 1 KB."""
    wanted = min(max(cpus * hz * 256, 256 << 10), 8 << 20)
    return 1 << (wanted - 1).bit_length()


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

    def __init__(
        self,
        maps: dict[str, int],
        programs: dict[str, int],
        sizes: TableSizes,
        ring_bytes: int,
        launch_problem: str = "",
    ) -> None:
        self.maps = maps
        self.programs = programs
        self.sizes = sizes
        self.launch_problem = launch_problem  # why there are no programs for launches
        self._launches = RingReader(maps["launches"], LAUNCH_RING_BYTES)
        self._ring = RingReader(maps["samples"], ring_bytes)
        self._messages = RingReader(maps["messages"], _MESSAGE_RING_BYTES)
        self._events: dict[int, int] = {}
        self._tracepoints: list[int] = []
        self._hz = 0
        self._stats: int | None = None

    @classmethod
    def load(cls, hz: int = 99, *, sizes: TableSizes | None = None) -> StackPrograms:
        """Compile and load in a loader process (about a second). Raises GpuprofError with what is missing."""
        sizes = sizes or choose_sizes(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
        ring_bytes = choose_ring_bytes(os.cpu_count() or 1, hz)
        config = {
            "ROW_BLOCKS": sizes.row_blocks,
            "MAPPINGS": sizes.mappings,
            "PAGES": sizes.pages,
            "RULES": sizes.rules,
            "PYTHON_LAYOUTS": sizes.python_layouts,
            "SAMPLE_RING_PAGES": ring_bytes // 4096,
            "LAUNCH_RING_PAGES": LAUNCH_RING_BYTES // 4096,
            "HASH_SEED": int.from_bytes(os.urandom(7), "little"),  # nobody outside can aim at a hash
            "FRAMES_PER_PROGRAM": 32,
            "PYTHON_FRAMES_PER_PROGRAM": 128,
        }
        maps, programs, launch_problem = run_loader(config)
        return cls(maps, programs, sizes, ring_bytes, launch_problem)

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
        self._launches.close()
        if self._stats is not None:
            os.close(self._stats)
            self._stats = None
        for fd in [*self.maps.values(), *self.programs.values()]:
            os.close(fd)
        self.maps.clear()
        self.programs.clear()

    def read(self) -> Batch:
        """All stack records that are ready."""
        words, starts = self._ring.read()
        return batch_of(words, starts)

    def read_launches(self) -> Batch:
        """All records of launches that are ready; see records.py for what follows their Python words."""
        words, starts = self._launches.read()
        return batch_of(words, starts)

    def open_launch_probe(self, pid: int, path: str, offset: int) -> int:
        """Run the launch program whenever process `pid` executes the instruction at a file offset; the
        returned descriptor ends it when closed.

        GpuprofError without the program, or when the kernel refuses.
        """
        program = self.programs.get(LAUNCH)
        if program is None:
            raise GpuprofError(self.launch_problem or "the programs were closed", "", EXIT_UNAVAILABLE)
        try:
            return syscalls.open_uprobe(pid, path, offset, program)
        except OSError as error:
            raise GpuprofError(f"no uprobe: {error.strerror or error}", "", EXIT_UNAVAILABLE) from None

    def resend_stack(self, pid: int, stack_hash: int) -> None:
        """Have the frames of a stack sent again with its next launch."""
        with contextlib.suppress(OSError):
            syscalls.map_delete(self.maps["seen_stacks"], struct.pack("<QII", stack_hash, pid, 0))

    def messages(self) -> list[ControlMessage]:
        """All control messages that are ready, oldest first."""
        words, starts = self._messages.read()
        found = []
        for start in starts.tolist():
            pid, reason, address = MESSAGE.unpack(words[start : start + 2].tobytes())
            found.append(ControlMessage(pid, MessageReason(reason), address))
        return found

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
        return sum(
            syscalls.program_run_time(self.programs[name])[0]
            for name in (SAMPLING, *TRACEPOINTS, LAUNCH)
            if name in self.programs
        )

    def runs(self) -> int:
        """How often the sampling program ran since start(); 0 where the kernel does not count."""
        return syscalls.program_run_time(self.programs[SAMPLING])[1]


_CPU_IS_GONE = {errno.ENXIO, errno.ENODEV, errno.EINVAL}  # it went offline between the list and the call


def run_loader(config: dict[str, int]) -> tuple[dict[str, int], dict[str, int], str]:
    """Run the loader process; (maps, programs) by name with descriptors of ours, and why launches have none.
    Raises GpuprofError.
    """
    body, descriptors, status = _ask_loader(config)
    message: dict[str, Any] = json.loads(body) if body else {"ok": False}
    names = [*message.get("maps", []), *message.get("programs", [])]
    if not message["ok"] or len(names) != len(descriptors):
        for fd in descriptors:
            os.close(fd)
        text = message.get("message", f"the BPF loader ended with status {status} and no answer")
        raise GpuprofError(text, message.get("hint", ""), message.get("exit_code", EXIT_UNAVAILABLE))
    for fd in descriptors:
        os.set_inheritable(fd, False)
    by_name = dict(zip(names, descriptors, strict=True))
    maps = {name: by_name[name] for name in message["maps"]}
    programs = {name: by_name[name] for name in message["programs"]}
    return maps, programs, str(message.get("launch_problem", ""))


def _ask_loader(config: dict[str, int]) -> tuple[bytes, list[int], int | None]:
    """(the loader's one message, descriptors, exit status when it sent none)."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    # -I: neither the working directory nor PYTHON* variables decide what a privileged process imports.
    command = [sys.executable, "-I", "-m", "gpuprof.bpf.loader", "--fd", str(theirs.fileno())]
    with ours, theirs:
        process = subprocess.Popen(
            [*command, "--config", json.dumps(config)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
        )
        theirs.close()
        try:
            readable, _, _ = select.select([ours], [], [], LOAD_TIMEOUT_S)
            if not readable:
                raise GpuprofError("the BPF loader did not answer in time", "", EXIT_UNAVAILABLE)
            body, descriptors, _, _ = socket.recv_fds(ours, 1 << 16, 64)
            return body, descriptors, process.wait(LOAD_TIMEOUT_S)
        except OSError as error:
            raise GpuprofError(f"the BPF loader did not answer: {error}", "", EXIT_UNAVAILABLE) from None
        finally:
            process.kill()
            process.wait()
