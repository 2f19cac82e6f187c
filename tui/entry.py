"""Where the `gpuprof-tui` script comes in: a Ctrl-C ends it quietly before the rest is imported."""

from __future__ import annotations

import signal


def main() -> int:
    """Run the command (command.py); its exit code."""
    # Python would show a traceback for a Ctrl-C while modules load. Dying of the signal is 130 to a shell;
    # whoever has something to finish (the screen, record) sets handlers of its own, and where the signal is
    # ignored (a script's background) it stays so.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from gpuprof.tui import command

    return command.main()
