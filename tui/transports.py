"""Where frames come from: a socket, a command that speaks the protocol on its standard streams (ssh), or a
file in process.

All three look the same to the model: open, an async iterator of frames, send, close. A transport that was
closed, or whose stream ended, can be opened again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from gpuprof.snapshots.errors import EXIT_UNAVAILABLE, FrameError, GpuprofError
from gpuprof.snapshots.frames import MAGIC, Failure, Fetch, Fetched, Frame, Query, Subscribe
from gpuprof.snapshots.names import clean
from gpuprof.snapshots.wire import Decoder, pack
from gpuprof.snapshots.work_frames import RateQuery

if TYPE_CHECKING:
    from gpuprof.snapshots.history import History
    from gpuprof.tui.control_client import ControlClient

READ_BYTES = 256 << 10
STDERR_LINES = 20
SSH_FAILED = 255  # ssh(1): an error of its own, not of the remote command
_CONTROLS = bytes([*range(32), 127])


class Transport(Protocol):
    """A source of frames. `live`: time goes on there; `label`: what to call it on the screen."""

    live: bool
    label: str
    damage: str | None  # what is missing from a file, in words
    silence_hint: str  # what may be the matter when nothing comes
    refused: bool  # the last end was one of a host, or a command, from which nothing of ours ever came

    @property
    def span(self) -> tuple[int, int] | None:
        """Extent [start_ns, end_ns) of an opened file; None for a live source."""

    async def open(self) -> None:
        """Connect. Raises GpuprofError with the reason and the next step."""

    def frames(self) -> AsyncIterator[Frame]:
        """Decoded frames until the stream ends; raises GpuprofError when it breaks, and says why."""

    async def send(self, frame: Frame) -> None:
        """Send a request. Raises GpuprofError when the stream is closed."""

    async def close(self) -> None:
        """Close; harmless when closed already."""


class _Stream:
    """The part that sockets and commands share: a reader, a writer, and the decoder between."""

    damage: str | None = None
    refused = False
    silence_hint = "Does that sampler hang? Whoever started it can start it again."
    span: tuple[int, int] | None = None

    def __init__(self, *, skip_preamble: bool = False) -> None:
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._skip_preamble = skip_preamble
        self._decoder = Decoder(skip_preamble=skip_preamble)

    def _attach(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._decoder = Decoder(skip_preamble=self._skip_preamble)
        writer.write(MAGIC)

    async def frames(self) -> AsyncIterator[Frame]:
        reader = self._reader
        if reader is None:
            raise _closed()
        while True:
            try:
                data = await reader.read(READ_BYTES)
            except OSError as error:
                raise GpuprofError(
                    f"The connection to the sampler broke: {error.strerror or error}."
                ) from error
            if not data:
                return
            for frame in self._decoder.feed(data):
                yield frame

    async def send(self, frame: Frame) -> None:
        writer = self._writer
        if writer is None or writer.is_closing():
            raise _closed()
        writer.write(pack(frame))
        try:
            await writer.drain()
        except OSError as error:
            raise GpuprofError(f"The connection to the sampler broke: {error.strerror or error}.") from error

    async def close(self) -> None:
        writer, self._writer, self._reader = self._writer, None, None
        if writer is not None:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


class SocketTransport(_Stream):
    """A sampler on this node: an inherited descriptor (a new one comes through `control`), or a unix socket
    by path."""

    live = True

    def __init__(
        self,
        *,
        path: str | None = None,
        fd: int | None = None,
        control: ControlClient | None = None,
        label: str = "",
    ) -> None:
        super().__init__()
        self.label = label or (path or "this node")
        self._path, self._fd, self._control = path, fd, control

    async def open(self) -> None:
        await self.close()
        if self._fd is not None:
            fd, self._fd = self._fd, None
            try:
                connected = socket.socket(fileno=fd)
            except OSError as error:
                raise GpuprofError(f"Descriptor {fd} is not a socket.", exit_code=EXIT_UNAVAILABLE) from error
        elif self._control is not None:
            connected = await self._control.new_connection()
        elif self._path is not None:
            connected = await _connect(self._path)
        else:
            raise GpuprofError("The sampler is gone.", "Start gpuprof-tui again.", EXIT_UNAVAILABLE)
        connected.setblocking(False)
        self._attach(*await asyncio.open_unix_connection(sock=connected))


async def _connect(path: str) -> socket.socket:
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connected.setblocking(False)
    try:
        await asyncio.get_running_loop().sock_connect(connected, path)
    except OSError as error:
        connected.close()
        hint = "Is the sampler running? `gpuprof-tui doctor` says what is missing."
        if isinstance(error, PermissionError):
            hint = (
                "Only root and the socket's group may connect (usermod -aG gpuprof NAME, then log in again)."
            )
        raise GpuprofError(f"Cannot connect to {path}: {error.strerror}.", hint, EXIT_UNAVAILABLE) from error
    return connected


class CommandTransport(_Stream):
    """A sampler behind a command, such as `ssh -T host gpuprof-tui dial-stdio`.

    Bytes before the magic are skipped up to 64 KiB; standard error is kept apart and its last lines explain a
    failure.
    """

    live = True
    silence_hint = "Does a login there ask for something, or hang? Then it does so in plain ssh, too."

    def __init__(self, argv: Sequence[str], label: str = "") -> None:
        super().__init__(skip_preamble=True)
        self._argv = list(argv)
        self.label = label or (self._argv[0] if self._argv else "")
        self._process: asyncio.subprocess.Process | None = None
        self._stderr: deque[str] = deque(maxlen=STDERR_LINES)
        self._stderr_task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        await self.close()
        self._stderr.clear()
        self.refused = False
        try:
            self._process = process = await asyncio.create_subprocess_exec(
                *self._argv,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,  # ^C is for the screen, and ssh must not prompt on its terminal
                limit=READ_BYTES,
            )
        except (OSError, IndexError, ValueError) as error:
            self.refused = True
            name = self._argv[0] if self._argv else "(nothing)"
            why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise GpuprofError(
                f"Cannot start {clean(name, 80)}: {why}.", "Is it installed?", EXIT_UNAVAILABLE
            ) from error
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stderr is not None
        self._attach(process.stdout, process.stdin)
        self._stderr_task = asyncio.create_task(self._collect_stderr(process.stderr))

    async def frames(self) -> AsyncIterator[Frame]:
        try:
            async for frame in super().frames():
                yield frame
        except FrameError as error:
            raise await self._explained(error.message, error.hint) from error
        raise await self._explained("", "")

    async def send(self, frame: Frame) -> None:
        try:
            await super().send(frame)
        except GpuprofError as error:
            raise await self._explained("", error.hint) from error

    async def _collect_stderr(self, stream: asyncio.StreamReader) -> None:
        rest = b""
        while data := await stream.read(4096):
            *lines, rest = (rest + data).split(b"\n")
            self._stderr.extend(said for line in lines if (said := _spoken(line)))
            rest = rest[-4096:]
        if said := _spoken(rest):
            self._stderr.append(said)

    async def _explained(self, message: str, hint: str) -> GpuprofError:
        """Why the stream ended: the exit status of the command and what it said."""
        process = self._process
        code: int | None = None
        if process is not None:
            with contextlib.suppress(asyncio.TimeoutError):
                code = await asyncio.wait_for(process.wait(), 1.0)
        if self._stderr_task is not None:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(asyncio.shield(self._stderr_task), 0.5)
        self.refused = not self._decoder.started
        if code == SSH_FAILED and self.refused:
            last = self._stderr[-1] if self._stderr else f"{os.path.basename(self._argv[0])} says nothing"
            hint = hint or f"Does `ssh {self.label}` work, without asking anything?"
            return GpuprofError(f"cannot connect to {self.label}: {last}", hint, EXIT_UNAVAILABLE)
        if not message:
            ended = "closed the stream" if code is None else f"ended with status {code}"
            message = f"{self.label}: {os.path.basename(self._argv[0])} {ended}"
            if not self._decoder.started:
                message += " before it spoke the gpuprof protocol"
            message += "."
        # What forbids a login (nologin, a policy) is often printed to standard output.
        heard = [text for line in self._decoder.unread.splitlines() if (text := _spoken(line))]
        said = "; ".join(list(self._stderr or heard)[-3:])
        if said:
            message += f" It said: {said}"
        if code == 127 and not hint:
            hint = (
                "gpuprof-tui was not found on the far side: install it there, or give its path: "
                "--remote-command '/PATH/gpuprof-tui dial-stdio'"
            )
        return GpuprofError(message, hint, EXIT_UNAVAILABLE)

    async def close(self) -> None:
        await super().close()
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            try:
                await asyncio.wait_for(process.wait(), 1.0)
            except asyncio.TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
        if process is not None:
            # Pipes with unread output stay open otherwise, and complain when the loop is closed.
            pipes = getattr(process, "_transport", None)
            if pipes is not None:
                pipes.close()
        if self._stderr_task is not None:
            self._stderr_task.cancel()
            self._stderr_task = None


class HistoryTransport:
    """A history in this process, as of an opened file: the same frames, with queries answered in a worker
    thread."""

    live = False
    refused = False
    silence_hint = ""
    damage: str | None = None

    def __init__(self, load: History | Callable[[], History], label: str) -> None:
        """`load` is the history, or a function that reads it (run in a thread, so that the screen is up
        meanwhile)."""
        self.label = label
        self._load = load
        self._history: History | None = None
        self._queue: asyncio.Queue[Frame | None] = asyncio.Queue()
        self._tasks: set[asyncio.Task[None]] = set()
        self._streaming = asyncio.Lock()  # what is fetched comes in one piece

    @property
    def span(self) -> tuple[int, int] | None:
        return self._history.span if self._history is not None else None

    async def open(self) -> None:
        self._queue = asyncio.Queue()
        load = self._load
        self._history = await asyncio.to_thread(load) if callable(load) else load

    async def frames(self) -> AsyncIterator[Frame]:
        while (frame := await self._queue.get()) is not None:
            yield frame

    async def send(self, frame: Frame) -> None:
        history = self._history
        if history is None:
            raise _closed()
        task = asyncio.create_task(self._answer(history, frame))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, history: History, request: Frame) -> None:
        number = request.id if isinstance(request, (Query, RateQuery, Fetch)) else 0
        try:
            if isinstance(request, Subscribe):
                async with self._streaming:
                    await self._stream(history, *history.span, level=request.level)
            elif isinstance(request, Query):
                self._queue.put_nowait(await asyncio.to_thread(history.query, request))
            elif isinstance(request, RateQuery):
                self._queue.put_nowait(await asyncio.to_thread(history.rates, request))
            elif isinstance(request, Fetch):
                async with self._streaming:
                    await self._stream(history, request.start_ns, request.end_ns, level="rows")
                    self._queue.put_nowait(Fetched(request.id))
        except GpuprofError as error:
            self._queue.put_nowait(Failure(number, error.message, error.hint))

    async def _stream(self, history: History, start_ns: int, end_ns: int, level: str) -> None:
        """Put the frames of [start, end] on the queue, read in a thread, a few at a time so that memory stays
        bounded."""
        iterator = iter(history.frames_between(start_ns, end_ns + 1, level=level))
        while batch := await asyncio.to_thread(_take, iterator, 16):
            for frame in batch:
                self._queue.put_nowait(frame)
            while self._queue.qsize() > 64:
                await asyncio.sleep(0.005)

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        self._queue.put_nowait(None)


def _spoken(line: bytes) -> str:
    """A line of standard error without the \\r and escapes that are meant for a terminal; empty when nothing
    is left."""
    text = line.translate(None, _CONTROLS).strip()
    return clean(text, 300) if text else ""


def _take(iterator: object, count: int) -> list[Frame]:
    batch: list[Frame] = []
    for frame in iterator:  # type: ignore[attr-defined]
        batch.append(frame)
        if len(batch) == count:
            break
    return batch


def _closed() -> GpuprofError:
    return GpuprofError("The connection to the sampler is closed.", exit_code=EXIT_UNAVAILABLE)
