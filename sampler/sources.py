"""Which sources this sampler has: each is made and started in its own try, in the order in which people miss
them.

NVML and the host's readings come first, since charts should move at once; CPU stacks last, since compiling
and loading the BPF programs takes seconds. What cannot start is replaced by a `Failed` that says why and
what to do.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import threading
import time
import traceback
from collections.abc import Callable

from gpuprof.bpf.wait_programs import TRACK_CHILDREN, TRACK_SELF
from gpuprof.sampler.launch_source import LaunchSource
from gpuprof.sampler.mps import launching
from gpuprof.sampler.stack_reader import StackReader
from gpuprof.sampler.status import Failed, Source
from gpuprof.snapshots.errors import EXIT_UNAVAILABLE, GpuprofError
from gpuprof.snapshots.history import History

WATCH_SECONDS = 12.0  # the programs for it may have to be compiled first, on a busy machine
_ALIVE = ("ok", "degraded")


class Sources:
    """All sources of one history. `start` runs in a thread of its own and may take seconds; the rest is
    quick."""

    def __init__(self, history: History, options: argparse.Namespace, *, privileged: bool) -> None:
        self._history = history
        self._options = options
        self._privileged = privileged
        self._lock = threading.Lock()
        self._stopped = False
        self._unsettled = 1
        self._by_name: dict[str, Source] = {}
        for name, wanted in (
            ("nvml", options.nvml),
            ("processes", True),
            ("cpu", options.cpu),
            ("gpu", options.gpu_work),
            ("offcpu", options.offcpu),
        ):
            state = "starting" if wanted else "off"
            self._by_name[name] = Failed(name, "" if wanted else "switched off", state=state)

    @property
    def settled(self) -> bool:
        """True once every source has started or failed to."""
        return self._unsettled == 0

    def all(self) -> list[Source]:
        """The sources, and stand-ins for those that are starting, off or failed."""
        with self._lock:
            return list(self._by_name.values())

    def bpf_run_ns(self) -> int | None:
        """Time inside the BPF programs so far; None where the kernel does not count it."""
        with self._lock:
            source = self._by_name["cpu"]
        run_ns = getattr(source, "run_ns", None)  # only CpuStacks has it
        value = run_ns() if callable(run_ns) else None
        return value if isinstance(value, int) else None

    def watch(self, pid: int, *, itself: bool, children: bool) -> None:
        """Follow the waits of a process, and of what descends from it, until they end; they are followed when
        this returns, after a few seconds at most. GpuprofError where they cannot be.
        """
        with self._lock:
            source = self._by_name["offcpu"]
        watch = getattr(source, "watch", None)  # only OffCpu has it
        if not callable(watch):
            status = source.status()
            raise GpuprofError(status.reason or "waits are not followed yet", status.hint, EXIT_UNAVAILABLE)
        watch(pid, TRACK_SELF * itself | TRACK_CHILDREN * children, WATCH_SECONDS)

    def settle(self, seconds: float, least_wait_ns: int = 0) -> int | None:
        """Have all that the stack reader knows up to now in the history; where it took longer than `seconds`,
        up to when what happened is there, None otherwise.
        """
        reader = self._wait_reader()
        if reader is None or reader.settle(seconds, least_wait_ns):
            return None
        return reader.complete_ns

    def start(self) -> None:
        """Start all of them side by side, without waiting. Never raises."""
        makers: list[tuple[str, Callable[[], Source]]] = [("processes", self._make_host)]
        if self._options.nvml:
            makers.append(("nvml", self._make_gpus))
        if self._options.cpu:
            makers.append(("cpu", self._make_stacks))
        if self._options.gpu_work:
            makers.append(("gpu", self._make_work))
        if self._options.offcpu:
            makers.append(("offcpu", self._make_waits))
        self._unsettled = len(makers)
        for name, make in makers:
            threading.Thread(target=self._start, args=(name, make), name=f"start-{name}", daemon=True).start()

    def stop(self, seconds: float) -> None:
        """Stop all of them side by side; one that hangs is left behind after `seconds`."""
        with self._lock:
            self._stopped = True
            sources = list(self._by_name.values())
        stopping = [threading.Thread(target=_stop_quietly, args=(source,), daemon=True) for source in sources]
        for thread in stopping:
            thread.start()
        deadline = time.monotonic() + seconds
        for thread in stopping:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _start(self, name: str, make: Callable[[], Source]) -> None:
        try:
            source = make()
            source.start()
        except GpuprofError as error:
            source = Failed(name, error.message, error.hint)
        except Exception as error:  # noqa: BLE001
            traceback.print_exc(file=sys.stderr)
            source = Failed(name, f"{type(error).__name__}: {error}", "please report this")
        with self._lock:
            self._by_name[name] = source
            self._unsettled -= 1
            stopped = self._stopped
        if stopped:
            _stop_quietly(source)

    def _make_gpus(self) -> Source:
        from gpuprof.sampler.gpu_reader import GpuReader

        return GpuReader(self._history)

    def _make_host(self) -> Source:
        from gpuprof.sampler.host_reader import HostReader

        return HostReader(self._history, self._gpu_pids)

    def _make_stacks(self) -> Source:
        self._need_privileges("CPU stacks need root, or CAP_BPF and CAP_PERFMON")
        from gpuprof.bpf.programs import StackPrograms
        from gpuprof.sampler import ahead
        from gpuprof.sampler.cpu_stacks import CpuStacks

        return CpuStacks(self._history, StackPrograms.of(ahead.take(self._options.hz)), self._options.hz)

    def _make_work(self) -> Source:
        self._need_privileges("GPU time needs root, or CAP_SYS_PTRACE with what CPU stacks need")
        from gpuprof.sampler.gpu_work import GpuWork

        return GpuWork(
            self._history,
            self._pids_by_gpu,
            self._launches,
            self._stacks_start,
            budget_ppm=self._options.gpu_overhead,
        )

    def _make_waits(self) -> Source:
        self._need_privileges("the stacks of waits need what CPU stacks need")
        from gpuprof.sampler.offcpu import OffCpu, Picks

        options = self._options
        picks = Picks(
            tuple(options.offcpu_pid),
            tuple(options.offcpu_children_of),
            options.offcpu_all,
            options.offcpu_threshold,
        )
        return OffCpu(self._wait_reader, self._stacks_start, self._gpu_pids, picks)

    def _need_privileges(self, message: str) -> None:
        if not self._privileged:
            command = self._options.command
            raise GpuprofError(message, f"sudo {shlex.quote(command)}" if command else "start it with sudo")

    def _launches(self) -> LaunchSource | None:
        """The stack reader, once it runs."""
        with self._lock:
            source = self._by_name["cpu"]
        return source if isinstance(source, LaunchSource) and source.status().state in _ALIVE else None

    def _wait_reader(self) -> StackReader | None:
        """The stack reader, once it runs."""
        with self._lock:
            source = self._by_name["cpu"]
        return source if isinstance(source, StackReader) and source.status().state in _ALIVE else None

    def _stacks_start(self) -> bool:
        with self._lock:
            return self._by_name["cpu"].status().state == "starting"

    def _pids_by_gpu(self) -> dict[str, frozenset[int]] | None:
        with self._lock:
            source = self._by_name["nvml"]
        pids = getattr(source, "pids_by_gpu", None)
        return {gpu: launching(listed) for gpu, listed in pids().items()} if callable(pids) else None

    def _gpu_pids(self) -> set[int]:
        with self._lock:
            pids = getattr(self._by_name["nvml"], "pids", None)
        return set(pids()) if callable(pids) else set()


def _stop_quietly(source: Source) -> None:
    try:
        source.stop()
    except Exception:  # noqa: BLE001
        traceback.print_exc(file=sys.stderr)
