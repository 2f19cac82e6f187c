"""The terminal at the boundary: safe input, paced output, exits that restore it, and a check that there is
one.

Three things that the stock driver does not do. Input bytes that are not UTF-8 (X10 mouse reports past column
95, which a terminal sends when the SGR mouse mode was lost, as after a tmux reattach) are understood or
dropped instead of ending the app. Output that the terminal cannot take (a hang-up, a non-blocking descriptor)
does not wedge the app. And output is paced: after a redraw the terminal is asked for its cursor position (DSR
6, answered by a CPR), and the next redraw waits for the answer, so that at most one redraw is in flight
however slow the link is.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import threading
import time
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any

from textual import events
from textual._parser import ParseError
from textual._xterm_parser import XTermParser
from textual.drivers.linux_driver import LinuxDriver
from textual.message import Message

from gpuprof.snapshots.errors import EXIT_UNAVAILABLE, GpuprofError
from gpuprof.tui.rescue import Terminal

if TYPE_CHECKING:
    from textual.app import App

    from gpuprof.tui.plain import PlainText

PROBE = "\x1b[6n"
PROBE_AFTER_BYTES = 512  # redraws smaller than this, such as a moved cursor line, are not waited for
LOST_ANSWER_S = 5.0  # an answer that has not come by then is taken for lost
LAST_ANSWER_S = 1.0  # how long the end waits for an outstanding answer
HANG_S = 3.0  # an exit that takes longer (a terminal that accepts nothing) becomes a hard one
_X10 = re.compile(rb"\x1b\[M([\x20-\xff])([\x21-\xff])([\x21-\xff])")
_X10_START = (b"\x1b", b"\x1b[")
_X10_BEGUN = re.compile(rb"\x1b\[M[\x20-\xff]{0,2}\Z")


class InputFilter:
    """Terminal input bytes to text that a parser for UTF-8 and SGR mouse reports can take."""

    def __init__(self) -> None:
        self._decode = getincrementaldecoder("utf-8")("ignore").decode
        self._passed = (
            b""  # the start of what may become an X10 report, passed on already (a lone Esc must not wait)
        )
        self._held = b""

    def feed(self, data: bytes) -> str:
        """Text of `data`: X10 mouse reports become SGR reports (xterm ctlseqs, "Mouse Tracking"), bad bytes
        vanish."""
        data = self._passed + self._held + data
        passed, self._passed, self._held = self._passed, b"", b""
        begun = _X10_BEGUN.search(data)
        if begun is not None:
            if begun.start() == 0:
                self._passed, self._held = passed, data[len(passed) :]
                return ""
            self._held = data[begun.start() :]
            data = data[: begun.start()]
        elif data.endswith(_X10_START):
            self._passed = data[data.rindex(b"\x1b") :]
        return self._decode(_X10.sub(_as_sgr, data)[len(passed) :])


def _as_sgr(report: re.Match[bytes]) -> bytes:
    button, column, row = (report.group(place)[0] - 32 for place in (1, 2, 3))
    released = button & 3 == 3 and not button & 96
    return b"\x1b[<%d;%d;%d%c" % (
        button & ~3 if released else button,
        column,
        row,
        b"m" if released else b"M",
    )


class TerminalFile:
    """What the driver's writer thread writes to: a descriptor that may be non-blocking, slow or gone."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.queued = 0  # characters handed over and not yet written
        self.gone = False

    def fileno(self) -> int:
        return self._fd

    def flush(self) -> None:
        """Nothing is buffered here."""

    def write(self, text: str) -> None:
        """Write all of it, waiting as long as the terminal does; output to a terminal that is gone is
        dropped."""
        data = memoryview(text.encode("utf-8", "replace"))
        while data and not self.gone:
            try:
                data = data[os.write(self._fd, data) :]
            except BlockingIOError:
                select.select([], [self._fd], [], 1.0)
            except OSError:
                self.gone = True
        self.queued = max(0, self.queued - len(text))


class Pacer:
    """Decides when the terminal is ready for another redraw. Pure but for the clock, which is passed in."""

    def __init__(self) -> None:
        self.answers = False  # whether this terminal has ever answered a probe
        self._asked_at: float | None = None
        self._since_probe = 0

    def wrote(self, characters: int) -> None:
        self._since_probe += characters

    def wants_probe(self, now: float) -> bool:
        """True when a probe should follow what was just written."""
        lost = self.answers and self._asked_at is not None and now - self._asked_at > LOST_ANSWER_S
        if (self._asked_at is not None and not lost) or self._since_probe < PROBE_AFTER_BYTES:
            return False
        self._asked_at, self._since_probe = now, 0
        return True

    @property
    def waiting(self) -> bool:
        """Whether an answer is outstanding."""
        return self._asked_at is not None

    def answered(self) -> None:
        self.answers, self._asked_at = True, None

    def ready(self, now: float) -> bool:
        """True unless an answer is outstanding; a terminal that never answers is not waited for."""
        return not self.answers or self._asked_at is None or now - self._asked_at > LOST_ANSWER_S


