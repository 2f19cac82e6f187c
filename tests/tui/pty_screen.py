"""The real screen in a real pseudo-terminal: bytes in, bytes out, and a terminal emulator (pyte) to look at
it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Callable, Iterator, Sequence

import pyte

PROBE = b"\x1b[6n"
PATIENCE_S = 60.0  # far more than anything takes; a slow machine is no failure


class PtyScreen:
    """A child on a pty. `raw` collects everything that it ever wrote; `answers` whether cursor reports are
    answered."""

    def __init__(
        self, argv: Sequence[str], columns: int = 120, rows: int = 36, *, answers: bool = True,
        environ: dict[str, str] | None = None, pass_fds: Sequence[int] = (), bytes_per_s: int | None = None,
        answer_delay_s: float = 0.0,
    ) -> None:  # fmt: skip
        self.screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self.screen)
        self.raw = bytearray()
        self.answers = answers
        self.bytes_per_s = bytes_per_s
        self.answer_delay_s = answer_delay_s
        self.answer_at: list[float] = []  # when the answers that are owed will be given
        self.status: int | None = None
        self.started = time.monotonic()
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            for fd in pass_fds:
                os.set_inheritable(fd, True)
            environment = {
                **os.environ,
                "TERM": "xterm-256color",
                "COLORTERM": "truecolor",
                **(environ or {}),
            }
            os.execve(argv[0], list(argv), environment)
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def pump(self, seconds: float) -> None:
        """Read what comes for so long."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self._read(min(left, 0.05))

    def _read(self, wait: float) -> bool:
        while self.answer_at and self.answer_at[0] <= time.monotonic():
            del self.answer_at[0]
            self.send(b"\x1b[1;1R")
        if not select.select([self.fd], [], [], wait)[0]:
            return False
        limit = 65536
        if self.bytes_per_s is not None:
            limit = max(1, self.bytes_per_s // 50)
            time.sleep(0.02)
        try:
            data = os.read(self.fd, limit)
        except OSError:
            data = b""
        if not data:
            time.sleep(0.01)
            return False
        self.raw += data
        if self.answers:
            # A probe may be split between two reads.
            probes = self.raw[-len(data) - len(PROBE) + 1 :].count(PROBE)
            self.answer_at += [time.monotonic() + self.answer_delay_s] * probes
        with contextlib.suppress(Exception):  # pyte does not know every private sequence
            self._stream.feed(data)
        return True

    def wait_for(self, condition: str | Callable[[str], bool], timeout: float = PATIENCE_S) -> str:
        """Read until the screen shows a text (or a condition on it holds); the screen's text."""
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            text = self.text
            if condition in text if isinstance(condition, str) else condition(text):
                return text
            self._read(0.05)
        raise AssertionError(f"{condition!r} did not appear; the screen is:\n{self.text}")

    def wait_drawn(self) -> str:
        """Read until charts and a tree with its samples stand; "waiting for the first samples" is neither."""
        return self.wait_for(lambda text: "┤" in text and re.search(r"\d samples", text) is not None)

    def wait_stopped(self) -> None:
        """Read until it is stopped by a signal, and all that it wrote before."""
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            self._read(0.05)
            pid, status = os.waitpid(self.pid, os.WNOHANG | os.WUNTRACED)
            if pid:
                assert os.WIFSTOPPED(status), status
                while self._read(0.05):
                    pass
                return
        raise AssertionError(f"not stopped; the screen is:\n{self.text}")

    def wait_exit_unread(self) -> int:
        """The exit code of one whose terminal takes nothing any more (or is gone)."""
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = os.waitstatus_to_exitcode(status)
                return self.status
            time.sleep(0.05)
        raise AssertionError("still running")

    @property
    def text(self) -> str:
        return "\n".join(self.screen.display)

    def send(self, data: bytes | str) -> None:
        """Type."""
        os.write(self.fd, data.encode() if isinstance(data, str) else data)

    def kill(self, number: int = signal.SIGTERM) -> None:
        os.kill(self.pid, number)

    def wait_exit(self, timeout: float = PATIENCE_S) -> int:
        """Read until it ends; its exit code, or minus the signal."""
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            self._read(0.05)
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                while self._read(0.05):
                    pass
                self.status = os.waitstatus_to_exitcode(status)
                return self.status
        raise AssertionError(f"still running; the screen is:\n{self.text}")

    def close(self) -> None:
        if self.status is None:
            with contextlib.suppress(OSError):
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
        self.hang_up()

    def hang_up(self) -> None:
        """Close the terminal, as its window does; a second time its number may be another file's."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


@contextlib.contextmanager
def screen_of(*arguments: str, columns: int = 120, rows: int = 36, **options: object) -> Iterator[PtyScreen]:
    """`python -m gpuprof.tui ARGUMENTS` on a pty."""
    screen = PtyScreen([sys.executable, "-m", "gpuprof.tui", *arguments], columns, rows, **options)  # type: ignore[arg-type]
    try:
        yield screen
    finally:
        screen.close()
