"""`gpuprof-tui doctor`: what works on this node, what is missing, and the line that fixes it.

First what can be looked up without starting anything; then a sampler is started for a moment and asked,
since what its sources say of themselves is the truth.
"""

from __future__ import annotations

import json
import os
import select
import shlex
import socket
import stat
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from glob import glob
from typing import TYPE_CHECKING, NamedTuple

from gpuprof.snapshots.errors import GpuprofError
from gpuprof.tui import children, plain, privileges
from gpuprof.tui.sampler_process import (
    SamplerOptions,
    SamplerProcess,
    connect_service,
    own_command,
    running_service,
)

if TYPE_CHECKING:
    from gpuprof.snapshots.frames import SourceStatus

_SETTLE_SECONDS = 20.0
_PROBE_SECONDS = 20.0
_FEATURES = "kernel features"
_KERNEL_FIX = "use a newer kernel, or one that the distribution has built with this"
_TITLES = {"nvml": "GPU readings", "cpu": "CPU stacks", "gpu": "GPU time", "offcpu": "off-CPU time"}


@dataclass(frozen=True)
class Finding:
    """One line of the answer. `state`: ok, note (works without it) or missing; `fix`: a line to paste, or
    empty."""

    state: str
    name: str
    detail: str
    fix: str = ""


def run(options: SamplerOptions) -> int:
    """Print all findings; 0 when nothing is missing, else 1. Hardware that is not there, and what nobody has
    asked for, is not missing."""
    missing = False
    service = None if _may_profile() else connect_service(options.socket_path)
    for finding in (
        *look_up(options.socket_path, given=options.socket_given, served=service is not None),
        *try_kernel(),
        *ask_sampler(options, service),
    ):
        missing |= finding.state == "missing"
        print(render(finding), flush=True)
    return 1 if missing else 0


def render(finding: Finding) -> str:
    """The finding as text: a line, and one more for the fix."""
    line = f"{finding.state:8}{finding.name:18}{finding.detail}".rstrip()
    return line + "".join(f"\n{'':26}{part}" for part in finding.fix.splitlines())


def look_up(
    socket_path: str, root: str = "/", *, given: bool = False, served: bool = False
) -> Iterator[Finding]:
    """What can be seen without starting anything. `root`: the file system to look at; `given`: the person
    named the socket, so that a sampler has to be there; `served`: a service does what this user may not.
    """
    sudo = f"sudo {own_command()}"
    yield _python()
    if _may_profile():
        yield Finding("ok", "BPF permission", "CAP_BPF and CAP_PERFMON, or root")
    elif served:
        yield Finding("note", "BPF permission", "this user has none; the service is used, which has it")
    else:
        yield Finding("missing", "BPF permission", "CPU stacks need root, or CAP_BPF and CAP_PERFMON", sudo)
    yield _bcc(root)
    if os.path.exists(os.path.join(root, "sys/kernel/btf/vmlinux")):
        yield Finding("ok", "BTF", "the kernel describes its types")
    else:
        fix = "use a kernel built with CONFIG_DEBUG_INFO_BTF, as those of the distributions are"
        yield Finding("missing", "BTF", "no /sys/kernel/btf/vmlinux", fix)
    yield _perf_events(root)
    yield _lockdown(root)
    yield _tracefs(root)
    yield _service(socket_path, given=given)
    yield _terminal()


def _may_profile() -> bool:
    """Whether this process may have BPF programs see the whole node."""
    capabilities = privileges.effective_capabilities()
    return (
        privileges.CAP_SYS_ADMIN in capabilities
        or {privileges.CAP_BPF, privileges.CAP_PERFMON} <= capabilities
    )