class SafeDriver(LinuxDriver):
    """Textual's Linux driver with the input filter, the terminal file and the pacer."""

    def __init__(
        self, app: App[Any], *, debug: bool = False, mouse: bool = True, size: tuple[int, int] | None = None
    ) -> None:
        super().__init__(app, debug=debug, mouse=mouse, size=size)
        self.output = TerminalFile(1 if os.isatty(1) else 2)
        self._file = self.output  # type: ignore[assignment]
        self.pacer = Pacer()
        self._probing = True
        self._plain: PlainText | None = getattr(app, "plain_text", None)

    @property
    def ready(self) -> bool:
        """Whether a redraw now would reach the terminal without queueing behind another."""
        return self.output.queued < PROBE_AFTER_BYTES and self.pacer.ready(time.monotonic())

    def write(self, data: str) -> None:
        if self._plain is not None:
            data = self._plain(data)
        self.output.queued += len(data)
        self.pacer.wrote(len(data))
        super().write(data)

    def flush(self) -> None:
        """Called after each redraw: ask the terminal to say when it has got here."""
        if self._probing and self._writer_thread is not None and self.pacer.wants_probe(time.monotonic()):
            super().write(PROBE)

    def _sigtstp_application(self, *_: object) -> None:
        """Ctrl-Z: give the terminal back and stop, by the signal that the waiting parent expects."""
        self.suspend_application_mode()
        self._must_signal_resume = True
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), getattr(self._app, "stop_signal", signal.SIGSTOP))
        signal.signal(signal.SIGTSTP, self._sigtstp_application)

    def _sigcont_application(self, *_: object) -> None:
        """Take the terminal again, once; a stray SIGCONT must not start a second reader."""
        if self._must_signal_resume:
            self.pacer, self._probing = Pacer(), True
            super()._sigcont_application()

    def disable_input(self) -> None:
        """Before the end: wait for the answer to the last probe, which would be typed into the shell."""
        self._probing = False
        end = time.monotonic() + (LAST_ANSWER_S if self.pacer.answers else LAST_ANSWER_S / 4)
        while self.pacer.waiting and time.monotonic() < end and not self.output.gone:
            time.sleep(0.005)
        super().disable_input()

    def process_message(self, message: Message) -> None:
        if isinstance(message, events.CursorPosition):
            self.pacer.answered()
            return
        super().process_message(message)

    def run_input_thread(self) -> None:
        """Read, filter and parse input until the exit event; a terminal that hangs up ends the app."""
        text_of = InputFilter().feed
        parser = XTermParser(self._debug)
        poll = select.poll()
        poll.register(self.fileno, select.POLLIN)
        while not self.exit_event.is_set():
            if poll.poll(100):
                try:
                    data = os.read(self.fileno, 4096)
                except OSError:
                    data = b""
                if not data:
                    self.output.gone = not os.isatty(self.fileno)
                    self._loop.call_soon_threadsafe(self._app.exit, None, 128 + signal.SIGHUP)
                    return
                text = text_of(data)
                if text:
                    self._dispatch(parser.feed(text))
            self._dispatch(parser.tick())
        with contextlib.suppress(EOFError, ParseError):
            list(parser.feed(""))

    def _dispatch(self, messages: Iterable[Message]) -> None:
        for message in messages:
            self.process_message(message)


def check_terminal() -> None:
    """Raise GpuprofError unless the screen can be drawn here."""
    hint = "Use `gpuprof-tui record` and `gpuprof-tui report` where there is no terminal."
    if not os.isatty(0) or not (os.isatty(1) or os.isatty(2)):
        raise GpuprofError("The screen needs a terminal, and this is not one.", hint, EXIT_UNAVAILABLE)
    term = os.environ.get("TERM", "")
    if term in ("", "dumb", "unknown"):
        raise GpuprofError(
            f"The terminal cannot draw a screen (TERM is {term or 'not set'}).",
            f"Set TERM, for example TERM=xterm-256color. {hint}",
            EXIT_UNAVAILABLE,
        )


@contextlib.contextmanager
def exit_on_signals(leave: Callable[[int], None], terminal: Terminal) -> Iterator[None]:
    """While inside, SIGINT, SIGTERM and SIGHUP call `leave(exit code)`; the second one, or a hang, ends the
    process.

    `leave` is called between two bytecodes of the main thread and must only schedule the exit.
    """
    asked = left = False

    def end(code: int) -> None:
        if not left:  # from then on the terminal is whole
            terminal.restore()
        os._exit(code)

    def on_signal(number: int, _frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            end(128 + number)
        asked = True
        watchdog = threading.Timer(HANG_S, end, (128 + number,))
        watchdog.daemon = True
        watchdog.start()
        leave(128 + number)

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, on_signal) for number in numbers}
    try:
        yield
    finally:
        left = True
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
