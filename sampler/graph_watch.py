"""Whether a process that runs already makes or destroys CUDA graphs: while it does, it is not attached to.

CUPTI (13.0) crashes now and then where it is subscribed to, or finalized, while another thread makes or
destroys a graph (tests/device/attach_races.py). Once it is subscribed the injection library knows of such
calls by itself; before, they are seen by uprobes on the functions of the process's own libcuda, which are
there only for as long as it is watched.
"""

from __future__ import annotations

import os
import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache

from gpuprof.bpf.inventory import GRAPH_CALL, GRAPH_CAPTURE_BEGINS, GRAPH_CAPTURE_ENDS
from gpuprof.sampler.elf import ElfError, ElfFile
from gpuprof.sampler.launch_source import LaunchSource
from gpuprof.sampler.maps import map_file_path, open_mapping, read_maps
from gpuprof.snapshots.errors import GpuprofError

_DRIVER = re.compile(r"libcuda\.so(\.|$)")
# Few, since the kernel takes up to a tenth of a second to take one away: every graph of today's CUDA runtime
# passes one of these at its beginning and at its end.
FUNCTIONS = {
    "cuStreamBeginCapture_v2": GRAPH_CAPTURE_BEGINS,
    "cuStreamEndCapture": GRAPH_CAPTURE_ENDS,
    "cuGraphInstantiateWithFlags": GRAPH_CALL,
    "cuGraphInstantiateWithParams": GRAPH_CALL,
    "cuGraphExecDestroy": GRAPH_CALL,
}

QUIET_NS = 600_000_000  # without such a call; the library takes some 50 ms from the lock to the attach
CAPTURE_NS = 30_000_000_000  # a capture of which nothing was heard for so long ended otherwise
FEW_AFTER_NS = 10_000_000_000  # then who makes few is attached to: the race is with microseconds of each call
FEW_PER_S = 100.0
TELL_AFTER_NS = 3_000_000_000
WORDS = (
    "it makes CUDA graphs all the time, and to take CUPTI into use meanwhile could end it; it is recorded "
    "when that is over. Started under gpuprof-tui run while a sampler runs, it is recorded at once"
)


class GraphWatch:
    """Watches one process from its making until close(). Not thread-safe; nothing is raised."""

    def __init__(self, pid: int, source: LaunchSource, now_ns: int) -> None:
        """`now_ns`, here and below: CLOCK_MONOTONIC."""
        self._pid, self._source, self._since_ns = pid, source, now_ns
        self._fds: list[int] = []
        self._before = (now_ns, 0)  # a time, and the calls until then
        self._per_s = 0.0
        source.forget_graph_calls(pid)
        for path, offset, program in _sites(pid):
            with suppress(GpuprofError):  # a kernel that refuses: what is not seen is not waited for
                self._fds.append(source.open_graph_probe(pid, path, offset, program))

    def allows(self, now_ns: int) -> bool:
        """Whether the process may be attached to."""
        if not self._fds:  # it has no driver yet, or it cannot be watched
            return True
        last_ns, count, captures = self._source.graph_calls(self._pid)
        if now_ns - self._before[0] >= 10**9:
            self._per_s = (count - self._before[1]) / (now_ns - self._before[0]) * 1e9
            self._before = now_ns, count
        if captures and now_ns - last_ns < CAPTURE_NS:
            return False
        if now_ns - max(last_ns, self._since_ns) >= QUIET_NS:
            return True
        return now_ns - self._since_ns >= FEW_AFTER_NS and self._per_s < FEW_PER_S

    def words(self, now_ns: int) -> str:
        """Why it is not recorded yet; empty for the first seconds."""
        return WORDS if now_ns - self._since_ns >= TELL_AFTER_NS else ""

    def close(self) -> None:
        """Take the probes away, soon."""
        fds, self._fds = self._fds, []
        if fds:
            _closer().submit(_close, fds)


@lru_cache(maxsize=1)
def _closer() -> ThreadPoolExecutor:
    """One thread for all of it: the kernel takes its time over each probe, and opens none meanwhile."""
    return ThreadPoolExecutor(1, "gpu-unwatch")


def _close(fds: list[int]) -> None:
    for fd in fds:
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
        except (OSError, ElfError):
            return []
        path = map_file_path(pid, mapping)
        return [(path, offset, program) for offset, program in offsets.items() if offset is not None]
    return []
