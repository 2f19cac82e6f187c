"""Whether a process makes or destroys CUDA graphs at the moment: while it does, the library in it must not
take CUPTI into use.

CUPTI (13.0) crashes now and then where it is subscribed to, or finalized, while another thread makes or
destroys a graph (tests/device/attach_races.py). Once it is subscribed the injection library knows of such
calls by itself; before, they are seen by uprobes on functions of the process's own libcuda, which are there
only for as long as the library has no callbacks.
"""

from __future__ import annotations

import os
import queue
import re
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache

from gpuprof.bpf.inventory import GRAPH_CALL, GRAPH_CAPTURE_BEGINS, GRAPH_CAPTURE_ENDS
from gpuprof.sampler.elf import ElfError, ElfFile
from gpuprof.sampler.launch_source import LaunchSource
from gpuprof.sampler.maps import map_file_path, open_mapping, read_maps
from gpuprof.snapshots.errors import GpuprofError

_DRIVER = re.compile(r"libcuda\.so(\.|$)")
# Few, since the kernel takes up to a tenth of a second to take one away. Every graph passes one of these when
# it becomes ready to run and when that goes; captures at their begin too, but for per-thread default streams.
FUNCTIONS = {
    "cuStreamBeginCapture_v2": GRAPH_CAPTURE_BEGINS,
    "cuStreamEndCapture": GRAPH_CAPTURE_ENDS,
    "cuGraphInstantiateWithFlags": GRAPH_CALL,
    "cuGraphInstantiateWithParams": GRAPH_CALL,
    "cuGraphExecDestroy": GRAPH_CALL,
}

QUIET_NS = 400_000_000  # without such a call
HOLD_NS = 5_000_000_000  # it is renewed in every round, of which one in which many are found may take seconds
CAPTURE_NS = 30_000_000_000  # a capture of which nothing was heard for so long ended otherwise
FEW_AFTER_NS = 10_000_000_000  # then who makes few a second is not held back any longer
FEW_PER_S = 100.0
RATE_NS = 1_000_000_000  # a rate is that of so long
MANY_AFTER_NS = 3_000_000_000  # who makes many is then left alone, since a probe costs microseconds,
REST_NS = 15_000_000_000  # for so long
TELL_AFTER_NS = 3_000_000_000
WORDS = (
    "it makes CUDA graphs all the time, and to take CUPTI into use meanwhile could end it; it is recorded "
    "when that is over. Started under gpuprof-tui run while a sampler runs, it is recorded at once"
)


class GraphWatch:
    """Watches one process from its making until close(). Not thread-safe; nothing is raised."""

    def __init__(self, pid: int, source: LaunchSource, clock: Callable[[], int] = time.monotonic_ns) -> None:
        """`clock`, and all times: CLOCK_MONOTONIC, ns."""
        self.made = False  # whether such a call was seen
        self._pid, self._source, self._clock = pid, source, clock
        self._fds: list[int] = []
        self._per_s: float | None = None
        self._first_ns = clock()
        self._open()

    def _open(self) -> None:
        self._source.forget_graph_calls(self._pid)
        for path, offset, program in _sites(self._pid):
            with suppress(GpuprofError):  # a kernel that refuses: what is not seen is not waited for
                self._fds.append(self._source.open_graph_probe(self._pid, path, offset, program))
        self._since_ns = self._clock()  # only now: each probe takes milliseconds
        self._before = (self._since_ns, 0)  # a time, and the calls until then
        self._per_s = None
        self._rests_until_ns = 0

    def allows(self, now_ns: int) -> bool:
        """Whether CUPTI may be taken into use in the process now."""
        if self._rests_until_ns > now_ns:
            return False
        if self._rests_until_ns:
            self._open()
        if not self._fds:  # it has no driver yet, or it cannot be watched
            return True
        try:
            seen = self._source.graph_calls(self._pid)
        except GpuprofError:  # the stack reader ends
            return False
        self.made = self.made or seen.number > 0
        if now_ns - self._before[0] >= RATE_NS:
            self._per_s = (seen.number - self._before[1]) / (now_ns - self._before[0]) * 1e9
            self._before = now_ns, seen.number
        if seen.captures and now_ns - seen.captured_ns < CAPTURE_NS:
            return False
        if now_ns - max(seen.last_ns, self._since_ns) >= QUIET_NS:
            return True
        if self._per_s is None:
            return False
        if self._per_s >= FEW_PER_S:
            if now_ns - self._since_ns >= MANY_AFTER_NS:
                self.close()
                self._rests_until_ns = now_ns + REST_NS
            return False
        return now_ns - self._first_ns >= FEW_AFTER_NS

    def words(self, now_ns: int) -> str:
        """Why it is held back; empty in the first seconds."""
        return WORDS if now_ns - self._first_ns >= TELL_AFTER_NS else ""

    def close(self) -> None:
        """Take the probes away, soon."""
        fds, self._fds = self._fds, []
        if fds:
            _closer().put(fds)


@lru_cache(maxsize=1)
def _closer() -> queue.SimpleQueue[list[int]]:
    """A thread that closes what is put there: the kernel takes its time over each probe, and opens none
    meanwhile. At the sampler's end it is not waited for.
    """
    fds: queue.SimpleQueue[list[int]] = queue.SimpleQueue()
    threading.Thread(target=_close_all, args=(fds,), name="gpu-unwatch", daemon=True).start()
    return fds


def _close_all(lists: queue.SimpleQueue[list[int]]) -> None:
    while True:
        for fd in lists.get():
            with suppress(OSError):
                os.close(fd)


def _sites(pid: int) -> list[tuple[str, int, str]]:
    """(path, file offset, program) of each of FUNCTIONS that the process's driver has; [] without one."""
    for mapping in read_maps(pid):
        if mapping.kind != "file" or not _DRIVER.match(mapping.name):
            continue
        try:
            with ElfFile(open_mapping(pid, mapping)) as elf:
                found = elf.dynamic_symbols(set(FUNCTIONS))
                offsets = {elf.offset_of(symbol[0]): FUNCTIONS[name] for name, symbol in found.items()}
                size = os.fstat(elf.fd).st_size
        except (OSError, ElfError):
            return []
        path = map_file_path(pid, mapping)
        return [
            (path, offset, program)
            for offset, program in offsets.items()
            if offset is not None and 0 < offset < size
        ]
    return []
