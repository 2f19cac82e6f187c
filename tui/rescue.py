"""Restores the terminal after a screen that died without doing so: line settings, alternate screen, mouse,
cursor."""

from __future__ import annotations

import os
import signal
import termios
import time
from contextlib import suppress

WRITE_TRIES, WRITE_PAUSE_S = 20, 0.01
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
        """Set everything back; from any thread."""
        if self._settings is None:
            return
        # Blocked, the signal keeps nobody in the background from it.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
        try:
            with suppress(OSError):
                self._write(_RESET)
            with suppress(termios.error):
                termios.tcsetattr(self._fd, termios.TCSANOW, self._settings)  # type: ignore[arg-type]
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _write(self, data: bytes) -> None:
        """What the terminal takes of it soon: one that takes nothing must not hold up the end."""
        os.set_blocking(self._fd, False)
        try:
            for _ in range(WRITE_TRIES):
                try:
                    data = data[os.write(self._fd, data) :]
                    if not data:
                        return
                except BlockingIOError:  # it is full, or another thread writes just now
                    time.sleep(WRITE_PAUSE_S)
        finally:
            os.set_blocking(self._fd, True)
