"""The end of a recording: what its sampler could not send is told, on stderr and in the file."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from gpuprof.snapshots.errors import GpuprofError
from gpuprof.snapshots.file import SnapshotWriter, read_snapshot
from gpuprof.snapshots.frames import (
    MAGIC,
    PROTOCOL_VERSION,
    Done,
    Failure,
    Frame,
    FrameKind,
    Hello,
    ProcessDef,
    Settle,
    SourceStatus,
    Status,
)
from gpuprof.snapshots.history import History
from gpuprof.snapshots.wire import Decoder, pack
from gpuprof.tui import record
from gpuprof.tui.record import RecordOptions
from gpuprof.tui.recorded_command import RecordedCommand

SOURCES = [SourceStatus("cpu", "ok"), SourceStatus("offcpu", "ok"), SourceStatus("gpu", "off")]


class Sampler:
    """The other end of a connection; `answer` gives what is sent when all up to now is asked for, or None for
    the end of the stream.
    """

    def __init__(self, answer: Callable[[int], list[Frame] | None]) -> None:
        self.ours, theirs = socket.socketpair()
        self._socket, self._answer = theirs, answer
        self._history = History(Hello(1, "node", "boot", "6.1", 2, 5, 0, "0", 1, 99, 0, True))
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def sample(self) -> list[Frame]:
        """A sample of now, with all that it refers to, and a status."""
        history, cursor = self._history, self._cursor
        with history.lock:
            tables = history.tables
            thread = tables.thread(tables.process(ProcessDef(7, 1, "a", "", "me", 1000, 1)), 7, "main")
            stack = tables.stack([tables.frame(tables.function("f", "", "", FrameKind.PYTHON), 1)])
            history.add_samples([time.monotonic_ns()], [0], [thread], [stack])
        history.set_status(Status(time.monotonic_ns(), SOURCES, 0, 0, 0, 0))
        return history.since(cursor)

    def _serve(self) -> None:
        self._cursor = self._history.cursor("rows")
        self._send([self._history.hello], MAGIC)
        self._send(self.sample())
        decoder = Decoder()
        while data := self._received():
            for frame in decoder.feed(data):
                if isinstance(frame, Settle):
                    answer = self._answer(frame.id)
                    if answer is None:
                        self._socket.close()
                        return
                    self._send([*self.sample(), *answer])
            self._send(self.sample())

    def _received(self) -> bytes:
        """Of the requests; meanwhile there is a sample now and then."""
        while True:
            try:
                return self._socket.recv(1 << 16)
            except TimeoutError:
                self._send(self.sample())
            except OSError:  # the other end has not read all
                return b""

    def _send(self, frames: list[Frame], preface: bytes = b"") -> None:
        self._socket.settimeout(None)
        with suppress(OSError):  # the other end has gone
            self._socket.sendall(preface + b"".join(map(pack, frames)))
        self._socket.settimeout(0.01)


@pytest.fixture(autouse=True)
def undisturbed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The signals of the test's own process stay as they are."""

    def heed_signals(command: RecordedCommand) -> None:
        command.signals_fd = os.pipe2(os.O_NONBLOCK)[0]

    monkeypatch.setattr(RecordedCommand, "heed_signals", heed_signals)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is waited for long: an answer that comes, and on a busy machine late, has no part in it."""
    monkeypatch.setattr(record, "_PATIENCE_SECONDS", 0.1)
    monkeypatch.setattr(record, "_LAST_FRAMES_SECONDS", 0.3)


def recorded(sampler: Sampler, file: Path) -> dict[str, SourceStatus]:
    """What is said of each source in the file."""
    try:
        record._Recording(RecordOptions(str(file), seconds=0.2), sampler.ours, None).run()
    finally:
        sampler.ours.close()
        sampler.thread.join()
        status = read_snapshot(str(file)).history.status
        assert status is not None
        found = {source.name: source for source in status.sources}
    return found


def test_of_a_recording_that_is_complete_nothing_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = recorded(Sampler(lambda number: [Done(number)]), tmp_path / "f")
    assert found == {source.name: source for source in SOURCES}
    assert "missing" not in (said := capsys.readouterr().err)
    assert "complete" not in said


def test_a_sampler_that_could_not_read_all_in_time_is_quoted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its own status says it in the file."""
    late = Sampler(lambda number: [Done(number, time.monotonic_ns() - 3 * 10**9)])
    recorded(late, tmp_path / "f")
    # No more is missing than was recorded.
    assert "the last 0.2 s are not complete" in capsys.readouterr().err


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("kind", ["silent", "refuses"])
def test_a_sampler_that_does_not_answer_leaves_a_file_that_says_so(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = {"silent": lambda number: [], "refuses": lambda number: [Failure(number, "too many")]}
    found = recorded(Sampler(answers[kind]), tmp_path / "f")
    for name in ("cpu", "offcpu"):
        assert found[name].state == "degraded"
        assert "missing" in found[name].reason
    assert found["gpu"] == SOURCES[2]
    assert "missing" in capsys.readouterr().err


def test_of_a_sampler_that_ended_early_the_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(GpuprofError, match="the sampler ended"):
        recorded(Sampler(lambda number: None), tmp_path / "f")
    status = read_snapshot(str(tmp_path / "f")).history.status
    assert status is not None
    assert [source.state for source in status.sources] == ["degraded", "degraded", "off"]


@pytest.mark.parametrize("version", [None, PROTOCOL_VERSION + 1])
def test_of_a_sampler_that_served_nothing_no_file_is_left_and_none_is_promised(
    version: int | None, tmp_path: Path
) -> None:
    """It hangs up at once, or speaks a later protocol: then the step that mends it is said, too."""
    ours, theirs = socket.socketpair()
    if version is not None:
        theirs.sendall(MAGIC + pack(Hello(version, "node", "boot", "6.1", 2, 5, 0, "7.0", 1, 99, 0, True)))
    theirs.shutdown(socket.SHUT_WR)
    with ours, theirs, pytest.raises(GpuprofError) as caught:
        record._Recording(RecordOptions(str(tmp_path / "f"), seconds=0.2), ours, None).run()
    step = "" if version is None else "Update gpuprof-tui here to read it.\n"
    assert caught.value.hint == step + "nothing was recorded, and no file is left"
    assert not list(tmp_path.iterdir())


def test_a_status_after_the_last_row_is_in_the_file(tmp_path: Path) -> None:
    """Also where all rows were written before it came."""
    hello = Hello(1, "node", "boot", "6.1", 2, 5, 0, "0", 1, 99, 0, True)
    history = History(hello)
    cursor = history.cursor("rows")
    with history.lock:
        tables = history.tables
        thread = tables.thread(tables.process(ProcessDef(7, 1, "a", "", "me", 1000, 1)), 7, "main")
        stack = tables.stack([tables.frame(tables.function("f", "", "", FrameKind.PYTHON), 1)])
        history.add_samples([10**9, 4 * 10**9], [0, 0], [thread] * 2, [stack] * 2)
    writer = SnapshotWriter(str(tmp_path / "f"), hello)
    writer.recorded(10**9, 4 * 10**9)
    writer.write(history.since(cursor))
    assert writer.rows_written[0] == 2
    late = Status(5 * 10**9, [SourceStatus("cpu", "degraded", "not read in time")], 0, 0, 0, 0)
    writer.write([late])
    writer.close()
    opened = read_snapshot(str(tmp_path / "f")).history
    assert opened.status is not None
    assert opened.status.sources == late.sources
    assert opened.span == (10**9, 4 * 10**9)
