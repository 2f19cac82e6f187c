"""The screen as a process of its own: `python -m gpuprof.tui --fd N | --socket PATH | --file PATH | --demo |
--connect JSON-ARGV`.

Started by the command (command.py) or its supervisor, already as the user. Everything is imported before the
last capability is dropped, since the program's own files may be readable only with it; importing is also what
the start-up time goes to, so the garbage collector waits until it is done.
"""

from __future__ import annotations

import gc

gc.disable()

import argparse  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402
from typing import TYPE_CHECKING  # noqa: E402

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy would start a thread per core, for nothing

from gpuprof.snapshots.errors import EXIT_UNAVAILABLE, EXIT_USAGE, GpuprofError  # noqa: E402
from gpuprof.snapshots.process_name import set_process_name  # noqa: E402
from gpuprof.tui import plain  # noqa: E402

if TYPE_CHECKING:
    from gpuprof.tui.control_client import ControlClient
    from gpuprof.tui.transports import Transport


def build_parser() -> argparse.ArgumentParser:
    """The arguments, which are between the command and the screen and not for people."""
    parser = argparse.ArgumentParser(prog="python -m gpuprof.tui", description="The screen of gpuprof-tui.")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--fd", type=int, help="descriptor of a socket connected to a sampler")
    source.add_argument("--socket", help="path of a sampler's unix socket")
    source.add_argument("--file", help="a snapshot")
    source.add_argument("--demo", action="store_true", help="the bundled recording")
    source.add_argument(
        "--connect", help="JSON list: a command that speaks the protocol, such as ssh ... dial-stdio"
    )
    parser.add_argument("--label", default="", help="what to call the source on the screen")
    parser.add_argument("--control-fd", type=int, help="descriptor of the parent's control socket")
    parser.add_argument(
        "--save-through-parent",
        action="store_true",
        help="ask the parent for a file to save to (run as nobody)",
    )
    parser.add_argument(
        "--drop-caps", action="store_true", help="give up the last capability after the imports"
    )
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Run the screen; the exit code. Raises GpuprofError for what keeps it from starting."""
    options = build_parser().parse_args(arguments)
    set_process_name("gpuprof-tui")
    plain_text = plain.prepare(os.environ)
    from gpuprof.tui import terminal

    terminal.check_terminal()
    from gpuprof.tui.app import GpuprofApp
    from gpuprof.tui.control_client import open_control
    from gpuprof.tui.rescue import Terminal

    if options.drop_caps:
        from gpuprof.tui.privileges import drop_capabilities

        drop_capabilities()
    control = open_control(options.control_fd)
    app = GpuprofApp(
        _transport(options, control),
        control=control,
        save_through_parent=options.save_through_parent,
        plain_text=plain_text,
    )
    rescue = Terminal()
    gc.freeze()
    gc.enable()
    try:
        with terminal.exit_on_signals(app.leave, rescue):
            app.run()
    finally:
        if rescue.changed():
            rescue.restore()
    if app.failure is not None:
        raise app.failure
    return app.return_code or 0


def _transport(options: argparse.Namespace, control: ControlClient | None) -> Transport:
    from gpuprof.tui import transports
    from gpuprof.tui.recordings import bundled_recording, open_file

    if options.demo:
        path = bundled_recording()
        if path is None:
            raise GpuprofError("No recording is bundled with this installation.", exit_code=EXIT_UNAVAILABLE)
        return open_file(str(path))
    if options.file is not None:
        return open_file(options.file)
    if options.connect is not None:
        return transports.CommandTransport(_argv(options.connect), options.label)
    return transports.SocketTransport(
        path=options.socket, fd=options.fd, control=control, label=options.label
    )


def _argv(text: str) -> list[str]:
    try:
        argv = json.loads(text)
    except ValueError:
        argv = None
    if not isinstance(argv, list) or not argv or not all(isinstance(word, str) for word in argv):
        raise GpuprofError("--connect takes a JSON list of words", exit_code=EXIT_USAGE)
    return argv


def _run_alone() -> int:
    """Run, and turn a GpuprofError into lines on standard error."""
    try:
        return main()
    except GpuprofError as error:
        print(f"gpuprof-tui: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    code = _run_alone()
    sys.stdout.flush()
    os._exit(
        code
    )  # a worker thread that hangs, such as a read of a dead file system, must not hold up the exit
