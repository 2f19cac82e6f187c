"""The sampler process: builds the history, starts every source it can, and serves clients until it is told
to end.

It is started in one of two ways. As a child (`--control-fd`): it serves the inherited socket `--fd`, takes
further clients from the control socket (every packet with a descriptor is one), and exits when that closes,
so that the end of its parent ends it. As a service (`--socket`, or a socket from systemd): it serves whoever
may connect, until SIGTERM. A source that cannot start is reported in the status frame; the others go on.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import shlex
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

from gpuprof.sampler import endpoint
from gpuprof.sampler.own_version import own_version
from gpuprof.sampler.server import Server
from gpuprof.sampler.sources import Sources
from gpuprof.sampler.status import Reporter
from gpuprof.snapshots.errors import EXIT_USAGE, GpuprofError
from gpuprof.snapshots.frames import PROTOCOL_VERSION, Clock, Hello, Status
from gpuprof.snapshots.history import History
from gpuprof.snapshots.overhead import DEFAULT, parse_budget

DEFAULT_HZ = 99
NVML_HZ = 10
_CLOCK_STEP_NS = 1_000_000  # a wall clock that has moved this far against the monotonic one is sent again
_STOP_SECONDS = 0.5
_CAP_SYS_ADMIN, _CAP_PERFMON, _CAP_BPF = 21, 38, 39


def main(argv: Sequence[str] | None = None) -> int:
    """Run the sampler; the exit code. Errors go to stderr as one line and a hint."""
    options = _parser().parse_args(argv)
    try:
        asyncio.run(_Run(options).serve())
    except GpuprofError as error:
        print(f"gpuprof sampler: {error.message}", file=sys.stderr)
        if error.hint:
            print(f"  {error.hint}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        pass
    return 0


def can_profile_cpus() -> bool:
    """Whether this process has the capabilities for BPF programs on perf events: CAP_BPF and CAP_PERFMON, or
    CAP_SYS_ADMIN."""
    with (
        suppress(OSError, ValueError),
        open("/proc/self/status", encoding="ascii", errors="replace") as status,
    ):
        for line in status:
            if line.startswith("CapEff:"):
                bits = int(line.split()[1], 16)
                return bool(bits >> _CAP_SYS_ADMIN & 1 or (bits >> _CAP_BPF & 1 and bits >> _CAP_PERFMON & 1))
    return False


def clock_pair() -> tuple[int, int]:
    """(CLOCK_MONOTONIC, CLOCK_REALTIME) of one instant, in ns: the tightest of a few bracketed readings."""
    best_width, best = 1 << 62, (0, 0)
    for _ in range(5):
        before = time.monotonic_ns()
        wall = time.time_ns()
        after = time.monotonic_ns()
        if after - before < best_width:
            best_width, best = after - before, ((before + after) // 2, wall)
    return best


def hello(options: argparse.Namespace, privileged: bool) -> Hello:
    """The first frame of every stream, with the clock pair of now."""
    mono_ns, wall_ns = clock_pair()
    sudo_line = None if privileged or not options.command else f"sudo {shlex.quote(options.command)}"
    return Hello(
        version=PROTOCOL_VERSION,
        host=socket.gethostname()[:253],
        boot_id=_boot_id(),
        kernel=os.uname().release,
        cpu_count=os.cpu_count() or 1,
        mono_ns=mono_ns,
        wall_ns=wall_ns,
        sampler_version=own_version(),
        sampler_pid=os.getpid(),
        cpu_hz=options.hz if privileged and options.cpu else 0,
        nvml_hz=NVML_HZ if options.nvml else 0,
        privileged=privileged,
        sudo_line=sudo_line,
    )


class _Run:
    """One run of the sampler, from its options to its end."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._privileged = can_profile_cpus()
        self._history = History(
            self._hello(),
            max_bytes=options.history_mib << 20,
            max_age_ns=options.history_minutes * 60 * 10**9,
        )
        self._sources = Sources(self._history, options, privileged=self._privileged)
        self._reporter = Reporter(self._history, self._sources.bpf_run_ns)
        self._reporting = threading.Lock()
        self._sent_offset_ns = 0
        self._settled = False

    async def serve(self) -> None:
        """Serve until a signal, or until the parent's control socket closes."""
        loop = asyncio.get_running_loop()
        stop = asyncio.Event()
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(signum, stop.set)
        _raise_descriptor_limit()
        alone = self._options.control_fd is None and self._options.fd is not None
        server = Server(
            self._history,
            self._hello,
            on_idle=stop.set if alone else None,
            capture=self,
        )
        try:
            self._open_doors(server, stop)
            self._sources.start()
            await self._report_until(stop)
        finally:
            await server.close()
            await loop.run_in_executor(None, self._sources.stop, _STOP_SECONDS)
            _end_children()

    def watch(self, pid: int, *, itself: bool, children: bool) -> None:
        """As Capture has it."""
        self._sources.watch(pid, itself=itself, children=children)

    def settle(self, seconds: float, least_wait_ns: int = 0) -> int | None:
        """As Capture has it."""
        return self._sources.settle(seconds, least_wait_ns)

    def report(self) -> Status:
        """Put a status of now into the history. From any thread."""
        with self._reporting:
            status = self._reporter.frame(self._sources.all())
            self._history.set_status(status)
        return status

    def _hello(self) -> Hello:
        return hello(self._options, self._privileged)

    def _settle(self, status: Status) -> None:
        """Once every source has started or failed: the hello of later clients and files says what there
        is."""
        self._settled = True
        alive = ("ok", "degraded", "starting")
        working = {source.name for source in status.sources if source.state in alive}
        self._options.cpu = "cpu" in working
        self._options.nvml = "nvml" in working
        with self._history.lock:
            self._history.hello = self._hello()

    def _open_doors(self, server: Server, stop: asyncio.Event) -> None:
        options = self._options
        listening = endpoint.inherited(os.environ)
        if listening is None and options.socket:
            listening = endpoint.listen(options.socket)
        if listening is not None:
            server.listen(listening)
        if options.control_fd is not None:
            _follow_parent(options.control_fd, server, stop)
        if options.fd is not None:
            server.adopt(options.fd)
        if listening is None and options.fd is None and options.control_fd is None:
            raise GpuprofError("nobody could connect to this sampler", "give it --socket PATH", EXIT_USAGE)

    async def _report_until(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            status = self.report()
            if self._sources.settled and not self._settled:
                self._settle(status)
            mono_ns, wall_ns = clock_pair()
            if abs(wall_ns - mono_ns - self._sent_offset_ns) > _CLOCK_STEP_NS:
                if self._sent_offset_ns:
                    self._history.set_clock(Clock(mono_ns, wall_ns))
                self._sent_offset_ns = wall_ns - mono_ns
            with suppress(asyncio.TimeoutError):
                # Soon at first, so that a client sees what the sources came to without waiting for the full
                # second.
                await asyncio.wait_for(stop.wait(), 1.0 if self._sources.settled else 0.2)


def _follow_parent(control_fd: int, server: Server, stop: asyncio.Event) -> None:
    """Take clients from the control socket, and stop when it closes."""
    control = socket.socket(fileno=control_fd)
    control.setblocking(False)
    loop = asyncio.get_running_loop()

    def readable() -> None:
        try:
            body, descriptors, _, _ = socket.recv_fds(control, 8192, 1)
        except BlockingIOError:
            return
        except OSError:
            body, descriptors = b"", []
        for fd in descriptors:
            with suppress(GpuprofError):
                server.adopt(fd)
        if not body:
            loop.remove_reader(control.fileno())
            stop.set()

    loop.add_reader(control.fileno(), readable)


def _end_children() -> None:
    """A loader that is still compiling has nobody to hand its programs to."""
    for task in os.listdir("/proc/self/task"):
        with suppress(OSError), open(f"/proc/self/task/{task}/children", encoding="ascii") as children:
            for pid in children.read().split():
                with suppress(OSError):
                    os.kill(int(pid), signal.SIGKILL)


def _raise_descriptor_limit() -> None:
    """Binaries, perf events and clients each take a descriptor; the soft limit is often 1024."""
    with suppress(ValueError, OSError):
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = 65536 if hard == resource.RLIM_INFINITY else min(hard, 65536)
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _boot_id() -> str:
    with suppress(OSError), open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read(64).strip()
    return ""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="gpuprof-sampler", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--fd", type=int, help="serve this inherited, connected socket")
    parser.add_argument("--control-fd", type=int, help="take clients from this socket; exit when it closes")
    parser.add_argument("--socket", metavar="PATH", help="listen on this unix socket")
    parser.add_argument("--hz", type=_hz, default=DEFAULT_HZ, help="CPU stack samples per second and core")
    parser.add_argument("--no-cpu", dest="cpu", action="store_false", help="no CPU stacks")
    parser.add_argument("--no-nvml", dest="nvml", action="store_false", help="no NVML readings")
    parser.add_argument(
        "--gpu-overhead", type=parse_budget, default=DEFAULT, metavar="SHARE", help="what GPU time may cost"
    )
    parser.add_argument("--no-gpu-work", dest="gpu_work", action="store_false", help="no GPU time")
    parser.add_argument("--no-offcpu", dest="offcpu", action="store_false", help="no waits")
    parser.add_argument(
        "--offcpu-pid", type=int, action="append", default=[], metavar="PID",
        help="follow the waits of a process and its descendants, beside those on a GPU; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--offcpu-children-of", type=int, action="append", default=[], metavar="PID",
        help="the same of its descendants only",
    )  # fmt: skip
    parser.add_argument("--offcpu-all", action="store_true", help="follow the waits of all processes")
    parser.add_argument(
        "--offcpu-threshold", type=_milliseconds, default=1_000_000, metavar="MS",
        help="shorter waits are sampled (default: 1 ms)",
    )  # fmt: skip
    parser.add_argument("--history-mib", type=int, default=64, help="memory for the history (default: 64)")
    parser.add_argument("--history-minutes", type=int, default=60, help="its length (default: 60)")
    parser.add_argument("--command", metavar="PATH", help="path of gpuprof-tui, for the sudo line")
    return parser


def _milliseconds(text: str) -> int:
    """Nanoseconds of a number of milliseconds."""
    value = float(text.removesuffix("ms"))
    if not 0 <= value <= 4000:
        raise argparse.ArgumentTypeError("between 0 and 4000 ms")
    return int(value * 1e6)


def _hz(text: str) -> int:
    value = int(text)
    if not 1 <= value <= 999:
        raise argparse.ArgumentTypeError("between 1 and 999")
    return value
