"""Starts child processes of this program by fork and exec, with exactly the descriptors and environment that
they are meant to have.

Not `subprocess`: its import alone costs as much as starting both children, and what happens between fork and
exec here (giving up root, the parent-death signal) decides about safety and is better seen in one place.
"""

from __future__ import annotations

import os
import signal
import site
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import gpuprof.snapshots.errors
from gpuprof.snapshots.errors import EXIT_UNAVAILABLE, GpuprofError

_RUN_MODULE = (
    "import sys; del sys.path[0]; module = sys.argv.pop(1); from runpy import run_module; "
    "run_module(module, run_name='__main__', alter_sys=True)"
)


def python_argv(module: str, *arguments: str) -> list[str]:
    """The command that runs `module` in this interpreter, without PYTHON* variables and without the current
    folder on sys.path.

    Isolated mode (-I) also leaves out the user's site folder; where the program is installed there, the
    current folder is removed by hand instead.
    """
    here = os.path.realpath(gpuprof.snapshots.errors.__file__)
    in_user_site = site.ENABLE_USER_SITE and here.startswith(
        os.path.realpath(site.getusersitepackages()) + os.sep
    )
    if in_user_site and os.geteuid() != 0:
        return [sys.executable, "-E", "-c", _RUN_MODULE, module, *arguments]
    return [sys.executable, "-I", "-m", module, *arguments]


def spawn(
    argv: Sequence[str],
    environ: Mapping[str, str],
    *,
    keep: Sequence[int] = (),
    stdin: int = 0,
    stdout: int = 1,
    stderr: int = 2,
    setup: Callable[[], Sequence[str]] = tuple,
    own_session: bool = False,
) -> int:
    """Start a process and return its pid. `keep`: descriptors that stay open, by their numbers; all others
    are closed.

    `setup` runs in the child before the exec and returns further arguments. GpuprofError when the program
    could not be started, with what `setup` or the exec said.
    """
    failed_r, failed_w = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(failed_r)
            _child(argv, environ, [*keep, failed_w], setup, (stdin, stdout, stderr), own_session=own_session)
        except GpuprofError as error:
            os.write(failed_w, f"{error.message}\n{error.hint}"[:2000].encode())
        except BaseException as error:  # noqa: BLE001
            os.write(failed_w, f"{argv[0]} could not be started: {error}\n"[:2000].encode())
        finally:
            os._exit(127)
    os.close(failed_w)
    said = b""
    while piece := os.read(failed_r, 4096):
        said += piece
    os.close(failed_r)
    if said:
        os.waitpid(pid, 0)
        message, _, hint = said.decode(errors="replace").partition("\n")
        raise GpuprofError(message, hint, EXIT_UNAVAILABLE)
    return pid


def _child(
    argv: Sequence[str],
    environ: Mapping[str, str],
    keep: Sequence[int],
    setup: Callable[[], Sequence[str]],
    streams: tuple[int, int, int],
    *,
    own_session: bool,
) -> None:
    signal.set_wakeup_fd(-1)
    for signum in (
        signal.SIGINT,
        signal.SIGTERM,
        signal.SIGHUP,
        signal.SIGCHLD,
        signal.SIGPIPE,
        signal.SIGTTOU,
    ):
        signal.signal(signum, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    if own_session:
        os.setsid()
    high = [os.dup(fd) if fd != at else fd for at, fd in enumerate(streams)]
    for at, fd in enumerate(high):
        if fd != at:
            os.dup2(fd, at)
    lowest = 3
    for fd in sorted(set(keep)):
        os.closerange(lowest, fd)
        lowest = fd + 1
    os.closerange(lowest, 1 << 20)
    arguments = setup()
    for fd in keep[:-1]:  # the last is the pipe for failures, which the exec closes
        os.set_inheritable(fd, True)
    os.execve(argv[0], [*argv, *arguments], dict(environ))


def exit_code(status: int) -> int:
    """The exit code of a wait status, as a shell would give it: 128 + n for signal n."""
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def signal_of(code: int) -> str:
    """The signal that an exit code, as a shell gives it, tells of; empty where it tells of none, or of one
    that people end programs with.
    """
    ordinary = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE}
    with suppress(ValueError):
        number = signal.Signals(code - 128)
        return "" if number in ordinary else number.name
    return ""


def wait_until(pid: int, deadline: float) -> int | None:
    """Wait for a child until `deadline` (monotonic seconds): its exit code, or None when it still runs."""
    pause = 0.002
    while True:
        try:
            found, status = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            return 0
        if found:
            return exit_code(status)
        if time.monotonic() >= deadline:
            return None
        time.sleep(pause)
        pause = min(pause * 1.5, 0.02)


def end(pid: int, seconds: float) -> int:
    """End a child: SIGTERM, and SIGKILL after `seconds`. Returns its exit code."""
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGTERM)
        os.kill(pid, signal.SIGCONT)
    code = wait_until(pid, time.monotonic() + seconds)
    if code is None:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
        code = wait_until(pid, time.monotonic() + 1.0)
    return 137 if code is None else code


def wake_on_signals() -> int:
    """A descriptor from which the numbers of signals can be read, a byte each: of children that ended, and of
    those that ask this process to end, which do nothing else from now on.
    """
    wake_r, wake_w = os.pipe()
    os.set_blocking(wake_r, False)
    os.set_blocking(wake_w, False)
    for signum in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, lambda _signum, _frame: None)
    signal.set_wakeup_fd(wake_w, warn_on_full_buffer=False)
    return wake_r