def try_kernel(command: Sequence[str] = ()) -> Iterator[Finding]:
    """What the kernel lets BPF programs do, tried by a process of its own; nothing for those who may not try.

    `command`: what to run instead (for tests).
    """
    capabilities = privileges.effective_capabilities()
    if (
        not command
        and privileges.CAP_SYS_ADMIN not in capabilities
        and privileges.CAP_BPF not in capabilities
    ):
        return
    import subprocess  # not on the way to the screen, which should open at once

    argv = command or children.python_argv("gpuprof.bpf.features")
    try:
        answer = subprocess.run(argv, capture_output=True, timeout=_PROBE_SECONDS, check=False)
        tried = [_Tried.of(json.loads(line)) for line in answer.stdout.splitlines()]
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        yield Finding("missing", _FEATURES, f"they could not be tried: {error!s:.200}", "please report this")
        return
    features = [one for one in tried if one.title == _FEATURES]
    if not features:
        said = answer.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["no answer"]
        yield Finding("missing", _FEATURES, f"they could not be tried: {said[0]:.200}", "please report this")
        return
    works = sum(one.state == "ok" for one in features)
    if works:
        yield Finding("ok", _FEATURES, f"{works} of {len(features)} that the BPF programs use")
    for one in tried:
        if one.title != _FEATURES:
            yield Finding(one.state, one.title, one.detail)
        elif one.state != "ok":
            fix = _KERNEL_FIX if one.state == "missing" else ""
            yield Finding(one.state, _FEATURES, f"{one.name}: {one.detail}", fix)


class _Tried(NamedTuple):
    """One line of gpuprof.bpf.features."""

    state: str
    title: str
    name: str
    detail: str

    @classmethod
    def of(cls, line: object) -> _Tried:
        """ValueError for what is no such line."""
        if not isinstance(line, dict) or line.get("state") not in ("ok", "note", "missing"):
            raise ValueError(f"an answer that is not understood: {line!r:.100}")
        title, name, detail = (str(line.get(key, "")) for key in ("title", "name", "detail"))
        return cls(line["state"], title or _FEATURES, name, detail)


def ask_sampler(options: SamplerOptions, service: socket.socket | None = None) -> Iterator[Finding]:
    """Start a sampler, or ask the service that this connection leads to, and report what its sources came
    to."""
    statuses, reason = _settled_sources(options, service)
    if not statuses:
        yield Finding("missing", "sampler", reason or "it did not answer", "please report this")
    for status in statuses:
        title = _TITLES.get(status.name, status.name)
        if status.state == "ok":
            yield Finding("ok", title, status.reason or "they come")
        elif status.state in ("degraded", "starting"):
            yield Finding("note", title, f"{status.state}: {status.reason}", status.hint)
        elif status.state == "off" and status.name != "cpu":
            yield Finding("note", title, status.reason, status.hint)
        else:
            yield Finding("missing", title, status.reason, status.hint)


def _settled_sources(
    options: SamplerOptions, service: socket.socket | None
) -> tuple[list[SourceStatus], str]:
    """The status of each source once none is starting any more; and the sampler's last words when there is
    none."""
    from gpuprof.snapshots.errors import GpuprofError
    from gpuprof.snapshots.frames import MAGIC, Status, Subscribe
    from gpuprof.snapshots.wire import Decoder, pack

    sampler: SamplerProcess | None = None
    if service is not None:
        connection = service
    else:
        connection, theirs = socket.socketpair()
        caller = privileges.sudo_caller(os.environ) if os.geteuid() == 0 else None
        sampler = SamplerProcess(options, os.environ, caller, theirs)
    sources: list[SourceStatus] = []
    try:
        connection.sendall(MAGIC + pack(Subscribe("metrics")))
        decoder = Decoder()
        deadline = time.monotonic() + _SETTLE_SECONDS
        while time.monotonic() < deadline:
            if not select.select([connection], [], [], 0.5)[0]:
                continue
            data = connection.recv(1 << 18)
            if not data:
                break
            for frame in decoder.feed(data):
                if isinstance(frame, Status):
                    sources = frame.sources
            if sources and all(source.state != "starting" for source in sources):
                break
    except (OSError, GpuprofError) as error:
        return sources, str(error)
    finally:
        connection.close()
        if sampler is not None:
            sampler.close()
    return sources, sampler.said if sampler is not None else "the service does not answer"


def _python() -> Finding:
    version = ".".join(str(part) for part in sys.version_info[:3])
    return Finding("ok", "Python", f"{version}, {sys.executable}")


