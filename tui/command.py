"""The `gpuprof-tui` command: reads the arguments, starts what they ask for, and turns every failure into one
line and a hint.

Neither textual nor numpy is imported before it is needed: the screen is a process of its own and should be
up at once.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence

from gpuprof.snapshots.errors import (
    EXIT_BAD_FILE,
    EXIT_FAILED,
    EXIT_UNAVAILABLE,
    EXIT_USAGE,
    FileError,
    GpuprofError,
)
from gpuprof.tui import output_streams

TYPE_CHECKING = False  # not typing's, whose import takes longer than all that this module does
if TYPE_CHECKING:
    import argparse

DEFAULT_REMOTE_COMMAND = "gpuprof-tui dial-stdio"
_EXIT_PIPE = 141
_EXIT_INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; its exit code. Errors are one line and a hint on standard error; --debug shows the
    traceback."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments[: arguments.index("--") if "--" in arguments else None]
    _open_standard_streams()
    output_streams.prepare()
    try:
        code = _dispatch(arguments)
        sys.stdout.flush()
    except GpuprofError as error:
        if debug:
            raise
        _complain(error.message, error.hint)
        return error.exit_code
    except BrokenPipeError:  # the reader, such as `head`, has what it wanted
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return _EXIT_PIPE
    except KeyboardInterrupt:
        return _EXIT_INTERRUPTED
    except OSError as error:
        if debug:
            raise
        if (
            error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG)
            or error.filename is not None
        ):
            _complain(f"this is a bug: OSError: {error}", "please report it, with what --debug prints")
            return EXIT_FAILED
        _complain(f"cannot write the output: {error.strerror}", "")
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is still buffered goes nowhere
        return EXIT_FAILED
    except Exception as error:
        if debug:
            raise
        _complain(
            f"this is a bug: {type(error).__name__}: {error}", "please report it, with what --debug prints"
        )
        return EXIT_FAILED
    return code


def ssh_argv(host: str, ssh_command: str = "ssh", remote_command: str = DEFAULT_REMOTE_COMMAND) -> list[str]:
    """The command that reaches the sampler of `host`. GpuprofError for a host that ssh could take for an
    option."""
    import shlex

    if not host or host.startswith("-") or not host.isprintable() or any(char.isspace() for char in host):
        raise GpuprofError(f"{host!r} is not a host name", "write it as for ssh: user@node", EXIT_USAGE)
    try:
        ssh = shlex.split(ssh_command)
    except ValueError as error:
        raise GpuprofError(f"the ssh command cannot be read: {error}", exit_code=EXIT_USAGE) from error
    if not ssh:
        raise GpuprofError("the ssh command is empty", exit_code=EXIT_USAGE)
    options = ["-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=15"]
    return [*ssh, *options, "--", host, remote_command]


# ----------------------------------------------------------------------------------------------- subcommands


def _dispatch(arguments: list[str]) -> int:
    if sys.platform != "linux":
        raise GpuprofError(
            "gpuprof-tui profiles Linux nodes", "use --host from a Linux machine", EXIT_UNAVAILABLE
        )
    if not arguments:  # the usual case needs no parser, whose import delays the screen
        return _live()
    from gpuprof.tui import arguments as parsing

    options = parsing.parse(arguments)
    run = {
        None: _screen,
        "open": _open,
        "demo": _demo,
        "report": _report,
        "record": _record,
        "run": _run,
        "attach": _attach,
        "dial-stdio": _dial,
        "sampler": _sampler,
        "doctor": _doctor,
    }
    return run[options.command](options)


def _screen(options: argparse.Namespace) -> int:
    if options.host is None:
        return _live(options)
    _need_terminal()
    argv = ssh_argv(options.host, options.ssh_command, options.remote_command)
    import json

    from gpuprof.tui.screen_here import run_here

    return run_here("--connect", json.dumps(argv), "--label", options.host)


def _live(options: argparse.Namespace | None = None) -> int:
    _need_terminal()
    from gpuprof.tui import supervisor
    from gpuprof.tui.sampler_choice import sampler_options

    return supervisor.run(sampler_options(options))


def _open(options: argparse.Namespace) -> int:
    _need_file(options.file)
    _need_terminal()
    from gpuprof.tui.screen_here import run_here

    return run_here("--file", options.file, reads=options.file)


def _demo(_options: argparse.Namespace) -> int:
    _need_terminal()
    from gpuprof.tui.screen_here import run_here

    return run_here("--demo")


def _report(options: argparse.Namespace) -> int:
    _need_file(options.file)
    from gpuprof.snapshots.file import read_snapshot
    from gpuprof.snapshots.folded_text import folded_text
    from gpuprof.snapshots.frames import Query
    from gpuprof.snapshots.report import json_report, json_text, nothing_there, parse_range, text_report
    from gpuprof.snapshots.report_json import MAX_JSON_NODES

    opened = read_snapshot(options.file)
    if opened.damage:
        _complain(f"{options.file}: {opened.damage}")
    if opened.growing:
        _complain(f"{options.file}: {opened.growing}")
    history = opened.history
    start_ns, end_ns = history.span if options.range is None else parse_range(options.range, history)
    least = options.min_percent / 100 if options.min_percent is not None else None
    query = Query(
        0, options.tree, start_ns, end_ns,
        pids=options.pid, by_thread=options.by_thread, scaled=options.scale,
        by_range=options.by_range, bottom_up=options.bottom_up,
        min_fraction=least or 0.0, max_nodes=MAX_JSON_NODES,
    )  # fmt: skip
    if options.json:
        print(json_text(json_report(history, query, options.rate, depth=options.depth)))
    elif options.folded:
        if folded := folded_text(history, query, internals=options.internals):
            print(folded)
        else:  # an empty line would be a stack to a reader
            _complain(nothing_there(query))
    else:
        text = text_report(
            history,
            query,
            internals=options.internals,
            rates=options.rate,
            min_fraction=least,
            depth=options.depth,
        )
        print(text)
    return 0


def _record(options: argparse.Namespace) -> int:
    from gpuprof.tui import record
    from gpuprof.tui.sampler_choice import sampler_options

    recording = record.RecordOptions(options.output, options.seconds, tuple(options.cmd), options.force)
    return record.run(recording, sampler_options(options))


def _run(options: argparse.Namespace) -> int:
    from gpuprof.tui import run

    run.run(options.cmd)


def _attach(options: argparse.Namespace) -> int:
    from gpuprof.tui import attach
    from gpuprof.tui.sampler_choice import sampler_options

    sampler = sampler_options(options)  # refused before anything is attached
    if options.socket:
        from gpuprof.tui.sampler_process import running_service

        connection = running_service(sampler)
        if connection is not None:
            connection.close()
    waiting, code = attach.attach_all(options.pids)
    if not waiting or options.no_screen:
        return code
    if os.isatty(0) and os.isatty(1) and os.isatty(2):
        return _live(options) or code
    print("No sampler listens yet: sudo gpuprof-tui shows the GPU time, gpuprof-tui record writes a file.")
    return code


def _dial(options: argparse.Namespace) -> int:
    from gpuprof.tui import dial
    from gpuprof.tui.sampler_choice import sampler_options

    return dial.run(sampler_options(options))


def _sampler(options: argparse.Namespace) -> int:
    from gpuprof.tui import children, privileges
    from gpuprof.tui.sampler_choice import offcpu_arguments
    from gpuprof.tui.sampler_process import SERVICE_SOCKET, own_command

    path = options.socket or SERVICE_SOCKET
    argv = children.python_argv("gpuprof.sampler", "--socket", path, "--command", own_command())
    argv += ["--hz", str(options.hz)] if options.hz is not None else []
    argv += ["--gpu-overhead", options.gpu_overhead] if options.gpu_overhead is not None else []
    argv += offcpu_arguments(options)
    is_root = os.geteuid() == 0
    caller = privileges.sudo_caller(os.environ) if is_root else None
    environ = (
        privileges.root_environment(os.environ, caller) if is_root else privileges.own_environment(os.environ)
    )
    # systemd's socket (sd_listen_fds(3)) is for this very process, and an exec keeps its pid.
    environ.update({name: os.environ[name] for name in ("LISTEN_PID", "LISTEN_FDS") if name in os.environ})
    if "LISTEN_FDS" in environ:
        os.set_inheritable(3, True)
    os.execve(argv[0], argv, environ)


def _doctor(options: argparse.Namespace) -> int:
    from gpuprof.tui import doctor
    from gpuprof.tui.sampler_choice import sampler_options

    options.service = False
    return doctor.run(sampler_options(options))


# --------------------------------------------------------------------------------------------------- helpers


def _need_terminal() -> None:
    if not (os.isatty(0) and os.isatty(2)):
        raise GpuprofError(
            "the screen needs a terminal",
            "without one: gpuprof-tui record -o FILE, then gpuprof-tui report FILE",
            EXIT_USAGE,
        )
    from gpuprof.tui import plain

    plain.note_glyphs(os.environ)  # here, where the environment is still that of the person


def _need_file(path: str) -> None:
    import stat

    try:
        found = os.stat(path)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "its name is not valid"
        raise FileError(f"{path} cannot be opened: {reason}", "is the path right?") from error
    if not stat.S_ISREG(found.st_mode):
        raise GpuprofError(f"{path} is not a file", "give it a snapshot: NAME.gpuprof", EXIT_BAD_FILE)


def _open_standard_streams() -> None:
    """Where descriptors 0 to 2 are closed, open /dev/null there, so that no socket or file ever gets their
    numbers."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    sys.stdout = sys.stdout or os.fdopen(1, "w", encoding="utf-8", closefd=False)  # None where it was closed
    sys.stderr = sys.stderr or os.fdopen(2, "w", encoding="utf-8", closefd=False)


def _complain(message: str, hint: str = "") -> None:
    text = f"gpuprof-tui: {message}\n" + "".join(f"  {line}\n" for line in hint.splitlines())
    try:
        sys.stderr.write("".join(char if char.isprintable() or char == "\n" else "?" for char in text))
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        pass
