"""Restores the terminal after a screen that died without doing so: line settings, alternate screen, mouse,
cursor."""

from __future__ import annotations

import os
import signal
import termios
from contextlib import suppress

# xterm control sequences (XTerm Control Sequences, "Private Mode"); kitty's keyboard protocol.
_RESET = (
    b"\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?1015l\x1b[?1016l"  # mouse reports
    b"\x1b[?2004l\x1b[?1004l\x1b[?2026l\x1b[?2048l"  # pasting, focus, synchronized output, size reports
    b"\x1b[<u"  # key reports
    b"\x1b[?1049l"  # alternate screen
    b"\x1b[?25h\x1b[0m\r"  # cursor, colours
)


class Terminal:
    """The terminal of standard input as it was at the start. Harmless where there is none."""

    def __init__(self) -> None:
        self._fd = next((fd for fd in (0, 2, 1) if os.isatty(fd)), -1)
        self._settings: list[object] | None = None
        with suppress(termios.error):
            self._settings = termios.tcgetattr(self._fd) if self._fd >= 0 else None

    def changed(self) -> bool:
        """Whether the line settings differ from those of the start: the screen did not clean up."""
        if self._settings is None:
            return False
        try:
            return termios.tcgetattr(self._fd) != self._settings
        except termios.error:
            return False

    def restore(self) -> None:
        """Set everything back."""
        if self._settings is None:
            return
        previous = signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # allowed from the background, too
        try:
            with suppress(OSError):
                os.set_blocking(self._fd, False)  # a terminal that does not take it must not hold up the end
                os.write(self._fd, _RESET)
                os.set_blocking(self._fd, True)
            with suppress(termios.error):
                termios.tcsetattr(self._fd, termios.TCSANOW, self._settings)  # type: ignore[arg-type]
        finally:
            signal.signal(signal.SIGTTOU, previous)