def _bcc(root: str) -> Finding:
    """bcc of the distribution, seen by its files only: importing it is for the loader."""
    places = ("usr/lib/python3/dist-packages", "usr/local/lib/python3/dist-packages")
    folders = [os.path.join(root, place, "bcc") for place in places]
    folders += glob(os.path.join(root, "usr/lib*/python3.*/site-packages/bcc"))
    for folder in folders:
        if os.path.isfile(os.path.join(folder, "libbcc.py")):
            return Finding("ok", "bcc", folder)
    detail = (
        "the bcc that is installed is PyPI's, an unrelated package"
        if any(map(os.path.isdir, folders))
        else ""
    )
    fix = "apt install python3-bpfcc       (Fedora: dnf install python3-bcc)"
    return Finding("missing", "bcc", detail or "it compiles the BPF programs, and was not found", fix)


def _perf_events(root: str) -> Finding:
    paranoid = _read(root, "proc/sys/kernel/perf_event_paranoid")
    if not paranoid:
        return Finding(
            "missing", "perf events", "the kernel has none", "use a kernel with CONFIG_PERF_EVENTS"
        )
    return Finding("ok", "perf events", f"perf_event_paranoid {paranoid}, which root may pass")


def _lockdown(root: str) -> Finding:
    chosen = _read(root, "sys/kernel/security/lockdown")
    if "[confidentiality]" in chosen:
        fix = "boot with lockdown=integrity, or without Secure Boot"
        return Finding("missing", "lockdown", "the kernel forbids BPF programs to read memory", fix)
    return Finding("ok", "lockdown", "does not forbid BPF programs to read memory")


def _tracefs(root: str) -> Finding:
    for folder in ("sys/kernel/tracing", "sys/kernel/debug/tracing"):
        if os.path.exists(os.path.join(root, folder, "events")):
            return Finding("ok", "tracefs", "/" + folder)
    return Finding(
        "note",
        "tracefs",
        "not mounted, or not for this user; not needed yet",
        "mount -t tracefs tracefs /sys/kernel/tracing",
    )


def _service(path: str, *, given: bool) -> Finding:
    if given:
        try:
            connection = running_service(SamplerOptions(socket_path=path, socket_given=True))
        except GpuprofError as error:
            return Finding("missing", "service", error.message, error.hint)
        if connection is not None:
            connection.close()
        return Finding("ok", "service", path)
    try:
        found = os.stat(path)
    except PermissionError:
        folder = os.path.dirname(path)
        return Finding(
            "note",
            "service",
            f"this user may not look into {folder}",
            f"sudo chmod 755 {shlex.quote(folder)}",
        )
    except OSError:
        return Finding("note", "service", f"none at {path}; each screen starts its own sampler")
    if not stat.S_ISSOCK(found.st_mode):
        return Finding("missing", "service", f"{path} is not a socket", f"rm {path}")
    connection = connect_service(path)
    if connection is not None:
        connection.close()
        return Finding("ok", "service", path)
    if not os.access(path, os.W_OK):
        return Finding("note", "service", "this user may not use it", f"sudo usermod -aG gpuprof {_user()}")
    return Finding("note", "service", f"nobody answers at {path}; each screen starts its own sampler")


def _terminal() -> Finding:
    term = os.environ.get("TERM", "")
    if not (os.isatty(0) and os.isatty(2)):
        return Finding("note", "terminal", "none here; record and report need none")
    if term in ("", "dumb"):
        return Finding("missing", "terminal", f"TERM is {term!r}", "export TERM=xterm-256color")
    if plain.is_ascii_only(plain.first_environ()):
        fix = "export LANG=C.UTF-8       (where the terminal shows UTF-8)"
        return Finding("note", "terminal", f"{term}, drawn in ASCII: the locale is not UTF-8", fix)
    colours = (
        "true colour" if os.environ.get("COLORTERM") in ("truecolor", "24bit") else "256 colours or fewer"
    )
    if plain.is_colourless(os.environ):
        colours = "no colours (NO_COLOR, or TERM)"
    return Finding("ok", "terminal", f"{term}, {colours}")


def _user() -> str:
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def _read(root: str, path: str) -> str:
    try:
        with open(os.path.join(root, path), encoding="utf-8", errors="replace") as file:
            return file.read(4096).strip()
    except OSError:
        return ""
